"""Servers hear what a model said, and those who may say what goes out instead. (MCPL §10.5, D-68)

Rule 1: who may rewrite is asked one after the other, in the configured order; each is given what
        the one before it left.
Rule 2: where one fails, its operator has said whether the words go out all the same or not at all.
        Who is to look and is not there has failed.
Rule 3: everybody else is told what goes out, and not waited for.
Rule 4: of every rewriting a digest and a length are written down, before and after; never the text.
"""

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from comity.kernel.chores import Chores
from comity.kernel.live.hook_watch import HookWatch
from comity.kernel.live.hooks_before import Problem, problem_of, refuse_bulk
from comity.kernel.live.hosted import Hosted
from comity.kernel.live.hosting import Hosting
from comity.kernel.live.noting import OK, Deed
from comity.rules.turns import Bounds
from comity.wire import hooks
from comity.wire.audit import Result, Type
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.features import Use
from comity.wire.hooks import Moment
from comity.wire.inference import Usage

TOLD: Final = "told"
AWAY: Final = Problem("server_not_ready", "it is not there, or would not look at what is said")

type Guards = Callable[[], Collection[str]]
"""The servers without whose look nothing goes out, whether they are there or not."""


@dataclass(slots=True)
class Looked:
    """What goes out, who rewrote it, and who has kept it back, if anybody."""

    text: str
    rewrote: list[str] = field(default_factory=list[str])
    withheld_by: str = ""


def _no_guards() -> Collection[str]:
    return ()


class After:
    """Shows what a model said to those who look at it."""

    def __init__(
        self,
        hosting: Hosting,
        watch: HookWatch,
        bounds: Bounds,
        guards: Guards = _no_guards,
    ) -> None:
        self._hosting = hosting
        self._watch = watch
        self._bounds = bounds
        self._guards = guards
        self._chores = Chores("servers that hear what was said")

    def rewriters(self, caused_by: str) -> list[Hosted]:
        return [each for each in self._all(caused_by) if _may_rewrite(each)]

    def looks_on(self, caused_by: str) -> bool:
        """Whether somebody may change what goes out, so that it is not shown before."""
        return bool(self.rewriters(caused_by)) or bool(self._missing(caused_by))

    async def look(self, moment: Moment, text: str, usage: Usage, caused_by: str) -> Looked:
        """Have it looked at by all who may rewrite it; then everybody else is told."""
        looked = Looked(text)
        for missing in self._missing(caused_by):
            self._note(missing, moment, AWAY)
            looked.withheld_by = missing
            return looked
        for hosted in self.rewriters(caused_by):
            await self._one(hosted, moment, looked, usage)
            if looked.withheld_by:
                return looked
        return looked

    def tell(self, moment: Moment, text: str, usage: Usage, caused_by: str) -> None:
        """Let those know who only listen; whether they hear it is their own affair."""
        told = moment.after(text, usage)
        for hosted in self._all(caused_by):
            if not _may_rewrite(hosted):
                self._chores.start(self._tell(hosted, moment, told), at_once=True)

    def stop(self) -> None:
        self._chores.cancel()

    def _all(self, caused_by: str) -> list[Hosted]:
        here = self._hosting.having(Use.AFTER)
        return [each for each in here if each.declared.after and each.server != caused_by]

    def _missing(self, caused_by: str) -> list[str]:
        """Guards that will not look: one that is away looks at nothing."""
        looking = {each.server for each in self.rewriters(caused_by)} | {caused_by}
        return sorted(set(self._guards()) - looking)

    async def _one(self, hosted: Hosted, moment: Moment, looked: Looked, usage: Usage) -> None:
        try:
            with self._watch.pending(hosted.server, moment.conversation):
                told = moment.after(looked.text, usage)
                answer = await hosted.ask(hooks.AFTER, told, self._bounds.after)
            found = hooks.rewritten_in(refuse_bulk(answer, self._bounds.hook_bytes))
            hosted.require(found.feature, Use.AFTER)
        except (MalformedMessage, Unavailable) as error:
            self._note(hosted.server, moment, problem_of(error))
            if hosted.policy.fails_closed:
                looked.withheld_by = hosted.server
            return
        self._note(hosted.server, moment, None, found.feature)
        if found.response is not None and found.response != looked.text:
            self._rewritten(hosted.server, moment, found.feature, (looked.text, found.response))
            looked.text = found.response
            looked.rewrote.append(hosted.server)

    async def _tell(self, hosted: Hosted, moment: Moment, told: dict[str, object]) -> None:
        # Nobody waits for it, so it may ask a model about what it heard. (§10.7)
        await hosted.tell(hooks.AFTER, told)
        self._note(hosted.server, moment, None, outcome=TOLD)

    def _note(
        self,
        server: str,
        moment: Moment,
        problem: Problem | None,
        feature: str = "",
        outcome: str = OK,
    ) -> None:
        details = {} if problem is None else {"because": problem.because}
        deed = Deed(
            *(server, hooks.AFTER, feature, moment.inference),
            outcome if problem is None else problem.outcome,
            details={**details, "conversation": moment.conversation},
        )
        result = Result.SUCCESS if problem is None else Result.FAILURE
        self._hosting.noting.keep(Type.HOOK_ASKED, deed, result)

    def _rewritten(self, server: str, moment: Moment, feature: str, texts: tuple[str, str]) -> None:
        before, after = (_measured(each) for each in texts)
        details = {"conversation": moment.conversation, "before": before, "after": after}
        deed = Deed(server, hooks.AFTER, feature, moment.inference, details=details)
        self._hosting.noting.keep(Type.RESPONSE_REWRITTEN, deed)


def _may_rewrite(hosted: Hosted) -> bool:
    return hosted.declared.blocks and hosted.policy.rewrites


def _measured(text: str) -> dict[str, object]:
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return {"sha256": digest, "length": len(text)}
