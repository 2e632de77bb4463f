"""The egress proxy: the only way from the sandbox of a server to the network.

Rule 1: each connection has one target, which the rules of the server grant. Its name is resolved
        once, and the connection goes to the addresses that were checked.
Rule 2: the proxy forwards one plain request for each connection, with a head that it wrote itself.
        Then it reads no further request, and it follows no redirect.
Rule 3: a TLS handshake must name the host of the tunnel, and port 443 carries TLS only.
Rule 4: events name hosts, ports, sizes and reasons. They hold nothing that was sent or received.
"""

import asyncio
import re
import shlex
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Literal, cast

import httptools

from comity.errors import MalformedMessage, Unavailable
from comity.http.client.dial import ChooseProxy, HttpOrigin, open_tunnel
from comity.servers.sandbox.egress_rules import (
    DEFAULT_PORT,
    EgressRequest,
    EgressRules,
    EgressTarget,
    may_begin_tls,
    read_request,
    read_server_name,
)
from comity.toolkit.background import BackgroundTasks
from comity.toolkit.resilience import RateLimit, RateLimiter

NOT_GRANTED: Final = "network.outbound for {target} is not granted"
HOW_TO_GRANT: Final = (
    "; a person can approve it, and then the server restarts: "
    "comity servers permissions approve {server} network.outbound --reach {target}"
)
REFUSED_ADDRESS: Final = "network.outbound: {target} is refused: {problem}"
MAX_ADDRESSES: Final = 3
READ_BYTES: Final = 64 * 1024
# A server that is refused in a loop must not fill the audit log. The counters have every refusal.
REFUSALS_REPORTED: Final = RateLimit(count=60, period=60.0, burst=60)
# The connections that the system holds before the gateway accepts them.
_BACKLOG: Final = 16
_OPENED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"

type Resolve = Callable[[str], Awaitable[Sequence[str]]]
type OpenStream = Callable[
    [HttpOrigin, Sequence[str], Callable[[], asyncio.BaseProtocol]], Awaitable[None]
]
"""Connects a protocol to one of the addresses of an origin. Raises OSError or Unavailable."""


@dataclass(frozen=True, slots=True)
class EgressLimits:
    """The resources of the gateway that the connections of one server may use."""

    connections: int = 256
    head_bytes: int = 16 * 1024
    head_seconds: float = 10.0
    connect_seconds: float = 10.0
    # The longest time without a byte in either direction.
    idle_seconds: float = 300.0
    # How long a refused client may take to read the answer.
    farewell_seconds: float = 2.0


@dataclass(slots=True)
class EgressCounters:
    """The use of the network by one server since its proxy started."""

    connections: int = 0
    open_connections: int = 0
    refused: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(frozen=True, slots=True)
class EgressEvent:
    """The end of a connection, for the audit log. A refused request may have no known host."""

    outcome: Literal["allowed", "refused", "failed"]
    server: str
    host: str = ""
    port: int = 0
    reason: str = ""
    bytes_sent: int = 0
    bytes_received: int = 0


