"""Messages that wait for a client: a bounded queue and a resumable stream."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from comity.mcp.actors import ANONYMOUS, Actor
from comity.mcp.refusals import RegistryContext
from comity.telemetry.tracing import CallTrace

MAX_QUEUED_FRAMES: Final = 1024
MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024


class ClientStream:
    """A bounded queue of messages to a client, whose writers never wait.

    At half its limits it asks the source to pause, if the source can. Beyond its limits it is
    `is_overrun`: the client reads too slowly, so this stream ends. Other streams are not affected.
    """

    # Defaults are class attributes, because every call creates an instance and most stay unchanged.
    is_final = False
    is_overrun = False
    is_nudged = False
    is_streaming = False
    is_suspended = False
    status = 200
    on_throttle: Callable[[bool], None] | None = None
    # The trace of the call that is answered here: from the client's headers, or its record.
    trace: CallTrace | None = None
    # The authenticated actor of the request.
    actor: Actor = ANONYMOUS
    # The context of the registry endpoint, whose refusals have their own status codes.
    registry: RegistryContext | None = None
    # The source must pause beyond these amounts. They are lower for results in chunks.
    pause_frames = MAX_QUEUED_FRAMES // 2
    pause_bytes = MAX_QUEUED_BYTES // 2
    _is_paused = False
    _size = 0
    _waiter: asyncio.Future[None] | None = None
    # Called once, in place of waking a reader, when there is something to read.
    on_ready: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    @property
    def size(self) -> int:
        """The number of bytes that wait to be read."""
        return self._size

    def has_room_for(self, size: int) -> bool:
        """Return whether the queue can take a message whose loss does no harm."""
        most, bulk = 2 * self.pause_frames, 2 * self.pause_bytes
        return len(self.frames) < most and self._size + size <= bulk

    def put(self, data: bytes) -> bool:
        """Queue one message. Return False if the stream is over or the client is too far behind."""
        if self.is_final:
            return False
        if len(self.frames) >= MAX_QUEUED_FRAMES or self._size + len(data) > MAX_QUEUED_BYTES:
            self.is_overrun = True
            self.end()
            return False
        self.frames.append(data)
        self._size += len(data)
        if len(self.frames) > self.pause_frames or self._size > self.pause_bytes:
            self._set_paused(True)
        self._wake()
        return True

    def finish(self, data: bytes, status: int = 200) -> None:
        """Queue the last message. An answer is accepted even beyond the limits."""
        if not self.is_final:
            self.frames.append(data)
            self.status = status
            self.is_final = True
            on_ready, self.on_ready = self.on_ready, None
            if on_ready is not None:
                on_ready()
            elif self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    def end(self) -> None:
        """Mark the stream as ended and wake its reader."""
        self.is_final = True
        self._wake()

    def stream(self) -> None:
        """Tell the reader to begin an event stream, because the answer is a stream."""
        self.is_streaming = True
        self._wake()

    def suspend(self) -> None:
        """Tell the reader to close its stream and let the client resume later.

        The source has closed its own stream for now.
        """
        self.is_suspended = True
        self._wake()

    def wake_reader(self) -> None:
        """Wake the reader without a message, so that it can write a keep-alive comment."""
        self.is_nudged = True
        self._wake()

    def take(self) -> list[bytes]:
        """Return all waiting messages, and let the source continue."""
        taken, self.frames = self.frames, []
        self._size = 0
        self._set_paused(False)
        return taken

    async def wait(self) -> None:
        """Wait for a message, the start or the end of the stream, or a nudge."""
        if not (self.frames or self.is_final or self.is_nudged or self.is_suspended):
            await self._next_event()

    async def wait_until_final(self) -> None:
        """Wait until the stream is final, whatever else happens."""
        while not self.is_final:
            await self._next_event()

    def _next_event(self) -> asyncio.Future[None]:
        """Return a future that the next event completes.

        Only the latest reader waits, since it replaces an earlier one.
        """
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def _set_paused(self, on: bool) -> None:
        if self.on_throttle is not None and on is not self._is_paused:
            self._is_paused = on
            self.on_throttle(on)

    def _wake(self) -> None:
        on_ready, self.on_ready = self.on_ready, None
        if on_ready is not None:
            on_ready()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


MAX_REPLAY_EVENTS: Final = 256
"""The most events that a stream keeps for a replay."""
MAX_REPLAY_BYTES: Final = 1024 * 1024
"""The most bytes of events that a stream keeps for a replay."""


class ResumableStream:
    """The events of one stream: those sent recently, and those still to be sent.

    Only the newest reader receives events; an earlier reader stops. An event id has the form
    `stream-number`, so that it names its stream within the session.
    """

    __slots__ = (
        "_replay_events",
        "_size",
        "_unsent",
        "client_stream",
        "last_event_number",
        "number",
        "reader_number",
    )

    def __init__(self, number: int, client_stream: ClientStream) -> None:
        self.number = number
        self.client_stream = client_stream
        self.reader_number = 0
        self.last_event_number = 0
        self._size = 0
        self._replay_events: deque[tuple[int, bytes]] = deque()
        # Messages taken from the client stream and not yet sent. The next one is at the end.
        self._unsent: list[bytes] = []

    def attach(self) -> int:
        """Become the reader. An earlier reader wakes and finds that it was replaced."""
        if self.reader_number:
            self.client_stream.wake_reader()
        self.reader_number += 1
        return self.reader_number

    def next(self) -> bytes | None:
        """Return the next message to send, or None.

        Messages that a blocked reader did not send remain for the next reader.
        """
        if not self._unsent and self.client_stream.frames:
            self._unsent = self.client_stream.take()
            self._unsent.reverse()
        return self._unsent.pop() if self._unsent else None

    def record(self, data: bytes) -> str:
        """Assign the next event id to a message and keep the message for a replay."""
        self.last_event_number += 1
        self._replay_events.append((self.last_event_number, data))
        self._size += len(data)
        while len(self._replay_events) > MAX_REPLAY_EVENTS or self._size > MAX_REPLAY_BYTES:
            self._size -= len(self._replay_events.popleft()[1])
        return f"{self.number}-{self.last_event_number}"

    def events_after(self, number: int) -> list[tuple[str, bytes]]:
        """Return the kept events after that number."""
        return [
            (f"{self.number}-{sent}", data) for sent, data in self._replay_events if sent > number
        ]


def parse_event_id(event_id: str) -> tuple[int, int] | None:
    """Return the stream and the number in an event id, or None if the id is not one of ours."""
    stream, dash, number = event_id.partition("-")
    if not dash or not (stream.isascii() and stream.isdigit() and len(stream) < 16):
        return None
    if not (number.isascii() and number.isdigit() and len(number) < 16):
        return None
    return int(stream), int(number)
