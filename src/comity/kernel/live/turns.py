"""Turns: begun once for each cause, taken by one node at a time, and by another where that dies.

Rule 1: once `begin` has returned, the turn is kept, and will be taken: here, or wherever there is
        room first.
Rule 2: who takes a turn says again and again that it still does. Who is not heard of loses it, and
        writes nothing of it any more.
Rule 3: what fails because something is away is tried again, a few times; then the turn has failed,
        and the next one of its conversation follows.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from comity.kernel.chores import Chores
from comity.kernel.live import turn_errands
from comity.kernel.live.noting import Deed, Noting
from comity.kernel.live.parts import Errand, Saying, Taken
from comity.kernel.live.turn_taking import Company, Taking
from comity.kernel.live.turn_words import Followed, Words
from comity.ports.conversations import KeptTurn, State
from comity.wire.audit import Result, Type
from comity.wire.contents import text_of
from comity.wire.errors import (
    TIMEOUT,
    UPSTREAM_FAILED,
    MalformedMessage,
    Misconfigured,
    Unavailable,
)

log = logging.getLogger(__name__)

LOOK: Final = timedelta(seconds=1)
LEASE: Final = timedelta(seconds=30)
LONGEST_WAIT: Final = timedelta(hours=1)
LONGEST_PAUSE: Final = timedelta(minutes=1)
PRUNED_EVERY: Final = timedelta(minutes=10)
_ENDED: Final = {State.DONE: Result.SUCCESS, State.WITHHELD: Result.BLOCKED}


@dataclass(frozen=True, slots=True)
class Pace:
    """How many turns one node takes at once, and how it takes them."""

    at_once: int = 16
    look: timedelta = LOOK
    lease: timedelta = LEASE
    # How long what was said is kept; zero keeps it for good.
    kept: timedelta = timedelta(0)


class TurnTaker:
    """Who takes turns at this node."""

    def __init__(
        self,
        company: Company,
        noting: Noting,
        pace: Pace | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.followed = Followed(company.hide)
        self.records = company.records
        self.clock = clock
        self._with = company
        self._taking = Taking(company)
        self._noting = noting
        self._pace = pace or Pace()
        self._run = secrets.token_hex(8)
        self._node = ""
        self._stirred = asyncio.Event()
        self._chores = Chores("turns")
        self._pruned_at: datetime | None = None
        self._is_stopping = False

    # What others ask of it.

    async def begin(self, errand: Errand) -> Taken:
        """Raises Unavailable, and MalformedMessage where it cannot be written down."""
        depth = max(errand.cause.depth, self._with.echoes.depth_of(errand.cause.server))
        errand = replace(errand, cause=replace(errand.cause, depth=depth))
        new = f"inf_{secrets.token_hex(12)}"
        most = self._with.bounds.message_length
        begun = await self.records.begin(turn_errands.kept(errand, new, self.clock(), most))
        if begun.id == new:
            self._note(Type.TURN_BEGUN, begun)
            self._stirred.set()
        return Taken(begun.id, begun.conversation, is_new=begun.id == new)

    async def finished(self, inference: str) -> str:
        try:
            async with asyncio.timeout(LONGEST_WAIT.total_seconds()):
                turn = await self._ended(inference)
        except TimeoutError:
            raise Unavailable(f"turn {inference} takes very long", TIMEOUT) from None
        if turn.state is not State.DONE:
            raise Unavailable(turn.facts.error or "the turn failed", UPSTREAM_FAILED)
        return text_of(turn.said)

    async def _ended(self, inference: str) -> KeptTurn:
        while True:
            turn = await self.records.get(inference)
            if turn is None:
                raise Unavailable(f"there is no turn {inference!r:.80}")
            if not turn.state.is_open:
                return turn
            await self._until_other(inference, self._pace.look)

    async def so_far(self, inference: str, known: int, within: timedelta) -> tuple[KeptTurn, str]:
        """A turn, and its words beyond those that are known; waits for some, but not longer."""
        words = self.followed.known(inference)
        if words is not None:
            await words.more_than(known, within.total_seconds())
        turn = await self.records.get(inference)
        if turn is None:
            raise Unavailable(f"there is no turn {inference!r:.80}")
        if words is None and turn.state.is_open:
            # Another node takes it.
            await asyncio.sleep(min(within, self._pace.look).total_seconds())
            turn = await self.records.get(inference) or turn
        whole = "" if words is None else words.shown
        if not turn.state.is_open and text_of(turn.said).startswith(whole):
            whole = text_of(turn.said)
        return turn, whole[known:]

    async def _until_other(self, inference: str, within: timedelta) -> None:
        words = self.followed.known(inference)
        if words is None or words.is_over:
            await asyncio.sleep(min(within.total_seconds(), 0.2))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds()):
                await words.over()

    # How turns are taken.

    @property
    def _holder(self) -> str:
        return f"{self._node}/{self._run}"

    async def run(self, node: str) -> None:
        """Until cancelled. `node` is a name that nobody else who lives has."""
        self._node = node
        is_first = True
        while True:
            try:
                if is_first:
                    # What an earlier run of this node had begun it takes up again at once.
                    await self.records.abandon(f"{node}/")
                    is_first = False
                await self.look()
            except (Unavailable, Misconfigured) as problem:
                log.warning("turns cannot be taken: %s", problem)
                await asyncio.sleep(self._pace.look.total_seconds())
            except Exception:
                log.exception("taking turns ended in a bug")
                await asyncio.sleep(self._pace.look.total_seconds())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.look.total_seconds()):
                    await self._stirred.wait()
            self._stirred.clear()

    async def look(self) -> None:
        """Begin with all that is due, as far as there is room. Raises Unavailable."""
        now = self.clock()
        await self._prune(now)
        room = self._pace.at_once - len(self._chores)
        if room <= 0 or self._is_stopping:
            return
        until = now + self._pace.lease
        for turn in await self.records.claim(self._holder, now, until, room):
            self._chores.start(self._take(turn))

    async def stop(self) -> None:
        """Leave what is under way to others."""
        self._is_stopping = True
        self._chores.cancel()
        await self._chores.finish()
        self._with.after.stop()
        if self._node:
            with suppress(Unavailable, Misconfigured):
                await self.records.abandon(f"{self._node}/")

    async def finish(self) -> None:
        """Until all that was begun here has ended."""
        await self._chores.finish()

    async def _prune(self, now: datetime) -> None:
        if not self._pace.kept:
            return
        if self._pruned_at is None or now - self._pruned_at >= PRUNED_EVERY:
            self._pruned_at = now
            await self.records.prune(now - self._pace.kept)

    async def _take(self, turn: KeptTurn) -> None:
        """Take a claimed turn to its end, and say meanwhile that it is under way."""
        words = self.followed.of(turn.id)
        work = asyncio.ensure_future(self._taken(turn, words))
        try:
            while not work.done():
                await asyncio.wait([work], timeout=self._pace.lease.total_seconds() / 3)
                if not work.done() and not await self._is_still_ours(turn):
                    work.cancel()
            await work
        except asyncio.CancelledError:
            log.info("turn %s goes on elsewhere", turn.id)
            if self._is_stopping:
                raise
        except (Unavailable, Misconfigured) as problem:
            log.warning("what came of turn %s cannot be written down: %s", turn.id, problem)
        finally:
            await _ended(work)
            words.end()
            self._stirred.set()

    async def _is_still_ours(self, turn: KeptTurn) -> bool:
        try:
            until = self.clock() + self._pace.lease
            return await self.records.renew(self._holder, turn.id, until)
        except Unavailable:
            # Whether it is, the store decides when something is written.
            return True

    async def _taken(self, turn: KeptTurn, words: Words) -> None:
        try:
            if turn.state is State.WAITING:
                self._show(turn, words)
                turn = await self._decided(turn, words)
            if turn.state is State.DECIDED:
                words.finish(text_of(turn.said))
                turn = await self._uttered(turn)
        except (Unavailable, MalformedMessage) as error:
            turn = await self._failed(turn, error)
        except Exception:
            log.exception("a turn ended in a bug")
            turn = await self._failed(turn, MalformedMessage("the host failed", UPSTREAM_FAILED))
        if not turn.state.is_open:
            self._note(Type.TURN_ENDED, turn)

    async def _decided(self, turn: KeptTurn, words: Words) -> KeptTurn:
        try:
            async with asyncio.timeout(self._with.bounds.whole.total_seconds()):
                decided = await self._taking.decide(turn, words, self._save)
        except TimeoutError:
            raise MalformedMessage("the turn took too long", TIMEOUT) from None
        await self._save(decided)
        return decided

    async def _uttered(self, turn: KeptTurn) -> KeptTurn:
        problem = await self._taking.utter(turn)
        if problem and turn.attempts < self._with.bounds.attempts:
            log.info("turn %s is said again later: %s", turn.id, problem)
            if not await self.records.write(self._holder, turn, self._again_at(turn)):
                raise _lost(turn)
            return turn
        error = problem or turn.facts.error
        ends_as = State.FAILED if problem else turn.facts.ends_as
        ended = replace(
            turn,
            state=ends_as,
            facts=replace(turn.facts, error=error),
            ended_at=self.clock(),
        )
        await self._save(ended)
        self._taking.tell(ended)
        return ended

    async def _failed(self, turn: KeptTurn, error: Unavailable | MalformedMessage) -> KeptTurn:
        # What was written meanwhile stays: another attempt goes on from there.
        turn = await self.records.get(turn.id) or turn
        after = error.retry_after if isinstance(error, Unavailable) else None
        may_try = isinstance(error, Unavailable) and error.fault.retryable
        is_long = after is not None and after > LONGEST_PAUSE
        if may_try and not is_long and turn.attempts < self._with.bounds.attempts:
            if not await self.records.write(self._holder, turn, self._again_at(turn, after)):
                raise _lost(turn)
            return turn
        facts = replace(turn.facts, error=self._with.hide(str(error)[:1_000]))
        ended = replace(turn, state=State.FAILED, facts=facts, ended_at=self.clock())
        await self._save(ended)
        log.warning("turn %s failed: %s", turn.id, facts.error)
        return ended

    def _again_at(self, turn: KeptTurn, after: timedelta | None = None) -> datetime:
        return self.clock() + max(after or timedelta(0), self._pace.look * turn.attempts)

    async def _save(self, turn: KeptTurn) -> None:
        if not await self.records.write(self._holder, turn):
            raise _lost(turn)

    def _show(self, turn: KeptTurn, words: Words) -> None:
        """Let observers see what comes."""
        for place in turn.errand["say_in"]:
            saying = Saying(turn.id, turn.conversation, place)

            def show(index: int, delta: str, saying: Saying = saying) -> None:
                places = self._with.places()
                if places is not None:
                    places.piece(saying, index, delta)

            words.show.append(show)

    def _note(self, type: Type, turn: KeptTurn) -> None:
        errand, facts = turn.errand, turn.facts
        details: dict[str, object] = {
            "conversation": turn.conversation,
            "turn": turn.index,
            "cause": {"origin": errand["origin"], "key": turn.cause[:200]},
        }
        result = Result.PENDING
        if type is Type.TURN_ENDED:
            result = _ENDED.get(turn.state, Result.FAILURE)
            details |= {
                "model": facts.model,
                "read": facts.usage.input,
                "wrote": facts.usage.output,
                "injected": list(facts.injected),
                "rewrote": list(facts.rewrote),
                "tools_used": facts.tools,
                "attempts": turn.attempts,
                **({"because": facts.error} if facts.error else {}),
            }
        deed = Deed(
            errand["server"],
            feature=errand["feature"],
            inference=turn.id,
            outcome=turn.state,
            by=errand["party"],
            details=details,
        )
        self._noting.keep(type, deed, result)


def _lost(turn: KeptTurn) -> Unavailable:
    """Somebody else has it, since nobody heard for long that it is taken here."""
    return Unavailable(f"turn {turn.id} was taken over by another node", UPSTREAM_FAILED)


async def _ended(work: asyncio.Future[None]) -> None:
    """Until it has, whatever becomes of it."""
    if not work.done():
        work.cancel()
    await asyncio.wait([work])
    if not work.cancelled():
        work.exception()
