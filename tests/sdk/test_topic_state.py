"""What a participant remembers: envelopes, proposals, and tables that stay small."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from comity.sdk.topics.envelopes import ParticipantEnvelopeReader
from comity.sdk.topics.events import Event, Proposal, Request, Response
from comity.sdk.topics.state import (
    MAX_PROPOSALS_OF_ONE_MEMBER,
    MAX_STEPS_OF_ONE_MEMBER,
    BoundedOwnerCache,
    EnvelopeHistory,
    MemberProposalTracker,
)
from comity.topics import envelope as wire
from comity.topics.envelope import EnvelopeKind
from comity.topics.rules import ProposalEvent, ProposalState
from tests.sdk.made import ANA, BOT, ME, PARAMS, WORKER, frame, proposal, request, response
from tests.support.cases import loop_over


def test_the_oldest_goes_first() -> None:
    table: BoundedOwnerCache[int] = BoundedOwnerCache(2, 1_000)
    for number in range(3):
        table.put(str(number), number)
    assert [*table] == ["1", "2"]
    assert (table.get("0"), table.get("2"), "1" in table) == (None, 2, True)


def test_whoever_fills_it_pushes_out_its_own() -> None:
    table: BoundedOwnerCache[int] = BoundedOwnerCache(100, 10_000, share=3)
    table.put("precious", 1, owner="ana")
    for number in range(50):
        table.put(f"junk-{number}", number, owner="mallory")
    assert table.get("precious") == 1
    assert len(table) == 4


def test_nor_does_what_is_heavy_push_out_what_is_anothers() -> None:
    table: BoundedOwnerCache[int] = BoundedOwnerCache(100, 1_000, share=10)
    table.put("precious", 1, owner="ana")
    for number in range(50):
        table.put(f"{number}", number, weight=60, owner="mallory")
    assert table.get("precious") == 1
    assert len(table) == 2


def test_what_weighs_too_much_is_not_kept_and_pushes_nothing_out() -> None:
    table: BoundedOwnerCache[int] = BoundedOwnerCache(100, 100)
    table.put("small", 1, weight=10)
    table.put("huge", 2, weight=101)
    assert [*table] == ["small"]


def test_a_changed_value_is_as_old_as_before() -> None:
    table: BoundedOwnerCache[int] = BoundedOwnerCache(2, 100)
    table.put("a", 1)
    table.put("b", 2)
    table.change("a", 3)
    table.change("never", 4)
    assert table.get("a") == 3
    table.put("c", 4)
    assert [*table] == ["b", "c"]


@given(
    st.lists(
        st.tuples(st.text("ab", max_size=3), st.integers(0, 40), st.sampled_from(["x", "y", "z"]))
    )
)
def test_its_bounds_hold_whatever_is_put(puts: list[tuple[str, int, str]]) -> None:
    table: BoundedOwnerCache[str] = BoundedOwnerCache(5, 100, share=3)
    for key, weight, owner in puts:
        table.put(key, owner, weight, owner)
        assert len(table) <= 5
        assert table.weight <= 100
        owners = [table.get(each) for each in table]
        assert all(owners.count(each) <= 3 for each in owners)
    for key in table:
        table.pop(key)
    assert (len(table), table.weight) == (0, 0)


def test_a_request_is_remembered_with_whom_it_was_for() -> None:
    seen = EnvelopeHistory()
    seen.add(wire.decode_envelope(request(id="asked", to=[WORKER], correlation_id="proposed")))
    step = seen.get("asked")
    assert step is not None
    assert step == (ANA, (WORKER,), EnvelopeKind("mcp/request", "tools/call", "write"), "proposed")
    assert step.may_be_answered_by(WORKER)
    assert not step.may_be_answered_by(ME)
    assert seen.get("other") is None


def test_what_was_for_all_may_be_answered_by_anybody() -> None:
    seen = EnvelopeHistory()
    seen.add(wire.decode_envelope(request(id="asked")))
    step = seen.get("asked")
    assert step is not None
    assert step.may_be_answered_by(ME)


def test_one_who_says_much_is_forgotten_first() -> None:
    seen = EnvelopeHistory()
    seen.add(wire.decode_envelope(request(id="asked")))
    for _ in range(MAX_STEPS_OF_ONE_MEMBER + 5):
        seen.add(wire.decode_envelope(frame("chat", {"text": ""}, BOT)))
    assert len(seen) == MAX_STEPS_OF_ONE_MEMBER + 1
    assert seen.get("asked") is not None


class Tracker:
    """A clock that stands, and what is read while it does."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)
        self.following = MemberProposalTracker(lambda: self.moment, timedelta(minutes=5))
        self._reading = ParticipantEnvelopeReader(MemberProposalTracker(lambda: self.moment))
        self._reading.me = ME

    def read[E: Event](self, kind: type[E], data: bytes) -> E:
        event = self._reading.read(data)[0]
        assert isinstance(event, kind)
        return event

    def begin(self, **more: Any) -> Proposal:
        made = self.read(Proposal, proposal(**more))
        self.following.begin(made)
        return made

    def state(self, of: Proposal) -> ProposalState:
        known = self.following.get(of.id)
        assert known is not None
        return known.status


