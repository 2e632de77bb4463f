"""Security labels, risk levels, server permissions, and the policies of servers and tools."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from comity.errors import MalformedMessage
from comity.mcp import jsonrpc
from comity.policy.grants import PERMISSION_VERB, Decision, Effect
from comity.validation.rules import UNRULED, ValidationRules

PERMISSION_PREFIX: Final = "mgp/permission/"
WAIT_METHODS: Final = ("mgp/permission/request", "mgp/permission/await")
"""Methods that tell a server to wait for an operator: MGP's name, then its later name. (D-08)"""

DECISION_METHODS: Final = ("mgp/permission/response", "mgp/permission/grant")
"""Methods that tell a server the decision: MGP's name, then its later name."""

OPERATOR_DECIDES_TEXT: Final = "only operators decide about permissions of servers"
"""The answer to a server that decides on its own permissions or asks a client to. (D-08, S1)"""

SECURITY_META_KEY: Final = "dev.comity/security"
MAX_NAMES: Final = 64
MAX_NAME_LENGTH: Final = 200


class Risk(StrEnum):
    """How much harm a call can do. (MGP §4.4)"""

    SAFE = "safe"
    MODERATE = "moderate"
    DANGEROUS = "dangerous"


class TrustLevel(StrEnum):
    """How far the operator trusts a server. (MGP §2.3)"""

    TRUSTED = "trusted"
    STANDARD = "standard"
    SANDBOXED = "sandboxed"


class PermissionOutcome(StrEnum):
    """The decision on a permission that a server needs. (MGP §3.6)"""

    APPROVED = "approved"
    DENIED = "denied"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class SecurityLabel:
    """The `security` member of a tool. `permissions` is None if the label does not mention them."""

    risk: Risk | None = None
    permissions: tuple[str, ...] | None = None
    validators: tuple[str, ...] = ()
    side_effects: tuple[str, ...] = ()
    reversible: bool | None = None
    confirmation: bool = False


@dataclass(frozen=True, slots=True)
class ToolHints:
    """The claims of a tool's MCP annotations. None means no claim."""

    is_read_only: bool | None = None
    is_destructive: bool | None = None
    is_open_world: bool | None = None


class _SecurityLabelBody(Struct):
    risk_level: Literal["safe", "moderate", "dangerous"] | None = None
    permissions_required: list[str] | None = None
    side_effects: list[str] = []
    validator: str | list[str] | None = None
    reversible: bool | None = None
    confirmation_required: bool = False


UNREADABLE_LABEL: Final = SecurityLabel(Risk.DANGEROUS, confirmation=True)
"""Replaces a label that cannot be read, so that a garbled label gains a server nothing."""


def parse_label(definition: Mapping[str, Raw]) -> SecurityLabel | None:
    """Return the security label of a tool definition, or None.

    A definition can hold the label in either of two places or in both.
    """
    places = (definition.get("security"), _meta_label(definition))
    said = [_decode_label(raw) for raw in places if raw is not None]
    if len(said) == 2 and said[0] != said[1]:
        return _merge_labels(*said)
    return said[0] if said else None


def parse_hints(definition: Mapping[str, Raw]) -> ToolHints:
    """Return the claims of a tool's annotations. A value that is no boolean counts as no claim."""
    said = _members(definition.get("annotations"))
    claims = [
        _parse_bool(said.get(f"{name}Hint")) for name in ("readOnly", "destructive", "openWorld")
    ]
    return ToolHints(*claims)


def _meta_label(definition: Mapping[str, Raw]) -> Raw | None:
    return _members(definition.get("_meta")).get(SECURITY_META_KEY)


def _members(raw: Raw | None) -> Mapping[str, Raw]:
    try:
        return {} if raw is None else jsonrpc.decode_members(raw)
    except MalformedMessage:
        return {}


def _parse_bool(raw: Raw | None) -> bool | None:
    return {b"true": True, b"false": False}.get(b"" if raw is None else bytes(raw).strip())


def _decode_label(raw: Raw) -> SecurityLabel:
    try:
        found = msgspec.convert(jsonrpc.decode_value(raw), _SecurityLabelBody)
    except (MalformedMessage, msgspec.ValidationError):
        return UNREADABLE_LABEL
    validator = found.validator
    validators = [validator] if isinstance(validator, str) else validator or []
    names = (*(found.permissions_required or ()), *validators, *found.side_effects)
    if len(names) > MAX_NAMES or any(len(name) > MAX_NAME_LENGTH for name in names):
        return UNREADABLE_LABEL
    needs = found.permissions_required
    return SecurityLabel(
        None if found.risk_level is None else Risk(found.risk_level),
        None if needs is None else tuple(needs),
        tuple(validators),
        tuple(found.side_effects),
        found.reversible,
        found.confirmation_required,
    )


