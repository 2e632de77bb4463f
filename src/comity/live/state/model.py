"""Checkpoints of server state: their wire format, their tree and their retention."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Raw, Struct, UnsetType

from comity.errors import UPSTREAM_FAILED, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import UNSET
from comity.mcp.mcpl import STATE_MIRROR

ROLLBACK: Final = "state/rollback"
STATE: Final = "state"
CHECKPOINT: Final = "checkpoint"
CHECKPOINT_MIRROR: Final = "dev.comity/checkpoint"
"""Sent in requests that carry the state, too.

It tells a restarted server the parent of the next checkpoint.
"""

MAX_NAME_LENGTH: Final = 256
MAX_OPERATIONS: Final = 10_000
_META: Final = "_meta"
_NULL: Final = b"null"
_MIRRORS: Final = (STATE_MIRROR, CHECKPOINT_MIRROR)


@dataclass(frozen=True, slots=True)
class StateCheckpoint:
    """A checkpoint that a call produced.

    Without `data` or `patch` the server keeps the state itself.
    """

    name: str
    parent: str | None = None
    data: Raw | None = None
    patch: Raw | None = None

    @property
    def is_opaque(self) -> bool:
        return self.data is None and self.patch is None


@dataclass(frozen=True, slots=True)
class RollbackResult:
    """The result of a rollback."""

    checkpoint: str
    success: bool
    reason: str = ""


class _CheckpointParams(Struct):
    checkpoint: str
    parent: str | None = None
    data: Raw | UnsetType = UNSET
    patch: Raw | UnsetType = UNSET


class _RolledBack(Struct):
    checkpoint: str
    success: bool
    reason: str | None = None


def state_in(result: Mapping[str, Raw]) -> Raw | None:
    """Return the undecoded state in the result of a call, or None."""
    said = result.get(STATE)
    return _meta_of(result).get(STATE_MIRROR) if said is None else said


def checkpoint_in(result: Mapping[str, Raw]) -> StateCheckpoint | None:
    """Return the checkpoint in the result of a call, or None. Raises MalformedMessage."""
    state = state_in(result)
    return None if state is None else decode_checkpoint(state)


def decode_checkpoint(state: Raw) -> StateCheckpoint:
    """Decode a checkpoint from a server. Raises MalformedMessage."""
    jsonrpc.decode_value(state)
    try:
        found = msgspec.json.decode(state, type=_CheckpointParams)
    except msgspec.DecodeError as problem:
        raise MalformedMessage(f"state: {problem}", UPSTREAM_FAILED) from None
    for name in (found.checkpoint, found.parent):
        if name is not None and not 0 < len(name) <= MAX_NAME_LENGTH:
            raise MalformedMessage("state names no checkpoint", UPSTREAM_FAILED)
    return StateCheckpoint(
        found.checkpoint, found.parent, _present(found.data), _present(found.patch)
    )


def rolled_back_in(result: Raw) -> RollbackResult:
    """Decode the answer to `state/rollback`. Raises MalformedMessage."""
    try:
        found = msgspec.convert(jsonrpc.decode_value(result), _RolledBack)
    except msgspec.ValidationError as problem:
        raise MalformedMessage(f"{ROLLBACK}: {problem}", UPSTREAM_FAILED) from None
    return RollbackResult(found.checkpoint, found.success, (found.reason or "")[:1_000])


def build_rollback_params(feature: str, checkpoint: str) -> dict[str, Any]:
    return {"featureSet": feature, "checkpoint": checkpoint}


def has_state(params: Mapping[str, Raw]) -> bool:
    """Whether a call already contains state, which only its host may add."""
    if STATE in params or CHECKPOINT in params:
        return True
    meta = params.get(_META)
    # Most calls have none, and a substring search is cheaper than decoding.
    return meta is not None and any(name.encode() in bytes(meta) for name in _MIRRORS)


def with_state(params: Mapping[str, Raw], checkpoint: str, data: bytes | None) -> dict[str, Raw]:
    """Return the parameters with the current state, or only with its checkpoint name. (§8.4)"""
    bare, name = without_state(params), jsonrpc.to_raw(checkpoint)
    meta = {**_meta_of(bare), CHECKPOINT_MIRROR: name}
    if data is None:
        return {**bare, CHECKPOINT: name, _META: jsonrpc.to_raw(meta)}
    meta[STATE_MIRROR] = Raw(data)
    return {**bare, STATE: Raw(data), _META: jsonrpc.to_raw(meta)}


def without_state(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the parameters without any state."""
    return _without(params, (STATE, CHECKPOINT), _MIRRORS)


