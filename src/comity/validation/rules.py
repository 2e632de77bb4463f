"""The rules that select the validators of a tool, and the validators that Comity suggests."""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, cast

from comity.errors import CODE_UNSAFE, VALIDATION_BLOCKED
from comity.mcp.refusals import Refusal
from comity.validation.arguments import NO_ARGUMENTS, ArgumentKind, ToolDefinition, argument_kind_of
from comity.validation.paths import PathScope
from comity.validation.python_code import UNDECIDED, CodePolicy, CodeSafetyLevel, combine_policies

SANDBOX: Final = "sandbox"
READONLY: Final = "readonly"
NETWORK_RESTRICTED: Final = "network_restricted"
CODE_SAFETY: Final = "code_safety"
NONE: Final = "none"
STANDARD: Final = (SANDBOX, READONLY, NETWORK_RESTRICTED, CODE_SAFETY)
"""The standard validators in the order of their checks, code safety last. (design §1, the gate)"""

type Verdict = Refusal | None
"""The refusal of a call, or None to let it pass."""


@dataclass(frozen=True, slots=True)
class ValidationRules:
    """The operator's rules for the arguments of a tool.

    `arguments` gives the kind of an argument, by its name or its dotted path. Commands are added to
    the known read-only commands, or removed from them. `hosts` are allowed whatever they resolve
    to. `settings` are for plugin validators, by their names. Validators in `advised` run too, but
    Comity only logs their objections.
    """

    validators: tuple[str, ...] = ()
    advised: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=lambda: NO_ARGUMENTS)
    more_commands: frozenset[str] = frozenset()
    fewer_commands: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    schemes: frozenset[str] = frozenset({"http", "https"})
    paths: PathScope | None = None
    code: CodePolicy = UNDECIDED
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: NO_ARGUMENTS)


UNRULED: Final = ValidationRules()


type Examine = Callable[
    [ToolDefinition, Mapping[str, object], ValidationRules], Verdict | Awaitable[Verdict]
]
"""A validator as a function."""


@dataclass(frozen=True, slots=True)
class ValidationPlan:
    """The checks for the arguments of one definition of a tool."""

    tool: ToolDefinition
    validators: tuple[str, ...]
    rules: ValidationRules

    @property
    def has_validators(self) -> bool:
        """Whether anything besides the schema looks at the arguments."""
        return bool(self.validators or self.rules.advised) or self.rules.paths is not None


def plan_validation(tool: ToolDefinition, rules: ValidationRules = UNRULED) -> ValidationPlan:
    """Return the checks that the operator wants, and those that the tool's definition requests."""
    security = _members(tool.definition.get("security"))
    declared = security.get("validator")
    asked = [*rules.validators]
    if declared is not None:
        # Any type is accepted here. A value that is not a name becomes an unknown validator.
        listed = cast("list[object]", declared) if isinstance(declared, list) else [declared]
        asked += [each if isinstance(each, str) else f"({type(each).__name__})" for each in listed]
    names = {name for name in asked if name != NONE}
    code = combine_policies(rules.code, _members(security.get("code_safety")))
    if READONLY in names:
        code = replace(code, level=CodeSafetyLevel.READONLY)
        # Code can write whatever its tool is called, so a read-only tool gets the code check too.
        names |= {CODE_SAFETY} if _takes_code(tool, rules) else set()
    ordered = [name for name in STANDARD if name in names]
    # Plugin validators run before code safety, which has the last word.
    at = ordered.index(CODE_SAFETY) if CODE_SAFETY in ordered else len(ordered)
    ordered[at:at] = sorted(names - set(STANDARD))
    return ValidationPlan(tool, tuple(ordered), replace(rules, code=code))


def _takes_code(tool: ToolDefinition, rules: ValidationRules) -> bool:
    schema = _members(tool.definition.get("inputSchema"))
    names = _members(schema.get("properties"))
    return any(argument_kind_of(name, name, rules.arguments) is ArgumentKind.CODE for name in names)


