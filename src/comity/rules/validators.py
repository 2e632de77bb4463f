"""Which validators look at a tool's arguments, by what settings, and what they answer. (MGP §4.5)

A validator is hygiene, not a boundary: it looks at what is asked, and only the sandbox holds what
is done. A server may ask for validators; it can take none away. A name that nobody knows blocks
the call, as one that was skipped would look like one that had agreed. (D-12, S2, S3, S7)
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, cast

from comity.rules.code_safety import UNDECIDED, CodePolicy, Level, combined
from comity.rules.meanings import Meaning, meaning_of
from comity.rules.paths import Scope
from comity.rules.refusals import Refusal
from comity.wire.errors import CODE_UNSAFE, VALIDATION_BLOCKED
from comity.wire.tools import NOTHING, Tool

SANDBOX: Final = "sandbox"
READONLY: Final = "readonly"
NETWORK_RESTRICTED: Final = "network_restricted"
CODE_SAFETY: Final = "code_safety"
NONE: Final = "none"
STANDARD: Final = (SANDBOX, READONLY, NETWORK_RESTRICTED, CODE_SAFETY)
"""In the order in which they look, code safety last. (design §1, the gate)"""

type Verdict = Refusal | None
"""Why a call may not go on, or None where nothing speaks against it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What an operator decided about the arguments of a tool.

    `arguments` says what an argument is, by its name or its dotted path. Commands are added to the
    ones that are known to read only, or taken away from them; `hosts` are reached whatever they
    resolve to. `settings` are for validators that come as plugins, by their names. Those that are
    `advised` are asked too, but what they say is only written down.
    """

    validators: tuple[str, ...] = ()
    advised: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    more_commands: frozenset[str] = frozenset()
    fewer_commands: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    schemes: frozenset[str] = frozenset({"http", "https"})
    paths: Scope | None = None
    code: CodePolicy = UNDECIDED
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: NOTHING)


UNRULED: Final = Rules()


type Examine = Callable[[Tool, Mapping[str, object], Rules], Verdict | Awaitable[Verdict]]
"""One validator."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done with the arguments of one definition of a tool."""

    tool: Tool
    validators: tuple[str, ...]
    rules: Rules


def plan(tool: Tool, rules: Rules = UNRULED) -> Plan:
    """What the operator wants, and what the tool's own definition asks for beside it."""
    security = _members(tool.definition.get("security"))
    declared = security.get("validator")
    asked = [*rules.validators]
    if declared is not None:
        # Of whatever kind it is: what is no name is a name that nobody knows.
        listed = cast("list[object]", declared) if isinstance(declared, list) else [declared]
        asked += [each if isinstance(each, str) else f"({type(each).__name__})" for each in listed]
    names = {name for name in asked if name != NONE}
    code = combined(rules.code, _members(security.get("code_safety")))
    if READONLY in names:
        code = replace(code, level=Level.READONLY)
        # Code can write whatever its tool is called: what may only read is looked at as code too.
        names |= {CODE_SAFETY} if _takes_code(tool, rules) else set()
    ordered = [name for name in STANDARD if name in names]
    # Ones that came as plugins stand between, so that code safety keeps the last word.
    at = ordered.index(CODE_SAFETY) if CODE_SAFETY in ordered else len(ordered)
    ordered[at:at] = sorted(names - set(STANDARD))
    return Plan(tool, tuple(ordered), replace(rules, code=code))


def _takes_code(tool: Tool, rules: Rules) -> bool:
    schema = _members(tool.definition.get("inputSchema"))
    names = _members(schema.get("properties"))
    return any(meaning_of(name, name, rules.arguments) is Meaning.CODE for name in names)


def blocked(validator: str, because: str, where: str = "", *suggestions: str) -> Refusal:
    """The refusal of a validator, told so that whoever asked can ask better."""
    return Refusal(
        VALIDATION_BLOCKED,
        f"the validator {validator} blocked this call: {because}",
        field=where,
        suggestions=suggestions,
        details={"validator": validator},
    )


def unsafe(where: str, violations: tuple[str, ...], hints: Mapping[str, object]) -> Refusal:
    """Code that was rejected, with the body that MGP §7.4 has for it."""
    more = f" and {len(violations) - 3} more" if len(violations) > 3 else ""
    return Refusal(
        CODE_UNSAFE,
        f"code validation failed: {'; '.join(violations[:3])}{more}",
        field=where,
        suggestions=("Rewrite the code without what is named here.",),
        body={
            "status": "rejected",
            "reason": "The code is not allowed here",
            "violations": list(violations),
            "hints": dict(hints),
        },
    )


def unknown(name: str) -> Refusal:
    """A validator that nobody has: blocked, never taken for `none`. (S3)"""
    shown = ascii(name[:64])[1:-1]
    return blocked(
        shown,
        "there is no validator of that name here",
        "",
        "Tell the operator: the tool asks for a validator that is not installed.",
    )


def _members(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else NOTHING
