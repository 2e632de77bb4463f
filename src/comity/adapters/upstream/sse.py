"""MCP over the old two-endpoint transport as a client: one stream in, POSTs out. (MCP §3.3)

The server names on its stream where messages are posted. That address has to be of the origin that
the operator wrote: anything else would send the configured tokens wherever the server likes.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urljoin

from comity.adapters.upstream.origin import Origin, request_head
from comity.adapters.upstream.pool import Pool
from comity.adapters.upstream.posts import Posts, explain
from comity.adapters.upstream.sending import Sending
from comity.ports import Carrier, Headers, Receiver
from comity.rules.allowance import Allowance
from comity.wire import jsonrpc
from comity.wire.errors import EXHAUSTED, MalformedMessage, Misconfigured, Unavailable
from comity.wire.jsonrpc import LIMITS, UNSET, Frame, Limits
from comity.wire.mcp import UNKNOWN, Era, Stream
from comity.wire.sse import EventParser

log = logging.getLogger(__name__)

ENDPOINT_SECONDS: Final = 15.0
LONGEST_ENDPOINT: Final = 4096
# Streams hold their connections for good; the rest of the pool's are for the POSTs.
MOST_STREAMS: Final = 960


class SseReach:
    """A server at a URL that opens a stream."""

    costs_a_process = False

    def __init__(
        self, pool: Pool, url: str, headers: Mapping[str, str], limits: Limits = LIMITS
    ) -> None:
        self.pool = pool
        self.limits = limits
        self.open_streams = 0
        self.origin, target = Origin.of(url)
        self._url = url
        self._headers = tuple(headers.items())
        accepted = (("accept", "text/event-stream"), ("cache-control", "no-store"))
        self.get_head = request_head("GET", target, self.origin, (*accepted, *self._headers))

    def carrier(self, era: Era) -> Carrier:
        return SseCarrier(self, era)

    def post_head(self, endpoint: bytes) -> bytes:
        """The head of a POST to where the server said; raises Unavailable if that is not here."""
        if len(endpoint) > LONGEST_ENDPOINT or not endpoint.isascii():
            raise Unavailable("the server named an endpoint that is no URL")
        text = endpoint.decode()
        try:
            # Before it is joined, because joining drops line breaks.
            joined = urljoin(self._url, text) if text.isprintable() else text
            origin, target = Origin.of(joined)
        except (Misconfigured, ValueError):
            raise Unavailable("the server named an endpoint that is no URL") from None
        if origin != self.origin:
            raise Unavailable(
                f"the server named an endpoint at {origin}, which is another origin than its own"
            )
        lines = (("accept", "*/*"), ("content-type", "application/json"), *self._headers)
        return request_head("POST", target, self.origin, lines)


class Incoming:
    """The stream: first the endpoint, then messages until its end."""

    def __init__(
        self, limit: int, heard: Callable[[bytes], bool], over: Callable[[str], None]
    ) -> None:
        self.endpoint: asyncio.Future[bytes | Unavailable] = (
            asyncio.get_running_loop().create_future()
        )
        self.sending: Sending | None = None
        self._parser = EventParser(limit)
        self._heard = heard
        self._over = over
        self._ended = False
        self._allowance = Allowance()

    def started(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        kinds = [value for name, value in headers if name == b"content-type"]
        if status != 200:
            self._end(explain(status))
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
            if not self.endpoint.done():
                if event.event == "endpoint":
                    self.endpoint.set_result(event.data)
            elif event.event == "message" and event.data and not self._heard(event.data):
                self._allowance.spend_on_noise(len(event.data))
        if self.sending is not None:
            self.sending.rest_if_spent(self._allowance)

    def ended(self) -> None:
        self._end("the server ended its stream")

    def failed(self, error: Unavailable) -> None:
        self._end(str(error))

    def abort(self) -> None:
        """Hear nothing more, not even the end."""
        self._ended = True
        if self.sending is not None:
            self.sending.abort()

    def _end(self, because: str) -> None:
        if self._ended:
            return
        self.abort()
        if self.endpoint.done():
            self._over(because)
        else:
            self.endpoint.set_result(Unavailable(because))


class SseCarrier:
    """One stream, and the address that it named."""

    tells_streams_apart = False
    ended_well = False

    def __init__(self, reach: SseReach, era: Era) -> None:
        self._reach = reach
        self._era = era
        self._incoming: Incoming | None = None
        self._posts: Posts | None = None
        self._receiver: Receiver

    async def open(self, receiver: Receiver) -> None:
        if self._era is Era.MODERN:
            raise Unavailable("the old SSE transport knows only the handshake era")
        if self._reach.open_streams >= MOST_STREAMS:
            raise Unavailable(f"{self._reach.origin} has too many streams open", EXHAUSTED)
        self._receiver = receiver
        self._reach.open_streams += 1
        self._incoming = Incoming(self._reach.limits.frame_bytes + 1024, self._heard, self._over)
        try:
            await self._find_endpoint(self._incoming)
        except BaseException:
            self._let_go()
            raise

    async def _find_endpoint(self, incoming: Incoming) -> None:
        reach = self._reach
        incoming.sending = reach.pool.send(
            reach.origin, reach.get_head, b"", incoming, may_repeat=True
        )
        try:
            async with asyncio.timeout(ENDPOINT_SECONDS):
                named = await incoming.endpoint
        except TimeoutError:
            raise Unavailable("the server opened no stream that names an endpoint") from None
        if isinstance(named, Unavailable):
            raise named
        head = reach.post_head(named)
        if self._incoming is not None:
            self._posts = Posts(reach.pool, reach.origin, head, self._receiver.stream_ended)

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        if self._posts is None:
            raise Unavailable("the server's stream is not open")
        is_notice = frame.method is not UNSET and frame.id is UNSET
        self._posts.send(jsonrpc.encode(frame), stream, is_notice=is_notice)

    def speaks(self, version: str) -> None:
        """Nothing on this transport repeats the version."""

    def listen(self) -> None:
        """What nobody asked for comes on the one stream there is."""

    def pause(self, stream: Stream) -> None:
        """Other calls share the stream, so it is never paused for one of them."""

    def resume(self, stream: Stream) -> None: ...

    def abandon(self, stream: Stream) -> None:
        if self._posts is not None and stream:
            self._posts.abandon(stream)

    async def close(self) -> None:
        self._let_go()

    def hints(self) -> Sequence[str]:
        return ()

    def _heard(self, data: bytes) -> bool:
        return self._receiver.heard(data, UNKNOWN, 200)

    def _over(self, because: str) -> None:
        self._let_go()
        self._receiver.closed(because)

    def _let_go(self) -> None:
        if self._incoming is not None:
            self._incoming.abort()
            self._incoming = None
            self._reach.open_streams -= 1
        if self._posts is not None:
            self._posts.close()
            self._posts = None
