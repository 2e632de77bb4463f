"""Ranking: the scores of words in plain Python and in numpy, and the order by all evidence."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from comity.catalog.search.index import PostingList, WordIndex
from comity.catalog.search.numpy_scorer import NumpyScorer
from comity.catalog.search.ranking import (
    EXACT_NAME_SCORE,
    HYBRID_CALIBRATION,
    NAME_PREFIX_SCORE,
    WORDS_CALIBRATION,
    Evidence,
    PythonScorer,
    QueryTerm,
    TermScorer,
    TermScores,
    heaviest_first,
    inverse_document_frequency,
    rank_evidence,
    round_robin,
    scale_value,
    score_by_share,
    score_evidence,
    term_weights,
)

SHARE = st.floats(0, 1)
EVIDENCE = st.builds(
    Evidence,
    st.sampled_from("abcdef"),
    SHARE,
    SHARE,
    st.floats(-0.2, 0.2),
    st.sampled_from([0.0, NAME_PREFIX_SCORE, EXACT_NAME_SCORE]),
    SHARE,
    st.none() | st.floats(-1, 1),
)


@given(st.lists(EVIDENCE))
def test_scores_lie_between_nothing_and_one_and_never_rise(evidence: list[Evidence]) -> None:
    order = rank_evidence(evidence)
    scores = [score for _, score in score_evidence(order, HYBRID_CALIBRATION)]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


@given(st.lists(EVIDENCE, unique_by=lambda each: each.key), st.randoms())
def test_the_order_does_not_depend_on_the_order_in_which_it_was_found(
    evidence: list[Evidence], chance: object
) -> None:
    assert rank_evidence(evidence) == rank_evidence(reversed(evidence))


def test_an_exact_name_comes_first_and_a_beginning_second_whatever_else_there_is() -> None:
    best = Evidence("a", words=1, meaning=1, server=0.2)
    begins, exact = Evidence("b", name=NAME_PREFIX_SCORE), Evidence("c", name=EXACT_NAME_SCORE)
    assert rank_evidence([best, begins, exact]) == [exact, begins, best]
    assert next(score_evidence([exact], WORDS_CALIBRATION)) == (exact, 1.0)


@given(SHARE, SHARE)
def test_more_of_a_query_found_is_never_less_likely(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert WORDS_CALIBRATION(Evidence("", found=less)) <= WORDS_CALIBRATION(
        Evidence("", found=more)
    )
    assert score_by_share(Evidence("", found=less)) == less


def test_a_value_lies_between_the_worst_and_the_best() -> None:
    assert scale_value(0.5, 0.0, 1.0) == 0.5
    assert scale_value(2.0, 0.0, 1.0) == 1.0
    assert scale_value(-1.0, 0.0, 1.0) == 0.0
    assert scale_value(1.0, 1.0, 1.0) == 0.0


def test_several_lists_are_merged_by_turns_and_nothing_twice() -> None:
    assert round_robin([[1, 2, 3], [2, 4], []], 10) == [1, 2, 4, 3]
    assert round_robin([[1, 2], [3]], 2) == [1, 3]
    assert round_robin([], 2) == []


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


type Words = list[tuple[PostingList, float]]
ENGINES: tuple[TermScorer[Any], ...] = (PythonScorer(), NumpyScorer())


def sought(index: WordIndex, query: list[tuple[str, float]]) -> Words:
    found = [(index.find_posting(word), factor) for word, factor in query]
    return [(posting, factor) for posting, factor in found if posting is not None]


def scored(
    engine: TermScorer[Any], words: Words, seen: bytes | None, among: int, most: int
) -> TermScores:
    met = [QueryTerm(engine.restrict(posting, seen), factor) for posting, factor in words]
    return engine.score(met, among, most)


def everything(words: Words, seen: bytes, among: int) -> dict[int, float]:
    """What the sums are, worked out the long way."""
    met = [QueryTerm(PythonScorer().restrict(posting, seen), factor) for posting, factor in words]
    weights = term_weights(met, among)
    totals: dict[int, float] = {}
    for at in heaviest_first(weights, met):
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
        assert found.scores_at(best) == list(best.values())
        if not hidden:
            assert sorted(scored(engine, words, None, among, most).best) == sorted(found.best)


def test_a_rare_word_weighs_more_and_no_word_weighs_nothing() -> None:
    assert (
        inverse_document_frequency(1, 100)
        > inverse_document_frequency(10, 100)
        > inverse_document_frequency(100, 100)
        > 0
    )
    assert inverse_document_frequency(0, 0) == math.log(2)


def test_what_is_hidden_does_not_make_a_word_less_rare() -> None:
    tools = {slot: {"a": 100} for slot in range(10)} | {10: {"a": 100, "b": 100}}
    words = sought(indexed(tools), [("a", 1.0), ("b", 1.0)])
    only = bytes(11 * [0])[:10] + b"\1"
    for engine in ENGINES:
        found = scored(engine, words, only, 1, 5)
        assert found.weights[0] == found.weights[1] == inverse_document_frequency(1, 1)


def test_a_word_that_stands_nowhere_finds_nothing() -> None:
    for engine in ENGINES:
        found = scored(engine, [(PostingList("x"), 1.0)], None, 0, 5)
        assert list(found.best) == []
        assert found.scores_at([0]) == [0.0]
        assert scored(engine, [], None, 0, 5).best == []
