"""What comes to an agent piece by piece: the result of a call, and the events of a subscription."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, Self

from comity.sdk.agent_words import Called, Happened, Piece, Progress, Refused

MOST_PIECES: Final = 64
MOST_EVENTS: Final = 1_000

type Told = Piece | Progress


class Stream:
    """A call on its way: iterate over what it tells, then take its `result`.

    Pieces that nobody takes hold up the reading, and so what is kept here is bounded; the whole
    result comes in any case. Use it in an `async with`, which cancels a call that is left early.
    """

    def __init__(self, cancel: Callable[[str], Awaitable[dict[str, Any] | Refused]]) -> None:
        self._cancel = cancel
        self._told: asyncio.Queue[Told | None] = asyncio.Queue(MOST_PIECES)
        self._running: asyncio.Task[Called | Refused] | None = None
        self._is_left = False

    def begin(self, running: "asyncio.Task[Called | Refused]") -> Self:
        self._running = running
        running.add_done_callback(lambda _: self._end())
        return self

    async def take(self, told: Told) -> None:
        if not self._is_left:
            await self._told.put(told)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Told:
        if self._is_left or (self._task.done() and self._told.empty()):
            raise StopAsyncIteration
        told = await self._told.get()
        if told is None:
            raise StopAsyncIteration
        return told

    async def result(self) -> Called | Refused:
        """The whole answer; pieces that were not taken are let go. Raises as `call` does."""
        self._leave()
        return await self._task

    async def cancel(self, reason: str = "user_cancelled") -> tuple[dict[str, Any], ...]:
        """End the call, and give the content that there was by then. (MGP §12.7)"""
        self._leave()
        answer = await self._cancel(reason)
        if isinstance(answer, Refused):
            return ()
        partial: dict[str, Any] = answer.get("partial_result") or {}
        return tuple(partial.get("content") or ())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._task.done():
            await self.cancel()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def _task(self) -> "asyncio.Task[Called | Refused]":
        assert self._running is not None, "a stream begins with its call"
        return self._running

    def _leave(self) -> None:
        """Let go what waits, and whoever waits to give more."""
        self._is_left = True
        while not self._told.empty():
            self._told.get_nowait()

    def _end(self) -> None:
        if not self._told.full():
            self._told.put_nowait(None)


class Subscription:
    """The events of one subscription; iterate over it, in an `async with` that ends it.

    Whoever takes them too slowly loses the oldest, and finds how many in the next one.
    """

    def __init__(self, leave: Callable[["Subscription"], Awaitable[None]]) -> None:
        self.id = ""
        self.channels: tuple[str, ...] = ()
        self.unsupported: tuple[str, ...] = ()
        self._leave = leave
        self._waiting: deque[Happened] = deque()
        self._missed = 0
        self._news = asyncio.Event()

    def give(self, event: Happened) -> None:
        self._waiting.append(event)
        if len(self._waiting) > MOST_EVENTS:
            self._waiting.popleft()
            self._missed += 1
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Happened:
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
        event, missed = self._waiting.popleft(), self._missed
        self._missed = 0
        return replace(event, missed=missed) if missed else event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave(self)
