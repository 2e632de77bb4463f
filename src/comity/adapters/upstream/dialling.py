"""How a connection to an HTTP origin is opened: directly, over TLS, or through a proxy."""

import asyncio
import base64
import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self, cast
from urllib.parse import unquote

from comity.adapters.upstream.connection import Connection
from comity.adapters.upstream.origin import Origin, split_url
from comity.rules.proxies import Proxies
from comity.wire.errors import UPSTREAM_DOWN, Misconfigured, Unavailable

_TLS_FAREWELL_SECONDS = 2.0
_MOST_PROXY_HEAD_BYTES = 16 * 1024
_PROXY_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy between us and every origin of a pool."""

    origin: Origin
    credentials: bytes = field(default=b"", repr=False)  # a header line, or nothing

    @classmethod
    def of(cls, url: str) -> Self:
        parts = split_url(url, schemes=("http",))
        if parts.username is None:
            return cls(Origin.of_parts(parts))
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        basic = base64.b64encode(pair)
        return cls(Origin.of_parts(parts), b"proxy-authorization: Basic %b\r\n" % basic)

    def connect_request(self, origin: Origin) -> bytes:
        """What asks this proxy for a tunnel to an origin."""
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        where = f"{host}:{origin.port}".encode()
        return b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (where, where, self.credentials)

    def absolute_form(self, origin: Origin, head: bytes) -> bytes:
        """The head of a plain request as a proxy wants it: the target with its origin."""
        method, _, rest = head.partition(b" ")
        return b"%b %b%b%b" % (method, str(origin).encode(), rest, self.credentials)


type Find = Callable[[str], Awaitable[str]]
"""The one address to connect to for a host, empty where its name is not known here.

Raises Unavailable where the host is not to be connected to.
"""

type ChooseProxy = Callable[[Origin], Proxy | None]
"""The proxy through which an origin is reached; None where it is reached directly."""


def chosen_by(proxies: Proxies) -> ChooseProxy | None:
    """How the proxy of an origin is chosen; None where there is none at all."""
    if not proxies:
        return None
    made = {url: Proxy.of(url) for url in {proxies.http, proxies.https} if url}

    def choose(origin: Origin) -> Proxy | None:
        return made.get(proxies.proxy_for(*origin))

    return choose


async def _as_named(host: str) -> str:
    return host


@dataclass(frozen=True, slots=True)
class Dialler:
    """The one way to open connections to one origin.

    `find` names the address to connect to, or refuses. A proxy finds the address by itself: then
    `find` can only refuse, and a name that is not known here is left to the proxy.
    """

    origin: Origin
    tls: ssl.SSLContext | None
    proxy: Proxy | None
    find: Find = _as_named

    def __post_init__(self) -> None:
        if self.origin.scheme == "https" and self.tls is None:
            raise Misconfigured(f"{self.origin} needs TLS, and no TLS context was configured")

    async def dial(self, make: Callable[[], Connection]) -> Connection:
        """An open connection; raises OSError, ValueError or Unavailable."""
        loop = asyncio.get_running_loop()
        if self.proxy is not None:
            await self.find(self.origin.host)
            if self.origin.scheme == "https":
                return await self._dial_through(self.proxy, make)
            between = self.proxy.origin
            _, connection = await loop.create_connection(make, between.host, between.port)
            return connection
        if self.origin.scheme == "https":
            _, connection = await loop.create_connection(
                make,
                await self._address(),
                self.origin.port,
                ssl=self.tls,
                server_hostname=self.origin.host,
                ssl_shutdown_timeout=_TLS_FAREWELL_SECONDS,
            )
            return connection
        address = await self._address()
        _, connection = await loop.create_connection(make, address, self.origin.port)
        return connection

    async def _address(self) -> str:
        found = await self.find(self.origin.host)
        if not found:
            raise Unavailable(f"{self.origin.host:.200} cannot be resolved", UPSTREAM_DOWN)
        return found

    async def _dial_through(self, proxy: Proxy, make: Callable[[], Connection]) -> Connection:
        loop = asyncio.get_running_loop()
        transport, tunnel = await loop.create_connection(
            lambda: _Tunnel(self.origin, proxy), proxy.origin.host, proxy.origin.port
        )
        try:
            await tunnel.opened
            connection = make()
            secured = await loop.start_tls(
                transport,
                connection,
                cast(ssl.SSLContext, self.tls),
                server_hostname=self.origin.host,
                ssl_shutdown_timeout=_TLS_FAREWELL_SECONDS,
            )
        except BaseException:  # also when the wait is cancelled: the socket is ours alone
            transport.abort()
            raise
        if secured is None:
            raise ConnectionResetError("closed while TLS was being set up")
        connection.connection_made(secured)
        return connection


class _Tunnel(asyncio.Protocol):
    """Asks a proxy for a tunnel, and waits for its word; then the socket is handed on."""

    def __init__(self, origin: Origin, proxy: Proxy) -> None:
        self._proxy = proxy
        self._request = proxy.connect_request(origin)
        self._received = bytearray()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank_line, rest = self._received.partition(b"\r\n\r\n")
        if not blank_line and len(self._received) <= _MOST_PROXY_HEAD_BYTES:
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

    def _refuse(self, because: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(Unavailable(f"the proxy {self._proxy.origin} {because}"))
