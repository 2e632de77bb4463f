"""Proposals are followed: what fulfils one, what answers it, and what is none of it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.rules.proposals import Happened, State
from comity.sdk.events import Event, Proposal, Request, Response
from comity.sdk.following import MOST_OF_ONE, Following
from comity.sdk.reading import Reading
from tests.sdk.made import ANA, BOT, ME, PARAMS, WORKER, proposal, request, response


class Told:
    """A clock that stands, and what is read while it does."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)
        self.following = Following(lambda: self.moment, timedelta(minutes=5))
        self._reading = Reading(Following(lambda: self.moment))
        self._reading.me = ME

    def read[E: Event](self, kind: type[E], data: bytes) -> E:
        event = self._reading.read(data)[0]
        assert isinstance(event, kind)
        return event

    def begin(self, **more: Any) -> Proposal:
        made = self.read(Proposal, proposal(**more))
        self.following.begin(made)
        return made

    def state(self, of: Proposal) -> State:
        known = self.following.get(of.id)
        assert known is not None
        return known.status


def test_the_first_fulfilment_counts_and_a_later_one_is_told_as_that() -> None:
    told = Told()
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
    assert told.state(made) is State.ANSWERED


@pytest.mark.parametrize(
    "other",
    [
        {"payload": {"params": {"name": "write"}}, "to": ["agent:other"]},
        {"to": []},
        {"to": [WORKER, "agent:other"]},
    ],
)
def test_what_goes_to_others_than_proposed_fulfils_nothing(other: dict[str, Any]) -> None:
    told = Told()
    made = told.begin(to=[WORKER])
    asked = told.read(Request, request(correlation_id=made.id, **other))
    assert told.following.fulfilled_by(asked) is None
    assert told.state(made) is State.PENDING


def test_another_tool_fulfils_nothing_and_other_arguments_are_told() -> None:
    told = Told()
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
    told = Told()
    made = told.begin()
    told.moment += timedelta(minutes=5)
    assert told.state(made) is State.EXPIRED
    late = told.following.fulfilled_by(
        told.read(Request, request(correlation_id=made.id, to=[WORKER]))
    )
    assert late is not None
    assert not late.is_first
    assert told.following.ended(made.id, Happened.REJECTION, ANA) is None


def test_one_who_proposes_much_loses_its_own() -> None:
    told = Told()
    precious = told.begin(sender=ANA)
    for _ in range(MOST_OF_ONE + 20):
        told.begin(sender=BOT)
    assert told.following.get(precious.id) is not None
    assert len(told.following) == MOST_OF_ONE + 1
