"""The engine: chooses a model, holds what it may cost, asks it, and another where it fails.

Rule 1: a request is tried again only where nobody has heard a word of its reply.
Rule 2: every request leaves an entry in the journal: who, by what, which model and why, what it
        cost, what came of it. What was said is not in it. (MCPL §13.2, §11.5)
Rule 3: cancelled is ended at once, at its model too; and what was heard is paid.
"""

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from comity.kernel.audit_recorder import LEFT_OUT, Bound, kind_of
from comity.kernel.journal import Journal
from comity.kernel.live.parts import Inferring
from comity.kernel.live.routing import Circuits, Clock, Plan, Routing
from comity.kernel.live.spending import Held, Spender, Spending, most_of, most_tokens
from comity.ports.models import Model, OnPiece, Piece, Prompt, Reply
from comity.rules.backoff import Backoff
from comity.rules.budgets import NOTHING, UNPRICED, Amount, Price
from comity.rules.circuit import Passed
from comity.rules.inference_routes import Choice, Sought
from comity.wire.audit import Event, Result, Type
from comity.wire.errors import (
    MODEL_REFUSED,
    NO_MODEL,
    UPSTREAM_DOWN,
    UPSTREAM_SLOW,
    MalformedMessage,
    Unavailable,
)
from comity.wire.inference import Finish, ModelInfo, Usage

log = logging.getLogger(__name__)

TRIES: Final = 3
LONGEST_PAUSE: Final = timedelta(seconds=30)
_AGAIN: Final = Backoff(timedelta(milliseconds=500), timedelta(seconds=8))
_CHARACTERS_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class Seat:
    """One model that can be asked, what it costs, and how much it says at most."""

    model: Model
    price: Price = UNPRICED
    max_output: int = 4_096


