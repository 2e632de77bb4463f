"""Work that goes on beside the way of a call: held while it lasts, and its bugs are told."""

import asyncio
import logging
from collections.abc import Coroutine

log = logging.getLogger(__name__)


class Chores:
    """Tasks that somebody owns; without an owner the loop may forget one before its end."""

    __slots__ = ("_tasks", "_whose")

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[None, None, None], *, at_once: bool = False) -> None:
        """Have it done; `at_once` runs it up to its first wait before anything else happens."""
        loop = asyncio.get_running_loop()
        task = asyncio.Task(work, loop=loop, eager_start=at_once)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def finish(self) -> None:
        """Until everything has been done that was begun before."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a chore of %s ended in a bug", self._whose, exc_info=error)
