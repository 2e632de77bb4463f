"""Validation of the arguments of one call within a deadline, and the validator interface."""

import asyncio
import inspect as types_of
import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec

from comity.errors import INVALID_TOOL_ARGS, TIMEOUT, Unavailable
from comity.mcp import jsonrpc
from comity.mcp.entries import CatalogEntry
from comity.mcp.refusals import Refusal
from comity.validation import paths, python_code
from comity.validation.arguments import (
    ArgumentError,
    ArgumentKind,
    ArgumentText,
    ToolDefinition,
    argument_kind_of,
    argument_refusal,
    collect_texts,
)
from comity.validation.paths import Matches
from comity.validation.python_code import CodePolicy, CodeSafetyLevel
from comity.validation.rules import (
    CODE_SAFETY,
    Examine,
    ValidationPlan,
    ValidationRules,
    Verdict,
    plan_validation,
    unknown_validator_refusal,
    unsafe_code_refusal,
    validator_refusal,
)

# A single word of this form does nothing in any language.
_WORD: Final = re.compile(r"[\w.:/@+-]{0,200}")


def code_in(arguments: Mapping[str, object], rules: ValidationRules) -> list[ArgumentText] | None:
    """Return the arguments that are code by their name or by the operator's setting.

    Without such arguments, return all that could be code. Returns None if there is too much.
    """
    found = collect_texts(arguments, None)
    if found is None:
        return None
    meanings = [(each, argument_kind_of(each.where, each.name, rules.arguments)) for each in found]
    named = [each for each, meaning in meanings if meaning is ArgumentKind.CODE]
    if named:
        return named
    return [
        each
        for each, meaning in meanings
        if meaning is ArgumentKind.UNKNOWN and not _WORD.fullmatch(each.text)
    ]


def form_refusal(code: list[ArgumentText] | None) -> Verdict:
    """Return why the arguments cannot be examined as code, or None."""
    if code is None:
        return validator_refusal(CODE_SAFETY, "its arguments hold more than can be looked at")
    parts = [each for each in code if each.listed]
    if parts:
        return validator_refusal(
            CODE_SAFETY,
            "code in parts cannot be checked",
            parts[0].where,
            "Give the code as one text.",
        )
    return None


PATHS: Final = "paths"
"""The validator that checks paths against the scope of a tool, if the tool has one."""

REMEMBERED: Final = 100_000
_log: Final = logging.getLogger("comity.inspection")


class ArgumentCheck(Protocol):
    """Checks arguments against the schema of their tool."""

    def check(
        self, definition: bytes, arguments: object
    ) -> ArgumentError | Awaitable[ArgumentError | None] | None: ...


class CodeExaminer(Protocol):
    """Examines code off the event loop."""

    async def violations(self, code: str, policy: CodePolicy) -> tuple[str, ...]: ...


class _PlanEntry(NamedTuple):
    definition: bytes
    rules: ValidationRules
    plan: ValidationPlan
    check: Callable[[object], Verdict | Awaitable[Verdict]]


