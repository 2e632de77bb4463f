"""One client connection of the HTTP server, and the limits on connections."""

import asyncio
import ipaddress
import re
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from itertools import takewhile
from typing import Final, cast
from urllib.parse import unquote

import httptools

from comity.http.asgi import HeaderList, Receive, Scope, Send
from comity.http.asgi_cycle import Application, AsgiCycle
from comity.http.fast_path import BODY_BYTES, Continuation, FastPathRequest, RequestHead, Serve
from comity.http.head_memo import MAX_HEAD_BYTES, HeadMemo
from comity.http.request_turns import PORTION_BYTES, InputTurns
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
        self, limits: ListenerLimits, app: Application, serve: Serve | None = None
    ) -> None:
        self.limits = limits
        self.app = app
        self.serve = serve
        self.turns = InputTurns()
        self.connections: set[HttpServerConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.emptied = asyncio.Event()
        self.admitted = 0
        self.refused: Counter[HTTPStatus] = Counter()
        # Every deadline in a queue has the same length, so insertion order is expiry order.
        self.heads_due: Due[HttpServerConnection] = {}
        self.reads_due: Due[HttpServerConnection] = {}
        self.bodies_due: Due[HttpServerConnection] = {}
        self.requests_due: Due[HttpServerConnection] = {}
        self._held_by: dict[str, int] = {}
        self.loop = asyncio.get_running_loop()
        self.idle_seconds = limits.keep_alive.total_seconds()
        self._header_seconds = limits.header_time.total_seconds()
        self._send_seconds = limits.send_time.total_seconds()

    def admit(self, source: str, address: str = "") -> bool:
        """Count a connection. Return whether it is within the limits."""
        self.admitted += 1
        held = self._held_by[source] = self._held_by.get(source, 0) + 1
        limits = self.limits
        within = held <= limits.connections_per_address or source in limits.uncounted_addresses
        crowded = len(self.connections) > limits.connections
        return not crowded and (within or limits.proxies.trusts(address))

    def release(self, source: str) -> None:
        held = self._held_by[source] - 1
        if held:
            self._held_by[source] = held
        else:
            del self._held_by[source]
        if not self.connections:
            self.emptied.set()

    def families(self) -> list[MetricFamily]:
        """Return the metrics of connections: open, total and refused."""
        refused = [((("status", str(status.value)),), n) for status, n in self.refused.items()]
        return [
            MetricFamily(
                "comity_connections",
                "gauge",
                "Open connections of clients.",
                [((), len(self.connections))],
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
                "Connections closed because of invalid data or a limit, by status.",
                refused,
            ),
        ]

    def expect_head(self, connection: "HttpServerConnection") -> None:
        self.heads_due.setdefault(connection, self.loop.time() + self._header_seconds)

    def expect_body(self, connection: "HttpServerConnection") -> None:
        self.bodies_due.setdefault(connection, self.loop.time() + BODY_SECONDS)

    def forget(self, connection: "HttpServerConnection") -> None:
        for due in (self.heads_due, self.reads_due, self.bodies_due, self.requests_due):
            due.pop(connection, None)

    def expect_reading(self, connection: "HttpServerConnection") -> None:
        self.reads_due[connection] = self.loop.time() + self._send_seconds

    async def sweep(self) -> None:
        """Close connections that miss a deadline, and abort those whose peer never reads."""
        pause = min(1.0, self._header_seconds / 4)
        unread: dict[HttpServerConnection, int] = {}
        next_look_at_closing = self.loop.time() + self._header_seconds
        while True:
            await asyncio.sleep(pause)
            now = self.loop.time()
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
            if connection.is_held_back:
                # The server itself paused reading, because earlier input or requests wait.
                self.expect_head(connection)
            else:
                connection.refuse(HTTPStatus.REQUEST_TIMEOUT, "The request's head came too slowly.")

    def _abort_stuck(
        self, unread_before: dict["HttpServerConnection", int]
    ) -> dict["HttpServerConnection", int]:
        """Abort closing connections whose peer reads nothing, because they would live forever.

        A closed transport lives until its last byte is read. Return the sizes for the next check.
        """
        unread: dict[HttpServerConnection, int] = {}
        for connection in self.connections:
            if connection.transport.is_closing():
                unread[connection] = connection.transport.get_write_buffer_size()
        for connection, size in unread.items():
            if size >= unread_before.get(connection, size + 1):
                connection.transport.abort()
        return unread


def _late(due: Due["HttpServerConnection"], now: float) -> list["HttpServerConnection"]:
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
PARSED_AFTER_ANSWER = 64 * 1024
"""How many bytes of a body that was answered early are parsed, to keep the connection."""
DISCARDED_AT_MOST = 4 * 1024 * 1024
"""How many bytes are discarded unparsed, so that a client reads its answer before the end."""
_OF_UPGRADES: Final = frozenset({b"upgrade", b"http2-settings"})
"""Header fields, and options of `Connection`, that concern only a change of protocol."""
_BAD_URL: Final = (ValueError, httptools.HttpParserError)
_AUTHORITY_END: Final = re.compile(rb"[/?#]")
_VERSIONS: Final = frozenset({"1.0", "1.1"})


class HttpServerConnection(asyncio.Protocol):
    """One client connection: reads requests, and answers them in their order.

    A request is `_current` while it is answered. Later requests wait in `_queue`. The parser may
    still read the body of the last one, which is `_reading`.
    """

    transport: asyncio.Transport

    def __init__(self, guard: ListenerGuard) -> None:
        self._guard = guard
        self._parser: httptools.HttpRequestParser | None = None
        self._memo: HeadMemo[RequestHead] = HeadMemo()
        self.address = ""
        self.read_paused = False
        self.writable: asyncio.Event | None = None
        self._source = ""
        self._server: tuple[str, int] | None = None
        self._client: tuple[str, int] | None = None
        self._scheme = "http"
        # Whether nothing has arrived since the last answer.
        self._is_idle = False
        self._current: AsgiCycle | FastPathRequest | None = None
        self._queue: deque[AsgiCycle] = deque()
        # The message that the parser reads.
        self._url = b""
        self._headers: HeaderList = []
        self._in_message = self._in_head = False
        self._reading: AsgiCycle | None = None
        # The bytes of this read, until a head was read from them.
        self._fresh = b""
        # A request for the fast path: its head and the body so far.
        self._head: RequestHead | None = None
        self._body = b""
        # A request with a known head whose body is not complete. The parser has not seen it.
        self._unparsed = b""
        # Input for later turns of the event loop. The transport does not read meanwhile.
        self._unread = b""
        self._awaits_turn = False
        # Whether the client still sends a body that was answered, and is only given time to read.
        self._is_lingering = False
        # What is left of the limit for a head, and bytes since the last head that were no body.
        self._head_room = guard.limits.header_bytes
        self._wasted = 0
        # Whether a head was completed, or a body grew, during this read.
        self._saw_head = self._saw_body = False
        # How much of this piece was the body of a request.
        self._body_in_piece = 0
        self._refusal = HTTPStatus.BAD_REQUEST
        # The protocol that reads and writes here since the connection was upgraded.
        self._upgraded: UpgradedProtocol | None = None
        # The head of a request without its declined upgrade offer, and the number of such heads.
        self._declined: bytes | None = None
        self._declines = 0

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._guard.connections.add(self)
        self._parser = self._new_parser()
        self._server = _address_in(transport, "sockname")
        self._client = _address_in(transport, "peername")
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        self.address = self._client[0] if self._client else ""
        self._source = source_of(self.address)
        if self._guard.admit(self._source, self.address):
            self._guard.expect_head(self)
        else:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.connections.discard(self)
        current, self._current = self._current, None
        if isinstance(current, FastPathRequest):
            current.lose()
        elif current is not None:
            current.disconnect()
        self._reading = None
        self._unread = b""
        self._queue.clear()
        self.resume_writing()
        self._guard.forget(self)
        self._guard.release(self._source)
        self._parser = None  # it holds our methods: otherwise only the garbage collector frees us

    def pause_writing(self) -> None:
        if self.writable is None:
            self.writable = asyncio.Event()
            self._guard.expect_reading(self)

    def resume_writing(self) -> None:
        if self.writable is not None:
            self.writable.set()
            self.writable = None
            self._guard.reads_due.pop(self, None)

    def data_received(self, data: bytes) -> None:
        guard = self._guard
        guard.requests_due.pop(self, None)
        if self._unparsed:
            data, self._unparsed = self._unparsed + data, b""
            self._is_idle = True
        if not self._is_idle or self.writable is not None or guard.serve is None:
            self._parse(data)
            return
        # The fast path for a head that was parsed before. The parser does not see this request.
        found = self._memo.find(data)
        if found is None:
            self._parse(data)
            return
        self._is_idle = False
        head, start, size = found
        if size > BODY_BYTES or len(data) != start + size:
            self._on_unusual_body(data, start, size)
            return
        if guard.bodies_due:
            guard.bodies_due.pop(self, None)
        self._current = request = FastPathRequest(self, head, data[start:])
        if not guard.serve(request):
            self._serve_as_asgi(request)

    def _on_unusual_body(self, data: bytes, start: int, size: int) -> None:
        """Wait for the rest of a short body. The parser reads all others."""
        if size <= BODY_BYTES and len(data) < start + size:
            self._unparsed = data
            self._guard.expect_body(self)
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse a short request at once, and anything longer as the turns of input allow."""
        self._is_idle = False
        if self._unread:
            self._unread += data
        elif len(data) <= MAX_HEAD_BYTES and not self._in_message:
            self._parse_now(data)
        else:
            self._unread = data
            if self._guard.turns.has_room:
                self._go_on()
            else:
                self._await_turn()

    def _await_turn(self) -> None:
        self.transport.pause_reading()
        if not self._awaits_turn:
            self._awaits_turn = True
            self._guard.turns.wait(self._go_on_in_turn)

    def _go_on_in_turn(self) -> None:
        self._awaits_turn = False
        self._go_on()

    def _go_on(self) -> None:
        """Parse the next portion of the input, and then wait for another turn, or read on."""
        data = self._unread
        if not data or self.read_paused or self.transport.is_closing():
            return
        self._unread = data[PORTION_BYTES:]
        self._guard.turns.spend(min(len(data), PORTION_BYTES))
        self._parse_now(data[:PORTION_BYTES])
        if self.transport.is_closing() or self._upgraded is not None:
            self._unread = b""
        elif self._unread:
            self._await_turn()
        elif not self.read_paused:
            self.transport.resume_reading()

    def _parse_now(self, data: bytes) -> None:
        """Feed the parser in pieces of at most the remaining head limit, so that it is exact."""
        self._is_idle = False
        if self._is_lingering:
            self._waste(len(data), DISCARDED_AT_MOST)
            return
        if not self._in_message:
            self._fresh = data
        while data and not self.transport.is_closing() and self._upgraded is None:
            room = self._head_room
            self._parse_piece(data[:room])
            data = data[room:]
        self._fresh = b""

    def _parse_piece(self, data: bytes) -> None:
        parser = self._parser
        assert parser is not None
        self._saw_head = self._saw_body = False
        self._body_in_piece = 0
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            if self._declined is not None:
                self._read_without_offer(self._declined, data[int(stopped.args[0]) :])
                return
        except httptools.HttpParserError:
            if not self.transport.is_closing():
                self.refuse(self._refusal, "Invalid HTTP request received.")
            return
        if not self.transport.is_closing():
            self._account_for(len(data))

    def _account_for(self, size: int) -> None:
        """Set the deadline for what is expected next, and count what was no part of a request."""
        guard = self._guard
        if self._saw_head:
            self._head_room = guard.limits.header_bytes
            self._wasted = 0
            guard.heads_due.pop(self, None)
        if self._in_head:
            guard.expect_head(self)
            if not self._saw_head and not self._saw_body:
                self._head_room -= size
                if self._head_room <= 0:
                    self.refuse(
                        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                        "The request's head is too long.",
                    )
        elif self._head is not None:
            guard.expect_body(self)
        elif self._reading is not None and self._reading.response_complete:
            # The rest of a body that was answered early.
            guard.expect_head(self)
            self._wasted += size
            if self._wasted > PARSED_AFTER_ANSWER:
                self._linger()
        elif not self._saw_head:
            self._count_waste(size)

    def _count_waste(self, size: int) -> None:
        if self._reading is not None:
            # The application cannot see or count the framing of chunks, extensions and trailers.
            # It may be as long as the body, and this much longer.
            self._wasted = max(0, self._wasted - self._body_in_piece)
            self._waste(size - self._body_in_piece, 2 * self._guard.limits.header_bytes)
        elif self._current is None and not self._saw_body:
            # Blank lines between requests.
            self._guard.expect_head(self)
            self._waste(size, DISCARDED_AT_MOST)

    def _waste(self, size: int, maximum: int) -> None:
        self._wasted += size
        if self._wasted > maximum:
            self.transport.abort()

    def _linger(self) -> None:
        """End the connection, but let the client read its answer while it sends the rest.

        If the connection were cut at once, the client would lose the answer. The deadline of the
        head cuts it in the end.
        """
        self._is_lingering = True
        self._reading = None
        self._wasted = 0
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _read_without_offer(self, head: bytes, rest: bytes) -> None:
        """Read a request again without its upgrade to another protocol.

        The parser stops at the end of such a head and reads no body after it. A new parser reads
        the head without the upgrade, and then the body by the usual rules.
        """
        self._declined = None
        self._declines += 1
        if self._declines > PIPELINED_AT_MOST:
            self.transport.abort()
            return
        self._parser = self._new_parser()
        self._head_room = max(self._guard.limits.header_bytes, len(head))
        self._parse_now(head + rest)
        self._declines -= 1

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Data after a request that asks to close the connection is ignored.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # Callbacks of the parser. An exception here ends the parsing.

    def on_message_begin(self) -> None:
        if self.transport.is_closing():
            raise ValueError("a request after the last one")
        self._guard.requests_due.pop(self, None)
        self._is_idle = False
        self._in_message = self._in_head = True
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._guard.limits.url_bytes:
            self._refusal = HTTPStatus.REQUEST_URI_TOO_LONG
            raise ValueError("URL too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        # The parser reports trailers here too. They do not become headers.
        if self._in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        self._in_head, self._saw_head = False, True
        fresh, self._fresh = self._fresh, b""
        version = parser.get_http_version()
        if version not in _VERSIONS:
            self._refusal = HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
            raise ValueError("unknown version of HTTP")
        self._check_framing_and_host()
        upgrading = parser.should_upgrade()
        if upgrading and _offers_another_protocol(self._headers):
            self._declined = self._head_without_offer(parser)
        elif upgrading and _announces_body(self._headers):
            # The parser would skip the body and read it as the next request: request smuggling.
            raise ValueError("upgrade with a body")
        elif (
            upgrading
            or version != "1.1"
            or parser.get_method() != b"POST"
            or not self._begin_fast_path(fresh)
        ):
            self._begin_asgi(upgrading=upgrading)

    def _check_framing_and_host(self) -> None:
        """Refuse what a proxy before this server may read otherwise.

        (RFC 9112, 3.2.2 and 6.1; RFC 9110, 8.4)
        """
        codings = [value for name, value in self._headers if name == b"transfer-encoding"]
        if codings and [coding.strip().lower() for coding in codings] != [b"chunked"]:
            self._refusal = HTTPStatus.NOT_IMPLEMENTED
            raise ValueError("a transfer coding other than chunked")
        encodings = [value for name, value in self._headers if name == b"content-encoding"]
        if any(encoding.strip().lower() != b"identity" for encoding in encodings):
            # Nothing here decodes a body, and read as it is, it is another one.
            self._refusal = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
            raise ValueError("a body with a content encoding")
        if self._url.startswith(b"/") or b"://" not in self._url:
            return
        authority = _AUTHORITY_END.split(self._url.partition(b"://")[2], maxsplit=1)[0].lower()
        hosts = [value.strip().lower() for name, value in self._headers if name == b"host"]
        if hosts != [authority]:
            raise ValueError("a target whose host is not that of the Host header")

    def on_body(self, body: bytes) -> None:
        self._saw_body = True
        self._body_in_piece += len(body)
        if self._head is not None:
            self._body = self._body + body if self._body else body
        elif self._reading is not None and not self._reading.response_complete:
            self._reading.add_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        reading, self._reading = self._reading, None
        head, self._head = self._head, None
        if reading is not None:
            self._saw_body = True
            reading.end_body()
            if self._current is None:
                self._wait_for_request()
        elif head is not None:
            guard = self._guard
            guard.bodies_due.pop(self, None)
            body, self._body = self._body, b""
            self._current = request = FastPathRequest(self, head, body)
            assert guard.serve is not None
            if not guard.serve(request):
                self._serve_as_asgi(request)

    # Requests on the fast path.

    def _begin_fast_path(self, fresh: bytes) -> bool:
        """Return whether the fast path may answer: a short body, and no earlier request pending."""
        if self._guard.serve is None or self._current is not None or self.writable is not None:
            return False
        headers = dict(self._headers)
        length = headers.pop(b"content-length", b"")
        if not length.isdigit() or len(length) > 5 or int(length) > BODY_BYTES:
            return False
        if b"transfer-encoding" in headers or b"expect" in headers:
            return False
        listed = self._headers
        at = next(i for i, (name, _) in enumerate(listed) if name == b"content-length")
        keep_alive = self._keeps_alive()
        head = RequestHead(self._url, headers, [*listed[:at], *listed[at + 1 :]], keep_alive, at)
        if fresh and keep_alive and self._guard.limits.header_bytes >= MAX_HEAD_BYTES:
            self._memo.learn(fresh, listed, head)
        self._head = head
        return True

    def leave_to_asgi(self) -> None:
        """Start the application, which then waits for the rest of the slow body."""
        if self._unparsed:
            data, self._unparsed = self._unparsed, b""
            self._parse_now(data)
        head, self._head = self._head, None
        if head is not None:
            body, self._body = self._body, b""
            self._guard.bodies_due.pop(self, None)
            try:
                self._begin_asgi(upgrading=False)
            except _BAD_URL:
                self.refuse(HTTPStatus.BAD_REQUEST, "Invalid HTTP request received.")
            if self._reading is not None and body:
                self._reading.add_body(body)

    def _serve_as_asgi(self, request: FastPathRequest) -> None:
        """Serve a complete request that the fast path did not take."""
        head = request.head
        try:
            scope = self._scope("POST", head.path, request.header_list(), "1.1")
        except _BAD_URL:
            self._current = None
            self.refuse(HTTPStatus.BAD_REQUEST, "Invalid HTTP request received.")
            return
        cycle = AsgiCycle(self, self._guard.app, scope, keep_alive=head.keep_alive)
        cycle.add_body(request.body)
        cycle.end_body()
        self._start(cycle)

    def written(self, request: FastPathRequest, data: bytes) -> None:
        """Write the answer of the request on the fast path, and continue with the next request."""
        self._current = None
        transport = self.transport
        if transport.is_closing():
            return
        transport.write(data)
        if not request.keep_alive:
            transport.close()
        elif self._queue or self._in_message or self._unread:
            self._continue()
        else:
            # This is `_wait_for_request` inlined, because it runs for every answer.
            guard = self._guard
            self._is_idle = True
            guard.requests_due[self] = guard.loop.time() + guard.idle_seconds

    def continued(self, request: FastPathRequest, continuation: Continuation) -> None:
        """Continue a request of the fast path as ASGI, because it needs more than one answer."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await continuation(receive, send)

        scope: Scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": request.head.path.decode("ascii", "replace"),
            "headers": request.header_list(),
        }
        cycle = AsgiCycle(self, app, scope, keep_alive=request.keep_alive)
        cycle.end_body()
        self._start(cycle)

    # Requests that are served as ASGI.

    def _begin_asgi(self, *, upgrading: bool) -> None:
        """Start the application for the request whose head was read, or queue the request."""
        parser = self._parser
        assert parser is not None
        version = parser.get_http_version()
        method = parser.get_method().decode("ascii")
        scope = self._scope(method, self._url, self._headers, version)
        if upgrading:
            scope[HANDED] = self
        expected = dict(self._headers).get(b"expect", b"")
        self._reading = cycle = AsgiCycle(
            self,
            self._guard.app,
            scope,
            keep_alive=self._keeps_alive(),
            expects_continue=expected.lower() == b"100-continue",
        )
        if self._current is None:
            self._start(cycle)
        elif len(self._queue) < PIPELINED_AT_MOST:
            self.pause_reading()
            self._queue.append(cycle)
        else:
            raise ValueError("too many requests sent ahead")

    def _keeps_alive(self) -> bool:
        parser = self._parser
        assert parser is not None
        return parser.get_http_version() == "1.1" and parser.should_keep_alive()

    def _scope(self, method: str, url: bytes, headers: HeaderList, version: str) -> Scope:
        parsed = httptools.parse_url(url)
        if not parsed.path:  # a URL such as `http://host`, or the host and port of CONNECT
            raise ValueError("a URL without a path")
        path = parsed.path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "method": method,
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": parsed.path,
            "query_string": parsed.query or b"",
            "headers": headers,
            "state": {GUARD: self._guard},
        }

    def _start(self, cycle: AsgiCycle) -> None:
        self._current = cycle
        tasks = self._guard.tasks
        task = self._guard.loop.create_task(cycle.run())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def on_response_complete(self) -> None:
        """Continue after the response of the current request was written."""
        self._current = None
        if not self.transport.is_closing():
            self._continue()

    def _continue(self) -> None:
        self.resume_reading()
        if self._queue:
            self._start(self._queue.popleft())
        elif not self._in_head:
            self._wait_for_request()

    def _wait_for_request(self) -> None:
        """Begin the time that the connection may be idle."""
        guard = self._guard
        guard.heads_due.pop(self, None)
        # The rest of a body that was answered early may still arrive.
        self._is_idle = not (self._in_message or self._unread)
        guard.requests_due.pop(self, None)
        guard.requests_due[self] = guard.loop.time() + guard.idle_seconds

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            if self._unread:
                self._await_turn()
            else:
                self.transport.resume_reading()

    @property
    def is_held_back(self) -> bool:
        """Whether the server itself does not read what the client has sent."""
        return self.read_paused or bool(self._unread)

    # Upgrades, and the end of the connection.

    def hand_over(self, protocol: UpgradedProtocol) -> None:
        """Give the connection to another protocol. It still counts for the limits."""
        self._upgraded = protocol
        self._unread = b""
        self._guard.forget(self)
        if isinstance(self._current, AsgiCycle):
            self._current.hand_over()
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)

    def _head_without_offer(self, parser: httptools.HttpRequestParser) -> bytes:
        version = parser.get_http_version().encode("ascii")
        lines = [b"%s %s HTTP/%s" % (parser.get_method(), self._url, version)]
        for name, value in self._headers:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                kept = [option for option in options if option.lower() not in _OF_UPGRADES]
                lines.append(b"connection: " + b", ".join(kept))
            elif name not in _OF_UPGRADES:
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def shutdown(self) -> None:
        """Close the connection once its requests are answered."""
        if self._upgraded is not None:
            self._upgraded.shutdown()
        elif self._current is None:
            self.transport.close()
        else:
            last = self._queue[-1] if self._queue else self._current
            last.keep_alive = False

    def refuse(self, status: HTTPStatus, reason: str) -> None:
        """Send the reason, if a response can still be sent, and close the connection."""
        self._guard.refused[status] += 1
        is_answering = self._current is not None or self.transport.get_write_buffer_size()
        if is_answering or self._is_lingering:
            self.transport.abort()
            return
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "content-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(reason)}\r\n"
            f"connection: close\r\n\r\n{reason}".encode("ascii")
        )
        self.transport.close()


def _address_in(transport: asyncio.BaseTransport, name: str) -> tuple[str, int] | None:
    """Return the host and the port of one end of a connection, if it has them."""
    found: object = transport.get_extra_info(name)
    return cast("tuple[str, int]", found[:2]) if isinstance(found, tuple) else None


def _offers_another_protocol(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the request asks for an upgrade to a protocol other than WebSocket."""
    offered = [value.lower() for name, value in headers if name == b"upgrade"]
    return bool(offered) and not any(b"websocket" in value for value in offered)


def _announces_body(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in headers
    )
