"""What several kinds of evidence make together: an order that stays, and scores that compare."""

from hypothesis import given
from hypothesis import strategies as st

from comity.rules.search import (
    BY_BOTH,
    BY_WORDS,
    EXACT_NAME,
    NAME_BEGINS,
    Category,
    Evidence,
    between,
    by_share,
    is_real,
    ranked,
    round_robin,
    scored,
)

SHARE = st.floats(0, 1)
EVIDENCE = st.builds(
    Evidence,
    st.sampled_from("abcdef"),
    SHARE,
    SHARE,
    st.floats(-0.2, 0.2),
    st.sampled_from([0.0, NAME_BEGINS, EXACT_NAME]),
    SHARE,
    st.none() | st.floats(-1, 1),
)


@given(st.lists(EVIDENCE))
def test_scores_lie_between_nothing_and_one_and_never_rise(evidence: list[Evidence]) -> None:
    order = ranked(evidence)
    scores = [score for _, score in scored(order, BY_BOTH)]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


@given(st.lists(EVIDENCE, unique_by=lambda each: each.key), st.randoms())
def test_the_order_does_not_depend_on_the_order_in_which_it_was_found(
    evidence: list[Evidence], chance: object
) -> None:
    assert ranked(evidence) == ranked(reversed(evidence))


def test_an_exact_name_comes_first_and_a_beginning_second_whatever_else_there_is() -> None:
    best = Evidence("a", words=1, meaning=1, server=0.2)
    begins, exact = Evidence("b", name=NAME_BEGINS), Evidence("c", name=EXACT_NAME)
    assert ranked([best, begins, exact]) == [exact, begins, best]
    assert next(scored([exact], BY_WORDS)) == (exact, 1.0)


def test_ties_are_by_key() -> None:
    assert [each.key for each in ranked([Evidence("b"), Evidence("a")])] == ["a", "b"]


@given(SHARE, SHARE)
def test_more_of_a_query_found_is_never_less_likely(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert BY_WORDS(Evidence("", found=less)) <= BY_WORDS(Evidence("", found=more))
    assert by_share(Evidence("", found=less)) == less


def test_the_parts_of_a_score_are_told_where_there_are_any() -> None:
    assert Evidence("a", words=0.123456, server=0.1).parts == {"words": 0.1235, "server": 0.1}


def test_a_value_lies_between_the_worst_and_the_best() -> None:
    assert between(0.5, 0.0, 1.0) == 0.5
    assert between(2.0, 0.0, 1.0) == 1.0
    assert between(-1.0, 0.0, 1.0) == 0.0
    assert between(1.0, 1.0, 1.0) == 0.0


def test_a_description_is_real_from_five_words_on() -> None:
    assert is_real("it reads and writes files")
    assert not is_real("a file server")


def test_several_lists_are_merged_by_turns_and_nothing_twice() -> None:
    assert round_robin([[1, 2, 3], [2, 4], []], 10) == [1, 2, 4, 3]
    assert round_robin([[1, 2], [3]], 2) == [1, 3]
    assert round_robin([], 2) == []


def test_a_category_holds_nothing_unless_told() -> None:
    assert Category("web", 3).below == {}
