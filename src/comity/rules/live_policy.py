"""What its operator lets a live server do: which feature sets, where, and how far. (MCPL §6, §7)

Rule 1: nothing is enabled that is not named, by itself or by its family (`memory.*`). (D-58)
Rule 2: what is named as disabled is, whatever else is said; so is what a guardrail or a grant
        denies. A grant enables beside the configuration: a feature set is a bundle of rights.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final

from comity.rules.access import Judgement
from comity.wire.errors import FEATURE_NOT_ENABLED, FEATURE_UNKNOWN, MalformedMessage
from comity.wire.features import Bounds, FeatureSet, Use
from comity.wire.grants import FEATURE, Effect
from comity.wire.hooks import Position

_NO_BOUNDS: Final[Mapping[str, Bounds]] = MappingProxyType({})
_NO_PLACES: Final[Mapping[str, str]] = MappingProxyType({})
BESIDE_USER: Final = frozenset({Position.BEFORE_USER, Position.AFTER_USER})


@dataclass(frozen=True, slots=True)
class LivePolicy:
    """What is decided of one server.

    `positions` are where it may inject; `rewrites` is whether it may change what a model said, and
    `fails_closed` what follows where it does not answer then. `scope_of` is where in a tool's
    arguments its scope stands, as a JSON pointer. `order` is its place among others.
    """

    enabled: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    scopes: Mapping[str, Bounds] = field(default_factory=lambda: _NO_BOUNDS)
    positions: frozenset[Position] = BESIDE_USER
    rewrites: bool = False
    fails_closed: bool = False
    scope_of: Mapping[str, str] = field(default_factory=lambda: _NO_PLACES)
    order: int = 0


NOTHING: Final = LivePolicy()


def covers(pattern: str, name: str) -> bool:
    """Whether a name, a family (`memory.*`) or `*` is about this feature set."""
    if pattern in ("*", name):
        return True
    return pattern.endswith(".*") and name.startswith(pattern[:-1])


@dataclass(frozen=True, slots=True)
class SetStanding:
    """Whether one feature set may be used, and by whose word. `until` is when that ends."""

    is_enabled: bool
    by: str
    because: str
    until: datetime | None = None


UNDECIDED: Final = SetStanding(False, "default", "nobody has enabled it")
UNKNOWN: Final = SetStanding(False, "gateway", "what is allowed is not known just now")
_BY_FILE: Final = "configuration"


def standing_of(policy: LivePolicy, name: str, judged: Judgement | None = None) -> SetStanding:
    """How a feature set stands, given what is written of it and what is granted."""
    granted = None if judged is None else _granted(judged)
    if granted is not None and not granted.is_enabled:
        return granted
    if any(covers(each, name) for each in policy.disabled):
        return SetStanding(False, _BY_FILE, "the configuration disables it")
    if any(covers(each, name) for each in policy.enabled):
        return SetStanding(True, _BY_FILE, "the configuration enables it")
    return granted or UNDECIDED


def _granted(judged: Judgement) -> SetStanding | None:
    """What an operator wrote of it beside the configuration, if anything."""
    if judged.forbid is not None:
        return SetStanding(False, "guardrail", judged.forbid.why or "a guardrail forbids it")
    grant = judged.grant
    if grant is None:
        return None
    if judged.effect is not Effect.ALLOW:
        return SetStanding(False, grant.granted_by or _BY_FILE, "a grant denies it")
    if grant.verb != FEATURE:
        # Whoever let somebody do everything spoke of calls, and not of what servers do.
        return None
    by = grant.granted_by or _BY_FILE
    return SetStanding(True, by, grant.justification or "a grant enables it", grant.expires_at)


def enabled_of(policy: LivePolicy, declared: Iterable[str]) -> frozenset[str]:
    return frozenset(
        name
        for name in declared
        if any(covers(each, name) for each in policy.enabled)
        and not any(covers(each, name) for each in policy.disabled)
    )


def required(
    declared: Mapping[str, FeatureSet], enabled: Collection[str], name: str, use: Use
) -> FeatureSet:
    """The feature set by which a server may do something. Raises MalformedMessage. (§6.6, D-60)"""
    found = declared.get(name)
    if found is None:
        raise MalformedMessage("Unknown feature set", FEATURE_UNKNOWN)
    if name not in enabled or use not in found.uses:
        raise MalformedMessage("Feature set not enabled", FEATURE_NOT_ENABLED)
    return found