def validator_refusal(validator: str, reason: str, where: str = "", *suggestions: str) -> Refusal:
    """Return the refusal of a validator, with suggestions for a better call."""
    return Refusal(
        VALIDATION_BLOCKED,
        f"the validator {validator} blocked this call: {reason}",
        field=where,
        suggestions=suggestions,
        details={"validator": validator},
    )


def unsafe_code_refusal(
    where: str, violations: tuple[str, ...], hints: Mapping[str, object]
) -> Refusal:
    """Return the refusal of code, with the body of MGP §7.4."""
    more = f" and {len(violations) - 3} more" if len(violations) > 3 else ""
    return Refusal(
        CODE_UNSAFE,
        f"code validation failed: {'; '.join(violations[:3])}{more}",
        field=where,
        suggestions=("Rewrite the code without the named parts.",),
        body={
            "status": "rejected",
            "reason": "The code is not allowed here",
            "violations": list(violations),
            "hints": dict(hints),
        },
    )


def unknown_validator_refusal(name: str) -> Refusal:
    """Return the refusal for an unknown validator, which never counts as `none`. (S3)"""
    shown = ascii(name[:64])[1:-1]
    return validator_refusal(
        shown,
        "unknown validator",
        "",
        "Report to the operator: the tool needs a validator that is not installed.",
    )


def _members(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else NO_ARGUMENTS


_VALIDATOR_BY_ARGUMENT: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(("command", "cmd", "shell_command", "command_line"), (SANDBOX, "command")),
    **dict.fromkeys(("url", "uri", "endpoint", "webhook_url"), (NETWORK_RESTRICTED, "url")),
    **dict.fromkeys(("code", "python_code", "script", "source_code"), (CODE_SAFETY, "code")),
}
_RUNS: Final = frozenset({"run", "exec", "execute", "shell", "bash", "terminal", "command"})
_RUN_ARGUMENTS: Final = frozenset({"input", "line", "args", "text"})
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True, slots=True)
class SuggestedValidator:
    """A suggested validator for one argument of a tool, and the kind of that argument."""

    validator: str
    argument: str
    meaning: str


def suggest_validators(
    name: str, definition: Mapping[str, object]
) -> tuple[SuggestedValidator, ...]:
    """Return the validators that the names of a tool and its arguments suggest."""
    arguments = list(_texts(definition))
    found = [
        SuggestedValidator(*_split(_VALIDATOR_BY_ARGUMENT[plain], argument))
        for argument in arguments
        if (plain := _plain(argument)) in _VALIDATOR_BY_ARGUMENT
    ]
    runs = _RUNS & {word.casefold() for word in _WORDS.findall(name)}
    if runs and not any(each.validator in (SANDBOX, CODE_SAFETY) for each in found):
        # `bash(input)` runs its input, whatever the argument is called.
        found += (
            SuggestedValidator(SANDBOX, argument, "command")
            for argument in arguments
            if _plain(argument) in _RUN_ARGUMENTS
        )
    return tuple(found)


def validators_of(suggestions: Iterable[SuggestedValidator]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.validator for each in suggestions))


def _split(found: tuple[str, str], argument: str) -> tuple[str, str, str]:
    validator, meaning = found
    return validator, argument, meaning


def _plain(argument: str) -> str:
    """Return an argument's name in one style: `shellCommand` becomes `shell_command`."""
    return "_".join(word.casefold() for word in _WORDS.findall(argument))


def _texts(definition: Mapping[str, object]) -> Iterator[str]:
    """Yield the arguments of a tool that may be strings or lists of strings."""
    properties = _table(_table(definition.get("inputSchema")).get("properties"))
    for name, said in properties.items():
        if _table(said).get("type") not in ("boolean", "integer", "number", "null"):
            yield name


def _table(value: object) -> Mapping[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
