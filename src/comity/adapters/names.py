"""What a host's name resolves to, asked of the system's resolver within a deadline."""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

DEADLINE_SECONDS: Final = 2.0
KEPT_SECONDS: Final = 30.0
MOST_KEPT: Final = 4096
MOST_AT_ONCE: Final = 16


class Resolver:
    """Answers each name from memory for a short while; unknown is the same as no answer."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kept: OrderedDict[str, tuple[float, tuple[str, ...]]] = OrderedDict()
        # The system's resolver blocks a thread for each name that does not answer.
        self._room = asyncio.Semaphore(MOST_AT_ONCE)

    async def resolve(self, name: str) -> tuple[str, ...]:
        """Every address of the name; none where it has none, or none in time."""
        kept = self._kept.get(name)
        if kept is not None and kept[0] > self._now():
            return kept[1]
        try:
            async with asyncio.timeout(DEADLINE_SECONDS), self._room:
                loop = asyncio.get_running_loop()
                found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, TimeoutError):
            return ()
        answers = tuple(dict.fromkeys(str(each[4][0]) for each in found))
        self._kept[name] = (self._now() + KEPT_SECONDS, answers)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return answers