def result_without_mirror(result: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return a result without the key that only Comity and its servers exchange."""
    return _without(result, (), (STATE_MIRROR,))


def result_without_state(result: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the result of a call without its state."""
    return _without(result, (STATE,), (STATE_MIRROR,))


def _without(
    fields: Mapping[str, Raw], names: tuple[str, ...], mirrors: tuple[str, ...]
) -> dict[str, Raw]:
    bare = {name: each for name, each in fields.items() if name not in names}
    meta = _meta_of(bare)
    if any(name in meta for name in mirrors):
        left = {name: each for name, each in meta.items() if name not in mirrors}
        bare[_META] = jsonrpc.to_raw(left)
    return bare


def _present(member: Raw | UnsetType) -> Raw | None:
    """Treat an explicit null as absent, because some servers write out empty members."""
    return None if member is UNSET or bytes(member).strip() == _NULL else member


def _meta_of(fields: Mapping[str, Raw]) -> Mapping[str, Raw]:
    try:
        return jsonrpc.decode_members(fields[_META]) if _META in fields else {}
    except MalformedMessage:
        return {}


class StateForm(StrEnum):
    """How the state of a checkpoint is stored. `opaque` means that only the server has it."""

    DATA = "data"
    PATCH = "patch"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class CheckpointNode:
    """A checkpoint without its state.

    `parent` is the predecessor that the server named. `base` is the number of that checkpoint, or
    None if Comity does not keep it. `line` is the number of patches between this checkpoint and
    full data. `why` says why a state was not kept (D-67). `is_lost` says that the server no longer
    knows the checkpoint (§8.7).
    """

    number: int
    name: str
    at: datetime
    parent: str | None = None
    base: int | None = None
    form: StateForm = StateForm.OPAQUE
    line: int = 0
    size: int = 0
    why: str = ""
    is_lost: bool = False


_NO_NODES: Final[Mapping[int, CheckpointNode]] = {}


@dataclass(frozen=True, slots=True)
class CheckpointTree:
    """All checkpoints of a feature set. Each change gives the tree a new `revision`."""

    revision: int = 0
    head: int | None = None
    nodes: Mapping[int, CheckpointNode] = field(default_factory=lambda: _NO_NODES)

    def find(self, name: str | None) -> CheckpointNode | None:
        return next((each for each in self.nodes.values() if each.name == name), None)


MAX_PATCH_CHAIN: Final = 32
"""The maximum number of patches between a state and full data."""

PRUNE_SLACK: Final = 8
"""A tree may exceed its limit by one part in this many, because deletion costs more than a row."""


@dataclass(frozen=True, slots=True)
class StateRetention:
    """How many checkpoints a feature set keeps, and for how long. None means no time limit."""

    max_checkpoints: int = 100
    max_age: timedelta | None = None


def form_of(
    state: bytes | None, patch: bytes | None, base: CheckpointNode | None
) -> tuple[StateForm, int]:
    """Return how to store a state, and its number of patches from full data.

    A patch is stored only if it is shorter than the state and its line of patches is not too long.
    """
    if state is None:
        return StateForm.OPAQUE, 0
    if patch is None or base is None or len(patch) >= len(state) or base.line >= MAX_PATCH_CHAIN:
        return StateForm.DATA, 0
    return StateForm.PATCH, base.line + 1


def find_outdated(tree: CheckpointTree, retention: StateRetention, now: datetime) -> frozenset[int]:
    """Return the numbers of the checkpoints to delete now. The head is never one of them."""
    numbers = sorted(tree.nodes)
    late: set[int] = set()
    if len(numbers) > retention.max_checkpoints + retention.max_checkpoints // PRUNE_SLACK:
        late.update(numbers[: len(numbers) - retention.max_checkpoints])
    if retention.max_age is not None:
        since = now - retention.max_age
        late.update(number for number in numbers if tree.nodes[number].at < since)
    return frozenset(late - {tree.head})


def patches_of_dropped(tree: CheckpointTree, dropped: Collection[int]) -> list[CheckpointNode]:
    """Return the remaining checkpoints that are patches of a deleted one."""
    return [
        each
        for number, each in sorted(tree.nodes.items())
        if each.form is StateForm.PATCH and each.base in dropped and number not in dropped
    ]


def ancestors(tree: CheckpointTree, number: int | None) -> Iterator[CheckpointNode]:
    """Yield a checkpoint and its predecessors, as far as they are kept."""
    while number is not None and number in tree.nodes:
        yield tree.nodes[number]
        number = tree.nodes[number].base


class StateKey(NamedTuple):
    """The owner of a state: a feature set, or the whole server if `feature` is empty."""

    server: str
    feature: str


@dataclass(frozen=True, slots=True)
class CurrentState:
    """The head checkpoint, and its state if Comity knows it."""

    number: int
    name: str
    data: bytes | None


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    """A checkpoint to add to a tree as its new head.

    `state` is the full state, or None if only the server has it. `patch` leads there from `base`.
    `form` says whether the patch is stored in place of the full state.
    """

    name: str
    at: datetime
    parent: str | None = None
    base: int | None = None
    form: StateForm = StateForm.OPAQUE
    line: int = 0
    state: bytes | None = None
    patch: bytes | None = None
    why: str = ""

    @property
    def content(self) -> bytes | None:
        return self.patch if self.form is StateForm.PATCH else self.state


@dataclass(frozen=True, slots=True)
class CheckpointRemoval:
    """The checkpoints to remove from a tree of this revision.

    `whole` holds the full states of the checkpoints that were patches of a removed one.
    """

    revision: int
    numbers: Collection[int]
    whole: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class StateSummary:
    """The size and head of one feature set's state, for operators."""

    state_key: StateKey
    head: str | None
    is_opaque: bool
    checkpoints: int
    size: int
    moved_at: datetime


class StateStore(Protocol):
    """Stores trees of checkpoints, each with its head."""

    async def current(self, state_key: StateKey) -> CurrentState | None: ...

    async def find(self, state_key: StateKey, name: str) -> CheckpointNode | None: ...

    async def tree(self, state_key: StateKey) -> CheckpointTree:
        """Return the tree without the states. It is empty if there is none."""
        ...

    async def read_chain(self, state_key: StateKey, number: int) -> Sequence[bytes]:
        """Return the data and the patches that lead to this checkpoint. Empty for an opaque one."""
        ...

    async def add(
        self, state_key: StateKey, new: NewCheckpoint, instead: CheckpointRemoval | None = None
    ) -> CheckpointNode | None:
        """Add a checkpoint as the head.

        Return None if its base is gone or its name is taken. `instead` names checkpoints to remove
        in the same transaction, such as one with the same name.
        """
        ...

    async def move(
        self, state_key: StateKey, number: int, state: bytes | None, at: datetime
    ) -> bool:
        """Make a checkpoint with this state the head.

        Return whether the checkpoint still exists.
        """
        ...

    async def drop(self, state_key: StateKey, dropped: CheckpointRemoval) -> bool:
        """Remove checkpoints. Return whether the tree still had the expected revision."""
        ...

    async def mark_lost(self, state_key: StateKey, number: int) -> None:
        """Mark a checkpoint that its server no longer knows."""
        ...

    async def forget(self, state_key: StateKey) -> int:
        """Remove all checkpoints and return how many. Their numbers are never used again."""
        ...

    async def summaries(self) -> Sequence[StateSummary]:
        """Return every feature set that has a checkpoint, by server and name."""
        ...


class JsonPatcher(Protocol):
    """Applies untrusted JSON patches within limits. (RFC 6902)"""

    def apply(self, data: bytes, patches: Sequence[bytes], maximum: int) -> bytes:
        """Apply all patches or none, and return the result.

        Raises MalformedMessage if a patch fails or the result is longer than `most` bytes.
        """
        ...
