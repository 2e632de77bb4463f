"""What becomes of an ask, by a table; who may answer; and that an answer is bound to one thing."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules import asks
from comity.rules.asks import ENDINGS, LIVE, TRANSITIONS, Happened
from comity.wire.asks import Answer, Ask, Kind, State, Verdict
from comity.wire.parties import Actor, PartyKind

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
UNTIL = NOW + 2 * HOUR
ANA, BEA = "person:ana@example.org", "person:bea@example.org"
ASK = Ask("0a", Kind.CONFIRM, "agent:ci", "files", "delete", "d1", "?", {}, NOW, NOW + HOUR)

ENDED = set(State) - set(LIVE)
verdicts = st.lists(st.sampled_from(Verdict), max_size=6)


def said(verdict: Verdict, by: str = ANA, at: datetime = NOW) -> Answer:
    return Answer(by, verdict, at)


def words(*verdicts: Verdict) -> tuple[Answer, ...]:
    return tuple(said(each, f"person:{number}") for number, each in enumerate(verdicts))


# What may follow what.


def test_nothing_follows_an_end_but_that_a_use_is_taken_back() -> None:
    following = {(state, what) for state, what in TRANSITIONS if state in ENDED}
    assert following == {(State.USED, Happened.RESTORED)}


def test_only_what_was_accepted_is_used_and_only_authorities_accept() -> None:
    assert asks.states_before(Happened.USED) == {State.ACCEPTED}
    assert asks.states_before(Happened.ACCEPTED) == {State.PENDING, State.DEFERRED}
    leads = {what for (_, what), state in TRANSITIONS.items() if state is State.ACCEPTED}
    assert leads == {Happened.ACCEPTED, Happened.RESTORED}


def test_every_state_can_be_reached_and_every_live_one_can_end() -> None:
    assert set(TRANSITIONS.values()) | {State.PENDING} == set(State)
    for state, end in product(LIVE, (Happened.EXPIRED, Happened.WITHDRAWN)):
        assert asks.after(state, end) in ENDED
    assert asks.after(State.ACCEPTED, Happened.CANCELLED) is None


def test_each_thing_that_happens_leads_to_one_state() -> None:
    for happened in Happened:
        assert len({asks.after(each, happened) for each in asks.states_before(happened)}) == 1


def test_an_ending_is_named_as_the_state_to_which_it_leads() -> None:
    for state, happened in ENDINGS.items():
        assert asks.after(State.PENDING, happened) is state
        assert state in ENDED


@pytest.mark.parametrize(("state", "happened"), [*product(State, Happened)])
def test_a_step_is_one_of_the_table(state: State, happened: Happened) -> None:
    after = asks.stepped(replace(ASK, state=state), happened, NOW)
    expected = TRANSITIONS.get((state, happened))
    assert (after and after.state) == expected
    if after is not None:
        assert after.ended_at == (NOW if expected in ENDED else None)


# What follows from what authorities say.


def test_nothing_follows_from_silence() -> None:
    assert asks.happened((), 1) is None


@given(verdicts, st.integers(1, 4))
def test_what_follows_is_what_a_table_says(spoken: list[Verdict], quorum: int) -> None:
    found = asks.happened(words(*spoken), quorum)
    if Verdict.DECLINE in spoken:
        assert found is Happened.DECLINED
    elif Verdict.CANCEL in spoken:
        assert found is Happened.CANCELLED
    elif spoken.count(Verdict.ACCEPT) >= quorum:
        assert found is Happened.ACCEPTED
    else:
        assert found in (None, Happened.DEFERRED)
        assert (found is Happened.DEFERRED) == (spoken[-1:] == [Verdict.DEFER])


@given(verdicts, st.integers(1, 4))
def test_who_speaks_first_does_not_decide(spoken: list[Verdict], quorum: int) -> None:
    decided = {Happened.ACCEPTED, Happened.DECLINED, Happened.CANCELLED}
    orders = list(permutations(spoken))[:24]
    found = {asks.happened(words(*order), quorum) for order in orders}
    assert len(found & decided) <= 1
    assert not (found & decided and found - decided)


@given(st.lists(st.tuples(st.sampled_from([ANA, BEA, "person:c"]), st.sampled_from(Verdict))))
def test_nobody_counts_twice(spoken: list[tuple[str, Verdict]]) -> None:
    ask = replace(ASK, quorum=2)
    for by, verdict in spoken:
        ask = asks.answered(ask, said(verdict, by), UNTIL) or ask
    people = [each.by for each in ask.answers]
    assert len(people) == len(set(people))
    yes = {each.by for each in ask.answers if each.verdict is Verdict.ACCEPT}
    assert (ask.state is State.ACCEPTED) <= (len(yes) == 2)
    assert ask.expires_at == (UNTIL if ask.state is State.ACCEPTED else ASK.expires_at)


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("state", [each for each in State if not replace(ASK, state=each).is_open])
def test_what_is_not_open_takes_no_word(state: State, verdict: Verdict) -> None:
    assert asks.answered(replace(ASK, state=state), said(verdict), UNTIL) is None


def test_what_is_past_its_time_takes_no_word() -> None:
    at = ASK.expires_at
    assert asks.answered(ASK, said(Verdict.ACCEPT, at=at), UNTIL) is None
    just_before = said(Verdict.ACCEPT, at=at - timedelta(microseconds=1))
    assert asks.answered(ASK, just_before, UNTIL) is not None


@pytest.mark.parametrize(("first", "second"), [*product(Verdict, Verdict)])
def test_who_has_spoken_has_spoken_but_for_a_later(first: Verdict, second: Verdict) -> None:
    heard = replace(ASK, quorum=2, answers=(said(first),))
    found = asks.answered(heard, said(second), UNTIL)
    may = first is Verdict.DEFER and second is not Verdict.DEFER
    assert (found is not None) == may
    if found is not None:
        assert found.answers == (said(second),)


def test_a_second_later_changes_nothing_but_who_has_spoken() -> None:
    deferred = asks.answered(ASK, said(Verdict.DEFER), UNTIL)
    assert deferred is not None
    again = asks.answered(deferred, said(Verdict.DEFER, BEA), UNTIL)
    assert again == replace(deferred, answers=(said(Verdict.DEFER), said(Verdict.DEFER, BEA)))


# Who may answer.


@pytest.mark.parametrize(
    ("kind", "is_asker", "own", "may", "may_own"),
    [*product(PartyKind, *[[False, True]] * 4)],
)
def test_only_people_answer_and_nobody_for_itself_without_a_grant(
    kind: PartyKind, is_asker: bool, own: bool, may: bool, may_own: bool
) -> None:
    ask = replace(ASK, asker=ANA if is_asker else "agent:ci", own=own)
    because = asks.why_not(ask, Actor(ANA, kind), may_answer=may, may_answer_own=may_own)
    if kind is not PartyKind.PERSON:
        assert because == "only a person can answer this"
    elif is_asker:
        assert (because is None) == (own and may_own)
        assert because is None or because == (asks.OWN if own else asks.NEVER_OWN)
    else:
        assert (because is None) == may
        assert because is None or "comity grants" in because


@pytest.mark.parametrize(("quorum", "who"), [(1, "a person"), (3, "3 people")])
def test_approvers_are_named_by_their_grant_and_not_by_name(quorum: int, who: str) -> None:
    ask = replace(ASK, quorum=quorum)
    assert asks.approvers(ask) == f"{who} with the grant ask/answer for {ASK.server}/{ASK.tool}"
    assert asks.approvers(replace(ask, server="")) == f"{who} with the grant ask/answer"


def test_why_nobody_approves_its_own_names_the_setting_and_the_grant() -> None:
    for named in ("ask/answer_own", "approve_own = true", "[policy]"):
        assert named in asks.OWN


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
    same = asks.digest(*one) == asks.digest(*other)
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
    digests = {asks.digest(*each) for each in (own, *others)}
    assert len(digests) == len(others) + 1
    assert asks.digest(*own[:4], {"force": True, "path": "/a"}) == asks.digest(*own)


@given(arguments, st.binary(min_size=1, max_size=32))
def test_who_lacks_the_key_cannot_guess_by_a_digest(said: object, key: bytes) -> None:
    keyed = asks.arguments_digest(said, key)
    assert keyed == asks.arguments_digest(said, key)
    assert keyed != asks.arguments_digest(said)


# An id.

moments = st.datetimes(
    datetime(1970, 1, 1),  # noqa: DTZ001  # the zone is drawn with it
    datetime(9999, 12, 31),  # noqa: DTZ001
    timezones=st.just(UTC),
)
chances = st.binary(min_size=10, max_size=10)


@given(moments, moments, chances, chances)
def test_ids_grow_with_time(one: datetime, other: datetime, chance: bytes, luck: bytes) -> None:
    first, second = asks.new_ask_id(one, chance), asks.new_ask_id(other, luck)
    if abs(one - other) >= timedelta(milliseconds=1):
        assert (first < second) == (one < other)
    assert len(first) == 26
    assert set(first) <= set("0123456789abcdefghijklmnopqrstuv")


@given(moments, chances, chances)
def test_ids_of_one_moment_differ_by_chance(at: datetime, chance: bytes, luck: bytes) -> None:
    same = asks.new_ask_id(at, chance) == asks.new_ask_id(at, luck)
    assert same == (chance == luck)


def test_a_clock_that_is_far_behind_still_gives_an_id() -> None:
    long_ago = datetime(1, 1, 1, tzinfo=UTC)
    assert asks.new_ask_id(long_ago, b"") == "0" * 26
