"""Where calls wait for somebody's answer: bounded in number, each with a deadline.

Whoever waits here holds no stream of a client's. A client of the modern era is given a sealed state
and comes back with it, over any connection; whoever else can answer finds the waiting one itself.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from comity.kernel.call import Call
from comity.kernel.shares import AGAIN_AFTER, Shares
from comity.rules.seals import seal, unseal
from comity.wire.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage, Unavailable
from comity.wire.jsonrpc import Frame

MOST_BYTES: Final = 256 * 1024 * 1024
NOT_WAITING: Final = "requestState names nothing that waits here; make the call again without it"


class Waiting(Protocol):
    """Something that goes on when it is answered."""

    def resume(self, call: Call, frame: Frame) -> None:
        """The client came back: `call` is its new request, `frame` what it says.

        Raises MalformedMessage, and goes on waiting, where that cannot be understood.
        """
        ...

    def lapse(self) -> None:
        """Nobody answered in time; it has left already."""
        ...


@dataclass(frozen=True, slots=True)
class _Place:
    waiting: Waiting
    digest: bytes
    size: int
    until: float
    principal: str


class Parking:
    """Everything that waits, by a name that is good for one return."""

    def __init__(
        self,
        now: Callable[[], float],
        most: int = 1000,
        within: timedelta = timedelta(minutes=10),
        each: int | None = None,
    ) -> None:
        self._now = now
        self._most = most
        setting = "max_parked_per_principal"
        self._shares = Shares("calls that wait for an answer", setting, each or most)
        # Few large calls must not take the room of many small ones either.
        self._bytes_of = Shares("bytes of calls that wait", setting, MOST_BYTES // 4)
        self._within = within.total_seconds()
        self._key = secrets.token_bytes(32)
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._names: dict[Waiting, str] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def park(self, waiting: Waiting, size: int, digest: bytes = b"", principal: str = "") -> str:
        """Wait here; gives the sealed state to come back with. Raises Unavailable when full.

        Only a request for the same thing, by its digest, can take the place up again. Who waits
        here already waits anew: the state it was known by is void. `size` is what it holds.
        """
        self.leave(waiting)
        if len(self._places) >= self._most or self._bytes + size > MOST_BYTES:
            raise Unavailable("too many calls wait for an answer already", EXHAUSTED, AGAIN_AFTER)
        if self._bytes_of.is_full(principal, size):
            raise self._bytes_of.problem()
        if not self._shares.take(principal):
            raise self._shares.problem()
        self._bytes_of.take(principal, size)
        name = secrets.token_hex(16)
        self._places[name] = _Place(waiting, digest, size, self._now() + self._within, principal)
        self._names[waiting] = name
        self._bytes += size
        return seal(self._key, name)

    def find(self, state: str, digest: bytes) -> Waiting:
        """Who waits for a request that brings this state; once it goes on, it leaves."""
        words = unseal(self._key, state)
        place = self._places.get(words[0]) if words else None
        if place is None or place.digest != digest:
            raise MalformedMessage(NOT_WAITING, INVALID_PARAMS)
        return place.waiting

    def leave(self, waiting: Waiting) -> None:
        """It no longer waits, for whatever reason."""
        name = self._names.pop(waiting, None)
        if name is not None:
            place = self._places.pop(name)
            self._bytes -= place.size
            self._shares.give(place.principal)
            self._bytes_of.give(place.principal, place.size)

    def look(self, patience: float) -> None:
        """End what has waited for too long; the oldest stand first."""
        now = self._now()
        while self._places:
            place = next(iter(self._places.values()))
            if place.until > now:
                return
            self.leave(place.waiting)
            place.waiting.lapse()