def open_stream(choose_proxy: ChooseProxy | None) -> OpenStream:
    """Return the function that opens connections, through the operator's proxy if there is one."""

    async def open_one(
        origin: HttpOrigin, addresses: Sequence[str], make: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        proxy = None if choose_proxy is None else choose_proxy(origin)
        await open_tunnel(origin, addresses, proxy, make)

    return open_one


class EgressProxy:
    """Serves the connections of one server at a listening socket, which it owns."""

    def __init__(
        self,
        server: str,
        listener: socket.socket,
        rules: EgressRules,
        *,
        resolve: Resolve,
        connect: OpenStream,
        on_event: Callable[[EgressEvent], None],
        limits: EgressLimits | None = None,
    ) -> None:
        self.server = server
        self.rules = rules
        self.limits = limits or EgressLimits()
        self.counters = EgressCounters()
        self.connect = connect
        # A read ends before the next one begins, and what is kept of it is copied.
        self.read_buffer: Final = memoryview(bytearray(READ_BYTES))
        self.tasks = BackgroundTasks(f"the egress proxy of server {server}")
        self._listener = listener
        self._resolve = resolve
        self._on_event = on_event
        self._accepting: asyncio.Server | None = None
        self._connections: set[_ProxyConnection] = set()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._reports = RateLimiter(asyncio.get_running_loop().time)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._accepting = await loop.create_server(
            lambda: _ProxyConnection(self), sock=self._listener, backlog=_BACKLOG
        )

    def replace_rules(self, rules: EgressRules) -> None:
        """Use other rules from now on, and end the connections that they do not grant."""
        self.rules = rules
        for connection in tuple(self._connections):
            if connection.target is not None and not rules.is_granted(connection.target):
                connection.abort()

    def end_connections(self) -> None:
        """End every connection, and refuse every target from now on."""
        self.replace_rules(EgressRules(()))

    async def close(self) -> None:
        """End every connection. All of them are ended even if the wait is cancelled."""
        if self._accepting is not None:
            self._accepting.close()
        self._listener.close()
        self.tasks.cancel()
        for connection in tuple(self._connections):
            connection.abort()
        await self.tasks.finish()
        await self._emptied.wait()

    def admit(self, connection: "_ProxyConnection") -> bool:
        """Count a connection. Return whether it is within the limit."""
        self._connections.add(connection)
        self._emptied.clear()
        self.counters.connections += 1
        self.counters.open_connections = len(self._connections)
        return len(self._connections) <= self.limits.connections

    def release(self, connection: "_ProxyConnection") -> None:
        self._connections.discard(connection)
        self.counters.open_connections = len(self._connections)
        if not self._connections:
            self._emptied.set()

    async def find_addresses(self, target: EgressTarget) -> tuple[str | None, Sequence[str]]:
        """Return why a target is refused, or None and the addresses to connect to."""
        if not self.rules.is_granted(target):
            return self._describe_refusal(target), ()
        addresses = (target.host,) if target.is_address else await self._resolve(target.host)
        # The rules may have changed during the resolution.
        problem = self.rules.address_problem(target, addresses)
        if problem is None and self.rules.is_granted(target):
            return None, addresses[:MAX_ADDRESSES]
        return REFUSED_ADDRESS.format(target=target, problem=problem or "it was revoked"), ()

    def _describe_refusal(self, target: EgressTarget) -> str:
        """Return which permission is missing, and how to approve it if that is possible."""
        refused = NOT_GRANTED.format(target=target)
        problem = self.rules.grant_problem(target)
        if problem is not None:
            return f"{refused}: {problem}"
        words = {"server": shlex.quote(self.server), "target": shlex.quote(str(target))}
        return refused + HOW_TO_GRANT.format_map(words)

    def report(self, event: EgressEvent) -> None:
        if event.outcome == "refused":
            self.counters.refused += 1
        is_silent = event.outcome != "allowed" and self._reports.take(
            {event.outcome: REFUSALS_REPORTED}
        )
        if not is_silent:
            self._on_event(event)


class _UpstreamEnd(asyncio.BufferedProtocol):
    """The end of a connection that leads to the network. It gives every byte to the client."""

    def __init__(self, client: "_ProxyConnection") -> None:
        self._client = client
        self._buffer = client.proxy.read_buffer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client.gain_upstream(cast(asyncio.Transport, transport))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._client.send_back(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool:
        self._client.end_response()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lose_upstream(is_reset=exc is not None)

    def pause_writing(self) -> None:
        self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        self._client.go_on_reading()


class _RequestBody:
    """Forwards the body of a plain request up to its end, in framing of the proxy."""

    def __init__(self, request: EgressRequest, send: Callable[[bytes], None]) -> None:
        """Begin with the head. Raises HttpParserError if the parser reads it in another way."""
        self.is_complete = False
        self._is_chunked = request.is_chunked
        self._send = send
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(request.head)

    def feed(self, data: bytes) -> None:
        """Forward a part of the body. Raises HttpParserError beyond its end."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._send(b"%x\r\n%b\r\n" % (len(body), body) if self._is_chunked else body)

    def on_message_complete(self) -> None:
        self.is_complete = True
        if self._is_chunked:
            self._send(b"0\r\n\r\n")


_BARE_LINE_FEED: Final = re.compile(rb"(?<!\r)\n")


class _ProxyConnection(asyncio.BufferedProtocol):
    """One connection of the server, with the connection to the network that belongs to it."""

    transport: asyncio.Transport

    def __init__(self, proxy: EgressProxy) -> None:
        self.proxy = proxy
        self.target: EgressTarget | None = None
        self._limits = proxy.limits
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + self._limits.head_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._receive = self._read_head
        self._received = bytearray()
        self._body: _RequestBody | None = None
        self._upstream: asyncio.Transport | None = None
        self._is_lost = False
        self._client_ended = False
        self._upstream_ended = False
        self._bytes_sent = 0
        self._bytes_received = 0
        self._is_reported = False

    # The client's end.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._timer = self._loop.call_at(self._due, self._expire)
        if not self.proxy.admit(self):
            # An answer would keep the connection open until it is read.
            self._break_off("the server has too many connections")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.proxy.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._receive(bytes(self.proxy.read_buffer[:nbytes]))

    def eof_received(self) -> bool:
        self._client_ended = True
        if self._body is not None:
            if not self._body.is_complete:
                self.abort()
        elif self._receive != self._forward or self._upstream_ended:
            self._close()
        elif self._upstream is not None and not self._upstream.is_closing():
            end_writing(self._upstream)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self._upstream is not None:
            self._close()
        self._end_if_lost()

    def pause_writing(self) -> None:
        if self._upstream is not None:
            self._upstream.pause_reading()

    def resume_writing(self) -> None:
        if self._upstream is not None and not self._upstream_ended:
            self._upstream.resume_reading()

    def go_on_reading(self) -> None:
        if not self._client_ended:
            self.transport.resume_reading()

    # The end that leads to the network.

    def gain_upstream(self, transport: asyncio.Transport) -> None:
        self._upstream = transport
        if self._is_lost or self.transport.is_closing():
            transport.abort()

    def send_back(self, data: bytes) -> None:
        self._due = self._loop.time() + self._limits.idle_seconds
        self._bytes_received += len(data)
        self.proxy.counters.bytes_received += len(data)
        if not self.transport.is_closing():
            self.transport.write(data)

    def end_response(self) -> None:
        self._upstream_ended = True
        if self._client_ended or self._body is not None:
            self._close()
        elif not self.transport.is_closing():
            end_writing(self.transport)

    def lose_upstream(self, *, is_reset: bool) -> None:
        self._upstream_ended = True
        self._upstream = None
        if is_reset:
            self.transport.abort()
        else:
            self._close()
        self._end_if_lost()

    # What arrives from the client, in the order of the phases.

    def _read_head(self, data: bytes) -> None:
        searched = max(0, len(self._received) - 3)
        self._received += data
        end = self._received.find(b"\r\n\r\n", searched) + 4
        is_whole = end > 3
        size = end if is_whole else len(self._received)
        is_letter = 65 <= self._received[0] <= 90
        if not is_letter or _BARE_LINE_FEED.search(self._received, searched, size):
            self._refuse(HTTPStatus.BAD_REQUEST, "the request is not one of HTTP/1.1 to a proxy")
        elif size > self._limits.head_bytes:
            reason = "the head of the request is too long"
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason)
        elif is_whole:
            head = bytes(self._received[:end])
            del self._received[:end]
            self._accept_head(head)

    def _accept_head(self, head: bytes) -> None:
        try:
            request = read_request(head)
            self._body = None if request.is_tunnel else _RequestBody(request, self._send)
        except (MalformedMessage, httptools.HttpParserError) as error:
            is_ours = isinstance(error, MalformedMessage)
            reason = str(error) if is_ours else "the request cannot be read in one way only"
            self._refuse(HTTPStatus.BAD_REQUEST, reason)
            return
        self.target = request.target
        self.transport.pause_reading()
        self._receive = self._discard
        self._set_due(self._limits.connect_seconds + self._limits.farewell_seconds)
        self.proxy.tasks.start(self._open(request))

    async def _open(self, request: EgressRequest) -> None:
        target = request.target
        origin = HttpOrigin("https" if request.is_tunnel else "http", target.host, target.port)
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                problem, addresses = await self.proxy.find_addresses(target)
                if problem is None:
                    await self.proxy.connect(origin, addresses, lambda: _UpstreamEnd(self))
        except (OSError, Unavailable) as error:
            reason = f"{target} cannot be reached: {_describe_failure(error)}"
            self._report("failed", reason)
            self._answer(HTTPStatus.BAD_GATEWAY, reason)
            return
        if problem is not None:
            self._refuse(HTTPStatus.FORBIDDEN, problem)
        else:
            self._begin(request)

    def _begin(self, request: EgressRequest) -> None:
        if self._is_lost or self.transport.is_closing():
            self.abort()
            return
        if request.is_tunnel:
            self.transport.write(_OPENED)
            self._receive = self._read_hello
            self._set_due(self._limits.head_seconds)
            if request.target.port != DEFAULT_PORT:
                self._set_due(self._limits.idle_seconds)
        else:
            self._send(request.head)
            self._receive = self._read_body
            self._set_due(self._limits.idle_seconds)
        early, self._received = bytes(self._received), bytearray()
        if early:
            self._receive(early)
        self.go_on_reading()

    def _read_hello(self, data: bytes) -> None:
        assert self.target is not None
        self._received += data
        first = bytes(self._received)
        if self.target.port != DEFAULT_PORT and not may_begin_tls(first):
            self._tunnel(first)
            return
        try:
            name = read_server_name(first)
        except MalformedMessage as error:
            self._break_off(str(error))
            return
        if name is None:
            return
        # A handshake without a name is for a server that has one certificate, at an address.
        if name == self.target.host or (not name and self.target.is_address):
            self._tunnel(first)
        else:
            self._break_off("the TLS handshake names another host than the tunnel")

    def _tunnel(self, first: bytes) -> None:
        self._received = bytearray()
        self._receive = self._forward
        self._forward(first)

    def _forward(self, data: bytes) -> None:
        self._due = self._loop.time() + self._limits.idle_seconds
        self._send(data)

    def _read_body(self, data: bytes) -> None:
        assert self._body is not None
        self._due = self._loop.time() + self._limits.idle_seconds
        try:
            if not self._body.is_complete:
                self._body.feed(data)
                return
        except httptools.HttpParserError:
            pass
        self._break_off("it sent more than the one request of a connection")

    def _discard(self, data: bytes) -> None:
        """A refused client may still send. Its bytes are read so that it receives the answer."""

    def _send(self, data: bytes) -> None:
        self._bytes_sent += len(data)
        self.proxy.counters.bytes_sent += len(data)
        if self._upstream is not None and not self._upstream.is_closing():
            self._upstream.write(data)

    # How a connection ends.

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._report("refused", reason)
        self._answer(status, reason)

    def _answer(self, status: HTTPStatus, reason: str) -> None:
        """Answer with a reason instead of a connection."""
        self._receive = self._discard
        self._body = None
        self._set_due(self._limits.farewell_seconds)
        if self._upstream is not None:
            self._upstream.abort()
        if self._is_lost or self.transport.is_closing():
            return
        body = f"{reason}\n".encode()
        # Most clients show only the status line of a refused tunnel.
        line = f"HTTP/1.1 {status.value} {status.phrase}: {reason}\r\n".encode("ascii", "replace")
        self.transport.write(
            b"%bContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%b" % (line, len(body), body)
        )
        end_writing(self.transport)
        self.transport.resume_reading()

    def _break_off(self, reason: str) -> None:
        self._report("refused", reason)
        self.abort()

    def abort(self) -> None:
        self._receive = self._discard
        self.transport.abort()
        if self._upstream is not None:
            self._upstream.abort()

    def _close(self) -> None:
        """Close both ends after the bytes that are on their way. A slow peer may take its time."""
        ends = [self.transport] if self._upstream is None else [self.transport, self._upstream]
        is_flushed = not any(each.get_write_buffer_size() for each in ends)
        limits = self._limits
        self._set_due(limits.farewell_seconds if is_flushed else limits.idle_seconds)
        for each in ends:
            each.close()

    def _set_due(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._loop.call_at(self._due, self._expire)

    def _expire(self) -> None:
        if self._loop.time() < self._due:
            self._timer = self._loop.call_at(self._due, self._expire)
        elif self._receive == self._read_head:
            reason = "the head of the request came too slowly"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, reason)
        elif self._receive == self._read_hello:
            self._break_off("the TLS handshake came too slowly")
        else:
            self._timer = None
            self.abort()

    def _end_if_lost(self) -> None:
        if not self._is_lost or self._upstream is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.proxy.release(self)
        if self._upstream_ended:
            self._report("allowed", "")

    def _report(self, outcome: Literal["allowed", "refused", "failed"], reason: str) -> None:
        """Report the connection, if this was not done before."""
        if self._is_reported:
            return
        self._is_reported = True
        host, port = self.target or ("", 0)
        self.proxy.report(
            EgressEvent(
                outcome,
                self.proxy.server,
                host=host,
                port=port,
                reason=reason,
                bytes_sent=self._bytes_sent,
                bytes_received=self._bytes_received,
            )
        )


def end_writing(transport: asyncio.Transport) -> None:
    """End the outgoing direction. A peer that has reset the connection has ended it already."""
    # Only the loop of asyncio raises then.
    with suppress(OSError):
        transport.write_eof()


def _describe_failure(error: OSError | Unavailable) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, OSError):
        return "it refused the connection"
    # The text of the error may name the operator's proxy.
    return "its name has no address, or the operator's proxy refused it"
