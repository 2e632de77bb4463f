"""One turn: servers before, the model and its tools, servers after, and then the words. (MCPL §10)

Rule 1: how far it has come is written down before each tool is used, and after: whoever takes the
        turn over goes on from there, and uses nothing twice.
Rule 2: what goes out is decided once, and written down before anybody hears it.
Rule 3: nothing goes out that was not looked through for secrets; a model's own too.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from comity.kernel.live.hooks_after import After, Looked
from comity.kernel.live.hooks_before import Before
from comity.kernel.live.parts import Engine, Errand, Inferring, Places, Saying
from comity.kernel.live.turn_echoes import Echoes
from comity.kernel.live.turn_errands import errand_of
from comity.kernel.live.turn_steps import as_said, asked, mended, past_of, words_of
from comity.kernel.live.turn_words import Words
from comity.kernel.live.using_tools import Offered, UsingTools
from comity.ports.conversations import ConversationRecords, Facts, KeptTurn, State
from comity.ports.models import Prompt, Reply, Step, ToolResult
from comity.rules import injections, turns
from comity.rules.injections import Given
from comity.rules.turns import Bounds
from comity.wire.contents import Content, said, text_of
from comity.wire.errors import (
    ACCESS_DENIED,
    EXHAUSTED,
    SERVER_NOT_READY,
    MalformedMessage,
    Unavailable,
)
from comity.wire.hooks import Moment
from comity.wire.inference import ModelInfo, Usage
from comity.wire.parties import Actor

WITHHELD: Final = "An answer was withheld: what had to look at it first did not."
NO_MORE_TOOLS: Final = said("no more tools can be used in this turn; answer with what there is")
THINKING: Final = "thinking"
TOOLS: Final = "tools"
NO_TOOLS: Final = Offered((), {})

type Save = Callable[[KeptTurn], Awaitable[None]]
"""Writes down how far a turn has come; raises Unavailable where somebody else has it."""


@dataclass(slots=True)
class Company:
    """All that have to do with a turn. Who is joined later is looked for when it is needed."""

    records: ConversationRecords
    before: Before
    after: After
    tools: UsingTools
    echoes: Echoes
    hide: Callable[[str], str]
    actor_of: Callable[[str], Actor | None]
    engine: Callable[[], Engine | None]
    places: Callable[[], Places | None]
    bounds: Bounds
    system: Content = ()


@dataclass(slots=True)
class _Under:
    """A turn under way."""

    turn: KeptTurn
    errand: Errand
    actor: Actor
    moment: Moment
    words: Words
    save: Save
    system: Content
    steps: list[Step]
    usage: Usage
    model: str = ""
    tools: int = 0
    thinking: str = ""


class Taking:
    """Takes turns, one at a time each."""

    def __init__(self, company: Company) -> None:
        self._with = company

    async def decide(self, turn: KeptTurn, words: Words, save: Save) -> KeptTurn:
        """What is to be said. Raises Unavailable, MalformedMessage."""
        company, errand = self._with, errand_of(turn)
        cause = errand.cause
        if turns.is_too_deep(cause.depth, company.bounds):
            raise MalformedMessage("too many turns have brought about each other", EXHAUSTED)
        engine, actor = company.engine(), company.actor_of(cause.party)
        if engine is None:
            raise MalformedMessage("no model is named in the settings", SERVER_NOT_READY)
        if actor is None:
            raise MalformedMessage(f"{cause.party} takes part no more", ACCESS_DENIED)
        info = engine.info(conversation=turn.conversation)
        moment = self._moment(turn, errand, info)
        words.is_open = not company.after.looks_on(cause.server)
        given = await self._gathered(moment, errand)
        placed = injections.placed(given, secrets.token_hex(8))
        system = (*company.system, *placed.system)
        user = asked(turn, placed)
        past = await self._past(turn, info, (system, user.content))
        begun = [*past, user, *mended(turn.steps)]
        under = _Under(turn, errand, actor, moment, words, save, system, begun, turn.facts.usage)
        await self._converse(engine, under, len(past) + 1)
        injected = dict.fromkeys(each.server for each in given)
        return await self._decided(under, len(past) + 1, tuple(injected))

    def _moment(self, turn: KeptTurn, errand: Errand, info: ModelInfo) -> Moment:
        user = text_of(turn.content) if turn.content else None
        channels = dict(errand.cause.channels)
        places = self._with.places()
        if channels and places is not None:
            channels.setdefault("candidates", list(places.candidates()))
        return Moment(turn.id, turn.conversation, turn.index, user, info, channels)

    async def _gathered(self, moment: Moment, errand: Errand) -> Sequence[Given]:
        caused_by = errand.cause.server
        asked_now = self._with.before.asked_of(caused_by)
        with self._with.echoes.awaiting((each.server for each in asked_now), errand.cause.depth):
            return await self._with.before.gather(moment, caused_by)

    async def _past(
        self, turn: KeptTurn, info: ModelInfo, present: tuple[Content, ...]
    ) -> tuple[Step, ...]:
        bounds = self._with.bounds
        room = turns.room_for_past(info.context_window, bounds, *present)
        if room <= 0 or turn.index == 0:
            return ()
        before = await self._with.records.history(turn.conversation, turn.index, bounds.past_turns)
        return past_of(before, room)

    async def _converse(self, engine: Engine, under: _Under, own: int) -> None:
        """The model speaks and uses tools until it has nothing more to use."""
        bounds = self._with.bounds
        # Some models know of no tools, and fail where they are given any.
        has_tools = TOOLS in under.moment.model.capabilities
        offered = await self._with.tools.offered(under.actor) if has_tools else NO_TOOLS
        while True:
            said_so_far = sum(step.role == "assistant" for step in under.steps[own:])
            may_use = said_so_far < bounds.steps - 1
            reply = await self._infer(engine, under, offered if may_use else None)
            uses = reply.uses if may_use else ()
            under.steps.append(Step("assistant", reply.content, uses))
            if not uses:
                return
            under.words.pause()
            await under.save(self._so_far(under, own))
            under.steps.append(Step("user", results=await self._use(under, offered, reply)))
            await under.save(self._so_far(under, own))

    async def _infer(self, engine: Engine, under: _Under, offered: Offered | None) -> Reply:
        prompt = Prompt(
            tuple(under.steps),
            under.system,
            () if offered is None else offered.tools,
            self._with.bounds.reply_tokens,
        )
        cause = under.errand.cause
        question = Inferring(
            *(prompt, cause.party, under.turn.id, cause.server, cause.feature),
            under.turn.conversation,
        )
        reply = await engine.infer(question, under.words.heard)
        under.usage += reply.usage
        under.model = reply.model
        under.thinking += reply.thinking
        return reply

    async def _use(self, under: _Under, offered: Offered, reply: Reply) -> tuple[ToolResult, ...]:
        most, depth = self._with.bounds.tools, under.errand.cause.depth
        done = await asyncio.gather(
            *(
                self._with.tools.use(
                    under.actor,
                    offered,
                    use,
                    lambda server: self._with.echoes.awaiting([server], depth),
                )
                for use in reply.uses[:most]
            )
        )
        under.tools += len(done)
        rest = (ToolResult(use.id, NO_MORE_TOOLS, is_error=True) for use in reply.uses[most:])
        return (*done, *rest)

    def _so_far(self, under: _Under, own: int) -> KeptTurn:
        facts = replace(under.turn.facts, model=under.model, usage=under.usage)
        return replace(under.turn, steps=tuple(under.steps[own:]), facts=facts)

    async def _decided(self, under: _Under, own: int, injected: tuple[str, ...]) -> KeptTurn:
        steps = under.steps[own:]
        looked = await self._looked(under, words_of(steps))
        # Both what a server would have said and what a model says may hold what nobody may read.
        text = WITHHELD if looked.withheld_by else self._with.hide(looked.text)
        facts = Facts(
            *(under.model, under.usage, injected, tuple(looked.rewrote)),
            under.turn.facts.tools + under.tools,
            f"{looked.withheld_by} did not look at it" if looked.withheld_by else "",
            State.WITHHELD if looked.withheld_by else State.DONE,
        )
        # What was taken out of the words may stand in the thoughts, which nobody looks at.
        is_clean = not looked.withheld_by and not looked.rewrote
        thinking = self._with.hide(under.thinking) if is_clean else ""
        return replace(
            under.turn,
            state=State.DECIDED,
            steps=as_said(() if looked.withheld_by else steps, text),
            said=said(text),
            thinking=thinking,
            facts=facts,
        )

    async def _looked(self, under: _Under, text: str) -> Looked:
        cause, after = under.errand.cause, self._with.after
        asked_now = (each.server for each in after.rewriters(cause.server))
        with self._with.echoes.awaiting(asked_now, cause.depth):
            return await after.look(under.moment, text, under.usage, cause.server)

    async def utter(self, turn: KeptTurn) -> str:
        """Say what was decided everywhere where it is to be said; gives why not, where it failed.

        A place that was told once is not told again.
        """
        errand, places = errand_of(turn), self._with.places()
        problems: list[str] = []
        for place in errand.say_in if turn.said else ():
            if places is None:
                return "there is nowhere to say it"
            try:
                await places.say(Saying(turn.id, turn.conversation, place), turn.said)
            except (Unavailable, MalformedMessage) as error:
                problems.append(f"{place}: {error}")
        if turn.thinking and places is not None:
            await self._think(turn, places)
        return "; ".join(problems)[:1_000]

    async def _think(self, turn: KeptTurn, places: Places) -> None:
        with suppress(Unavailable, MalformedMessage):
            await places.think(Saying(turn.id, turn.conversation, THINKING), turn.thinking)

    def tell(self, turn: KeptTurn) -> None:
        """Let those know who only listen."""
        engine, errand = self._with.engine(), errand_of(turn)
        if engine is None or turn.facts.ends_as is not State.DONE:
            return
        with suppress(Unavailable):
            info = engine.info(conversation=turn.conversation)
            moment = self._moment(turn, errand, info)
            text = text_of(turn.said)
            self._with.after.tell(moment, text, turn.facts.usage, errand.cause.server)
