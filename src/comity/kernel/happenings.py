"""What happens around calls, as entries of the journal: of servers, permissions, grants and keys.

Rule 1: the actor is who did it: the party that gave the order, the server where it acted by itself,
        and `system:gateway` for whatever follows from a policy or from time.
Rule 2: words that others chose are written down without secrets, and what a server can bring about
        as often as it likes is bounded: of the rest only the number is kept.
Rule 3: every entry has a trace: that of the request by which it came about, or one of its own.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from comity.kernel.journal import Journal
from comity.kernel.standing import Transition
from comity.rules.patterns import parts
from comity.rules.permissions import SUBJECT, Decided
from comity.wire.audit import Event, Result, Type, stamp
from comity.wire.grants import PERMISSION, Effect, Grant
from comity.wire.lifecycle import Reason, State
from comity.wire.parties import GATEWAY, Actor, Key, Party, PartyKind
from comity.wire.pins import Pin
from comity.wire.security import Decision

MOST_NAMED: Final = 100
"""How many of a server's tools one entry names; of the others it says how many they are."""

AT_ONCE: Final = 100
WINDOW: Final = timedelta(seconds=10)

_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})
LEFT_OUT: Final = "left_out"
"""The member of `details` that says how many of a kind came before and were too many."""

type Redact = Callable[[object], object]
type Clock = Callable[[], datetime]

_KINDS: Final = {f"{kind}:": kind for kind in PartyKind}
_ENDED: Final = frozenset({State.ERROR, State.DISCONNECTED, State.RESTARTING})
_ORDERS: Final[frozenset[str]] = frozenset(Reason)
_OF_EFFECT: Final = {Effect.ALLOW: Type.PERMISSION_GRANTED, Effect.DENY: Type.PERMISSION_DENIED}
_OF_DECISION: Final = {
    Decision.APPROVED: Type.PERMISSION_GRANTED,
    Decision.DENIED: Type.PERMISSION_DENIED,
}


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


