"""The allow-list of the egress proxy, and strict readers of what a server sends to it.

A reading must be the only possible one. The proxy forwards nothing that another program could
read in a different way, and it writes the heads that it forwards itself.
"""

import re
import socket
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NamedTuple, NoReturn

from comity.errors import MalformedMessage, Misconfigured
from comity.validation.network import answers_problem, host_problem

DEFAULT_PORT: Final = 443
ANY_HOST: Final = "*"
MAX_SHOWN_CHARACTERS: Final = 100
OWN_ADDRESS_PROBLEM: Final = "it is an address of the gateway, which no server may reach"

MAX_TARGET_CHARACTERS: Final = 260
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}")
_LAST_LABEL_IS_NUMBER: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_IPV6: Final = re.compile(r"[0-9a-f:.]{2,45}")
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")

type OwnAddresses = Callable[[], Iterable[tuple[str, int]]]
"""Returns the hosts and ports at which the gateway itself can be reached."""


class EgressTarget(NamedTuple):
    """A host and a port. A name is in lower case and punycode; an address has its usual form."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int | None = None) -> "EgressTarget | None":
        """Return the target that a text names, or None if the text has another form."""
        if len(text) > MAX_TARGET_CHARACTERS or not text.isascii():
            return None
        host, port = _split_port(text.lower(), default_port)
        if port is None or not 1 <= port <= 65535:
            return None
        if host.startswith("[") and host.endswith("]"):
            found = _parse_ipv6(host[1:-1])
            return None if found is None else cls(str(found), port)
        name = host.removesuffix(".")
        if _LAST_LABEL_IS_NUMBER.fullmatch(name):
            return cls(host, port) if _is_ipv4(host) else None
        return cls(name, port) if _is_name(name) else None

    @property
    def is_address(self) -> bool:
        return ":" in self.host or _is_ipv4(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _split_port(text: str, default_port: int | None) -> tuple[str, int | None]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text, default_port
    return host, int(port) if _PORT.fullmatch(port) else None


def _is_name(text: str) -> bool:
    return len(text) <= 253 and _NAME.fullmatch(text) is not None


def _is_ipv4(text: str) -> bool:
    try:
        return str(IPv4Address(text)) == text
    except AddressValueError:
        return False


def _parse_ipv6(text: str) -> IPv6Address | None:
    try:
        return IPv6Address(text) if _IPV6.fullmatch(text) else None
    except AddressValueError:
        return None


class EgressRules:
    """The hosts and ports that one server may reach.

    A name is granted by itself, by a wildcard for one label, or by `*` for all names. Its addresses
    must be public. An address is granted only by itself, and then it may be private. The gateway's
    own addresses are never granted.
    """

    def __init__(self, reaches: Iterable[str], own_addresses: OwnAddresses = tuple) -> None:
        """Read the reaches of a grant, such as `*.example.com:443`. Raises Misconfigured."""
        self._targets: set[EgressTarget] = set()
        self._domains: set[EgressTarget] = set()
        self._own_addresses = own_addresses
        self._grants_every_name = False
        for text in reaches:
            if text == ANY_HOST:
                self._grants_every_name = True
                continue
            target, is_wildcard = parse_reach(text)
            (self._domains if is_wildcard else self._targets).add(target)

    def is_granted(self, target: EgressTarget) -> bool:
        if target in self._targets or (self._grants_every_name and not target.is_address):
            return True
        label, _, domain = target.host.partition(".")
        return bool(label) and EgressTarget(domain, target.port) in self._domains

    def grant_problem(self, target: EgressTarget) -> str | None:
        """Return why a person cannot grant a target, or None."""
        try:
            parse_reach(str(target))
        except Misconfigured as mistake:
            return str(mistake)
        return self.address_problem(target, (target.host,)) if target.is_address else None

    def address_problem(self, target: EgressTarget, addresses: Sequence[str]) -> str | None:
        """Return why a granted target is refused with the addresses that its name has, or None.

        One bad address is enough, because a name may have been made to lead to several machines.
        """
        for own_host, own_port in self._own_addresses():
            if own_port == target.port and (
                target.host == own_host.strip("[]").lower()
                or own_host in addresses
                or any(is_of_this_machine(each) for each in addresses)
            ):
                return OWN_ADDRESS_PROBLEM
        return None if target.is_address or not addresses else answers_problem(addresses)


def is_of_this_machine(address: str) -> bool:
    """Return whether this machine has the address: only then can a socket be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def parse_reach(text: str) -> tuple[EgressTarget, bool]:
    """Return the target of a reach, and whether it is a domain whose names are granted.

    Raises Misconfigured with a message that names the text.
    """
    is_wildcard = text.startswith("*.")
    target = EgressTarget.parse(_to_ascii(text[2:] if is_wildcard else text), DEFAULT_PORT)
    if target is None:
        _refuse_reach(text, "write HOST:PORT, *.DOMAIN:PORT, or an address with a port")
    if is_wildcard and (target.is_address or "." not in target.host):
        _refuse_reach(text, "a wildcard needs a domain of at least two labels")
    if target.is_address:
        _check_literal(text, target.host)
        return target, is_wildcard
    problem, _ = host_problem(f"name.{target.host}" if is_wildcard else target.host)
    if problem is not None:
        _refuse_reach(text, f"{problem}; name its address instead")
    return target, is_wildcard


