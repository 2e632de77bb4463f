"""Where pushes go, what is made of their fields, and what becomes of one that fails."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules import pushes
from comity.rules.pushes import LONGEST_NAME, LONGEST_TEXT, Patience, Row, at, filled, route_of
from comity.wire.contents import said
from comity.wire.pushes import Goal, KeptPush, Push, PushState, Route

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
PUSH = Push("ci", "evt-1", NOW, said("x"), "ci.builds", {"repo": {"name": "a/b"}, "n": [1, "two"]})
TURN = Route(Goal.TURN, "", "ops")
EVENTS, NOTHING = Route(Goal.EVENTS), Route(Goal.NOTHING)


def test_the_first_row_that_names_a_push_counts() -> None:
    rows = [Row("cd", "*", TURN), Row("ci", "ci.*", EVENTS), Row("*", "*", NOTHING)]
    assert route_of(rows, PUSH) == EVENTS
    assert route_of(rows, replace(PUSH, feature="ci")) == NOTHING
    assert route_of(rows, replace(PUSH, server="cd")) == TURN


def test_without_a_row_nothing_follows() -> None:
    assert route_of([], PUSH) is None
    assert route_of([Row("cd", "*", TURN), Row("ci", "cd.*", TURN)], PUSH) is None


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("ops", "ops"),
        ("{event}", "ci/evt-1"),
        ("{/repo/name}", "ci/a/b"),
        ("build {/n/1} of {feature}", "ci/build two of ci.builds"),
        ("{/missing}", "ci/evt-1"),
        ("{/n/7}{/repo/name/deeper}", "ci/evt-1"),
    ],
)
def test_a_conversation_is_named_by_an_operator_or_by_fields_within_the_server(
    written: str, named: str
) -> None:
    route = route_of([Row("*", "*", Route(Goal.TURN, "", written))], PUSH)
    assert route is not None
    assert route.conversation == named


@given(st.text(max_size=500))
def test_no_field_of_a_push_leads_into_a_conversation_of_others(word: str) -> None:
    push = replace(PUSH, origin={"thread": word})
    route = pushes.settled(Route(Goal.TURN, "", "{/thread}"), push, push.origin)
    assert route.conversation.startswith("ci/")
    assert len(route.conversation) <= LONGEST_NAME
    assert route.conversation.isprintable()


def test_two_long_names_stay_two_conversations() -> None:
    names = {
        pushes.settled(Route(Goal.TURN, "", "{/t}{/u}"), PUSH, {"t": "x" * 199, "u": u})
        for u in ("a", "b" * 900, "b" * 901)
    }
    assert len(names) == 3
    route = pushes.settled(Route(Goal.TURN, "", "{/t}"), PUSH, {"t": "x" * 5000})
    assert len(route.conversation) == LONGEST_NAME


def test_a_template_takes_no_more_than_it_may() -> None:
    assert filled("{/a} {/b} {/c}", PUSH, {"a": "x", "b": 2, "c": {"d": [True, None]}}) == (
        'x 2 {"d":[true,null]}'
    )
    assert len(filled("{/a}" * 40, PUSH, {"a": "y" * 5000})) == LONGEST_TEXT
    # What a field says is no template itself.
    assert filled("{/a}", PUSH, {"a": "{/b}", "b": "secret"}) == "{/b}"


@pytest.mark.parametrize("wrong", ["{name}", "{a/b}", "{/a}" * 51])
def test_a_template_that_means_nothing_is_told_so(wrong: str) -> None:
    assert pushes.why_no_template(wrong) != ""


@pytest.mark.parametrize("fine", ["", "plain", "{/a/b}", "{event} {server} {feature} {type}"])
def test_a_template_that_means_something_is_fine(fine: str) -> None:
    assert pushes.why_no_template(fine) == ""


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("/a/b", 1),
        ("/l/1", "y"),
        ("/l/-1", None),
        ("/l/01", "y"),
        ("/l/x", None),
        ("/s~1t", 2),
        ("/u~0v", 3),
        ("/a/b/c", None),
        ("/l/99999999999", None),
    ],
)
def test_a_pointer_finds_what_stands_there(pointer: str, found: object) -> None:
    value = {"a": {"b": 1}, "l": ["x", "y"], "s/t": 2, "u~v": 3}
    assert at(value, pointer) == found


def test_what_could_not_be_done_is_tried_ever_more_seldom_and_fails_at_last() -> None:
    kept, now, waits = KeptPush(PUSH, TURN, NOW, NOW), NOW, list[timedelta]()
    patience = Patience(retry_for=timedelta(hours=1))
    while kept.state is PushState.WAITING:
        kept = pushes.tried(kept, "away", now, patience, 0.999)
        waits.append(kept.due_at - now)
        now = max(kept.due_at, now + timedelta(milliseconds=1))
    assert kept.state is PushState.FAILED
    assert (kept.last_error, kept.done_at is not None) == ("away", True)
    assert waits[0] < waits[3] < waits[6]
    assert max(waits) <= timedelta(minutes=5)


def test_what_is_done_says_so_and_what_came_of_it() -> None:
    kept = replace(KeptPush(PUSH, TURN, NOW, NOW), attempts=2, last_error="away")
    done = pushes.done(kept, "inf_1", NOW)
    assert (done.state, done.attempts, done.inference) == (PushState.DONE, 3, "inf_1")
    assert (done.last_error, done.done_at) == ("", NOW)