class Happenings:
    """Writes into the journal what is neither a call nor an ask."""

    def __init__(self, journal: Journal, redact: Redact) -> None:
        self._journal = journal
        self._redact = redact
        self._connected: set[str] = set()
        self._permissions: dict[tuple[str, str], Decided] = {}
        self._bound = Bound(journal.clock)
        # How a server is reached, as far as that is of interest to whoever reads the journal.
        self.describe: Callable[[str], Mapping[str, object]] = lambda _: _NOTHING

    # Servers

    def stepped(self, step: Transition) -> None:
        """A server went from one state to another."""
        if step.state is State.CONNECTED:
            self._connected.add(step.server)
            details = self.describe(step.server)
            self._note(Type.SERVER_CONNECTED, step.by or GATEWAY, step.server, details=details)
        elif step.state in _ENDED and (step.server in self._connected or step.is_given_up):
            self._disconnected(step)

    def _disconnected(self, step: Transition) -> None:
        was_there = step.server in self._connected
        self._connected.discard(step.server)
        details: dict[str, object] = {"reason": self._redact(step.reason)}
        if step.is_given_up:
            # By this name MGP §11.5 wants it to be found.
            details["restart_limit_exceeded"] = True
        went_by_itself = was_there and step.reason not in _ORDERS and not step.by
        actor = f"{SUBJECT}{step.server}" if went_by_itself else step.by or GATEWAY
        self._note(Type.SERVER_DISCONNECTED, actor, step.server, details=details)
        if step.is_given_up:
            self._note(Type.RESTART_LIMIT_EXCEEDED, GATEWAY, step.server, details=details)

    # What servers may do

    def decided(self, server: str, permissions: Mapping[str, Decided]) -> None:
        """The permissions of a server stand otherwise than before.

        Whoever decides one is written down with that decision; here it is told what follows without
        anybody's word: a policy has decided it, or what was decided has come to its end. (D-11)
        """
        for name, now in permissions.items():
            self._decided(server, name, now)

    def _decided(self, server: str, name: str, now: Decided) -> None:
        if now.by == GATEWAY:
            # Nobody can know just now; what was known before is not undone by that.
            return
        before = self._permissions.get((server, name))
        self._permissions[server, name] = now
        has_ended = before is not None and _has_ended(before, self._journal.clock())
        kind = _change(before, now, has_ended=has_ended)
        if kind is None:
            return
        details: dict[str, object] = {
            "permission": name,
            "decision": now.decision,
            "by": now.by,
            "because": self._redact(now.because),
        }
        if kind is Type.PERMISSION_REVOKED and has_ended:
            details["expired"] = True
        self._note(kind, GATEWAY, server, details=details)

    def claimed(self, server: str, asserted: object) -> None:
        """A server said that something was decided which others decide: it counts for nothing."""
        left_out = self._bound.take(server)
        if left_out is not None:
            details = {"asserted": self._redact(asserted)}
            if left_out:
                details[LEFT_OUT] = left_out
            actor, place = (f"{SUBJECT}{server}", PartyKind.SERVER), (server, "")
            self._put(Type.TESTIMONY, actor, place, details, result=Result.UNKNOWN)

    def dismissed(self, server: str) -> None:
        """A server is gone for good: if one of its name comes, all is decided anew."""
        for each in [each for each in self._permissions if each[0] == server]:
            del self._permissions[each]

    # Grants

    def granted(
        self, actor: Actor, grant: Grant, trace: str = "", *, refused: bool = False
    ) -> None:
        """Somebody wrote an entry, or was not let. (D-16)"""
        about = (grant.subject, grant.verb, grant.target)
        details: dict[str, object] = {"permission": grant.effect}
        kind: Type = Type.ACCESS_GRANTED
        if grant.verb == PERMISSION:
            kind = _OF_EFFECT.get(grant.effect, Type.PERMISSION_REVOKED)
            details = {"permission": grant.target, "decision": grant.effect}
        if grant.justification:
            details["justification"] = self._redact(grant.justification)
        if grant.expires_at is not None:
            details["expires_at"] = stamp(grant.expires_at)
        if grant.where is not None:
            details["where"] = self._redact(dict(grant.where))
        self._granting(kind, actor, about, details, trace=trace, refused=refused)

    def revoked(
        self, actor: Actor, about: tuple[str, str, str], trace: str = "", *, refused: bool = False
    ) -> None:
        """Somebody took back the entry of that subject, verb and target, or was not let."""
        is_permission = about[1] == PERMISSION
        kind = Type.PERMISSION_REVOKED if is_permission else Type.ACCESS_REVOKED
        details: dict[str, object] = {"permission": about[2]} if is_permission else {}
        self._granting(kind, actor, about, details, trace=trace, refused=refused)

    def _granting(
        self,
        kind: Type,
        actor: Actor,
        about: tuple[str, str, str],
        details: Mapping[str, object],
        *,
        trace: str,
        refused: bool,
    ) -> None:
        subject, verb, target = about
        server, tool = "", ""
        if verb == PERMISSION and subject.startswith(SUBJECT):
            server = subject.removeprefix(SUBJECT)
        elif "/" in target:
            # A pattern is no name of anything: what has one is found by its details.
            server, tool = ("" if "*" in each else each for each in parts(target))
        said = {"subject": subject, "verb": verb, "target": target, **details}
        result = Result.BLOCKED if refused else Result.SUCCESS
        place = (server, tool)
        self._put(kind, (actor.party, actor.kind), place, said, result=result, trace=trace)

    # Keys and those who hold them

    def key_issued(self, by: str, key: Key, replaces: str = "") -> None:
        details: dict[str, object] = {
            "key": key.id,
            "party": key.party,
            "label": self._redact(key.label),
            "permissions": list(key.permissions[:MOST_NAMED]),
            "expires_at": None if key.expires_at is None else stamp(key.expires_at),
        }
        if replaces:
            details["replaces"] = replaces
        self._note(Type.KEY_ISSUED, by, details=details)

    def key_revoked(self, by: str, key: Key, counts_until: datetime | None = None) -> None:
        """A key counts no more, or for some time only."""
        details: dict[str, object] = {"key": key.id, "party": key.party}
        if counts_until is not None:
            details["counts_until"] = stamp(counts_until)
        self._note(Type.KEY_REVOKED, by, details=details)

    def party_changed(self, by: str, party: Party, change: str) -> None:
        details = {"party": party.id, "kind": party.kind, "change": change}
        self._note(Type.PARTY_CHANGED, by, details=details)

    # What servers offer

    def definitions_changed(self, server: str, tools: Mapping[str, str]) -> None:
        """Tools are described otherwise than was accepted; each by its name, with its digest."""
        left_out = self._bound.take(server)
        if left_out is not None:
            said = {LEFT_OUT: left_out} if left_out else {}
            details = {**_tools(tools.items()), **said}
            self._note(Type.DEFINITION_CHANGED, f"{SUBJECT}{server}", server, details=details)

    def definitions_accepted(self, server: str, pins: Iterable[Pin], by: str) -> None:
        """Tools may be used as they are described now."""
        details = _tools([(pin.tool, pin.digest) for pin in pins])
        self._note(Type.DEFINITION_ACCEPTED, by, server, details=details)

    def _note(
        self, kind: Type, actor: str, server: str = "", *, details: Mapping[str, object] = _NOTHING
    ) -> None:
        self._put(kind, (actor, kind_of(actor)), (server, ""), details)

    def _put(
        self,
        kind: Type,
        actor: tuple[str, PartyKind],
        place: tuple[str, str],
        details: Mapping[str, object],
        *,
        result: Result = Result.SUCCESS,
        trace: str = "",
    ) -> None:
        party, of_kind = actor
        self._journal.note(
            Event(
                *(kind, party, self._journal.clock(), of_kind, *place, result),
                *(trace, "", details),
            )
        )


def _change(before: Decided | None, now: Decided, *, has_ended: bool) -> Type | None:
    """What is to be told of how a permission stands now; None where nothing is."""
    was = None if before is None else before.decision
    if now.decision is was:
        return None
    if before is not None and was is Decision.APPROVED:
        # Who took it back, or denied it, was written down with that.
        return None if ":" in before.by + now.by and not has_ended else Type.PERMISSION_REVOKED
    return None if ":" in now.by else _OF_DECISION.get(now.decision)


def _has_ended(decided: Decided, now: datetime) -> bool:
    return decided.expires_at is not None and decided.expires_at <= now


def _tools(named: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Tools with the digests of their definitions, as far as one entry goes."""
    found = list(named)
    details: dict[str, object] = {"number": len(found), "tools": dict(found[:MOST_NAMED])}
    if len(found) > MOST_NAMED:
        details["more"] = len(found) - MOST_NAMED
    return details
