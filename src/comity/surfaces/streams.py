"""Streams of server-sent events to clients: begun, kept alive, broken off, taken up again."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from comity.kernel.outbox import Outbox
from comity.kernel.replay import Replay
from comity.surfaces.doorway import STREAM_HEADERS, Message, Receive, Send
from comity.wire.sse import encode_comment, encode_event

log = logging.getLogger(__name__)

RETRY_MS: Final = 500
SEND_SECONDS: Final = 30.0
_SIGN_OF_LIFE: Final = encode_comment("still here")


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Watch:
    """Tells whether the client has gone, and wakes the stream's reader when it does."""

    def __init__(self, receive: Receive, outbox: Outbox) -> None:
        self._task = asyncio.ensure_future(_until_gone(receive))
        self._task.add_done_callback(lambda _: outbox.nudge())

    @property
    def gone(self) -> bool:
        return self._task.done()

    def stop(self) -> None:
        self._task.cancel()


def _as_message(data: bytes) -> bytes:
    return encode_event(data, event="message")


async def stream_once(
    send: Send, receive: Receive, outbox: Outbox, say: Callable[[bytes], bytes] = _as_message
) -> bool:
    """A stream without resumption (modern era); False if the client left before its end."""
    watch = Watch(receive, outbox)
    try:
        await _begin(send)
        while not watch.gone:
            for data in outbox.take():
                await _body(send, say(data))
            if outbox.final and not outbox.frames:
                await send({"type": "http.response.body", "body": b""})
                return True
            # There is nothing to come back to in this era: a pause of the source is only silence.
            outbox.suspended = False
            await _rest(send, outbox)
        return False
    finally:
        watch.stop()


async def stream_kept(
    send: Send, receive: Receive, replay: Replay, after: int, prime: bool
) -> None:
    """A stream that its session keeps: on a break the rest waits for the client to come back."""
    outbox, watch = replay.outbox, Watch(receive, replay.outbox)
    reader = replay.attach()
    try:
        await _begin(send)
        if prime:
            await _body(send, encode_event(b"", id=replay.record(b""), retry=RETRY_MS))
            after = replay.sent
        for event_id, data in replay.after(after):
            await _body(send, encode_event(data, id=event_id, event="message" if data else None))
        while not watch.gone and replay.reader == reader:
            data = replay.next()
            if data is not None:
                await _body(send, encode_event(data, id=replay.record(data), event="message"))
            elif outbox.suspended or outbox.final:
                outbox.suspended = False
                break
            else:
                await _rest(send, outbox)
        await send({"type": "http.response.body", "body": b""})
    finally:
        watch.stop()


async def stream_shared(send: Send, receive: Receive, outbox: Outbox, opening: bytes) -> None:
    """The only stream of a client, with whose end all of the client's calls end."""
    watch, send = Watch(receive, outbox), _within_bounds(send)
    try:
        await _begin(send)
        await _body(send, opening)
        while not watch.gone:
            for data in outbox.take():
                await _body(send, encode_event(data, event="message"))
            if outbox.final and not outbox.frames:
                await send({"type": "http.response.body", "body": b""})
                return
            await _rest(send, outbox)
    except TimeoutError:
        log.warning("a client has stopped reading its stream; it is ended")
    finally:
        watch.stop()


def _within_bounds(send: Send) -> Send:
    """A reader that leaves the connection full for this long is taken to be gone."""

    async def bounded(message: Message) -> None:
        async with asyncio.timeout(SEND_SECONDS):
            await send(message)

    return bounded


async def _begin(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    await _body(send, b"")


async def _body(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _rest(send: Send, outbox: Outbox) -> None:
    await outbox.wait()
    if outbox.nudged:
        outbox.nudged = False
        if not outbox.frames and not outbox.final:
            await _body(send, _SIGN_OF_LIFE)
