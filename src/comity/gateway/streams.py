"""Event streams to clients, and the functions that write them to HTTP responses."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from comity.http import asgi
from comity.http.asgi import STREAM_HEADERS, Message, Receive, Send
from comity.mcp.framing import encode_comment, encode_event
from comity.sessions.client_streams import ClientStream, ResumableStream


class StreamMultiplexer:
    """Merges the messages of several calls into the one stream of a client."""

    __slots__ = ("_sources", "client_stream", "is_paused")

    def __init__(self, client_stream: ClientStream) -> None:
        self.client_stream = client_stream
        self.is_paused = False
        self._sources: set[StreamSource] = set()
        client_stream.on_throttle = self._throttle

    def __len__(self) -> int:
        return len(self._sources)

    def add_source(self) -> "StreamSource":
        inlet = StreamSource(self)
        self._sources.add(inlet)
        return inlet

    def remove_source(self, source: "StreamSource") -> None:
        self._sources.discard(source)

    def _throttle(self, paused: bool) -> None:
        """Pause or resume every source, because all of them share one reader."""
        self.is_paused = paused
        for inlet in list(self._sources):
            inlet.hold(paused)


class StreamSource(ClientStream):
    """The client stream of one call, which forwards every message to a shared stream.

    It buffers nothing, so the limits of the shared stream apply. If that stream is too full for an
    answer, the whole stream has overrun.
    """

    __slots__ = ("_multiplexer",)

    def __init__(self, multiplexer: StreamMultiplexer) -> None:
        super().__init__()
        self._multiplexer = multiplexer

    def put(self, data: bytes) -> bool:
        if self.is_final:
            return False
        if not self._multiplexer.client_stream.put(data):
            self.is_overrun = self._multiplexer.client_stream.is_overrun
            self.end()
            return False
        self.hold(self._multiplexer.is_paused)
        return True

    def finish(self, data: bytes, status: int = 200) -> None:
        if not self.is_final:
            self._multiplexer.client_stream.put(data)
            self.status = status
            self.end()

    def end(self) -> None:
        super().end()
        self._multiplexer.remove_source(self)

    def hold(self, paused: bool) -> None:
        self._set_paused(paused)


log = logging.getLogger(__name__)

RETRY_MS: Final = 500
"""The delay before a client reconnects, as the first event states it."""
SEND_TIMEOUT_SECONDS: Final = 30.0
"""A client that reads nothing for this long counts as disconnected."""
_KEEP_ALIVE_COMMENT: Final = encode_comment("still here")


class DisconnectWatcher:
    """Detects that the client disconnected, and then wakes the reader of the stream."""

    def __init__(self, receive: Receive, client_stream: ClientStream) -> None:
        self._task = asyncio.ensure_future(asgi.wait_for_disconnect(receive))
        self._task.add_done_callback(lambda _: client_stream.wake_reader())

    @property
    def is_disconnected(self) -> bool:
        return self._task.done()

    def stop(self) -> None:
        self._task.cancel()


def _encode_message(data: bytes) -> bytes:
    return encode_event(data, event="message")


async def stream_once(
    send: Send,
    receive: Receive,
    client_stream: ClientStream,
    encode: Callable[[bytes], bytes] = _encode_message,
) -> bool:
    """Write a stream that cannot be resumed, for modern clients.

    Returns False if the client disconnects before the end.
    """
    watch = DisconnectWatcher(receive, client_stream)
    try:
        await _send_head(send)
        while not watch.is_disconnected:
            for data in client_stream.take():
                await _send_body(send, encode(data))
            if client_stream.is_final and not client_stream.frames:
                await send({"type": "http.response.body", "body": b""})
                return True
            # The modern version has no resumption, so a pause of the source does not end the
            # stream.
            client_stream.is_suspended = False
            await _send_remaining(send, client_stream)
        return False
    finally:
        watch.stop()


async def stream_resumable(
    send: Send, receive: Receive, replay: ResumableStream, after: int, prime: bool
) -> None:
    """Write a stream that its session keeps.

    After a disconnect the session holds the remaining messages until the client resumes.
    """
    client_stream, watch = replay.client_stream, DisconnectWatcher(receive, replay.client_stream)
    reader = replay.attach()
    try:
        await _send_head(send)
        if prime:
            await _send_body(send, encode_event(b"", id=replay.record(b""), retry=RETRY_MS))
            after = replay.last_event_number
        for event_id, data in replay.events_after(after):
            await _send_body(
                send, encode_event(data, id=event_id, event="message" if data else None)
            )
        while not watch.is_disconnected and replay.reader_number == reader:
            data = replay.next()
            if data is not None:
                await _send_body(send, encode_event(data, id=replay.record(data), event="message"))
            elif client_stream.is_suspended or client_stream.is_final:
                client_stream.is_suspended = False
                break
            else:
                await _send_remaining(send, client_stream)
        await send({"type": "http.response.body", "body": b""})
    finally:
        watch.stop()


async def stream_shared(
    send: Send, receive: Receive, client_stream: ClientStream, opening: bytes
) -> None:
    """Write the only stream of a client. When it ends, all of the client's calls end."""
    watch, send = DisconnectWatcher(receive, client_stream), _with_timeout(send)
    try:
        await _send_head(send)
        await _send_body(send, opening)
        while not watch.is_disconnected:
            for data in client_stream.take():
                await _send_body(send, encode_event(data, event="message"))
            if client_stream.is_final and not client_stream.frames:
                await send({"type": "http.response.body", "body": b""})
                return
            await _send_remaining(send, client_stream)
    except TimeoutError:
        log.warning("A client stopped reading its stream. It is closed.")
    finally:
        watch.stop()


def _with_timeout(send: Send) -> Send:
    """Return a `send` that raises TimeoutError if the client reads nothing for SEND_SECONDS."""

    async def bounded(message: Message) -> None:
        async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
            await send(message)

    return bounded


async def _send_head(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    await _send_body(send, b"")


async def _send_body(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _send_remaining(send: Send, client_stream: ClientStream) -> None:
    await client_stream.wait()
    if client_stream.is_nudged:
        client_stream.is_nudged = False
        if not client_stream.frames and not client_stream.is_final:
            await _send_body(send, _KEEP_ALIVE_COMMENT)
