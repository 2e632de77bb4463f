"""Tools by their very names, and by how these begin, however their words are set apart."""

from collections.abc import Iterator
from typing import Final

from comity.rules.search_words import one_word

SHORTEST: Final = 3
MOST_WORDS: Final = 4
"""Whoever asks for a name does not write a sentence."""

MOST_LOOKED_AT: Final = 2_000
"""So many names that begin alike are compared in less than a millisecond."""


class NameIndex:
    """The names of all tools: as clients are told them, and as their servers call them."""

    def __init__(self) -> None:
        self._exact: dict[str, set[int]] = {}
        self._begin: dict[str, dict[str, None]] = {}

    def put(self, slot: int, *names: str) -> None:
        for name in {one_word(name) for name in names}:
            if name not in self._exact:
                self._exact[name] = set()
                self._begin.setdefault(name[:SHORTEST], {})[name] = None
            self._exact[name].add(slot)

    def drop(self, slot: int, *names: str) -> None:
        for name in {one_word(name) for name in names}:
            held = self._exact.get(name, set())
            held.discard(slot)
            if not held and self._exact.pop(name, None) is not None:
                self._begin[name[:SHORTEST]].pop(name)

    def exact(self, text: str) -> Iterator[int]:
        name = one_word(text)
        yield from self._exact.get(name, ()) if name else ()

    def beginning(self, text: str) -> Iterator[int]:
        """Those that go on where the text ends; no more than so many names are looked at."""
        start = one_word(text) if len(text.split(None, MOST_WORDS)) <= MOST_WORDS else ""
        if len(start) < SHORTEST:
            return
        for looked_at, name in enumerate(self._begin.get(start[:SHORTEST], ())):
            if looked_at == MOST_LOOKED_AT:
                return
            if name.startswith(start) and name != start:
                yield from self._exact[name]