def test_the_first_fulfilment_counts_and_a_later_one_is_told_as_that() -> None:
    told = Tracker()
    made = told.begin()
    first = told.read(Request, request(correlation_id=made.id, to=[WORKER]))
    second = told.read(Request, request(correlation_id=made.id, to=[WORKER], sender="agent:c"))
    one, other = told.following.fulfilled_by(first), told.following.fulfilled_by(second)
    assert one is not None
    assert other is not None
    assert (one.is_first, other.is_first, other.proposal.fulfilled_by) == (True, False, ANA)
    assert told.following.proposal_of(first.id) == made.id
    assert told.following.proposal_of(second.id) == ""
    answer = told.read(Response, response(first.id))
    assert told.following.answered_by(answer) is not None
    assert told.state(made) is ProposalState.ANSWERED


@loop_over(
    "other",
    [
        {"payload": {"params": {"name": "write"}}, "to": ["agent:other"]},
        {"to": []},
        {"to": [WORKER, "agent:other"]},
    ],
)
def test_what_goes_to_others_than_proposed_fulfils_nothing(other: dict[str, Any]) -> None:
    told = Tracker()
    made = told.begin(to=[WORKER])
    asked = told.read(Request, request(correlation_id=made.id, **other))
    assert told.following.fulfilled_by(asked) is None
    assert told.state(made) is ProposalState.PENDING


def test_another_tool_fulfils_nothing_and_other_arguments_are_told() -> None:
    told = Tracker()
    made = told.begin(kind="mcp/proposal:tools/call:read", payload={"params": {"name": "read"}})
    asked = told.read(Request, request(correlation_id=made.id, to=[WORKER]))
    assert told.following.fulfilled_by(asked) is None
    changed = told.begin(payload={"params": {**PARAMS, "arguments": {"path": "/srv/b"}}})
    done = told.following.fulfilled_by(
        told.read(Request, request(correlation_id=changed.id, to=[WORKER]))
    )
    assert done is not None
    assert not done.is_as_proposed


def test_what_is_past_its_time_is_fulfilled_by_nobody() -> None:
    told = Tracker()
    made = told.begin()
    told.moment += timedelta(minutes=5)
    assert told.state(made) is ProposalState.EXPIRED
    late = told.following.fulfilled_by(
        told.read(Request, request(correlation_id=made.id, to=[WORKER]))
    )
    assert late is not None
    assert not late.is_first
    assert told.following.ended(made.id, ProposalEvent.REJECTION, ANA) is None


def test_one_who_proposes_much_loses_its_own() -> None:
    told = Tracker()
    precious = told.begin(sender=ANA)
    for _ in range(MAX_PROPOSALS_OF_ONE_MEMBER + 20):
        told.begin(sender=BOT)
    assert told.following.get(precious.id) is not None
    assert len(told.following) == MAX_PROPOSALS_OF_ONE_MEMBER + 1
