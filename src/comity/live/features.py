"""Decides which feature sets of a live server are enabled, for the host and the scope checks."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final

from comity.errors import FEATURE_NOT_ENABLED, FEATURE_UNKNOWN, MalformedMessage
from comity.live.hooks.model import InjectionPosition
from comity.mcp import jsonrpc
from comity.mcp.mcpl import FeatureSet, FeatureUse, ScopeBounds
from comity.policy.grants import FEATURE_VERB, Decision, Effect
from comity.toolkit.patterns import covers_feature

_NO_BOUNDS: Final[Mapping[str, ScopeBounds]] = MappingProxyType({})
_NO_POINTERS: Final[Mapping[str, str]] = MappingProxyType({})
USER_POSITIONS: Final = frozenset({InjectionPosition.BEFORE_USER, InjectionPosition.AFTER_USER})


@dataclass(frozen=True, slots=True)
class LivePolicy:
    """The policy for one server.

    `positions` are where the server may inject text. `rewrites` permits it to change the output of
    a model, and `fails_closed` withholds that output if the server does not answer. `scope_of` maps
    a tool to the JSON pointer of its scope within the arguments. `order` is the server's rank among
    others.
    """

    enabled: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    scopes: Mapping[str, ScopeBounds] = field(default_factory=lambda: _NO_BOUNDS)
    positions: frozenset[InjectionPosition] = USER_POSITIONS
    rewrites: bool = False
    fails_closed: bool = False
    scope_of: Mapping[str, str] = field(default_factory=lambda: _NO_POINTERS)
    order: int = 0


DEFAULT_POLICY: Final = LivePolicy()


@dataclass(frozen=True, slots=True)
class FeatureSetStatus:
    """Whether a feature set is enabled, and by whose decision.

    `until` is when the decision expires.
    """

    is_enabled: bool
    by: str
    reason: str
    until: datetime | None = None


UNDECIDED: Final = FeatureSetStatus(False, "default", "it is not enabled")
UNKNOWN: Final = FeatureSetStatus(False, "gateway", "permissions are not loaded")
_BY_FILE: Final = "configuration"


def decide_feature_status(
    policy: LivePolicy, name: str, decision: Decision | None = None
) -> FeatureSetStatus:
    """Return the status of a feature set under the configuration and a decision about grants."""
    granted = None if decision is None else _status_from_grants(decision)
    if granted is not None and not granted.is_enabled:
        return granted
    if any(covers_feature(each, name) for each in policy.disabled):
        return FeatureSetStatus(False, _BY_FILE, "the configuration disables it")
    if any(covers_feature(each, name) for each in policy.enabled):
        return FeatureSetStatus(True, _BY_FILE, "the configuration enables it")
    return granted or UNDECIDED


def _status_from_grants(decision: Decision) -> FeatureSetStatus | None:
    """Return the status that guardrails and grants give. None if neither mentions the set."""
    if decision.guardrail is not None:
        return FeatureSetStatus(
            False, "guardrail", decision.guardrail.why or "a guardrail forbids it"
        )
    grant = decision.grant
    if grant is None:
        return None
    if decision.effect is not Effect.ALLOW:
        return FeatureSetStatus(False, grant.granted_by or _BY_FILE, "a grant denies it")
    if grant.verb != FEATURE_VERB:
        # A grant for every verb covers calls. It does not enable what servers do on their own.
        return None
    by = grant.granted_by or _BY_FILE
    return FeatureSetStatus(True, by, grant.justification or "a grant enables it", grant.expires_at)


def enabled_of(policy: LivePolicy, declared: Iterable[str]) -> frozenset[str]:
    return frozenset(
        name
        for name in declared
        if any(covers_feature(each, name) for each in policy.enabled)
        and not any(covers_feature(each, name) for each in policy.disabled)
    )


def require_feature_set(
    declared: Mapping[str, FeatureSet], enabled: Collection[str], name: str, use: FeatureUse
) -> FeatureSet:
    """Return the feature set that permits this use. Raises MalformedMessage. (§6.6, D-60)"""
    found = declared.get(name)
    if found is None:
        raise MalformedMessage("Unknown feature set", FEATURE_UNKNOWN)
    if name not in enabled or use not in found.uses:
        raise MalformedMessage("Feature set not enabled", FEATURE_NOT_ENABLED)
    return found


FEATURE_SET_KEY: Final = "featureSet"
WHOLE: Final = ""
"""The server as a whole. No feature set has this name."""


def feature_of_tool(definition: bytes | None, sets: Mapping[str, FeatureSet]) -> str:
    """Return the feature set of a tool, or `WHOLE`.

    `definition` is None if the server never listed the tool.
    """
    named = feature_set_in(definition)
    if named in sets and FeatureUse.TOOLS in sets[named].uses:
        return named
    for_tools = [name for name, each in sets.items() if FeatureUse.TOOLS in each.uses]
    return for_tools[0] if len(for_tools) == 1 else WHOLE


def feature_set_in(definition: bytes | None) -> str:
    """Return the feature set that a definition names, declared or not, or `WHOLE`."""
    try:
        # Most definitions name no set, and a substring search is cheaper than decoding.
        if definition is None or FEATURE_SET_KEY.encode() not in definition:
            return WHOLE
        meta = jsonrpc.decode_members(definition).get("_meta")
        return (
            jsonrpc.decode_text(jsonrpc.decode_members(meta).get(FEATURE_SET_KEY)) or WHOLE
            if meta is not None
            else WHOLE
        )
    except MalformedMessage:
        return WHOLE
