"""The HTTP with SSE transport of older servers: one event stream, and a POST per message."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urljoin

from comity.errors import EXHAUSTED, MalformedMessage, Misconfigured, Unavailable
from comity.http.client.connection import HttpClientRequest
from comity.http.client.dial import HttpOrigin, request_head
from comity.http.client.pool import HttpConnectionPool
from comity.mcp import jsonrpc
from comity.mcp.framing import SseEvent, SseParser
from comity.mcp.jsonrpc import LIMITS, UNSET, Frame, FrameLimits
from comity.mcp.protocol import UNKNOWN, Era, Stream
from comity.sessions.upstream import TransportListener, UpstreamTransport
from comity.telemetry.tracing import Headers
from comity.toolkit.resilience import ByteBudget

log = logging.getLogger(__name__)

MAX_POSTS: Final = 1024
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
MAX_REPLY_BYTES: Final = 64 * 1024
"""The limit for the ignored body of a response to a POST. Beyond it, the response is dropped."""
STATUS_TIMEOUT_SECONDS: Final = 10.0
"""How long the server may take to accept a message that is not a request."""

type Refused = Callable[[int, Unavailable], None]


class SsePost:
    """One message being posted. Of the response, only the HTTP status is read."""

    __slots__ = ("_queue", "_read_bytes", "body", "is_notice", "is_settled", "sending", "stream")

    def __init__(self, posts: "SsePostQueue", body: bytes, stream: Stream, is_notice: bool) -> None:
        self.body = body
        self.stream = stream
        self.is_notice = is_notice
        self.is_settled = False
        self.sending: HttpClientRequest | None = None
        self._queue = posts
        self._read_bytes = 0

    def started(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        taken = 200 <= status < 300
        self._queue.on_settled(self, None if taken else Unavailable(explain_status(status)))

    def data(self, chunk: bytes) -> None:
        self._read_bytes += len(chunk)
        if self._read_bytes > MAX_REPLY_BYTES:
            self._queue.drop(self)

    def ended(self) -> None:
        self._queue.on_ended(self)

    def failed(self, error: Unavailable) -> None:
        self._queue.on_settled(self, error)
        self._queue.on_ended(self)


class SsePostQueue:
    """The POSTs of one connection, to the address that the server named."""

    def __init__(
        self, pool: HttpConnectionPool, origin: HttpOrigin, head: bytes, on_refused: Refused
    ) -> None:
        self._pool = pool
        self._origin = origin
        self._head = head
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()
        self._active_posts: set[SsePost] = set()
        self._waiting_posts: deque[SsePost] = deque()
        self._waiting_bytes = 0
        self._blocking_post: SsePost | None = None
        self._deadlines: dict[SsePost, asyncio.TimerHandle] = {}
        self._is_closed = False

    def send(self, body: bytes, stream: Stream, *, is_notice: bool) -> None:
        """Post a message, after the notification that is being sent, if any. Raises Unavailable."""
        if self._is_closed:
            raise Unavailable("the server's stream has ended")
        full = len(self._active_posts) + len(self._waiting_posts) >= MAX_POSTS
        if full or self._waiting_bytes + len(body) > MAX_WAITING_BYTES:
            raise Unavailable("the server takes messages too slowly; wait for some", EXHAUSTED)
        post = SsePost(self, body, stream, is_notice)
        if self._blocking_post is None and not self._waiting_posts:
            self._begin(post)
        else:
            self._waiting_posts.append(post)
            self._waiting_bytes += len(body)

    def abandon(self, stream: int) -> None:
        """Drop a request that no caller awaits: do not send it, or do not wait for its status."""
        for post in [one for one in self._waiting_posts if one.stream == stream]:
            self._waiting_posts.remove(post)
            self._waiting_bytes -= len(post.body)
        for post in [one for one in self._active_posts if one.stream == stream]:
            if not post.is_settled:
                self.drop(post)

    def close(self) -> None:
        self._is_closed = True
        self._waiting_posts.clear()
        for post in list(self._active_posts):
            self.drop(post)

    def on_settled(self, post: SsePost, error: Unavailable | None) -> None:
        """Note that the server accepted the message or refused it."""
        if post.is_settled:
            return
        post.is_settled = True
        self._release(post)
        if error is None:
            return
        if post.stream:
            self._on_refused(post.stream, error)
        else:
            log.info("A server did not accept a message: %s", error)

    def drop(self, post: SsePost) -> None:
        """Stop reading the response."""
        post.is_settled = True
        if post.sending is not None:
            post.sending.abort()
        self._release(post)
        self.on_ended(post)

    def on_ended(self, post: SsePost) -> None:
        self._active_posts.discard(post)

    def _begin(self, post: SsePost) -> None:
        self._active_posts.add(post)
        if not post.stream:
            # A request has the deadline of its caller. Other messages need a timer of their own.
            timer = self._loop.call_later(STATUS_TIMEOUT_SECONDS, self._on_timeout, post)
            self._deadlines[post] = timer
        if post.is_notice:
            self._blocking_post = post
        body, post.body = post.body, b""
        post.sending = self._pool.send(self._origin, self._head, body, post)

    def _release(self, post: SsePost) -> None:
        timer = self._deadlines.pop(post, None)
        if timer is not None:
            timer.cancel()
        if self._blocking_post is post:
            self._blocking_post = None
            # Scheduled, not called: a pool that refuses would recurse for each waiting message.
            self._loop.call_soon(self._send_next)

    def _send_next(self) -> None:
        while self._waiting_posts and self._blocking_post is None:
            post = self._waiting_posts.popleft()
            self._waiting_bytes -= len(post.body)
            self._begin(post)

    def _on_timeout(self, post: SsePost) -> None:
        log.warning("%s did not accept a message in time", self._origin)
        self.drop(post)


ENCODED: Final = "the server encoded its answer, which no request allowed: switch compression off"


def is_encoded(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether a response has a content encoding. Comity accepts none."""
    return any(
        name == b"content-encoding" and value.lower() != b"identity" for name, value in headers
    )


