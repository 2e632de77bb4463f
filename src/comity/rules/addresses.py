"""Whether a host, an address or a URL leads to a place that is not public. (security.md §3.3)

Python's own `is_global` is not asked: it takes 192.0.0.192, 2002:7f00:1:: and 64:ff9b::7f00:1 for
public. What is allowed of IPv6 is named; of IPv4, what is not.
"""

import re
import unicodedata
from collections.abc import Sequence
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final
from urllib.parse import unquote

from comity.rules.options import words

MOST_CHARACTERS: Final = 8192
_NOT_PUBLIC_4: Final = [
    IPv4Network(each)
    for each in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        # Metadata of clouds that stand among public addresses.
        *("168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32", "147.75.207.207/32"),
    )
]
_RANGES_4: Final = [
    (int(network.network_address), int(network.broadcast_address)) for network in _NOT_PUBLIC_4
]
_PUBLIC_6: Final = IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = [
    IPv6Network(each)
    for each in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "2620:4f:8000::/48")
]
_LOCAL_NAMES: Final = words(
    "localhost localhost.localdomain localhost4 localhost6 ip6-localhost ip6-loopback "
    "broadcasthost metadata metadata.google.internal instance-data kubernetes kubernetes.default"
)
_LOCAL_ENDS: Final = tuple(
    f".{each}"
    for each in sorted(
        words(
            "localhost localdomain local internal intranet lan home home.arpa corp private svc "
            "test cluster.local consul docker invalid example.internal onion in-addr.arpa "
            "ip6.arpa"
        )
    )
)
# Names below these resolve to whatever address is written in them.
_MIRRORS: Final = tuple(
    f".{each}"
    for each in sorted(
        words(
            "nip.io sslip.io xip.io localtest.me lvh.me vcap.me lacolhost.com 1u.ms "
            "fuf.me traefik.me rbndr.us localhost.run local.gd backname.io"
        )
    )
)
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_DOTS: Final = str.maketrans({"\u3002": ".", "\uff0e": ".", "\uff61": "."})
_PART_4: Final = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+")


def address(text: str) -> IPv4Address | IPv6Address | None:
    """The address that a text is, in any form that some program takes for one."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in inner:
        try:
            # A zone is meant for the machine itself, which is why it is looked at without.
            return IPv6Address(inner.partition("%")[0])
        except AddressValueError:
            return None
    return _address_4(inner.rstrip("."))


def _address_4(text: str) -> IPv4Address | None:
    """As `inet_aton` reads it: one to four parts, each decimal, octal or hexadecimal."""
    parts = text.split(".")
    if not 1 <= len(parts) <= 4 or not all(_PART_4.fullmatch(part) for part in parts):
        return None
    numbers = [_number(part) for part in parts]
    *head, last = numbers
    # Excess is cut off by some programs, so that it hides nothing here.
    value = last % (1 << (8 * (5 - len(parts))))
    for place, number in enumerate(head):
        value |= (number % 256) << (8 * (3 - place))
    return IPv4Address(value)


def _number(part: str) -> int:
    if len(part) > 40:
        return 0
    if part[:2] in ("0x", "0X"):
        return int(part[2:] or "0", 16)
    is_octal = part.startswith("0") and not set(part) & {"8", "9"}
    return int(part, 8 if is_octal else 10)


def is_public(found: IPv4Address | IPv6Address) -> bool:
    """Whether anybody on the internet would reach the same machine by it."""
    if isinstance(found, IPv4Address):
        number = int(found)
        return not any(low <= number <= high for low, high in _RANGES_4)
    inside = found.ipv4_mapped
    if inside is not None:
        return is_public(inside)
    return found in _PUBLIC_6 and not any(found in network for network in _NOT_PUBLIC_6)


def both_readings_are_public(text: str, found: IPv4Address | IPv6Address) -> bool:
    """A part with a leading zero is octal to some programs and decimal to others."""
    if not is_public(found):
        return False
    if isinstance(found, IPv6Address) or not re.search(r"(?:^|\.)0\d", text):
        return True
    parts = text.strip("[]").rstrip(".").split(".")
    plain = [part if part[:2] in ("0x", "0X") else part.lstrip("0") or "0" for part in parts]
    decimal = _address_4(".".join(plain))
    return decimal is None or is_public(decimal)


def plain_host(host: str) -> str | None:
    """A host as a resolver would be asked for it; None for what is no host in any reading."""
    if len(host) > 1024:
        return None
    text = unquote(unquote(host)).translate(_DOTS)
    text = unicodedata.normalize("NFKC", text).casefold().translate(_DOTS)
    if any(sign in text for sign in "/\\@?#<>^|`{}\"' \t\r\n") or not text:
        return None
    if text.startswith("[") or ":" in text:
        return text if address(text) is not None else None
    text = text.rstrip(".")
    if address(text) is not None:
        return text
    try:
        encoded = text.encode("idna").decode("ascii")
    except UnicodeError:
        return None
    fits = len(encoded) <= 253 and all(_LABEL.fullmatch(each) for each in encoded.split("."))
    return encoded if fits else None


def host_problem(host: str, allowed: frozenset[str] = frozenset()) -> tuple[str | None, str]:
    """Why a host is refused, or None and the name that has yet to be resolved, if any."""
    plain = plain_host(host)
    if plain is None:
        return "it names a host that cannot be read in one way only", ""
    if is_among(plain, allowed):
        return None, ""
    found = address(plain)
    if found is not None:
        public = both_readings_are_public(plain, found) and "%" not in plain
        return (None if public else "it leads to an address that is not public"), ""
    if plain in _LOCAL_NAMES or plain.endswith(_LOCAL_ENDS) or "." not in plain:
        return "it names a host of this machine or its network", ""
    if f".{plain}".endswith(_MIRRORS):
        return "it names a host that resolves to any address one likes", ""
    return None, plain


def is_among(plain: str, allowed: frozenset[str]) -> bool:
    """Whether a host was named, by itself or by how it ends (`.example.org`)."""
    return plain in allowed or any(plain.endswith(each) for each in allowed if each.startswith("."))


def answers_problem(answers: Sequence[str]) -> str | None:
    """Why a name is refused by what it resolves to: one bad answer is enough."""
    if not answers:
        return "its host cannot be resolved"
    for each in answers:
        found = address(each)
        if found is None or "%" in each or not is_public(found):
            return "its host resolves to an address that is not public"
    return None
