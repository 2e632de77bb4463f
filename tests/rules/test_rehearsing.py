"""What a condition would have let go, told before anybody accepts it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace as otherwise

from comity.rules.precedents import Became, Precedent
from comity.rules.rehearsing import MOST_LISTED, of_event, rehearse
from comity.wire.audit import Event, Result, Type

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
WHERE = {"paths": {"/path": {"under": "/project"}}, "only": ["path"]}
INSIDE = Precedent("agent:x", "fs", "read", {"path": "/project/a"}, Became.APPROVED, NOW)
OUTSIDE = replace(INSIDE, arguments={"path": "/etc/passwd"}, became=Became.DECLINED)
EVENT = Event(
    *(Type.TOOL_BLOCKED, "agent:x", NOW),
    server="fs",
    tool="read",
    result=Result.BLOCKED,
    trace="t1",
    details={"arguments": {"path": "/project/a"}},
)


def test_a_dry_run_tells_what_would_have_been_let_go_and_what_not() -> None:
    refused, went = replace(INSIDE, became=Became.REFUSED), replace(INSIDE, became=Became.WENT)
    found = rehearse(WHERE, [*[INSIDE] * 23, *[refused] * 3, went, OUTSIDE, OUTSIDE])
    assert found.sentence == (
        "would have allowed 23; would also have allowed 4 that were never asked; would not have "
        "covered 2"
    )
    (left,) = found.listed
    assert (left.arguments, left.became, left.times) == (OUTSIDE.arguments, Became.DECLINED, 2)


@pytest.mark.parametrize(
    ("became", "count", "told"),
    [
        (Became.REFUSED, 1, "1 that was never asked"),
        (Became.UNANSWERED, 1, "1 that nobody answered"),
        (Became.UNANSWERED, 2, "2 that nobody answered"),
        (Became.DECLINED, 1, "1 that was declined"),
        (Became.DECLINED, 3, "3 that were declined"),
    ],
)
def test_each_kind_of_call_is_told_by_its_own_words(became: Became, count: int, told: str) -> None:
    found = rehearse(WHERE, [replace(INSIDE, became=became)] * count)
    assert f"would also have allowed {told};" in found.sentence


def test_only_the_latest_that_are_left_are_listed_and_all_are_counted() -> None:
    many = [
        replace(OUTSIDE, arguments={"path": f"/etc/{number}"}, at=NOW + timedelta(seconds=number))
        for number in range(50)
    ]
    found = rehearse(WHERE, many)
    assert (found.left, len(found.listed)) == (50, MOST_LISTED)
    assert found.listed[0].arguments == {"path": "/etc/49"}


def test_a_condition_that_cannot_be_read_would_have_let_nothing_go() -> None:
    assert rehearse({"paths": {}}, [INSIDE]).covered == {}


def test_a_call_of_the_journal_is_one_that_nobody_was_asked_about() -> None:
    assert of_event(EVENT) == replace(INSIDE, became=Became.REFUSED, trace="t1")
    went = of_event(otherwise(EVENT, type=Type.TOOL_EXECUTED))
    assert went == replace(INSIDE, became=Became.WENT, trace="t1")


@pytest.mark.parametrize(
    "event",
    [
        otherwise(EVENT, type=Type.CALL_INTENDED),
        otherwise(EVENT, type=Type.VALIDATION_FAILED),
        otherwise(EVENT, details={}),
        otherwise(EVENT, details={"arguments": "cut"}),
        otherwise(EVENT, details={**EVENT.details, "ask": "a1"}),
        otherwise(EVENT, details={**EVENT.details, "answered_by": "a1"}),
        otherwise(EVENT, details={**EVENT.details, "outcome": "pending_approval"}),
    ],
)
def test_any_other_entry_of_the_journal_is_none(event: Event) -> None:
    assert of_event(event) is None
