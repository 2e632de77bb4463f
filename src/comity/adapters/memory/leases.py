"""Leases inside one process: for a gateway alone, and for several nodes in one test."""

import itertools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from comity.adapters.memory.bus import MemoryBus
from comity.ports.clustering import Lease
from comity.wire.errors import UPSTREAM_DOWN, MalformedMessage, Unavailable

LIFETIME: Final = timedelta(seconds=10)
LONGEST_NAME: Final = 256


class LeaseBook:
    """Who holds what until when, for all nodes of one process."""

    def __init__(
        self, lifetime: timedelta = LIFETIME, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.lifetime = lifetime
        self._clock = clock
        self._tokens = itertools.count(1)
        self._held: dict[str, tuple[Lease, float]] = {}

    def take(self, name: str, holder: str) -> Lease | None:
        if self.holder(name) is not None:
            return None
        lease = Lease(name, holder, next(self._tokens))
        self._held[name] = (lease, self._until())
        return lease

    def renew(self, lease: Lease) -> bool:
        if self.holder(lease.name) != lease:
            return False
        self._held[lease.name] = (lease, self._until())
        return True

    def give_up(self, lease: Lease) -> None:
        if self.holder(lease.name) == lease:
            del self._held[lease.name]

    def holder(self, name: str) -> Lease | None:
        lease, until = self._held.get(name, (None, 0.0))
        return lease if until > self._clock() else None

    def _until(self) -> float:
        return self._clock() + self.lifetime.total_seconds()


class MemoryLeases:
    """One node's view of the book, which it has only while its bus is connected."""

    def __init__(self, book: LeaseBook | None = None, bus: MemoryBus | None = None) -> None:
        self._book = LeaseBook() if book is None else book
        self._bus = bus
        self._own: dict[str, Lease] = {}

    @property
    def lifetime(self) -> timedelta:
        return self._book.lifetime

    async def take(self, name: str, holder: str) -> Lease | None:
        if not 0 < len(name) <= LONGEST_NAME:
            raise MalformedMessage("a lease's name has 1 to 256 characters")
        self._reach()
        held = self._book.holder(name)
        if held is not None:
            return held if held == self._own.get(name) and held.holder == holder else None
        taken = self._book.take(name, holder)
        if taken is not None:
            self._own[name] = taken
        return taken

    async def renew(self, lease: Lease) -> bool:
        self._reach()
        return self._book.renew(lease)

    async def give_up(self, lease: Lease) -> None:
        # Whether or not it can be told, it is held here no longer.
        if self._own.get(lease.name) == lease:
            del self._own[lease.name]
        self._reach()
        self._book.give_up(lease)

    async def holder(self, name: str) -> Lease | None:
        self._reach()
        return self._book.holder(name)

    def _reach(self) -> None:
        if self._bus is not None and not self._bus.is_connected:
            raise Unavailable("this node is cut off, and reaches no other", UPSTREAM_DOWN)
