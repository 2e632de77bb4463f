"""Settings of `[policy]`, grants, guardrails, rate limits, and policies of servers and tools."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from comity.config.document import ConfigErrors, ConfigValue
from comity.config.fields import (
    TEXT,
    TRUTH,
    FieldType,
    Members,
    all_of,
    members_of,
    number_type,
    one_of,
    setting,
    table_of,
    text_list_type,
)
from comity.errors import MalformedMessage, Misconfigured
from comity.mcp.actors import CALL
from comity.policy import conditions, grants
from comity.policy.grants import Effect, Grant, GrantSource, Guardrail
from comity.policy.limits import QUOTA_FORM, UNITS, LimitRule, Quota, Unit
from comity.policy.risk import (
    TRUST_BY_NAME,
    ApprovalPolicy,
    DefinitionPolicy,
    PermissionDenialAction,
    RequireApproval,
    Risk,
    SuspicionPolicy,
    ToolPolicy,
    expand_aliases,
    program_problem,
)
from comity.toolkit.resilience import RATE_FORM, RateLimit
from comity.validation.settings import INSPECT

type DefaultPolicy = Literal["deny", "allow"]
type RequireApprovalChoice = Literal["auto", "never", "destructive", "dangerous"]
type SuspiciousChoice = Literal["show", "refuse", "strict"]
type FallbackChoice = Literal["auto", "off", "warn", "on"]
type DefinitionsChoice = Literal["first_use", "approve", "off"]
type DefaultSandbox = Literal["auto", "bubblewrap", "landlock", "basic", "none"]
type ApprovalChoice = Literal["auto", "interactive", "auto_approve", "deny_all", "config_only"]

MAX_GRANTS: Final = 10_000
MAX_GUARDRAILS: Final = 1_000
MAX_JUSTIFICATION_LENGTH: Final = 1_000
FILE_AUTHOR: Final = "operator"
"""The grantor of the entries in the settings file."""


def _checked_text_type(check: Callable[[str], str], schema: Mapping[str, object]) -> FieldType:
    def read(written: ConfigValue) -> str:
        try:
            return check(written.text())
        except MalformedMessage as refused:
            raise written.wrong(str(refused)) from None

    return FieldType(read, schema)


def _read_expiry(value: ConfigValue) -> Any:
    said = value.value
    try:
        found = datetime.fromisoformat(said) if isinstance(said, str) else said
    except ValueError:
        found = None
    if not isinstance(found, datetime) or found.tzinfo is None:
        raise value.wrong("must be a time with its zone, as 2026-12-31T18:00:00Z")
    return found.astimezone(UTC)


def _read_justification(value: ConfigValue) -> str:
    if len(value.text()) > MAX_JUSTIFICATION_LENGTH:
        raise value.wrong(f"has more than {MAX_JUSTIFICATION_LENGTH} characters; shorten it")
    return value.text()


def _read_condition(value: ConfigValue) -> Any:
    """Read a condition on arguments.

    A later check decides whether it suits the rest of the entry.
    """
    said = value.value
    try:
        conditions.parse_condition(said)
    except MalformedMessage as refused:
        raise value.wrong(str(refused)) from None
    return said


_TEST_SCHEMA: Final = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 2,
    "properties": {
        "under": {"type": "string", "pattern": "^/."},
        "is": {},
        "in": {"type": "array", "minItems": 1, "maxItems": conditions.MAX_CHOICES},
        "host": {"type": "string"},
        "scheme": {"enum": ["https", "http"]},
    },
    "additionalProperties": False,
}
_CONDITION_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "paths": {"type": "object", "additionalProperties": _TEST_SCHEMA},
        "only": {"type": "array", "items": {"type": "string"}},
        "definition": {"type": "string"},
    },
    "required": ["paths", "only"],
    "additionalProperties": False,
}
_SHORT_TEXT_SCHEMA: Final = {"type": "string", "minLength": 1, "maxLength": 1000}
_VERB_MEMBER: Final = (
    _checked_text_type(grants.parse_verb, _SHORT_TEXT_SCHEMA),
    "the permitted verb; default: tools/call",
)
_TARGET_MEMBER: Final = (
    FieldType(ConfigValue.text, _SHORT_TEXT_SCHEMA),
    "the target: server/tool, server/*, or *",
)
_JUSTIFICATION_MEMBER: Final = (
    FieldType(_read_justification, TEXT.schema),
    "a note for people who read the entry later",
)
_GRANT_MEMBERS: Final[Members] = {
    "subject": (
        _checked_text_type(grants.parse_subject, _SHORT_TEXT_SCHEMA),
        "the name of a principal, or * for all known principals",
    ),
    "verb": _VERB_MEMBER,
    "target": _TARGET_MEMBER,
    "effect": (one_of(*Effect), "`allow` (default), `deny`, or `ask` for approval of each call"),
    "expires": (FieldType(_read_expiry, {"type": "string"}), "when it ends, with the time zone"),
    "where": (
        FieldType(_read_condition, _CONDITION_SCHEMA),
        "conditions on arguments under which no approval is needed, by JSON pointer",
    ),
    "reason": _JUSTIFICATION_MEMBER,
}
_GUARDRAIL_MEMBERS: Final[Members] = {
    "subject": (
        _checked_text_type(grants.parse_subject_pattern, _SHORT_TEXT_SCHEMA),
        "the principal, or a pattern such as agent:*",
    ),
    "verb": _VERB_MEMBER,
    "target": _TARGET_MEMBER,
    "reason": _JUSTIFICATION_MEMBER,
}


def _read_members(entry: ConfigValue, known: Members) -> dict[str, Any]:
    """Read an entry in its stored form. Raises Misconfigured with all mistakes in it."""
    mistakes = ConfigErrors()
    table = entry.table()
    mistakes.add(*entry.unknown_keys(known))
    mistakes.add(
        *(
            entry.wrong(f"needs its {name}: {known[name][1]}")
            for name in ("subject", "target")
            if name not in table
        )
    )
    said: dict[str, Any] = {"verb": CALL}
    for name, written in table.items():
        if name in known:
            kind = known[name][0]
            said[name] = mistakes.read(lambda kind=kind, it=written: kind.read(it), None)
    if "target" in table and said["target"] is not None:
        said["target"] = mistakes.read(lambda: _read_target(table["target"], said["verb"]), None)
    if mistakes.found:
        raise Misconfigured(mistakes)
    return said


def _read_target(value: ConfigValue, verb: str | None) -> str:
    try:
        return grants.parse_target(value.text(), verb or CALL)
    except MalformedMessage as refused:
        raise value.wrong(str(refused)) from None


def _read_grant(entry: ConfigValue) -> Grant:
    said = _read_members(entry, _GRANT_MEMBERS)
    grant = Grant(
        said["subject"],
        said["verb"],
        said["target"],
        Effect(said.get("effect", Effect.ALLOW)),
        source=GrantSource.FILE,
        granted_by=FILE_AUTHOR,
        justification=said.get("reason", ""),
        expires_at=said.get("expires"),
        where=said.get("where"),
    )
    try:
        return replace(grant, where=grants.normalise_condition(grant))
    except MalformedMessage as refused:
        raise entry.wrong(str(refused)) from None


def _read_guardrail(entry: ConfigValue) -> Guardrail:
    said = _read_members(entry, _GUARDRAIL_MEMBERS)
    return Guardrail(said["subject"], said["verb"], said["target"], said.get("reason", ""))


def _entries_type(
    read: Callable[[ConfigValue], object], max_entries: int, known: Members
) -> FieldType:
    items = table_of(known, required=["subject", "target"])
    schema = {"type": "array", "maxItems": max_entries, "items": items}
    return FieldType(
        all_of(read, max_entries, "; store the rest with `comity grants create`"), schema
    )


GRANTS_TYPE: Final = _entries_type(_read_grant, MAX_GRANTS, _GRANT_MEMBERS)
GUARDRAILS_TYPE: Final = _entries_type(_read_guardrail, MAX_GUARDRAILS, _GUARDRAIL_MEMBERS)


ARGUMENT_MEANINGS: Final = (
    *("command", "words", "code", "sql", "path", "url", "host"),
    *("method", "mode", "action", "text"),
)
"""The roles that an argument can have for its tool. Validators use them."""

_NAMES: Final = text_list_type(r"[\x21-\x7e]{1,200}", "a name, as network.outbound")
_VALIDATORS: Final = text_list_type(
    r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", "a validator, as network_restricted"
)
_PLACES: Final = text_list_type(r"[^\x00-\x1f]{1,4096}", "a folder, a host or a program")
_RISK: Final = one_of(*Risk)


def _read_permissions(value: ConfigValue) -> Mapping[str, tuple[str, ...]]:
    """Read a list of names, or a table of names with the folders, hosts or programs of each."""
    if not isinstance(value.value, dict):
        _NAMES.read(value)
        return dict.fromkeys(expand_aliases(each.text() for each in value.items()), ())
    found: dict[str, tuple[str, ...]] = {}
    for name, places in value.table().items():
        for each in expand_aliases([name]):
            found[each] = tuple(_read_place(each, place) for place in places.items())
    return found


def _read_place(permission: str, place: ConfigValue) -> str:
    text = place.text()
    if permission.startswith("filesystem.") and not text.strip("/"):
        raise place.wrong("must be a folder below /")
    if permission == "shell.execute" and (problem := program_problem(text)):
        raise place.wrong(problem)
    return text


def _read_trust(value: ConfigValue) -> str:
    return str(TRUST_BY_NAME[value.one_of(TRUST_BY_NAME)])


def _read_meanings(value: ConfigValue) -> Mapping[str, object]:
    return {name: each.one_of(ARGUMENT_MEANINGS) for name, each in value.table().items()}


SERVER_POLICY_MEMBERS: Final[Members] = {
    "approval_policy": (one_of(*ApprovalPolicy), "the decision about its pending permissions"),
    "permissions": (
        FieldType(
            _read_permissions,
            {"anyOf": [_NAMES.schema, {"type": "object", "additionalProperties": _PLACES.schema}]},
        ),
        "the permissions of this server, or a table of them with their folders, hosts or programs",
    ),
    "on_denied": (
        one_of(*PermissionDenialAction),
        "whether it runs with fewer permissions, or not at all, if some are denied",
    ),
    "trust": (
        FieldType(_read_trust, {"enum": list(TRUST_BY_NAME)}),
        "whether Comity believes its hints about its tools: only if `trusted`",
    ),
    "risk": (_RISK, "the risk of its tools that have none of their own"),
    "trust_definitions": (
        one_of(*DefinitionPolicy),
        "when Comity accepts the definitions of its tools",
    ),
    "on_suspicious_definition": (
        one_of(*SuspicionPolicy),
        "the treatment of tools whose definition hides or imitates something",
    ),
    "audit": (TRUTH, "whether it receives all audit events, as an audit server"),
}
TOOL_POLICY_MEMBERS: Final[Members] = {
    "risk": (_RISK, "how risky it is"),
    "validators": (_VALIDATORS, "the validators that check its arguments before a call"),
    "arguments": (
        FieldType(
            _read_meanings,
            {"type": "object", "additionalProperties": {"enum": list(ARGUMENT_MEANINGS)}},
        ),
        "the roles of its arguments, for these validators",
    ),
    "inspect": (INSPECT, "the rules of these validators"),
    "require_approval": (one_of(*RequireApproval), "which of its calls need approval"),
    "approvals": (number_type(1, 100), "how many people must approve a call that needs approval"),
    "disabled": (TRUTH, "whether all calls of it are refused"),
    "cost": (number_type(1, 10_000), "how many calls one call counts as, for rate limits"),
    "idempotent": (TRUTH, "whether calling it twice does no more than calling it once"),
    "max_retries": (
        number_type(0, 10),
        "how often it is called again after a failure; if idempotent",
    ),
    "fallback_tool": (TEXT, "the tool to name, or to call, when it cannot be used"),
}


def _read_tool_policy(value: ConfigValue) -> ToolPolicy:
    said = members_of(value, TOOL_POLICY_MEMBERS)
    if "risk" in said:
        said["risk"] = Risk(said["risk"])
    if "require_approval" in said:
        said["require_approval"] = RequireApproval(said["require_approval"])
    return ToolPolicy(**said)


def _read_tool_policies(value: ConfigValue) -> Mapping[str, object]:
    if isinstance(value.value, list):
        # Some clients keep a list of visible tools under this key. Comity ignores it.
        return {}
    return {name: _read_tool_policy(each) for name, each in value.table().items()}


POLICY_TYPE: Final = FieldType(
    lambda written: members_of(written, SERVER_POLICY_MEMBERS), table_of(SERVER_POLICY_MEMBERS)
)
TOOLS_TYPE: Final = FieldType(
    _read_tool_policies,
    {
        "anyOf": [
            {"type": "object", "additionalProperties": table_of(TOOL_POLICY_MEMBERS)},
            {"type": "array"},
        ]
    },
)


_SUBJECT_PATTERN: Final = r"[^\s]{1,256}"
_TARGET_PATTERN: Final = r"\*|[^/\s]{1,256}/[^/\s]{1,256}"


def _pattern_type(pattern: str, description: str) -> FieldType:
    def read(written: ConfigValue) -> str:
        if not re.fullmatch(pattern, written.text()):
            raise written.wrong(f"must be {description}")
        return written.text()

    return FieldType(read, {"type": "string", "pattern": f"^({pattern})$"})


def _read_units(value: ConfigValue) -> tuple[Unit, ...]:
    found = tuple(each.one_of(UNITS) for each in value.items())
    if len(set(found)) < len(found):
        raise value.wrong("has a duplicate; keep one")
    return tuple(unit for unit in UNITS if unit in found)


_UNITS_TYPE: Final = FieldType(
    _read_units, {"type": "array", "items": {"enum": list(UNITS)}, "uniqueItems": True}
)
_LIMIT_MEMBERS: Final[Members] = {
    "subject": (
        _pattern_type(_SUBJECT_PATTERN, "a principal, such as agent:ci, or a pattern"),
        "the principal whose calls count; * is all",
    ),
    "target": (
        _pattern_type(_TARGET_PATTERN, "server/tool, server/* or *"),
        "the target of the calls, as in a grant; * is all",
    ),
    "per": (
        _UNITS_TYPE,
        "the units with a counter of their own; default: principal; [] is one for all",
    ),
    "rate": (
        _pattern_type(RATE_FORM, "a number in a time, as 60/m"),
        "calls a second, minute, hour, day",
    ),
    "burst": (number_type(1, 1_000_000_000), "how many of them at once; default: all"),
    "quota": (
        _pattern_type(QUOTA_FORM, "a number in a time, as 10000/d"),
        "calls a day or month, in UTC",
    ),
}


def _read_limit(entry: ConfigValue) -> LimitRule:
    said = members_of(entry, _LIMIT_MEMBERS)
    if "rate" not in said and "quota" not in said:
        raise entry.wrong("limits nothing; give it a rate, as 60/m, or a quota, as 10000/d")
    burst = said.pop("burst", None)
    if burst is not None and "rate" not in said:
        raise entry.table()["burst"].wrong("needs a rate")
    rate = RateLimit.parse(said.pop("rate"), burst) if "rate" in said else None
    quota = Quota.parse(said.pop("quota")) if "quota" in said else None
    return LimitRule(**said, rate=rate, quota=quota)


def _read_limits(value: ConfigValue) -> tuple[LimitRule, ...]:
    return tuple(_read_limit(entry) for entry in value.items())


_LIMIT_SCHEMA: Final = table_of(
    _LIMIT_MEMBERS,
    anyOf=[{"required": ["rate"]}, {"required": ["quota"]}],
    dependencies={"burst": ["rate"]},
)
RATES_TYPE: Final = FieldType(_read_limits, {"type": "array", "items": _LIMIT_SCHEMA})


@dataclass(frozen=True, slots=True)
class PolicySettings:
    default_policy: DefaultPolicy = setting(
        "deny",
        "Calls without a grant: `deny` denies them, `allow` allows them to known principals.",
        is_live=True,
    )
    require_approval: RequireApprovalChoice = setting(
        "auto",
        "The calls that need the approval of a person. `destructive`: dangerous ones, and servers "
        "in this file are `trusted` unless they say otherwise. `auto`: dangerous ones where "
        "identity is required, else never.",
    )
    approve_own: bool = setting(
        False,
        "Whether a person who may do everything (verb `*` on `*`) may approve their own requests.",
    )
    on_suspicious_definition: SuspiciousChoice = setting(
        "refuse", "The treatment of tools whose definition hides something or imitates another."
    )
    fallback_validators: FallbackChoice = setting(
        "auto",
        "Validators for tools that name none; `auto`: on where identity is required, else warn.",
    )
    trust_definitions: DefinitionsChoice = setting(
        "first_use", "When Comity accepts the definition of a tool."
    )
    approval_policy: ApprovalChoice = setting(
        "auto",
        "The decision about pending permissions of servers; `auto`: config_only where identity is "
        "required, else auto_approve.",
    )
    sandbox: DefaultSandbox = setting(
        "auto",
        "How strongly servers are confined that are neither `trusted` nor `sandboxed` and whose "
        "own `sandbox` is `auto`. `auto` is the best level of this machine.",
    )
