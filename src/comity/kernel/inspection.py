"""What the gate asks of a call's arguments: its schema, its validators, its code. (design §1)

Rule 1: the first that refuses ends it; what cannot be examined is refused.
Rule 2: where nothing slow is needed the answer is there at once; else within a deadline. (REG)
"""

import asyncio
import inspect as types_of
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec

from comity.kernel.catalog import Offer
from comity.rules import code_safety
from comity.rules.argument_problems import Problem, refusal
from comity.rules.code_arguments import code_in, form_refusal
from comity.rules.code_safety import CodePolicy, Level
from comity.rules.refusals import Refusal
from comity.rules.validators import Examine, Plan, Rules, Verdict, blocked, plan, unknown, unsafe
from comity.wire import jsonrpc
from comity.wire.errors import INVALID_TOOL_ARGS, TIMEOUT, Unavailable
from comity.wire.tools import Tool

PATHS: Final = "paths"
"""The validator that holds paths against a tool's scope, wherever a tool has one."""

REMEMBERED: Final = 100_000
_log: Final = logging.getLogger("comity.inspection")


class ArgumentCheck(Protocol):
    """Who holds arguments against the schema of their tool."""

    def check(
        self, definition: bytes, arguments: object
    ) -> Problem | Awaitable[Problem | None] | None: ...


class CodeExaminer(Protocol):
    """Who looks at code, off the event loop."""

    async def violations(self, code: str, policy: CodePolicy) -> tuple[str, ...]: ...


class _Planned(NamedTuple):
    definition: bytes
    rules: Rules
    plan: Plan


class Inspector:
    """Looks at the arguments of every call to a tool before it leaves."""

    def __init__(
        self,
        schemas: ArgumentCheck,
        validators: Mapping[str, Examine],
        rules_of: Callable[[Offer], Rules],
        deadline: timedelta,
    ) -> None:
        self._schemas = schemas
        self._validators = validators
        self._rules_of = rules_of
        self._seconds = deadline.total_seconds()
        self._plans: OrderedDict[tuple[str, str], _Planned] = OrderedDict()
        self._told: set[tuple[str, str, str]] = set()

    def inspect(self, offer: Offer, arguments: object) -> Verdict | Awaitable[Verdict]:
        """Why the call may not go on, or None; in a while, where it cannot be said at once."""
        problem = self._schemas.check(offer.definition, arguments)
        if isinstance(problem, Problem):
            return refusal(problem)
        if problem is not None:
            return self._within(self._after(problem, offer, arguments))
        verdict = self._examine(offer, arguments)
        if verdict is None or isinstance(verdict, Refusal):
            return verdict
        return self._within(verdict)

    def planned(self, offer: Offer) -> Plan:
        """What is done with the arguments of this definition, by the rules in force now."""
        rules = self._rules_of(offer)
        key = (offer.server, offer.name)
        known = self._plans.get(key)
        if known is not None and known.rules is rules and known.definition is offer.definition:
            return known.plan
        made = plan(Tool(offer.server, offer.name, _members(offer.definition)), rules)
        self._plans[key] = _Planned(offer.definition, rules, made)
        while len(self._plans) > REMEMBERED:
            self._plans.popitem(last=False)
            self._told.clear()
        return made

    async def _after(
        self, checking: Awaitable[Problem | None], offer: Offer, arguments: object
    ) -> Verdict:
        problem = await checking
        if problem is not None:
            return refusal(problem)
        verdict = self._examine(offer, arguments)
        return verdict if verdict is None or isinstance(verdict, Refusal) else await verdict

    def _examine(self, offer: Offer, arguments: object) -> Verdict | Awaitable[Verdict]:
        planned = self.planned(offer)
        names = planned.validators
        if planned.rules.paths is not None:
            names = (PATHS, *names)
        if not names and not planned.rules.advised:
            return None
        if not isinstance(arguments, dict):
            return Refusal(INVALID_TOOL_ARGS, "the arguments must be an object")
        table = cast("dict[str, object]", arguments)
        self._advise(planned, table)
        for place, name in enumerate(names):
            verdict = self._ask(name, planned, table)
            if isinstance(verdict, Refusal):
                return verdict
            if verdict is not None:
                return self._rest(verdict, names[place:], planned, table)
        return None

    def _advise(self, planned: Plan, arguments: dict[str, object]) -> None:
        """Write down, once, that somebody would object whom nobody asked; only if it does at once.

        Why is not written down: it may speak of what the arguments hold.
        """
        for name in planned.rules.advised:
            verdict = self._ask(name, planned, arguments)
            if isinstance(verdict, Coroutine):
                verdict.close()
            told = (planned.tool.server, planned.tool.name, name)
            if isinstance(verdict, Refusal) and told not in self._told:
                self._told.add(told)
                _log.warning("a call of %s/%s would be blocked by the validator %s", *told)

    async def _rest(
        self,
        first: Awaitable[Verdict],
        names: tuple[str, ...],
        planned: Plan,
        arguments: dict[str, object],
    ) -> Verdict:
        """From the first validator on that has to wait."""
        for name in names:
            verdict = first if name is names[0] else self._ask(name, planned, arguments)
            if types_of.isawaitable(verdict):
                verdict = await self._caught(name, verdict)
            if verdict is not None:
                return verdict
        return None

    def _ask(
        self, name: str, planned: Plan, arguments: dict[str, object]
    ) -> Verdict | Awaitable[Verdict]:
        validator = self._validators.get(name)
        if validator is None:
            return unknown(name)
        try:
            return validator(planned.tool, arguments, planned.rules)
        except Exception:
            _log.exception("the validator %s failed", name)
            return _failed(name)

    async def _caught(self, name: str, verdict: Awaitable[Verdict]) -> Verdict:
        try:
            return await verdict
        except Unavailable:
            raise
        except Exception:
            _log.exception("the validator %s failed", name)
            return _failed(name)

    async def _within(self, verdict: Awaitable[Verdict]) -> Verdict:
        try:
            async with asyncio.timeout(self._seconds):
                return await verdict
        except TimeoutError:
            because = f"the arguments could not be examined within {self._seconds:g} s"
            return Refusal(TIMEOUT, because)
        except Unavailable as problem:
            return Refusal(problem.fault, str(problem), problem.retry_after)


class CodeSafety:
    """The validator `code_safety`, which lets a process of its own read the code. (MGP §7)"""

    def __init__(self, examiner: CodeExaminer) -> None:
        self._examiner = examiner

    def __call__(
        self, tool: Tool, arguments: Mapping[str, object], rules: Rules
    ) -> Verdict | Awaitable[Verdict]:
        if rules.code.level is Level.UNRESTRICTED:
            return None
        code = code_in(arguments, rules)
        verdict = form_refusal(code)
        if verdict is not None or not code:
            return verdict
        return self._judge([(each.where, each.text) for each in code], rules.code)

    async def _judge(self, pieces: list[tuple[str, str]], policy: CodePolicy) -> Verdict:
        for where, text in pieces:
            violations = await self._examiner.violations(text, policy)
            if violations:
                return unsafe(where, violations, code_safety.hints(policy))
        return None


def _failed(name: str) -> Refusal:
    return blocked(name, "it failed, and what cannot be examined is not let through")


def _members(definition: bytes) -> dict[str, Any]:
    try:
        return jsonrpc.shaped(definition, dict[str, Any])
    except msgspec.DecodeError:
        # Nobody put such a definition on a shelf; what asks for nothing would be let through.
        return {"security": {"validator": "an unreadable definition"}}
