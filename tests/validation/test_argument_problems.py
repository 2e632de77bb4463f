"""How it is told that an argument does not fit."""

from comity.errors import INVALID_TOOL_ARGS
from comity.validation.arguments import (
    ArgumentError,
    argument_refusal,
    shorten_value,
    to_argument_error,
)


def test_a_problem_says_where_why_and_what_would_pass() -> None:
    assert to_argument_error(
        ["a", 0, "b"], "it is wrong", "type", {"types": ["string"]}
    ) == ArgumentError("a[0].b", "it is wrong", ("Give a value of type string.",))
    assert to_argument_error(["a"], "x", "required", {"property": "b"}).field == "a.b"
    assert to_argument_error([], "x", "required", {"property": "b"}).suggestions == (
        'Add the argument "b".',
    )
    assert to_argument_error([], "x", "maxLength", {"limit": 5}).suggestions == (
        "Give at most 5 characters.",
    )
    assert to_argument_error([], "x", "minItems", {"limit": 1}).suggestions == (
        "Give at least 1 item.",
    )
    assert to_argument_error([], "x", "minLength", {}).suggestions == (
        "Look at the tool's input schema.",
    )
    assert to_argument_error([], "x", "whatever", {}).suggestions == (
        "Look at the tool's input schema.",
    )
    assert (
        to_argument_error([], "x", "pattern", {"error": "given up"})
        .suggestions[0]
        .startswith("Look at")
    )


def test_long_lists_and_values_are_shortened() -> None:
    (told,) = to_argument_error(
        [], "x", "enum", {"options": ["a" * 500, *map(str, range(50))]}
    ).suggestions
    assert len(told) < 500
    assert told.endswith("or one of 31 more.")
    assert len(shorten_value("x" * 1000)) <= 101
    assert shorten_value("a\x1b[2J\u202e") == '"a\\u001b[2J "'


def test_the_refusal_is_one_of_arguments() -> None:
    found = argument_refusal(ArgumentError("a", "it is too long", ("Give less.",)))
    assert found.fault is INVALID_TOOL_ARGS
    assert found.reason == "the argument a is wrong: it is too long"
    assert (found.field, found.suggestions) == ("a", ("Give less.",))
    assert argument_refusal(ArgumentError("", "x")).reason == "the arguments are wrong: x"