def _merge_labels(one: SecurityLabel, other: SecurityLabel) -> SecurityLabel:
    """Combine two labels that disagree into one with all the warnings of both."""
    order = (None, *Risk)
    needs = None
    if one.permissions is not None or other.permissions is not None:
        needs = tuple(dict.fromkeys((*(one.permissions or ()), *(other.permissions or ()))))
    return SecurityLabel(
        max(one.risk, other.risk, key=order.index),
        needs,
        tuple(dict.fromkeys((*one.validators, *other.validators))),
        tuple(dict.fromkeys((*one.side_effects, *other.side_effects))),
        one.reversible is True and other.reversible is True,
        one.confirmation or other.confirmation,
    )


RISK_BY_PERMISSION: Final[Mapping[str, Risk]] = {
    "filesystem.read": Risk.MODERATE,
    "filesystem.write": Risk.DANGEROUS,
    "network.outbound": Risk.MODERATE,
    "network.listen": Risk.DANGEROUS,
    "shell.execute": Risk.DANGEROUS,
    "code_execution": Risk.DANGEROUS,
    "memory.read": Risk.SAFE,
    "memory.write": Risk.MODERATE,
    "system.info": Risk.SAFE,
    "camera": Risk.DANGEROUS,
    "notification": Risk.SAFE,
}
MEANING_BY_PERMISSION: Final[Mapping[str, str]] = {
    "filesystem.read": "read files of the machine that it runs on",
    "filesystem.write": "write and delete files of the machine that it runs on",
    "network.outbound": "reach other machines over the network",
    "network.listen": "be reached from other machines over the network",
    "shell.execute": "run commands in a shell",
    "code_execution": "run code that it is given",
    "memory.read": "read stored memories",
    "memory.write": "change stored memories",
    "system.info": "learn about the machine that it runs on",
    "camera": "see through a camera",
    "notification": "show notices to people",
}
PERMISSION_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "shell": ("shell.execute",),
    "network": ("network.outbound",),
    "filesystem": ("filesystem.read", "filesystem.write"),
}
"""Short names in MGP's examples, and the names of MGP's table that they stand for. (D-09)"""

_REVERSE_DOMAIN_PATTERN: Final = re.compile(r"[a-z][a-z0-9-]*(\.[A-Za-z0-9][A-Za-z0-9_-]*){2,}")
_STANDARD_PREFIXES: Final = frozenset(name.partition(".")[0] for name in RISK_BY_PERMISSION)
_UNWRITABLE_PATTERN: Final = re.compile(r"[^\x21-\x7e]|[*/]")
SERVER_SUBJECT_PREFIX: Final = "server:"
"""Prefix of the subject of a server's permissions."""


def server_subject(server: str) -> str:
    """Return the subject of a server in grants."""
    return SERVER_SUBJECT_PREFIX + server


class ApprovalPolicy(StrEnum):
    """The decision on a permission that no operator has decided. (MGP §3.3)"""

    INTERACTIVE = "interactive"
    AUTO_APPROVE = "auto_approve"
    DENY_ALL = "deny_all"
    CONFIG_ONLY = "config_only"


@dataclass(frozen=True, slots=True)
class PermissionDecision:
    """The decision on one permission, its author, its reason and its expiry."""

    decision: PermissionOutcome
    by: str
    reason: str
    expires_at: datetime | None = None
    # The folders or hosts that an approved permission is for.
    reach: tuple[str, ...] = ()


DEFAULT_REACH: Final[Mapping[str, tuple[str, ...]]] = {
    "network.outbound": ("*",),
    "shell.execute": ("*",),
}
"""The reach of permissions that are approved without one.

These are every public host and every program, but no folder.
"""


def program_problem(text: str) -> str | None:
    """Return why a text names no program that a permission can be for, or None."""
    if text == "*" or (text.startswith("/") and text.strip("/")):
        return None
    return "must be the full path of a program, or *"


def folder_problem(text: str) -> str | None:
    """Return why a text names no folder that a permission can be for, or None."""
    if not text.startswith(("/", "~/")):
        return "must be an absolute path, or begin with ~/"
    return None if text.strip("/") else "must be a folder below /"


