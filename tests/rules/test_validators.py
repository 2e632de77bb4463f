"""Which validators look at a tool, and what nobody can take away. (D-12, S2, S3, S7)"""

import pytest

from comity.rules.code_safety import Level
from comity.rules.validators import UNRULED, Rules, blocked, plan, unknown, unsafe
from comity.wire.errors import CODE_UNSAFE, VALIDATION_BLOCKED
from comity.wire.tools import Tool


def asking(validator: object, **security: object) -> Tool:
    return Tool("x", "run", {"security": {"validator": validator, **security}})


@pytest.mark.parametrize(
    ("validator", "names"),
    [
        ("sandbox", ("sandbox",)),
        ("none", ()),
        ("anything", ("anything",)),
        (["readonly", "sandbox", "none"], ("sandbox", "readonly")),
        (5, ("(int)",)),
        ({}, ("(dict)",)),
        ("", ("",)),
    ],
)
def test_what_a_tool_asks_for_is_planned(validator: object, names: tuple[str, ...]) -> None:
    assert plan(asking(validator)).validators == names


def test_a_tool_takes_nothing_away_from_what_an_operator_wants() -> None:
    rules = Rules(validators=("network_restricted",))
    assert plan(asking("none"), rules).validators == ("network_restricted",)
    both = plan(asking("code_safety"), Rules(validators=("mine", "sandbox")))
    assert both.validators == ("sandbox", "mine", "code_safety")


def test_without_any_word_nothing_is_planned() -> None:
    assert plan(Tool("x", "run")).validators == ()
    assert plan(Tool("x", "run", {"security": "x"}), UNRULED).validators == ()


def test_code_of_a_tool_that_may_only_read_may_only_read() -> None:
    schema = {"type": "object", "properties": {"code": {"type": "string"}}}
    tool = Tool("x", "run", {"inputSchema": schema, "security": {"validator": "readonly"}})
    assert plan(tool).validators == ("readonly", "code_safety")
    assert plan(tool).rules.code.level is Level.READONLY
    assert plan(asking("readonly")).validators == ("readonly",)


def test_refusals_say_who_blocked_and_where() -> None:
    assert unknown("x\x1b\u202e").because.startswith(r"the validator x\x1b\u202e blocked this call")
    found = blocked("sandbox", "no", "command", "Do other.")
    assert (found.fault, found.field) == (VALIDATION_BLOCKED, "command")
    rejected = unsafe("code", ("a", "b", "c", "d"), {"max_code_size_bytes": 5})
    assert rejected.fault is CODE_UNSAFE
    assert rejected.because == "code validation failed: a; b; c and 1 more"
    assert rejected.body == {
        "status": "rejected",
        "reason": "The code is not allowed here",
        "violations": ["a", "b", "c", "d"],
        "hints": {"max_code_size_bytes": 5},
    }