class ArgumentValidator:
    """Validates the arguments of every tool call before it is forwarded."""

    def __init__(
        self,
        schemas: ArgumentCheck,
        validators: Mapping[str, Examine],
        rules_of: Callable[[CatalogEntry], ValidationRules],
        deadline: timedelta,
    ) -> None:
        self._schemas = schemas
        self._validators = validators
        self._rules_of = rules_of
        self._seconds = deadline.total_seconds()
        self._plans: OrderedDict[tuple[str, str], _PlanEntry] = OrderedDict()
        self._reported: set[tuple[str, str, str]] = set()

    def check_for(self, entry: CatalogEntry) -> Callable[[object], Verdict | Awaitable[Verdict]]:
        """Return the check for a tool's arguments, by its definition and the current rules.

        The check returns the refusal or None, in an awaitable if it cannot run at once. It is the
        same object until the definition or the rules change, so that a call which waited is not
        examined twice.
        """
        return self._entry_for(entry).check

    def plan_for(self, entry: CatalogEntry) -> ValidationPlan:
        """Return the checks for the arguments of this definition, by the current rules."""
        return self._entry_for(entry).plan

    def _make_check(
        self, definition: bytes, plan: ValidationPlan
    ) -> Callable[[object], Verdict | Awaitable[Verdict]]:
        check_schema = self._schemas.check
        has_validators = plan.has_validators

        def check(arguments: object) -> Verdict | Awaitable[Verdict]:
            problem = check_schema(definition, arguments)
            if problem is None:
                verdict = self._examine(plan, arguments) if has_validators else None
                if verdict is None or isinstance(verdict, Refusal):
                    return verdict
                return self._within(verdict)
            if isinstance(problem, ArgumentError):
                return argument_refusal(problem)
            return self._within(self._after(problem, plan, arguments))

        return check

    def _entry_for(self, entry: CatalogEntry) -> _PlanEntry:
        rules = self._rules_of(entry)
        key = (entry.server, entry.name)
        known = self._plans.get(key)
        if known is not None and known.rules is rules and known.definition is entry.definition:
            return known
        plan = plan_validation(
            ToolDefinition(entry.server, entry.name, _members(entry.definition)), rules
        )
        check = self._make_check(entry.definition, plan)
        made = self._plans[key] = _PlanEntry(entry.definition, rules, plan, check)
        while len(self._plans) > REMEMBERED:
            self._plans.popitem(last=False)
            self._reported.clear()
        return made

    async def _after(
        self, checking: Awaitable[ArgumentError | None], plan: ValidationPlan, arguments: object
    ) -> Verdict:
        problem = await checking
        if problem is not None:
            return argument_refusal(problem)
        verdict = self._examine(plan, arguments)
        return verdict if verdict is None or isinstance(verdict, Refusal) else await verdict

    def _examine(self, plan: ValidationPlan, arguments: object) -> Verdict | Awaitable[Verdict]:
        if not plan.has_validators:
            return None
        names = plan.validators
        if plan.rules.paths is not None:
            names = (PATHS, *names)
        if not isinstance(arguments, dict):
            return Refusal(INVALID_TOOL_ARGS, "the arguments must be an object")
        table = cast("dict[str, object]", arguments)
        self._advise(plan, table)
        for place, name in enumerate(names):
            verdict = self._run_validator(name, plan, table)
            if isinstance(verdict, Refusal):
                return verdict
            if verdict is not None:
                return self._run_remaining(verdict, names[place:], plan, table)
        return None

    def _advise(self, plan: ValidationPlan, arguments: dict[str, object]) -> None:
        """Log once that an advised validator would refuse the call, if it answers at once.

        The log leaves out the reason, which may quote the arguments.
        """
        for name in plan.rules.advised:
            verdict = self._run_validator(name, plan, arguments)
            if isinstance(verdict, Coroutine):
                verdict.close()
            told = (plan.tool.server, plan.tool.name, name)
            if isinstance(verdict, Refusal) and told not in self._reported:
                self._reported.add(told)
                _log.warning("a call of %s/%s would be blocked by the validator %s", *told)

    async def _run_remaining(
        self,
        first: Awaitable[Verdict],
        names: tuple[str, ...],
        plan: ValidationPlan,
        arguments: dict[str, object],
    ) -> Verdict:
        """Run the remaining checks, from the first validator that must wait."""
        for name in names:
            verdict = first if name is names[0] else self._run_validator(name, plan, arguments)
            if types_of.isawaitable(verdict):
                verdict = await self._caught(name, verdict)
            if verdict is not None:
                return verdict
        return None

    def _run_validator(
        self, name: str, plan: ValidationPlan, arguments: dict[str, object]
    ) -> Verdict | Awaitable[Verdict]:
        validator = self._validators.get(name)
        if validator is None:
            return unknown_validator_refusal(name)
        try:
            return validator(plan.tool, arguments, plan.rules)
        except Exception:
            _log.exception("the validator %s failed", name)
            return _validator_failed(name)

    async def _caught(self, name: str, verdict: Awaitable[Verdict]) -> Verdict:
        try:
            return await verdict
        except Unavailable:
            raise
        except Exception:
            _log.exception("the validator %s failed", name)
            return _validator_failed(name)

    async def _within(self, verdict: Awaitable[Verdict]) -> Verdict:
        try:
            async with asyncio.timeout(self._seconds):
                return await verdict
        except TimeoutError:
            reason = f"the arguments could not be examined within {self._seconds:g} s"
            return Refusal(TIMEOUT, reason)
        except Unavailable as problem:
            return Refusal(problem.fault, str(problem), problem.retry_after)