def explain_status(status: int) -> str:
    """Return what an unexpected HTTP status means, and what the operator should check."""
    if status in (401, 403):
        return f"the server answered HTTP {status}: check the credentials in its headers"
    if status == 404:
        return "the server answered HTTP 404: check its URL"
    if status == 405:
        return 'the server answered HTTP 405: does it speak streamable HTTP? Try type "http"'
    if 300 <= status < 400:
        return f"the server answered HTTP {status}: give the URL that it leads to"
    return f"the server answered HTTP {status}"


ENDPOINT_TIMEOUT_SECONDS: Final = 15.0
MAX_ENDPOINT_LENGTH: Final = 4096
# Streams hold their connections permanently. The other connections of the pool are for POSTs.
MAX_STREAMS: Final = 960


class SseTransportFactory:
    """Creates transports to a server at a URL that opens an event stream."""

    starts_process = False

    def __init__(
        self,
        pool: HttpConnectionPool,
        url: str,
        headers: Mapping[str, str],
        limits: FrameLimits = LIMITS,
    ) -> None:
        self.pool = pool.separate()
        self.limits = limits
        self.open_streams = 0
        self.origin, target = HttpOrigin.of(url)
        self._url = url
        self._headers = tuple(headers.items())
        accepted = (("accept", "text/event-stream"), ("cache-control", "no-store"))
        self.get_head = request_head("GET", target, self.origin, (*accepted, *self._headers))

    def create_transport(self, era: Era) -> UpstreamTransport:
        return SseTransport(self, era)

    def post_head(self, endpoint: bytes) -> bytes:
        """Return the head of a POST. Raise Unavailable if the address has another origin."""
        if len(endpoint) > MAX_ENDPOINT_LENGTH or not endpoint.isascii():
            raise Unavailable("the server named an endpoint that is no URL")
        text = endpoint.decode()
        try:
            # Checked before the join, because `urljoin` drops line breaks.
            joined = urljoin(self._url, text) if text.isprintable() else text
            origin, target = HttpOrigin.of(joined)
        except (Misconfigured, ValueError):
            raise Unavailable("the server named an endpoint that is no URL") from None
        if origin != self.origin:
            raise Unavailable(
                f"the server named an endpoint at {origin}, which is another origin than its own"
            )
        lines = (("accept", "*/*"), ("content-type", "application/json"), *self._headers)
        return request_head("POST", target, self.origin, lines)


