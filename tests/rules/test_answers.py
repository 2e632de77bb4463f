"""An answer fits its question, or it is none."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.rules.answers import ends_at, marked, why_unfit
from comity.rules.forms import form_in
from comity.wire.asks import Ask, Kind, Verdict

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = (NOW + timedelta(days=1)).isoformat()
FORM = form_in({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


def ask(kind: Kind, *options: str, schema: dict[str, object] | None = None) -> Ask:
    named, at = ("agent:a", "srv", "t", "d", "m"), (NOW, NOW + timedelta(hours=1))
    return Ask("1", kind, *named, {}, *at, options=options, schema=schema)


FITS: list[tuple[Ask, dict[str, Any]]] = [
    (ask(Kind.CONFIRM), {}),
    (ask(Kind.CONFIRM), {"remember": True}),
    (ask(Kind.CONFIRM, "confirm", "cancel"), {}),
    (ask(Kind.CONFIRM, "confirm", "cancel"), {"choice": "cancel"}),
    (ask(Kind.CONFIRM, "go", "stay"), {"choice": "go"}),
    (ask(Kind.SELECT, "a", "b"), {"choice": "b"}),
    (ask(Kind.INPUT), {"text": "blue"}),
    (ask(Kind.INPUT, schema=FORM), {"n": 3}),
    (ask(Kind.PERMISSION), {}),
    (ask(Kind.PERMISSION), {"expires_at": LATER}),
    (ask(Kind.VISIT), {"whatever": 1}),
]
UNFIT: list[tuple[Ask, dict[str, Any]]] = [
    (ask(Kind.CONFIRM, "confirm", "cancel"), {"choice": "Confirm"}),
    (ask(Kind.CONFIRM, "confirm"), {"choice": "confirm", "more": 1}),
    (ask(Kind.CONFIRM, "delete everything", "cancel"), {}),
    (ask(Kind.SELECT, "a", "b"), {}),
    (ask(Kind.SELECT, "a", "b"), {"choice": "c"}),
    (ask(Kind.SELECT, "a", "b"), {"choice": ["a"]}),
    (ask(Kind.SELECT, "a", "b"), {"choice": {}}),
    (ask(Kind.INPUT), {}),
    (ask(Kind.INPUT), {"text": ""}),
    (ask(Kind.INPUT), {"text": "x" * 20_000}),
    (ask(Kind.INPUT), {"text": 1}),
    (ask(Kind.INPUT), {"text": "a", "more": "b"}),
    (ask(Kind.INPUT, schema=FORM), {"n": "three"}),
    (ask(Kind.INPUT, schema=FORM), {}),
    (ask(Kind.PERMISSION), {"expires_at": NOW.isoformat()}),
    (ask(Kind.PERMISSION), {"expires_at": "2027-01-01T00:00:00"}),
    (ask(Kind.PERMISSION), {"expires_at": "soon"}),
    (ask(Kind.PERMISSION), {"expires_at": 1}),
    (ask(Kind.PERMISSION), {"permission": "camera"}),
    (ask(Kind.NOTICE), {}),
]


@pytest.mark.parametrize(("asked", "content"), FITS)
def test_an_answer_that_fits_is_taken(asked: Ask, content: dict[str, Any]) -> None:
    assert why_unfit(asked, Verdict.ACCEPT, content, NOW) is None


@pytest.mark.parametrize(("asked", "content"), UNFIT)
def test_an_answer_that_does_not_fit_is_refused(asked: Ask, content: dict[str, Any]) -> None:
    assert why_unfit(asked, Verdict.ACCEPT, content, NOW)


@pytest.mark.parametrize("verdict", [Verdict.DECLINE, Verdict.CANCEL, Verdict.DEFER])
def test_who_does_not_accept_fills_in_nothing(verdict: Verdict) -> None:
    for kind in (Kind.SELECT, Kind.INPUT, Kind.PERMISSION):
        assert why_unfit(ask(kind, "a"), verdict, {}, NOW) is None
        assert why_unfit(ask(kind, "a"), verdict, {"choice": "a"}, NOW)


def test_no_reason_repeats_what_was_filled_in() -> None:
    for asked in (ask(Kind.INPUT), ask(Kind.INPUT, schema=FORM), ask(Kind.SELECT, "a")):
        reason = why_unfit(asked, Verdict.ACCEPT, {"n": "hunter2", "choice": "hunter2"}, NOW)
        assert reason is not None
        assert "hunter2" not in reason


def test_a_notice_is_never_answered() -> None:
    assert {why_unfit(ask(Kind.NOTICE), each, {}, NOW) for each in Verdict} == {
        "a notice wants no answer"
    }


def test_a_permission_may_have_an_end() -> None:
    assert ends_at({}) is None
    assert ends_at({"expires_at": LATER}) == NOW + timedelta(days=1)


def test_a_mark_is_equal_for_equal_and_tells_nothing() -> None:
    one = marked(b"key", {"text": "hunter2", "name": "ana"})
    assert one == marked(b"key", {"name": "ana", "text": "hunter2"})
    assert one != marked(b"key", {"text": "hunter3", "name": "ana"})
    assert one != marked(b"other", {"text": "hunter2", "name": "ana"})
    assert one.startswith("hmac-sha256:")
    assert "hunter2" not in one
