"""Subscriptions and events, as they are said."""

from datetime import UTC, datetime

import pytest

from comity.wire import jsonrpc
from comity.wire.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage
from comity.wire.events import (
    MOST_BYTES,
    MOST_CHANNELS,
    MOST_FOUND,
    Event,
    Severity,
    Wanted,
    is_channel,
    is_pattern,
    named_in,
    notice_of,
    params_of,
    subscribed,
    subscribed_in,
    told_in,
    wanted_in,
)
from comity.wire.jsonrpc import UNSET

AT = datetime(2026, 2, 27, 12, 5, tzinfo=UTC)


def test_a_subscription_is_read_as_the_document_writes_it() -> None:
    said = {"channels": ["model.token_usage", "system.error"], "filter": {"min_severity": "error"}}
    assert wanted_in(jsonrpc.to_raw(said)) == Wanted(
        ("model.token_usage", "system.error"), Severity.ERROR
    )


def test_without_a_filter_everything_is_wanted_and_a_repeated_channel_counts_once() -> None:
    wanted = wanted_in(jsonrpc.to_raw({"channels": ["tool.*", "tool.*", "*"]}))
    assert wanted == Wanted(("tool.*", "*"), Severity.DEBUG)


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({}, INVALID_PARAMS),
        ({"channels": []}, INVALID_PARAMS),
        ({"channels": "tool.*"}, INVALID_PARAMS),
        ({"channels": [7]}, INVALID_PARAMS),
        ({"channels": ["x" * 129]}, INVALID_PARAMS),
        ({"channels": ["tool.*"], "filter": {"min_severity": "loud"}}, INVALID_PARAMS),
        ({"channels": ["a.b"] * (MOST_CHANNELS + 1)}, EXHAUSTED),
    ],
)
def test_a_subscription_that_cannot_be_read_is_refused(said: object, fault: object) -> None:
    with pytest.raises(MalformedMessage) as refused:
        wanted_in(jsonrpc.to_raw(said))
    assert refused.value.fault is fault


def test_a_subscription_without_parameters_is_refused() -> None:
    with pytest.raises(MalformedMessage):
        wanted_in(UNSET)
    with pytest.raises(MalformedMessage):
        named_in(UNSET)


def test_a_channel_has_a_family_and_a_name() -> None:
    assert is_channel("tool.started")
    assert is_channel("model.token-usage.daily")
    for name in ("tool", "Tool.x", "tool.", ".x", "tool.*", "*", "tool.x y", "a." + "b" * 200):
        assert not is_channel(name), name
    assert is_pattern("*")
    assert is_pattern("tool.*")
    assert is_pattern("model.usage.*")
    for name in ("tool*", "*.x", "**", "tool.*.x", "tool.started", ".*"):
        assert not is_pattern(name), name


def test_an_event_is_told_as_the_document_writes_it_with_its_id_and_severity() -> None:
    event = Event("e1", "tool.started", AT, Severity.INFO, {"tool_name": "read"}, "files")
    assert params_of(event, "sub-1") == {
        "subscription_id": "sub-1",
        "channel": "tool.started",
        "timestamp": "2026-02-27T12:05:00.000Z",
        "severity": "info",
        "id": "e1",
        "data": {"tool_name": "read"},
    }


def test_only_what_a_server_says_names_that_server_beside_its_data() -> None:
    event = Event("e1", "model.token_usage", AT, Severity.INFO, {"server_id": ""}, source="files")
    told = jsonrpc.params_of(notice_of(event, "sub-1"))
    assert jsonrpc.text(told["server_id"]) == "files"
    assert jsonrpc.value(told["data"]) == {"server_id": ""}


def test_the_answer_to_a_subscription_is_read_as_it_is_written() -> None:
    answer = jsonrpc.to_raw(subscribed("sub-1", ["tool.started"], ["x.y"]))
    assert subscribed_in(answer) == ("sub-1", ("tool.started",))


def test_of_a_servers_answer_only_so_many_real_names_are_believed() -> None:
    many = [f"a.b{number}" for number in range(MOST_FOUND + 50)]
    answer = {"subscription_id": "s", "subscribed": ["*", "no name", "a.b0", *many]}
    _, found = subscribed_in(jsonrpc.to_raw(answer))
    assert found == tuple(many[:MOST_FOUND])


@pytest.mark.parametrize("named", ["", "x" * 129, 7, None])
def test_a_servers_subscription_has_a_short_name(named: object) -> None:
    with pytest.raises(MalformedMessage):
        subscribed_in(jsonrpc.to_raw({"subscription_id": named, "subscribed": []}))


TOLD = {
    "subscription_id": "s-1",
    "channel": "model.token_usage",
    "timestamp": "2026-02-27T13:05:00.000+01:00",
    "data": {"tokens_used": 1500},
}


def test_a_servers_event_needs_neither_an_id_nor_a_severity() -> None:
    told = told_in(jsonrpc.to_raw(TOLD))
    assert (told.id, told.severity, told.data) == (None, "info", {"tokens_used": 1500})
    assert told.at(datetime(2000, 1, 1, tzinfo=UTC)) == AT


@pytest.mark.parametrize("named", ["id", "event_id"])
def test_a_servers_event_may_have_an_id_under_either_name(named: str) -> None:
    assert told_in(jsonrpc.to_raw({**TOLD, named: "e-1"})).id == "e-1"


@pytest.mark.parametrize(
    "written", ["yesterday", "2026-02-27T12:05:00", "", "0001-01-01T00:00+23:59"]
)
def test_a_time_that_cannot_be_read_is_when_it_was_heard(written: str) -> None:
    told = told_in(jsonrpc.to_raw({**TOLD, "timestamp": written}))
    assert told.at(AT) == AT


def nested(depth: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    "other",
    [
        {"channel": "token usage"},
        {"channel": 7},
        {"data": [1]},
        {"data": {"much": "x" * MOST_BYTES}},
        {"data": nested(20)},
        {"id": ""},
        {"id": "x" * 129},
        {"timestamp": 7},
        {"subscription_id": None},
    ],
)
def test_an_event_that_is_none_is_refused(other: dict[str, object]) -> None:
    with pytest.raises(MalformedMessage):
        told_in(jsonrpc.to_raw({**TOLD, **other}))


def test_the_subscription_to_end_is_named() -> None:
    assert named_in(jsonrpc.to_raw({"subscription_id": "sub-1"})) == "sub-1"
    with pytest.raises(MalformedMessage):
        named_in(jsonrpc.to_raw({"subscription_id": 7}))
