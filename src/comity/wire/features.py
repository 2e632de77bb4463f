"""Feature sets: what an MCPL server says it would do, and what its host lets it. (MCPL §5 to §7)

What a server declares is testimony. What counts is what the host enabled. (D-57 to D-66)
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage

VERSION: Final = "0.4"
KEY: Final = "mcpl"
"""Where it is spoken of, under `experimental`."""

EXTENSION_KEY: Final = "dev.comity/mcpl"
"""And under `extensions`, the place that 2026-07-28 has for that."""

UPDATE: Final = "featureSets/update"
CHANGED: Final = "featureSets/changed"
ELEVATE: Final = "scope/elevate"

ASKED_OF_HOSTS: Final = frozenset(
    {
        *("push/event", "inference/request", "model/info", ELEVATE),
        *("channels/register", "channels/list", "channels/incoming"),
    }
)
"""What servers ask of their host and of nobody behind it. (§4.1)"""

TOLD_TO_HOSTS: Final = frozenset({CHANGED, "channels/changed"})

MOST_SETS: Final = 256
LONGEST_NAME: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)
_MOST_BYTES: Final = 256 * 1024


class Use(StrEnum):
    """What a feature set may be for; there are no others. (§6.2, B.2)"""

    PUSH = "pushEvents"
    BEFORE = "contextHooks.beforeInference"
    AFTER = "contextHooks.afterInference"
    INFERENCE = "inferenceRequest"
    TOOLS = "tools"
    PUBLISH = "channels.publish"
    OBSERVE = "channels.observe"


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """One behaviour of a server that can be had or not."""

    name: str
    description: str
    uses: frozenset[Use]
    is_scoped: bool = False
    has_rollback: bool = False


_NO_SETS: Final[Mapping[str, FeatureSet]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Declared:
    """What a server says of itself. `blocks` is whether it wants to be waited for afterwards."""

    version: str
    pushes: bool = False
    before: bool = False
    after: bool = False
    blocks: bool = False
    infers: bool = False
    streams: bool = False
    asks_for_model: bool = False
    channels: frozenset[str] = frozenset()
    sets: Mapping[str, FeatureSet] = field(default_factory=lambda: _NO_SETS)


class _Set(Struct):
    description: str
    uses: list[str]
    scoped: bool = False
    rollback: bool = False


class _After(Struct):
    blocking: bool = False


class _Hooks(Struct):
    before: bool = msgspec.field(default=False, name="beforeInference")
    after: _After | bool = msgspec.field(default=False, name="afterInference")


class _Inference(Struct):
    streaming: bool = False


class _Declared(Struct):
    version: str
    pushes: bool = msgspec.field(default=False, name="pushEvents")
    hooks: _Hooks | None = msgspec.field(default=None, name="contextHooks")
    inference: _Inference | bool = msgspec.field(default=False, name="inferenceRequest")
    model: bool = msgspec.field(default=False, name="modelInfo")
    channels: dict[str, Any] | None = None
    sets: dict[str, _Set] = msgspec.field(default_factory=dict[str, _Set], name="featureSets")


class _Changed(Struct):
    added: dict[str, _Set] = msgspec.field(default_factory=dict[str, _Set])
    removed: list[str] = msgspec.field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Scope:
    """What an action would reach: a label to look at, and what the server makes of it."""

    label: str
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which scopes of a feature set are allowed, and which are not whatever else is said."""

    whitelist: tuple[str, ...] = ()
    blacklist: tuple[str, ...] = ()


class _Scope(Struct):
    label: str
    payload: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class _Elevating(Struct):
    set: str = msgspec.field(name="featureSet")
    scope: _Scope


OFFERED: Final[Mapping[str, object]] = {
    "version": VERSION,
    "pushEvents": True,
    "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
    "inferenceRequest": {"streaming": True},
    "modelInfo": True,
    "featureSets": True,
    "channels": dict.fromkeys(("register", "publish", "observe", "lifecycle", "streaming"), True),
    "state": {"branching": True, "rollback": True},
}
"""All that Comity does as a host. (§5.2, §8, D-74) How `state` is said is ours."""

OFFERED_TO_CALLERS: Final[Mapping[str, object]] = {"version": VERSION, "featureSets": True}
"""What is offered on the link of one client's calls: there scopes and state count, no more."""


def is_set_name(name: str) -> bool:
    return len(name) <= LONGEST_NAME and _NAME.fullmatch(name) is not None