def expand_aliases(names: Iterable[str]) -> tuple[str, ...]:
    """Replace each alias by its permissions, without duplicates."""
    return tuple(
        dict.fromkeys(each for name in names for each in PERMISSION_ALIASES.get(name, (name,)))
    )


def is_custom_permission(name: str) -> bool:
    """Whether a permission has a reverse domain name, and so is a custom one. (MGP §3.2)"""
    plain = _REVERSE_DOMAIN_PATTERN.fullmatch(name) is not None
    return plain and name.partition(".")[0] not in _STANDARD_PREFIXES


def is_known_permission(name: str) -> bool:
    return name in RISK_BY_PERMISSION or is_custom_permission(name)


def is_writable_name(name: str) -> bool:
    """Whether the name can be the target of a grant without acting as a pattern."""
    return 0 < len(name) <= 200 and not _UNWRITABLE_PATTERN.search(name)


def permission_risk(name: str) -> Risk:
    """Return the risk of a permission. An unknown permission counts as the highest risk."""
    return RISK_BY_PERMISSION.get(name, Risk.DANGEROUS)


def describe_permission(name: str) -> str:
    """Describe what a server can do with a permission, for the person who decides."""
    own = "do what only its own documentation explains" if is_custom_permission(name) else ""
    return MEANING_BY_PERMISSION.get(name, own or "use an unknown permission")


def decide_permission(
    name: str, decision: Decision | None, policy: ApprovalPolicy, configured: Collection[str]
) -> PermissionDecision:
    """Decide on a permission by the written grants, and by the policy if there is none."""
    written = None if decision is None else _decision_of_grants(decision)
    if written is not None:
        return written
    if name in configured:
        return PermissionDecision(
            PermissionOutcome.APPROVED, "configuration", "the configuration lists it"
        )
    if (
        policy is ApprovalPolicy.AUTO_APPROVE
        and is_known_permission(name)
        and is_writable_name(name)
    ):
        return PermissionDecision(
            PermissionOutcome.APPROVED, f"policy {policy}", "its server's policy approves"
        )
    if policy in (ApprovalPolicy.AUTO_APPROVE, ApprovalPolicy.INTERACTIVE):
        reason = (
            "an operator has to decide"
            if is_known_permission(name)
            else "the permission is unknown"
        )
        return PermissionDecision(PermissionOutcome.DEFERRED, f"policy {policy}", reason)
    return PermissionDecision(
        PermissionOutcome.DENIED, f"policy {policy}", "no operator has approved it"
    )


def _decision_of_grants(judged: Decision) -> PermissionDecision | None:
    """Return the decision that a grant or guardrail makes on a permission, or None."""
    if judged.guardrail is not None:
        return PermissionDecision(
            PermissionOutcome.DENIED, "guardrail", judged.guardrail.why or "a guardrail forbids it"
        )
    grant = judged.grant
    if grant is None:
        return None
    if judged.effect is Effect.ALLOW and grant.verb != PERMISSION_VERB:
        # A grant of all verbs concerns calls. It does not give permissions to servers.
        return None
    decision = {
        Effect.ALLOW: PermissionOutcome.APPROVED,
        Effect.ASK: PermissionOutcome.DEFERRED,
        Effect.DENY: PermissionOutcome.DENIED,
    }[judged.effect]
    by = grant.granted_by or str(grant.source)
    return PermissionDecision(
        decision, by, grant.justification or "an operator decided it", grant.expires_at, grant.reach
    )


class RequireApproval(StrEnum):
    """Which calls need a person's approval. (D-13)"""

    ALWAYS = "always"
    DANGEROUS = "dangerous"
    NEVER = "never"


class PermissionDenialAction(StrEnum):
    """The consequence of a denied permission for its server. (D-10)"""

    DEGRADE = "degrade"
    REJECT = "reject"


class DefinitionPolicy(StrEnum):
    """When Comity accepts the definition of a tool. (attack 2)"""

    FIRST_USE = "first_use"
    APPROVE = "approve"
    OFF = "off"


class SuspicionPolicy(StrEnum):
    """The treatment of definitions that may deceive their reader. (attacks 1 and 3)

    `refuse` covers hidden text and imitation. `strict` also covers names that two servers share.
    """

    SHOW = "show"
    REFUSE = "refuse"
    STRICT = "strict"


