"""Asks in memory: each step is taken without a pause, so that of many who try one succeeds."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from heapq import heappop, heappush, merge
from itertools import islice
from typing import Final

from comity.adapters.memory.shelves import Shelf
from comity.ports import PAGE, Kept
from comity.rules import keeping
from comity.rules.asks import ENDINGS, LIVE, Happened, answered, stepped
from comity.wire.asks import Answer, Ask, State
from comity.wire.errors import MalformedMessage

ENDED_KEPT: Final = 10_000
"""How many that have ended are remembered; the oldest go first."""

type Note = Callable[[Kept, Iterable[str]], None]


class MemoryAsks:
    def __init__(self, note: Note, ended_kept: int = ENDED_KEPT) -> None:
        self._note = note
        self._ended_kept = ended_kept
        self._all: dict[str, Ask] = {}
        self._states = {state: Shelf[Ask]() for state in State}
        self._digests: dict[str, Shelf[Ask]] = {}
        self._live: dict[str, str] = {}
        """The one id for each digest."""
        self._due: list[tuple[datetime, str]] = []
        self._ended: dict[str, None] = {}
        """In the order in which they ended."""

    async def open(self, ask: Ask) -> Ask:
        new = keeping.ask(ask)
        present = self._all.get(self._live.get(new.digest, ""))
        if present is not None and present.expires_at > new.created_at:
            return present
        if present is not None:
            self._step(present, Happened.EXPIRED, new.created_at)
        if new.id in self._all:
            raise MalformedMessage("an ask with this id is kept already")
        return self._put(new)

    async def get(self, id: str) -> Ask | None:
        return self._all.get(id)

    async def latest(self, digest: str) -> Ask | None:
        return self._digests[digest].last() if digest in self._digests else None

    async def page(
        self, states: Collection[State] = (), after: str = "", limit: int = PAGE
    ) -> Sequence[Ask]:
        shelves = (self._states[state] for state in set(states or State))
        pages = (shelf.page(after, limit) for shelf in shelves)
        return list(islice(merge(*pages, key=lambda ask: ask.id), limit))

    async def count(self, states: Collection[State]) -> int:
        return sum(len(self._states[state]) for state in set(states))

    async def answer(self, id: str, answer: Answer, until: datetime) -> Ask | None:
        ask = self._all.get(id)
        if ask is None:
            return None
        heard = answered(ask, keeping.answer(answer, ask), keeping.certain(until))
        return None if heard is None else self._put(heard)

    async def use(self, id: str, call: str, at: datetime) -> Ask | None:
        keeping.name(call, "a call's name")
        ask = self._all.get(id)
        if ask is None or ask.expires_at <= keeping.certain(at):
            return None
        return self._step(ask, Happened.USED, at, call)

    async def restore(self, id: str, call: str) -> Ask | None:
        ask = self._all.get(id)
        if ask is None or ask.call != call or ask.digest in self._live:
            return None
        return self._step(ask, Happened.RESTORED, ask.created_at)

    async def end(self, id: str, state: State, at: datetime) -> Ask | None:
        ask = self._all.get(id)
        if ask is None or state not in ENDINGS:
            return None
        return self._step(ask, ENDINGS[state], at)

    async def expire(self, at: datetime, limit: int = PAGE) -> Sequence[Ask]:
        gone: list[Ask] = []
        at = keeping.certain(at)
        while self._due and self._due[0][0] <= at and len(gone) < limit:
            due, id = heappop(self._due)
            ask = self._all.get(id)
            # An acceptance has a time of its own, so the first may mean nothing any more.
            if ask is not None and ask.state in LIVE and ask.expires_at == due:
                gone.extend(filter(None, [self._step(ask, Happened.EXPIRED, at)]))
        return sorted(gone, key=lambda ask: ask.id)

    async def erase(self, id: str) -> None:
        ask = self._all.get(id)
        if ask is not None:
            empty = tuple(replace(answer, content={}) for answer in ask.answers)
            erased = self._all[id] = replace(ask, answers=empty)
            self._states[ask.state].put(id, erased)
            self._digests[ask.digest].put(id, erased)

    def _step(self, ask: Ask, happened: Happened, at: datetime, call: str = "") -> Ask | None:
        after = stepped(ask, happened, keeping.certain(at))
        return None if after is None else self._put(replace(after, call=call))

    def _put(self, ask: Ask) -> Ask:
        before = self._all.get(ask.id)
        if before is not None:
            self._states[before.state].take(ask.id)
        self._all[ask.id] = ask
        self._states[ask.state].put(ask.id, ask)
        self._digests.setdefault(ask.digest, Shelf()).put(ask.id, ask)
        if ask.state in LIVE:
            self._live[ask.digest] = ask.id
            self._ended.pop(ask.id, None)
            heappush(self._due, (ask.expires_at, ask.id))
        else:
            self._live.pop(ask.digest, None)
            self._ended[ask.id] = None
            self._forget()
        self._note(Kept.ASKS, [ask.id])
        return ask

    def _forget(self) -> None:
        if len(self._ended) <= self._ended_kept:
            return
        oldest = self._all.pop(next(iter(self._ended)))
        del self._ended[oldest.id]
        self._states[oldest.state].take(oldest.id)
        self._digests[oldest.digest].take(oldest.id)
        if not len(self._digests[oldest.digest]):
            del self._digests[oldest.digest]
