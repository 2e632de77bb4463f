"""The state of a server's feature set, as calls carry it and bring it back. (MCPL §8)

Official SDKs drop members that they do not know, so what is said where the document has it is said
once more in `_meta`, and taken from either.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, UnsetType

from comity.wire import jsonrpc
from comity.wire.errors import UPSTREAM_FAILED, MalformedMessage
from comity.wire.jsonrpc import UNSET

ROLLBACK: Final = "state/rollback"
STATE: Final = "state"
CHECKPOINT: Final = "checkpoint"
STATE_MIRROR: Final = "dev.comity/state"
CHECKPOINT_MIRROR: Final = "dev.comity/checkpoint"
"""In a request also where its state goes with it: so a server that has begun anew knows the parent
of what it leaves."""

LONGEST_NAME: Final = 256
MOST_OPERATIONS: Final = 10_000
_META: Final = "_meta"
_NULL: Final = b"null"
_MIRRORS: Final = (STATE_MIRROR, CHECKPOINT_MIRROR)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a call left behind. Without `data` or `patch` its server keeps the state itself."""

    name: str
    parent: str | None = None
    data: Raw | None = None
    patch: Raw | None = None

    @property
    def is_opaque(self) -> bool:
        return self.data is None and self.patch is None


@dataclass(frozen=True, slots=True)
class RolledBack:
    """How a rollback went."""

    checkpoint: str
    success: bool
    reason: str = ""


class _Checkpoint(Struct):
    checkpoint: str
    parent: str | None = None
    data: Raw | UnsetType = UNSET
    patch: Raw | UnsetType = UNSET


class _RolledBack(Struct):
    checkpoint: str
    success: bool
    reason: str | None = None


def state_in(result: Mapping[str, Raw]) -> Raw | None:
    """What the result of a call says of state, unread; None for nothing."""
    said = result.get(STATE)
    return _meta_of(result).get(STATE_MIRROR) if said is None else said


def checkpoint_in(result: Mapping[str, Raw]) -> Checkpoint | None:
    """What the result of a call says of state; None for nothing. Raises MalformedMessage."""
    state = state_in(result)
    return None if state is None else read(state)


def read(state: Raw) -> Checkpoint:
    """A checkpoint as a server says it. Raises MalformedMessage."""
    jsonrpc.value(state)
    try:
        found = msgspec.json.decode(state, type=_Checkpoint)
    except msgspec.DecodeError as problem:
        raise MalformedMessage(f"state: {problem}", UPSTREAM_FAILED) from None
    for name in (found.checkpoint, found.parent):
        if name is not None and not 0 < len(name) <= LONGEST_NAME:
            raise MalformedMessage("state names no checkpoint", UPSTREAM_FAILED)
    return Checkpoint(found.checkpoint, found.parent, _said(found.data), _said(found.patch))


def rolled_back_in(result: Raw) -> RolledBack:
    """Raises MalformedMessage."""
    try:
        found = msgspec.convert(jsonrpc.value(result), _RolledBack)
    except msgspec.ValidationError as problem:
        raise MalformedMessage(f"{ROLLBACK}: {problem}", UPSTREAM_FAILED) from None
    return RolledBack(found.checkpoint, found.success, (found.reason or "")[:1_000])


def rollback(feature: str, checkpoint: str) -> dict[str, Any]:
    return {"featureSet": feature, "checkpoint": checkpoint}


def bears_state(params: Mapping[str, Raw]) -> bool:
    """Whether a call comes with state already, which only its host may add."""
    if STATE in params or CHECKPOINT in params:
        return True
    meta = params.get(_META)
    # Most have none, and reading it costs more than looking.
    return meta is not None and any(name.encode() in bytes(meta) for name in _MIRRORS)


def with_state(params: Mapping[str, Raw], checkpoint: str, data: bytes | None) -> dict[str, Raw]:
    """A call's parameters with the state that there is, or the name of it alone. (§8.4)"""
    bare, name = without_state(params), jsonrpc.to_raw(checkpoint)
    meta = {**_meta_of(bare), CHECKPOINT_MIRROR: name}
    if data is None:
        return {**bare, CHECKPOINT: name, _META: jsonrpc.to_raw(meta)}
    meta[STATE_MIRROR] = Raw(data)
    return {**bare, STATE: Raw(data), _META: jsonrpc.to_raw(meta)}


def without_state(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """A call's parameters without any word of state."""
    return _without(params, (STATE, CHECKPOINT), _MIRRORS)


def result_without_state(result: Mapping[str, Raw]) -> dict[str, Raw]:
    """A call's result without the state that it left."""
    return _without(result, (STATE,), (STATE_MIRROR,))


def _without(
    said: Mapping[str, Raw], names: tuple[str, ...], mirrors: tuple[str, ...]
) -> dict[str, Raw]:
    bare = {name: each for name, each in said.items() if name not in names}
    meta = _meta_of(bare)
    if any(name in meta for name in mirrors):
        left = {name: each for name, each in meta.items() if name not in mirrors}
        bare[_META] = jsonrpc.to_raw(left)
    return bare


def _said(member: Raw | UnsetType) -> Raw | None:
    """Some write out what they leave out: no state is null, and no patch."""
    return None if member is UNSET or bytes(member).strip() == _NULL else member


def _meta_of(said: Mapping[str, Raw]) -> Mapping[str, Raw]:
    try:
        return jsonrpc.members(said[_META]) if _META in said else {}
    except MalformedMessage:
        return {}
