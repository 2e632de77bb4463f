"""The data structures of the search index: postings, vocabulary, names and visibility masks."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from comity.catalog.search.words import compact_name

MIN_PREFIX_LENGTH: Final = 3
MIN_FUZZY_LENGTH: Final = 4
LONG_WORD_LENGTH: Final = 8
"""A word with at least this many letters may have two typing errors."""

MAX_SIMILAR_WORDS: Final = 24
MAX_COMPARED_WORDS: Final = 200
BEGINNING_LENGTH: Final = 7
"""The letters by which candidate words are found; the rest is compared."""


class PostingList:
    """The slots of the tools that contain one word, and its weight in each."""

    __slots__ = ("impacts", "max_impact", "slots", "word")

    def __init__(self, word: str) -> None:
        self.word = word
        self.slots = array("I")
        self.impacts = array("H")
        # An upper bound of the impacts; it stays when the greatest impact is removed.
        self.max_impact = 0

    def __len__(self) -> int:
        return len(self.slots)

    def put(self, slot: int, impact: int) -> None:
        self.max_impact = max(self.max_impact, impact)
        if not self.slots or slot > self.slots[-1]:
            self.slots.append(slot)
            self.impacts.append(impact)
            return
        at = bisect_left(self.slots, slot)
        self.slots.insert(at, slot)
        self.impacts.insert(at, impact)

    def remove(self, slot: int) -> None:
        at = bisect_left(self.slots, slot)
        del self.slots[at]
        del self.impacts[at]

    def impact_at(self, slot: int) -> int:
        """Return the weight of the word in that tool; 0 if the tool does not contain it."""
        at = bisect_left(self.slots, slot)
        return self.impacts[at] if at < len(self.slots) and self.slots[at] == slot else 0


class WordIndex:
    """The posting lists of every word of every tool."""

    def __init__(self) -> None:
        self._postings: dict[str, PostingList] = {}
        self._postings_by_slot: dict[int, tuple[PostingList, ...]] = {}
        self._vocabulary = SearchVocabulary()

    def __len__(self) -> int:
        return len(self._postings_by_slot)

    def put(self, slot: int, impacts: Mapping[str, int]) -> None:
        """Add the words of a tool at a free slot."""
        held: list[PostingList] = []
        for word, impact in impacts.items():
            posting = self._postings.get(word)
            if posting is None:
                posting = self._postings[word] = PostingList(word)
                self._vocabulary.add(word)
            posting.put(slot, impact)
            held.append(posting)
        self._postings_by_slot[slot] = tuple(held)

    def remove(self, slot: int) -> None:
        for posting in self._postings_by_slot.pop(slot, ()):
            posting.remove(slot)
            if not len(posting):
                del self._postings[posting.word]
                self._vocabulary.remove(posting.word)

    def find_posting(self, word: str) -> PostingList | None:
        return self._postings.get(word)

    def find_similar(self, word: str) -> Iterator[tuple[PostingList, int]]:
        """Yield similar words, nearest first, with their edit distance."""
        for other, distance in self._vocabulary.find_similar(word):
            yield self._postings[other], distance


class SearchVocabulary:
    """All words, indexed by their beginning and by that beginning without any one letter.

    Two words that differ by one typing error share at least one of these keys.
    """

    def __init__(self) -> None:
        self._words_by_beginning: dict[str, dict[str, None]] = {}
        self._words_by_deletion: dict[str, dict[str, None]] = {}

    def add(self, word: str) -> None:
        for shelves, key in self._index_keys(word):
            shelves.setdefault(key, {})[word] = None

    def remove(self, word: str) -> None:
        for shelves, key in self._index_keys(word):
            shelves[key].pop(word, None)
            if not shelves[key]:
                del shelves[key]

    def _index_keys(self, word: str) -> Iterator[tuple[dict[str, dict[str, None]], str]]:
        if len(word) >= MIN_PREFIX_LENGTH:
            yield self._words_by_beginning, word[:MIN_PREFIX_LENGTH]
        if len(word) >= MIN_FUZZY_LENGTH - 1:
            for left in _deletions_of(word):
                yield self._words_by_deletion, left

    def find_similar(self, word: str) -> list[tuple[str, int]]:
        """Return similar words with their distance.

        A word that begins with the given one has distance 0, since it may not be fully typed.
        """
        found: dict[str, int] = {}
        if len(word) >= MIN_PREFIX_LENGTH:
            for other in self._words_by_beginning.get(word[:MIN_PREFIX_LENGTH], ()):
                if other.startswith(word):
                    found[other] = 0
        if len(word) >= MIN_FUZZY_LENGTH:
            self._add_mistyped(word, found)
        return sorted(found.items(), key=lambda item: (item[1], len(item[0]), item[0]))[
            :MAX_SIMILAR_WORDS
        ]

    def _add_mistyped(self, word: str, found: dict[str, int]) -> None:
        most = 2 if len(word) >= LONG_WORD_LENGTH else 1
        for left in _deletions_of(word):
            for other in islice(self._words_by_deletion.get(left, ()), MAX_COMPARED_WORDS):
                if other in found:
                    continue
                distance = distance_between(word, other, most)
                if distance <= most:
                    found[other] = distance


def _deletions_of(word: str) -> Iterator[str]:
    """Yield the beginning of a word, and that beginning without any one letter."""
    begin = word[:BEGINNING_LENGTH]
    yield from dict.fromkeys((begin, *(begin[:at] + begin[at + 1 :] for at in range(len(begin)))))


def distance_between(one: str, other: str, most: int) -> int:
    """Return the number of wrong, missing, extra or swapped letters; `most` + 1 if more."""
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


MIN_NAME_LENGTH: Final = 3
MAX_QUERY_WORDS: Final = 4
"""A longer query is a sentence and not a name."""

MAX_EXAMINED_NAMES: Final = 2_000
"""Comparing this many names with the same beginning takes less than a millisecond."""


class NameIndex:
    """The names of all tools: the public names and the servers' own names."""

    def __init__(self) -> None:
        self._slots_by_name: dict[str, set[int]] = {}
        self._names_by_beginning: dict[str, dict[str, None]] = {}

    def put(self, slot: int, *names: str) -> None:
        for name in {compact_name(name) for name in names}:
            if name not in self._slots_by_name:
                self._slots_by_name[name] = set()
                self._names_by_beginning.setdefault(name[:MIN_NAME_LENGTH], {})[name] = None
            self._slots_by_name[name].add(slot)

    def remove(self, slot: int, *names: str) -> None:
        for name in {compact_name(name) for name in names}:
            held = self._slots_by_name.get(name, set())
            held.discard(slot)
            if not held and self._slots_by_name.pop(name, None) is not None:
                self._names_by_beginning[name[:MIN_NAME_LENGTH]].pop(name)

    def find_exact(self, text: str) -> Iterator[int]:
        name = compact_name(text)
        yield from self._slots_by_name.get(name, ()) if name else ()

    def find_by_prefix(self, text: str) -> Iterator[int]:
        """Yield the slots of longer names that begin with the text.

        At most MOST_LOOKED_AT are checked.
        """
        start = (
            compact_name(text) if len(text.split(None, MAX_QUERY_WORDS)) <= MAX_QUERY_WORDS else ""
        )
        if len(start) < MIN_NAME_LENGTH:
            return
        for looked_at, name in enumerate(self._names_by_beginning.get(start[:MIN_NAME_LENGTH], ())):
            if looked_at == MAX_EXAMINED_NAMES:
                return
            if name.startswith(start) and name != start:
                yield from self._slots_by_name[name]


def mask_of_slots(size: int, slots: Iterable[int]) -> bytes:
    """Return a mask in which these slots are visible."""
    mask = bytearray(size)
    for slot in slots:
        if slot < size:
            mask[slot] = 1
    return bytes(mask)


def intersect_masks(one: bytes, other: bytes) -> bytes:
    """Return the slots visible in both masks; the shorter mask counts as hidden beyond its end."""
    size = max(len(one), len(other))
    seen = int.from_bytes(one, "little") & int.from_bytes(other, "little")
    return seen.to_bytes(size, "little")


def count_visible(mask: bytes | bytearray) -> int:
    """Return the number of visible slots."""
    return int.from_bytes(mask, "little").bit_count()


def mask_up_to_level(levels: bytes, max_level: int) -> bytes:
    """Return a mask of the slots whose level is at most `most`."""
    return levels.translate(bytes(1 if level <= max_level else 0 for level in range(256)))
