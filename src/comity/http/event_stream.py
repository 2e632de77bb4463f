"""Event streams of the operator API: one reader, and the changes that it has not got yet."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from typing import Final, Protocol

from comity.errors import MalformedMessage, Unavailable
from comity.http import asgi
from comity.http.asgi import STREAM_HEADERS, Message, Receive, Scope, Send
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor
from comity.mcp.framing import encode_comment, encode_event

SEND_TIMEOUT_SECONDS: Final = 30.0
RETRY_MS: Final = 1000
CHECK_INTERVAL_SECONDS: Final = 1.0
CHECKS_PER_KEEP_ALIVE: Final = 15

type Recognise = Callable[[Scope, dict[bytes, bytes]], Awaitable[Actor]]
"""Returns the actor of a request. Raises MalformedMessage or Unavailable without access."""

type SendChanges = Callable[[Actor], Awaitable[bool]]
"""Sends the unsent changes that an actor may see. Returns whether there were any."""


class ChangeBuffer(Protocol):
    """The unsent changes of one reader."""

    @property
    def is_over(self) -> bool: ...
    @property
    def changed(self) -> asyncio.Event: ...
    def end(self) -> None: ...


class EventStreamWriter:
    """Writes one event stream. It gives up a reader that leaves the stream full for too long.

    Each method raises TimeoutError for such a reader.
    """

    def __init__(self, send: Send) -> None:
        self._send = send

    async def begin(self) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
        await self._send_with_timeout(head)
        await self._send_body(b"retry: %d\n\n" % RETRY_MS)

    async def send_event(self, content: object, name: str = "") -> None:
        """Send one event. Without a name it is a message, the usual event of a browser."""
        await self.send_events([content], name)

    async def send_events(self, contents: list[object], name: str = "") -> None:
        """Send several events in one piece."""
        frames = [encode_event(bytes(jsonrpc.to_raw(each)), event=name) for each in contents]
        await self._send_body(b"".join(frames))

    async def keep_alive(self) -> None:
        await self._send_body(encode_comment("still here"))

    async def end(self) -> None:
        await self._send_with_timeout({"type": "http.response.body", "body": b""})

    async def _send_body(self, data: bytes) -> None:
        await self._send_with_timeout(
            {"type": "http.response.body", "body": data, "more_body": True}
        )

    async def _send_with_timeout(self, message: Message) -> None:
        async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
            await self._send(message)


@contextlib.contextmanager
def ended_by_disconnect(receive: Receive, buffer: ChangeBuffer) -> Generator[None]:
    """End a buffer when its reader leaves."""
    gone = asyncio.ensure_future(asgi.wait_for_disconnect(receive))
    gone.add_done_callback(lambda _: buffer.end())
    try:
        yield
    finally:
        gone.cancel()


async def send_until_over(
    buffer: ChangeBuffer,
    writer: EventStreamWriter,
    recognise: Callable[[], Awaitable[Actor]],
    send_changes: SendChanges,
) -> None:
    """Send changes until the buffer is over or its reader has no access any more.

    The access is checked again before each sending, and at least every second.
    """
    quiet = 0
    while not buffer.is_over:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECK_INTERVAL_SECONDS):
                await buffer.changed.wait()
        try:
            actor = await recognise()
        except (MalformedMessage, Unavailable) as refused:
            await writer.send_event({"reason": str(refused)}, "end")
            break
        quiet = 0 if await send_changes(actor) else quiet + 1
        if quiet >= CHECKS_PER_KEEP_ALIVE:
            quiet = 0
            await writer.keep_alive()
    await writer.end()
