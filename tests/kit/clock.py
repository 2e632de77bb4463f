"""Time that jumps: a real event loop whose clock moves on when nothing else can happen."""

import asyncio
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final

BOUND: Final = 60.0
"""So many seconds `happens` waits. Virtual time is free, so a longer bound would hide lateness."""

_THREAD_SECONDS: Final = 0.01
_STUCK_SECONDS: Final = 5.0
_TIMER_MARGIN: Final = 1e-6
"""The clock of a loop has a resolution: a timer is due when it is exceeded, not reached."""

type Ready = list[tuple[selectors.SelectorKey, int]]


class _JumpingSelector(selectors.DefaultSelector):
    """Moves the clock of its loop on instead of waiting for the next timer."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> Ready:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self.loop.thread_jobs:
            # Their work goes on in real time, and what they do must not seem to take an hour.
            return super().select(_THREAD_SECONDS)
        if timeout is None:
            # Only a thread that the loop does not know may still wake it.
            ready = super().select(_STUCK_SECONDS)
            if not ready:
                raise AssertionError("everybody waits, and nothing will ever happen")
            return ready
        self.loop.now += timeout + _TIMER_MARGIN
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs callbacks, sockets and executor jobs as every loop does, on a clock that jumps."""

    def __init__(self) -> None:
        self.now, self.thread_jobs = 10_000.0, 0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def run_in_executor[T](
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        job = super().run_in_executor(executor, func, *args)
        self.thread_jobs += 1
        job.add_done_callback(self._end_thread_job)
        return job

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        # A thread that the loop does not know joins the others, and takes no virtual time.
        self.thread_jobs += 1
        try:
            await super().shutdown_default_executor(timeout)
        finally:
            self.thread_jobs -= 1

    def _end_thread_job(self, _: object) -> None:
        self.thread_jobs -= 1


class VirtualTime(asyncio.DefaultEventLoopPolicy):
    """Every new loop has a clock of its own that jumps."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualLoop()


_machine_monotonic = time.monotonic


def monotonic() -> float:
    """The time of the running loop where that is virtual; elsewhere the machine's."""
    loop = asyncio._get_running_loop()  # None outside of a loop
    return loop.now if isinstance(loop, VirtualLoop) else _machine_monotonic()


async def happens(is_so: Callable[[], object], within: float = BOUND) -> None:
    """Wait until it is so. On virtual time this takes no time of the machine."""
    pause = 0.0005
    async with asyncio.timeout(within):
        while not is_so():
            await asyncio.sleep(pause := min(2 * pause, 0.1))
