"""One stream between two nodes, as each of its ends knows it: what came, and what may still go.

Rule 1: pieces come in order and without a gap, or the stream has failed.
Rule 2: no more than WINDOW bytes are on their way or unread, however slow the reader is.
Rule 3: a stream ends once: by its end, its failure, or because its reader wants no more.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Self

from comity.wire.carried import Act, Piece
from comity.wire.errors import CUT_OFF, EXHAUSTED, TIMEOUT, Unavailable

WINDOW: Final = 1024 * 1024

type Say = Callable[[Act, int], None]
"""Says something of one stream to its other end: what it is, and how much."""


class Counted:
    """How much was said and heard on a stream, by which a loss is found."""

    __slots__ = ("heard", "peer", "said")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.said = 0
        self.heard = 0

    def takes(self, piece: Piece) -> bool:
        """Whether this is the next piece; else one was lost."""
        if piece.number != self.heard:
            return False
        self.heard += 1
        return True

    def next(self) -> int:
        self.said += 1
        return self.said - 1


class Incoming(Counted):
    """The end that reads: gives whole messages, in order."""

    __slots__ = (
        *("_credited", "_error", "_final", "_forget", "_most", "_queue", "_say", "_taken"),
        *("_until", "_waiter"),
    )

    def __init__(
        self,
        peer: str,
        say: Say,
        forget: Callable[[], object],
        most_bytes: int,
        until: float | None,
    ) -> None:
        super().__init__(peer)
        self._say = say
        self._forget = forget
        self._most = most_bytes
        self._until = until
        self._queue: deque[tuple[bytes, bool]] = deque()
        self._taken = 0
        self._credited = 0
        self._final = False
        self._error: Unavailable | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, data: bytes, has_more: bool) -> None:
        if not self._final:
            self._queue.append((data, has_more))
            self._wake()

    def end(self, error: Unavailable | None = None) -> None:
        """Nothing more will come; what came before is still read."""
        if not self._final:
            self._final, self._error = True, error
            self._forget()
            self._wake()

    def close(self, because: Unavailable | None = None) -> None:
        """Want no more of it; the other end is told, unless it has ended by itself."""
        if not self._final:
            self._say(Act.CANCEL, 0)
            self.end(because or Unavailable("nobody reads it any more"))
        if because is None:
            self._queue.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next message. Unavailable where there is none and should be."""
        whole: list[bytes] = []
        size, has_more = 0, True
        while has_more:
            while not self._queue:
                if self._final:
                    raise self._error or self._premature(whole)
                await self._wait()
            data, has_more = self._queue.popleft()
            size += len(data)
            self._take(len(data))
            if size > self._most:
                self.close()
                raise Unavailable("the other node sent more than a message may hold", EXHAUSTED)
            whole.append(data)
        return whole[0] if len(whole) == 1 else b"".join(whole)

    def _premature(self, whole: list[bytes]) -> Exception:
        if whole:
            return Unavailable("the other node ended amid a message", CUT_OFF)
        return StopAsyncIteration()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        try:
            async with asyncio.timeout_at(self._until):
                await self._waiter
        except TimeoutError:
            self.close()
            raise Unavailable("the other node did not answer in time", TIMEOUT) from None
        finally:
            self._waiter = None

    def _take(self, size: int) -> None:
        self._taken += size
        if self._taken - self._credited >= WINDOW // 4 and not self._final:
            self._credited = self._taken
            self._say(Act.CREDIT, self._taken)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Outgoing(Counted):
    """The end that answers: waits where the reader is slow."""

    __slots__ = ("_credit", "_is_unread", "_sent", "_waiter", "body", "size", "work")

    def __init__(self, peer: str) -> None:
        super().__init__(peer)
        # What is asked, until it is there as a whole; then the work on it.
        self.body: list[bytes] = []
        self.size = 0
        self.work: asyncio.Task[None] | None = None
        self._sent = 0
        self._credit = 0
        self._is_unread = False
        self._waiter: asyncio.Future[None] | None = None

    def credit(self, taken: int) -> None:
        self._credit = max(self._credit, min(taken, self._sent))
        self._wake()

    def stop(self) -> None:
        """The reader wants no more, or is gone; work that goes on all the same is told so."""
        self._is_unread = True
        self._wake()
        if self.work is not None:
            self.work.cancel()

    async def room_for(self, size: int) -> None:
        """Until so much more may be on its way; what is more than that goes alone. Raises."""
        while self._sent > self._credit and self._sent - self._credit + size > WINDOW:
            if self._is_unread:
                break
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._is_unread:
            raise Unavailable("nobody reads it any more")
        self._sent += size

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