def _to_ascii(text: str) -> str:
    """Return the text in punycode, or an empty one if encoding would name another host.

    The encoding of Python replaces some letters by others: `ß` by `ss`, for example.
    """
    if text.isascii():
        return text
    wanted = unicodedata.normalize("NFC", text).lower()
    host, colon, port = wanted.rpartition(":")
    name = (host if colon else wanted).removesuffix(".")
    try:
        encoded = name.encode("idna").decode("ascii")
        same = encoded.encode("ascii").decode("idna") == name
    except UnicodeError:
        return ""
    return f"{encoded}{colon}{port if colon else ''}" if same else ""


def _check_literal(text: str, host: str) -> None:
    address = IPv6Address(host) if ":" in host else IPv4Address(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        _refuse_reach(text, f"write its IPv4 address, {address.ipv4_mapped}")
    if address.is_unspecified or address.is_multicast or host == "255.255.255.255":
        _refuse_reach(text, "this address belongs to no single machine")


def _refuse_reach(text: str, reason: str) -> NoReturn:
    shown = ascii(text)[1:-1][:MAX_SHOWN_CHARACTERS]
    raise Misconfigured(f"the network reach '{shown}' cannot be granted: {reason}")


_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,20}) ([!-~]+) (HTTP/1\.[01])")
_HEADER: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([\t -~\x80-\xff]*)")
_HTTP_URL: Final = re.compile(r"http://([^/?#]*)([/?][^#]*)?", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_HOP_BY_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"http2-settings", b"host", b"content-length"),
    }
)


@dataclass(frozen=True, slots=True)
class EgressRequest:
    """A request to the proxy: a tunnel, or a plain request with the head to forward."""

    target: EgressTarget
    head: bytes = b""
    is_chunked: bool = False

    @property
    def is_tunnel(self) -> bool:
        return not self.head


class _Headers(NamedTuple):
    lines: list[tuple[bytes, bytes]]
    """Names in lower case, and values without the spaces around them."""

    def values(self, name: bytes) -> list[bytes]:
        return [value for each, value in self.lines if each == name]


def read_request(head: bytes) -> EgressRequest:
    """Read a request up to its blank line. Raises MalformedMessage with a reason to show."""
    first, *rest = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    start = _REQUEST_LINE.fullmatch(first)
    if start is None:
        raise MalformedMessage("the request line is not one of HTTP/1.1 to a proxy")
    headers = _Headers([_read_header(line) for line in rest])
    method, url, version = start.groups()
    if method == b"CONNECT":
        return EgressRequest(_read_connect(url.decode("ascii"), headers))
    if method == b"TRACE":
        raise MalformedMessage("the proxy does not forward TRACE")
    target, path = _read_url(url.decode("ascii"))
    _check_host(headers, target, default_port=80, is_required=version == b"HTTP/1.1")
    framing, is_chunked = _read_framing(headers, version)
    lines = [
        b"%b %b %b" % (method, path.encode("ascii"), version),
        b"Host: %b" % str(target).removesuffix(":80").encode("ascii"),
        *(b"%b: %b" % each for each in _end_to_end(headers)),
        *framing,
        b"Connection: close\r\n\r\n",
    ]
    return EgressRequest(target, b"\r\n".join(lines), is_chunked)


def _read_header(line: bytes) -> tuple[bytes, bytes]:
    found = _HEADER.fullmatch(line)
    if found is None:
        raise MalformedMessage("a header line is not of the form `name: value`")
    return found[1].lower(), found[2].strip(b" \t")


def _read_connect(text: str, headers: _Headers) -> EgressTarget:
    target = EgressTarget.parse(text)
    if target is None:
        raise MalformedMessage(f"the target '{_shown(text)}' is not one host and one port")
    if headers.values(b"content-length") or headers.values(b"transfer-encoding"):
        raise MalformedMessage("a CONNECT request has no body")
    _check_host(headers, target, default_port=target.port, is_required=False)
    return target


def _read_url(url: str) -> tuple[EgressTarget, str]:
    found = _HTTP_URL.fullmatch(url)
    if found is None:
        raise MalformedMessage("the proxy forwards CONNECT requests and http:// URLs only")
    target = EgressTarget.parse(found[1], 80)
    if target is None:
        raise MalformedMessage(f"the host '{_shown(found[1])}' of the URL cannot be read")
    if target.port == DEFAULT_PORT:
        raise MalformedMessage("port 443 needs TLS through a CONNECT request")
    path = found[2] or "/"
    return target, path if path.startswith("/") else f"/{path}"


def _check_host(
    headers: _Headers, target: EgressTarget, *, default_port: int, is_required: bool
) -> None:
    hosts = headers.values(b"host")
    if len(hosts) > 1 or (is_required and not hosts):
        raise MalformedMessage("the request needs exactly one Host header")
    if hosts and EgressTarget.parse(hosts[0].decode("latin-1"), default_port) != target:
        raise MalformedMessage("the Host header names another host than the target")


