"""The state of a server's feature set, as calls carry it and bring it back. (MCPL §8)"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, UnsetType

from comity.wire import jsonrpc
from comity.wire.errors import UPSTREAM_FAILED, MalformedMessage
from comity.wire.jsonrpc import UNSET

ROLLBACK: Final = "state/rollback"
LONGEST_NAME: Final = 256
MOST_OPERATIONS: Final = 10_000


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


def checkpoint_in(result: Mapping[str, Raw]) -> Checkpoint | None:
    """What the result of a call says of state; None for nothing. Raises MalformedMessage."""
    state = result.get("state")
    if state is None:
        return None
    jsonrpc.value(state)
    try:
        found = msgspec.json.decode(state, type=_Checkpoint)
    except msgspec.DecodeError as problem:
        raise MalformedMessage(f"state: {problem}", UPSTREAM_FAILED) from None
    for name in (found.checkpoint, found.parent):
        if name is not None and not 0 < len(name) <= LONGEST_NAME:
            raise MalformedMessage("state names no checkpoint", UPSTREAM_FAILED)
    data = None if found.data is UNSET else found.data
    patch = None if found.patch is UNSET else found.patch
    return Checkpoint(found.checkpoint, found.parent, data, patch)


def rolled_back_in(result: Raw) -> RolledBack:
    """Raises MalformedMessage."""
    try:
        found = msgspec.convert(jsonrpc.value(result), _RolledBack)
    except msgspec.ValidationError as problem:
        raise MalformedMessage(f"{ROLLBACK}: {problem}", UPSTREAM_FAILED) from None
    return RolledBack(found.checkpoint, found.success, (found.reason or "")[:1_000])


def rollback(feature: str, checkpoint: str) -> dict[str, Any]:
    return {"featureSet": feature, "checkpoint": checkpoint}
