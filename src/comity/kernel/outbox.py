"""What waits to be said on one stream to a client: bounded, in order, with one reader."""

import asyncio
from collections.abc import Callable
from typing import Final

from comity.ports import Trace
from comity.rules.refusals import AtRegistry
from comity.wire.parties import NOBODY, Actor

MOST_FRAMES: Final = 1024
MOST_BYTES: Final = 16 * 1024 * 1024


class Outbox:
    """A queue that never grows past its bounds and never makes the writer wait.

    At half its bounds it asks the source to pause, where the source can; past them it is
    `overrun`: the reader is too slow, its stream ends, and nobody else's is touched.
    """

    # Defaults stand on the class: one of these is made for every call, and most stay untouched.
    final = False
    overrun = False
    nudged = False
    streaming = False
    suspended = False
    status = 200
    throttle: Callable[[bool], None] | None = None
    # The trace of the call that is answered here: what its door was told of it, or its record.
    trace: Trace | None = None
    # Who reads it, and so who asks: what its door has made out.
    actor: Actor = NOBODY
    # Whether it is read at the registry's face, where refusals have numbers of their own.
    registry: AtRegistry | None = None
    # From where on the source is asked to pause; sooner for what comes piece by piece.
    pause_frames = MOST_FRAMES // 2
    pause_bytes = MOST_BYTES // 2
    _paused = False
    _size = 0
    _waiter: asyncio.Future[None] | None = None
    # Called in the reader's stead, once, when there is something for it.
    on_ready: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    @property
    def size(self) -> int:
        """How many bytes wait to be read."""
        return self._size

    def has_room_for(self, size: int) -> bool:
        """Whether a piece can wait here too, of which one more or less does not matter."""
        most, bulk = 2 * self.pause_frames, 2 * self.pause_bytes
        return len(self.frames) < most and self._size + size <= bulk

    def put(self, data: bytes) -> bool:
        """Queue one message; False if the reader has fallen too far behind."""
        if self.final:
            return False
        if len(self.frames) >= MOST_FRAMES or self._size + len(data) > MOST_BYTES:
            self.overrun = True
            self.end()
            return False
        self.frames.append(data)
        self._size += len(data)
        if len(self.frames) > self.pause_frames or self._size > self.pause_bytes:
            self._throttle(True)
        self._wake()
        return True

    def finish(self, data: bytes, status: int = 200) -> None:
        """Queue the last message; an answer is never refused for want of room."""
        if not self.final:
            self.frames.append(data)
            self.status = status
            self.final = True
            if self.on_ready is not None:
                self._ready()
            elif self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    def end(self) -> None:
        """Nothing more will come."""
        self.final = True
        self._wake()

    def stream(self) -> None:
        """The answer will come as a stream: let the reader begin one."""
        self.streaming = True
        self._wake()

    def suspend(self) -> None:
        """The source closed its stream for now: let the reader close its own and come back."""
        self.suspended = True
        self._wake()

    def nudge(self) -> None:
        """Wake the reader though there is nothing to read, so that it shows signs of life."""
        self.nudged = True
        self._wake()

    def take(self) -> list[bytes]:
        """All that waits."""
        taken, self.frames = self.frames, []
        self._size = 0
        self._throttle(False)
        return taken

    async def wait(self) -> None:
        """Until there is something to take, the stream begins or ends, or a nudge."""
        if not (self.frames or self.final or self.nudged or self.suspended):
            await self._sleep()

    async def until_final(self) -> None:
        """Until nothing more will come, whatever else happens."""
        while not self.final:
            await self._sleep()

    def _sleep(self) -> asyncio.Future[None]:
        """A reader sleeps; one that took the stream over later has the place."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def _throttle(self, on: bool) -> None:
        if self.throttle is not None and on is not self._paused:
            self._paused = on
            self.throttle(on)

    def _ready(self) -> None:
        told, self.on_ready = self.on_ready, None
        if told is not None:
            told()

    def _wake(self) -> None:
        if self.on_ready is not None:
            self._ready()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
