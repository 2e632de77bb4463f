"""Approval requests as values: their states, who may answer, what an answer is bound to, ids."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.approvals import model
from comity.approvals.model import (
    EVENT_BY_END_STATE,
    LIVE_STATES,
    TRANSITIONS,
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalEvent,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.mcp.actors import Actor, PrincipalKind
from tests.support.cases import loop_over

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
UNTIL = NOW + 2 * HOUR
ANA, BEA = "person:ana@example.org", "person:bea@example.org"
ASK = ApprovalRequest(
    "0a", ApprovalKind.CONFIRM, "agent:ci", "files", "delete", "d1", "?", {}, NOW, NOW + HOUR
)

ENDED = set(ApprovalState) - set(LIVE_STATES)
verdicts = st.lists(st.sampled_from(ApprovalDecision), max_size=6)


def said(verdict: ApprovalDecision, by: str = ANA, at: datetime = NOW) -> ApprovalAnswer:
    return ApprovalAnswer(by, verdict, at)


def words(*verdicts: ApprovalDecision) -> tuple[ApprovalAnswer, ...]:
    return tuple(said(each, f"person:{number}") for number, each in enumerate(verdicts))


# What may follow what.


def test_ended_request_changes_only_when_its_use_is_taken_back() -> None:
    following = {(state, what) for state, what in TRANSITIONS if state in ENDED}
    assert following == {(ApprovalState.CONSUMED, ApprovalEvent.RELEASED)}


def test_every_live_request_can_expire_and_be_withdrawn() -> None:
    for state, end in product(LIVE_STATES, (ApprovalEvent.EXPIRED, ApprovalEvent.WITHDRAWN)):
        assert model.next_state(state, end) in ENDED
    assert model.next_state(ApprovalState.APPROVED, ApprovalEvent.CANCELLED) is None


def test_each_ending_leads_to_the_state_of_its_name() -> None:
    for state, happened in EVENT_BY_END_STATE.items():
        assert model.next_state(ApprovalState.PENDING, happened) is state
        assert state in ENDED


@loop_over(("state", "happened"), [*TRANSITIONS])
def test_ended_request_has_the_time_of_its_end(
    state: ApprovalState, happened: ApprovalEvent
) -> None:
    after = model.apply_event(replace(ASK, state=state), happened, NOW)
    assert after is not None
    assert after.ended_at == (NOW if after.state in ENDED else None)


# What follows from what authorities say.


@given(verdicts, st.integers(1, 4))
def test_what_follows_is_what_a_table_says(spoken: list[ApprovalDecision], quorum: int) -> None:
    found = model.event_of_answers(words(*spoken), quorum)
    if ApprovalDecision.DECLINE in spoken:
        assert found is ApprovalEvent.DENIED
    elif ApprovalDecision.CANCEL in spoken:
        assert found is ApprovalEvent.CANCELLED
    elif spoken.count(ApprovalDecision.ACCEPT) >= quorum:
        assert found is ApprovalEvent.APPROVED
    else:
        assert found in (None, ApprovalEvent.DEFERRED)
        assert (found is ApprovalEvent.DEFERRED) == (spoken[-1:] == [ApprovalDecision.DEFER])


@given(verdicts, st.integers(1, 4))
def test_who_speaks_first_does_not_decide(spoken: list[ApprovalDecision], quorum: int) -> None:
    decided = {ApprovalEvent.APPROVED, ApprovalEvent.DENIED, ApprovalEvent.CANCELLED}
    orders = list(permutations(spoken))[:24]
    found = {model.event_of_answers(words(*order), quorum) for order in orders}
    assert len(found & decided) <= 1
    assert not (found & decided and found - decided)


@given(
    st.lists(st.tuples(st.sampled_from([ANA, BEA, "person:c"]), st.sampled_from(ApprovalDecision)))
)
def test_nobody_counts_twice(spoken: list[tuple[str, ApprovalDecision]]) -> None:
    ask = replace(ASK, quorum=2)
    for by, verdict in spoken:
        ask = model.add_answer(ask, said(verdict, by), UNTIL) or ask
    people = [each.by for each in ask.answers]
    assert len(people) == len(set(people))
    yes = {each.by for each in ask.answers if each.verdict is ApprovalDecision.ACCEPT}
    assert (ask.state is ApprovalState.APPROVED) <= (len(yes) == 2)
    assert ask.expires_at == (UNTIL if ask.state is ApprovalState.APPROVED else ASK.expires_at)


@loop_over("verdict", ApprovalDecision)
@loop_over("state", [each for each in ApprovalState if not replace(ASK, state=each).is_open])
def test_what_is_not_open_takes_no_word(state: ApprovalState, verdict: ApprovalDecision) -> None:
    assert model.add_answer(replace(ASK, state=state), said(verdict), UNTIL) is None


def test_what_is_past_its_time_takes_no_word() -> None:
    at = ASK.expires_at
    assert model.add_answer(ASK, said(ApprovalDecision.ACCEPT, at=at), UNTIL) is None
    just_before = said(ApprovalDecision.ACCEPT, at=at - timedelta(microseconds=1))
    assert model.add_answer(ASK, just_before, UNTIL) is not None


@loop_over(("first", "second"), [*product(ApprovalDecision, ApprovalDecision)])
def test_who_has_spoken_has_spoken_but_for_a_later(
    first: ApprovalDecision, second: ApprovalDecision
) -> None:
    heard = replace(ASK, quorum=2, answers=(said(first),))
    found = model.add_answer(heard, said(second), UNTIL)
    may = first is ApprovalDecision.DEFER and second is not ApprovalDecision.DEFER
    assert (found is not None) == may
    if found is not None:
        assert found.answers == (said(second),)


# Who may answer.


@loop_over(
    ("kind", "is_asker", "own", "may", "may_own"),
    [*product(PrincipalKind, *[[False, True]] * 4)],
)
def test_only_people_answer_and_nobody_for_itself_without_a_grant(
    kind: PrincipalKind, is_asker: bool, own: bool, may: bool, may_own: bool
) -> None:
    ask = replace(ASK, asker=ANA if is_asker else "agent:ci", own=own)
    because = model.answer_refusal_reason(
        ask, Actor(ANA, kind), may_answer=may, may_answer_own=may_own
    )
    if kind is not PrincipalKind.PERSON:
        assert because == "only a person can answer this"
    elif is_asker:
        assert (because is None) == (own and may_own)
        assert because is None or because == (
            model.OWN_REQUEST_TEXT if own else model.NEVER_OWN_TEXT
        )
    else:
        assert (because is None) == may
        assert because is None or "comity grants" in because


@pytest.mark.parametrize(("quorum", "who"), [(1, "a person"), (3, "3 people")])
def test_approvers_are_named_by_their_grant_and_not_by_name(quorum: int, who: str) -> None:
    ask = replace(ASK, quorum=quorum)
    assert (
        model.describe_approvers(ask)
        == f"{who} with the grant approval/answer for {ASK.server}/{ASK.tool}"
    )
    assert (
        model.describe_approvers(replace(ask, server="")) == f"{who} with the grant approval/answer"
    )


# To what an answer is bound.

plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
arguments = st.dictionaries(
    plain,
    st.recursive(
        st.none() | st.booleans() | st.integers() | plain,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(plain, inner, max_size=2),
        max_leaves=4,
    ),
    max_size=3,
)
bound = st.tuples(plain, plain, plain, plain, arguments)


@given(bound, bound)
def test_no_two_things_have_the_same_digest(
    one: tuple[str, str, str, str, object], other: tuple[str, str, str, str, object]
) -> None:
    same = model.call_digest(*one) == model.call_digest(*other)
    assert same == (_written(one) == _written(other))


def _written(value: object) -> str:
    """As JSON means it: without an order of keys, and with true another than 1."""
    if isinstance(value, dict):
        pairs: list[tuple[object, object]] = list(value.items())  # pyright: ignore[reportUnknownArgumentType]
        return "{" + ",".join(sorted(f"{key!r}:{_written(each)}" for key, each in pairs)) + "}"
    if isinstance(value, list | tuple):
        items: list[object] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return "[" + ",".join(map(_written, items)) + "]"
    return repr(value)


def test_a_digest_holds_every_part_in_its_place() -> None:
    own = ("agent:ci", "files", "delete", "d1", {"path": "/a", "force": True})
    others = [
        ("agent:ci2", *own[1:]),
        ("agent:c", "ifiles", *own[2:]),
        (own[0], "filesdelete", "", *own[3:]),
        (*own[:3], "d2", own[4]),
        (*own[:4], {"path": "/a", "force": 1}),
        (*own[:4], {"path": "/a", "force": "True"}),
        (*own[:4], {"path": "/a"}),
    ]
    digests = {model.call_digest(*each) for each in (own, *others)}
    assert len(digests) == len(others) + 1
    assert model.call_digest(*own[:4], {"force": True, "path": "/a"}) == model.call_digest(*own)


@given(arguments, st.binary(min_size=1, max_size=32))
def test_who_lacks_the_key_cannot_guess_by_a_digest(said: object, key: bytes) -> None:
    keyed = model.arguments_digest(said, key)
    assert keyed == model.arguments_digest(said, key)
    assert keyed != model.arguments_digest(said)


# An id.

moments = st.datetimes(
    datetime(1970, 1, 1),  # noqa: DTZ001  # the zone is drawn with it
    datetime(9999, 12, 31),  # noqa: DTZ001
    timezones=st.just(UTC),
)
chances = st.binary(min_size=10, max_size=10)


@given(moments, moments, chances, chances)
def test_ids_grow_with_time(one: datetime, other: datetime, chance: bytes, luck: bytes) -> None:
    first, second = model.new_request_id(one, chance), model.new_request_id(other, luck)
    if abs(one - other) >= timedelta(milliseconds=1):
        assert (first < second) == (one < other)
    assert len(first) == 26
    assert set(first) <= set("0123456789abcdefghijklmnopqrstuv")


@given(moments, chances, chances)
def test_ids_of_one_moment_differ_by_chance(at: datetime, chance: bytes, luck: bytes) -> None:
    same = model.new_request_id(at, chance) == model.new_request_id(at, luck)
    assert same == (chance == luck)


def test_a_clock_that_is_far_behind_still_gives_an_id() -> None:
    long_ago = datetime(1, 1, 1, tzinfo=UTC)
    assert model.new_request_id(long_ago, b"") == "0" * 26
