"""The fields that a server may ask for, filled in by a person."""

from typing import Any

import click
import pytest
from click.testing import CliRunner

from comity.cli.prompting import Person

type Frame = dict[str, Any]


def answered(question: Frame, typed: str) -> tuple[Frame, str]:
    """What a person who types this answers, and what they have seen."""
    given: list[Frame] = []

    @click.command()
    def ask() -> None:
        given.append(Person("tool of the server up", is_there=True).answer(question))

    seen = CliRunner().invoke(ask, input=typed, catch_exceptions=False)
    return given[0], seen.stderr


def form(**fields: Frame) -> Frame:
    required = [name for name, field in fields.items() if field.pop("needed", True)]
    schema = {"type": "object", "properties": fields, "required": required}
    return {"message": "Tell me.", "requestedSchema": schema}


@pytest.mark.parametrize(
    ("field", "typed", "value"),
    [
        ({"type": "string"}, "Ann\n", "Ann"),
        ({"type": "string", "minLength": 2}, "A\nAnn\n", "Ann"),
        ({"type": "string", "maxLength": 3}, "Anna\nAnn\n", "Ann"),
        ({"type": "string", "default": "Ann"}, "\n", "Ann"),
        ({"type": "integer"}, "five\n5\n", 5),
        ({"type": "integer", "minimum": 5, "maximum": 6}, "4\n7\n6\n", 6),
        ({"type": "number"}, "0.5\n", 0.5),
        ({"type": "number", "default": 2}, "\n", 2.0),
        ({"type": "boolean"}, "perhaps\nyes\n", True),
        ({"type": "boolean", "default": False}, "\n", False),
        ({"type": "string", "enum": ["a", "b"]}, "c\n2\n", "b"),
        ({"type": "string", "enum": ["a", "b"], "enumNames": ["Ay", "Bee"]}, "Bee\n", "b"),
        ({"type": "string", "oneOf": [{"const": "a", "title": "Ay"}, {"const": "b"}]}, "1\n", "a"),
        ({"type": "array", "items": {"enum": ["a", "b", "c"]}}, "1, c\n", ["a", "c"]),
        ({"type": "array", "items": {"anyOf": [{"const": "a", "title": "Ay"}]}}, "Ay\n", ["a"]),
        ({"type": "array", "items": {"enum": ["a", "b"]}, "default": ["a", "b"]}, "\n", ["a", "b"]),
    ],
)
def test_a_field_is_asked_until_it_is_answered_in_its_kind(
    field: Frame, typed: str, value: object
) -> None:
    answer, _ = answered(form(it=dict(field)), "y\n" + typed)
    assert answer == {"action": "accept", "content": {"it": value}}


def test_a_text_that_is_too_short_is_told_with_a_count_that_agrees() -> None:
    _, seen = answered(form(it={"type": "string", "maxLength": 1}), "y\nAnn\nA\n")
    assert "At most 1 character." in seen


def test_what_need_not_be_said_may_be_left_out() -> None:
    fields = form(name={"type": "string"}, age={"type": "integer", "needed": False})
    answer, seen = answered(fields, "y\nAnn\n\n")
    assert answer == {"action": "accept", "content": {"name": "Ann"}}
    assert "may be left empty" in seen


def test_nothing_is_answered_before_the_person_agreed() -> None:
    answer, seen = answered(form(name={"type": "string"}), "n\n")
    assert answer == {"action": "decline"}
    assert "tool of the server up asks" in seen
    assert "name" not in seen


def test_whoever_leaves_cancels() -> None:
    assert answered(form(name={"type": "string"}), "y\n")[0] == {"action": "cancel"}


@pytest.mark.parametrize(
    ("typed", "action"), [("y\n", "accept"), ("n\n", "decline"), ("\n", "decline")]
)
def test_an_address_is_shown_whole_before_it_is_agreed_to(typed: str, action: str) -> None:
    question = {"mode": "url", "message": "Sign in.", "url": "https://example.org/x?y=z"}
    answer, seen = answered(question, typed)
    assert answer == {"action": action}
    assert "https://example.org/x?y=z" in seen


def test_no_word_of_a_server_steers_the_terminal() -> None:
    hostile = "\x1b[2Jgone"
    field: Frame = {"type": "string", "title": hostile, "description": hostile, "enum": [hostile]}
    _, seen = answered({**form(it=field), "message": hostile}, "y\n1\n")
    assert "\x1b[2J" not in seen
    assert "gone" in seen


@pytest.mark.parametrize(
    "question", [{}, {"requestedSchema": 5}, {"requestedSchema": {"properties": 5}}]
)
def test_a_question_of_no_shape_is_answered_with_nothing(question: Frame) -> None:
    assert answered(question, "y\n")[0] == {"action": "accept", "content": {}}
