"""One client connection of the HTTP server, and the limits on connections."""

import asyncio
import ipaddress
import sys
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from itertools import takewhile
from typing import Any, Final, Protocol, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from comity.http.asgi import Receive, Send
from comity.http.fast_path import BODY_BYTES, Continuation, FastPathRequest, Serve
from comity.http.trusted_proxies import TrustedProxies
from comity.telemetry.metrics import MetricFamily

GUARD: Final = "guard"
"""The key of the listener's guard in the state of a request's scope."""
HANDED: Final = "comity.connection"
"""The key of the connection in the scope of a request that asks for an upgrade."""
BODY_SECONDS: Final = 1.0
"""How long to wait for a short body before the request goes to the application."""

type Due[T] = dict[T, float]
"""The deadline of each item. All are of the same length, so the first is due first."""


class TimedConnection(Protocol):
    """A connection that can miss a deadline."""

    @property
    def transport(self) -> asyncio.Transport: ...
    @property
    def flow(self) -> FlowControl: ...
    def refuse(self, status: HTTPStatus, reason: str) -> None: ...
    def leave_to_asgi(self) -> None: ...


class UpgradedProtocol(asyncio.Protocol):
    """The protocol of a connection after its upgrade from HTTP."""

    def shutdown(self) -> None:
        """End the connection as the protocol requires."""


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """The resources of one listener that its peers may use."""

    connections: int = 20_000
    connections_per_address: int = 1_000
    # A reverse proxy, local or trusted, sends the requests of many clients from one address.
    uncounted_addresses: frozenset[str] = frozenset({"127.0.0.1", "::1"})
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    header_time: timedelta = timedelta(seconds=10)
    # How long a peer may leave its receive buffer full.
    send_time: timedelta = timedelta(seconds=30)
    header_bytes: int = 64 * 1024
    url_bytes: int = 8 * 1024
    keep_alive: timedelta = timedelta(seconds=75)
    grace: timedelta = timedelta(seconds=5)


class ListenerGuard:
    """State that all connections of a listener share: their number, and their deadlines."""

    def __init__(
        self, limits: ListenerLimits, state: ServerState, serve: Serve | None = None
    ) -> None:
        self.limits = limits
        self.state = state
        self.serve = serve
        self.emptied = asyncio.Event()
        self.admitted = 0
        self.refused: Counter[HTTPStatus] = Counter()
        # Every deadline in a queue has the same length, so insertion order is expiry order.
        self.heads_due: Due[TimedConnection] = {}
        self.reads_due: Due[TimedConnection] = {}
        self.bodies_due: Due[TimedConnection] = {}
        self.requests_due: Due[TimedConnection] = {}
        self._held_by: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()
        self._header_seconds = limits.header_time.total_seconds()
        self._send_seconds = limits.send_time.total_seconds()
        self._idle_seconds = limits.keep_alive.total_seconds()

    def admit(self, source: str, address: str = "") -> bool:
        """Count a connection. Return whether it is within the limits."""
        self.admitted += 1
        held = self._held_by[source] = self._held_by.get(source, 0) + 1
        limits = self.limits
        within = held <= limits.connections_per_address or source in limits.uncounted_addresses
        crowded = len(self.state.connections) > limits.connections
        return not crowded and (within or limits.proxies.trusts(address))

    def release(self, source: str) -> None:
        held = self._held_by[source] - 1
        if held:
            self._held_by[source] = held
        else:
            del self._held_by[source]
        if not self.state.connections:
            self.emptied.set()

    def families(self) -> list[MetricFamily]:
        """Return the metrics of connections: open, total and refused."""
        refused = [((("status", str(status.value)),), n) for status, n in self.refused.items()]
        return [
            MetricFamily(
                "comity_connections",
                "gauge",
                "Open connections of clients.",
                [((), len(self.state.connections))],
            ),
            MetricFamily(
                "comity_connections_total",
                "counter",
                "Connections that clients have opened.",
                [((), self.admitted)],
            ),
            MetricFamily(
                "comity_connections_refused_total",
                "counter",
                "Connections closed for what was said on them, or for their number, by status.",
                refused,
            ),
        ]

    def expect_head(self, connection: TimedConnection) -> None:
        self.heads_due[connection] = self._loop.time() + self._header_seconds

    def expect_body(self, connection: TimedConnection) -> None:
        self.bodies_due.setdefault(connection, self._loop.time() + BODY_SECONDS)

    def expect_request(self, connection: TimedConnection) -> None:
        self.requests_due[connection] = self._loop.time() + self._idle_seconds

    def forget(self, connection: TimedConnection) -> None:
        for due in (self.heads_due, self.reads_due, self.bodies_due, self.requests_due):
            due.pop(connection, None)

    def expect_reading(self, connection: TimedConnection) -> None:
        self.reads_due[connection] = self._loop.time() + self._send_seconds

    async def sweep(self) -> None:
        """Close connections that miss a deadline, and abort those whose peer never reads."""
        pause = min(1.0, self._header_seconds / 4)
        unread: dict[TimedConnection, int] = {}
        next_look_at_closing = self._loop.time() + self._header_seconds
        while True:
            await asyncio.sleep(pause)
            now = self._loop.time()
            self._close_late_heads(now)
            for connection in _late(self.reads_due, now):
                connection.transport.abort()
            for connection in _late(self.bodies_due, now):
                connection.leave_to_asgi()
            for connection in _late(self.requests_due, now):
                connection.transport.close()
            if now >= next_look_at_closing:
                unread = self._abort_stuck(unread)
                next_look_at_closing = now + self._header_seconds

    def _close_late_heads(self, now: float) -> None:
        for connection in _late(self.heads_due, now):
            if connection.flow.read_paused:
                # The server itself paused reading, because earlier requests are still queued.
                self.expect_head(connection)
            else:
                connection.refuse(HTTPStatus.REQUEST_TIMEOUT, "The request's head came too slowly.")

    def _abort_stuck(self, unread_before: dict[TimedConnection, int]) -> dict[TimedConnection, int]:
        """Abort closing connections whose peer reads nothing, because they would live forever.

        A closed transport lives until its last byte is read. Return the sizes for the next check.
        """
        unread: dict[TimedConnection, int] = {}
        for connection in cast("set[TimedConnection]", self.state.connections):
            if connection.transport.is_closing():
                unread[connection] = connection.transport.get_write_buffer_size()
        for connection, size in unread.items():
            if size >= unread_before.get(connection, size + 1):
                connection.transport.abort()
        return unread


