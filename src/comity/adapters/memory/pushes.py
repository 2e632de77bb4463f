"""Pushes in memory: for tests, and for one node that keeps nothing beyond its end."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from comity.ports.pushes import PAGE, Admitted, Claim, PushFigures
from comity.rules import keeping
from comity.wire.pushes import KeptPush, PushState

type _Name = tuple[str, str]


class MemoryPushes:
    def __init__(self) -> None:
        self._kept: dict[int, KeptPush] = {}
        self._numbers: dict[_Name, int] = {}
        # Those that wait; of the others there may be many.
        self._open: dict[int, None] = {}
        self._claims: dict[int, Claim] = {}
        self._number = 0

    async def add(self, kept: KeptPush, claim: Claim, most: int) -> Admitted | None:
        new = keeping.push(kept)
        name = (new.push.server, new.push.id)
        if name in self._numbers:
            return Admitted(self._kept[self._numbers[name]], is_new=False)
        if sum(each.push.server == new.push.server for each in self._waiting()) >= most:
            return None
        self._number += 1
        self._numbers[name] = self._number
        self._kept[self._number] = new = replace(new, number=self._number)
        if new.state is PushState.WAITING:
            self._open[self._number] = None
            self._claims[self._number] = claim
        return Admitted(new, is_new=True)

    async def get(self, server: str, id: str) -> KeptPush | None:
        return self._kept.get(self._numbers.get((server, id), 0))

    async def claim(self, claim: Claim, now: datetime, limit: int) -> Sequence[KeptPush]:
        due = [each for each in self._waiting() if each.due_at <= now and self._is_free(each, now)]
        taken = sorted(due, key=lambda each: (each.due_at, each.number))[:limit]
        self._claims |= dict.fromkeys((each.number for each in taken), claim)
        return taken

    async def settle(self, holder: str, kept: KeptPush) -> bool:
        held = self._claims.get(kept.number)
        if held is None or held.holder != holder:
            return False
        del self._claims[kept.number]
        new = keeping.push(kept)
        if new.state is PushState.DONE:
            new = replace(new, push=replace(new.push, content=(), origin={}))
        self._kept[kept.number] = new
        if new.state is not PushState.WAITING:
            del self._open[new.number]
        return True

    async def abandon(self, holders: str) -> None:
        void = [number for number, each in self._claims.items() if each.holder.startswith(holders)]
        for number in void:
            del self._claims[number]

    async def page(
        self, before: int = 0, limit: int = PAGE, server: str = ""
    ) -> Sequence[KeptPush]:
        found = (
            each
            for number, each in reversed(self._kept.items())
            if (not before or number < before) and server in ("", each.push.server)
        )
        return [each for each, _ in zip(found, range(limit), strict=False)]

    async def figures(self) -> PushFigures:
        states = [each.state for each in self._kept.values()]
        return PushFigures(*(states.count(each) for each in PushState))

    async def retry(self, number: int, now: datetime) -> bool:
        found = self._kept.get(number)
        if found is None or found.state is not PushState.FAILED:
            return False
        again = replace(found, state=PushState.WAITING, due_at=now, attempts=0, done_at=None)
        self._kept[number] = again
        self._open[number] = None
        return True

    async def prune(self, remembered: datetime) -> int:
        old = [
            each
            for each in self._kept.values()
            if each.done_at is not None and each.done_at < remembered
        ]
        for each in old:
            del self._kept[each.number]
            del self._numbers[each.push.server, each.push.id]
        return len(old)

    def _waiting(self) -> Iterator[KeptPush]:
        return (self._kept[number] for number in self._open)

    def _is_free(self, kept: KeptPush, now: datetime) -> bool:
        held = self._claims.get(kept.number)
        return held is None or held.until <= now
