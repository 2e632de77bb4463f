"""So many calls at once for each server; whoever finds no place free waits a bounded while."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from comity.wire.errors import EXHAUSTED, Unavailable


@dataclass(slots=True)
class Places:
    """The places at every server; those of a server that nobody uses are not remembered."""

    each: int
    patience: float
    _held: dict[str, asyncio.Semaphore] = field(default_factory=dict[str, asyncio.Semaphore])
    _users: dict[str, int] = field(default_factory=dict[str, int])

    def __len__(self) -> int:
        return len(self._held)

    @asynccontextmanager
    async def taken(self, server: str) -> AsyncGenerator[None]:
        """One place for as long as it is needed; raises Unavailable where none comes free."""
        places = self._held.setdefault(server, asyncio.Semaphore(self.each))
        self._users[server] = self._users.get(server, 0) + 1
        try:
            await self._wait_for(places, server)
            try:
                yield
            finally:
                places.release()
        finally:
            self._users[server] -= 1
            if not self._users[server]:
                del self._held[server], self._users[server]

    async def _wait_for(self, places: asyncio.Semaphore, server: str) -> None:
        try:
            async with asyncio.timeout(self.patience):
                await places.acquire()
        except TimeoutError:
            raise Unavailable(
                f"all {self.each} places at server {server!r} are taken", EXHAUSTED
            ) from None
