"""Opens connections: name resolution, proxies and TLS."""

import asyncio
import base64
import re
import socket
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

from comity.errors import UPSTREAM_DOWN, Misconfigured, Unavailable
from comity.http.client.connection import HttpClientConnection
from comity.http.client.proxies import ProxySettings

DEADLINE_SECONDS: Final = 2.0
CACHE_SECONDS: Final = 30.0
MOST_KEPT: Final = 4096
MAX_LOOKUPS: Final = 16


class Resolver:
    """Resolves names and caches the answers for a short time. An unknown name has no addresses."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._cache: OrderedDict[str, tuple[float, tuple[str, ...]]] = OrderedDict()
        # The system's resolver blocks a thread for each name that does not answer.
        self._lookup_slots = asyncio.Semaphore(MAX_LOOKUPS)

    async def resolve(self, name: str) -> tuple[str, ...]:
        """Return every address of the name, or none if it has none or the answer takes too long."""
        kept = self._cache.get(name)
        if kept is not None and kept[0] > self._now():
            return kept[1]
        try:
            async with asyncio.timeout(DEADLINE_SECONDS), self._lookup_slots:
                loop = asyncio.get_running_loop()
                found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, TimeoutError):
            return ()
        answers = tuple(dict.fromkeys(str(each[4][0]) for each in found))
        self._cache[name] = (self._now() + CACHE_SECONDS, answers)
        while len(self._cache) > MOST_KEPT:
            self._cache.popitem(last=False)
        return answers


_DEFAULT_PORTS = {"http": 80, "https": 443}
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_VISIBLE = re.compile(r"[!-~]+")
_INVALID_URL_CHARACTER = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
_HOST = re.compile(r"[a-z0-9._~-]+|[0-9a-f:.]+(%[a-z0-9._~-]+)?")

# The pool controls framing, routing and the lifetime of connections. A conflicting header from a
# caller would allow request smuggling.
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


class HttpOrigin(NamedTuple):
    """One HTTP server. Requests to the same origin share connections.

    It is a named tuple because every request uses it as a dictionary key. Hashing a tuple does not
    enter Python code.
    """

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "tuple[HttpOrigin, str]":
        """Return the origin of a URL, and the path and query to request."""
        parts = split_url(url, schemes=_DEFAULT_PORTS)
        if parts.username is not None or parts.password is not None:
            raise Misconfigured("a URL must not hold a user or password; put them into a header")
        path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
        query = quote(parts.query, safe="/?%:@!$&'()*+,;=~-._[]")
        return cls.of_parts(parts), f"{path}?{query}" if query else path

    @classmethod
    def of_parts(cls, parts: SplitResult) -> "HttpOrigin":
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
        """Return `host:port` as in the Host header, without the scheme's default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS.get(self.scheme) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def split_url(url: str, schemes: Iterable[str]) -> SplitResult:
    # urlsplit silently drops line breaks and tabs, so they are refused before.
    if _INVALID_URL_CHARACTER.search(url):
        raise Misconfigured("a URL must not hold spaces, backslashes or control characters")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Misconfigured("a URL cannot be read; check its host and brackets") from error
    if parts.scheme not in schemes:
        raise Misconfigured(f"a URL must begin with one of: {', '.join(schemes)}")
    return parts


def request_head(
    method: str, target: str, origin: HttpOrigin, headers: Iterable[tuple[str, str]]
) -> bytes:
    """Return the request line, Host and the headers. Each line is complete, so more can follow."""
    if not _TOKEN.fullmatch(method) or method != method.upper():
        raise Misconfigured(f"{method!r} is not an HTTP method")
    if not _VISIBLE.fullmatch(target) or not target.startswith("/"):
        raise Misconfigured("the target of a request must be a path of visible ASCII characters")
    start = f"{method} {target} HTTP/1.1\r\nhost: {origin.authority}\r\n".encode("ascii")
    return start + b"".join(header_line(name, value) for name, value in headers)


def header_line(name: str, value: str) -> bytes:
    """Return one encoded header line. Callers append such lines to a prepared head."""
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


_TLS_FAREWELL_SECONDS = 2.0
_MAX_PROXY_HEAD_BYTES = 16 * 1024
_PROXY_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """An HTTP proxy for the origins of a pool."""

    origin: HttpOrigin
    credentials: bytes = field(default=b"", repr=False)  # a header line, or empty

    @classmethod
    def of(cls, url: str) -> Self:
        parts = split_url(url, schemes=("http",))
        if parts.username is None:
            return cls(HttpOrigin.of_parts(parts))
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        basic = base64.b64encode(pair)
        return cls(HttpOrigin.of_parts(parts), b"proxy-authorization: Basic %b\r\n" % basic)

    def connect_request(self, origin: HttpOrigin) -> bytes:
        """Return the request that asks this proxy for a tunnel to an origin."""
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        where = f"{host}:{origin.port}".encode()
        return b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (where, where, self.credentials)

    def absolute_form(self, origin: HttpOrigin, head: bytes) -> bytes:
        """Return the head of a plain request with an absolute URL, as a proxy needs it."""
        method, _, rest = head.partition(b" ")
        return b"%b %b%b%b" % (method, str(origin).encode(), rest, self.credentials)


type Find = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the addresses to try for a host, in order, or none if the name is unknown here.

