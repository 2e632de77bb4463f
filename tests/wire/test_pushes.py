"""Events that servers push, read strictly, and what they are told."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.pushes import Goal, Route, accepted, not_accepted, push_in

GOOD: dict[str, Any] = {
    "featureSet": "ci.builds",
    "eventId": "evt_123",
    "timestamp": "2026-01-28T12:00:00Z",
    "origin": {"server": "github", "event": "push"},
    "payload": {"content": [{"type": "text", "text": "pushed"}]},
}


def raw(**changed: Any) -> Raw:
    return Raw(json.dumps({**GOOD, **changed}).encode())


def test_an_event_is_read_as_the_document_writes_it() -> None:
    push = push_in("ci", raw())
    assert (push.server, push.id, push.feature) == ("ci", "evt_123", "ci.builds")
    assert push.at.isoformat() == "2026-01-28T12:00:00+00:00"
    assert push.origin == {"server": "github", "event": "push"}
    assert [block.text for block in push.content] == ["pushed"]
    assert push.key == "push:ci/evt_123"


def test_a_time_without_a_zone_is_in_utc_and_an_origin_may_be_missing() -> None:
    push = push_in("ci", raw(timestamp="2026-01-28T12:00:00", origin=None))
    assert push.at.utcoffset() is not None
    assert push.origin == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"eventId": ""},
        {"eventId": 7},
        {"eventId": "x" * 201},
        {"eventId": "x" * 1_000_000},
        {"eventId": "a\0b"},
        {"eventId": "a\nb"},
        {"eventId": None},
        {"timestamp": "yesterday"},
        {"timestamp": 12},
        {"timestamp": "x" * 100_000},
        {"origin": []},
        {"origin": "github"},
        {"payload": {}},
        {"payload": []},
        {"payload": {"content": 7}},
        {"payload": {"content": [{"type": "film"}]}},
        {"payload": {"content": [{"type": "text", "text": "x"}] * 300}},
        {"featureSet": 1},
    ],
)
def test_an_event_of_another_shape_is_refused_in_few_words(wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage) as refused:
        push_in("ci", raw(**wrong))
    assert refused.value.fault is INVALID_PARAMS
    assert len(str(refused.value)) < 500


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=8))
def test_whatever_an_event_holds_it_is_read_or_refused(anything: object) -> None:
    for name in GOOD:
        try:
            push_in("ci", Raw(json.dumps({**GOOD, name: anything}).encode()))
        except MalformedMessage:
            continue


def test_what_a_server_is_told_names_the_turn_where_there_is_one() -> None:
    assert accepted() == {"accepted": True}
    assert accepted("inf_1") == {"accepted": True, "inferenceId": "inf_1"}
    assert not_accepted("rate") == {"accepted": False, "reason": "rate"}
    assert not_accepted("duplicate", "inf_1") == {
        "accepted": False,
        "reason": "duplicate",
        "inferenceId": "inf_1",
    }


def test_a_route_is_shown_as_it_is_written() -> None:
    assert str(Route(Goal.TOPIC, "ops")) == "topic:ops"
    assert str(Route(Goal.TURN, "", "ops")) == "turn"
