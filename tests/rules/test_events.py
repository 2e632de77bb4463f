"""Which events are wanted, and when two of them are one."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.events import (
    Seen,
    answered,
    could_be,
    covers,
    id_of,
    is_enough,
    severity_of,
    wants,
)
from comity.wire.events import Event, Severity, Told, Wanted

AT = datetime(2026, 1, 1, tzinfo=UTC)
TOLD = Told("s", "model.usage", "2026-01-01T00:00:00Z", {"a": 1, "b": 2}, "info", None)


@pytest.mark.parametrize(
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
    assert covers(pattern, channel) is is_one


def test_severities_are_in_order() -> None:
    ordered = list(Severity)
    for place, each in enumerate(ordered):
        assert [is_enough(other, each) for other in ordered] == [
            at >= place for at in range(len(ordered))
        ]


@pytest.mark.parametrize(
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
    wanted = Wanted(("tool.*", "system.error", "model.usage", "nothing"), Severity.ERROR)
    found, missing, kept = answered(wanted, ["tool.b", "tool.a", "system.error", "other.x"])
    assert found == ("system.error", "tool.a", "tool.b")
    assert missing == ("model.usage", "nothing")
    assert kept == Wanted(("tool.*", "system.error"), Severity.ERROR)


def test_a_family_without_channels_is_followed_all_the_same() -> None:
    found, missing, kept = answered(Wanted(("model.*",)), ["tool.a"])
    assert (found, missing, kept.channels) == ((), ("model.*",), ("model.*",))
    assert wants(kept, "model.late")


def test_what_no_channel_can_be_called_is_asked_of_nobody() -> None:
    assert could_be(["tool.*", "a b", "x", "*", "a.b"]) == ("tool.*", "*", "a.b")


def test_an_event_without_an_id_is_known_by_its_channel_time_and_data() -> None:
    same = Told("other", "model.usage", "2026-01-01T00:00:00Z", {"b": 2, "a": 1}, "error", None)
    assert id_of(TOLD) == id_of(same)
    for other in (
        Told("s", "model.usages", TOLD.timestamp, TOLD.data, "info", None),
        Told("s", "model.usage", "2026-01-01T00:00:01Z", TOLD.data, "info", None),
        Told("s", "model.usage", TOLD.timestamp, {"a": 1, "b": 3}, "info", None),
    ):
        assert id_of(other) != id_of(TOLD)
    assert id_of(Told("s", "model.usage", "", {}, "info", "e-1")) == "e-1"


def event(id: str, source: str = "") -> Event:
    return Event(id, "a.b", AT, Severity.INFO, {}, source=source)


def test_the_same_id_of_two_servers_is_two_events() -> None:
    seen = Seen(10)
    assert seen.is_new(event("1", "files"))
    assert seen.is_new(event("1", "mail"))
    assert seen.is_new(event("1"))
    assert not seen.is_new(event("1", "files"))


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 20))
def test_what_is_remembered_is_bounded_and_the_latest_are_never_new(
    ids: list[int], most: int
) -> None:
    seen = Seen(most)
    for number, each in enumerate(ids):
        latest = list(dict.fromkeys(reversed(ids[:number])))[:1]
        is_new = seen.is_new(event(str(each)))
        assert not (is_new and each in latest)