def said_in(capabilities: Raw | None) -> Raw | None:
    """What is said of MCPL among these capabilities, in either place."""
    try:
        found = {} if capabilities is None else jsonrpc.members(capabilities)
        for place, key in (("experimental", KEY), ("extensions", EXTENSION_KEY)):
            inside = jsonrpc.members(found[place]) if place in found else {}
            if key in inside:
                return inside[key]
    except MalformedMessage:
        return None
    return None


def silenced(hello: Mapping[str, Raw]) -> dict[str, Raw]:
    """What a server said of itself, for those who did not ask it about MCPL. (§3.2)"""
    capabilities = hello.get("capabilities")
    if capabilities is None or said_in(capabilities) is None:
        return {**hello}
    left = jsonrpc.members(capabilities)
    for place, key in (("experimental", KEY), ("extensions", EXTENSION_KEY)):
        inside = jsonrpc.members(left[place]) if place in left else {}
        if inside.pop(key, None) is not None:
            left[place] = jsonrpc.to_raw(inside)
            if not inside:
                del left[place]
    return {**hello, "capabilities": jsonrpc.to_raw(left)}


def declared_in(capabilities: Raw | None) -> Declared | None:
    """What a server declares; None where it is plain MCP, or nothing that can be read. (§3.3)"""
    said = said_in(capabilities)
    if said is None or len(said) > _MOST_BYTES:
        return None
    try:
        found = msgspec.convert(jsonrpc.value(said), _Declared)
        sets = _sets(found.sets)
    except (MalformedMessage, msgspec.ValidationError):
        return None
    if found.version.partition(".")[0] != VERSION.partition(".")[0]:
        return None
    hooks = found.hooks or _Hooks()
    return Declared(
        found.version,
        found.pushes,
        hooks.before,
        after=hooks.after is not False,
        blocks=isinstance(hooks.after, _After) and hooks.after.blocking,
        infers=found.inference is not False,
        streams=isinstance(found.inference, _Inference) and found.inference.streaming,
        asks_for_model=found.model,
        channels=frozenset(name for name, can in (found.channels or {}).items() if can is True),
        sets=sets,
    )


def changed_in(params: Raw) -> tuple[Mapping[str, FeatureSet], tuple[str, ...]]:
    """What a server says it can do now, and no more. Raises MalformedMessage. (§6.7)"""
    try:
        found = msgspec.convert(jsonrpc.value(params), _Changed)
    except msgspec.ValidationError as problem:
        raise MalformedMessage(f"{CHANGED}: {problem}", INVALID_PARAMS) from None
    return _sets(found.added), tuple(found.removed[:MOST_SETS])


def update(
    enabled: Sequence[str], disabled: Sequence[str], scopes: Mapping[str, Bounds]
) -> dict[str, object]:
    """What a host tells of what it lets a server do. (§6.7)"""
    told = {
        name: {"whitelist": list(bounds.whitelist), "blacklist": list(bounds.blacklist)}
        for name, bounds in scopes.items()
    }
    return {"enabled": [*enabled], "disabled": [*disabled], **({"scopes": told} if told else {})}


def elevation_in(params: Raw) -> tuple[str, Scope]:
    """Which feature set would reach beyond its scopes, and where to. Raises MalformedMessage."""
    try:
        found = msgspec.convert(jsonrpc.value(params), _Elevating)
    except msgspec.ValidationError as problem:
        raise MalformedMessage(f"{ELEVATE}: {problem}", INVALID_PARAMS) from None
    return found.set, Scope(found.scope.label, found.scope.payload)


def scope_on_wire(scope: Scope) -> dict[str, object]:
    return {"label": scope.label, "payload": dict(scope.payload)}


def set_named_in(params: Mapping[str, Raw]) -> str:
    """The feature set that a message of a server's bears. Raises MalformedMessage. (§6.5)"""
    named = jsonrpc.text(params.get("featureSet"))
    if named is None:
        raise MalformedMessage("featureSet is missing", INVALID_PARAMS)
    return named


def _sets(found: Mapping[str, _Set]) -> dict[str, FeatureSet]:
    """Those that can be read; one that uses what there is not is left out alone."""
    kept: dict[str, FeatureSet] = {}
    for name, each in list(found.items())[:MOST_SETS]:
        if is_set_name(name) and all(use in Use for use in each.uses):
            uses = frozenset(Use(use) for use in each.uses)
            description = each.description[:1_000]
            kept[name] = FeatureSet(name, description, uses, each.scoped, each.rollback)
    return kept
