"""An event loop whose order, time and executor follow from a seed, and on which nodes can die."""

import asyncio
import heapq
import itertools
import zlib
from asyncio import Handle, TimerHandle
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from random import Random
from typing import Any, Final, override

from tests.simulation.clock import VirtualClock

NODE: Final[ContextVar[str]] = ContextVar("NODE", default="")
"""The run of a gateway to which the present code belongs; empty for the world around it."""

MOST_STEPS: Final = 2_000_000
"""More than this is taken for work that never ends."""

_EXECUTOR_SECONDS: Final = 0.003
_numbers = itertools.count(1)


class _NumberedFuture(asyncio.Future[Any]):
    """A future whose place in a set does not depend on its address in memory."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = next(_numbers)
        super().__init__(loop=loop)

    @override
    def __hash__(self) -> int:
        return self._number

    @override
    def __eq__(self, other: object) -> bool:
        return self is other


class _NumberedTask(asyncio.Task[Any]):
    """A task, likewise."""

    def __init__(self, coro: Any, **options: Any) -> None:
        self._number = next(_numbers)
        super().__init__(coro, **options)

    @override
    def __hash__(self) -> int:
        return self._number

    @override
    def __eq__(self, other: object) -> bool:
        return self is other


class SimulationLoop(asyncio.AbstractEventLoop):
    """Of all that is ready any may be next. Time moves when nothing is ready.

    A handle whose context belongs to a dead node never runs. It is kept, because freeing it would
    close the coroutines behind it, and run their `finally` blocks: a killed process runs none.
    """

    def __init__(self, seed: int, clock: VirtualClock) -> None:
        self.random = Random(f"order {seed}")  # noqa: S311  # it has to be the same each time
        self.clock = clock
        self.steps = 0
        self.checksum = 0
        self.journal: list[str] | None = None
        self.failures: list[dict[str, Any]] = []
        self._dead: set[str] = set()
        self._graveyard: list[object] = []
        self._ready: list[Handle] = []
        self._later: list[tuple[float, int, TimerHandle]] = []
        self._timers = itertools.count()

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(work)
            while not task.done():
                self._step()
                self.steps += 1
                if self.steps > MOST_STEPS:
                    raise AssertionError(f"not done after {MOST_STEPS} steps")
            return task.result()
        finally:
            asyncio._set_running_loop(None)

    def note(self, event: str) -> None:
        """Add something that happened to the trace, whose checksum two equal runs share."""
        line = f"{self.clock.elapsed:.6f} {event}"
        self.checksum = zlib.crc32(line.encode(), self.checksum)
        if self.journal is not None:
            self.journal.append(line)

    def kill(self, node: str) -> None:
        """Never run anything of this node again."""
        self._dead.add(node)
        self._graveyard += [each for each in asyncio.all_tasks(self) if _node_of(each) == node]

    def is_dead(self, node: str) -> bool:
        return node in self._dead

    def _step(self) -> None:
        later, clock = self._later, self.clock
        while later and (later[0][0] <= clock.elapsed or not self._ready):
            when, _, timer = heapq.heappop(later)
            if not timer.cancelled():
                clock.elapsed = max(clock.elapsed, when)
                self._ready.append(timer)
        ready = self._ready
        if not ready:
            raise AssertionError("everybody waits, and nothing will ever happen")
        chosen = int(self.random.random() * len(ready))
        ready[chosen], ready[-1] = ready[-1], ready[chosen]
        handle = ready.pop()
        if handle.cancelled():
            return
        if self._dead and handle._context.get(NODE) in self._dead:
            self._graveyard.append(handle)
            return
        handle._run()

    # What asyncio asks of a loop.

    @override
    def time(self) -> float:
        return self.clock.elapsed

    @override
    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    @override
    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_soon(callback, *args, context=context)

    @override
    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> TimerHandle:
        return self.call_at(self.clock.elapsed + delay, callback, *args, context=context)

    @override
    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> TimerHandle:
        timer = TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._later, (when, next(self._timers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """It is passed over when its time comes."""

    @override
    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(loop=self)

    @override
    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return _NumberedTask(coro, loop=self, **options)

    @override
    def run_in_executor(
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run the function a moment later on this thread, so that its order is known."""
        result = self.create_future()

        def work() -> None:
            if result.cancelled():
                return
            try:
                result.set_result(func(*args))
            except Exception as error:  # it goes to who waits, as from a thread
                result.set_exception(error)

        self.call_later(self.random.random() * _EXECUTOR_SECONDS, work)
        return result

    @override
    def set_exception_handler(self, handler: object) -> None:
        """Failures are collected."""

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


def _node_of(task: asyncio.Task[Any]) -> str:
    return task.get_context().get(NODE, "")