def _read_framing(headers: _Headers, version: bytes) -> tuple[list[bytes], bool]:
    """Return the header that frames the body, as it is forwarded, and whether it means chunks."""
    lengths, codings = headers.values(b"content-length"), headers.values(b"transfer-encoding")
    if not lengths and not codings:
        return [], False
    if len(lengths) + len(codings) > 1:
        raise MalformedMessage("the length of the body is given more than once")
    if lengths:
        if not _LENGTH.fullmatch(lengths[0]):
            raise MalformedMessage("the Content-Length is not a number")
        return [b"Content-Length: %b" % lengths[0]], False
    if codings[0].lower() != b"chunked" or version != b"HTTP/1.1":
        raise MalformedMessage("the only Transfer-Encoding is `chunked`, in HTTP/1.1")
    return [b"Transfer-Encoding: chunked"], True


def _end_to_end(headers: _Headers) -> list[tuple[bytes, bytes]]:
    listed = b",".join(headers.values(b"connection")).lower().split(b",")
    dropped = _HOP_BY_HOP | {each.strip(b" \t") for each in listed}
    return [
        (name, value)
        for name, value in headers.lines
        if name not in dropped and not name.startswith(b"proxy-")
    ]


def _shown(text: str) -> str:
    """Return what may be shown of a hostile host: no user or password, and few characters."""
    return ascii(text.rpartition("@")[2])[1:-1][:MAX_SHOWN_CHARACTERS]


MAX_HELLO_BYTES: Final = 32 * 1024
# A client that sends single bytes in tiny records must not cost much time for each of them.
MAX_HELLO_RECORDS: Final = 16
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME = 22, 1, 0


def may_begin_tls(data: bytes) -> bool:
    """Return whether the first bytes of a client are the beginning of a TLS ClientHello."""
    return b"\x16\x03".startswith(data[:2]) and (len(data) < 6 or data[5] == _CLIENT_HELLO)


def read_server_name(data: bytes) -> str | None:
    """Return the server name of a ClientHello: empty if it has none, None if more bytes must come.

    Raises MalformedMessage if this is no ClientHello. (RFC 8446 §4.1.2, RFC 6066 §3)
    """
    if not may_begin_tls(data):
        raise MalformedMessage("the first bytes are not a TLS handshake")
    hello = _join_records(data)
    if hello is None:
        if len(data) >= MAX_HELLO_BYTES:
            raise MalformedMessage("the TLS ClientHello is too long")
        return None
    try:
        return _find_server_name(hello)
    except IndexError:
        raise MalformedMessage("the TLS ClientHello cannot be read") from None


def _join_records(data: bytes) -> bytes | None:
    """Return the ClientHello message out of its records, or None if it is not complete."""
    hello, at = bytearray(), 0
    for _ in range(MAX_HELLO_RECORDS):
        if len(data) < at + 5:
            return None
        size = int.from_bytes(data[at + 3 : at + 5])
        if data[at] != _HANDSHAKE or data[at + 1] != 3 or not 1 <= size <= 16384:
            raise MalformedMessage("the TLS ClientHello is interrupted")
        hello += data[at + 5 : at + 5 + size]
        at += 5 + size
        if len(hello) >= 4:
            end = 4 + int.from_bytes(hello[1:4])
            if end > MAX_HELLO_BYTES:
                raise MalformedMessage("the TLS ClientHello is too long")
            if len(hello) >= end:
                return bytes(hello[4:end])
    raise MalformedMessage("the TLS ClientHello is in too many pieces")


class _ByteReader:
    """Reads fields with a length in front. Raises IndexError beyond the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise IndexError(size)
        found, self._at = self._data[self._at : end], end
        return found

    def take_number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def take_field(self, length_size: int) -> bytes:
        return self.take(self.take_number(length_size))


def _find_server_name(hello: bytes) -> str:
    reader = _ByteReader(hello)
    reader.take(2 + 32)  # version and random
    for length_size in (1, 2, 1):  # session id, cipher suites, compression methods
        reader.take_field(length_size)
    if reader.is_at_end:
        return ""
    extensions = _ByteReader(reader.take_field(2))
    names: list[str] = []
    while not extensions.is_at_end:
        kind, content = extensions.take_number(2), extensions.take_field(2)
        if kind == _SERVER_NAME:
            names.append(_read_name_list(content))
    if len(names) > 1 or not reader.is_at_end:
        raise MalformedMessage("the TLS ClientHello names several servers")
    return names[0] if names else ""


def _read_name_list(content: bytes) -> str:
    reader = _ByteReader(content)
    entries = _ByteReader(reader.take_field(2))
    kind, name = entries.take_number(1), entries.take_field(2)
    if kind != 0 or not entries.is_at_end or not reader.is_at_end or not name.isascii():
        raise MalformedMessage("the TLS ClientHello names several servers")
    return name.decode("ascii").lower().removesuffix(".")
