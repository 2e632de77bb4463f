"""Background tasks that have an owner, resources that open once, timeouts and delays."""

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final
from weakref import WeakKeyDictionary

from comity.errors import Unavailable
from comity.toolkit.resilience import RetrySchedule

log = logging.getLogger(__name__)


class BackgroundTasks:
    """Holds references to background tasks. The event loop may otherwise discard a running task."""

    __slots__ = ("_tasks", "_whose")

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[None, None, None], *, at_once: bool = False) -> None:
        """Start a task. With `at_once`, it runs up to its first wait before this method returns."""
        loop = asyncio.get_running_loop()
        task = asyncio.Task(work, loop=loop, eager_start=at_once)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def finish(self) -> None:
        """Wait until all tasks that were started before have ended."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("A background task of %s failed", self._whose, exc_info=error)


class SharedOpening[Key, Thing]:
    """Opens a resource once for all callers that wait for it."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: dict[Key, asyncio.Task[Thing]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, key: Key) -> bool:
        return key in self._tasks

    async def wait_for(
        self,
        key: Key,
        make: Callable[[], Coroutine[None, None, Thing]],
        otherwise: Callable[[], Unavailable],
    ) -> Thing:
        """Return the resource that one call of `make` opens. Raises the error of that call.

        Raises the error of `otherwise` if the opening was cancelled.
        """
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.ensure_future(make())
            task.add_done_callback(lambda ended: self._end(key, ended))
        # If a caller is cancelled, the opening continues for the other callers.
        await asyncio.wait([task])
        if task.cancelled():
            raise otherwise()
        return task.result()

    async def finish(self, timeout: timedelta) -> None:
        """Wait until every opening has ended, and cancel those that take longer."""
        if self._tasks:
            tasks = list(self._tasks.values())
            await asyncio.wait(tasks, timeout=timeout.total_seconds())
            self.cancel()

    def cancel(self) -> list[asyncio.Task[Thing]]:
        """Cancel every opening, and return the tasks so that the caller can wait for their end."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        return tasks

    def _end(self, key: Key, task: asyncio.Task[Thing]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            # Reads the exception, since all callers may be gone and asyncio would log it as
            # unretrieved.
            task.exception()


class SharedResource[Key, Thing]:
    """Resources by key, open or being opened."""

    def __init__(self) -> None:
        self._held: dict[Key, Thing] = {}
        self._opening: SharedOpening[Key, Thing] = SharedOpening()

    async def get(self, key: Key, make: Callable[[], Coroutine[None, None, Thing]]) -> Thing:
        """Return the resource, and open it if needed. Raises the error of the opening."""
        held = self._held.pop(key, None)
        if held is not None:
            # Reinserts the resource, so that the dict is in the order of the last use.
            self._held[key] = held
            return held
        return await self._opening.wait_for(
            key,
            lambda: self._open(key, make),
            lambda: Unavailable("it was closed while it was being opened"),
        )

    async def _open(self, key: Key, make: Callable[[], Coroutine[None, None, Thing]]) -> Thing:
        thing = self._held[key] = await make()
        return thing

    def forget(self, key: Key) -> None:
        """Drop a broken resource, so that the next caller opens another."""
        self._held.pop(key, None)

    def take_excess_idle(self, maximum: int, is_idle: Callable[[Thing], bool]) -> list[Thing]:
        """Remove the idle resources that are longest unused, if there are more than `maximum`.

        The caller closes the returned resources.
        """
        if len(self._held) <= maximum:
            return []
        idle = [key for key, thing in self._held.items() if is_idle(thing)]
        return [self._held.pop(key) for key in idle[: len(self._held) - maximum]]

    def take_idle(self, is_idle: Callable[[Thing], bool]) -> list[tuple[Key, Thing]]:
        """Remove all idle resources. The caller closes them."""
        idle = [key for key, thing in self._held.items() if is_idle(thing)]
        return [(key, self._held.pop(key)) for key in idle]

    def clear(self) -> list[Thing]:
        """Remove all resources and cancel the openings. The caller closes the returned ones."""
        held = list(self._held.values())
        self._held.clear()
        self._opening.cancel()
        return held


class PausableTimeout:
    """A timeout of the caller that stops while Comity itself works."""

    def __init__(self, limit: asyncio.Timeout | None = None) -> None:
        self._limit = limit
        self._pauses = 0
        self._left = 0.0

    @contextmanager
    def paused(self) -> Generator[None]:
        """Stop the timeout, so that a server loses no time while it waits for its turn.

        It runs again when the last of several pauses ends.
        """
        ends = None if self._limit is None else self._limit.when()
        if self._limit is None or (ends is None and not self._pauses):
            yield
            return
        loop = asyncio.get_running_loop()
        if ends is not None:
            self._left = ends - loop.time()
            self._limit.reschedule(None)
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._limit.reschedule(loop.time() + self._left)


BREATH_BYTES: Final = 64 * 1024
"""Processing this many bytes of a list takes a few milliseconds."""

ENTRY_BYTES: Final = 256
"""The minimum cost of an entry."""


class _TurnWork:
    """How much work may still be done in this turn of an event loop, and who waits for a turn."""

    __slots__ = ("_is_renewal_due", "_left", "_waiters")

    def __init__(self) -> None:
        self._left = BREATH_BYTES
        self._is_renewal_due = False
        self._waiters = deque[asyncio.Future[None]]()

    async def count(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        # Whoever has the turn uses all that is left of it: one entry in each turn would make long
        # lists slow. The queue then gives the next turn to whoever waits longest.
        if self._left < 0:
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            await waiter
        self._renew_in_next_turn(loop)
        self._left -= size

    def _renew_in_next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_renewal_due:
            self._is_renewal_due = True
            loop.call_soon(self._renew, loop)

    def _renew(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left, self._is_renewal_due = BREATH_BYTES, False
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # a cancelled one needs no turn
                waiter.set_result(None)
                break
        if self._waiters:
            self._renew_in_next_turn(loop)


_work_by_loop: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, _TurnWork]()


class LoopYielder:
    """Yields to the event loop after a fixed amount of work in one turn.

    All instances share that amount, and take turns. Without that, thirty servers that send their
    lists at once make one turn so long that the process seems suspended. It then asks the store for
    its permissions again, and refuses requests meanwhile.
    """

    __slots__ = ("_work",)

    def __init__(self) -> None:
        self._work = _work_by_loop.setdefault(asyncio.get_running_loop(), _TurnWork())

    async def count(self, size: int) -> None:
        """Count an entry before it is processed, and yield to the event loop if it is due."""
        await self._work.count(ENTRY_BYTES + size)


def draw_delay(schedule: RetrySchedule, failures: int) -> timedelta:
    """Return the wait after that many failures, at random within the jitter of the schedule."""
    return schedule.delay(failures, random.random())  # noqa: S311  # no secret


def aligned_time(interval: float) -> float:
    """Return the end of the present interval on the clock of the event loop.

    Periodic work that waits until then runs together with other such work, so that an idle process
    wakes up once for all of it. If the interval is nearly over, this is the end of the next one.
    """
    return math.ceil(asyncio.get_running_loop().time() / interval + 0.25) * interval


async def finish_before_cancel(work: Coroutine[None, None, None]) -> None:
    """Run work to its end, also if the caller is cancelled meanwhile. Raises what it raises."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def wait_for_change(wakeup: asyncio.Event, timeout: timedelta) -> bool:
    """Wait until the event is set, and clear it, or until the end of an interval of that length.

    Returns whether the event was set.
    """
    try:
        async with asyncio.timeout_at(aligned_time(timeout.total_seconds())):
            await wakeup.wait()
    except TimeoutError:
        return False
    wakeup.clear()
    return True
