"""What follows from pushes, done: claimed, tried, settled; by any node, also for one that died.

Rule 1: whoever admits a push holds it first. A claim that is not settled in time lapses, and
        another node takes it over; so each push is done at least once.
Rule 2: what is done twice has its effect once: by the push's key, at whoever brings it about.
Rule 3: one destination that fails keeps no other waiting; each push is tried by itself, ever more
        seldom, and after its time has failed, where people see it.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from comity.kernel.chores import Chores
from comity.kernel.live.noting import Deed, Noting
from comity.kernel.trouble_log import TroubleLog
from comity.ports.pushes import Claim, PushRecords
from comity.rules import pushes as rules
from comity.rules.pushes import Patience
from comity.wire.audit import Result, Type
from comity.wire.errors import MalformedMessage, Misconfigured, Unavailable
from comity.wire.parties import GATEWAY
from comity.wire.pushes import Goal, KeptPush, PushState

log = logging.getLogger(__name__)

LOOK: Final = timedelta(seconds=1)
LEASE: Final = timedelta(seconds=30)
DEADLINE: Final = timedelta(seconds=10)
"""What one effect may take; well within the lease, so that two nodes seldom try the same."""

AT_ONCE: Final = 64
"""How much a node does at once; what is more is left where any node finds it."""

PRUNED_EVERY: Final = timedelta(minutes=10)
PATIENCE: Final = Patience()

type Effect = Callable[[KeptPush], Awaitable[str]]
"""Brings about what follows from a push; gives the turn that it began, if it did. Raises
Unavailable where it may be tried again, MalformedMessage where that would not help."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long what may take."""

    lease: timedelta = LEASE
    deadline: timedelta = DEADLINE
    look: timedelta = LOOK
    remembered: timedelta = timedelta(days=30)
    patience: Patience = PATIENCE


class Doing:
    """Does for this node what follows from pushes that any node has admitted."""

    def __init__(
        self,
        records: PushRecords,
        effects: Mapping[Goal, Effect],
        noting: Noting,
        clock: Callable[[], datetime],
        times: Times | None = None,
    ) -> None:
        self.stirred = asyncio.Event()
        self.records = records
        self.clock = clock
        self._effects = effects
        self._noting = noting
        self._times = times or Times()
        # A run's own: nobody else ever has it.
        self.holder = f"push-{secrets.token_hex(12)}"
        self._under_way: dict[int, asyncio.Future[KeptPush]] = {}
        self._chores = Chores("pushes")
        # Whether more is due than this node has begun with.
        self._is_behind = False
        self._pruned_at: datetime | None = None
        self._paused = TroubleLog(log, "Push delivery is paused: %s", "Push delivery goes on.")

    @property
    def has_room(self) -> bool:
        return len(self._under_way) < AT_ONCE

    def claim(self) -> Claim:
        """For what this node is to do, from now on; for no time where it has enough to do."""
        if self.has_room:
            return Claim(self.holder, self.clock() + self._times.lease)
        self._is_behind = True
        return Claim(self.holder, self.clock())

    def do(self, kept: KeptPush) -> asyncio.Future[KeptPush]:
        """Begin with what this node has claimed; done once it is settled, one way or the other."""
        future: asyncio.Future[KeptPush] = asyncio.get_running_loop().create_future()
        self._under_way[kept.number] = future
        self._chores.start(self._do(kept, future), at_once=True)
        return future

    async def run(self) -> None:
        """Until cancelled; a store that is away is waited for."""
        while True:
            try:
                await self.look()
                self._paused.end()
            except (Unavailable, Misconfigured) as problem:
                self._paused.begin(problem)
            except Exception:
                log.exception("doing what follows from pushes ended in a bug")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._times.look.total_seconds()):
                    await self.stirred.wait()
            self.stirred.clear()

    async def look(self) -> None:
        """Begin with all that is due, as far as there is room. Raises Unavailable."""
        now = self.clock()
        if self._pruned_at is None or now - self._pruned_at >= PRUNED_EVERY:
            self._pruned_at = now
            await self.records.prune(now - self._times.remembered)
        room = AT_ONCE - len(self._under_way)
        if room <= 0:
            return
        found = await self.records.claim(self.claim(), now, room)
        self._is_behind = len(found) == room
        for kept in found:
            # One that this node is still at is not begun a second time.
            if kept.number not in self._under_way:
                self.do(kept)

    async def finish(self) -> None:
        """Until all that was begun is settled."""
        await self._chores.finish()

    async def stop(self) -> None:
        """Leave what is claimed to others."""
        self._chores.cancel()
        await self._chores.finish()
        with suppress(Unavailable, Misconfigured):
            await self.records.abandon(self.holder)

    async def _do(self, kept: KeptPush, future: asyncio.Future[KeptPush]) -> None:
        try:
            settled = await self._tried(kept)
            if await self.records.settle(self.holder, settled):
                self._note(settled)
            if not future.done():
                future.set_result(settled)
        except (Unavailable, Misconfigured) as problem:
            # Its claim lapses, and it is done again, which has no second effect.
            log.warning("what came of a push cannot be written down: %s", problem)
        finally:
            self._under_way.pop(kept.number, None)
            future.cancel()
            if self._is_behind:
                self.stirred.set()

    async def _tried(self, kept: KeptPush) -> KeptPush:
        try:
            async with asyncio.timeout(self._times.deadline.total_seconds()):
                inference = await self._effects[kept.route.to](kept)
        except TimeoutError:
            because = f"{kept.route.to} took too long"
        except Unavailable as problem:
            because = str(problem)
        except (MalformedMessage, Misconfigured) as problem:
            return rules.failed(kept, str(problem), self.clock())
        except Exception:
            log.exception("what follows from a push ended in a bug")
            because = "a bug of the gateway's; see its log"
        else:
            return rules.done(kept, inference, self.clock())
        chance = secrets.randbelow(1000) / 1000
        return rules.tried(kept, because, self.clock(), self._times.patience, chance)

    def _note(self, kept: KeptPush) -> None:
        """That it is done, or has failed for good; that it is tried again is nobody's news."""
        if kept.state is PushState.WAITING:
            log.info("a push of %r is tried again: %s", kept.push.server, kept.last_error)
            return
        is_done = kept.state is PushState.DONE
        deed = Deed(
            *(kept.push.server, "", kept.push.feature, kept.inference),
            outcome="ok" if is_done else kept.last_error,
            by=GATEWAY,
            details={"event": kept.push.id, "to": str(kept.route), "attempts": kept.attempts},
        )
        if is_done:
            self._noting.keep(Type.PUSH_DONE, deed)
        else:
            log.warning("a push of %r has failed: %s", kept.push.server, kept.last_error)
            self._noting.keep(Type.PUSH_FAILED, deed, Result.FAILURE)
