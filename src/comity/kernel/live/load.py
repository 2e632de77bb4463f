"""How much of one server's is under way at once, so that its flood is nobody else's.

Rule 1: so many requests of a server's are answered at once; one more is refused, and at once.
Rule 2: what it tells is heard in its order, one after the other; what is too much is lost, as
        anything may be that is only told.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

log = logging.getLogger(__name__)

MOST_ASKED: Final = 64
MOST_TOLD: Final = 256
HEAR_SECONDS: Final = 30.0

type Work = Callable[[], Coroutine[Any, Any, None]]


class Load:
    """What is under way for each server."""

    def __init__(self, most_asked: int = MOST_ASKED, most_told: int = MOST_TOLD) -> None:
        self._most_asked = most_asked
        self._most_told = most_told
        self._asked: dict[str, set[asyncio.Task[None]]] = {}
        self._told: dict[str, deque[Work]] = {}
        self._hearing: dict[str, asyncio.Task[None]] = {}

    def asked(self, server: str) -> int:
        """How many of a server's requests are being answered."""
        return len(self._asked.get(server, ()))

    def answer(self, server: str, work: Work) -> asyncio.Task[None] | None:
        """Have a request answered, from now on; None where that is one too many."""
        mine = self._asked.setdefault(server, set())
        if len(mine) >= self._most_asked:
            return None
        task = _begun(work())
        if not task.done():
            mine.add(task)
        task.add_done_callback(partial(self._end, server))
        return task

    def hear(self, server: str, work: Work) -> bool:
        """Have a notice heard after those before it; False where that is one too many."""
        waiting = self._told.setdefault(server, deque())
        if len(waiting) >= self._most_told:
            return False
        waiting.append(work)
        if server not in self._hearing:
            task = _begun(self._listen(server, waiting))
            if not task.done():
                self._hearing[server] = task
        return True

    def forget(self, server: str) -> None:
        """Nobody waits any more for what is under way."""
        for task in list(self._asked.pop(server, ())):
            task.cancel()
        self._told.pop(server, None)
        hearing = self._hearing.pop(server, None)
        if hearing is not None and hearing is not asyncio.current_task():
            hearing.cancel()

    def stop(self) -> None:
        for server in {*self._asked, *self._hearing}:
            self.forget(server)

    async def _listen(self, server: str, waiting: deque[Work]) -> None:
        try:
            while waiting:
                await _heard(server, waiting.popleft())
        finally:
            if self._hearing.get(server) is asyncio.current_task():
                del self._hearing[server]

    def _end(self, server: str, task: asyncio.Task[None]) -> None:
        self._asked.get(server, set()).discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("answering server %r ended in a bug", server, exc_info=error)


async def _heard(server: str, work: Work) -> None:
    try:
        async with asyncio.timeout(HEAR_SECONDS):
            await work()
    except TimeoutError:
        log.warning("server %r told something that took too long to hear", server)
    except Exception:
        log.exception("hearing server %r ended in a bug", server)


def _begun(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Up to its first wait before anything else happens."""
    return asyncio.Task(work, loop=asyncio.get_running_loop(), eager_start=True)
