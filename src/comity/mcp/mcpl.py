"""MCPL capabilities: feature sets, scopes and the reverse channel."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, UnsetType

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import UNSET, Frame, Id

VERSION: Final = "0.4"
KEY: Final = "mcpl"
"""The key of MCPL under `experimental`."""

EXTENSION_KEY: Final = "dev.comity/mcpl"
"""The key of MCPL under `extensions`, which protocol version 2026-07-28 introduced."""

STATE_MIRROR: Final = "dev.comity/state"
"""The member of `_meta` that repeats the state, because SDKs drop unknown members."""

UPDATE: Final = "featureSets/update"
CHANGED: Final = "featureSets/changed"
ELEVATE: Final = "scope/elevate"

HOST_REQUESTS: Final = frozenset(
    {
        *("push/event", "inference/request", "model/info", ELEVATE),
        *("channels/register", "channels/list", "channels/incoming"),
    }
)
"""Requests that servers send to their host, and that no client behind it receives. (§4.1)"""

HOST_NOTIFICATIONS: Final = frozenset({CHANGED, "channels/changed"})

METHOD_PREFIXES: Final = (
    *("channels/", "context/", "featureSets/", "inference/", "mcpl/"),
    *("model/", "push/", "scope/", "state/"),
)
"""How the methods begin that pass between a live server and its host."""

MAX_SETS: Final = 256
MAX_NAME_LENGTH: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)
_MAX_BYTES: Final = 256 * 1024


class FeatureUse(StrEnum):
    """The uses that a feature set can declare. (§6.2, B.2)"""

    PUSH = "pushEvents"
    BEFORE = "contextHooks.beforeInference"
    AFTER = "contextHooks.afterInference"
    INFERENCE = "inferenceRequest"
    TOOLS = "tools"
    PUBLISH = "channels.publish"
    OBSERVE = "channels.observe"


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """One behaviour of a server that the host can enable or disable."""

    name: str
    description: str
    uses: frozenset[FeatureUse]
    is_scoped: bool = False
    has_rollback: bool = False


_NO_SETS: Final[Mapping[str, FeatureSet]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class McplDeclaration:
    """The declaration of a server. `blocks` is whether it wants the host to wait afterwards."""

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


class _FeatureSetBody(Struct):
    description: str
    uses: list[str]
    scoped: bool = False
    rollback: bool = False


class _AfterInferenceCapability(Struct):
    blocking: bool = False


class _ContextHooksCapability(Struct):
    before: bool = msgspec.field(default=False, name="beforeInference")
    after: _AfterInferenceCapability | bool = msgspec.field(default=False, name="afterInference")


class _InferenceCapability(Struct):
    streaming: bool = False


class _McplCapability(Struct):
    version: str
    pushes: bool = msgspec.field(default=False, name="pushEvents")
    hooks: _ContextHooksCapability | None = msgspec.field(default=None, name="contextHooks")
    inference: _InferenceCapability | bool = msgspec.field(default=False, name="inferenceRequest")
    model: bool = msgspec.field(default=False, name="modelInfo")
    channels: dict[str, Any] | None = None
    sets: dict[str, _FeatureSetBody] = msgspec.field(
        default_factory=dict[str, _FeatureSetBody], name="featureSets"
    )


class _FeatureSetChanges(Struct):
    added: dict[str, _FeatureSetBody] = msgspec.field(default_factory=dict[str, _FeatureSetBody])
    removed: list[str] = msgspec.field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class ScopeClaim:
    """The scope of an action: a label for people, and the payload of the server."""

    label: str
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ScopeBounds:
    """The allowed and the denied scopes of a feature set. A denial always wins."""

    whitelist: tuple[str, ...] = ()
    blacklist: tuple[str, ...] = ()


class _ScopeBody(Struct):
    label: str
    payload: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class _ScopeElevationParams(Struct):
    set: str = msgspec.field(name="featureSet")
    scope: _ScopeBody


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
"""All MCPL features of Comity as a host. (§5.2, §8, D-74) The form of `state` is Comity's own."""

OFFERED_TO_CALLERS: Final[Mapping[str, object]] = {"version": VERSION, "featureSets": True}
"""The features on the connection of one client's calls. Only scopes and state apply there."""


def is_set_name(name: str) -> bool:
    return len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def mcpl_member_in(capabilities: Raw | None) -> Raw | None:
    """Return the MCPL member of these capabilities, from either place."""
    try:
        found = {} if capabilities is None else jsonrpc.decode_members(capabilities)
        for place, key in (("experimental", KEY), ("extensions", EXTENSION_KEY)):
            inside = jsonrpc.decode_members(found[place]) if place in found else {}
            if key in inside:
                return inside[key]
    except MalformedMessage:
        return None
    return None


