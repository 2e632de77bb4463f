"""Suggestions: from what people decided, grants that a person may give, or dismiss for a while.

Rule 1: nothing is granted here by itself. A person who may write grants accepts a suggestion, and
        is named in the grant; no agent ever does, and nobody for itself unless that was granted.
Rule 2: what is accepted is what was shown: another condition has another id.
Rule 3: what was dismissed is not suggested again before twice the evidence is there.
Rule 4: what people decide is in the journal, where the trace of a topic tells all of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from comity.kernel.grants import Clock
from comity.ports.asking import AskRecords
from comity.ports.journaling import JournalStore, Sought
from comity.rules.access import Access
from comity.rules.asks import new_ask_id
from comity.rules.patterns import Level
from comity.rules.precedents import (
    Gathered,
    HeldBack,
    Known,
    KnownTools,
    Measure,
    Precedent,
    Suggestion,
    of_ask,
    weigh,
)
from comity.rules.rehearsing import ENDINGS, Rehearsal, of_event, rehearse
from comity.wire.asks import ANSWER_OWN, State
from comity.wire.audit import Event, Type, event_of
from comity.wire.errors import (
    ACCESS_DENIED,
    EXHAUSTED,
    NOTHING_HERE,
    MalformedMessage,
    Unavailable,
)
from comity.wire.grants import ADMIN_READ, ADMIN_WRITE, CALL, Effect, Grant, Source
from comity.wire.parties import Actor, PartyKind

MOST_READ: Final = 200_000
MOST_ENTRIES: Final = 2_000
PATIENCE: Final = timedelta(seconds=10)
OVER: Final = tuple(state for state in State if state not in (State.PENDING, State.DEFERRED))


class Administered(Protocol):
    """Who writes grants down, in the name of whoever asks for it and may."""

    @property
    def access(self) -> Access: ...
    def demand(self, actor: Actor, verb: str, target: str) -> None: ...
    async def put(self, actor: Actor, grant: Grant) -> Grant: ...


class Notes(Protocol):
    """Who keeps what happened."""

    def write(self, event: Event) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class Past:
    """What there is to learn from: asks, the journal, and the tools as they are now."""

    asks: AskRecords
    journal: JournalStore
    tools: KnownTools


@dataclass(frozen=True, slots=True)
class Shown:
    """One suggestion, and what it would have done. `is_whole` is whether the journal answered."""

    suggestion: Suggestion
    rehearsal: Rehearsal
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Found:
    """What could be granted, and what was approved as often and is not suggested."""

    shown: tuple[Shown, ...]
    held_back: tuple[HeldBack, ...]


class Precedents:
    """What people have decided often enough, for those who administer grants."""

    def __init__(
        self,
        past: Past,
        administration: Administered,
        notes: Notes | None = None,
        measure: Measure | None = None,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self._past = past
        self._administration = administration
        self._notes = notes
        self._measure = measure or Measure()
        self._clock = clock
        # What was dismissed here, as long as the journal may not tell it yet.
        self._dismissed: dict[str, int] = {}

    async def found(self, actor: Actor) -> Found:
        """All suggestions of now, each with a dry run."""
        self._administration.demand(actor, ADMIN_READ, "*")
        gathered = await self._gathered()
        suggestions, held_back = await self._weighed(gathered)
        deadline = asyncio.get_running_loop().time() + PATIENCE.total_seconds()
        shown = [await self._rehearsed(each, gathered, deadline) for each in suggestions]
        return Found(tuple(shown), held_back)

    async def accept(self, actor: Actor, id: str, reason: str = "") -> Grant:
        """Give the grant that was suggested, in this person's name."""
        chosen = await self._chosen(actor, id)
        if chosen.subject == actor.party and not self._may_answer_own(actor, chosen):
            raise MalformedMessage("nobody accepts what it asked for itself", ACCESS_DENIED)
        grant = Grant(
            chosen.subject,
            CALL,
            f"{chosen.server}/{chosen.tool}",
            Effect.ALLOW,
            justification=f"{chosen.words} ({reason})" if reason else chosen.words,
            where=chosen.where,
        )
        kept = await self._administration.put(actor, grant)
        await self._note(Type.SUGGESTION_ACCEPTED, actor, chosen, reason, grant=kept.id)
        return kept

    async def dismiss(self, actor: Actor, id: str, reason: str = "") -> Suggestion:
        """Have it not suggested again before there is twice the evidence."""
        chosen = await self._chosen(actor, id)
        self._dismissed[chosen.topic] = chosen.decisions
        await self._note(Type.SUGGESTION_DISMISSED, actor, chosen, reason)
        return chosen

    async def _chosen(self, actor: Actor, id: str) -> Suggestion:
        """The suggestion of that id, for somebody who may decide about it. Raises."""
        if actor.kind is not PartyKind.PERSON:
            raise MalformedMessage("only people decide about suggestions", ACCESS_DENIED)
        self._administration.demand(actor, ADMIN_READ, "*")
        suggestions, _ = await self._weighed(await self._gathered())
        for each in suggestions:
            if each.id == id:
                self._administration.demand(actor, ADMIN_WRITE, f"{each.server}/{each.tool}")
                return each
        raise MalformedMessage(
            "this is not suggested, or not any more; `comity grants suggest` lists what is",
            NOTHING_HERE,
        )

    def _may_answer_own(self, actor: Actor, chosen: Suggestion) -> bool:
        """By a grant that says just that, as with every other answer."""
        place = (chosen.server, chosen.tool)
        judged = self._administration.access.judge(actor, ANSWER_OWN, *place, self._clock())
        grant = judged.grant
        if grant is None or judged.effect is not Effect.ALLOW:
            return False
        return grant.verb == ANSWER_OWN or grant.source is Source.BUILT_IN

    async def _gathered(self) -> Gathered:
        """Every ask of the window that is over."""
        gathered = Gathered(self._settled())
        after, read = new_ask_id(self._since, b""), 0
        while page := await self._past.asks.page(OVER, after):
            for ask in page:
                precedent = of_ask(ask)
                if precedent is not None:
                    gathered.take(precedent)
            after, read = page[-1].id, read + len(page)
            if read > MOST_READ:
                # Of half of it a no may be missing.
                raise Unavailable(
                    "there are too many decisions to look at; make suggestions.window shorter",
                    EXHAUSTED,
                )
            await asyncio.sleep(0)
        return gathered

    @property
    def _since(self) -> datetime:
        return self._clock() - self._measure.window

    def _settled(self) -> Callable[[Precedent], bool]:
        """Whether nobody would be asked about such a call any more, as grants stand now."""
        access, now = self._administration.access, self._clock()

        def is_settled(one: Precedent) -> bool:
            actor, place = Actor(one.asker), (one.server, one.tool)
            judged = access.judge(actor, CALL, *place, now)
            is_granted = judged.effect is Effect.ALLOW and judged.level is Level.OFFER
            if judged.effect is Effect.DENY or is_granted:
                return True
            answer = access.standing_answer(actor, place, one.arguments, one.definition, now)
            return answer is not None

        return is_settled

    async def _weighed(
        self, gathered: Gathered
    ) -> tuple[Sequence[Suggestion], tuple[HeldBack, ...]]:
        known = {group[1:3]: self._past.tools(*group[1:3]) for group in gathered.groups}

        def tools(server: str, tool: str) -> Known | None:
            return known.get((server, tool))

        # Of ten thousand decisions it takes half a second, which no call is to wait for.
        suggestions, held_back = await asyncio.to_thread(weigh, gathered, tools, self._measure)
        wanted = [
            each for each in suggestions if each.decisions >= 2 * await self._dismissed_at(each)
        ]
        return wanted, held_back

    async def _dismissed_at(self, suggestion: Suggestion) -> int:
        """On how many decisions it was dismissed last; none where it was not."""
        sought = Sought(
            trace=suggestion.topic, types=(Type.SUGGESTION_DISMISSED,), newest_first=True
        )
        counts = [self._dismissed.get(suggestion.topic, 0)]
        for line in await self._past.journal.find(sought, 1):
            count = event_of(line.body).details.get("decisions")
            counts.append(count if isinstance(count, int) else 0)
        return max(counts)

    async def _rehearsed(
        self, suggestion: Suggestion, gathered: Gathered, deadline: float
    ) -> Shown:
        of_it = (suggestion.subject, suggestion.server, suggestion.tool)
        past = [*gathered.calls.get(of_it, ())]
        is_whole = True
        try:
            async with asyncio.timeout_at(deadline):
                past += await self._unasked(suggestion, {each.trace for each in past})
        except TimeoutError:
            is_whole = False
        rehearsed = await asyncio.to_thread(rehearse, suggestion.where, past)
        return Shown(suggestion, rehearsed, is_whole)

    async def _unasked(self, suggestion: Suggestion, asked: set[str]) -> list[Precedent]:
        """Calls of the journal that nobody was asked about: they were refused, or went."""
        sought = Sought(
            actor=suggestion.subject,
            server=suggestion.server,
            tool=suggestion.tool,
            types=ENDINGS,
            since=self._since,
            newest_first=True,
        )
        found: list[Precedent] = []
        for line in await self._past.journal.find(sought, MOST_ENTRIES):
            precedent = of_event(event_of(line.body))
            if precedent is not None and precedent.trace not in asked:
                found.append(precedent)
        return found

    async def _note(
        self, type: Type, actor: Actor, chosen: Suggestion, reason: str, **more: object
    ) -> None:
        if self._notes is None:
            return
        details: dict[str, object] = {
            "suggestion": chosen.id,
            "subject": chosen.subject,
            "words": chosen.words,
            "where": chosen.where,
            "decisions": chosen.decisions,
            "people": list(chosen.people),
            **({"reason": reason} if reason else {}),
            **more,
        }
        await self._notes.write(
            Event(
                *(type, actor.party, self._clock(), actor.kind, chosen.server, chosen.tool),
                trace=chosen.topic,
                details=details,
            )
        )
