"""What is said at a terminal beside yes is read as its field wants it; secrets are not shown."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest
from click.testing import CliRunner

from comity.cli.filling import content_of, filling
from comity.wire.asks import Ask, Kind
from comity.wire.errors import Misconfigured

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "days": {"type": "integer"},
        "share": {"type": "number"},
        "sure": {"type": "boolean"},
        "some": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
    },
}


def ask(kind: Kind = Kind.INPUT, schema: dict[str, Any] | None = None) -> Ask:
    named = ("agent:a", "srv", "tool", "digest", "message")
    return Ask("1", kind, *named, {}, NOW, NOW + timedelta(hours=1), schema=schema)


def test_nothing_said_is_nothing_sent() -> None:
    assert content_of(ask(), None, (), None) is None


@pytest.mark.parametrize(
    ("fill", "content"),
    [
        (("name=a=b",), {"name": "a=b"}),
        (("days=3", "share=0.5"), {"days": 3, "share": 0.5}),
        (("sure=yes",), {"sure": True}),
        (("sure=False",), {"sure": False}),
        (("some=a, b",), {"some": ["a", "b"]}),
    ],
)
def test_each_value_is_of_its_field_s_type(fill: Sequence[str], content: dict[str, Any]) -> None:
    assert content_of(ask(schema=FORM), None, fill, None) == content


@pytest.mark.parametrize("wrong", ["days=three", "share=half", "sure=perhaps", "other=1"])
def test_what_cannot_be_meant_is_said_before_it_is_sent(wrong: str) -> None:
    with pytest.raises(Misconfigured):
        content_of(ask(schema=FORM), None, (wrong,), None)


def test_a_question_without_a_form_has_one_text() -> None:
    assert content_of(ask(), None, ("text=blue",), None) == {"text": "blue"}
    with pytest.raises(Misconfigured, match="--fill text"):
        content_of(ask(), None, ("name=blue",), None)


def test_a_choice_is_what_was_chosen() -> None:
    assert content_of(ask(Kind.SELECT), "staging", (), None) == {"choice": "staging"}


def test_only_a_permission_has_an_end() -> None:
    found = content_of(ask(Kind.PERMISSION), None, (), "8h")
    assert found is not None
    ends = datetime.fromisoformat(str(found["expires_at"]))
    assert timedelta(hours=7, minutes=59) < ends - datetime.now(UTC) <= timedelta(hours=8)
    with pytest.raises(Misconfigured, match="leave --expires out"):
        content_of(ask(), None, (), "8h")


def test_a_secret_is_asked_for_and_not_shown() -> None:
    @click.command()
    @filling
    def command(choose: str | None, fill: tuple[str, ...], expires: str | None) -> None:
        found = content_of(ask(), choose, fill, expires)
        assert found == {"text": "hunter2"}
        click.echo("filled in")

    result = CliRunner().invoke(command, ["--fill", "text"], input="hunter2\n")
    assert result.exit_code == 0, result.output
    assert "filled in" in result.output
    assert "hunter2" not in result.output
