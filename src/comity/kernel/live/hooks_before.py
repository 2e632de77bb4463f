"""Servers are asked before a model answers: all at once, each for so long and no longer. (MCPL §10)

Rule 1: only who was let is asked, and nobody about a turn that it brought about itself. (D-69)
Rule 2: what a server answers is checked when it comes: its size, its feature set, and each place
        where it would put something. (D-61)
Rule 3: who fails, or is late, adds nothing; the turn goes on, and that is written down. (§10.6)
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from comity.kernel.live.hook_watch import HookWatch
from comity.kernel.live.hosted import Hosted
from comity.kernel.live.hosting import Hosting
from comity.kernel.live.noting import OK, Deed
from comity.rules import injections
from comity.rules.injections import Given
from comity.rules.turns import Bounds
from comity.wire import hooks
from comity.wire.audit import Result, Type
from comity.wire.errors import UPSTREAM_FAILED, UPSTREAM_SLOW, MalformedMessage, Unavailable
from comity.wire.features import Use
from comity.wire.hooks import Moment

TIMEOUT: Final = "timeout"
NOT_THERE: Final = "not granted there"
TOO_MUCH: Final = "too much"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a server's part is missing; `timeout` where it did not answer in time."""

    outcome: str
    because: str


def problem_of(error: MalformedMessage | Unavailable) -> Problem:
    """What is written down of a hook that failed."""
    outcome = TIMEOUT if error.fault is UPSTREAM_SLOW else error.fault.error_type
    is_its_own = outcome == UPSTREAM_FAILED.error_type and error.fault is not UPSTREAM_FAILED
    if is_its_own and isinstance(error, MalformedMessage):
        # In its own words may be all that it was shown, and that is not for the journal.
        return Problem(outcome, f"it answered with error {error.fault.code}")
    return Problem(outcome, str(error)[:500])


def refuse_bulk(answer: Raw, most: int) -> Raw:
    """An answer of a size that is looked at. Raises MalformedMessage."""
    if len(answer) > most:
        raise MalformedMessage(f"an answer of {len(answer)} bytes is not read", UPSTREAM_FAILED)
    return answer


class Before:
    """Asks those who would add to what a model reads."""

    def __init__(self, hosting: Hosting, watch: HookWatch, bounds: Bounds) -> None:
        self._hosting = hosting
        self._watch = watch
        self._bounds = bounds

    def asked_of(self, caused_by: str) -> list[Hosted]:
        """Who is asked, in the order in which its words will stand."""
        here = self._hosting.having(Use.BEFORE)
        return [each for each in here if each.declared.before and each.server != caused_by]

    async def gather(self, moment: Moment, caused_by: str) -> Sequence[Given]:
        """What they add, as far as it counts; as late as the slowest, and no later."""
        answers = await asyncio.gather(
            *(self._one(each, moment) for each in self.asked_of(caused_by))
        )
        kept, left_out = injections.fitting(
            [given for answer in answers for given in answer], self._bounds.injected_tokens
        )
        for each in left_out:
            self._note(each.server, moment, Problem(TOO_MUCH, each.injection.namespace))
        return kept

    async def _one(self, hosted: Hosted, moment: Moment) -> list[Given]:
        try:
            with self._watch.pending(hosted.server, moment.conversation):
                answer = await hosted.ask(hooks.BEFORE, moment.before(), self._bounds.before)
            found = hooks.injected_in(refuse_bulk(answer, self._bounds.hook_bytes))
            hosted.require(found.feature, Use.BEFORE)
        except (MalformedMessage, Unavailable) as error:
            self._note(hosted.server, moment, problem_of(error))
            return []
        kept, elsewhere = injections.permitted(found.injections, hosted.policy.positions)
        if elsewhere:
            told = Problem(NOT_THERE, ", ".join(sorted(set(elsewhere))))
            self._note(hosted.server, moment, told, found.feature)
        self._note(hosted.server, moment, None, found.feature, len(kept))
        return [Given(hosted.server, each) for each in kept]

    def _note(
        self,
        server: str,
        moment: Moment,
        problem: Problem | None,
        feature: str = "",
        injected: int = 0,
    ) -> None:
        details = {"injected": injected} if problem is None else {"because": problem.because}
        deed = Deed(
            *(server, hooks.BEFORE, feature, moment.inference),
            OK if problem is None else problem.outcome,
            details={**details, "conversation": moment.conversation},
        )
        result = Result.SUCCESS if problem is None else Result.FAILURE
        self._hosting.noting.keep(Type.HOOK_ASKED, deed, result)
