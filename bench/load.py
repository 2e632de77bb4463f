"""The load generator: keeps callers busy until a budget is spent, and says what that cost.

Its own CPU per call is measured beside the relay's, to show that it is not the bottleneck.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bench.eras import FIRST_CALL

ANSWER_WITHIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Budget:
    """A slice ends after so many calls or so many seconds, whichever is first."""

    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Slice:
    """What one uninterrupted stretch of load cost."""

    calls: int
    seconds: float
    relay_cpu_seconds: float
    load_cpu_seconds: float
    # How long each call took; a relay that is only compared by its CPU may have none.
    latencies: tuple[float, ...] = ()


class Caller(Protocol):
    """One place from which one call at a time can be made."""

    def send(self, number: int) -> None: ...


class Stretch:
    """Hands out call numbers to callers until the budget is spent."""

    def __init__(self) -> None:
        self._number = FIRST_CALL
        self._left = 0
        self._in_flight = 0
        self._until = 0.0
        self._finished: asyncio.Future[None] | None = None
        self._began: dict[Caller, float] = {}
        self.latencies: list[float] = []

    async def run(self, callers: list[Caller], budget: Budget) -> int:
        """Keeps every caller busy; returns how many calls were answered."""
        self._left = budget.calls
        self.latencies = []
        self._until = time.perf_counter() + budget.seconds
        self._finished = asyncio.get_running_loop().create_future()
        first = self._number
        for caller in callers[: budget.calls]:
            self._start(caller)
        await asyncio.wait_for(self._finished, budget.seconds + ANSWER_WITHIN_SECONDS)
        return self._number - first

    def answered(self, caller: Caller) -> None:
        self._in_flight -= 1
        self.latencies.append(time.perf_counter() - self._began[caller])
        if self._left > 0 and time.perf_counter() < self._until:
            self._start(caller)
        elif self._in_flight == 0 and self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    def failed(self, reason: Exception) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_exception(reason)

    def _start(self, caller: Caller) -> None:
        self._left -= 1
        self._in_flight += 1
        self._number += 1
        self._began[caller] = time.perf_counter()
        caller.send(self._number)


async def timed(
    stretch: Stretch, callers: list[Caller], budget: Budget, cpu: Callable[[], float]
) -> Slice:
    """One slice of load, with the CPU that the relay (as `cpu` tells it) and the load spent."""
    relay_cpu, load_cpu, began = cpu(), time.process_time(), time.perf_counter()
    calls = await stretch.run(callers, budget)
    seconds = time.perf_counter() - began
    spent = cpu() - relay_cpu, time.process_time() - load_cpu
    return Slice(calls, seconds, *spent, tuple(stretch.latencies))
