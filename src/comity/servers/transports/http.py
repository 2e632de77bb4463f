"""The Streamable HTTP transport: requests, their responses, and the standalone stream."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, Protocol

from comity.errors import (
    EXHAUSTED,
    UPSTREAM_DOWN,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    MalformedMessage,
    Unavailable,
)
from comity.http.client.connection import HttpClientRequest
from comity.http.client.dial import HttpOrigin, header_line, request_head
from comity.http.client.pool import HttpConnectionPool
from comity.mcp import jsonrpc, protocol
from comity.mcp.framing import SseEvent, SseParser
from comity.mcp.jsonrpc import LIMITS, Frame, FrameLimits
from comity.mcp.protocol import SESSION_HEADER, STANDALONE, Era, Stream
from comity.servers.transports.sse import ENCODED, is_encoded
from comity.sessions.upstream import TransportAccount, TransportListener, UpstreamTransport
from comity.telemetry.tracing import Headers
from comity.toolkit.resilience import ByteBudget, Jitter, RetrySchedule

log = logging.getLogger(__name__)

DEFAULT_RETRY_SECONDS: Final = 1.0
MIN_WAIT_SECONDS: Final = 0.1
"""The least wait before a stream is opened again, so that a server cannot keep the gateway busy."""
MAX_RESUMPTIONS: Final = 8
"""How often the stream of one response is resumed after it broke."""
_STREAM_TYPE: Final = b"text/event-stream"
_MAX_SESSION_ID_LENGTH: Final = 1024
_MAX_EVENT_ID_LENGTH: Final = 1024
_FAULT_BY_STATUS: Final = {503: UPSTREAM_DOWN, 504: UPSTREAM_SLOW}

type ResponseHeaders = list[tuple[bytes, bytes]]


class ResponseOwner(Protocol):
    """The transport that a response belongs to."""

    limits: FrameLimits
    listener: TransportListener
    resumes: bool

    def on_session_started(self, session: bytes) -> None: ...
    def on_finished(self, stream: int) -> None: ...
    def can_authorize(self, reply: "UpstreamResponse", status: int) -> bool: ...
    def authorize_again(self, reply: "UpstreamResponse", status: int, challenge: str) -> None: ...
    def is_session_lost(self, status: int) -> bool: ...
    def resend_in_new_session(self, reply: "UpstreamResponse") -> None: ...
    def resume_stream(self, reply: "UpstreamResponse") -> None: ...
    def reopen_standalone(self, standing: "StandaloneStream", status: int) -> None: ...
    def send_held_back(self) -> None: ...


class UpstreamResponse:
    """The response to one request: a JSON body, or a stream of events that ends with the answer."""

    # Defaults are class attributes: every call creates one object, and most attributes stay unset.
    sending: HttpClientRequest | None = None
    last_event_id = ""
    retry_seconds = DEFAULT_RETRY_SECONDS
    _status = 0
    _size = 0
    _resumptions = 0
    _is_retried = False
    _parser: SseParser | None = None
    _byte_budget: ByteBudget | None = None
    _challenge = ""
    # The Authorization header that the request carried, and whether another one was tried.
    authorization = b""
    was_reauthorized = False

    def __init__(self, owner: ResponseOwner, stream: int, body: bytes, headers: Headers) -> None:
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
            if name == SESSION_HEADER and value and len(value) <= _MAX_SESSION_ID_LENGTH:
                self._owner.on_session_started(value)
            elif name == b"content-type" and status == 200 and value.startswith(_STREAM_TYPE):
                self._parser = SseParser(self._owner.limits.frame_bytes + 1024)
            elif name == b"content-encoding" and status == 200 and value.lower() != b"identity":
                # The transport decodes nothing, so it would misread the bytes as the answer.
                self._fail(Unavailable(ENCODED))
                return
        if status in (401, 403):
            self._challenge = challenge_in(headers)
        elif self._challenge:
            # The request was sent again. Its first refusal says nothing of this answer.
            self._challenge = ""
        if self._parser is not None and not self._resumptions:
            self._owner.listener.on_stream_opened(self.stream)

    def data(self, chunk: bytes) -> None:
        if self._parser is not None:
            self._feed(self._parser, chunk)
            return
        self._size += len(chunk)
        if self._size > self._owner.limits.frame_bytes:
            self._fail(Unavailable("the server's answer is larger than a message may be"))
        else:
            self._chunks.append(chunk)

    def ended(self) -> None:
        if self._parser is not None:
            self._on_stream_broken(None)
        elif self._status != 200 and self._is_session_lost():
            self._is_retried = True
            self._owner.resend_in_new_session(self)
        # A server of MCP 2025-03-26 sends no challenge with its 401.
        elif (self._challenge or self._status == 401) and self._owner.can_authorize(
            self, self._status
        ):
            self._owner.authorize_again(self, self._status, self._challenge)
        else:
            self._owner.on_finished(self.stream)
            self._deliver(b"".join(self._chunks))

    def failed(self, error: Unavailable) -> None:
        if error.fault is not EXHAUSTED:
            self._owner.listener.on_failure(str(error), True)
        self._on_stream_broken(error)

    def _is_session_lost(self) -> bool:
        """Whether the session was forgotten. After a resumed stream, the request may have run."""
        refused = self._owner.is_session_lost(self._status)
        return refused and not self._is_retried and not self._resumptions

    @property
    def is_unsent(self) -> bool:
        """Whether the request still waits for a connection."""
        return self.sending is not None and bool(self.sending.payload)

    def abort(self) -> None:
        if self.sending is not None:
            self.sending.abort()

    def _feed(self, parser: SseParser, chunk: bytes) -> None:
        receiver = self._owner.listener
        try:
            events = parser.feed(chunk)
        except MalformedMessage as error:
            self._fail(Unavailable(f"the server's stream is broken: {error}"))
            return
        for event in events:
            self._on_event(event)
        if self._byte_budget is not None and self.sending is not None:
            self.sending.pause_if_over_budget(self._byte_budget)
        if self._resumptions and not receiver.is_awaited(self.stream):
            # A resumed stream may stay open after its answer. Nothing more is expected there.
            self._owner.on_finished(self.stream)
            self.abort()
        elif parser.is_broken:
            self._feed(parser, b"")

    def _on_event(self, event: SseEvent) -> None:
        if event.id is not None and self._owner.resumes:
            self.last_event_id = _checked_event_id(event.id)
        if event.retry is not None:
            self.retry_seconds = event.retry / 1000
        if event.data and not self._owner.listener.on_message(event.data, self.stream, 200):
            self._byte_budget = self._byte_budget or ByteBudget()
            self._byte_budget.spend_on_noise(len(event.data))

    def _on_stream_broken(self, error: Unavailable | None) -> None:
        receiver = self._owner.listener
        if not receiver.is_awaited(self.stream):
            self._owner.on_finished(self.stream)
        elif (
            self._parser is not None and self.last_event_id and self._resumptions < MAX_RESUMPTIONS
        ):
            self._resumptions += 1
            receiver.on_stream_suspended(self.stream)
            self._owner.resume_stream(self)
        else:
            self._owner.on_finished(self.stream)
            receiver.on_stream_ended(self.stream, error)

    def _fail(self, error: Unavailable) -> None:
        self.abort()
        self._owner.on_finished(self.stream)
        self._owner.listener.on_stream_ended(self.stream, error)

    def _deliver(self, body: bytes) -> None:
        """Deliver a JSON body as the answer. Describe a refusal without a JSON body in words."""
        receiver = self._owner.listener
        if self._status == 200:
            receiver.on_message(body, self.stream, 200)
        elif (told := _refusal(body)) is not None:
            frame = jsonrpc.with_id(told, self.stream)
            # Other statuses concern the gateway's credentials or the server, not the client.
            status = self._status if self._status in (400, 404) else 200
            receiver.on_message(jsonrpc.encode_frame(frame), self.stream, status)
        elif self._status >= 500:
            receiver.on_failure(_explain(self._status), True)
        if receiver.is_awaited(self.stream):
            fault = _FAULT_BY_STATUS.get(self._status, UPSTREAM_FAILED)
            receiver.on_stream_ended(self.stream, Unavailable(_explain(self._status), fault))


class StandaloneStream:
    """The GET stream for unsolicited messages. It is opened again whenever it ends."""

    def __init__(self, owner: ResponseOwner) -> None:
        self.sending: HttpClientRequest | None = None
        self.last_event_id = ""
        self._owner = owner
        self._retry_seconds = DEFAULT_RETRY_SECONDS
        self._failures = 0
        self._status = 0
        self._parser: SseParser | None = None
        self._byte_budget: ByteBudget | None = None
        self.is_answered = False

    def _on_answered(self) -> None:
        """Note that the server answered the GET, and release the messages that waited for it."""
        if not self.is_answered:
            self.is_answered = True
            self._owner.send_held_back()

    def wait_seconds(self) -> float:
        """Return the wait that the server asked for, doubled up to five times."""
        first = timedelta(seconds=max(self._retry_seconds, MIN_WAIT_SECONDS))
        schedule = RetrySchedule(first, first * 32, jitter=Jitter(1.0, 1.0))
        return schedule.delay(self._failures + 1, 0.0).total_seconds()

    def started(self, status: int, headers: ResponseHeaders) -> None:
        self._on_answered()
        self._status = status
        streams = any(
            name == b"content-type" and value.startswith(_STREAM_TYPE) for name, value in headers
        )
        usable = status == 200 and streams and not is_encoded(headers)
        self._parser = SseParser(self._owner.limits.frame_bytes + 1024) if usable else None
        self._failures = 0 if usable else self._failures + 1

    def data(self, chunk: bytes) -> None:
        if self._parser is None:
            return
        try:
            events = self._parser.feed(chunk)
        except MalformedMessage as error:
            log.warning("The listening stream broke: %s", error)
            self.abort()
            self._failures += 1
            self._owner.reopen_standalone(self, 0)
            return
        for event in events:
            self._on_event(event)
        if self._byte_budget is not None and self.sending is not None:
            self.sending.pause_if_over_budget(self._byte_budget)
        if self._parser.is_broken:
            self.data(b"")

    def _on_event(self, event: SseEvent) -> None:
        if event.id is not None:
            self.last_event_id = _checked_event_id(event.id)
        if event.retry is not None:
            self._retry_seconds = event.retry / 1000
        if event.data and not self._owner.listener.on_message(event.data, STANDALONE, 200):
            self._byte_budget = self._byte_budget or ByteBudget()
            self._byte_budget.spend_on_noise(len(event.data))

    def ended(self) -> None:
        # A server that answers 200 without an event stream does not support this stream.
        status = 405 if self._status == 200 and self._parser is None else self._status
        self._owner.reopen_standalone(self, status)

    def failed(self, error: Unavailable) -> None:
        self._on_answered()
        self._failures += 1
        self._owner.listener.on_failure(str(error), False)
        self._owner.reopen_standalone(self, 0)

    def abort(self) -> None:
        if self.sending is not None:
            self.sending.abort()


class IgnoredResponse:
    """A response whose body is ignored. `done` completes at its end. Its session is noted."""

    def __init__(self, owner: ResponseOwner | None = None) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.named_a_session = False
        self._owner = owner

    def started(self, status: int, headers: ResponseHeaders) -> None:
        if status >= 400:
            log.info("a server answered a message with HTTP %d", status)
        elif self._owner is not None:
            for name, value in headers:
                if name == SESSION_HEADER and value and len(value) <= _MAX_SESSION_ID_LENGTH:
                    self.named_a_session = True
                    self._owner.on_session_started(value)

    def data(self, chunk: bytes) -> None:
        pass

    def ended(self) -> None:
        self._finish()

    def failed(self, error: Unavailable) -> None:
        log.info("A message was not accepted: %s", error)
        self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


NOTICE_TIMEOUT_SECONDS: Final = 2.0
"""How long a notification or response waits for the one before it."""
NOTICE_ANSWER_SECONDS: Final = 10.0
"""How long a server may take to answer a notification or response."""
MAX_OPEN_NOTICES: Final = 64
MAX_WAITING_NOTICES: Final = 1024


class PostQueue:
    """Posts notifications and responses one after the other, so that they arrive in order.

    Each is a request of its own, and requests on two connections can overtake each other. Once a
    server takes one too slowly, the waiting ones are posted without their order. A server may ask
    for any number of responses and take none, so their number and their time are limited.
    """

    def __init__(
        self,
        post: Callable[[bytes, bytes, IgnoredResponse], HttpClientRequest],
        on_overrun: Callable[[], None],
    ) -> None:
        self._post = post
        self._on_overrun = on_overrun
        self._waiting: deque[tuple[bytes, bytes, IgnoredResponse]] = deque()
        self._blocking: asyncio.Future[None] | None = None
        self._open: dict[asyncio.Future[None], HttpClientRequest] = {}
        self._unanswered: set[asyncio.Future[None]] = set()
        self._is_closed = False
        self._loop = asyncio.get_running_loop()

    def send(self, head: bytes, body: bytes) -> None:
        if self._is_closed:
            return
        if len(self._waiting) >= MAX_WAITING_NOTICES:
            self.abort()
            # Scheduled, because the sender may be reading a message of this server.
            self._loop.call_soon(self._on_overrun)
            return
        notice = IgnoredResponse()
        self._unanswered.add(notice.done)
        notice.done.add_done_callback(self._on_answered)
        self._waiting.append((head, body, notice))
        if self._blocking is None:
            self._post_next()

    async def wait(self, timeout: float | None = None) -> None:
        """Return once the server has answered all messages, or the time is over."""
        if self._unanswered:
            await asyncio.wait(list(self._unanswered), timeout=timeout)

    def abort(self) -> None:
        """Give up all messages, and end the connections on which they were sent."""
        self._is_closed = True
        self._drop_waiting()
        for notice in list(self._open):
            self._give_up(notice)

    def _drop_waiting(self) -> None:
        for _, _, notice in self._waiting:
            notice.done.set_result(None)
        self._waiting.clear()

    def _on_answered(self, done: asyncio.Future[None]) -> None:
        self._unanswered.discard(done)
        self._open.pop(done, None)
        if done is self._blocking or self._blocking is None:
            self._post_next()

    def _post_next(self) -> None:
        self._blocking = None
        if self._waiting and len(self._open) < MAX_OPEN_NOTICES:
            self._blocking = done = self._post_first()
            timer = self._loop.call_later(NOTICE_TIMEOUT_SECONDS, self._post_all, done)
            done.add_done_callback(lambda _: timer.cancel())

    def _post_all(self, slow: asyncio.Future[None]) -> None:
        if slow is self._blocking:
            self._blocking = None
            while self._waiting and len(self._open) < MAX_OPEN_NOTICES:
                self._post_first()

    def _post_first(self) -> asyncio.Future[None]:
        head, body, notice = self._waiting.popleft()
        done = notice.done
        self._open[done] = self._post(head, body, notice)
        timer = self._loop.call_later(NOTICE_ANSWER_SECONDS, self._on_timeout, done)
        done.add_done_callback(lambda _: timer.cancel())
        return done

    def _on_timeout(self, done: asyncio.Future[None]) -> None:
        if len(self._open) >= MAX_OPEN_NOTICES:
            # The server takes none of so many. It would not take those that wait either.
            log.info("A server takes no messages: %d were dropped", len(self._waiting))
            self._drop_waiting()
        self._give_up(done)

    def _give_up(self, done: asyncio.Future[None]) -> None:
        if not done.done():
            self._open[done].abort()
            done.set_result(None)


def challenge_in(headers: ResponseHeaders) -> str:
    """Return the challenges of a response as one header."""
    found = [value for name, value in headers if name == b"www-authenticate"]
    return b", ".join(found).decode("latin-1")


def _checked_event_id(event_id: str) -> str:
    """Return the event id if a header can hold it, because only then it can be resumed."""
    return event_id if event_id.isprintable() and len(event_id) <= _MAX_EVENT_ID_LENGTH else ""


def _refusal(body: bytes) -> jsonrpc.Frame | None:
    """Return a JSON-RPC error. One without an id means that the server read no request."""
    try:
        frame = jsonrpc.decode_frame(body)
    except MalformedMessage:
        return None
    return frame if frame.error is not jsonrpc.UNSET else None


def _explain(status: int) -> str:
    if status in (401, 403):
        return f"the server answered HTTP {status}: check the credentials in its headers"
    if status == 404:
        return "the server answered HTTP 404: check its URL"
    return f"the server answered HTTP {status} and no JSON-RPC answer"


CLOSE_TIMEOUT_SECONDS: Final = 1.0
"""How long to wait for pending notifications, and for the answer to DELETE, on close."""
LISTEN_TIMEOUT_SECONDS: Final = 1.0
"""How long messages are held back for the answer to the standalone GET."""
FLUSH_SECONDS: Final = 0.001
MAX_WAIT_SECONDS: Final = 30.0

_COMMON_HEADERS: Final = (
    ("accept", "application/json, text/event-stream"),
    ("content-type", "application/json"),
)


class HttpTransportFactory:
    """Creates transports to a server at a URL."""

    starts_process = False

    def __init__(
        self,
        pool: HttpConnectionPool,
        url: str,
        headers: Mapping[str, str],
        limits: FrameLimits = LIMITS,
        stream_pool: HttpConnectionPool | None = None,
    ) -> None:
        # A server at the same origin could send a late response that is taken for another server's.
        self._pool = pool.separate()
        # Streams that stay open have a pool of their own, and take no connection from calls.
        self.stream_pool = stream_pool.separate() if stream_pool else self._pool
        self._limits = limits
        self.origin, self.target = HttpOrigin.of(url)
        self._headers = tuple(headers.items())
        self.has_fixed_credentials = any(name.lower() == "authorization" for name in headers)

    def create_transport(self, era: Era) -> UpstreamTransport:
        return HttpTransport(self, self._pool, era, self._limits)

    def head(self, method: str) -> bytes:
        """Return the constant part of every request head."""
        lines = _COMMON_HEADERS if method == "POST" else (("accept", "text/event-stream"),)
        return request_head(method, self.target, self.origin, (*lines, *self._headers))


class HttpTransport:
    """One session with a legacy server, or requests without a session to a modern one."""

    has_separate_streams = True
    has_exited_cleanly = False

    def __init__(
        self,
        transport_factory: HttpTransportFactory,
        pool: HttpConnectionPool,
        era: Era,
        limits: FrameLimits,
    ) -> None:
        self.limits = limits
        self.resumes = era is Era.HANDSHAKE
        self._transport_factory = transport_factory
        self._pool = pool
        self._era = era
        self._session = b""
        self._post_head = transport_factory.head("POST")
        if era is Era.MODERN:
            self._post_head += header_line("mcp-protocol-version", protocol.LATEST_MODERN)
        self._post_in_session = self._post_head
        self._version = ""
        self._initialize_body: bytes | None = None
        self._response_by_stream: dict[int, UpstreamResponse] = {}
        self._standalone: StandaloneStream | None = None
        self._renewal: asyncio.Task[bool] | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_closed = False
        self._held_back: list[tuple[Frame, Stream, Headers]] | None = None
        self._notices = PostQueue(
            partial(pool.send, transport_factory.origin), self._on_notices_overrun
        )
        self.account: TransportAccount | None = None
        self._uses_account = False
        self.listener: TransportListener

    @property
    def has_fixed_credentials(self) -> bool:
        return self._transport_factory.has_fixed_credentials

    async def open(self, listener: TransportListener) -> None:
        self.attach(listener)
        if self.account is not None:
            await self.account.prepare()

    def attach(self, listener: TransportListener) -> None:
        self.listener = listener
        # A server that demands no sign-in costs its calls nothing.
        self._uses_account = self.account is not None and self.account.is_needed()

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        if self._held_back is not None:
            self._held_back.append((frame, stream, headers))
            return
        if frame.method == protocol.INITIALIZED and self._awaits_standalone():
            # The server may send messages once it receives this. Its stream must be open by then.
            self._held_back = [(frame, stream, headers)]
            asyncio.get_running_loop().call_later(LISTEN_TIMEOUT_SECONDS, self.send_held_back)
            return
        body = frame.encoded or jsonrpc.encode_frame(frame)
        head = self._post_in_session
        for name, value in headers:
            head += b"%b: %b\r\n" % (name, value)
        authorization = b""
        if self._uses_account:
            authorization = self._authorization(stream)
            head += _authorization_line(authorization)
        if not stream:
            if self._era is Era.HANDSHAKE or frame.method != protocol.CANCELLED:
                # In the modern era, closing the stream is the cancellation.
                self._notices.send(head, body)
            return
        if frame.method == protocol.INITIALIZE:
            self._initialize_body = body
        reply = self._response_by_stream[stream] = UpstreamResponse(self, stream, body, headers)
        if authorization:
            reply.authorization = authorization
        # A `LISTEN` request keeps its connection open, so it must not take one from the calls.
        pool = (
            self._transport_factory.stream_pool if frame.method == protocol.LISTEN else self._pool
        )
        reply.sending = pool.send(self._transport_factory.origin, head, body, reply)

    def _awaits_standalone(self) -> bool:
        return self._standalone is not None and not self._standalone.is_answered

    def send_held_back(self) -> None:
        """Send the messages that were held back, except requests that no caller awaits any more."""
        if self._standalone is not None:
            self._standalone.is_answered = True
        held, self._held_back = self._held_back or [], None
        for frame, stream, headers in held:
            if not self._is_closed and (not stream or self.listener.is_awaited(stream)):
                self.send(frame, stream, headers)

    def set_version(self, version: str) -> None:
        if self._era is Era.HANDSHAKE:
            self._version = version
            self._write_head()

    def listen(self) -> None:
        if self._era is Era.HANDSHAKE and self._standalone is None and not self._is_closed:
            self._standalone = StandaloneStream(self)
            self._send_get(self._standalone, b"")

    def pause(self, stream: Stream) -> None:
        reply = self._response_by_stream.get(stream) if stream else None
        if reply is not None and reply.sending is not None:
            reply.sending.pause()

    def resume(self, stream: Stream) -> None:
        reply = self._response_by_stream.get(stream) if stream else None
        if reply is not None and reply.sending is not None:
            reply.sending.resume()

    def drop_stream(self, stream: Stream) -> None:
        reply = self._response_by_stream.pop(stream, None) if stream else None
        if reply is not None:
            reply.abort()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._end_streams()
        # A server may fail on notifications for a session that it is ending. It may then close the
        # connection on the request that uses it next.
        await self._notices.wait(CLOSE_TIMEOUT_SECONDS)
        self._notices.abort()
        if self._session:
            farewell = IgnoredResponse()
            head = self._transport_factory.head("DELETE") + self._session_lines()
            head += _authorization_line(self._authorization())
            self._pool.send(self._transport_factory.origin, head, b"", farewell)
            await asyncio.wait([farewell.done], timeout=CLOSE_TIMEOUT_SECONDS)

    def _end_streams(self) -> None:
        self._is_closed = True
        for reply in list(self._response_by_stream.values()):
            reply.abort()
        self._response_by_stream.clear()
        if self._standalone is not None:
            self._standalone.abort()
        for task in list(self._tasks):
            task.cancel()

    def _on_notices_overrun(self) -> None:
        if not self._is_closed:
            self._end_streams()
            self.listener.on_closed("the server takes no messages")

    def stderr_lines(self) -> Sequence[str]:
        return ()

    def _has_unsent(self) -> bool:
        waiting = self._response_by_stream.values()
        return self._held_back is not None or any(each.is_unsent for each in waiting)

    async def flush(self) -> None:
        """Return once the server has taken every notification and every request is being sent.

        A caller that relays the messages of another client keeps their order by this.
        """
        async with asyncio.timeout(MAX_WAIT_SECONDS):
            # A connection does not report that it has taken a request: that would cost every call.
            while self._has_unsent():  # noqa: ASYNC110 - nothing reports it
                await asyncio.sleep(FLUSH_SECONDS)
            await self._notices.wait()

    # Events from the responses.

    def on_session_started(self, session: bytes) -> None:
        """Note the session id that the server sent."""
        self._session = session
        self._write_head()

    def on_finished(self, stream: int) -> None:
        self._response_by_stream.pop(stream, None)

    def can_authorize(self, reply: UpstreamResponse, status: int) -> bool:
        """Whether a refused request, which did not run, can be sent with another token."""
        is_spent = reply.was_reauthorized and status == 401
        return self.account is not None and not self._is_closed and not is_spent

    def authorize_again(self, reply: UpstreamResponse, status: int, challenge: str) -> None:
        """Send a refused request again with a renewed token, or fail it with the challenge."""
        self._spawn(self._authorize_again(reply, status, challenge))

    async def _authorize_again(self, reply: UpstreamResponse, status: int, challenge: str) -> None:
        assert self.account is not None
        self._uses_account = True
        try:
            authorization = await self.account.renew(
                reply.authorization,
                status,
                challenge,
                is_for_caller=self.listener.is_for_caller(reply.stream),
            )
        except Unavailable as error:
            self.on_finished(reply.stream)
            self.listener.on_stream_ended(reply.stream, error)
            return
        reply.authorization, reply.was_reauthorized = authorization, True
        if self.listener.is_awaited(reply.stream) and not self._is_closed:
            self._send_again(reply)

    def is_session_lost(self, status: int) -> bool:
        """Whether an HTTP status means that the server no longer knows this session."""
        return status == 404 and bool(self._session) and self._initialize_body is not None

    def resend_in_new_session(self, reply: UpstreamResponse) -> None:
        """Open a new session, once for all refused requests, then send the request again."""
        if self._renewal is None or self._renewal.done():
            self._renewal = self._spawn(self._open_new_session())
        self._spawn(self._resend_after(reply, self._renewal))

    def resume_stream(self, reply: UpstreamResponse) -> None:
        """Resume a broken stream after the wait that the server asked for."""
        self._spawn(self._resume(reply))

    def reopen_standalone(self, standing: StandaloneStream, status: int) -> None:
        """Open the standalone stream again, unless status 405 says that there is none."""
        if self._is_closed or status == 405:
            return
        if self.is_session_lost(status) and (self._renewal is None or self._renewal.done()):
            self._renewal = self._spawn(self._open_new_session())
        self._spawn(self._listen_later(standing))

    async def _listen_later(self, standing: StandaloneStream) -> None:
        if self._renewal is not None:
            await asyncio.wait([self._renewal])
        await asyncio.sleep(min(standing.wait_seconds(), MAX_WAIT_SECONDS))
        self._send_get(standing, _last_event(standing.last_event_id))

    async def _resume(self, reply: UpstreamResponse) -> None:
        await asyncio.sleep(min(reply.retry_seconds, MAX_WAIT_SECONDS))
        if self.listener.is_awaited(reply.stream):
            self._send_get(reply, _last_event(reply.last_event_id))

    async def _open_new_session(self) -> bool:
        """Open a new session. Return whether the server accepted."""
        assert self._initialize_body is not None
        greeting = IgnoredResponse(self)
        line = _authorization_line(self._authorization())
        self._pool.send(
            self._transport_factory.origin, self._post_head + line, self._initialize_body, greeting
        )
        await asyncio.wait([greeting.done], timeout=MAX_WAIT_SECONDS)
        if not greeting.named_a_session:
            # The server refuses the next request under the old session id: that is the next try.
            return False
        hello = jsonrpc.encode_frame(jsonrpc.make_notification(protocol.INITIALIZED))
        initialized = IgnoredResponse()
        head = self._post_in_session + _authorization_line(self._authorization())
        self._pool.send(self._transport_factory.origin, head, hello, initialized)
        await asyncio.wait([initialized.done], timeout=MAX_WAIT_SECONDS)
        log.info("The expired session at %s was opened again", self._transport_factory.origin)
        self.listener.on_session_renewed()
        return True

    async def _resend_after(self, reply: UpstreamResponse, renewal: asyncio.Task[bool]) -> None:
        if not await renewal:
            self.on_finished(reply.stream)
            reason = Unavailable("the server forgot the session and would not open another")
            self.listener.on_stream_ended(reply.stream, reason)
            return
        reply.authorization = self._authorization(reply.stream)
        self._send_again(reply)

    def _send_again(self, reply: UpstreamResponse) -> None:
        head = self._post_in_session + _authorization_line(reply.authorization)
        for name, value in reply.headers:
            head += b"%b: %b\r\n" % (name, value)
        reply.sending = self._pool.send(self._transport_factory.origin, head, reply.body, reply)

    def _send_get(self, reader: UpstreamResponse | StandaloneStream, extra: bytes) -> None:
        head = self._transport_factory.head("GET") + self._session_lines() + extra
        stream = reader.stream if isinstance(reader, UpstreamResponse) else None
        head += _authorization_line(self._authorization(stream))
        reader.sending = self._transport_factory.stream_pool.send(
            self._transport_factory.origin, head, b"", reader, may_repeat=True
        )

    def _authorization(self, stream: Stream = None) -> bytes:
        if self.account is None:
            return b""
        is_for_caller = bool(stream) and self.listener.is_for_caller(stream)
        return self.account.authorization(is_for_caller=is_for_caller)

    def _session_lines(self) -> bytes:
        lines = b"mcp-session-id: %b\r\n" % self._session if self._session else b""
        return lines + (
            header_line("mcp-protocol-version", self._version) if self._version else b""
        )

    def _write_head(self) -> None:
        self._post_in_session = self._post_head + self._session_lines()

    def _spawn[Outcome](self, work: Coroutine[None, None, Outcome]) -> asyncio.Task[Outcome]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _authorization_line(authorization: bytes) -> bytes:
    return b"authorization: %b\r\n" % authorization if authorization else b""


def _last_event(event_id: str) -> bytes:
    return b"last-event-id: %b\r\n" % event_id.encode() if event_id else b""
