"""Servers that others bring: registered at run time, let in within bounds, let go again. (MGP §15)

Rule 1: nothing starts before it was looked at, allowed by a grant or by a person, and written down;
        whether it is still allowed is looked at once more, with nothing between that and the start.
Rule 2: who registered it follows from the link, and its id stays that party's: what others were
        granted on it is not inherited by whoever takes the name next.
Rule 3: whoever may not know of a server is told the same as if there were none.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol

from comity.kernel.chores import Chores
from comity.kernel.grants import Clock
from comity.kernel.held import Holding
from comity.kernel.own_methods import Asked, OwnMethods
from comity.kernel.registration_asks import HeldRegistration, demand_authority
from comity.kernel.registration_notes import RegistrationNotes
from comity.kernel.registration_rights import Guest, Rights
from comity.kernel.servers import Server
from comity.kernel.trouble_log import TroubleLog
from comity.rules import registering
from comity.rules.refusals import Refusal
from comity.wire import jsonrpc, registration
from comity.wire.audit import Result
from comity.wire.errors import (
    INVALID_PARAMS,
    UPSTREAM_FAILED,
    MalformedMessage,
    Unavailable,
)
from comity.wire.grants import Effect
from comity.wire.lifecycle import Reason, State
from comity.wire.negotiation import Extension
from comity.wire.parties import GATEWAY, Actor, PartyKind
from comity.wire.registration import DEREGISTER, REGISTER, Wanted

log = logging.getLogger(__name__)

NOT_THERE: Final = "there is no server of this id that you registered"
_LATE: Final = timedelta(seconds=5)
"""How much longer than a start may take somebody waits for it."""

type Answer = Mapping[str, object]


class Lodging(Protocol):
    """Who looks at what is brought, and has rooms for it."""

    async def prepare(self, wish: Wanted) -> Wanted | Refusal:
        """Look at what would run, and take it as it is now."""
        ...

    async def admit(self, wish: Wanted, owner: str, still: Callable[[], None]) -> Server:
        """Have it there; `still` raises, right before it starts, where that may not be any more."""
        ...

    async def dismiss(self, server: str, owner: str, reason: Reason) -> None: ...


@dataclass(frozen=True, slots=True)
class Stay:
    """How long what is registered stays, and what its creator gets."""

    with_session: bool = True
    longest: timedelta = timedelta(hours=8)
    is_kept: bool = False
    start_within: timedelta = timedelta(seconds=60)


class Registrations:
    """Everything that was registered on this node."""

    def __init__(
        self,
        lodging: Lodging,
        rights: Rights,
        holding: Holding,
        notes: RegistrationNotes,
        stay: Stay,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self.rights = rights
        self.tools_of: Callable[[Actor, str], list[str]] = lambda actor, server: []
        # How an answer looks in the modern era.
        self.stamp: Callable[[dict[str, object]], Answer] = lambda answer: answer
        self._lodging = lodging
        self._there = rights.there
        self._names = rights.names
        self._holding = holding
        self._notes = notes
        self._stay = stay
        self._clock = clock
        self._chores = Chores("servers that were registered")
        self._is_ending = False
        self._unknown = TroubleLog(
            log, "Cannot load registered servers: %s", "The registered servers are loaded."
        )
        demand_authority(holding.approvals, rights)

    def join(self, methods: OwnMethods) -> None:
        methods.add(REGISTER, Extension.DISCOVERY, self._register)
        methods.add(DEREGISTER, Extension.DISCOVERY, self._deregister)

    async def open(self) -> None:
        """Know again whose names are whose, and begin what was to outlive a restart."""
        try:
            found = await self._names.load()
        except Unavailable as error:
            self._unknown.begin(error)
            return
        self._unknown.end()
        for each in found:
            if self._stay.is_kept and each.entry and each.server not in self._there:
                self._chores.start(self._return(each.server, each.created_by, each.entry))

    def look(self, patience: float) -> None:
        """Let go what has been there for as long as it may."""
        now = self._clock()
        if not self._names.is_loaded and not len(self._chores):
            self._chores.start(self.open())
        for id, guest in list(self._there.items()):
            if guest.ends_at is not None and guest.ends_at <= now:
                self._leave(id, GATEWAY, "it has been there for as long as it may")

    def stop(self) -> None:
        """The gateway ends, and all servers with it."""
        self._is_ending = True
        self._chores.cancel()

    # Coming.

    async def _register(self, asked: Asked) -> None:
        actor, wish = asked.actor, registration.wanted(asked.params)
        if not self._names.is_loaded:
            await self._names.load()
        refusal = self.rights.why_not(actor, wish)
        if refusal is None:
            prepared = await self._lodging.prepare(wish)
            if isinstance(prepared, Refusal):
                refusal = prepared
            else:
                wish, refusal = prepared, self.rights.why_not(actor, prepared)
        if refusal is not None:
            self._notes.registered(actor, wish, Result.BLOCKED, refusal.because)
            asked.call.turn_down(refusal)
        elif self.rights.effect(actor, wish) is Effect.ALLOW:
            self._chores.start(self._reply(asked, self._begin(asked, wish)))
        else:
            held = HeldRegistration(
                self._holding, asked, wish, partial(self.rights.why_not, actor, wish)
            )
            held.begin(partial(self._reply_held, asked, wish))

    async def _begin(self, asked: Asked, wish: Wanted) -> Answer:
        """Start what is allowed; whatever waits here, it is looked at again right before."""
        actor = asked.actor
        call, ask = asked.call, asked.call.answered_by
        demand = partial(self.rights.demand, actor, wish, is_approved=bool(ask))
        demand(None)
        ends_at = self._clock() + self._stay.longest
        guest = Guest(wish, actor.party, None if self._is_kept(wish) else ends_at)
        self._there[wish.id] = guest
        try:
            await self._notes.intended(actor, wish, ask, call.traced())
            server = await self._housed(guest, lambda: demand(guest))
        except BaseException as error:
            if self._there.get(wish.id) is guest:
                del self._there[wish.id]
            self._notes.registered(actor, wish, Result.FAILURE, str(error), call.traced())
            raise
        if self._there.get(wish.id) is not guest:
            raise Unavailable(f"server {wish.id!r} was deregistered while it started")
        self._notes.registered(actor, wish, Result.SUCCESS, "", call.traced())
        self._bind(asked, wish.id, guest)
        return {
            "id": wish.id,
            "status": server.state,
            "trust_level": "sandboxed",
            "created_by": guest.owner,
            "lives": "session" if self._goes_with_session(wish) else "deregistered",
            "tools": self.tools_of(actor, wish.id),
        }

    async def _housed(self, guest: Guest, still: Callable[[], None]) -> Server:
        """There, and connected; or gone again, with why."""
        id, owner = guest.wish.id, guest.owner
        await self._names.take(guest.wish, owner, is_kept=self._is_kept(guest.wish))
        server = await self._lodging.admit(guest.wish, owner, still)
        within = (self._stay.start_within + _LATE).total_seconds()
        try:
            async with asyncio.timeout(within):
                await server.tried.wait()
        except TimeoutError:
            pass
        if server.state is State.CONNECTED:
            return server
        because = f"server {id!r} does not run: {server.reason or 'it did not start in time':.600}"
        await self._lodging.dismiss(id, owner, Reason.OPERATOR_REQUEST)
        await self._names.end(id, owner)
        raise Unavailable(because, UPSTREAM_FAILED)

    def _goes_with_session(self, wish: Wanted) -> bool:
        """What was made on the spot does, whatever else stays. (D-31)"""
        return self._stay.with_session or wish.is_made

    def _is_kept(self, wish: Wanted) -> bool:
        return self._stay.is_kept and not self._goes_with_session(wish)

    def _bind(self, asked: Asked, id: str, guest: Guest) -> None:
        """Have it go with its client's session, where it is one of that."""
        session = asked.session
        if session is None or not self._goes_with_session(guest.wish):
            return
        leave = partial(self._leave, id, guest.owner, "the session of its creator has ended", guest)
        if session.closed:
            leave()
        else:
            session.farewells[self, id] = leave

    async def _return(self, id: str, owner: str, entry: Mapping[str, object]) -> None:
        """Begin again what was to outlive a restart, if it could be registered today."""
        try:
            wish = registration.kept(id, entry)
            prepared = await self._lodging.prepare(wish)
            problem = registering.problem(wish, self.rights.allowed)
            if id in self.rights.configured():
                problem = "a file has a server of this id now"
            if isinstance(prepared, Refusal) or problem is not None:
                because = problem if not isinstance(prepared, Refusal) else prepared.because
                log.warning("server %r of %s does not return: %s", id, owner, because)
                return
            self._there[id] = Guest(prepared, owner, None)
            await self._lodging.admit(prepared, owner, lambda: None)
        except (MalformedMessage, Unavailable) as error:
            self._there.pop(id, None)
            log.warning("server %r of %s does not return: %s", id, owner, error)

    # Going.

    async def _deregister(self, asked: Asked) -> None:
        unwanted, actor = registration.unwanted(asked.params), asked.actor
        guest = self._there.get(unwanted.id)
        is_owner = guest is not None and guest.owner == actor.party != ""
        rules = self.rights.may_administer(actor, unwanted.id)
        if guest is None or not (is_owner or rules):
            raise MalformedMessage(NOT_THERE, INVALID_PARAMS)
        self._chores.start(
            self._reply(asked, self._take_away(unwanted.id, actor, unwanted.reason, not is_owner))
        )

    async def _take_away(self, id: str, actor: Actor, why: str, frees: bool) -> Answer:
        was_there = await self._let_go(id, actor.party, why, frees=frees)
        return {"id": id, "deregistered": was_there}

    def _leave(self, id: str, by: str, why: str, guest: Guest | None = None) -> None:
        if self._is_ending or (guest is not None and self._there.get(id) is not guest):
            return
        self._chores.start(self._gone(id, by, why))

    async def _gone(self, id: str, by: str, why: str) -> None:
        await self._let_go(id, by, why)

    async def _let_go(self, id: str, by: str, why: str, *, frees: bool = False) -> bool:
        """Let its calls finish and end it; whether it was there."""
        guest = self._there.pop(id, None)
        if guest is None:
            return False
        actor = Actor(by, PartyKind.SYSTEM if by == GATEWAY else PartyKind.AGENT)
        self._notes.deregistered(actor, guest.wish, guest.owner, why)
        await self._lodging.dismiss(id, guest.owner, Reason.OPERATOR_REQUEST)
        try:
            await (self._names.free(id) if frees else self._names.end(id, guest.owner))
        except Unavailable as error:
            log.warning("that server %r is gone is not written down yet: %s", id, error)
        return True

    # What is said.

    async def _reply_held(self, asked: Asked, wish: Wanted) -> None:
        await self._reply(asked, self._begin(asked, wish))

    async def _reply(self, asked: Asked, reply: Awaitable[Answer]) -> None:
        """Answer once it is done; who has left meanwhile is told nothing."""
        call = asked.call
        try:
            answer = {**await reply}
        except (Unavailable, MalformedMessage) as error:
            if not call.outbox.final:
                call.failed(error)
            return
        if not call.outbox.final:
            told = answer if asked.session is not None else self.stamp(answer)
            call.answered(jsonrpc.result(call.asker_id, told))
