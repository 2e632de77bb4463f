"""Scoring words: the best of those that are seen, the same in plain Python and in numpy."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from comity.adapters.word_scores import fastest_scoring
from comity.adapters.word_scores_numpy import NumpyScoring
from comity.rules.search_index import Posting, WordIndex
from comity.rules.search_scores import (
    PlainScoring,
    Scored,
    Scoring,
    Sought,
    ideal,
    in_order,
    rarity,
    weights_of,
)

WORDS = "abcdefgh"
TOOLS = st.dictionaries(
    st.integers(0, 60),
    st.dictionaries(st.sampled_from(WORDS), st.integers(1, 36_000), min_size=1),
    max_size=40,
)
QUERIES = st.lists(
    st.tuples(st.sampled_from(WORDS), st.sampled_from([1.0, 0.6])), max_size=6, unique=True
)


def indexed(tools: dict[int, dict[str, int]]) -> WordIndex:
    index = WordIndex()
    for slot, impacts in tools.items():
        index.put(slot, impacts)
    return index


type Words = list[tuple[Posting, float]]
ENGINES: tuple[Scoring[Any], ...] = (PlainScoring(), NumpyScoring())


def sought(index: WordIndex, query: list[tuple[str, float]]) -> Words:
    found = [(index.posting(word), factor) for word, factor in query]
    return [(posting, factor) for posting, factor in found if posting is not None]


def scored(engine: Scoring[Any], words: Words, seen: bytes | None, among: int, most: int) -> Scored:
    met = [Sought(engine.look(posting, seen), factor) for posting, factor in words]
    return engine.score(met, among, most)


def everything(words: Words, seen: bytes, among: int) -> dict[int, float]:
    """What the sums are, worked out the long way."""
    met = [Sought(PlainScoring().look(posting, seen), factor) for posting, factor in words]
    weights = weights_of(met, among)
    totals: dict[int, float] = {}
    for at in in_order(weights, met):
        posting = words[at][0]
        for slot, impact in zip(posting.slots, posting.impacts, strict=True):
            if seen[slot]:
                totals[slot] = totals.get(slot, 0.0) + weights[at] * impact
    return totals


@given(TOOLS, QUERIES, st.sets(st.integers(0, 60)), st.integers(1, 8))
def test_plain_python_and_numpy_find_the_same_and_nothing_that_is_hidden(
    tools: dict[int, dict[str, int]],
    query: list[tuple[str, float]],
    hidden: set[int],
    most: int,
) -> None:
    index = indexed(tools)
    words = sought(index, query)
    seen = bytes(0 if slot in hidden else 1 for slot in range(61))
    among = sum(seen[slot] for slot in tools)
    expected = everything(words, seen, among)
    bar = sorted(expected.values(), reverse=True)[most - 1] if len(expected) >= most else 0.0
    best = {slot: total for slot, total in expected.items() if total >= bar}
    for engine in ENGINES:
        found = scored(engine, words, seen, among, most)
        assert dict(found.best) == best
        assert found.weights == scored(ENGINES[0], words, seen, among, most).weights
        assert found.at(best) == list(best.values())


@given(TOOLS, QUERIES, st.integers(1, 8))
def test_a_mask_of_everything_is_as_no_mask(
    tools: dict[int, dict[str, int]], query: list[tuple[str, float]], most: int
) -> None:
    words = sought(indexed(tools), query)
    for engine in ENGINES:
        plain = scored(engine, words, None, len(tools), most)
        masked = scored(engine, words, b"\1" * 61, len(tools), most)
        assert sorted(plain.best) == sorted(masked.best)


def test_a_rare_word_weighs_more_and_no_word_weighs_nothing() -> None:
    assert rarity(1, 100) > rarity(10, 100) > rarity(100, 100) > 0
    assert rarity(0, 0) == math.log(2)


def test_what_is_hidden_does_not_make_a_word_less_rare() -> None:
    tools = {slot: {"a": 100} for slot in range(10)} | {10: {"a": 100, "b": 100}}
    words = sought(indexed(tools), [("a", 1.0), ("b", 1.0)])
    only = bytes(11 * [0])[:10] + b"\1"
    for engine in ENGINES:
        found = scored(engine, words, only, 1, 5)
        assert found.weights[0] == found.weights[1] == rarity(1, 1)


def test_all_that_are_as_good_as_the_last_are_given() -> None:
    words = sought(indexed({slot: {"a": 7} for slot in range(20)}), [("a", 1.0)])
    for engine in ENGINES:
        assert len(scored(engine, words, None, 20, 3).best) == 20


def test_a_word_that_stands_nowhere_finds_nothing() -> None:
    for engine in ENGINES:
        found = scored(engine, [(Posting("x"), 1.0)], None, 0, 5)
        assert list(found.best) == []
        assert found.at([0]) == [0.0]
        assert scored(engine, [], None, 0, 5).best == []


def test_numpy_is_taken_where_it_is_there() -> None:
    assert isinstance(fastest_scoring(), NumpyScoring)


def test_an_ideal_tool_has_every_word_where_it_weighs_most() -> None:
    assert ideal([1.0, 2.0]) == 3 * ideal([1.0])
