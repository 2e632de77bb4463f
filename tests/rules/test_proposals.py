"""The life of a proposal: the first fulfilment counts, and nothing brings back what has ended."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules import proposals
from comity.rules.proposals import LIFETIME, TRANSITIONS, Happened, Proposal, State, may_end

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
ANA, CI = "person:ana@example.org", "agent:ci"
PROPOSAL = Proposal("p1", CI, ("agent:files",), "tools/call", {"name": "rm"}, NOW, NOW + LIFETIME)
ENDS = {State.ANSWERED, State.REJECTED, State.WITHDRAWN, State.EXPIRED}


def test_no_way_leads_out_of_an_end_and_one_leads_into_each() -> None:
    assert {state for state, _ in TRANSITIONS} == set(State) - ENDS
    assert set(TRANSITIONS.values()) == set(State) - {State.PENDING}


@pytest.mark.parametrize(("state", "happened"), [*product(sorted(ENDS), Happened)])
def test_what_has_ended_stays_as_it_was(state: State, happened: Happened) -> None:
    ended = replace(PROPOSAL, status=state, fulfilled_by=ANA, fulfilment="r1")
    assert proposals.after(ended, happened, "agent:mallory", "r2") is ended
    assert not ended.is_open


@given(st.lists(st.tuples(st.sampled_from(Happened), st.integers(0, 9)), max_size=12))
def test_the_first_fulfilment_counts_whatever_else_happens(
    story: list[tuple[Happened, int]],
) -> None:
    told = [PROPOSAL]
    for happened, number in story:
        told.append(proposals.after(told[-1], happened, f"person:{number}", f"r{number}"))
    states = list(dict.fromkeys(each.status for each in told))
    changes = [after for before, after in pairwise(told) if after is not before]
    assert len(changes) == len(states) - 1
    fulfilled = {(each.fulfilled_by, each.fulfilment) for each in told} - {("", "")}
    assert len(fulfilled) == (State.FULFILLED in states)
    assert told[0].is_open


def test_a_fulfilment_names_who_did_it_and_a_response_ends_it() -> None:
    fulfilled = proposals.after(PROPOSAL, Happened.FULFILMENT, ANA, "r1")
    assert (fulfilled.status, fulfilled.fulfilled_by, fulfilled.fulfilment) == (
        "fulfilled",
        ANA,
        "r1",
    )
    again = proposals.after(fulfilled, Happened.FULFILMENT, "person:bea@example.org", "r2")
    assert again is fulfilled
    answered = proposals.after(fulfilled, Happened.RESPONSE, "agent:files", "a1")
    assert (answered.status, answered.fulfilled_by) == ("answered", ANA)


@pytest.mark.parametrize(
    ("happened", "state"),
    [
        (Happened.REJECTION, State.REJECTED),
        (Happened.WITHDRAWAL, State.WITHDRAWN),
        (Happened.TIMEOUT, State.EXPIRED),
        (Happened.RESPONSE, State.PENDING),
    ],
)
def test_what_is_pending_ends_by_a_word_or_by_time(happened: Happened, state: State) -> None:
    after = proposals.after(PROPOSAL, happened, ANA, "x1")
    assert (after.status, after.fulfilled_by) == (state, "")
    assert after.is_open is (state is State.PENDING)


@pytest.mark.parametrize(
    ("happened", "by", "counts"),
    [
        (Happened.WITHDRAWAL, CI, True),
        (Happened.WITHDRAWAL, ANA, False),
        (Happened.REJECTION, CI, False),
        (Happened.REJECTION, ANA, True),
        (Happened.FULFILMENT, ANA, True),
        (Happened.FULFILMENT, CI, True),
        (Happened.RESPONSE, "agent:files", True),
    ],
)
def test_only_its_proposer_withdraws_and_only_others_reject(
    happened: Happened, by: str, counts: bool
) -> None:
    assert may_end(PROPOSAL, happened, by) is counts
