"""What the gate learns of a call's arguments: in order, in time, and closed where in doubt."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Mapping
from datetime import timedelta

import msgspec
import pytest

from comity.errors import (
    CODE_UNSAFE,
    EXHAUSTED,
    INVALID_TOOL_ARGS,
    TIMEOUT,
    VALIDATION_BLOCKED,
    Unavailable,
)
from comity.mcp.entries import CatalogEntry
from comity.validation.arguments import ArgumentError, ToolDefinition
from comity.validation.paths import PathScope
from comity.validation.python_code import CodePolicy, CodeSafetyLevel
from comity.validation.rules import UNRULED, Examine, ValidationRules, Verdict, validator_refusal
from comity.validation.service import PATHS, ArgumentValidator, CodeSafetyValidator
from tests.support.cases import loop_over

type Arguments = Mapping[str, object]


class Schemas:
    """Answers what it is told to, at once or in a while."""

    def __init__(
        self, answer: ArgumentError | Awaitable[ArgumentError | None] | None = None
    ) -> None:
        self.answer = answer

    def check(
        self, definition: bytes, arguments: object
    ) -> ArgumentError | Awaitable[ArgumentError | None] | None:
        return self.answer


def offer(**security: object) -> CatalogEntry:
    definition = {"name": "run", **({"security": security} if security else {})}
    return CatalogEntry("x__run", "x", "run", msgspec.json.encode(definition))


def inspector(
    validators: Mapping[str, Examine] | None = None,
    rules: ValidationRules = UNRULED,
    schemas: Schemas | None = None,
    seconds: float = 5,
) -> ArgumentValidator:
    deadline = timedelta(seconds=seconds)
    return ArgumentValidator(schemas or Schemas(), validators or {}, lambda offer: rules, deadline)


async def outcome(found: Verdict | Awaitable[Verdict]) -> Verdict:
    return await found if inspect.isawaitable(found) else found


def blocking(tool: ToolDefinition, arguments: Arguments, rules: ValidationRules) -> Verdict:
    return validator_refusal("it", "no")


def passing(tool: ToolDefinition, arguments: Arguments, rules: ValidationRules) -> Verdict:
    return None


def raising(tool: ToolDefinition, arguments: Arguments, rules: ValidationRules) -> Verdict:
    raise RuntimeError("a bug")


async def late(tool: ToolDefinition, arguments: Arguments, rules: ValidationRules) -> Verdict:
    await asyncio.sleep(0)
    return validator_refusal("late", "no")


async def late_bug(tool: ToolDefinition, arguments: Arguments, rules: ValidationRules) -> Verdict:
    await asyncio.sleep(0)
    raise RuntimeError("a bug")


async def never(tool: ToolDefinition, arguments: Arguments, rules: ValidationRules) -> Verdict:
    await asyncio.Event().wait()
    return None


async def test_where_nothing_is_asked_the_answer_is_there_at_once() -> None:
    assert inspector().check_for(offer())({}) is None
    assert (
        inspector({"a": passing}, ValidationRules(validators=("a",))).check_for(offer())({}) is None
    )


async def test_the_schema_comes_first() -> None:
    schemas = Schemas(ArgumentError("a", "is wrong"))
    found = inspector({"a": blocking}, ValidationRules(validators=("a",)), schemas).check_for(
        offer()
    )({})
    assert not inspect.isawaitable(found)
    assert found is not None
    assert (found.fault, found.field) == (INVALID_TOOL_ARGS, "a")


@loop_over("validator", [blocking, late, raising, late_bug])
async def test_whoever_blocks_or_fails_ends_it(validator: Examine) -> None:
    rules = ValidationRules(validators=("a", "b"))
    asked = inspector({"a": passing, "b": validator}, rules)
    found = await outcome(asked.check_for(offer())({}))
    assert found is not None
    assert found.fault is VALIDATION_BLOCKED


async def test_after_one_that_waits_the_others_are_asked_too() -> None:
    async def waits(tool: ToolDefinition, arguments: Arguments, rules: ValidationRules) -> Verdict:
        await asyncio.sleep(0)
        return None

    rules = ValidationRules(validators=("a", "b"))
    assert (
        await outcome(inspector({"a": waits, "b": passing}, rules).check_for(offer())({})) is None
    )
    found = await outcome(inspector({"a": waits, "b": blocking}, rules).check_for(offer())({}))
    assert found is not None


async def test_after_a_schema_that_takes_a_while_validators_are_asked() -> None:
    async def fits() -> ArgumentError | None:
        await asyncio.sleep(0)
        return None

    asked = inspector({"a": blocking}, ValidationRules(validators=("a",)), Schemas(fits()))
    found = await outcome(asked.check_for(offer())({}))
    assert found is not None
    assert found.fault is VALIDATION_BLOCKED


async def test_a_name_that_nobody_knows_blocks() -> None:
    found = inspector().check_for(offer(validator="frobnicate"))({})
    assert not inspect.isawaitable(found)
    assert found is not None
    assert "frobnicate" in found.reason
    assert inspector().check_for(offer(validator="none"))({}) is None


async def test_what_takes_too_long_is_refused() -> None:
    asked = inspector({"a": never}, ValidationRules(validators=("a",)), seconds=0.01)
    found = await outcome(asked.check_for(offer())({}))
    assert found is not None
    assert found.fault is TIMEOUT


async def test_what_is_missing_just_now_is_told_as_that() -> None:
    async def busy(tool: ToolDefinition, arguments: Arguments, rules: ValidationRules) -> Verdict:
        raise Unavailable("too many wait", EXHAUSTED)

    found = await outcome(
        inspector({"a": busy}, ValidationRules(validators=("a",))).check_for(offer())({})
    )
    assert found is not None
    assert found.fault is EXHAUSTED


async def test_advice_is_written_down_and_blocks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rules = ValidationRules(advised=("a", "b"))
    with caplog.at_level(logging.WARNING, "comity.inspection"):
        asked = inspector({"a": blocking, "b": late}, rules)
        assert asked.check_for(offer())({}) is None
        assert asked.check_for(offer())({}) is None
    assert [each.getMessage() for each in caplog.records] == [
        "a call of x/run would be blocked by the validator a"
    ]


async def test_a_scope_of_paths_is_held_without_being_asked_for() -> None:
    rules = ValidationRules(paths=PathScope(("/a/**",)))
    found = inspector({PATHS: blocking}, rules).check_for(offer())({})
    assert not inspect.isawaitable(found)
    assert found is not None


async def test_arguments_that_are_no_object_are_refused_where_somebody_looks() -> None:
    found = inspector({"a": passing}, ValidationRules(validators=("a",))).check_for(offer())([1])
    assert not inspect.isawaitable(found)
    assert found is not None
    assert found.fault is INVALID_TOOL_ARGS


async def test_a_new_definition_or_rule_is_planned_anew() -> None:
    rules = [UNRULED]
    asked = ArgumentValidator(Schemas(), {}, lambda offer: rules[0], timedelta(seconds=1))
    first = offer(validator="none")
    plan = asked.plan_for(first)
    assert asked.plan_for(first) is plan
    assert asked.plan_for(offer(validator="sandbox")).validators == ("sandbox",)
    rules[0] = ValidationRules(validators=("readonly",))
    assert asked.plan_for(first).validators == ("readonly",)
    unreadable = CatalogEntry("x__run", "x", "run", b"[")
    assert asked.plan_for(unreadable).validators[0] != "none"


class Examiner:
    async def violations(self, code: str, policy: CodePolicy) -> tuple[str, ...]:
        return ("bad",) if "bad" in code else ()


async def test_code_is_handed_to_the_examiner() -> None:
    safety = CodeSafetyValidator(Examiner())
    tool = ToolDefinition("x", "run")
    assert await outcome(safety(tool, {"code": "fine"}, UNRULED)) is None
    found = await outcome(safety(tool, {"code": "bad"}, UNRULED))
    assert found is not None
    assert (found.fault, found.field) == (CODE_UNSAFE, "code")
    free = ValidationRules(code=CodePolicy(CodeSafetyLevel.UNRESTRICTED))
    assert safety(tool, {"code": "bad"}, free) is None
    assert safety(tool, {}, UNRULED) is None
    assert safety(tool, {"code": ["bad"]}, UNRULED) is not None
