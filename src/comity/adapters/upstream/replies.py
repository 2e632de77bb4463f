"""Readers of a server's HTTP responses: an answer or a stream, the standing stream, and nothing."""

import asyncio
import logging
from typing import Final, Protocol

from comity.adapters.upstream.sending import Sending
from comity.ports import Headers, Receiver
from comity.rules.allowance import Allowance
from comity.wire import jsonrpc
from comity.wire.errors import (
    EXHAUSTED,
    UPSTREAM_DOWN,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import Limits
from comity.wire.mcp import SESSION_HEADER, STANDALONE
from comity.wire.sse import Event, EventParser

log = logging.getLogger(__name__)

DEFAULT_RETRY_SECONDS: Final = 1.0
SHORTEST_WAIT_SECONDS: Final = 0.1
"""A server that ends its stream again and again shall not keep us busy with it."""
MOST_RESUMPTIONS: Final = 8
_STREAM_TYPE: Final = b"text/event-stream"
_LONGEST_SESSION: Final = 1024
_LONGEST_EVENT_ID: Final = 1024
_FAULTS: Final = {503: UPSTREAM_DOWN, 504: UPSTREAM_SLOW}

type ResponseHeaders = list[tuple[bytes, bytes]]


class Owner(Protocol):
    """The carrier whose responses these are."""

    limits: Limits
    receiver: Receiver
    resumes: bool

    def begun(self, session: bytes) -> None: ...
    def finished(self, stream: int) -> None: ...
    def may_be_forgotten(self, status: int) -> bool: ...
    def ask_again(self, reply: "Reply") -> None: ...
    def take_up(self, reply: "Reply") -> None: ...
    def listen_again(self, standing: "Standing", status: int) -> None: ...
    def release(self) -> None: ...


class Reply:
    """The response to one question: one JSON body, or a stream of events that ends with it."""

    # Defaults stand on the class: one of these is made for every call, and most stay untouched.
    sending: Sending | None = None
    last_event_id = ""
    retry_seconds = DEFAULT_RETRY_SECONDS
    _status = 0
    _size = 0
    _resumptions = 0
    _retried = False
    _parser: EventParser | None = None
    _allowance: Allowance | None = None

    def __init__(self, owner: Owner, stream: int, body: bytes, headers: Headers) -> None:
        self.stream = stream
        self.body = body
        self.headers = headers
        self._owner = owner
        self._chunks: list[bytes] = []

    def started(self, status: int, headers: ResponseHeaders) -> None:
        self._status = status
        self._chunks.clear()
        self._size = 0
        self._parser = None
        for name, value in headers:
            if name == SESSION_HEADER and value and len(value) <= _LONGEST_SESSION:
                self._owner.begun(value)
            elif name == b"content-type" and status == 200 and value.startswith(_STREAM_TYPE):
                self._parser = EventParser(self._owner.limits.frame_bytes + 1024)
        if self._parser is not None and not self._resumptions:
            self._owner.receiver.stream_opened(self.stream)

    def data(self, chunk: bytes) -> None:
        if self._parser is not None:
            self._feed(self._parser, chunk)
            return
        self._size += len(chunk)
        if self._size > self._owner.limits.frame_bytes:
            self._give_up(Unavailable("the server's answer is larger than a message may be"))
        else:
            self._chunks.append(chunk)

    def ended(self) -> None:
        if self._parser is not None:
            self._stream_broke(None)
        elif self._status != 200 and self._was_forgotten():
            self._retried = True
            self._owner.ask_again(self)
        else:
            self._owner.finished(self.stream)
            self._deliver(b"".join(self._chunks))

    def failed(self, error: Unavailable) -> None:
        if error.fault is not EXHAUSTED:
            self._owner.receiver.faltered(str(error), True)
        self._stream_broke(error)

    def _was_forgotten(self) -> bool:
        """Whether the server refused the question; one whose stream had begun may have run."""
        refused = self._owner.may_be_forgotten(self._status)
        return refused and not self._retried and not self._resumptions

    @property
    def is_unsent(self) -> bool:
        """Whether the question still waits for a connection."""
        return self.sending is not None and bool(self.sending.payload)

    def abort(self) -> None:
        if self.sending is not None:
            self.sending.abort()

    def _feed(self, parser: EventParser, chunk: bytes) -> None:
        receiver = self._owner.receiver
        try:
            events = parser.feed(chunk)
        except MalformedMessage as error:
            self._give_up(Unavailable(f"the server's stream is broken: {error}"))
            return
        for event in events:
            self._hear(event)
        if self._allowance is not None and self.sending is not None:
            self.sending.rest_if_spent(self._allowance)
        if self._resumptions and not receiver.awaits(self.stream):
            # A resumed stream may stay open after its answer; nothing more is for us there.
            self._owner.finished(self.stream)
            self.abort()
        elif parser.is_broken:
            self._feed(parser, b"")

    def _hear(self, event: Event) -> None:
        if event.id is not None and self._owner.resumes:
            self.last_event_id = _repeatable(event.id)
        if event.retry is not None:
            self.retry_seconds = event.retry / 1000
        if event.data and not self._owner.receiver.heard(event.data, self.stream, 200):
            self._allowance = self._allowance or Allowance()
            self._allowance.spend_on_noise(len(event.data))

    def _stream_broke(self, error: Unavailable | None) -> None:
        receiver = self._owner.receiver
        if not receiver.awaits(self.stream):
            self._owner.finished(self.stream)
        elif (
            self._parser is not None and self.last_event_id and self._resumptions < MOST_RESUMPTIONS
        ):
            self._resumptions += 1
            receiver.stream_suspended(self.stream)
            self._owner.take_up(self)
        else:
            self._owner.finished(self.stream)
            receiver.stream_ended(self.stream, error)

    def _give_up(self, error: Unavailable) -> None:
        self.abort()
        self._owner.finished(self.stream)
        self._owner.receiver.stream_ended(self.stream, error)

    def _deliver(self, body: bytes) -> None:
        """A JSON body is the answer; a refusal without one is told in words."""
        receiver = self._owner.receiver
        if self._status == 200:
            receiver.heard(body, self.stream, 200)
        elif (told := _refusal(body)) is not None:
            frame = jsonrpc.with_id(told, self.stream)
            # Whether the gateway's own credentials or its server failed is no status of the door.
            status = self._status if self._status in (400, 404) else 200
            receiver.heard(jsonrpc.encode(frame), self.stream, status)
        elif self._status >= 500:
            receiver.faltered(_explain(self._status), True)
        if receiver.awaits(self.stream):
            fault = _FAULTS.get(self._status, UPSTREAM_FAILED)
            receiver.stream_ended(self.stream, Unavailable(_explain(self._status), fault))


class Standing:
    """The stream for what nobody asked for; opened again whenever it ends."""

    def __init__(self, owner: Owner) -> None:
        self.sending: Sending | None = None
        self.last_event_id = ""
        self._owner = owner
        self._retry_seconds = DEFAULT_RETRY_SECONDS
        self._failures = 0
        self._status = 0
        self._parser: EventParser | None = None
        self._allowance: Allowance | None = None
        self.is_answered = False

    def _answer(self) -> None:
        """The server has said whether there is such a stream; whoever waited for that goes on."""
        if not self.is_answered:
            self.is_answered = True
            self._owner.release()

    def wait_seconds(self) -> float:
        return max(self._retry_seconds, SHORTEST_WAIT_SECONDS) * 2 ** min(self._failures, 5)

    def started(self, status: int, headers: ResponseHeaders) -> None:
        self._answer()
        self._status = status
        streams = any(
            name == b"content-type" and value.startswith(_STREAM_TYPE) for name, value in headers
        )
        usable = status == 200 and streams
        self._parser = EventParser(self._owner.limits.frame_bytes + 1024) if usable else None
        self._failures = 0 if usable else self._failures + 1

    def data(self, chunk: bytes) -> None:
        if self._parser is None:
            return
        try:
            events = self._parser.feed(chunk)
        except MalformedMessage as error:
            log.warning("a standing stream is broken: %s", error)
            self.abort()
            self._failures += 1
            self._owner.listen_again(self, 0)
            return
        for event in events:
            self._hear(event)
        if self._allowance is not None and self.sending is not None:
            self.sending.rest_if_spent(self._allowance)
        if self._parser.is_broken:
            self.data(b"")

    def _hear(self, event: Event) -> None:
        if event.id is not None:
            self.last_event_id = _repeatable(event.id)
        if event.retry is not None:
            self._retry_seconds = event.retry / 1000
        if event.data and not self._owner.receiver.heard(event.data, STANDALONE, 200):
            self._allowance = self._allowance or Allowance()
            self._allowance.spend_on_noise(len(event.data))

    def ended(self) -> None:
        # A server that answers 200 with something else than a stream has none.
        status = 405 if self._status == 200 and self._parser is None else self._status
        self._owner.listen_again(self, status)

    def failed(self, error: Unavailable) -> None:
        self._answer()
        self._failures += 1
        self._owner.receiver.faltered(str(error), False)
        self._owner.listen_again(self, 0)

    def abort(self) -> None:
        if self.sending is not None:
            self.sending.abort()


class Discard:
    """A response nobody reads; `done` tells when it is over, and a session in it is noted."""

    def __init__(self, owner: Owner | None = None) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.named_a_session = False
        self._owner = owner

    def started(self, status: int, headers: ResponseHeaders) -> None:
        if status >= 400:
            log.info("a server answered a message with HTTP %d", status)
        elif self._owner is not None:
            for name, value in headers:
                if name == SESSION_HEADER and value and len(value) <= _LONGEST_SESSION:
                    self.named_a_session = True
                    self._owner.begun(value)

    def data(self, chunk: bytes) -> None:
        pass

    def ended(self) -> None:
        self._finish()

    def failed(self, error: Unavailable) -> None:
        log.info("a message was not taken: %s", error)
        self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


def _repeatable(event_id: str) -> str:
    """The id, if a header can repeat it to the server; what cannot be repeated is no place."""
    return event_id if event_id.isprintable() and len(event_id) <= _LONGEST_EVENT_ID else ""


def _refusal(body: bytes) -> jsonrpc.Frame | None:
    """A JSON-RPC error, also one that names no request because the server read none."""
    try:
        frame = jsonrpc.decode(body)
    except MalformedMessage:
        return None
    return frame if frame.error is not jsonrpc.UNSET else None


def _explain(status: int) -> str:
    if status in (401, 403):
        return f"the server answered HTTP {status}: check the credentials in its headers"
    if status == 404:
        return "the server answered HTTP 404: check its URL"
    return f"the server answered HTTP {status} and no JSON-RPC answer"