@dataclass(slots=True)
class _Try:
    """One request on its way, whoever answers it in the end."""

    asked: Inferring
    prompt: Prompt
    choice: Choice
    seat: Seat
    on_piece: OnPiece | None
    heard: int = 0
    attempts: int = 0
    spent: Amount = NOTHING
    # What it may have cost though it failed.
    lost: Usage = field(default_factory=Usage)

    def piece(self, piece: Piece) -> None:
        self.heard += len(piece.text)
        if self.on_piece is not None:
            self.on_piece(piece)

    def lose(self, *, was_read: bool) -> None:
        """It ended before its reply did: what a model has read and said by then is paid."""
        if was_read or self.heard:
            self.lost = Usage(most_tokens(self.prompt) // 2, self.heard // _CHARACTERS_PER_TOKEN)


class Inference:
    """Answers for all the models that there are."""

    def __init__(
        self,
        seats: Mapping[str, Seat],
        plan: Plan,
        spending: Spending,
        journal: Journal | None = None,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self.seats = seats
        self.spending = spending
        self.deadline = timedelta(minutes=5)
        self.circuits = Circuits(clock)
        windows = {name: seat.model.info.context_window for name, seat in seats.items()}
        self._routing = Routing(plan, windows)
        self._journal = journal
        self._clock = clock
        self._bound = Bound(clock)

    def info(self, server: str = "", feature: str = "", conversation: str = "") -> ModelInfo:
        return self.seat(Sought(server, feature, conversation)).model.info

    def seat(self, sought: Sought) -> Seat:
        """The model that would be asked first. Raises Unavailable."""
        return self.seats[self._chain(sought)[0].model]

    async def infer(self, asked: Inferring, on_piece: OnPiece | None = None) -> Reply:
        sought = _sought(asked)
        chain = self._chain(sought)
        failure: Unavailable | None = None
        for choice in chain:
            rest = self.circuits.rests(choice.model)
            if rest is not None:
                because = f"model {choice.model!r} fails just now"
                failure = failure or Unavailable(because, UPSTREAM_DOWN, rest)
                continue
            trying = self._trying(asked, choice, on_piece)
            try:
                reply = await self._paid(trying)
            except Unavailable as error:
                # Words that were heard cannot be taken back, nor said again by another.
                if trying.heard or _is_of_budget(error):
                    raise
                failure = error
                continue
            if choice is chain[0]:
                self._routing.pin(sought, choice.model)
            return reply
        assert failure is not None
        raise failure

    async def ask(self, name: str, asked: Inferring) -> tuple[Reply, Amount]:
        """One model, whatever the routes say, and what it cost. Raises Unavailable."""
        if name not in self.seats:
            raise Unavailable(f"there is no model {name!r:.80}", NO_MODEL)
        trying = self._trying(asked, Choice(name, "asked for by name"), None)
        return await self._paid(trying), trying.spent

    async def close(self) -> None:
        for seat in self.seats.values():
            await seat.model.close()

    def _trying(self, asked: Inferring, choice: Choice, on_piece: OnPiece | None) -> _Try:
        seat = self.seats[choice.model]
        limit = min(asked.prompt.max_tokens, seat.max_output)
        prompt = replace(asked.prompt, max_tokens=limit)
        return _Try(asked, prompt, choice, seat, on_piece)

    def _chain(self, sought: Sought) -> list[Choice]:
        chain = self._routing.chain(sought)
        if not chain:
            raise Unavailable("there is no model for this; see `comity models`", NO_MODEL)
        return chain

    async def _paid(self, trying: _Try) -> Reply:
        asked, seat = trying.asked, trying.seat
        spender = Spender(asked.party, asked.feature, trying.choice.model)
        held = await self.spending.hold(spender, most_of(trying.prompt, seat.price))
        usage, outcome = Usage(), "failed"
        begun = self._clock()
        try:
            reply = await self._tried(trying)
            usage, outcome = reply.usage, str(reply.finish)
            return reply
        except asyncio.CancelledError:
            trying.lose(was_read=True)
            outcome = "cancelled"
            raise
        except Unavailable as error:
            outcome = error.fault.error_type
            raise
        finally:
            usage += trying.lost
            # Also where this is cancelled: what was spent is not forgotten.
            await asyncio.shield(self._settled(trying, held, usage))
            self._note(trying, usage, outcome, self._clock() - begun)

    async def _settled(self, trying: _Try, held: Held, usage: Usage) -> None:
        trying.spent = await self.spending.settle(held, usage, trying.seat.price)

    async def _tried(self, trying: _Try) -> Reply:
        name = trying.choice.model
        until = asyncio.get_running_loop().time() + self.deadline.total_seconds()
        while True:
            trying.attempts += 1
            try:
                reply = await self._asked(trying, until)
            except Unavailable as error:
                self.circuits.passed(name, _passed(error))
                trying.lose(was_read=error.fault is UPSTREAM_SLOW)
                pause = _pause(trying, error, until - asyncio.get_running_loop().time())
                if pause is None:
                    raise
                await asyncio.sleep(pause)
            except MalformedMessage as error:
                # What a model said is no error of whoever asked.
                raise Unavailable(f"model {name!r}: {error}", MODEL_REFUSED) from None
            else:
                self.circuits.passed(name, Passed.ANSWERED)
                return reply

    async def _asked(self, trying: _Try, until: float) -> Reply:
        on_piece = None if trying.on_piece is None else trying.piece
        try:
            async with asyncio.timeout_at(until):
                return await trying.seat.model.complete(trying.prompt, on_piece)
        except TimeoutError:
            because = f"model {trying.choice.model!r} did not answer in time"
            raise Unavailable(because, UPSTREAM_SLOW) from None

    def _note(self, trying: _Try, usage: Usage, outcome: str, took: timedelta) -> None:
        if self._journal is None:
            return
        asked, choice = trying.asked, trying.choice
        ok = outcome in tuple(Finish)
        # What costs nothing can be had as often as one likes: of the rest only the number is kept.
        is_free = not ok and usage == Usage()
        left_out = self._bound.take(f"{asked.party} {outcome}") if is_free else 0
        if left_out is None:
            return
        details: dict[str, object] = {
            "inference": asked.inference,
            "model": trying.seat.model.info.id,
            "routed": choice.model,
            "reason": choice.because,
            "input_tokens": usage.input,
            "output_tokens": usage.output,
            "cost": trying.spent.money / 1_000_000,
            "outcome": outcome,
            "attempts": trying.attempts,
            "ms": took // timedelta(milliseconds=1),
        }
        for name in ("feature", "conversation"):
            if getattr(asked, name):
                details[name] = getattr(asked, name)[:200]
        if left_out:
            details[LEFT_OUT] = left_out
        result = Result.SUCCESS if ok else Result.FAILURE
        kind = kind_of(asked.party)
        at = self._clock()
        self._journal.note(
            Event(
                *(Type.MODEL_ASKED, asked.party, at, kind, asked.server, "", result),
                details=details,
            )
        )


def _sought(asked: Inferring) -> Sought:
    prompt = asked.prompt
    # By the usual length, not the greatest: what can just be read is not sent elsewhere.
    tokens = most_tokens(prompt) // 2
    hint = asked.hints.get("model")
    return Sought(
        asked.server,
        asked.feature,
        asked.conversation,
        tokens,
        hint if isinstance(hint, str) else "",
    )


def _pause(trying: _Try, error: Unavailable, left: float) -> float | None:
    """How long until it is tried again, in seconds; None where it is not."""
    if not error.fault.retryable or trying.attempts >= TRIES or trying.heard:
        return None
    own = _AGAIN.delay(trying.attempts, random.random())  # noqa: S311  # no secret
    pause = own if error.retry_after is None else max(own, error.retry_after)
    if pause > LONGEST_PAUSE or pause.total_seconds() >= left:
        return None
    return pause.total_seconds()


def _passed(error: Unavailable) -> Passed:
    # A model that refuses one thing may take the next.
    return Passed.ANSWERED if error.fault is MODEL_REFUSED else Passed.FAILED


def _is_of_budget(error: Unavailable) -> bool:
    return error.fault.error_type == "budget_exceeded"
