"""One search: what speaks for each tool that is seen, by its words, its meaning and its name."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from comity.kernel.tool_index import ToolIndex
from comity.ports.finding import Nearness
from comity.rules.search import (
    EXACT_NAME,
    MOST_LETTERS,
    MOST_WORDS,
    NAME_BEGINS,
    SERVER_SHARE,
    Evidence,
    between,
    is_real,
)
from comity.rules.search_index import Posting
from comity.rules.search_scores import GUESSED, InSight, Scoring, Sought, ideal, rarity
from comity.rules.search_words import words

POOL: Final = 100
"""So many of the best by words, and by meaning, are weighed against each other."""

SPARE: Final = 16
"""More than are wanted, since one of them may be gone by the time that it is shown."""

MOST_GUESSES: Final = 3
MOST_GUESSED_WORDS: Final = 4
MOST_BEGINNING: Final = 100


@dataclass(frozen=True, slots=True)
class Field:
    """The slots that a search goes over, a byte for each, and how many tools that is."""

    mask: bytes
    count: int

    @property
    def seen(self) -> bytes | None:
        """None where nothing is hidden, so that nothing has to be looked up."""
        return None if self.count == len(self.mask) else self.mask


class Search:
    """A query held against the tools; its evidence grows as more is asked."""

    def __init__(
        self, index: ToolIndex, scoring: Scoring[Any], text: str, field: Field, pool: int = POOL
    ) -> None:
        self._index = index
        self._scoring = scoring
        self._pool = pool
        self._mask, self._seen = field.mask, field.seen
        self.text = text[:MOST_LETTERS]
        self.evidence: dict[int, Evidence] = {}
        self._missing = 0
        sought = list(self._sought(dict.fromkeys(words(self.text)[:MOST_WORDS])))
        self._scored = scoring.score(sought, field.count, pool)
        weighed = zip(self._scored.weights, sought, strict=True)
        # A word that stands nowhere is a part of the query that nothing can have.
        weights = [weight for weight, each in weighed if each.factor == 1.0]
        self._ideal = ideal([*weights, *([rarity(0, field.count)] * self._missing)])
        self._best = max((total for _, total in self._scored.best), default=0.0)

    def add_words(self) -> None:
        """The tools in which the query's words weigh most."""
        best = self._scored.best
        if len(best) > self._pool:
            best = heapq.nsmallest(
                self._pool, best, key=lambda item: (-item[1], self._key(item[0]))
            )
        for slot, total in best:
            self._of(slot, total)

    def add_names(self) -> None:
        """The tools whose name was asked for, and those whose name begins so."""
        for slot in self._in_sight(self._index.names.exact(self.text)):
            self._of(slot).name = EXACT_NAME
        beginning = self._in_sight(self._index.names.beginning(self.text))
        for slot in heapq.nsmallest(MOST_BEGINNING, beginning, key=self._key):
            each = self._of(slot)
            each.name = max(each.name, NAME_BEGINS)

    def add_meaning(self, nearness: Nearness) -> None:
        """How near each is, and those that are nearest; of some tools it is not known yet."""
        asked = zip(list(self.evidence), nearness.also, strict=False)
        known = {slot: near for slot, near in asked if near is not None}
        known |= dict(self._alive(nearness.best))
        most = max(known.values(), default=0.0)
        for slot, near in known.items():
            each = self._of(slot)
            each.near = near
            each.meaning = between(near, nearness.least, most)
        for slot, each in self.evidence.items():
            if each.near is None:
                each.meaning = each.words
            offer = self._index.offers[slot]
            about = None if offer is None else self._index.about.get(offer.server)
            if offer is not None and about is not None and is_real(about.description):
                each.server = SERVER_SHARE * nearness.servers.get(offer.server, 0.0)

    def add(self, slots: Iterable[int], found: float) -> None:
        """Tools that were found in another way than by their words."""
        for slot in self._in_sight(slots):
            each = self._of(slot)
            each.found = max(each.found, found)

    def forget_words(self) -> None:
        """Go by meaning alone, where it is known."""
        for each in self.evidence.values():
            if each.near is not None:
                each.words = 0.0

    def _of(self, slot: int, total: float | None = None) -> Evidence:
        each = self.evidence.get(slot)
        if each is None:
            total = self._scored.at((slot,))[0] if total is None else total
            each = self.evidence[slot] = Evidence(self._key(slot))
            if total:
                each.words, each.found = total / self._best, total / self._ideal
        return each

    def _order(self, item: tuple[int, float]) -> tuple[float, str]:
        return -item[1], self._key(item[0])

    def _key(self, slot: int) -> str:
        offer = self._index.offers[slot]
        return "" if offer is None else offer.key

    def _alive(self, best: Iterable[tuple[int, float]]) -> Iterator[tuple[int, float]]:
        """What is still there: time has passed since it was asked for."""
        offers = self._index.offers
        return ((slot, near) for slot, near in best if slot < len(offers) and offers[slot])

    def _in_sight(self, slots: Iterable[int]) -> Iterator[int]:
        return (slot for slot in slots if slot < len(self._mask) and self._mask[slot])

    def _sought(self, said: Iterable[str]) -> Iterator[Sought[Any]]:
        guessed = 0
        for word in said:
            met = self._look(self._index.words.posting(word))
            if met is not None:
                yield Sought(met)
                continue
            # Whether it stands nowhere or only where this party does not see must not show.
            self._missing += 1
            guessed += 1
            if guessed <= MOST_GUESSED_WORDS:
                yield from self._guesses(word)

    def _guesses(self, word: str) -> Iterator[Sought[Any]]:
        found = 0
        for posting, distance in self._index.words.alike(word):
            met = self._look(posting)
            if met is not None:
                yield Sought(met, GUESSED[distance])
                found += 1
            if found == MOST_GUESSES:
                return

    def _look(self, posting: Posting | None) -> InSight | None:
        met = None if posting is None else self._scoring.look(posting, self._seen)
        return met if met is not None and met.count else None
