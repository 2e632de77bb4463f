"""What servers need and nobody has decided, as asks: one for each server and permission. (MGP §3.3)

Rule 1: an ask is open exactly as long as its permission waits; a start anew asks nobody twice.
Rule 2: who answers one writes a grant, and needs what that takes: `ask/answer` and `admin/write`.
        Whoever lacks the second is no authority here. (D-102)
Rule 3: whichever door a permission is decided at, its ask ends as it was decided.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final, Protocol

from comity.kernel.approvals import Approvals
from comity.kernel.chores import Chores
from comity.kernel.permits import Permits
from comity.rules.answers import ends_at
from comity.rules.asks import digest
from comity.rules.permissions import SUBJECT, Decided, is_writable, meaning_of, risk_of
from comity.wire.asks import Answer, Ask, Kind, State, Verdict
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.grants import ADMIN_WRITE, PERMISSION, Effect, Grant
from comity.wire.parties import GATEWAY, Actor, PartyKind
from comity.wire.security import Decision

log = logging.getLogger(__name__)

LASTS: Final = timedelta(days=7)
"""How long a permission can be decided before it is asked for once more."""

ABOUT: Final = "permission"
_EFFECTS: Final = {State.ACCEPTED: Effect.ALLOW, State.DECLINED: Effect.DENY}
_VERDICTS: Final = {Decision.APPROVED: Verdict.ACCEPT, Decision.DENIED: Verdict.DECLINE}


class Administered(Protocol):
    """Who writes grants down, in the name of whoever may."""

    def demand(self, actor: Actor, verb: str, target: str) -> None: ...
    async def put(self, actor: Actor, grant: Grant) -> Grant: ...


class PermissionAsks:
    """Keeps the inbox true to what waits."""

    def __init__(
        self,
        approvals: Approvals,
        permits: Permits,
        grants: Administered,
        chores: Chores | None = None,
    ) -> None:
        self._approvals = approvals
        self._permits = permits
        self._grants = grants
        self._open: dict[str, dict[str, Ask]] = {}
        self._due: set[str] = set()
        self._one_at_a_time = asyncio.Lock()
        self._chores = chores or Chores("the asks for permissions")
        approvals.scruples[Kind.PERMISSION] = self._why_not
        approvals.deeds[Kind.PERMISSION] = self._act
        approvals.watchers.append(self._heard)
        permits.watch(self.changed)

    def changed(self, server: str) -> None:
        """The permissions of a server stand otherwise than before."""
        self._due.discard(server)
        self._chores.start(self._follow(server))

    def dismissed(self, server: str) -> None:
        """There is no such server any more, and nothing that it could need."""
        self._due.discard(server)
        for ask in self._open.pop(server, {}).values():
            self._chores.start(self._withdraw(ask, "the server was removed"))

    def open_ask(self, server: str, permissions: Iterable[str]) -> str:
        """The id of an ask that is open for one of these; nothing where there is none."""
        known = self._open.get(server, {})
        return next((known[name].id for name in permissions if name in known), "")

    def look(self) -> None:
        """Try again what could not be done."""
        for server in list(self._due):
            self.changed(server)

    async def settle(self) -> None:
        """Until all is done that was begun."""
        await self._chores.finish()

    async def _follow(self, server: str) -> None:
        try:
            async with self._one_at_a_time:
                await self._ask_and_end(server)
        except (Unavailable, MalformedMessage) as error:
            self._due.add(server)
            log.info("what server %r needs is not asked for yet: %s", server, error)

    async def _ask_and_end(self, server: str) -> None:
        decided = dict(self._permits.of(server).decided)
        known = self._open.setdefault(server, {})
        for name, ask in list(known.items()):
            if name not in decided or not _waits(name, decided[name]):
                await self._end(ask, decided.get(name))
        for name, each in decided.items():
            if _waits(name, each) and each.by != GATEWAY and name not in known:
                ask = await self._approvals.open(self._approvals.new(_question(server, name)))
                if ask.state is State.ACCEPTED:
                    # Somebody has said so, and we ended before it was written down.
                    await self._write(ask, Actor(ask.answers[-1].by, PartyKind.PERSON))
                elif self._open.get(server) is not known:
                    await self._approvals.withdraw(ask, "the server was removed")
                    return
                elif ask.is_open:
                    known[name] = ask

    async def _end(self, ask: Ask, decided: Decided | None) -> None:
        """What it asks for is decided already, or needed no longer."""
        self._open.get(ask.server, {}).pop(str(ask.about[ABOUT]), None)
        if decided is None:
            await self._approvals.withdraw(ask, "the server needs it no longer")
            return
        answered = None
        if decided.by.startswith(f"{PartyKind.PERSON}:") and decided.decision in _VERDICTS:
            verdict, now = _VERDICTS[decided.decision], self._approvals.clock()
            answer = Answer(decided.by, verdict, now, decided.because)
            answered = await self._approvals.decided(ask, answer)
        if answered is None:
            because = f"it is {decided.decision} by {decided.by}: {decided.because}"
            await self._approvals.withdraw(ask, because)
        elif answered.state is State.ACCEPTED:
            await self._approvals.use(answered, _use_of(answered))

    async def _withdraw(self, ask: Ask, because: str) -> None:
        try:
            await self._approvals.withdraw(ask, because)
        except Unavailable as error:
            log.info("ask %s is not withdrawn: %s", ask.id, error)

    # Who answers, and what follows.

    def _why_not(self, ask: Ask, actor: Actor) -> str | None:
        try:
            self._grants.demand(actor, ADMIN_WRITE, "*")
        except (MalformedMessage, Unavailable):
            return f"what a server may do is decided by who has {ADMIN_WRITE}; you were not granted"
        return None

    async def _act(self, ask: Ask, actor: Actor) -> None:
        async with self._one_at_a_time:
            await self._write(ask, actor)

    async def _write(self, ask: Ask, actor: Actor) -> None:
        """Have what was answered hold: a grant in the name of whoever answered."""
        effect = _EFFECTS.get(ask.state)
        if effect is None:
            return
        said = ask.answers[-1]
        subject, name = SUBJECT + ask.server, str(ask.about[ABOUT])
        ends = ends_at(said.content) if effect is Effect.ALLOW else None
        grant = Grant(subject, PERMISSION, name, effect, justification=said.reason, expires_at=ends)
        await self._grants.put(actor, grant)
        if ask.state is State.ACCEPTED:
            await self._approvals.use(ask, _use_of(ask))
        self._permits.of(ask.server)

    def _heard(self, ask: Ask) -> None:
        if ask.kind is not Kind.PERMISSION or ask.is_open:
            return
        name, known = str(ask.about.get(ABOUT, "")), self._open.get(ask.server, {})
        if name in known and known[name].id == ask.id:
            del known[name]
            if ask.state in (State.ACCEPTED, State.EXPIRED):
                # If it still waits in a while, it is written down after all, or asked anew.
                self._due.add(ask.server)


def _waits(name: str, decided: Decided) -> bool:
    return decided.decision is Decision.DEFERRED and is_writable(name)


def _use_of(ask: Ask) -> str:
    return f"grant-{ask.id}"


def _question(server: str, name: str) -> Callable[[str, datetime, datetime], Ask]:
    """The ask for one permission, once it has an id and a time."""
    subject, risk = SUBJECT + server, risk_of(name)
    about = {ABOUT: name, "risk": risk, "meaning": meaning_of(name)}
    return lambda id, at, until: Ask(
        *(id, Kind.PERMISSION, subject, server, ""),
        digest(subject, server, "", PERMISSION, name),
        f"Server {server} needs the permission {name} ({risk}): to {meaning_of(name)}",
        *(about, at, max(until, at + LASTS)),
    )
