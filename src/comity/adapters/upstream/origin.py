"""Where an HTTP request goes, and the head that is written to get it there.

Rule: whatever an operator or a client wrote into a head is checked here, once, so that no line
break or control character can start a header or a request of its own. An error never repeats a
header's value, nor a URL beyond its host: both may hold a secret.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

from comity.wire.errors import Misconfigured

_DEFAULT_PORTS = {"http": 80, "https": 443}
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_VISIBLE = re.compile(r"[!-~]+")
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
_HOST = re.compile(r"[a-z0-9._~-]+|[0-9a-f:.]+(%[a-z0-9._~-]+)?")

# Framing, routing and the life of the connection are the pool's; a second opinion in a header is
# how requests are smuggled.
_OURS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class Origin(NamedTuple):
    """One HTTP server: requests to the same origin share connections.

    A named tuple, because it is the key of a dictionary on the way of every request and a
    tuple is hashed without entering Python.
    """

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "tuple[Origin, str]":
        """The origin of a URL, and the path and query to ask it for."""
        parts = split_url(url, schemes=_DEFAULT_PORTS)
        if parts.username is not None or parts.password is not None:
            raise Misconfigured("a URL must not hold a user or password; put them into a header")
        path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
        query = quote(parts.query, safe="/?%:@!$&'()*+,;=~-._[]")
        return cls.of_parts(parts), f"{path}?{query}" if query else path

    @classmethod
    def of_parts(cls, parts: SplitResult) -> "Origin":
        try:
            port = parts.port
            name = parts.hostname or ""
            host = name if ":" in name else name.encode("idna").decode("ascii")
        except ValueError as error:
            raise Misconfigured(
                "a URL's host or port cannot be read; check its spelling"
            ) from error
        if not _HOST.fullmatch(host) or port == 0:
            raise Misconfigured("a URL needs a host, and a port between 1 and 65535 if any")
        return cls(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme])

    @property
    def authority(self) -> str:
        """`host:port` as the Host header spells it, without the scheme's own port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS.get(self.scheme) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def split_url(url: str, schemes: Iterable[str]) -> SplitResult:
    # urlsplit silently drops line breaks and tabs, so they are refused before it sees them.
    if _NOT_IN_A_URL.search(url):
        raise Misconfigured("a URL must not hold spaces, backslashes or control characters")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Misconfigured("a URL cannot be read; check its host and brackets") from error
    if parts.scheme not in schemes:
        raise Misconfigured(f"a URL must begin with one of: {', '.join(schemes)}")
    return parts


def request_head(
    method: str, target: str, origin: Origin, headers: Iterable[tuple[str, str]]
) -> bytes:
    """The request line, Host and the headers, each line ended, ready for more lines."""
    if not _TOKEN.fullmatch(method) or method != method.upper():
        raise Misconfigured(f"{method!r} is not an HTTP method")
    if not _VISIBLE.fullmatch(target) or not target.startswith("/"):
        raise Misconfigured("the target of a request must be a path of visible ASCII characters")
    start = f"{method} {target} HTTP/1.1\r\nhost: {origin.authority}\r\n".encode("ascii")
    return start + b"".join(header_line(name, value) for name, value in headers)


def header_line(name: str, value: str) -> bytes:
    """One header as it goes on the wire; callers append such lines to a prepared head."""
    if not _TOKEN.fullmatch(name):
        raise Misconfigured(f"{name!r} is not a header name; use letters, digits and dashes")
    if name.lower() in _OURS:
        raise Misconfigured(f"header {name!r} is set by the gateway itself; remove it")
    value = value.strip(" ")
    if _CONTROL.search(value):
        raise Misconfigured(f"the value of header {name!r} holds a control character; remove it")
    try:
        return f"{name}: {value}\r\n".encode("latin-1")
    except UnicodeEncodeError as error:
        raise Misconfigured(
            f"the value of header {name!r} holds a character outside latin-1; encode it first"
        ) from error
