"""Events on their way to whoever listens: in order, and never more kept than somebody will take."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Self

from comity.sdk.events import Event, Fulfilment, Missed, Said

MOST_EVENTS: Final = 1_000
MOST_BYTES: Final = 16 * 1024 * 1024
_SLOW: Final = "they were taken too slowly here"


class Events[E]:
    """Those of the wanted types from now on; iterate over it, and close it when done.

    Whoever takes them too slowly loses the oldest, and finds a `Missed` in their place if it wants
    those, or whatever the types are.
    """

    def __init__(
        self, wanted: tuple[type[E], ...], forget: Callable[["Events[Any]"], None]
    ) -> None:
        self._wanted = wanted
        self._forget = forget
        self._waiting: deque[tuple[E, int]] = deque()
        self._bytes = 0
        self._lost: list[str] = []
        self._lost_count = 0
        self._is_over = False
        self._news = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E | Missed:
        while True:
            if self._lost_count:
                return self._notice()
            if self._waiting:
                event, weight = self._waiting.popleft()
                self._bytes -= weight
                return event
            if self._is_over:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()

    def taken(self) -> list[E | Missed]:
        """All that waits, without waiting for more."""
        lost = [self._notice()] if self._lost_count else []
        found = [*lost, *(event for event, _ in self._waiting)]
        self._waiting.clear()
        self._bytes = 0
        return found

    def close(self) -> None:
        """No more events; those that wait are given up."""
        self._waiting.clear()
        self._bytes = 0
        self.end()

    def end(self) -> None:
        """No more events than those that wait already."""
        self._is_over = True
        self._forget(self)
        self._news.set()

    def give(self, event: Event) -> None:
        if not isinstance(event, self._wanted):
            return
        weight = _weight(event)
        self._waiting.append((event, weight))
        self._bytes += weight
        while len(self._waiting) > MOST_EVENTS or self._bytes > MOST_BYTES:
            lost, lighter = self._waiting.popleft()
            self._bytes -= lighter
            self._lost_count += 1
            self._lost = [*self._lost[:1], _id(lost)]
        self._news.set()

    def _notice(self) -> Missed:
        notice = Missed(self._lost_count, self._lost[0], self._lost[-1], _SLOW)
        self._lost, self._lost_count = [], 0
        return notice


def _weight(event: object) -> int:
    said = event.request if isinstance(event, Fulfilment) else event
    return len(bytes(said.envelope.payload)) + 1_000 if isinstance(said, Said) else 1_000


def _id(event: object) -> str:
    return event.id if isinstance(event, Said) else ""
