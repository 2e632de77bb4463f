"""One keep-alive HTTP/1.1 connection, and the one request at a time that it carries.

Rule 1: a reader hears `ended` or `failed` exactly once, or nothing more after `abort`.
Rule 2: a connection is used again only if its last response was complete, allowed it, and left
        not a byte over, and the last request had been written to the end.
Rule 3: nothing of a body is kept here; what the parser gives goes to the reader.
The way of an ordinary response (one read, head and body) creates no task, future or timer.
"""

import asyncio
import logging
from typing import Protocol, cast

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpResponseParser,
)

from comity.adapters.upstream.sending import SILENCE, Sending
from comity.wire.errors import Unavailable

MOST_HEAD_BYTES = 64 * 1024
MOST_HEADERS = 256
PORTION_BYTES = 32 * 1024
"""As much of a response as is looked at in one turn of the loop."""

log = logging.getLogger(__name__)


class Keeper(Protocol):
    """Who owns the connections to one origin between their requests."""

    def release(self, connection: "Connection") -> None: ...
    def lost(self, connection: "Connection", again: Sending | None) -> None: ...


class Connection(asyncio.Protocol):
    """A socket to one origin and the parser of what comes out of it."""

    __slots__ = (
        "_complete",
        "_head_done",
        "_headers",
        "_heard",
        "_keep",
        "_keeper",
        "_later",
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

    def __init__(self, keeper: Keeper, origin: str) -> None:
        self._keeper = keeper
        self._origin = origin
        self._parser = HttpResponseParser(self)  # one for all responses: a new one costs 1 us
        self._sending: Sending | None = None
        self._headers: list[tuple[bytes, bytes]] = []  # being gathered
        self._received: list[tuple[bytes, bytes]] = []  # of the response being read
        self._heard = False  # any byte since the request
        self._head_done = False
        self._complete = False
        self._keep = False
        self._told = False  # the reader was told something during this read
        self._quiet_bytes = 0  # read since the reader was last told something
        self._write_blocked = False  # some of the request is still in the transport's buffer
        self._peer_finished = False
        self._later = b""  # read already, and waiting for a turn of its own
        self.is_reused = False
        self.is_spoiled = False  # the peer spoke before it was asked
        self.idle_generation = 0  # of its keeper, when it was last released
        self.farewell: asyncio.Future[None] | None = None  # set by whoever waits for the end

    # What the keeper does with it.

    def begin(self, sending: Sending) -> None:
        self._sending = sending
        self._heard = self._head_done = self._complete = False
        sending.carrier = self
        if sending.paused:
            self.apply_pause(sending)
        self.transport.write(sending.payload)
        if not sending.may_repeat:
            sending.payload = b""

    def apply_pause(self, sending: Sending) -> None:
        if self._sending is sending and not self.transport.is_closing():
            if sending.paused:
                self.transport.pause_reading()
            elif self._later:
                asyncio.get_running_loop().call_soon(self._go_on)
            else:
                self.transport.resume_reading()

    def close(self) -> None:
        """Part politely; whatever is still unwritten is not worth waiting for."""
        if self._write_blocked:
            self.transport.abort()
        else:
            self.transport.close()

    def drop(self, sending: Sending) -> None:
        if self._sending is sending:
            self._sending = None
            self.transport.abort()

    def fail(self, because: Unavailable) -> None:
        """Give up on the response, if one is awaited, and on the connection."""
        sending, self._sending = self._sending, None
        self.transport.abort()
        if sending is not None:
            sending.fail(because)

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # With next to no margin, "writing is paused" means "not everything has been written".
        # Not zero: TLS transports pause at the mark, and would at once with nothing to write.
        self.transport.set_write_buffer_limits(high=1, low=0)
        if self.is_spoiled:
            self.transport.abort()

    def pause_writing(self) -> None:
        self._write_blocked = True

    def resume_writing(self) -> None:
        self._write_blocked = False

    def data_received(self, data: bytes) -> None:
        if len(data) > PORTION_BYTES:
            # A stream may hold thousands of small messages; between some of them others go on.
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
        self.data_received(data)
        if not self._later and not self.transport.is_closing():
            paused = self._sending is not None and self._sending.paused
            if not paused:
                self.transport.resume_reading()

    def _take(self, data: bytes) -> None:
        sending = self._sending
        if sending is None:
            self._refuse_unasked()
            return
        self._heard = True
        try:
            if self._head_done or self._quiet_bytes + len(data) <= MOST_HEAD_BYTES:
                self._parser.feed_data(data)
            else:
                self._feed_head_within_limit(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self._complete:
                self.fail(self._malformed(_reason(error)))
                return
            # The response was whole; what follows it is nobody's, and the connection not ours.
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
        del self._parser  # it holds our methods: without this only the collector would free us
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
            sending.fail(self._broken_off())

    # What the parser tells.

    def on_message_begin(self) -> None:
        if self._complete:
            raise HttpParserError("bytes after the end of the response")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        headers, self._headers = self._headers, []
        if not 200 <= status < 600:
            _check_interim(status)
            return
        if len(headers) > MOST_HEADERS:
            raise HttpParserError(f"more than {MOST_HEADERS} headers")
        self._head_done = self._told = True
        self._received = headers
        sending = self._sending
        if sending is None:
            return
        sending.payload = b""
        if sending.is_head:
            # The parser cannot be told that a length describes no body, so it is not used again.
            self._complete = True
            self._keep = False
        try:
            sending.reader.started(status, headers)
        except Exception:
            log.exception("the reader of a response raised; its connection is dropped")
            self.fail(Unavailable("the response could not be processed; see the log for the cause"))

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
        # An interim response (1xx) also completes, but never has its head taken.
        if self._head_done and not self._complete:
            self._keep = self._parser.should_keep_alive()
            self._complete = True
            self._headers = []  # trailers are not passed on

    # What follows from it.

    def _finish(self) -> None:
        sending = self._sending
        if sending is None:
            return  # given up by its reader in the middle of the last read
        self._sending = None
        self._quiet_bytes = 0
        self._told = False
        if self._keep and not self._write_blocked and not self._later:
            if sending.paused:
                self.transport.resume_reading()
            self.is_reused = True
            # Before the reader is told, so that what it sends next finds the connection idle.
            self._keeper.release(self)
        else:
            self.close()
        # `sending.end()` written out: this is on the way of every response.
        reader, sending.reader = sending.reader, SILENCE
        try:
            reader.ended()
        except Exception:
            log.exception("the reader of a response raised at its end")

    def _feed_head_within_limit(self, data: bytes) -> None:
        room = MOST_HEAD_BYTES - self._quiet_bytes
        self._parser.feed_data(data[:room])
        if not self._head_done:
            raise HttpParserError(f"headers of more than {MOST_HEAD_BYTES} bytes")
        self._parser.feed_data(data[room:])

    def _count_quiet(self, count: int) -> None:
        # Unfinished heads, trailers and chunk extensions pile up in the parser unseen.
        self._quiet_bytes = 0 if self._told else self._quiet_bytes + count
        self._told = False
        if self._quiet_bytes > MOST_HEAD_BYTES:
            self.fail(self._malformed(f"more than {MOST_HEAD_BYTES} bytes without content"))

    def _refuse_unasked(self) -> None:
        # Taken as the answer to the next request, it would answer a question never asked.
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
        raise HttpParserError(f"status {status:03d}, which nobody asked for")


def _reason(error: Exception) -> str:
    # What our own callbacks raise arrives wrapped, as the context of the parser's error.
    cause = error.__context__ if isinstance(error, HttpParserCallbackError) else error
    return str(cause if isinstance(cause, HttpParserError) else "it could not be parsed")


def _ends_with_connection(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the response named no other end of its body than that of the connection."""
    codings = b",".join(value for name, value in headers if name == b"transfer-encoding")
    if codings:
        return codings.rpartition(b",")[2].strip().lower() != b"chunked"
    return all(name != b"content-length" for name, _ in headers)
