"""Which tools have a word, and how much it weighs in each: the postings of all words.

Rule 1: a posting is sorted by slot; one tool more or less moves bytes, and nothing is built anew.
        So a change costs what the changed tools cost, however many others there are.
Rule 2: a word that no tool has is forgotten.
Rule 3: a word that was mistyped is found among the few that are left alike without a letter, so
        that it costs the same however many words there are.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

SHORTEST_PREFIX: Final = 3
SHORTEST_MISTYPED: Final = 4
LONG: Final = 8
"""From so many letters on a word may be mistyped twice."""

MOST_ALIKE: Final = 24
MOST_COMPARED: Final = 200
BEGINNING: Final = 7
"""By so many letters words are told apart; what follows is compared."""


class Posting:
    """The tools that have one word, by slot, and what it weighs in each."""

    __slots__ = ("impacts", "most", "slots", "word")

    def __init__(self, word: str) -> None:
        self.word = word
        self.slots = array("I")
        self.impacts = array("H")
        # No impact here is greater; it stays when the greatest is gone.
        self.most = 0

    def __len__(self) -> int:
        return len(self.slots)

    def put(self, slot: int, impact: int) -> None:
        self.most = max(self.most, impact)
        if not self.slots or slot > self.slots[-1]:
            self.slots.append(slot)
            self.impacts.append(impact)
            return
        at = bisect_left(self.slots, slot)
        self.slots.insert(at, slot)
        self.impacts.insert(at, impact)

    def drop(self, slot: int) -> None:
        at = bisect_left(self.slots, slot)
        del self.slots[at]
        del self.impacts[at]

    def at(self, slot: int) -> int:
        """What the word weighs in that tool; nothing where it does not stand there."""
        at = bisect_left(self.slots, slot)
        return self.impacts[at] if at < len(self.slots) and self.slots[at] == slot else 0


class WordIndex:
    """Every word of every tool."""

    def __init__(self) -> None:
        self._postings: dict[str, Posting] = {}
        self._of_slot: dict[int, tuple[Posting, ...]] = {}
        self._vocabulary = Vocabulary()

    def __len__(self) -> int:
        return len(self._of_slot)

    def put(self, slot: int, impacts: Mapping[str, int]) -> None:
        """Have these words at a slot that is free."""
        held: list[Posting] = []
        for word, impact in impacts.items():
            posting = self._postings.get(word)
            if posting is None:
                posting = self._postings[word] = Posting(word)
                self._vocabulary.add(word)
            posting.put(slot, impact)
            held.append(posting)
        self._of_slot[slot] = tuple(held)

    def drop(self, slot: int) -> None:
        for posting in self._of_slot.pop(slot, ()):
            posting.drop(slot)
            if not len(posting):
                del self._postings[posting.word]
                self._vocabulary.remove(posting.word)

    def posting(self, word: str) -> Posting | None:
        return self._postings.get(word)

    def alike(self, word: str) -> Iterator[tuple[Posting, int]]:
        """Words that may have been meant, the nearest first, and how far off each is."""
        for other, distance in self._vocabulary.alike(word):
            yield self._postings[other], distance


class Vocabulary:
    """All words, by how they begin, and by what is left of that without any one letter.

    Two words that differ by one mistake have a beginning in common, or one that is left of each.
    """

    def __init__(self) -> None:
        self._begin: dict[str, dict[str, None]] = {}
        self._left: dict[str, dict[str, None]] = {}

    def add(self, word: str) -> None:
        for shelves, key in self._places(word):
            shelves.setdefault(key, {})[word] = None

    def remove(self, word: str) -> None:
        for shelves, key in self._places(word):
            shelves[key].pop(word, None)
            if not shelves[key]:
                del shelves[key]

    def _places(self, word: str) -> Iterator[tuple[dict[str, dict[str, None]], str]]:
        if len(word) >= SHORTEST_PREFIX:
            yield self._begin, word[:SHORTEST_PREFIX]
        if len(word) >= SHORTEST_MISTYPED - 1:
            for left in _left_of(word):
                yield self._left, left

    def alike(self, word: str) -> list[tuple[str, int]]:
        """Words that begin with this one count as mistyped by nothing: it was not yet written."""
        found: dict[str, int] = {}
        if len(word) >= SHORTEST_PREFIX:
            for other in self._begin.get(word[:SHORTEST_PREFIX], ()):
                if other.startswith(word):
                    found[other] = 0
        if len(word) >= SHORTEST_MISTYPED:
            self._mistyped(word, found)
        return sorted(found.items(), key=lambda item: (item[1], len(item[0]), item[0]))[:MOST_ALIKE]

    def _mistyped(self, word: str, found: dict[str, int]) -> None:
        most = 2 if len(word) >= LONG else 1
        for left in _left_of(word):
            for other in islice(self._left.get(left, ()), MOST_COMPARED):
                if other in found:
                    continue
                distance = distance_between(word, other, most)
                if distance <= most:
                    found[other] = distance


def _left_of(word: str) -> Iterator[str]:
    """The beginning of a word, and what is left of it without any one letter."""
    begin = word[:BEGINNING]
    yield from dict.fromkeys((begin, *(begin[:at] + begin[at + 1 :] for at in range(len(begin)))))


def distance_between(one: str, other: str, most: int) -> int:
    """Letters that are wrong, missing, too many or exchanged; `most` + 1 where it is more."""
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        line = [row]
        for column, sign in enumerate(other, 1):
            cost = min(last[column] + 1, line[column - 1] + 1, last[column - 1] + (letter != sign))
            if row > 1 and column > 1 and letter == other[column - 2] and one[row - 2] == sign:
                cost = min(cost, before[column - 2] + 1)
            line.append(cost)
        if min(line) > most:
            return most + 1
        before, last = last, line
    return min(last[-1], most + 1)