class SseMessageStream:
    """The event stream: first the endpoint, then messages until its end."""

    def __init__(
        self, limit: int, on_message: Callable[[bytes], bool], on_ended: Callable[[str], None]
    ) -> None:
        self.endpoint: asyncio.Future[bytes | Unavailable] = (
            asyncio.get_running_loop().create_future()
        )
        self.sending: HttpClientRequest | None = None
        self._parser = SseParser(limit)
        self._on_message = on_message
        self._on_ended = on_ended
        self._ended = False
        self._byte_budget = ByteBudget()

    def started(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        kinds = [value for name, value in headers if name == b"content-type"]
        if status != 200:
            self._end(explain_status(status))
        elif is_encoded(headers):
            self._end(ENCODED)
        elif not any(kind.lower().startswith(b"text/event-stream") for kind in kinds):
            self._end("the server answered with something else than a stream: check its URL")

    def data(self, chunk: bytes) -> None:
        try:
            events = self._parser.feed(chunk)
        except MalformedMessage as error:
            self._end(f"the server's stream is broken: {error}")
            return
        for event in events:
            if self._ended:
                return
            if event.event == "endpoint" and not self.endpoint.done():
                self.endpoint.set_result(event.data)
            elif not self._is_for_a_call(event):
                # Events that mean nothing here cost as much as messages that nobody awaits.
                self._byte_budget.spend_on_noise(len(event.data))
        if self.sending is not None:
            self.sending.pause_if_over_budget(self._byte_budget)

    def _is_for_a_call(self, event: SseEvent) -> bool:
        is_message = self.endpoint.done() and event.event == "message" and event.data != b""
        return is_message and self._on_message(event.data)

    def ended(self) -> None:
        self._end("the server ended its stream")

    def failed(self, error: Unavailable) -> None:
        self._end(str(error))

    def abort(self) -> None:
        """Deliver nothing more, not even the end of the stream."""
        self._ended = True
        if self.sending is not None:
            self.sending.abort()

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self.abort()
        if self.endpoint.done():
            self._on_ended(reason)
        else:
            self.endpoint.set_result(Unavailable(reason))


class SseTransport:
    """One event stream, and POSTs to the address that it named."""

    has_separate_streams = False
    has_exited_cleanly = False

    def __init__(self, transport_factory: SseTransportFactory, era: Era) -> None:
        self._transport_factory = transport_factory
        self._era = era
        self._message_stream: SseMessageStream | None = None
        self._post_queue: SsePostQueue | None = None
        self._listener: TransportListener

    async def open(self, listener: TransportListener) -> None:
        if self._era is Era.MODERN:
            raise Unavailable("the old SSE transport does not support MCP 2026-07-28")
        if self._transport_factory.open_streams >= MAX_STREAMS:
            raise Unavailable(
                f"{self._transport_factory.origin} has too many streams open", EXHAUSTED
            )
        self._listener = listener
        self._transport_factory.open_streams += 1
        self._message_stream = SseMessageStream(
            self._transport_factory.limits.frame_bytes + 1024,
            self._on_message,
            self._on_stream_ended,
        )
        try:
            await self._find_endpoint(self._message_stream)
        except BaseException:
            self._release_stream()
            raise

    async def _find_endpoint(self, incoming: SseMessageStream) -> None:
        factory = self._transport_factory
        incoming.sending = factory.pool.send(
            factory.origin, factory.get_head, b"", incoming, may_repeat=True
        )
        try:
            async with asyncio.timeout(ENDPOINT_TIMEOUT_SECONDS):
                named = await incoming.endpoint
        except TimeoutError:
            raise Unavailable("the server opened no stream that names an endpoint") from None
        if isinstance(named, Unavailable):
            raise named
        head = factory.post_head(named)
        if self._message_stream is not None:
            self._post_queue = SsePostQueue(
                factory.pool, factory.origin, head, self._listener.on_stream_ended
            )

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        if self._post_queue is None:
            raise Unavailable("the server's stream is not open")
        is_notice = frame.method is not UNSET and frame.id is UNSET
        self._post_queue.send(jsonrpc.encode_frame(frame), stream, is_notice=is_notice)

    def set_version(self, version: str) -> None:
        """Do nothing: no message on this transport repeats the version."""

    def listen(self) -> None:
        """Do nothing: unsolicited messages arrive on the only stream there is."""

    def pause(self, stream: Stream) -> None:
        """Do nothing: other calls share the stream, so one of them cannot pause it."""

    def resume(self, stream: Stream) -> None: ...

    def drop_stream(self, stream: Stream) -> None:
        if self._post_queue is not None and stream:
            self._post_queue.abandon(stream)

    async def close(self) -> None:
        self._release_stream()

    def stderr_lines(self) -> Sequence[str]:
        return ()

    def _on_message(self, data: bytes) -> bool:
        return self._listener.on_message(data, UNKNOWN, 200)

    def _on_stream_ended(self, reason: str) -> None:
        self._release_stream()
        self._listener.on_closed(reason)

    def _release_stream(self) -> None:
        if self._message_stream is not None:
            self._message_stream.abort()
            self._message_stream = None
            self._transport_factory.open_streams -= 1
        if self._post_queue is not None:
            self._post_queue.close()
            self._post_queue = None
