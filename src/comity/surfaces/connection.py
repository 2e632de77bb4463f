"""One client connection on uvicorn, held to limits that uvicorn does not have.

A deadline for the head of a request (without one, 300 half-open requests were all still held
after 25 s), caps on connections, header and URL lengths, and trailers kept out of the headers.

Rule 1: a request whose head arrives whole pays for a few comparisons (under 1 us) and no more.
Rule 2: deadlines stand in one queue that one timer sweeps; no request has a timer of its own.
"""

import asyncio
import ipaddress
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from itertools import takewhile

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

PIPELINED_AT_MOST = 16
DISCARDED_AT_MOST = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of one listener its peers may hold."""

    connections: int = 20_000
    connections_per_address: int = 1_000
    # A reverse proxy on the same machine speaks for everybody behind it.
    uncounted_addresses: frozenset[str] = frozenset({"127.0.0.1", "::1"})
    header_time: timedelta = timedelta(seconds=10)
    # How long a peer may leave its side of the connection full.
    send_time: timedelta = timedelta(seconds=30)
    header_bytes: int = 64 * 1024
    url_bytes: int = 8 * 1024
    keep_alive: timedelta = timedelta(seconds=75)
    grace: timedelta = timedelta(seconds=5)


class Guard:
    """What the connections of one listener share: who is here, and who still owes a head."""

    def __init__(self, limits: Limits, state: ServerState) -> None:
        self.limits = limits
        self.state = state
        self.emptied = asyncio.Event()
        # Every deadline is the same length, so the order of insertion is the order of expiry.
        self.heads_due: dict[Connection, float] = {}
        self.reads_due: dict[Connection, float] = {}
        self._held_by: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()
        self._header_seconds = limits.header_time.total_seconds()
        self._send_seconds = limits.send_time.total_seconds()

    def admit(self, source: str) -> bool:
        """Count a connection; whether it may stay."""
        held = self._held_by[source] = self._held_by.get(source, 0) + 1
        within = held <= self.limits.connections_per_address
        crowded = len(self.state.connections) > self.limits.connections
        return (within or source in self.limits.uncounted_addresses) and not crowded

    def release(self, source: str) -> None:
        held = self._held_by[source] - 1
        if held:
            self._held_by[source] = held
        else:
            del self._held_by[source]
        if not self.state.connections:
            self.emptied.set()

    def expect_head(self, connection: "Connection") -> None:
        self.heads_due[connection] = self._loop.time() + self._header_seconds

    def expect_reading(self, connection: "Connection") -> None:
        self.reads_due[connection] = self._loop.time() + self._send_seconds

    async def sweep(self) -> None:
        """Close what owes a head for too long, and what nobody reads, or reads the end of."""
        pause = min(1.0, self._header_seconds / 4)
        unread: dict[Connection, int] = {}
        next_look_at_closing = self._loop.time() + self._header_seconds
        while True:
            await asyncio.sleep(pause)
            now = self._loop.time()
            self._close_late_heads(now)
            for connection in _late(self.reads_due, now):
                connection.transport.abort()
            if now >= next_look_at_closing:
                unread = self._abort_stuck(unread)
                next_look_at_closing = now + self._header_seconds

    def _close_late_heads(self, now: float) -> None:
        for connection in _late(self.heads_due, now):
            if connection.flow.read_paused:
                # We are the one not reading (requests are queued before this one).
                self.expect_head(connection)
            else:
                connection.refuse(HTTPStatus.REQUEST_TIMEOUT, "The request's head came too slowly.")

    def _abort_stuck(self, unread_before: dict["Connection", int]) -> dict["Connection", int]:
        """A closed transport lives until its last byte is read; a peer that never reads, forever.

        Returns what is unread now, for the next look.
        """
        unread: dict[Connection, int] = {}
        for connection in self.state.connections:
            if isinstance(connection, Connection) and connection.transport.is_closing():
                unread[connection] = connection.transport.get_write_buffer_size()
        for connection, size in unread.items():
            if size >= unread_before.get(connection, size + 1):
                connection.transport.abort()
        return unread


class Connection(HttpToolsProtocol):
    """One client connection: uvicorn's, within the listener's limits."""

    def __init__(self, config: Config, guard: Guard) -> None:
        super().__init__(config, guard.state, {})
        self._guard = guard
        self._source = ""
        self._refusal = HTTPStatus.BAD_REQUEST
        self._head_room = guard.limits.header_bytes
        self._awaiting_head = True
        # The last request whose head was read to its end.
        self._latest: RequestResponseCycle | None = None
        # Bytes read since then that were no part of its body, and its body when last seen.
        self._wasted = 0
        self._body: tuple[bytearray, int] = (bytearray(), 0)

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._source = source_of(self.client[0] if self.client else "")
        if self._guard.admit(self._source):
            self._guard.expect_head(self)
        else:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections.")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._guard.heads_due.pop(self, None)
        self._guard.reads_due.pop(self, None)
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
        super().data_received(data)
        latest = self._latest
        if latest is None or latest.scope is not self.scope or latest.response_complete:
            self._owe_head(len(data))
            return
        if self._awaiting_head:
            self._awaiting_head = False
            self._head_room = self._guard.limits.header_bytes
            self._guard.heads_due.pop(self, None)
        if latest.more_body:
            self._watch_body(latest.body, len(data))
        if self.pipeline and len(self.pipeline) > PIPELINED_AT_MOST:
            self.transport.abort()

    def _receive_in_pieces(self, data: bytes) -> None:
        """No piece is longer than what is left for a head, so that the cap is exact."""
        while data and not self.transport.is_closing():
            room = self._head_room
            self.data_received(data[:room])
            data = data[room:]

    def _owe_head(self, size: int) -> None:
        """Part of a head has come, or something that is no request at all."""
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
            # Else the piece began with the body of the request before, and is not counted.
            self._head_room -= size
            if self._head_room <= 0:
                self.refuse(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request's head is too long."
                )

    def _watch_body(self, body: bytearray, size: int) -> None:
        """Chunk extensions and trailers: the application cannot count what it is never given."""
        known, length = self._body
        grown = len(body) > (length if body is known else 0)
        self._body = (body, len(body))
        if not grown:
            self._waste(size, 2 * self._guard.limits.header_bytes)

    def _waste(self, size: int, at_most: int) -> None:
        self._wasted += size
        if self._wasted > at_most:
            self.transport.abort()

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > self._guard.limits.url_bytes:
            self._refusal = HTTPStatus.REQUEST_URI_TOO_LONG
            raise ValueError("URL too long")  # httptools stops, uvicorn calls send_400_response

    def on_headers_complete(self) -> None:
        upgrading = self.parser is not None and self.parser.should_upgrade()
        if upgrading and _announces_body(self.headers):
            # The parser would skip the body and read it as the next request: smuggling.
            raise ValueError("upgrade with a body")
        super().on_headers_complete()
        self._latest = self.cycle
        self._wasted = 0
        if not upgrading:
            # uvicorn would append trailers to the headers that the application already trusts.
            self.headers = []

    def send_400_response(self, msg: str) -> None:
        self.refuse(self._refusal, msg)

    def refuse(self, status: HTTPStatus, because: str) -> None:
        """Say why, if a response can still be said here, and close."""
        answering = self._latest is not None and not self._latest.response_complete
        if answering or self.transport.get_write_buffer_size():
            self.transport.abort()
            return
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "content-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(because)}\r\n"
            f"connection: close\r\n\r\n{because}".encode("ascii")
        )
        self.transport.close()


def _late(due: dict[Connection, float], now: float) -> list[Connection]:
    """Take out whatever is past its time; the first to come is the first to be due."""
    late = [connection for connection, _ in takewhile(lambda item: item[1] <= now, due.items())]
    for connection in late:
        del due[connection]
    return late


def _announces_body(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in headers
    )


def source_of(address: str) -> str:
    """Whom an address stands for when connections are counted: of IPv6, the whole /64."""
    if ":" not in address:
        return address
    parsed = ipaddress.IPv6Address(address.partition("%")[0])
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if parsed.is_loopback:
        return str(parsed)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
