"""Which channels are wanted of others, by whom: each is asked for once, and for so many at most.

Rule 1: what several want is asked for once, and given up with the last of them.
Rule 2: one party can bring in so many names and no more, so that there is room for others.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import Final

MOST_WANTED: Final = 256
MOST_OF_PARTY: Final = 64


class Wants[Who: Hashable]:
    """Names of channels and families, and those who want them."""

    def __init__(self, most: int = MOST_WANTED, most_of_party: int = MOST_OF_PARTY) -> None:
        self._most = most
        self._most_of_party = most_of_party
        self._by_name: dict[str, dict[Who, None]] = {}
        # Who was the first to want each name, and how many of them it brought in.
        self._first: dict[str, str] = {}
        self._brought: Counter[str] = Counter()

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._by_name))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def of(self, name: str) -> tuple[Who, ...]:
        """All who want it."""
        return tuple(self._by_name.get(name, ()))

    def add(self, names: Iterable[str], who: Who, party: str) -> tuple[str, ...]:
        """Note that these are wanted; gives those for which there is room."""
        return tuple(name for name in names if self._add(name, who, party))

    def _add(self, name: str, who: Who, party: str) -> bool:
        if name not in self._by_name:
            if len(self._by_name) >= self._most or self._brought[party] >= self._most_of_party:
                return False
            self._by_name[name] = {}
            self._first[name] = party
            self._brought[party] += 1
        self._by_name[name][who] = None
        return True

    def drop(self, who: Who) -> tuple[str, ...]:
        """Somebody wants nothing any more; gives what nobody wants now."""
        left: list[str] = []
        for name, wanting in list(self._by_name.items()):
            if who not in wanting:
                continue
            del wanting[who]
            if not wanting:
                del self._by_name[name]
                self._forget(self._first.pop(name))
                left.append(name)
        return tuple(left)

    def _forget(self, party: str) -> None:
        self._brought[party] -= 1
        if self._brought[party] <= 0:
            del self._brought[party]