class CodeSafetyValidator:
    """The validator `code_safety`, which reads the code in a worker process. (MGP §7)"""

    def __init__(self, examiner: CodeExaminer) -> None:
        self._examiner = examiner

    def __call__(
        self, tool: ToolDefinition, arguments: Mapping[str, object], rules: ValidationRules
    ) -> Verdict | Awaitable[Verdict]:
        if rules.code.level is CodeSafetyLevel.UNRESTRICTED:
            return None
        code = code_in(arguments, rules)
        verdict = form_refusal(code)
        if verdict is not None or not code:
            return verdict
        return self._check_code([(each.where, each.text) for each in code], rules.code)

    async def _check_code(self, pieces: list[tuple[str, str]], policy: CodePolicy) -> Verdict:
        for where, text in pieces:
            violations = await self._examiner.violations(text, policy)
            if violations:
                return unsafe_code_refusal(where, violations, python_code.policy_hints(policy))
        return None


def _validator_failed(name: str) -> Refusal:
    return validator_refusal(name, "it failed, and what cannot be examined is not let through")


def _members(definition: bytes) -> dict[str, Any]:
    try:
        return jsonrpc.decode_shape(definition, dict[str, Any])
    except msgspec.DecodeError:
        # The catalog accepts no such definition. An empty one would request no validator and pass.
        return {"security": {"validator": "an unreadable definition"}}


_LIKE_A_PATH: Final = re.compile(
    r"[/~\\]|\.{1,2}(?:[/\\]|$)|file:|[A-Za-z]:[/\\]|.*(?:\.\.|%2e|%2f)", re.IGNORECASE
)
_MAX_SHOWN_VIOLATIONS: Final = 8


def paths_refusal_reason(
    tool: ToolDefinition, arguments: Mapping[str, object], rules: ValidationRules, matches: Matches
) -> Verdict:
    """Return why one of the paths is refused, or None. A string that begins like a path is one."""
    scope = rules.paths
    if scope is None:
        return None
    found = collect_texts(arguments, None)
    if found is None:
        return validator_refusal("paths", "its arguments hold more than can be looked at")
    for each in found:
        meaning = argument_kind_of(each.where, each.name, rules.arguments)
        short = meaning is ArgumentKind.UNKNOWN and len(each.text) <= paths.MOST_CHARACTERS
        if meaning is ArgumentKind.PATH or (short and _looks_like_a_path(each.text)):
            problem = paths.path_refusal_reason(each.text, scope, matches)
            if problem is not None:
                allowed = ", ".join(scope.allow[:_MAX_SHOWN_VIOLATIONS])
                return validator_refusal(
                    "paths", problem, each.where, f"Use a path within {allowed}."
                )
    return None


def _looks_like_a_path(text: str) -> bool:
    return _LIKE_A_PATH.match(text) is not None and not any(sign.isspace() for sign in text)


class Validator(Protocol):
    """Examines the arguments of a call before it is forwarded. Plugins implement this."""

    @property
    def name(self) -> str:
        """The name by which operators and tools request it."""
        ...

    def examine(
        self, tool: ToolDefinition, arguments: Mapping[str, object], settings: Mapping[str, object]
    ) -> str | Awaitable[str | None] | None:
        """Return why the call is blocked, in one sentence, or None to let it pass.

        Comity calls it on the event loop, so it must be fast. A validator that has to wait returns
        an awaitable. An exception blocks the call. `settings` holds the operator's settings for it.
        """
        ...


class SchemaChecker(Protocol):
    """Finds unusable JSON Schemas of untrusted servers, without blocking the event loop."""

    async def faults(self, schemas: Mapping[str, object]) -> dict[str, str]:
        """Return the reason for each unusable schema, by its given name."""
        ...
