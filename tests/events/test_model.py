"""Events and subscriptions: how they are written, which are wanted, and when two are one."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage
from comity.events.model import (
    MAX_CHANNELS,
    MAX_FOUND,
    MOST_BYTES,
    ChannelInterest,
    EventFilter,
    GatewayEvent,
    SeenEvents,
    ServerEvent,
    Severity,
    could_be,
    event_in,
    filter_in,
    id_of,
    is_channel,
    is_channel_match,
    is_channel_wanted,
    is_pattern,
    named_in,
    notice_of,
    params_of,
    resolve_channels,
    severity_of,
    subscribed_in,
)
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import UNSET
from tests.support.cases import loop_over

AT = datetime(2026, 2, 27, 12, 5, tzinfo=UTC)


@loop_over(
    ("said", "wanted"),
    [
        (
            {"channels": ["model.usage", "system.error"], "filter": {"min_severity": "error"}},
            EventFilter(("model.usage", "system.error"), Severity.ERROR),
        ),
        ({"channels": ["tool.*", "tool.*", "*"]}, EventFilter(("tool.*", "*"), Severity.DEBUG)),
    ],
)
def test_a_subscription_is_read_as_the_document_writes_it(
    said: object, wanted: EventFilter
) -> None:
    assert filter_in(jsonrpc.to_raw(said)) == wanted


@loop_over(
    ("said", "fault"),
    [
        ({}, INVALID_PARAMS),
        ({"channels": []}, INVALID_PARAMS),
        ({"channels": "tool.*"}, INVALID_PARAMS),
        ({"channels": [7]}, INVALID_PARAMS),
        ({"channels": ["x" * 129]}, INVALID_PARAMS),
        ({"channels": ["tool.*"], "filter": {"min_severity": "loud"}}, INVALID_PARAMS),
        ({"channels": ["a.b"] * (MAX_CHANNELS + 1)}, EXHAUSTED),
    ],
)
def test_a_subscription_that_cannot_be_read_is_refused(said: object, fault: object) -> None:
    with pytest.raises(MalformedMessage) as refused:
        filter_in(jsonrpc.to_raw(said))
    assert refused.value.fault is fault


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
    event = GatewayEvent("e1", "tool.started", AT, Severity.INFO, {"tool_name": "read"}, "files")
    assert params_of(event, "sub-1") == {
        "subscription_id": "sub-1",
        "channel": "tool.started",
        "timestamp": "2026-02-27T12:05:00.000Z",
        "severity": "info",
        "id": "e1",
        "data": {"tool_name": "read"},
    }


def test_only_what_a_server_says_names_that_server_beside_its_data() -> None:
    event = GatewayEvent(
        "e1", "model.token_usage", AT, Severity.INFO, {"server_id": ""}, source="files"
    )
    told = notice_of(event, "sub-1").parameters
    assert jsonrpc.decode_text(told["server_id"]) == "files"
    assert jsonrpc.decode_value(told["data"]) == {"server_id": ""}


def test_of_a_servers_answer_only_so_many_real_names_are_believed() -> None:
    many = [f"a.b{number}" for number in range(MAX_FOUND + 50)]
    answer = {"subscription_id": "s", "subscribed": ["*", "no name", "a.b0", *many]}
    _, found = subscribed_in(jsonrpc.to_raw(answer))
    assert found == tuple(many[:MAX_FOUND])


@loop_over("named", ["", "x" * 129, 7, None])
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
    told = event_in(jsonrpc.to_raw(TOLD))
    assert (told.id, told.severity, told.data) == (None, "info", {"tokens_used": 1500})
    assert told.at(datetime(2000, 1, 1, tzinfo=UTC)) == AT


@loop_over("named", ["id", "event_id"])
def test_a_servers_event_may_have_an_id_under_either_name(named: str) -> None:
    assert event_in(jsonrpc.to_raw({**TOLD, named: "e-1"})).id == "e-1"


@loop_over("written", ["yesterday", "2026-02-27T12:05:00", "", "0001-01-01T00:00+23:59"])
def test_a_time_that_cannot_be_read_is_when_it_was_heard(written: str) -> None:
    told = event_in(jsonrpc.to_raw({**TOLD, "timestamp": written}))
    assert told.at(AT) == AT


def nested(depth: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for _ in range(depth):
        found = {"a": found}
    return found


@loop_over(
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
        event_in(jsonrpc.to_raw({**TOLD, **other}))


def test_the_subscription_to_end_is_named() -> None:
    assert named_in(jsonrpc.to_raw({"subscription_id": "sub-1"})) == "sub-1"
    for wrong in (jsonrpc.to_raw({"subscription_id": 7}), UNSET):
        with pytest.raises(MalformedMessage):
            named_in(wrong)
    with pytest.raises(MalformedMessage):
        filter_in(UNSET)


SERVER_EVENT = ServerEvent(
    "s", "model.usage", "2026-01-01T00:00:00Z", {"a": 1, "b": 2}, "info", None
)


@loop_over(
    ("pattern", "channel", "is_one"),
    [
        ("*", "tool.started", True),
        ("tool.*", "tool.started", True),
        ("tool.*", "tools.started", False),
        ("tool.*", "tool.a.b", True),
        ("tool.started", "tool.started", True),
        ("tool.started", "tool.started.late", False),
        ("tool*", "tool.started", False),
        ("t*", "tool.started", False),
    ],
)
def test_a_family_is_what_follows_its_dot(pattern: str, channel: str, is_one: bool) -> None:
    assert is_channel_match(pattern, channel) is is_one


@loop_over(
    ("said", "meant"),
    [
        ("WARNING", Severity.WARNING),
        ("notice", Severity.INFO),
        ("emergency", Severity.CRITICAL),
        ("ghastly", Severity.INFO),
        ("", Severity.INFO),
    ],
)
def test_a_severity_that_nobody_knows_is_info(said: str, meant: Severity) -> None:
    assert severity_of(said) is meant


def test_the_answer_names_the_real_channels_of_a_family_and_what_there_is_not() -> None:
    wanted = EventFilter(("tool.*", "system.error", "model.usage", "nothing"), Severity.ERROR)
    found, missing, kept = resolve_channels(wanted, ["tool.b", "tool.a", "system.error", "other.x"])
    assert found == ("system.error", "tool.a", "tool.b")
    assert missing == ("model.usage", "nothing")
    assert kept == EventFilter(("tool.*", "system.error"), Severity.ERROR)


def test_a_family_without_channels_is_followed_all_the_same() -> None:
    found, missing, kept = resolve_channels(EventFilter(("model.*",)), ["tool.a"])
    assert (found, missing, kept.channels) == ((), ("model.*",), ("model.*",))
    assert is_channel_wanted(kept, "model.late")


def test_what_no_channel_can_be_called_is_asked_of_nobody() -> None:
    assert could_be(["tool.*", "a b", "x", "*", "a.b"]) == ("tool.*", "*", "a.b")


def test_an_event_without_an_id_is_known_by_its_channel_time_and_data() -> None:
    same = ServerEvent(
        "other", "model.usage", "2026-01-01T00:00:00Z", {"b": 2, "a": 1}, "error", None
    )
    assert id_of(SERVER_EVENT) == id_of(same)
    for other in (
        ServerEvent("s", "model.usages", SERVER_EVENT.timestamp, SERVER_EVENT.data, "info", None),
        ServerEvent("s", "model.usage", "2026-01-01T00:00:01Z", SERVER_EVENT.data, "info", None),
        ServerEvent("s", "model.usage", SERVER_EVENT.timestamp, {"a": 1, "b": 3}, "info", None),
    ):
        assert id_of(other) != id_of(SERVER_EVENT)
    assert id_of(ServerEvent("s", "model.usage", "", {}, "info", "e-1")) == "e-1"


def event(id: str, source: str = "") -> GatewayEvent:
    return GatewayEvent(id, "a.b", AT, Severity.INFO, {}, source=source)


def test_the_same_id_of_two_servers_is_two_events() -> None:
    seen = SeenEvents(10)
    assert seen.is_new(event("1", "files"))
    assert seen.is_new(event("1", "mail"))
    assert seen.is_new(event("1"))
    assert not seen.is_new(event("1", "files"))


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 20))
def test_what_is_remembered_is_bounded_and_the_latest_are_never_new(
    ids: list[int], most: int
) -> None:
    seen = SeenEvents(most)
    for number, each in enumerate(ids):
        latest = list(dict.fromkeys(reversed(ids[:number])))[:1]
        is_new = seen.is_new(event(str(each)))
        assert not (is_new and each in latest)


def test_what_several_want_is_given_up_with_the_last() -> None:
    wants = ChannelInterest[int]()
    assert wants.add(["a.b", "a.*"], 1, "ci") == ("a.b", "a.*")
    assert wants.add(["a.b"], 2, "ana") == ("a.b",)
    assert wants.of("a.b") == (1, 2)
    assert wants.drop(1) == ("a.*",)
    assert "a.b" in wants
    assert wants.drop(1) == ()
    assert wants.drop(2) == ("a.b",)
    assert list(wants) == []


def test_one_party_brings_in_so_many_and_shares_what_others_brought() -> None:
    wants = ChannelInterest[int](maximum=10, most_of_party=2)
    assert wants.add(["a.a", "a.b", "a.c"], 1, "ci") == ("a.a", "a.b")
    assert wants.add(["a.c", "a.a"], 2, "ana") == ("a.c", "a.a")
    assert wants.add(["a.c"], 3, "ci") == ("a.c",)
    assert wants.drop(1) == ("a.b",)
    # It brought in a.a, which another wants still; so there is room for one.
    assert wants.add(["a.d", "a.e"], 4, "ci") == ("a.d",)


def test_there_is_room_for_so_many_in_all() -> None:
    wants = ChannelInterest[int](maximum=2)
    assert wants.add(["a.a", "a.b", "a.c"], 1, "ci") == ("a.a", "a.b")
    assert wants.add(["a.d"], 2, "ana") == ()
    wants.drop(1)
    assert wants.add(["a.d"], 2, "ana") == ("a.d",)


_names = st.lists(st.sampled_from(["a.a", "a.b", "a.c", "b.*", "*"]), max_size=5)


@given(st.lists(st.tuples(st.integers(0, 5), _names | st.none()), max_size=60))
def test_whatever_happens_only_what_somebody_wants_is_wanted(
    steps: list[tuple[int, list[str] | None]],
) -> None:
    wants, held = ChannelInterest[int](maximum=4, most_of_party=3), dict[int, set[str]]()
    for who, names in steps:
        if names is None:
            wants.drop(who)
            held.pop(who, None)
        else:
            held.setdefault(who, set()).update(wants.add(names, who, f"party{who % 2}"))
        assert set(wants) == {name for each in held.values() for name in each}
        assert len(list(wants)) <= 4