def _late(due: Due[TimedConnection], now: float) -> list[TimedConnection]:
    """Remove and return the items whose deadline has passed."""
    late = [connection for connection, _ in takewhile(lambda item: item[1] <= now, due.items())]
    for connection in late:
        del due[connection]
    return late


def source_of(address: str) -> str:
    """Return the source by which connections are counted: for IPv6, the whole /64 network."""
    if ":" not in address:
        return address
    parsed = ipaddress.IPv6Address(address.partition("%")[0])
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if parsed.is_loopback:
        return str(parsed)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


PIPELINED_AT_MOST = 16
"""How many requests a client may send ahead of the answers before it is disconnected."""
DISCARDED_AT_MOST = 4 * 1024 * 1024
"""How many bytes of a body that was answered early are read and discarded."""
_OF_UPGRADES: Final = frozenset({b"upgrade", b"http2-settings"})
"""Header fields, and options of `Connection`, that concern only a change of protocol."""


class HttpServerConnection(HttpToolsProtocol):
    """One client connection: uvicorn's protocol, within the limits of the listener."""

    def __init__(self, config: Config, guard: ListenerGuard) -> None:
        super().__init__(config, guard.state, {GUARD: guard})
        self._guard = guard
        self._source = ""
        self._refusal = HTTPStatus.BAD_REQUEST
        self._head_room = guard.limits.header_bytes
        self._awaiting_head = True
        # The last request whose head was read completely.
        self._latest: RequestResponseCycle | None = None
        # Bytes read since then that were not part of its body, and its body at the last check.
        self._wasted = 0
        self._body: tuple[bytearray, int] = (bytearray(), 0)
        # A request on the fast path: its head and the body so far, then the request itself.
        self._named: dict[bytes, bytes] = {}
        self._body_parts: bytes | None = None
        self._request: FastPathRequest | None = None
        self._served = False
        # The protocol that reads and writes here since the connection was upgraded.
        self._upgraded: UpgradedProtocol | None = None
        # The head of a request without its declined upgrade offer, the position of the bytes after
        # it, and the number of declined offers in one read.
        self._declined: bytes | None = None
        self._declined_to = 0
        self._declines = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._source = source_of(self.address)
        if self._guard.admit(self._source, self.address):
            self._guard.expect_head(self)
        else:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections.")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        request, self._request = self._request, None
        if request is not None:
            request.lose()
        self._guard.forget(self)
        self._guard.release(self._source)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._guard.expect_reading(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._guard.reads_due.pop(self, None)

    def data_received(self, data: bytes) -> None:
        if len(data) > self._head_room:
            self._receive_in_pieces(data)
            return
        self._guard.requests_due.pop(self, None)
        super().data_received(data)
        if self._declined is not None:
            self._read_without_offer(self._declined, data)
            return
        if self._served or self._body_parts is not None:
            self._see_head()
            return
        latest = self._latest
        if latest is None or latest.scope is not self.scope or latest.response_complete:
            self._owe_head(len(data))
            return
        self._see_head()
        if latest.more_body:
            self._watch_body(latest.body, len(data))
        if self.pipeline and len(self.pipeline) > PIPELINED_AT_MOST:
            self.transport.abort()

    def _read_without_offer(self, head: bytes, data: bytes) -> None:
        """Read a request again without its offer of another protocol.

        The parser stops at the end of such a head and reads no body after it. A new parser reads
        the head without the offer, and then the body by the usual rules.
        """
        self._declined = None
        self._declines += 1
        if self._declines > PIPELINED_AT_MOST:
            self.transport.abort()
            return
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._head_room = max(self._guard.limits.header_bytes, len(head))
        self.data_received(head + data[self._declined_to :])
        self._declines -= 1

    def _unsupported_upgrade_warning(self) -> None:
        """Note where the parser stopped at an offer of another protocol."""
        stopped = sys.exception()
        if isinstance(stopped, httptools.HttpParserUpgrade):
            self._declined_to = int(stopped.args[0])

    def _see_head(self) -> None:
        """Note that the head of a request is complete. More of its body may follow."""
        if self._awaiting_head:
            self._awaiting_head = False
            self._head_room = self._guard.limits.header_bytes
            self._guard.heads_due.pop(self, None)
        if self._body_parts is not None:
            self._guard.expect_body(self)

    def _receive_in_pieces(self, data: bytes) -> None:
        """Read in pieces of at most the remaining head limit, so that the limit is exact."""
        while data and not self.transport.is_closing():
            topic = self._head_room
            self.data_received(data[:topic])
            data = data[topic:]

    def _owe_head(self, size: int) -> None:
        """Handle a part of a head, or data that is not a request."""
        if self.transport.is_closing():
            return
        latest, continued = self._latest, self._awaiting_head
        if not continued:
            self._awaiting_head = True
            self._guard.expect_head(self)
        if latest is not None and latest.scope is self.scope:
            # The rest of a body that was answered early, or blank lines between requests.
            self._waste(size, DISCARDED_AT_MOST)
        elif continued or latest is None or latest.response_complete:
            # Otherwise the piece began with the body of the previous request, and does not count.
            self._head_room -= size
            if self._head_room <= 0:
                self.refuse(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request's head is too long."
                )

    def _watch_body(self, body: bytearray, size: int) -> None:
        """Limit chunk extensions and trailers, which the application cannot see or count."""
        known, length = self._body
        grown = len(body) > (length if body is known else 0)
        self._body = (body, len(body))
        if not grown:
            self._waste(size, 2 * self._guard.limits.header_bytes)

    def _waste(self, size: int, maximum: int) -> None:
        self._wasted += size
        if self._wasted > maximum:
            self.transport.abort()

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > self._guard.limits.url_bytes:
            self._refusal = HTTPStatus.REQUEST_URI_TOO_LONG
            raise ValueError("URL too long")  # httptools stops, uvicorn calls send_400_response

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        # No scope yet: most requests are answered without one.
        self.scope = None  # type: ignore[assignment]  # its library does so too
        self._served = False

    def on_body(self, body: bytes) -> None:
        if self._body_parts is None:
            super().on_body(body)
        else:
            self._body_parts = self._body_parts + body if self._body_parts else body

    def on_message_complete(self) -> None:
        if self._declined is not None:
            return
        body, self._body_parts = self._body_parts, None
        if body is None:
            super().on_message_complete()
            return
        self._guard.bodies_due.pop(self, None)
        assert self.parser is not None
        assert self._guard.serve is not None
        keep_alive = self.parser.should_keep_alive()
        request = FastPathRequest(self, self.url, self._named, self.headers, body, keep_alive)
        self._request, self._served = request, True
        if not self._guard.serve(request):
            self._request, self._served = None, False
            self._start_asgi(body)
            super().on_message_complete()

    def leave_to_asgi(self) -> None:
        """Start the application, which then waits for the rest of the slow body."""
        if self._body_parts is not None:
            body, self._body_parts = self._body_parts, None
            self._start_asgi(body)

    def _start_asgi(self, body: bytes) -> None:
        self._on_head(upgrading=False)
        super().on_body(body)

    def _is_express(self) -> bool:
        """Whether the fast path may answer: a short body, and no earlier request pending."""
        if self._guard.serve is None or self._request is not None or self.pipeline:
            return False
        if self._latest is not None and not self._latest.response_complete:
            return False
        named = self._named = dict(self.headers)
        length = named.get(b"content-length", b"")
        return (
            length.isdigit()
            and len(length) < 6
            and int(length) <= BODY_BYTES
            and b"transfer-encoding" not in named
            and not self.expect_100_continue
            and not self.flow.write_paused
        )

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self._request is not None:
            # This request was sent before the request on the fast path was answered.
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))
        else:
            super()._start_asgi_task(cycle, app)

    def written(self, request: FastPathRequest, data: bytes) -> None:
        """Write the answer of the request on the fast path, and continue with the next request."""
        self._request = None
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.transport.write(data)
        if not request.keep_alive:
            self.transport.close()
        elif self.pipeline:
            self.flow.resume_reading()
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._guard.expect_request(self)

    def continued(self, request: FastPathRequest, continuation: Continuation) -> None:
        """Continue a request of the fast path as ASGI, because it needs more than one answer."""
        self._request = None

        async def app(scope: object, receive: Receive, send: Send) -> None:
            await continuation(receive, send)

        path = request.path.decode("ascii", "replace")
        scope: Any = {"type": "http", "method": "POST", "path": path, "headers": request.listed}
        cycle = RequestResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=request.keep_alive,
            on_response=self.on_response_complete,
        )
        cycle.more_body = False
        if not self.pipeline:
            self.cycle = self._latest = cycle
            self.scope = scope
            self._served = False
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]  # a plain callable

    def hand_over(self, protocol: UpgradedProtocol) -> None:
        """Give the connection to another protocol. It still counts for the limits."""
        self._upgraded = protocol
        self._guard.forget(self)
        cycle = self._latest
        if cycle is not None:
            cycle.response_started = cycle.response_complete = True
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)

    def shutdown(self) -> None:
        if self._upgraded is not None:
            self._upgraded.shutdown()
        elif self._request is not None:
            self._request.keep_alive = False
        else:
            super().shutdown()

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        upgrading = self.parser.should_upgrade()
        if upgrading and _offers_another_protocol(self.headers):
            self._declined = self._head_without_offer(self.parser)
            return
        if upgrading and _announces_body(self.headers):
            # The parser would skip the body and read it as the next request: request smuggling.
            raise ValueError("upgrade with a body")
        if not upgrading and self.parser.get_method() == b"POST" and self._is_express():
            self._body_parts = b""
        else:
            self._on_head(upgrading=upgrading)

    def _head_without_offer(self, parser: httptools.HttpRequestParser) -> bytes:
        version = parser.get_http_version().encode("ascii")
        lines = [b"%s %s HTTP/%s" % (parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                kept = [option for option in options if option.lower() not in _OF_UPGRADES]
                lines.append(b"connection: " + b", ".join(kept))
            elif name not in _OF_UPGRADES:
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def _on_head(self, *, upgrading: bool) -> None:
        """Pass the head of a request to uvicorn as if it had arrived just now."""
        url, headers, expected = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expected
        self.headers = self.scope["headers"] = headers
        super().on_headers_complete()
        self._latest = self.cycle
        self._wasted = 0
        if upgrading:
            self.scope[HANDED] = self  # type: ignore[typeddict-unknown-key]  # ours
        else:
            # uvicorn would append trailers to the headers that the application already trusts.
            self.headers = []

    def send_400_response(self, msg: str) -> None:
        self.refuse(self._refusal, msg)

    def refuse(self, status: HTTPStatus, reason: str) -> None:
        """Send the reason, if a response can still be sent, and close the connection."""
        self._guard.refused[status] += 1
        answering = self._latest is not None and not self._latest.response_complete
        if self._request is not None or answering or self.transport.get_write_buffer_size():
            self.transport.abort()
            return
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "content-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(reason)}\r\n"
            f"connection: close\r\n\r\n{reason}".encode("ascii")
        )
        self.transport.close()


def _offers_another_protocol(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the request offers an upgrade to a protocol other than WebSocket."""
    offered = [value.lower() for name, value in headers if name == b"upgrade"]
    return bool(offered) and not any(b"websocket" in value for value in offered)


def _announces_body(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in headers
    )