Raises Unavailable if connections to the host are not allowed.
"""

type ChooseProxy = Callable[[HttpOrigin], HttpProxy | None]
"""Returns the proxy for an origin, or None if it is reached directly."""


def proxy_chooser(proxies: ProxySettings) -> ChooseProxy | None:
    """Return the function that chooses proxies, or None if no proxy is set."""
    if not proxies:
        return None
    made = {url: HttpProxy.of(url) for url in {proxies.http, proxies.https} if url}

    def choose(origin: HttpOrigin) -> HttpProxy | None:
        return made.get(proxies.proxy_for(*origin))

    return choose


async def _as_named(host: str) -> Sequence[str]:
    return (host,)


@dataclass(frozen=True, slots=True)
class OriginDialler:
    """Opens all connections to one origin.

    `find` returns the addresses to connect to, or refuses. A proxy resolves the name by itself:
    then `find` can only refuse, and the proxy handles a name that is unknown here.
    """

    origin: HttpOrigin
    tls: ssl.SSLContext | None
    proxy: HttpProxy | None
    find: Find = _as_named

    def __post_init__(self) -> None:
        if self.origin.scheme == "https" and self.tls is None:
            raise Misconfigured(f"{self.origin} needs TLS, and no TLS context was configured")

    async def dial(self, make: Callable[[], HttpClientConnection]) -> HttpClientConnection:
        """Return an open connection. Raises OSError, ValueError or Unavailable."""
        loop = asyncio.get_running_loop()
        if self.proxy is not None:
            await self.find(self.origin.host)
            if self.origin.scheme == "https":
                return await self._dial_through(self.proxy, make)
            between = self.proxy.origin
            _, connection = await loop.create_connection(make, between.host, between.port)
            return connection
        *first, last = await self._addresses()
        for address in first:
            with suppress(ConnectionError):
                return await self._connect(address, make)
        return await self._connect(last, make)

    async def _connect(
        self, address: str, make: Callable[[], HttpClientConnection]
    ) -> HttpClientConnection:
        loop = asyncio.get_running_loop()
        if self.origin.scheme == "https":
            _, connection = await loop.create_connection(
                make,
                address,
                self.origin.port,
                ssl=self.tls,
                server_hostname=self.origin.host,
                ssl_shutdown_timeout=_TLS_FAREWELL_SECONDS,
            )
            return connection
        _, connection = await loop.create_connection(make, address, self.origin.port)
        return connection

    async def _addresses(self) -> Sequence[str]:
        found = await self.find(self.origin.host)
        if not found:
            raise Unavailable(f"{self.origin.host:.200} cannot be resolved", UPSTREAM_DOWN)
        return found

    async def _dial_through(
        self, proxy: HttpProxy, make: Callable[[], HttpClientConnection]
    ) -> HttpClientConnection:
        transport = await _open_proxy_tunnel(self.origin, proxy)
        try:
            connection = make()
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                connection,
                cast(ssl.SSLContext, self.tls),
                server_hostname=self.origin.host,
                ssl_shutdown_timeout=_TLS_FAREWELL_SECONDS,
            )
        except BaseException:  # also when the wait is cancelled: no other code knows the socket
            transport.abort()
            raise
        if secured is None:
            raise ConnectionResetError("closed while TLS was being set up")
        connection.connection_made(secured)
        return connection


async def open_tunnel(
    origin: HttpOrigin,
    addresses: Sequence[str],
    proxy: HttpProxy | None,
    make: Callable[[], asyncio.BaseProtocol],
) -> None:
    """Connect a protocol to an origin, without TLS of Comity: it sends and receives raw bytes.

    The addresses are tried in order. A proxy opens a tunnel, and resolves the name by itself.
    Raises OSError or Unavailable.
    """
    if proxy is not None:
        transport = await _open_proxy_tunnel(origin, proxy)
        protocol = make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        return
    if not addresses:
        raise Unavailable(f"{origin.host:.200} cannot be resolved", UPSTREAM_DOWN)
    loop = asyncio.get_running_loop()
    *first, last = addresses
    for address in first:
        with suppress(ConnectionError):
            await loop.create_connection(make, address, origin.port)
            return
    await loop.create_connection(make, last, origin.port)


async def _open_proxy_tunnel(origin: HttpOrigin, proxy: HttpProxy) -> asyncio.Transport:
    loop = asyncio.get_running_loop()
    transport, tunnel = await loop.create_connection(
        lambda: _ProxyTunnel(origin, proxy), proxy.origin.host, proxy.origin.port
    )
    try:
        await tunnel.opened
    except BaseException:  # also when the wait is cancelled: no other code knows the socket
        transport.abort()
        raise
    return transport


class _ProxyTunnel(asyncio.Protocol):
    """Requests a tunnel from a proxy and waits for its answer. Then the socket is handed on."""

    def __init__(self, origin: HttpOrigin, proxy: HttpProxy) -> None:
        self._proxy = proxy
        self._request = proxy.connect_request(origin)
        self._received = bytearray()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank_line, rest = self._received.partition(b"\r\n\r\n")
        if not blank_line and len(self._received) <= _MAX_PROXY_HEAD_BYTES:
            return
        status = _PROXY_STATUS.match(head + b"\r")
        if status is None or not blank_line or rest:
            self._refuse("did not answer as an HTTP proxy does; check its address")
        elif status[1] == b"407":
            self._refuse("asks for credentials; put a valid user and password into its URL")
        elif not status[1].startswith(b"2"):
            self._refuse(f"refused a tunnel with status {status[1].decode()}; ask its operator")
        elif not self.opened.done():
            self.opened.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._refuse("closed the connection instead of opening a tunnel; try again later")

    def _refuse(self, reason: str) -> None:
        if not self.opened.done():
            refused = Unavailable(f"the proxy {self._proxy.origin} {reason}")
            refused.__cause__ = ConnectionRefusedError(reason)
            self.opened.set_exception(refused)
