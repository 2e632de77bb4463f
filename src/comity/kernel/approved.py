"""What a person has said yes to, on its way: looked at once more, written down, sent. (design §1)

Rule 1: what runs is what was asked about: the same tool, as it was defined, by somebody who may
        still call it. It is looked at before the answer is used up, and once more before it leaves.
Rule 2: that it is about to run, and by whose word, is written down before that word is used up.
Rule 3: where it turns out never to have been sent, what was said stands again.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from comity.kernel.approvals import Approvals
from comity.kernel.call import Call
from comity.kernel.call_hold import GoOn, LastSteps
from comity.kernel.catalog import Catalog, Kind, Offer
from comity.kernel.catalog_access import Standing
from comity.kernel.certainty import AGAIN
from comity.kernel.grants import Judge
from comity.rules.examined import UNLISTED
from comity.rules.refusals import Refusal
from comity.wire import mcp
from comity.wire.asks import Ask
from comity.wire.errors import (
    ACCESS_DENIED,
    TOOL_DISABLED,
    TOOL_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.wire.grants import Effect

LOOKS: Final = 5
"""How often it is asked what is allowed before a call fails that somebody has approved."""


class Approved:
    """One call that a person may let run."""

    def __init__(
        self,
        call: Call,
        offer: Offer,
        standing: Standing,
        arguments: object,
    ) -> None:
        self.call = call
        self.offer = offer
        self.standing = standing
        self.arguments = arguments

    def changed(self, judge: Judge, catalog: Catalog, steps: LastSteps) -> Refusal | None:
        """Why what was asked about cannot be done any more. Nothing here waits."""
        offer = self.offer
        actor = self.call.outbox.actor
        judged = judge.judge(actor, mcp.CALL_TOOL, offer.server, offer.name)
        if judged.effect is Effect.DENY:
            return Refusal(ACCESS_DENIED, "this call is not allowed any more")
        now = catalog.offered(offer.server, Kind.TOOL, offer.name)
        if now is None and offer.definition != UNLISTED:
            return Refusal(TOOL_NOT_FOUND, "this tool is not offered just now")
        tools = steps.tools
        standing = None if tools is None else tools.standing(now or offer)
        if standing is None:
            return None
        if standing.refusal is not None:
            return standing.refusal
        if standing.digest != self.standing.digest:
            return Refusal(TOOL_DISABLED, "the tool is not what it was when it was asked about")
        return None

    async def intend(self, steps: LastSteps, ask: Ask) -> Refusal | None:
        """Write down what is about to be done, and by whose word, before that word is used up."""
        self.call.answered_by = ask.id
        kept = steps.intend(self.call, self.offer, self.standing, self.arguments)
        refusal = kept if kept is None or isinstance(kept, Refusal) else await kept
        self._note_left(False)
        return refusal

    @property
    def name(self) -> str:
        """What this call is called in the journal."""
        record = self.call.record
        return "" if record is None else record.id

    def miss(self, steps: LastSteps) -> None:
        """Another call had the answer first: this one has not left, and asks anew."""
        self.call.answered_by = ""
        if steps.recording is not None:
            steps.recording.missed(self.call)

    async def send(self, approvals: Approvals, ask: Ask, go_on: GoOn) -> None:
        """Let it go; `ask` is used up by it."""
        call, failure = self.call, None
        self._note_left(True)
        try:
            await go_on()
        except (Unavailable, MalformedMessage) as error:
            failure = error
        is_over = failure is not None or call.is_concluded or call.outbox.final
        if is_over and call.link is None and call.retrying is None:
            # It was never sent: what was said still stands, and the same call finds it.
            self._note_left(False)
            with suppress(Unavailable):
                await approvals.restore(ask, ask.call)
        if failure is not None:
            call.failed(failure)

    def _note_left(self, has_left: bool) -> None:
        if self.call.record is not None:
            self.call.record.has_left = has_left


async def looked_at(look: Callable[[], Refusal | None]) -> Refusal | None:
    """What is found; where it is not known just now what is allowed, once it is known again."""
    for _ in range(LOOKS - 1):
        try:
            return look()
        except Unavailable as error:
            await asyncio.sleep((error.retry_after or AGAIN).total_seconds())
    return look()
