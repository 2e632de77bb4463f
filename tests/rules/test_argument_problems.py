"""How it is told that an argument does not fit."""

from comity.rules.argument_problems import Problem, problem, refusal, shortened
from comity.wire.errors import INVALID_TOOL_ARGS


def test_a_problem_says_where_why_and_what_would_pass() -> None:
    assert problem(["a", 0, "b"], "it is wrong", "type", {"types": ["string"]}) == Problem(
        "a[0].b", "it is wrong", ("Give a value of type string.",)
    )
    assert problem(["a"], "x", "required", {"property": "b"}).field == "a.b"
    assert problem([], "x", "required", {"property": "b"}).suggestions == ('Add the argument "b".',)
    assert problem([], "x", "maxLength", {"limit": 5}).suggestions == (
        "Give at most 5 characters.",
    )
    assert problem([], "x", "minItems", {"limit": 1}).suggestions == ("Give at least 1 item.",)
    assert problem([], "x", "minLength", {}).suggestions == ("Look at the tool's input schema.",)
    assert problem([], "x", "whatever", {}).suggestions == ("Look at the tool's input schema.",)
    assert problem([], "x", "pattern", {"error": "given up"}).suggestions[0].startswith("Look at")


def test_long_lists_and_values_are_shortened() -> None:
    (told,) = problem([], "x", "enum", {"options": ["a" * 500, *map(str, range(50))]}).suggestions
    assert len(told) < 500
    assert told.endswith("or one of 31 more.")
    assert len(shortened("x" * 1000)) <= 101
    assert shortened("a\x1b[2J\u202e") == '"a\\u001b[2J "'


def test_the_refusal_is_one_of_arguments() -> None:
    found = refusal(Problem("a", "it is too long", ("Give less.",)))
    assert found.fault is INVALID_TOOL_ARGS
    assert found.because == "the argument a is wrong: it is too long"
    assert (found.field, found.suggestions) == ("a", ("Give less.",))
    assert refusal(Problem("", "x")).because == "the arguments are wrong: x"