def strip_mcpl(hello: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return a server's declaration without MCPL, for clients that did not negotiate it. (§3.2)"""
    capabilities = hello.get("capabilities")
    if capabilities is None or mcpl_member_in(capabilities) is None:
        return {**hello}
    left = jsonrpc.decode_members(capabilities)
    for place, key in (("experimental", KEY), ("extensions", EXTENSION_KEY)):
        inside = jsonrpc.decode_members(left[place]) if place in left else {}
        if inside.pop(key, None) is not None:
            left[place] = jsonrpc.to_raw(inside)
            if not inside:
                del left[place]
    return {**hello, "capabilities": jsonrpc.to_raw(left)}


def declared_in(capabilities: Raw | None) -> McplDeclaration | None:
    """Return the declaration of a server, or None for plain MCP or an unreadable one. (§3.3)"""
    said = mcpl_member_in(capabilities)
    if said is None or len(said) > _MAX_BYTES:
        return None
    try:
        found = msgspec.convert(jsonrpc.decode_value(said), _McplCapability)
        sets = _sets(found.sets)
    except (MalformedMessage, msgspec.ValidationError):
        return None
    if found.version.partition(".")[0] != VERSION.partition(".")[0]:
        return None
    hooks = found.hooks or _ContextHooksCapability()
    return McplDeclaration(
        found.version,
        found.pushes,
        hooks.before,
        after=hooks.after is not False,
        blocks=isinstance(hooks.after, _AfterInferenceCapability) and hooks.after.blocking,
        infers=found.inference is not False,
        streams=isinstance(found.inference, _InferenceCapability) and found.inference.streaming,
        asks_for_model=found.model,
        channels=frozenset(name for name, can in (found.channels or {}).items() if can is True),
        sets=sets,
    )


def changed_in(params: Raw) -> tuple[Mapping[str, FeatureSet], tuple[str, ...]]:
    """Return the added and the removed feature sets of a change. Raises MalformedMessage. (§6.7)"""
    try:
        found = msgspec.convert(jsonrpc.decode_value(params), _FeatureSetChanges)
    except msgspec.ValidationError as problem:
        raise MalformedMessage(f"{CHANGED}: {problem}", INVALID_PARAMS) from None
    return _sets(found.added), tuple(found.removed[:MAX_SETS])


def feature_update_params(
    enabled: Sequence[str], disabled: Sequence[str], scopes: Mapping[str, ScopeBounds]
) -> dict[str, object]:
    """Return the parameters that tell a server its enabled feature sets and scopes. (§6.7)"""
    told = {
        name: {"whitelist": list(bounds.whitelist), "blacklist": list(bounds.blacklist)}
        for name, bounds in scopes.items()
    }
    return {"enabled": [*enabled], "disabled": [*disabled], **({"scopes": told} if told else {})}


def elevation_in(params: Raw) -> tuple[str, ScopeClaim]:
    """Return the feature set and the scope of an elevation request. Raises MalformedMessage."""
    try:
        found = msgspec.convert(jsonrpc.decode_value(params), _ScopeElevationParams)
    except msgspec.ValidationError as problem:
        raise MalformedMessage(f"{ELEVATE}: {problem}", INVALID_PARAMS) from None
    return found.set, ScopeClaim(found.scope.label, found.scope.payload)


def scope_on_wire(scope: ScopeClaim) -> dict[str, object]:
    return {"label": scope.label, "payload": dict(scope.payload)}


def set_named_in(params: Mapping[str, Raw]) -> str:
    """Return the feature set that a server's message names. Raises MalformedMessage. (§6.5)"""
    named = jsonrpc.decode_text(params.get("featureSet"))
    if named is None:
        raise MalformedMessage("featureSet is missing", INVALID_PARAMS)
    return named


def _sets(found: Mapping[str, _FeatureSetBody]) -> dict[str, FeatureSet]:
    """Return the readable feature sets. One with an unknown use is left out."""
    kept: dict[str, FeatureSet] = {}
    for name, each in list(found.items())[:MAX_SETS]:
        if is_set_name(name) and all(use in FeatureUse for use in each.uses):
            uses = frozenset(FeatureUse(use) for use in each.uses)
            description = each.description[:1_000]
            kept[name] = FeatureSet(name, description, uses, each.scoped, each.rollback)
    return kept


LISTEN: Final = "mcpl/listen"
RESPOND: Final = "mcpl/respond"
REVERSE_REQUEST: Final = "mcpl.request"
REVERSE_NOTIFICATION: Final = "mcpl.notification"


class _EmbeddedRequest(Struct):
    method: str
    id: Id | UnsetType = UNSET
    params: Raw | UnsetType = UNSET


def embedded_message_in(frame: Frame) -> Frame:
    """Return the embedded request or notification. Raises MalformedMessage."""
    try:
        found = msgspec.json.decode(jsonrpc.to_raw(frame.params), type=_EmbeddedRequest)
    except (msgspec.DecodeError, TypeError) as problem:
        raise MalformedMessage(f"{frame.method}: {problem}", INVALID_PARAMS) from None
    if frame.method == REVERSE_NOTIFICATION:
        return jsonrpc.make_notification(found.method, found.params)
    if found.id is UNSET:
        raise MalformedMessage(f"{REVERSE_REQUEST} has no id", INVALID_PARAMS)
    return jsonrpc.make_request(found.id, found.method, found.params)


def embed_response(frame: Frame) -> dict[str, object]:
    """Return a response in the form that the embedding request returns."""
    told: dict[str, object] = {"id": frame.id}
    if frame.error is not UNSET:
        return {**told, "error": frame.error}
    return {**told, "result": frame.result}
