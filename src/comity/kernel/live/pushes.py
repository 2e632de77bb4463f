"""Pushes, admitted once for each server and event, wherever and how often they come. (MCPL §9)

Rule 1: what is accepted is kept, together with where it goes; what follows is done after that.
Rule 2: the store decides which of many is the first. In a cluster JetStream knows sooner that one
        is not; it is believed where the store has it too, or where nothing else remembers.
Rule 3: who may not push gets an error; what a policy decides is an answer. (D-60)
Rule 4: a push that comes again has no effect, and is told what came of the first.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from comity.kernel.live.hosting import Told
from comity.kernel.live.noting import Deed, Noting
from comity.kernel.live.push_doing import Doing
from comity.kernel.seats import Now
from comity.ports.pushes import Admitted, Firsts
from comity.rules.pushes import Row, route_of
from comity.rules.rates import Rate
from comity.wire.audit import Result, Type
from comity.wire.errors import INVALID_PARAMS, MalformedMessage, Unavailable
from comity.wire.pushes import (
    OF_HOOKS,
    PUSH,
    Goal,
    KeptPush,
    Push,
    PushState,
    Route,
    accepted,
    not_accepted,
    push_in,
)

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
"""How long an answer waits for the turn that a push begins; it is kept by then anyway."""

PER_SERVER: Final = Rate(600, 60.0, 600)
DUPLICATE: Final = "duplicate: an event of this id was accepted before"
NO_ROUTE: Final = "no route: the host does nothing with such events"
CROWDED: Final = "too many events of this server wait already; send it again later"


@dataclass(frozen=True, slots=True)
class PushOptions:
    """What an operator decides of pushes: how many in a minute, how large, how many wait."""

    of_server: Rate | None = PER_SERVER
    of_set: Rate | None = None
    most_bytes: int = 256 * 1024
    most_waiting: int = 10_000
    # Whether the store outlives this process, and all nodes have the same.
    is_lasting: bool = True


class Paces:
    """How much each server, and each of its feature sets, has pushed lately, at this node."""

    def __init__(self, options: PushOptions, now: Now) -> None:
        self._options = options
        self._now = now
        self._due: dict[str, float] = {}

    def wait(self, server: str, feature: str) -> float:
        """How long a push has to wait; zero: it may pass, and is counted."""
        now, found = self._now(), list[tuple[str, Rate]]()
        if self._options.of_server is not None:
            found.append((server, self._options.of_server))
        if self._options.of_set is not None:
            found.append((f"{server}/{feature}", self._options.of_set))
        wait = max((rate.wait(self._due.get(name, 0.0), now) for name, rate in found), default=0.0)
        if not wait:
            for name, rate in found:
                self._due[name] = rate.after(self._due.get(name, 0.0), now)
        return wait


class Pushes:
    """Who takes pushes in, at this node."""

    def __init__(
        self,
        rows: Sequence[Row],
        doing: Doing,
        noting: Noting,
        options: PushOptions | None = None,
        now: Now | None = None,
    ) -> None:
        self.doing = doing
        self.options = options or PushOptions()
        # Who knows sooner than the store, where there are several nodes.
        self.firsts: Firsts | None = None
        self._rows = tuple(rows)
        self._noting = noting
        self._paces = Paces(self.options, now or asyncio.get_running_loop().time)

    async def answer(self, told: Told) -> Mapping[str, object]:
        """What a server is told that pushes something. Raises MalformedMessage, Unavailable."""
        server = told.by.server
        feature = "" if told.feature is None else told.feature.name
        if len(told.params) > self.options.most_bytes:
            most = self.options.most_bytes
            raise MalformedMessage(f"{PUSH}: an event has at most {most} bytes", INVALID_PARAMS)
        if server.startswith(OF_HOOKS):
            raise MalformedMessage(f"{PUSH}: no server is called so", INVALID_PARAMS)
        if because := self.hold_back(server, feature):
            return not_accepted(because)
        push = push_in(server, told.params)
        route = route_of(self._rows, push)
        if route is None:
            self.refused(push.server, push.feature, NO_ROUTE)
            return not_accepted(NO_ROUTE)
        found = await self.admit(push, route)
        if found is None:
            return not_accepted(CROWDED)
        if not found.is_new:
            return not_accepted(DUPLICATE, found.kept.inference)
        return accepted(await self.begun(found.kept))

    def hold_back(self, server: str, feature: str) -> str:
        """Why it has to wait; empty where it need not, and it is counted."""
        wait = self._paces.wait(server, feature)
        if not wait:
            return ""
        self.refused(server, feature, "rate")
        return f"rate: too many events; try again in {wait:.1f} s"

    async def admit(self, push: Push, route: Route) -> Admitted | None:
        """Keep a push with its route, unless it was kept before; None where too many wait."""
        known = await self._known(push, route)
        if known is not None:
            return Admitted(known, is_new=False)
        now = self.doing.clock()
        kept = KeptPush(push, route, now, now)
        if route.to is Goal.NOTHING:
            kept = KeptPush(push, route, now, now, state=PushState.DONE, done_at=now)
        found = await self.doing.records.add(kept, self.doing.claim(), self.options.most_waiting)
        if found is None:
            self.refused(push.server, push.feature, "crowded")
        elif found.is_new:
            details = {"event": push.id, "to": str(route)}
            deed = Deed(push.server, PUSH, push.feature, details=details)
            self._noting.keep(Type.PUSH_RECEIVED, deed)
        return found

    async def begun(self, kept: KeptPush) -> str:
        """The turn that a new push begins, where that is known soon; it is done in any case."""
        doing = self.begin(kept)
        if doing is None or kept.route.to is not Goal.TURN:
            return ""
        with suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(ANSWER_SECONDS):
                return (await asyncio.shield(doing)).inference
        return ""

    def begin(self, kept: KeptPush) -> asyncio.Future[KeptPush] | None:
        """Do what follows from a new push, without waiting for it; None where nothing does, or not
        at once."""
        is_begun = kept.state is PushState.WAITING and self.doing.has_room
        return self.doing.do(kept) if is_begun else None

    def refused(self, server: str, feature: str, because: str) -> None:
        deed = Deed(server, PUSH, feature, outcome=because.partition(":")[0])
        self._noting.note(Type.PUSH_REFUSED, deed, Result.BLOCKED)

    async def _known(self, push: Push, route: Route) -> KeptPush | None:
        """What is known of a push that is not the first."""
        if self.firsts is None:
            return None
        try:
            if await self.firsts.is_first(push.key):
                return None
        except Unavailable:
            if not self.options.is_lasting:
                raise
            return None
        found = await self.doing.records.get(push.server, push.id)
        if found is None and not self.options.is_lasting:
            now = self.doing.clock()
            return KeptPush(push, route, now, now)
        # Whoever was first may have died before it was kept: then this one is.
        return found
