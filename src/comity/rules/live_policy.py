"""What its operator lets a live server do: which feature sets, where, and how far. (MCPL §6, §7)

Rule 1: nothing is enabled that is not named, by itself or by its family (`memory.*`). (D-58)
Rule 2: what is named as disabled is, whatever else is said.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from comity.wire.errors import FEATURE_NOT_ENABLED, FEATURE_UNKNOWN, MalformedMessage
from comity.wire.features import Bounds, FeatureSet, Use
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
