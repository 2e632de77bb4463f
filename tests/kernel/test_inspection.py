"""What the gate learns of a call's arguments: in order, in time, and closed where in doubt."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Mapping
from datetime import timedelta

import msgspec
import pytest

from comity.kernel.catalog import Offer
from comity.kernel.inspection import PATHS, CodeSafety, Inspector
from comity.rules.argument_problems import Problem
from comity.rules.code_safety import CodePolicy, Level
from comity.rules.paths import Scope
from comity.rules.validators import UNRULED, Examine, Rules, Verdict, blocked
from comity.wire.errors import (
    CODE_UNSAFE,
    EXHAUSTED,
    INVALID_TOOL_ARGS,
    TIMEOUT,
    VALIDATION_BLOCKED,
    Unavailable,
)
from comity.wire.tools import Tool

type Arguments = Mapping[str, object]


class Schemas:
    """Answers what it is told to, at once or in a while."""

    def __init__(self, answer: Problem | Awaitable[Problem | None] | None = None) -> None:
        self.answer = answer

    def check(
        self, definition: bytes, arguments: object
    ) -> Problem | Awaitable[Problem | None] | None:
        return self.answer


def offer(**security: object) -> Offer:
    definition = {"name": "run", **({"security": security} if security else {})}
    return Offer("x__run", "x", "run", msgspec.json.encode(definition))


def inspector(
    validators: Mapping[str, Examine] | None = None,
    rules: Rules = UNRULED,
    schemas: Schemas | None = None,
    seconds: float = 5,
) -> Inspector:
    deadline = timedelta(seconds=seconds)
    return Inspector(schemas or Schemas(), validators or {}, lambda offer: rules, deadline)


async def outcome(found: Verdict | Awaitable[Verdict]) -> Verdict:
    return await found if inspect.isawaitable(found) else found


def blocking(tool: Tool, arguments: Arguments, rules: Rules) -> Verdict:
    return blocked("it", "no")


def passing(tool: Tool, arguments: Arguments, rules: Rules) -> Verdict:
    return None


def raising(tool: Tool, arguments: Arguments, rules: Rules) -> Verdict:
    raise RuntimeError("a bug")


async def late(tool: Tool, arguments: Arguments, rules: Rules) -> Verdict:
    await asyncio.sleep(0)
    return blocked("late", "no")


async def late_bug(tool: Tool, arguments: Arguments, rules: Rules) -> Verdict:
    await asyncio.sleep(0)
    raise RuntimeError("a bug")


async def never(tool: Tool, arguments: Arguments, rules: Rules) -> Verdict:
    await asyncio.Event().wait()
    return None


async def test_where_nothing_is_asked_the_answer_is_there_at_once() -> None:
    assert inspector().inspect(offer(), {}) is None
    assert inspector({"a": passing}, Rules(validators=("a",))).inspect(offer(), {}) is None


async def test_the_schema_comes_first() -> None:
    schemas = Schemas(Problem("a", "is wrong"))
    found = inspector({"a": blocking}, Rules(validators=("a",)), schemas).inspect(offer(), {})
    assert not inspect.isawaitable(found)
    assert found is not None
    assert (found.fault, found.field) == (INVALID_TOOL_ARGS, "a")


@pytest.mark.parametrize("validator", [blocking, late, raising, late_bug])
async def test_whoever_blocks_or_fails_ends_it(validator: Examine) -> None:
    rules = Rules(validators=("a", "b"))
    asked = inspector({"a": passing, "b": validator}, rules)
    found = await outcome(asked.inspect(offer(), {}))
    assert found is not None
    assert found.fault is VALIDATION_BLOCKED


async def test_after_one_that_waits_the_others_are_asked_too() -> None:
    async def waits(tool: Tool, arguments: Arguments, rules: Rules) -> Verdict:
        await asyncio.sleep(0)
        return None

    rules = Rules(validators=("a", "b"))
    assert await outcome(inspector({"a": waits, "b": passing}, rules).inspect(offer(), {})) is None
    found = await outcome(inspector({"a": waits, "b": blocking}, rules).inspect(offer(), {}))
    assert found is not None


async def test_after_a_schema_that_takes_a_while_validators_are_asked() -> None:
    async def fits() -> Problem | None:
        await asyncio.sleep(0)
        return None

    asked = inspector({"a": blocking}, Rules(validators=("a",)), Schemas(fits()))
    found = await outcome(asked.inspect(offer(), {}))
    assert found is not None
    assert found.fault is VALIDATION_BLOCKED


async def test_a_name_that_nobody_knows_blocks() -> None:
    found = inspector().inspect(offer(validator="frobnicate"), {})
    assert not inspect.isawaitable(found)
    assert found is not None
    assert "frobnicate" in found.because
    assert inspector().inspect(offer(validator="none"), {}) is None


async def test_what_takes_too_long_is_refused() -> None:
    asked = inspector({"a": never}, Rules(validators=("a",)), seconds=0.01)
    found = await outcome(asked.inspect(offer(), {}))
    assert found is not None
    assert found.fault is TIMEOUT


async def test_what_is_missing_just_now_is_told_as_that() -> None:
    async def busy(tool: Tool, arguments: Arguments, rules: Rules) -> Verdict:
        raise Unavailable("too many wait", EXHAUSTED)

    found = await outcome(inspector({"a": busy}, Rules(validators=("a",))).inspect(offer(), {}))
    assert found is not None
    assert found.fault is EXHAUSTED


async def test_advice_is_written_down_and_blocks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rules = Rules(advised=("a", "b"))
    with caplog.at_level(logging.WARNING, "comity.inspection"):
        asked = inspector({"a": blocking, "b": late}, rules)
        assert asked.inspect(offer(), {}) is None
        assert asked.inspect(offer(), {}) is None
    assert [each.getMessage() for each in caplog.records] == [
        "a call of x/run would be blocked by the validator a"
    ]


async def test_a_scope_of_paths_is_held_without_being_asked_for() -> None:
    rules = Rules(paths=Scope(("/a/**",)))
    found = inspector({PATHS: blocking}, rules).inspect(offer(), {})
    assert not inspect.isawaitable(found)
    assert found is not None


async def test_arguments_that_are_no_object_are_refused_where_somebody_looks() -> None:
    found = inspector({"a": passing}, Rules(validators=("a",))).inspect(offer(), [1])
    assert not inspect.isawaitable(found)
    assert found is not None
    assert found.fault is INVALID_TOOL_ARGS


async def test_a_new_definition_or_rule_is_planned_anew() -> None:
    rules = [UNRULED]
    asked = Inspector(Schemas(), {}, lambda offer: rules[0], timedelta(seconds=1))
    first = offer(validator="none")
    plan = asked.planned(first)
    assert asked.planned(first) is plan
    assert asked.planned(offer(validator="sandbox")).validators == ("sandbox",)
    rules[0] = Rules(validators=("readonly",))
    assert asked.planned(first).validators == ("readonly",)
    unreadable = Offer("x__run", "x", "run", b"[")
    assert asked.planned(unreadable).validators[0] != "none"


class Examiner:
    async def violations(self, code: str, policy: CodePolicy) -> tuple[str, ...]:
        return ("bad",) if "bad" in code else ()


async def test_code_is_handed_to_the_examiner() -> None:
    safety = CodeSafety(Examiner())
    tool = Tool("x", "run")
    assert await outcome(safety(tool, {"code": "fine"}, UNRULED)) is None
    found = await outcome(safety(tool, {"code": "bad"}, UNRULED))
    assert found is not None
    assert (found.fault, found.field) == (CODE_UNSAFE, "code")
    free = Rules(code=CodePolicy(Level.UNRESTRICTED))
    assert safety(tool, {"code": "bad"}, free) is None
    assert safety(tool, {}, UNRULED) is None
    assert safety(tool, {"code": ["bad"]}, UNRULED) is not None
