"""What nodes say to each other about events."""

from datetime import UTC, datetime

import pytest

from comity.wire.errors import MalformedMessage
from comity.wire.event_span import Has, Wants, decode, encode, happened
from comity.wire.events import Event, Severity

AT = datetime(2026, 1, 1, 12, 30, 1, 500, tzinfo=UTC)


def test_an_event_comes_out_as_it_went_in() -> None:
    data = {"n": 1, "deep": {"list": [1.5, None, "x"]}, "tools": {"a": "b"}}
    event = Event("e", "tool.failed", AT, Severity.ERROR, data, "files", "read", "agent:ci", "mail")
    said = decode(encode(happened("a-1", event)))
    assert said.node == "a-1"
    assert said == happened("a-1", event)
    assert said.event() == event  # type: ignore[union-attr]  # it is one that happened


def test_what_is_wanted_and_what_there_is_come_out_as_they_went_in() -> None:
    for said in (Wants("a-1", ("tool.*", "x.y")), Has("b-2", {"files": ("x.y",)})):
        assert decode(encode(said)) == said


@pytest.mark.parametrize("data", [b"", b"x", b"\x93\x01\x02\x03", b"\x92\xa5wants\xc0"])
def test_what_no_node_says_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(data)


@pytest.mark.parametrize("value", [1 << 80, object()])
def test_what_cannot_be_said_between_nodes_is_no_bug(value: object) -> None:
    event = Event("e", "a.b", AT, Severity.INFO, {"big": value})
    with pytest.raises(MalformedMessage):
        encode(happened("a-1", event))
