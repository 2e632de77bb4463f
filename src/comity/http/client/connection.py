"""One HTTP/1.1 connection to a server: writes requests and parses responses."""

import asyncio
import logging
from typing import Protocol, cast

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpResponseParser,
)

from comity.errors import Unavailable
from comity.http.head_memo import HeadMemo
from comity.toolkit.resilience import ByteBudget

log = logging.getLogger(__name__)


class ResponseReader(Protocol):
    """Reads one response. Its methods run on the event loop and must not raise.

    Exactly one of `ended` and `failed` is called, once, unless the request was aborted first.
    """

    def started(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The head has arrived. Names are in lower case, and values have no surrounding blanks."""
        ...

    def data(self, chunk: bytes) -> None: ...

    def ended(self) -> None:
        """The whole body has arrived."""
        ...

    def failed(self, error: Unavailable) -> None: ...


class RequestOwner(Protocol):
    """The owner of a request: first the queue of an origin, then one of its connections."""

    def apply_pause(self, request: "HttpClientRequest") -> None: ...
    def drop(self, request: "HttpClientRequest") -> None: ...


class _NullResponseReader:
    """The reader of a settled request, which ignores every call."""

    def started(self, status: int, headers: list[tuple[bytes, bytes]]) -> None: ...
    def data(self, chunk: bytes) -> None: ...
    def ended(self) -> None: ...
    def failed(self, error: Unavailable) -> None: ...


SILENCE = _NullResponseReader()


class HttpClientRequest:
    """One request, from its submission until its response has ended."""

    __slots__ = ("may_repeat", "owner", "paused", "payload", "reader")

    is_head = False

    def __init__(
        self, owner: RequestOwner, payload: bytes, reader: ResponseReader, may_repeat: bool
    ) -> None:
        self.owner = owner
        self.payload = payload
        self.reader = reader
        self.may_repeat = may_repeat
        self.paused = False

    def pause(self) -> None:
        """Stop reading. Data that was already read may still arrive, including the end."""
        if not self.paused:
            self.paused = True
            self.owner.apply_pause(self)

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.owner.apply_pause(self)

    def pause_if_over_budget(self, budget: ByteBudget) -> None:
        """Pause reading from a server that sends much unsolicited data."""
        if budget.is_exhausted and not self.paused:
            loop = asyncio.get_running_loop()
            seconds = budget.pause_seconds(loop.time())
            if seconds:
                self.pause()
                loop.call_later(seconds, self.resume)

    def abort(self) -> None:
        """Drop the connection. The reader is not called any more."""
        self.reader = SILENCE
        self.owner.drop(self)

    @property
    def is_settled(self) -> bool:
        return self.reader is SILENCE

    def end(self) -> None:
        # The reader is removed first, so that it is called only once and not kept alive from here.
        reader, self.reader = self.reader, SILENCE
        try:
            reader.ended()
        except Exception:
            log.exception("the reader of a response raised at its end")

    def fail(self, error: Unavailable) -> None:
        reader, self.reader = self.reader, SILENCE
        try:
            reader.failed(error)
        except Exception:
            log.exception("The reader of a response failed while handling an error")


class HttpHeadRequest(HttpClientRequest):
    """A HEAD request, whose response has a length and no body."""

    __slots__ = ()

    is_head = True


MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 256
PORTION_BYTES = 32 * 1024
"""The bytes of a response that are processed in one turn of the event loop."""


class HttpConnectionOwner(Protocol):
    """The owner of the connections to one origin between their requests."""

    def release(self, connection: "HttpClientConnection") -> None: ...
    def lost(self, connection: "HttpClientConnection", again: HttpClientRequest | None) -> None: ...


class HttpClientConnection(asyncio.Protocol):
    """A socket to one origin, and the parser of its responses."""

    __slots__ = (
        "_complete",
        "_fresh",
        "_head_done",
        "_headers",
        "_heard",
        "_keep",
        "_keeper",
        "_later",
        "_memo",
        "_origin",
        "_parser",
        "_peer_finished",
        "_quiet_bytes",
        "_received",
        "_sending",
        "_told",
        "_write_blocked",
        "farewell",
        "idle_generation",
        "is_reused",
        "is_spoiled",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, owner: HttpConnectionOwner, origin: str) -> None:
        self._keeper = owner
        self._origin = origin
        self._parser = HttpResponseParser(self)  # one for all responses: a new one costs 1 us
        self._sending: HttpClientRequest | None = None
        self._headers: list[tuple[bytes, bytes]] = []  # being collected
        self._received: list[tuple[bytes, bytes]] = []  # of the response being read
        # Heads of earlier responses: their headers without the length, and the place of it.
        self._memo: HeadMemo[tuple[list[tuple[bytes, bytes]], int]] = HeadMemo()
        self._fresh = b""  # the first read of a response, until a head was read from it
        self._heard = False  # any byte since the request
        self._head_done = False
        self._complete = False
        self._keep = False
        self._told = False  # the reader was called during this read
        self._quiet_bytes = 0  # read since the last call of the reader
        self._write_blocked = False  # a part of the request is still in the transport's buffer
        self._peer_finished = False
        self._later = b""  # read already, delivered in the next turn
        self.is_reused = False
        self.is_spoiled = False  # the peer sent data before a request
        self.idle_generation = 0  # the generation of its owner at the last release
        self.farewell: asyncio.Future[None] | None = None  # the pool waits for it on close

    # Methods for the owner.

    def begin(self, request: HttpClientRequest) -> None:
        self._sending = request
        self._heard = self._head_done = self._complete = False
        request.owner = self
        if request.paused:
            self.apply_pause(request)
        self.transport.write(request.payload)
        if not request.may_repeat:
            request.payload = b""

    def apply_pause(self, request: HttpClientRequest) -> None:
        if self._sending is request and not self.transport.is_closing():
            if request.paused:
                self.transport.pause_reading()
            elif self._later:
                asyncio.get_running_loop().call_soon(self._go_on)
            else:
                self.transport.resume_reading()

    def close(self) -> None:
        """Close the connection without waiting for unwritten data."""
        if self._write_blocked:
            self.transport.abort()
        else:
            self.transport.close()

    def drop(self, request: HttpClientRequest) -> None:
        if self._sending is request:
            self._sending = None
            self.transport.abort()

    def fail(self, error: Unavailable) -> None:
        """Fail the response, if one is awaited, and abort the connection."""
        sending, self._sending = self._sending, None
        self.transport.abort()
        if sending is not None:
            sending.fail(error)

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # With next to no margin, "writing is paused" means "not everything has been written". Not
        # zero: TLS transports pause at the mark, and would pause at once with nothing to write.
        self.transport.set_write_buffer_limits(high=1, low=0)
        if self.is_spoiled:
            self.transport.abort()

    def pause_writing(self) -> None:
        self._write_blocked = True

    def resume_writing(self) -> None:
        self._write_blocked = False

    def data_received(self, data: bytes) -> None:
        sending = self._sending
        if sending is None or self._heard or sending.is_head or sending.paused:
            self._receive(data)
            return
        found = self._memo.find(data)
        if found is None:
            self._fresh = data
            self._receive(data)
            self._fresh = b""
            return
        (headers, at), start, size = found
        if len(data) != start + size or len(data) > PORTION_BYTES:
            self._receive(data)
            return
        # A complete response whose head was parsed before. The parser does not see it.
        self._heard = self._head_done = True
        sending.payload = b""
        try:
            length = (b"content-length", b"%d" % size)
            sending.reader.started(200, [*headers[:at], length, *headers[at:]])
            if self._sending is sending:
                sending.reader.data(data[start:])
        except Exception:
            log.exception("the reader of a response raised; its connection is dropped")
            self.fail(Unavailable("the response could not be processed; see the log for the cause"))
        self._complete = self._keep = True
        self._finish()

    def _receive(self, data: bytes) -> None:
        if len(data) > PORTION_BYTES:
            # A stream may hold thousands of small messages. Other tasks run between the portions.
            self._later = data[PORTION_BYTES:]
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)
            data = data[:PORTION_BYTES]
        self._take(data)

    def _go_on(self) -> None:
        sending = self._sending
        if not self._later or (sending is not None and sending.paused):
            return
        data, self._later = self._later, b""
        self._receive(data)
        if not self._later and not self.transport.is_closing():
            paused = self._sending is not None and self._sending.paused
            if not paused:
                self.transport.resume_reading()

    def _take(self, data: bytes) -> None:
        sending = self._sending
        if sending is None:
            self._refuse_unsolicited()
            return
        self._heard = True
        try:
            if self._head_done or self._quiet_bytes + len(data) <= MAX_HEAD_BYTES:
                self._parser.feed_data(data)
            else:
                self._feed_head_within_limit(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self._complete:
                self.fail(self._malformed(_reason(error)))
                return
            # The response was complete. Data after it belongs to no request: do not reuse this.
            self._keep = False
        if self._complete:
            self._finish()
        else:
            self._count_quiet(len(data))

    def eof_received(self) -> None:
        self._peer_finished = True
        if self._write_blocked:
            # The transport would first try to write the rest to a peer that may never read it.
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._later = b""
        del self._parser  # it holds our methods: otherwise only the garbage collector frees us
        if self.farewell is not None and not self.farewell.done():
            self.farewell.set_result(None)
        sending, self._sending = self._sending, None
        if sending is None:
            self._keeper.lost(self, None)
            return
        if self.is_reused and sending.may_repeat and not self._heard:
            sending.may_repeat = False
            self._keeper.lost(self, sending)
            return
        self._keeper.lost(self, None)
        if self._head_done and self._peer_finished and _ends_with_connection(self._received):
            sending.end()
        else:
            broken_off = self._broken_off()
            broken_off.__cause__ = exc
            sending.fail(broken_off)

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        if self._complete:
            raise HttpParserError("bytes after the end of the response")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, []
        fresh, self._fresh = self._fresh, b""
        if not 200 <= status < 600:
            _check_interim(status)
            return
        if len(headers) > MAX_HEADERS:
            raise HttpParserError(f"more than {MAX_HEADERS} headers")
        if [name for name, _ in headers].count(b"transfer-encoding") > 1:
            # The parser refuses a repeated length. A proxy may read such framing otherwise.
            raise HttpParserError("a repeated transfer-encoding")
        self._head_done = self._told = True
        self._received = headers
        sending = self._sending
        if sending is None:
            return
        sending.payload = b""
        if fresh and status == 200 and self._parser.should_keep_alive():
            self._learn(fresh, headers)
        if sending.is_head:
            # The parser cannot be told that a length describes no body, so it is not used again.
            self._complete = True
            self._keep = False
        try:
            sending.reader.started(status, headers)
        except Exception:
            log.exception("the reader of a response raised; its connection is dropped")
            self.fail(Unavailable("the response could not be processed; see the log for the cause"))

    def _learn(self, fresh: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        names = [name for name, _ in headers]
        if b"content-length" in names and b"transfer-encoding" not in names:
            at = names.index(b"content-length")
            self._memo.learn(fresh, headers, ([*headers[:at], *headers[at + 1 :]], at))

    def on_body(self, body: bytes) -> None:
        sending = self._sending
        if sending is None or self._complete:
            return
        self._told = True
        try:
            sending.reader.data(body)
        except Exception:
            log.exception("the reader of a response raised; its connection is dropped")
            self.fail(Unavailable("the response could not be processed; see the log for the cause"))

    def on_message_complete(self) -> None:
        # An interim response (1xx) also completes, but its head is never taken.
        if self._head_done and not self._complete:
            self._keep = self._parser.should_keep_alive()
            self._complete = True
            self._headers = []  # trailers are not passed on

    # Handling of complete responses.

    def _finish(self) -> None:
        sending = self._sending
        if sending is None:
            return  # aborted by its reader in the middle of the last read
        self._sending = None
        self._quiet_bytes = 0
        self._told = False
        if self._keep and not self._write_blocked and not self._later:
            if sending.paused:
                self.transport.resume_reading()
            self.is_reused = True
            # Before the reader is called, so that its next request finds the connection idle.
            self._keeper.release(self)
        else:
            self.close()
        # This is `sending.end()` inlined, because it runs for every response.
        reader, sending.reader = sending.reader, SILENCE
        try:
            reader.ended()
        except Exception:
            log.exception("the reader of a response raised at its end")

    def _feed_head_within_limit(self, data: bytes) -> None:
        free = MAX_HEAD_BYTES - self._quiet_bytes
        self._parser.feed_data(data[:free])
        if not self._head_done:
            raise HttpParserError(f"headers of more than {MAX_HEAD_BYTES} bytes")
        self._parser.feed_data(data[free:])

    def _count_quiet(self, count: int) -> None:
        # Unfinished heads, trailers and chunk extensions accumulate in the parser unseen.
        self._quiet_bytes = 0 if self._told else self._quiet_bytes + count
        self._told = False
        if self._quiet_bytes > MAX_HEAD_BYTES:
            self.fail(self._malformed(f"more than {MAX_HEAD_BYTES} bytes without content"))

    def _refuse_unsolicited(self) -> None:
        # Otherwise the next request would take this data as its answer.
        self.is_spoiled = True
        if hasattr(self, "transport"):
            self.transport.abort()

    def _malformed(self, reason: str) -> Unavailable:
        return Unavailable(
            f"{self._origin} sent a malformed HTTP/1.1 response ({reason}); whether the request "
            "was carried out is unknown. Check that the URL leads to an HTTP server, with the "
            "right scheme and port"
        )

    def _broken_off(self) -> Unavailable:
        when = "in the middle of its answer" if self._heard else "before it answered"
        return Unavailable(
            f"{self._origin} closed the connection {when}; whether the request was carried out is "
            "unknown. Look at the server before sending it again"
        )


def _check_interim(status: int) -> None:
    if status < 100 or status == 101 or status >= 600:
        raise HttpParserError(f"status {status:03d}, which was not requested")


def _reason(error: Exception) -> str:
    # Exceptions of our own callbacks arrive as the context of the parser's error.
    cause = error.__context__ if isinstance(error, HttpParserCallbackError) else error
    return str(cause if isinstance(cause, HttpParserError) else "it could not be parsed")


def _ends_with_connection(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether only the end of the connection marks the end of the response's body."""
    codings = b",".join(value for name, value in headers if name == b"transfer-encoding")
    if codings:
        return codings.rpartition(b",")[2].strip().lower() != b"chunked"
    return all(name != b"content-length" for name, _ in headers)
