"""What came in from channels, in memory: for tests, and for one node that keeps nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from comity.ports.incoming import Deed, Standing
from comity.rules import keeping

MOST: Final = 200_000
"""So many are remembered without a store; then the oldest is forgotten."""


@dataclass(slots=True)
class _Taken:
    holder: str
    at: datetime
    until: datetime | None
    note: str | None = None

    def has_lapsed(self, now: datetime) -> bool:
        return self.note is None and self.until is not None and self.until <= now


class MemoryIncoming:
    def __init__(self) -> None:
        self._deeds: dict[str, _Taken] = {}

    async def take(
        self, keys: Sequence[str], holder: str, now: datetime, until: datetime | None
    ) -> Sequence[Deed]:
        return [self._take(keeping.name(key, "a deed"), holder, now, until) for key in keys]

    def _take(self, key: str, holder: str, now: datetime, until: datetime | None) -> Deed:
        found = self._deeds.get(key)
        if found is None or found.has_lapsed(now):
            self._deeds[key] = _Taken(holder, now, until)
            if len(self._deeds) > MOST:
                del self._deeds[next(iter(self._deeds))]
            return Deed(key, Standing.OURS)
        if found.note is None:
            return Deed(key, Standing.BUSY)
        return Deed(key, Standing.DONE, found.note)

    async def settle(self, holder: str, done: Mapping[str, str], now: datetime) -> None:
        for key, note in done.items():
            found = self._deeds.setdefault(keeping.name(key, "a deed"), _Taken(holder, now, None))
            if found.holder == holder and found.note is None:
                found.note = keeping.words(note)

    async def release(self, holder: str, keys: Sequence[str]) -> None:
        for key in keys:
            found = self._deeds.get(key)
            if found is not None and found.holder == holder and found.note is None:
                del self._deeds[key]

    async def prune(self, before: datetime) -> int:
        old = [key for key, each in self._deeds.items() if each.at < before]
        for key in old:
            del self._deeds[key]
        return len(old)
