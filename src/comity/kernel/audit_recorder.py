"""Records audit events that are neither calls nor approvals; each domain words its own.

An entry's actor is the one that acted: the principal that gave an order, a server that acted on its
own, or `system:gateway` for what follows from a policy or from time. Each entry has a trace: the
trace of the request that caused it, or one of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from comity.kernel.journal import Journal
from comity.wire.audit import Event, Result, Type
from comity.wire.parties import PartyKind

MOST_NAMED: Final = 100
"""How many tools or permissions one entry names; of the others it gives the number."""

AT_ONCE: Final = 100
WINDOW: Final = timedelta(seconds=10)

_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})
LEFT_OUT: Final = "left_out"
"""The member of `details` that counts earlier events of the same kind that were not recorded."""

type Redact = Callable[[object], object]
type Clock = Callable[[], datetime]

_KINDS: Final = {f"{kind}:": kind for kind in PartyKind}


def kind_of(party: str) -> PartyKind:
    """What a party is by its name; an agent, where that does not tell."""
    return next(
        (kind for start, kind in _KINDS.items() if party.startswith(start)), PartyKind.AGENT
    )


@dataclass(slots=True)
class _Count:
    since: datetime
    taken: int = 0
    left_out: int = 0


class Bound:
    """How often in a while something of one name is written down."""

    def __init__(self, clock: Clock, most: int = AT_ONCE, window: timedelta = WINDOW) -> None:
        self._clock = clock
        self._most = most
        self._window = window
        self._counts: dict[str, _Count] = {}

    def take(self, name: str) -> int | None:
        """How many were left out since the last that was taken; None if this is one of them."""
        now = self._clock()
        count = self._counts.setdefault(name, _Count(now))
        if now - count.since >= self._window:
            count.since, count.taken = now, 0
        if count.taken >= self._most:
            count.left_out += 1
            return None
        count.taken += 1
        left_out, count.left_out = count.left_out, 0
        return left_out

    def leave_out(self, name: str, number: int = 1) -> None:
        """So many more are left out, for another reason."""
        self._counts.setdefault(name, _Count(self._clock())).left_out += number

    def forget(self, name: str) -> None:
        self._counts.pop(name, None)


class AuditRecorder:
    """Adds events to the audit log without secrets."""

    def __init__(self, journal: Journal, redact: Redact) -> None:
        self._journal = journal
        self.redact = redact
        self.clock = journal.clock
        # A server can repeat some events at will, so these are counted for each server.
        self.bound = Bound(journal.clock)

    def note(
        self, kind: Type, actor: str, server: str = "", *, details: Mapping[str, object] = _NOTHING
    ) -> None:
        """Record an event about a server, or about no server."""
        self.put(kind, (actor, kind_of(actor)), (server, ""), details)

    def put(
        self,
        kind: Type,
        actor: tuple[str, PartyKind],
        place: tuple[str, str],
        details: Mapping[str, object],
        *,
        result: Result = Result.SUCCESS,
        trace: str = "",
    ) -> None:
        """Record an event about a server and its tool (`place`)."""
        party, of_kind = actor
        self._journal.note(
            Event(
                *(kind, party, self.clock(), of_kind, *place, result),
                *(trace, "", details),
            )
        )
