"""The bus and the leases of a gateway with one node, in memory."""

import asyncio
import itertools
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

from comity.cluster.bus import (
    BusMessage,
    BusSubscription,
    Lease,
    MessageHandler,
    compile_pattern,
    is_pattern,
    is_plain,
    is_subject,
)
from comity.errors import UPSTREAM_DOWN, MalformedMessage, Unavailable

log = logging.getLogger(__name__)

MOST_WAITING: Final = 8 * 1024 * 1024
_AROUND: Final = 64
_CUT_OFF_MESSAGE: Final = "this node cannot reach other nodes; try again soon"
_TOO_MUCH: Final = "too much waits to go to another node: try again in a moment"


class MemoryBusHub:
    """Connects the buses of the nodes in one process."""

    def __init__(self) -> None:
        self.nodes: list[MemoryBus] = []
        self._inboxes = itertools.count(1)

    def new_inbox(self) -> str:
        return f"_INBOX.{next(self._inboxes)}"


class MemoryBus:
    """The bus of one node. Without a hub it has no other nodes."""

    def __init__(self, hub: MemoryBusHub | None = None) -> None:
        self._hub = MemoryBusHub() if hub is None else hub
        self._exact: dict[str, dict[int, MessageHandler]] = {}
        self._patterns: dict[int, tuple[re.Pattern[str], MessageHandler]] = {}
        self._numbers = itertools.count(1)
        self._watchers: list[Callable[[bool], None]] = []
        self._queue: deque[BusMessage] = deque()
        self._coming_size = 0
        self._is_open = False
        self._is_cut_off = False

    @property
    def is_connected(self) -> bool:
        return self._is_open and not self._is_cut_off

    @property
    def refused_counts(self) -> Mapping[str, int]:
        return {}

    async def open(self) -> None:
        self._hub.nodes.append(self)
        self._is_open = True
        self._notify_watchers()

    async def close(self) -> None:
        self._is_open = False
        self._lose_what_comes()
        if self in self._hub.nodes:
            self._hub.nodes.remove(self)

    def cut_off(self) -> None:
        """Simulate a network failure, for tests."""
        self._is_cut_off = True
        self._lose_what_comes()
        self._notify_watchers()

    def rejoin(self) -> None:
        self._is_cut_off = False
        self._notify_watchers()

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if not self.is_connected:
            raise Unavailable(_CUT_OFF_MESSAGE, UPSTREAM_DOWN)
        if not is_subject(subject) or (reply and not is_subject(reply)):
            raise MalformedMessage("not a subject to publish on")
        others = [node for node in self._hub.nodes if node is not self and node.is_connected]
        if any(node.has_too_much for node in others):
            raise Unavailable(_TOO_MUCH, UPSTREAM_DOWN)
        for node in others:
            node.enqueue(BusMessage(subject, bytes(data), reply))

    async def wait_until_drained(self) -> None:
        if not self.is_connected:
            raise Unavailable(_CUT_OFF_MESSAGE, UPSTREAM_DOWN)
        await asyncio.sleep(0)

    async def subscribe(self, subject: str, handler: MessageHandler) -> BusSubscription:
        if not is_pattern(subject):
            raise MalformedMessage("not a subject to subscribe to")
        number = next(self._numbers)
        if is_plain(subject):
            self._exact.setdefault(subject, {})[number] = handler
        else:
            self._patterns[number] = (compile_pattern(subject), handler)
        return _MemorySubscription(self, subject, number)

    def inbox(self) -> str:
        return self._hub.new_inbox()

    def watch(self, on_change: Callable[[bool], None]) -> None:
        self._watchers.append(on_change)

    @property
    def has_too_much(self) -> bool:
        return self._coming_size > MOST_WAITING

    def enqueue(self, message: BusMessage) -> None:
        """Queue a message of another node."""
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._deliver_queued)
        self._queue.append(message)
        self._coming_size += len(message.data) + _AROUND

    def forget(self, subject: str, number: int) -> None:
        self._patterns.pop(number, None)
        hearers = self._exact.get(subject, {})
        hearers.pop(number, None)
        if not hearers:
            self._exact.pop(subject, None)

    def _deliver_queued(self) -> None:
        """Deliver the queued messages. Later messages are delivered in a later turn."""
        for _ in range(len(self._queue)):
            if not self._queue:
                return
            heard = self._queue.popleft()
            self._coming_size -= len(heard.data) + _AROUND
            for hear in self._handlers_of(heard.subject):
                try:
                    hear(heard)
                except Exception:
                    log.exception("A message from the bus could not be processed")
        if self._queue:
            asyncio.get_running_loop().call_soon(self._deliver_queued)

    def _handlers_of(self, subject: str) -> list[MessageHandler]:
        found = [*self._exact.get(subject, {}).values()]
        for pattern, hear in self._patterns.values():
            if pattern.fullmatch(subject):
                found.append(hear)
        return found

    def _lose_what_comes(self) -> None:
        self._queue.clear()
        self._coming_size = 0

    def _notify_watchers(self) -> None:
        for changed in self._watchers:
            changed(self.is_connected)


class _MemorySubscription:
    def __init__(self, bus: MemoryBus, subject: str, number: int) -> None:
        self._bus = bus
        self._subject = subject
        self._number = number

    async def close(self) -> None:
        self._bus.forget(self._subject, self._number)


LIFETIME: Final = timedelta(seconds=10)
MAX_NAME_LENGTH: Final = 256


class LeaseBook:
    """The holder and the expiry of each lease, for all nodes of one process."""

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

    def release(self, lease: Lease) -> None:
        if self.holder(lease.name) == lease:
            del self._held[lease.name]

    def holder(self, name: str) -> Lease | None:
        lease, until = self._held.get(name, (None, 0.0))
        return lease if until > self._clock() else None

    def _until(self) -> float:
        return self._clock() + self.lifetime.total_seconds()


class MemoryLeases:
    """The leases as one node sees them. They are available only while its bus is connected."""

    def __init__(self, book: LeaseBook | None = None, bus: MemoryBus | None = None) -> None:
        self._book = LeaseBook() if book is None else book
        self._bus = bus
        self._own_leases: dict[str, Lease] = {}

    @property
    def lifetime(self) -> timedelta:
        return self._book.lifetime

    async def take(self, name: str, holder: str) -> Lease | None:
        if not 0 < len(name) <= MAX_NAME_LENGTH:
            raise MalformedMessage("a lease's name has 1 to 256 characters")
        self._reach()
        held = self._book.holder(name)
        if held is not None:
            return held if held == self._own_leases.get(name) and held.holder == holder else None
        taken = self._book.take(name, holder)
        if taken is not None:
            self._own_leases[name] = taken
        return taken

    async def renew(self, lease: Lease) -> bool:
        self._reach()
        return self._book.renew(lease)

    async def release(self, lease: Lease) -> None:
        # Dropped first: this node no longer holds the lease, even if the bus cannot be reached.
        if self._own_leases.get(lease.name) == lease:
            del self._own_leases[lease.name]
        self._reach()
        self._book.release(lease)

    async def holder(self, name: str) -> Lease | None:
        self._reach()
        return self._book.holder(name)

    def _reach(self) -> None:
        if self._bus is not None and not self._bus.is_connected:
            raise Unavailable("this node cannot reach other nodes", UPSTREAM_DOWN)
