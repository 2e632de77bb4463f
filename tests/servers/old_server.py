"""A scripted server of the old SSE transport, and a receiver that notes what it hears."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from comity.errors import Unavailable
from comity.mcp.jsonrpc import LIMITS, FrameLimits
from comity.mcp.protocol import Era, Stream
from comity.servers.transports.sse import SseTransport, SseTransportFactory
from comity.sessions.upstream import UpstreamTransport
from tests.support.http_script import Visit, pooled, serving

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
ACCEPTED = b"HTTP/1.1 202 Accepted\r\nContent-Length: 8\r\n\r\nAccepted"
ENDPOINT = b"event: endpoint\ndata: /messages?session_id=s3cret\n\n"
TOKEN = "Bearer t0ken"


class Listener:
    """The receiver of a carrier's messages."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[tuple[bytes, Stream]] = asyncio.Queue()
        self.endings: asyncio.Queue[tuple[Stream, Unavailable | None]] = asyncio.Queue()
        self.reasons: list[str] = []
        self.gone = asyncio.Event()

    def on_message(self, data: bytes, stream: Stream, status: int) -> bool:
        assert status == 200
        self.messages.put_nowait((data, stream))
        return b'"method"' not in data

    def on_stream_opened(self, stream: Stream) -> None:
        raise AssertionError("this transport has one stream for all")

    def on_stream_ended(self, stream: Stream, because: Unavailable | None) -> None:
        self.endings.put_nowait((stream, because))

    def on_stream_suspended(self, stream: Stream) -> None:
        raise AssertionError("this transport resumes nothing")

    def is_for_caller(self, stream: Stream) -> bool:
        return True

    def is_awaited(self, stream: Stream) -> bool:
        return True

    def on_session_renewed(self) -> None:
        raise AssertionError("this transport has no sessions to renew")

    def on_failure(self, reason: str, is_in_call: bool) -> None:
        raise AssertionError("on this transport the end of the stream tells it")

    def on_closed(self, reason: str) -> None:
        self.reasons.append(reason)
        self.gone.set()


@dataclass
class OldServer:
    """Says `opening` on its stream, and answers each POST with what `reply` holds next."""

    opening: bytes = STREAM_HEAD + ENDPOINT
    url: str = ""
    limits: FrameLimits = LIMITS
    requests: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue[bytes])
    replies: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue[bytes])
    streams: list[Visit] = field(default_factory=list[Visit])
    left: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    reach: SseTransportFactory | None = None

    async def script(self, visit: Visit) -> None:
        while request := await visit.request():
            self.requests.put_nowait(request)
            if request.startswith(b"GET "):
                self.streams.append(visit)
                await visit.say(self.opening)
                await visit.left()
                self.left.set()
                return
            await visit.say(await self.replies.get())
        self.hung_up.set()

    async def say(self, data: bytes) -> None:
        await self.streams[-1].say(data)

    async def asked(self, times: int) -> None:
        """Until that many requests have come."""
        for _ in range(times):
            await self.requests.get()

    def take_all(self) -> None:
        for _ in range(100):
            self.replies.put_nowait(ACCEPTED)

    def carrier(self, era: Era = Era.HANDSHAKE) -> UpstreamTransport:
        assert self.reach is not None
        return self.reach.create_transport(era)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[tuple[UpstreamTransport, Listener]]:
        carrier, listener = self.carrier(), Listener()
        await carrier.open(listener)
        assert isinstance(carrier, SseTransport)
        try:
            yield carrier, listener
        finally:
            await carrier.close()


@asynccontextmanager
async def old_server(
    opening: bytes = STREAM_HEAD + ENDPOINT, limits: FrameLimits = LIMITS
) -> AsyncGenerator[OldServer]:
    """A server that runs, and a reach that leads to it."""
    server = OldServer(opening)
    async with serving(server.script) as listening, pooled() as pool:
        server.url = f"{listening.origin}/sse?tenant=a"
        headers = {"authorization": TOKEN}
        server.reach = SseTransportFactory(pool, server.url, headers, limits)
        yield server
