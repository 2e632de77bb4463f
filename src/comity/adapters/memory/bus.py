"""A bus inside one process: for a gateway alone, and for several nodes in one test.

Rule 1: it promises what the bus between machines does, and no more: each node hears the others and
        never itself, later than it was said, in order, and at most once.
Rule 2: a node that is cut off neither says nor hears anything; what was on its way to it is lost.
"""

import asyncio
import itertools
import logging
import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from comity.ports.clustering import Hear, Heard, Interest
from comity.rules.subjects import compiled, is_pattern, is_plain, is_subject
from comity.wire.errors import UPSTREAM_DOWN, MalformedMessage, Unavailable

log = logging.getLogger(__name__)

MOST_WAITING: Final = 8 * 1024 * 1024
_AROUND: Final = 64
_AWAY: Final = "this node is cut off, and reaches no other: try again soon"
_TOO_MUCH: Final = "too much waits to go to another node: try again in a moment"


class Hub:
    """Where the nodes of one process meet."""

    def __init__(self) -> None:
        self.nodes: list[MemoryBus] = []
        self._inboxes = itertools.count(1)

    def new_inbox(self) -> str:
        return f"_INBOX.{next(self._inboxes)}"


class MemoryBus:
    """One node's end of it; one without a hub is alone."""

    def __init__(self, hub: Hub | None = None) -> None:
        self._hub = Hub() if hub is None else hub
        self._exact: dict[str, dict[int, Hear]] = {}
        self._patterns: dict[int, tuple[re.Pattern[str], Hear]] = {}
        self._numbers = itertools.count(1)
        self._watchers: list[Callable[[bool], None]] = []
        self._coming: deque[Heard] = deque()
        self._coming_size = 0
        self._is_open = False
        self._is_cut_off = False

    @property
    def is_connected(self) -> bool:
        return self._is_open and not self._is_cut_off

    @property
    def refused(self) -> Mapping[str, int]:
        return {}

    async def open(self) -> None:
        self._hub.nodes.append(self)
        self._is_open = True
        self._tell()

    async def close(self) -> None:
        self._is_open = False
        self._lose_what_comes()
        if self in self._hub.nodes:
            self._hub.nodes.remove(self)

    def cut_off(self) -> None:
        """As when the network fails, for tests."""
        self._is_cut_off = True
        self._lose_what_comes()
        self._tell()

    def rejoin(self) -> None:
        self._is_cut_off = False
        self._tell()

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if not self.is_connected:
            raise Unavailable(_AWAY, UPSTREAM_DOWN)
        if not is_subject(subject) or (reply and not is_subject(reply)):
            raise MalformedMessage("not a subject to publish on")
        others = [node for node in self._hub.nodes if node is not self and node.is_connected]
        if any(node.has_too_much for node in others):
            raise Unavailable(_TOO_MUCH, UPSTREAM_DOWN)
        for node in others:
            node.take(Heard(subject, bytes(data), reply))

    async def drained(self) -> None:
        if not self.is_connected:
            raise Unavailable(_AWAY, UPSTREAM_DOWN)
        await asyncio.sleep(0)

    async def subscribe(self, subject: str, hear: Hear) -> Interest:
        if not is_pattern(subject):
            raise MalformedMessage("not a subject to subscribe to")
        number = next(self._numbers)
        if is_plain(subject):
            self._exact.setdefault(subject, {})[number] = hear
        else:
            self._patterns[number] = (compiled(subject), hear)
        return _Interest(self, subject, number)

    def inbox(self) -> str:
        return self._hub.new_inbox()

    def watch(self, changed: Callable[[bool], None]) -> None:
        self._watchers.append(changed)

    @property
    def has_too_much(self) -> bool:
        return self._coming_size > MOST_WAITING

    def take(self, heard: Heard) -> None:
        """From another node."""
        if not self._coming:
            asyncio.get_running_loop().call_soon(self._hear_all)
        self._coming.append(heard)
        self._coming_size += len(heard.data) + _AROUND

    def forget(self, subject: str, number: int) -> None:
        self._patterns.pop(number, None)
        hearers = self._exact.get(subject, {})
        hearers.pop(number, None)
        if not hearers:
            self._exact.pop(subject, None)

    def _hear_all(self) -> None:
        """What comes while these are heard has its turn later."""
        for _ in range(len(self._coming)):
            if not self._coming:
                return
            heard = self._coming.popleft()
            self._coming_size -= len(heard.data) + _AROUND
            for hear in self._hearers_of(heard.subject):
                try:
                    hear(heard)
                except Exception:
                    log.exception("what was heard on the bus could not be taken in")
        if self._coming:
            asyncio.get_running_loop().call_soon(self._hear_all)

    def _hearers_of(self, subject: str) -> list[Hear]:
        found = [*self._exact.get(subject, {}).values()]
        for pattern, hear in self._patterns.values():
            if pattern.fullmatch(subject):
                found.append(hear)
        return found

    def _lose_what_comes(self) -> None:
        self._coming.clear()
        self._coming_size = 0

    def _tell(self) -> None:
        for changed in self._watchers:
            changed(self.is_connected)


class _Interest:
    def __init__(self, bus: MemoryBus, subject: str, number: int) -> None:
        self._bus = bus
        self._subject = subject
        self._number = number

    async def close(self) -> None:
        self._bus.forget(self._subject, self._number)
