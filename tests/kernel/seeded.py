"""A loop in which a seed decides what runs next, and time passes only when nothing else can."""

import asyncio
import heapq
from asyncio import Handle, TimerHandle
from collections.abc import Callable, Coroutine
from contextvars import Context
from random import Random
from typing import Any, override

STEPS = 20_000
"""More than this is taken for work that never ends."""


class SeededLoop(asyncio.AbstractEventLoop):
    """Of all that is ready any may be next, so a task can be overtaken wherever it waits."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311  # it has to be the same each time
        self._now = 0.0
        self._ready: list[Handle] = []
        self._later: list[tuple[float, int, TimerHandle]] = []
        self._number = 0
        self.failures: list[dict[str, Any]] = []

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(work)
            for _ in range(STEPS):
                if task.done():
                    return task.result()
                self._step()
            raise AssertionError(f"not done after {STEPS} steps")
        finally:
            asyncio._set_running_loop(None)

    def _step(self) -> None:
        while self._later and (self._later[0][0] <= self._now or not self._ready):
            when, _, handle = heapq.heappop(self._later)
            if not handle.cancelled():
                self._now = max(self._now, when)
                self._ready.append(handle)
        assert self._ready, "everybody waits, and nothing will ever happen"
        chosen = self.random.randrange(len(self._ready))
        self._ready[chosen], self._ready[-1] = self._ready[-1], self._ready[chosen]
        handle = self._ready.pop()
        if not handle.cancelled():
            handle._run()

    # What asyncio asks of a loop.

    @override
    def time(self) -> float:
        return self._now

    @override
    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    @override
    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    @override
    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> TimerHandle:
        handle = TimerHandle(when, callback, args, self, context)
        self._number += 1
        heapq.heappush(self._later, (when, self._number, handle))
        return handle

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """It is passed over when its time comes."""

    @override
    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    @override
    def create_task(self, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **kwargs)

    @override
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)

    @override
    def get_debug(self) -> bool:
        return False

    @override
    def is_running(self) -> bool:
        return True

    @override
    def is_closed(self) -> bool:
        return False
