"""One client connection on uvicorn, held to limits that uvicorn does not have.

A deadline for the head of a request (without one, 300 half-open requests were all still held
after 25 s), caps on connections, header and URL lengths, and trailers kept out of the headers.
An offer to change to another protocol than WebSocket is ignored, as RFC 9110 §7.8 allows: Java's
HTTP client offers `h2c` with every request over plain HTTP.

Rule 1: a request whose head arrives whole pays for a few comparisons (under 1 us) and no more.
Rule 2: deadlines stand in one queue that one timer sweeps; no request has a timer of its own.
"""

import asyncio
import sys
from http import HTTPStatus
from typing import Any, Final

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from comity.surfaces.doorway import Receive, Send
from comity.surfaces.express import BODY_BYTES, Continuation, Express
from comity.surfaces.guard import GUARD, HANDED, Guard, Upgraded, source_of

PIPELINED_AT_MOST = 16
DISCARDED_AT_MOST = 4 * 1024 * 1024
_OF_UPGRADES: Final = frozenset({b"upgrade", b"http2-settings"})
"""Header fields, and options of `Connection`, that are about a change of protocol alone."""


class Connection(HttpToolsProtocol):
    """One client connection: uvicorn's, within the listener's limits."""

    def __init__(self, config: Config, guard: Guard) -> None:
        super().__init__(config, guard.state, {GUARD: guard})
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
        # A request in the express lane: its head and what came of its body; then itself.
        self._named: dict[bytes, bytes] = {}
        self._body_parts: bytes | None = None
        self._request: Express | None = None
        self._served = False
        # Who reads and writes here since the connection was upgraded.
        self._upgraded: Upgraded | None = None
        # A head whose offer of another protocol is declined, without that offer; where the bytes
        # behind it begin; and how many of one reading were declined.
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

        The parser stops at the end of such a head, and takes no body after it. A new parser reads
        the head without the offer, and then the body by the same rules as any other.
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
        """The parser stopped at an offer of another protocol: note where."""
        stopped = sys.exception()
        if isinstance(stopped, httptools.HttpParserUpgrade):
            self._declined_to = int(stopped.args[0])

    def _see_head(self) -> None:
        """The head of a request is whole; of its body there may be more to come."""
        if self._awaiting_head:
            self._awaiting_head = False
            self._head_room = self._guard.limits.header_bytes
            self._guard.heads_due.pop(self, None)
        if self._body_parts is not None:
            self._guard.expect_body(self)

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
        request = Express(self, self.url, self._named, self.headers, body, keep_alive)
        self._request, self._served = request, True
        if not self._guard.serve(request):
            self._request, self._served = None, False
            self._start_asgi(body)
            super().on_message_complete()

    def leave_to_asgi(self) -> None:
        """The body takes its time: let the application wait for it."""
        if self._body_parts is not None:
            body, self._body_parts = self._body_parts, None
            self._start_asgi(body)

    def _start_asgi(self, body: bytes) -> None:
        self._on_head(upgrading=False)
        super().on_body(body)

    def _is_express(self) -> bool:
        """Whether this may be answered without a cycle: a short body, and nothing before it."""
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
            # It was sent before the one in the express lane was answered.
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))
        else:
            super()._start_asgi_task(cycle, app)

    def written(self, request: Express, data: bytes) -> None:
        """The request in the express lane has its answer."""
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

    def continued(self, request: Express, continuation: Continuation) -> None:
        """The request in the express lane turns out to need more than one answer."""
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

    def hand_over(self, protocol: Upgraded) -> None:
        """Have somebody else read and write here; the connection is still counted."""
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
            # The parser would skip the body and read it as the next request: smuggling.
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
        """Have uvicorn see the head of a request, as if it came just now."""
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

    def refuse(self, status: HTTPStatus, because: str) -> None:
        """Say why, if a response can still be said here, and close."""
        self._guard.refused[status] += 1
        answering = self._latest is not None and not self._latest.response_complete
        if self._request is not None or answering or self.transport.get_write_buffer_size():
            self.transport.abort()
            return
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "content-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(because)}\r\n"
            f"connection: close\r\n\r\n{because}".encode("ascii")
        )
        self.transport.close()


def _offers_another_protocol(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether a change is offered to something else than WebSocket."""
    offered = [value.lower() for name, value in headers if name == b"upgrade"]
    return bool(offered) and not any(b"websocket" in value for value in offered)


def _announces_body(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in headers
    )
