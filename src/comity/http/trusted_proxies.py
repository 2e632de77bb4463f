"""The client address behind proxies that the operator trusts. (RFC 7239)

A header of a trusted proxy names the address that the proxy received from. The last proxy wrote
the right end of the list. The sender may have invented everything left of the first untrusted
address.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

type Headers = Iterable[tuple[bytes, bytes]]

MAX_HOPS: Final = 32
_MAX_LENGTH: Final = 128
_FORWARDED: Final = b"forwarded"
_FORWARDED_FOR: Final = b"x-forwarded-for"


class TrustedProxies:
    """The networks of trusted proxies."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Parse the networks. Raise ValueError for a text that is not a network."""
        found = [ip_network(each, strict=False) for each in networks]
        self._of_4 = tuple(each for each in found if isinstance(each, IPv4Network))
        self._of_6 = tuple(each for each in found if isinstance(each, IPv6Network))
        self.are_named = bool(found)

    def trusts(self, address: str) -> bool:
        """Whether the address belongs to a trusted proxy."""
        found = _address(address) if self.are_named else None
        if isinstance(found, IPv4Address):
            return any(found in each for each in self._of_4)
        return found is not None and any(found in each for each in self._of_6)

    def sender(self, peer: str, headers: Headers) -> str:
        """Return the address of the client. It is `peer` unless a trusted proxy names another.

        Two headers that disagree prove nothing: the client may have sent one that its proxy passed
        on. Then the proxy counts as the client.
        """
        if not self.trusts(peer):
            return peer
        written = _written(headers)
        found = {
            self._walk(peer, lines, is_list)
            for lines, is_list in ((written[0], True), (written[1], False))
            if lines
        }
        return found.pop() if len(found) == 1 else peer

    def _walk(self, peer: str, lines: list[bytes], is_list: bool) -> str:
        """Walk from the right to the first address that is untrusted or cannot be parsed."""
        sender = peer
        hops = b",".join(lines).decode("latin-1").rsplit(",", MAX_HOPS)
        for hop in reversed(hops[-MAX_HOPS:]):
            address = _address(hop.strip() if is_list else _for_in(hop))
            if address is None:
                return sender
            sender = str(address)
            if not self.trusts(sender):
                return sender
        return sender


def _written(headers: Headers) -> tuple[list[bytes], list[bytes]]:
    """Return all lines of `X-Forwarded-For`, and all of `Forwarded`."""
    listed: list[bytes] = []
    stated: list[bytes] = []
    for name, value in headers:
        if name == _FORWARDED_FOR:
            listed.append(value)
        elif name == _FORWARDED:
            stated.append(value)
    return listed, stated


def _for_in(element: str) -> str:
    """Return the `for=` value of one `Forwarded` element. Return nothing unless it occurs once."""
    pairs = [pair.strip().partition("=") for pair in element.split(";")]
    named = [value.strip() for name, _, value in pairs if name.strip().lower() == "for"]
    return named[0].strip('"') if len(named) == 1 else ""


@lru_cache(4096)
def _address(written: str) -> IPv4Address | IPv6Address | None:
    """Return an address that may have a port, or None if the text is not an address."""
    text = written
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        # A longer text is not an address. The limit keeps the cache small.
        found = ip_address(text.partition("%")[0]) if len(written) <= _MAX_LENGTH else None
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found
