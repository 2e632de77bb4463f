"""The index of words: what stands in it after any changes is what a new one would hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.search_index import MOST_ALIKE, WordIndex, distance_between

WORDS = st.sampled_from(["search", "searching", "file", "files", "mail", "male", "weather"])
IMPACTS = st.dictionaries(WORDS, st.integers(1, 40_000), max_size=5)


def shelves(index: WordIndex) -> dict[str, list[tuple[int, int]]]:
    words = ["search", "searching", "file", "files", "mail", "male", "weather"]
    found = {word: index.posting(word) for word in words}
    return {
        word: list(zip(posting.slots, posting.impacts, strict=True))
        for word, posting in found.items()
        if posting is not None
    }


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | IMPACTS), max_size=40))
def test_after_any_changes_it_holds_what_a_new_one_would(
    changes: list[tuple[int, dict[str, int] | None]],
) -> None:
    index, kept = WordIndex(), dict[int, dict[str, int]]()
    for slot, impacts in changes:
        index.drop(slot)
        kept.pop(slot, None)
        if impacts is not None:
            index.put(slot, impacts)
            kept[slot] = impacts
    fresh = WordIndex()
    for slot in sorted(kept):
        fresh.put(slot, kept[slot])
    assert shelves(index) == shelves(fresh)
    assert len(index) == len(kept)
    for word in ("serch", "fil", "wether"):
        assert [p.word for p, _ in index.alike(word)] == [p.word for p, _ in fresh.alike(word)]


def test_a_posting_knows_what_a_word_weighs_in_each_tool() -> None:
    index = WordIndex()
    for slot in (5, 1, 3):
        index.put(slot, {"file": slot * 10})
    posting = index.posting("file")
    assert posting is not None
    assert [posting.at(slot) for slot in range(7)] == [0, 10, 0, 30, 0, 50, 0]
    assert posting.most == 50


def test_a_word_that_no_tool_has_any_more_is_forgotten() -> None:
    index = WordIndex()
    index.put(0, {"file": 1})
    index.drop(0)
    index.drop(7)
    assert index.posting("file") is None
    assert list(index.alike("file")) == []


@pytest.mark.parametrize(
    ("typed", "meant", "distance"),
    [
        ("wea", "weather", 0),
        ("serach", "search", 1),
        ("seach", "search", 1),
        ("searchh", "search", 1),
        ("xearch", "search", 1),
        ("searcx", "search", 1),
        ("temperatrue", "temperature", 1),
        ("tempreatrue", "temperature", 2),
    ],
)
def test_a_mistyped_word_finds_the_one_that_was_meant(
    typed: str, meant: str, distance: int
) -> None:
    index = WordIndex()
    for slot, word in enumerate(("search", "weather", "temperature", "unlike")):
        index.put(slot, {word: 1})
    assert [(posting.word, off) for posting, off in index.alike(typed)] == [(meant, distance)]


@pytest.mark.parametrize("typed", ["ab", "zzzz", "fiel"[:2], "", "mial"])
def test_what_is_too_short_or_too_far_off_finds_nothing(typed: str) -> None:
    index = WordIndex()
    index.put(0, {"filesystem": 1, "x": 1, "mile": 1})
    assert list(index.alike(typed)) == []


def test_of_words_that_begin_alike_only_so_many_are_given() -> None:
    index = WordIndex()
    index.put(0, {f"file{number}": 1 for number in range(200)})
    assert len(list(index.alike("file"))) == MOST_ALIKE


@given(st.text("abc", max_size=6), st.text("abc", max_size=6), st.integers(1, 3))
def test_a_distance_is_the_same_both_ways_and_never_more_than_one_too_many(
    one: str, other: str, most: int
) -> None:
    found = distance_between(one, other, most)
    assert found == distance_between(other, one, most)
    assert abs(len(one) - len(other)) <= found or found == most + 1
    assert (found == 0) == (one == other)
    assert found <= most + 1
