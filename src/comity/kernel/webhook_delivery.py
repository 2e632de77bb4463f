"""Brings what waits to its places: claimed, tried, settled; one place's slowness is its own.

Rule 1: of one subscription one post is under way at a time, of one place a few, of one party half
        of all that may be: so nobody's places keep others' waiting.
Rule 2: what was delivered counts once it is settled. Whoever dies in between posts again.
Rule 3: a place that fails for long, or says that it is gone, is posted to no more until its
        subscriber or an operator says so; that is written down.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from comity.kernel.chores import Chores
from comity.kernel.webhooks import Webhooks, secrets_of
from comity.ports.webhooks import Answered, Poster, Sealer, Settlement
from comity.rules import webhooks as rules
from comity.rules.webhooks import Next, Tried, Verdict
from comity.wire.audit import Type
from comity.wire.errors import Misconfigured, Unavailable
from comity.wire.parties import GATEWAY, Actor, PartyKind
from comity.wire.webhooks import Place, Post, Problem, State, Subscription

log = logging.getLogger(__name__)

AT_ONCE: Final = 50
"""How many posts one claim is for."""

LOOK: Final = timedelta(seconds=1)
CROWDED: Final = timedelta(milliseconds=200)
REMEMBERED: Final = timedelta(minutes=10)
PRUNED_EVERY: Final = timedelta(minutes=1)
_OURSELVES: Final = Actor(GATEWAY, PartyKind.SYSTEM)


@dataclass(slots=True)
class _Batch:
    """What has come of one claim so far."""

    one: Subscription
    delivered: list[int] = field(default_factory=list[int])
    tried: list[Post] = field(default_factory=list[Post])
    rest_until: datetime | None = None


class Delivery:
    """Posts for this node what any node has written down."""

    def __init__(
        self,
        hooks: Webhooks,
        poster: Poster,
        sealer: Sealer,
        chance: Callable[[], float] = lambda: secrets.randbelow(1000) / 1000,
    ) -> None:
        self.stirred = asyncio.Event()
        self._hooks = hooks
        self._poster = poster
        self._sealer = sealer
        self._chance = chance
        self._run = secrets.token_hex(8)
        self.node = ""
        self._busy: Counter[str] = Counter()
        self._chores = Chores("webhooks")
        self._pruned_at: datetime | None = None

    @property
    def _holder(self) -> str:
        return f"{self.node}/{self._run}"

    async def run(self, node: str) -> None:
        """Until cancelled. `node` is a name that nobody else who lives has."""
        self.node = node
        period = min(LOOK, self._hooks.options.schedule.again.first).total_seconds()
        is_first = True
        while True:
            try:
                if is_first:
                    # What an earlier run of this node had claimed it brings no more.
                    await self._hooks.records.abandon(f"{node}/")
                    is_first = False
                await self.look()
            except (Unavailable, Misconfigured) as problem:
                log.warning("webhooks cannot be posted to: %s", problem)
                await asyncio.sleep(LOOK.total_seconds())
            except Exception:
                log.exception("posting to webhooks ended in a bug")
                await asyncio.sleep(LOOK.total_seconds())
            try:
                async with asyncio.timeout(period):
                    await self.stirred.wait()
            except TimeoutError:
                pass
            self.stirred.clear()

    async def finish(self) -> None:
        """Until all that was begun is settled."""
        await self._chores.finish()

    async def stop(self) -> None:
        """Leave what is claimed to others."""
        self._chores.cancel()
        await self._chores.finish()
        if self.node:
            with suppress(Unavailable, Misconfigured):
                await self._hooks.records.abandon(f"{self.node}/")

    async def look(self) -> None:
        """Begin with all that is due, as far as there is room. Raises Unavailable."""
        options, now = self._hooks.options, self._hooks.clock()
        if not self._hooks.known:
            return
        if self._pruned_at is None or now - self._pruned_at >= PRUNED_EVERY:
            self._pruned_at = now
            for ended in await self._hooks.records.prune(now, now - REMEMBERED):
                await self._hooks.reread(ended.id)
        room = options.at_once - len(self._chores)
        if room <= 0:
            return
        until = now + self._claimed_for()
        for one in await self._hooks.records.claim(self._holder, now, until, room):
            where = self._hooks.place_of(one)
            names = (f"place {'' if where is None else where.origin}", f"party {one.party}")
            if self._is_crowded(*names):
                later = Settlement(one, now, rest_until=now + CROWDED)
                await self._hooks.records.settle(self._holder, later)
                continue
            self._busy.update(names)
            self._chores.start(self._bring(one, where, names))

    def _claimed_for(self) -> timedelta:
        return 4 * self._hooks.options.deadline

    def _is_crowded(self, place: str, party: str) -> bool:
        options = self._hooks.options
        of_party = max(options.at_once // 2, 1)
        return self._busy[place] >= options.at_once_place or self._busy[party] >= of_party

    async def _bring(self, one: Subscription, where: Place | None, names: tuple[str, ...]) -> None:
        try:
            batch = await self._tried(one, where)
            settlement = Settlement(
                *(batch.one, self._hooks.clock(), tuple(batch.delivered)),
                *(tuple(batch.tried), batch.rest_until),
            )
            if await self._hooks.records.settle(self._holder, settlement):
                await self._tell(one, batch.one)
            self.stirred.set()
        except (Unavailable, Misconfigured) as problem:
            log.warning("what came of posts cannot be written down: %s", problem)
        finally:
            self._busy.subtract(names)
            self._busy += Counter[str]()

    async def _tried(self, one: Subscription, where: Place | None) -> _Batch:
        """Post what is due, in its order, up to the first failure or half of the claim's time."""
        batch, begun = _Batch(one), self._hooks.clock()
        for post in await self._hooks.records.due(one.id, begun, AT_ONCE):
            if self._hooks.clock() - begun > self._claimed_for() / 2:
                break
            answered = await self._post(one, where, post)
            now = self._hooks.clock()
            verdict = _verdict(answered)
            if verdict is Verdict.DELIVERED:
                batch.delivered.append(post.number)
                well = replace(batch.one, failures=0, failing_since=None, last_error="")
                batch.one = replace(well, delivered_at=now)
                continue
            self._failed(batch, post, answered, now)
            if verdict is not Verdict.NEVER:
                break
        return batch

    async def _post(self, one: Subscription, where: Place | None, post: Post) -> Answered | Problem:
        now = self._hooks.clock()
        keys = secrets_of(one, self._sealer, now)
        if where is None or self._hooks.actor_of(one) is None:
            return Problem.FORBIDDEN
        if not keys:
            return Problem.SECRET
        heading = rules.heading(keys, one.id, post.event, now, post.body)
        return await self._poster.post(where, heading, post.body)

    def _failed(
        self, batch: _Batch, post: Post, answered: Answered | Problem, now: datetime
    ) -> None:
        verdict, one = _verdict(answered), batch.one
        problem = answered if isinstance(answered, Problem) else rules.problem_of(answered.status)
        if verdict is Verdict.NEVER:
            lost = replace(post, attempts=post.attempts + 1, failed=True, last_error=problem)
            batch.tried.append(lost)
            batch.one = replace(one, last_error=problem)
            return
        since = one.failing_since or now
        one = replace(one, failures=one.failures + 1, failing_since=since, last_error=problem)
        schedule = self._hooks.options.schedule
        is_over = rules.is_given_up(schedule, one.failing_since, now)
        if is_over or verdict is Verdict.GONE:
            one = replace(one, state=State.DISABLED)
        after = self._after(post, one, answered, now)
        again = replace(
            post,
            attempts=post.attempts + 1,
            due_at=after.due_at or now,
            failed=after.due_at is None,
            last_error=problem,
        )
        batch.tried.append(again)
        batch.one, batch.rest_until = one, after.rest_until

    def _after(
        self, post: Post, one: Subscription, answered: Answered | Problem, now: datetime
    ) -> Next:
        asked = answered.again_in if isinstance(answered, Answered) else timedelta(0)
        tried = Tried(post.attempts + 1, one.failures, post.at)
        schedule = self._hooks.options.schedule
        return rules.after_failure(schedule, tried, now, self._chance(), asked)

    async def _tell(self, before: Subscription, one: Subscription) -> None:
        if one.state is State.ACTIVE or before.state is one.state:
            return
        await self._hooks.reread(one.id)
        self._hooks.wrote(Type.WEBHOOK_DISABLED, _OURSELVES, one, reason=one.last_error)
        log.warning("nothing more is posted to webhook %s: %s", one.id, one.last_error)


def _verdict(answered: Answered | Problem) -> Verdict:
    return Verdict.AGAIN if isinstance(answered, Problem) else rules.verdict(answered.status)
