"""How long a server is waited for; what the gateway itself takes meanwhile does not count."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


class Patience:
    """A deadline of somebody else's, which stands still while we are at work."""

    def __init__(self, limit: asyncio.Timeout | None = None) -> None:
        self._limit = limit

    @contextmanager
    def paused(self) -> Generator[None]:
        """Many servers may come at once: each waits its turn, and none is late for that."""
        ends = None if self._limit is None else self._limit.when()
        if self._limit is None or ends is None:
            yield
            return
        loop = asyncio.get_running_loop()
        left = ends - loop.time()
        self._limit.reschedule(None)
        try:
            yield
        finally:
            self._limit.reschedule(loop.time() + left)
