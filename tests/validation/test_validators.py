"""Which validators look at a tool, and what nobody can take away. (D-12, S2, S3, S7)"""

from comity.errors import CODE_UNSAFE, VALIDATION_BLOCKED
from comity.validation.arguments import ToolDefinition
from comity.validation.python_code import CodeSafetyLevel
from comity.validation.rules import (
    UNRULED,
    ValidationRules,
    plan_validation,
    unknown_validator_refusal,
    unsafe_code_refusal,
    validator_refusal,
)
from tests.support.cases import loop_over


def asking(validator: object, **security: object) -> ToolDefinition:
    return ToolDefinition("x", "run", {"security": {"validator": validator, **security}})


@loop_over(
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
    assert plan_validation(asking(validator)).validators == names


def test_a_tool_takes_nothing_away_from_what_an_operator_wants() -> None:
    rules = ValidationRules(validators=("network_restricted",))
    assert plan_validation(asking("none"), rules).validators == ("network_restricted",)
    both = plan_validation(asking("code_safety"), ValidationRules(validators=("mine", "sandbox")))
    assert both.validators == ("sandbox", "mine", "code_safety")


def test_without_any_word_nothing_is_planned() -> None:
    assert plan_validation(ToolDefinition("x", "run")).validators == ()
    assert plan_validation(ToolDefinition("x", "run", {"security": "x"}), UNRULED).validators == ()


def test_code_of_a_tool_that_may_only_read_may_only_read() -> None:
    schema = {"type": "object", "properties": {"code": {"type": "string"}}}
    tool = ToolDefinition(
        "x", "run", {"inputSchema": schema, "security": {"validator": "readonly"}}
    )
    assert plan_validation(tool).validators == ("readonly", "code_safety")
    assert plan_validation(tool).rules.code.level is CodeSafetyLevel.READONLY
    assert plan_validation(asking("readonly")).validators == ("readonly",)


def test_refusals_say_who_blocked_and_where() -> None:
    assert unknown_validator_refusal("x\x1b\u202e").reason.startswith(
        r"the validator x\x1b\u202e blocked this call"
    )
    found = validator_refusal("sandbox", "no", "command", "Do other.")
    assert (found.fault, found.field) == (VALIDATION_BLOCKED, "command")
    rejected = unsafe_code_refusal("code", ("a", "b", "c", "d"), {"max_code_size_bytes": 5})
    assert rejected.fault is CODE_UNSAFE
    assert rejected.reason == "code validation failed: a; b; c and 1 more"
    assert rejected.body == {
        "status": "rejected",
        "reason": "The code is not allowed here",
        "violations": ["a", "b", "c", "d"],
        "hints": {"max_code_size_bytes": 5},
    }