class FallbackValidatorPolicy(StrEnum):
    """The treatment of validators that no setting requires, but the arguments of a tool suggest."""

    OFF = "off"
    WARN = "warn"
    ON = "on"


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """The operator's policy for one tool.

    `validators` apply regardless of the server's declaration. `arguments` maps the name of an
    argument to its role, such as a command or a URL. `inspect` sets the strictness of the
    validators. `idempotent`, `max_retries` and `fallback_tool` control retries and the replacement
    tool.
    """

    risk: Risk | None = None
    validators: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    require_approval: RequireApproval | None = None
    disabled: bool = False
    cost: int = 1
    idempotent: bool = False
    max_retries: int = 0
    fallback_tool: str = ""
    inspect: ValidationRules = UNRULED
    # How many people must approve a call that needs approval.
    approvals: int = 1


NO_TOOL_POLICY: Final = ToolPolicy()


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """The operator's policy for one server, and for its tools by name or pattern."""

    approval: ApprovalPolicy = ApprovalPolicy.AUTO_APPROVE
    permissions: tuple[str, ...] = ()
    on_denied: PermissionDenialAction = PermissionDenialAction.DEGRADE
    trust: TrustLevel = TrustLevel.STANDARD
    risk: Risk | None = None
    definitions: DefinitionPolicy = DefinitionPolicy.FIRST_USE
    suspicious: SuspicionPolicy = SuspicionPolicy.REFUSE
    fallback: FallbackValidatorPolicy = FallbackValidatorPolicy.WARN
    require_approval: RequireApproval = RequireApproval.NEVER
    # Whether calls pass without approval even if the label of the tool asks for confirmation.
    never_asks: bool = False
    tools: Mapping[str, ToolPolicy] = field(default_factory=dict[str, ToolPolicy])
    # The cost of a call against the rate limits, by risk. The default is 1.
    costs: Mapping[Risk, int] = field(default_factory=dict[Risk, int])
    # Whether the server may receive audit events. (MGP §6.3)
    audit: bool = False
    # The folders or hosts that each permission of the file is for.
    reach: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    # The digests of the approved definitions, where a lock file has them.
    locked_tools: Mapping[str, str] | None = None

    def reach_of(self, permission: str, granted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the places of an approved permission: those of the file and of the grant."""
        default = DEFAULT_REACH.get(permission, ())
        is_listed = permission in self.permissions
        configured = (self.reach.get(permission) or default) if is_listed else ()
        return tuple(dict.fromkeys((*configured, *granted))) or default

    def cost_of(self, tool: ToolPolicy, risk: Risk) -> int:
        """Return the cost of one call: the greater of the tool's cost and the cost of its risk."""
        return max(tool.cost, self.costs.get(risk, 1))

    def tool_policy(self, name: str) -> ToolPolicy:
        """Return the policy of a tool by its exact name, otherwise by the longest pattern that
        matches.
        """
        own = self.tools.get(name)
        if own is not None:
            return own
        patterns = [each for each in self.tools if "*" in each and _covers(each, name)]
        # Ties go to the first in alphabetical order, so that the order of a file does not matter.
        closest = min(patterns, key=lambda each: (-len(each), each), default=None)
        return NO_TOOL_POLICY if closest is None else self.tools[closest]


def _covers(pattern: str, name: str) -> bool:
    parts = (re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(".*".join(parts), name, re.DOTALL) is not None


RISK_BY_TRUST: Final[Mapping[TrustLevel, Risk]] = {
    TrustLevel.TRUSTED: Risk.SAFE,
    TrustLevel.STANDARD: Risk.SAFE,
    TrustLevel.SANDBOXED: Risk.MODERATE,
}
RISK_BY_VALIDATOR: Final[Mapping[str, Risk]] = {
    "none": Risk.SAFE,
    "readonly": Risk.SAFE,
    "network_restricted": Risk.MODERATE,
    "sandbox": Risk.DANGEROUS,
    "code_safety": Risk.DANGEROUS,
}
"""The risk that a tool implies by its validator. An unknown validator implies the highest risk."""

TRUST_BY_NAME: Final[Mapping[str, TrustLevel]] = {
    **{str(trust): trust for trust in TrustLevel},
    "core": TrustLevel.TRUSTED,
    "experimental": TrustLevel.SANDBOXED,
    "untrusted": TrustLevel.SANDBOXED,
}
"""Trust levels by name, including MGP's later names. (D-14)"""

_RISK_ORDER: Final = tuple(Risk)


def highest_risk(risks: Iterable[Risk]) -> Risk:
    return max(risks, key=_RISK_ORDER.index, default=Risk.SAFE)


def effective_trust(operator_trust: TrustLevel, claimed_trust: str | None) -> TrustLevel:
    """Return the operator's trust level, or `sandboxed` if the server claims no more than that.

    A claim of `standard` takes nothing back: MGP prints it for every ordinary server, so it says no
    more than a missing claim. An unknown claim counts as the lowest level. (D-14)
    """
    if claimed_trust is None:
        return operator_trust
    claim = TRUST_BY_NAME.get(claimed_trust, TrustLevel.SANDBOXED)
    return TrustLevel.SANDBOXED if claim is TrustLevel.SANDBOXED else operator_trust


def effective_risk(
    server: ServerPolicy,
    tool: ToolPolicy,
    trust: TrustLevel,
    label: SecurityLabel | None,
    hints: ToolHints,
    needs: Iterable[str] = (),
) -> Risk:
    """Return the effective risk of a call. `needs` are the permissions that the tool requires."""
    return highest_risk(
        (
            policy_risk(server, tool, trust, label, hints),
            RISK_BY_TRUST[trust],
            *_declared_risks(label, hints),
            *(RISK_BY_VALIDATOR.get(name, Risk.DANGEROUS) for name in tool.validators),
            *(permission_risk(name) for name in needs),
        )
    )


def risk_reasons(
    server: ServerPolicy,
    tool: ToolPolicy,
    trust: TrustLevel,
    label: SecurityLabel | None,
    hints: ToolHints,
    needs: Iterable[str] = (),
) -> list[str]:
    """Return the sources that give a call its effective risk, in words."""
    found = [(policy_risk(server, tool, trust, label, hints), _policy_reason(server, tool, trust))]
    found.append((RISK_BY_TRUST[trust], f"its server is {trust}"))
    if label is not None:
        found.append((label.risk or Risk.SAFE, "its server declares this risk"))
    if hints.is_destructive is True and hints.is_read_only is not True:
        found.append((Risk.DANGEROUS, "its server says that it destroys something"))
    checks = (*tool.validators, *(() if label is None else label.validators))
    found += [
        (RISK_BY_VALIDATOR.get(name, Risk.DANGEROUS), f"it needs the check {name}")
        for name in checks
    ]
    found += [(permission_risk(name), f"it needs the permission {name}") for name in needs]
    highest = highest_risk(risk for risk, _ in found)
    return list(dict.fromkeys(text for risk, text in found if risk is highest))


def _policy_reason(server: ServerPolicy, tool: ToolPolicy, trust: TrustLevel) -> str:
    if tool.risk is not None:
        return "the configuration says so for this tool"
    if server.risk is not None:
        return "the configuration says so for its server"
    if trust is not TrustLevel.TRUSTED:
        return f"its server is {trust}"
    return "its server does not say that it only reads"


def policy_risk(
    server: ServerPolicy,
    tool: ToolPolicy,
    trust: TrustLevel,
    label: SecurityLabel | None,
    hints: ToolHints,
) -> Risk:
    """Return the risk by the operator's policy, before other sources raise it."""
    if tool.risk is not None:
        return tool.risk
    if server.risk is not None:
        return server.risk
    if trust is not TrustLevel.TRUSTED:
        return Risk.DANGEROUS
    if label is not None and label.risk is not None:
        return Risk.SAFE
    if hints.is_read_only is True:
        return Risk.SAFE
    return Risk.MODERATE if hints.is_destructive is False else Risk.DANGEROUS


def must_be_confirmed(server: ServerPolicy, tool: ToolPolicy, risk: Risk) -> bool:
    """Whether a call needs approval, unless a grant names the tool itself. (D-13)"""
    when = tool.require_approval or server.require_approval
    return when is RequireApproval.DANGEROUS and risk is Risk.DANGEROUS


def is_always_confirmed(
    server: ServerPolicy, tool: ToolPolicy, label: SecurityLabel | None
) -> bool:
    """Whether a call needs approval even with such a grant, by policy or by the tool's label."""
    if tool.require_approval is not None:
        return tool.require_approval is RequireApproval.ALWAYS
    if server.require_approval is RequireApproval.ALWAYS:
        return True
    wanted = label is not None and label.confirmation
    approves_all = server.approval is ApprovalPolicy.AUTO_APPROVE
    return wanted and not approves_all and not server.never_asks


def _declared_risks(label: SecurityLabel | None, hints: ToolHints) -> Iterable[Risk]:
    if label is not None:
        yield label.risk or Risk.SAFE
        yield from (RISK_BY_VALIDATOR.get(name, Risk.DANGEROUS) for name in label.validators)
    if hints.is_destructive is True and hints.is_read_only is not True:
        yield Risk.DANGEROUS
