"""Stores state for live servers, adds it to their calls and rolls it back."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec
from msgspec import Raw

from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.errors import (
    CHECKPOINT_UNKNOWN,
    FEATURE_NOT_ENABLED,
    POLICY_UNKNOWN,
    UPSTREAM_FAILED,
    MalformedMessage,
    Unavailable,
)
from comity.live.audit import LiveAuditEntry, record_entry
from comity.live.features import WHOLE, feature_of_tool
from comity.live.host import LiveServer
from comity.live.settings import StateSettings
from comity.live.state import model
from comity.live.state.model import (
    CheckpointNode,
    CheckpointRemoval,
    CheckpointTree,
    CurrentState,
    JsonPatcher,
    NewCheckpoint,
    RollbackResult,
    StateCheckpoint,
    StateForm,
    StateKey,
    StateStore,
    StateSummary,
)
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mcpl import FeatureUse
from comity.sessions.calls import Call
from comity.storage import values

log = logging.getLogger(__name__)

MAX_WRITE_ATTEMPTS: Final = 50
"""How often a write is retried. Each retry means that another writer changed the tree."""

MAX_REBUILT_BYTES: Final = 64 * 1024 * 1024
"""The limit for rebuilding stored states, so that they stay readable if the settings shrink."""

_MAX_INLINE_BYTES: Final = 8 * 1024
"""Patches below this size run on the event loop. Larger ones would block it."""


type Write = Callable[[], Awaitable[CheckpointNode | None]]
"""Writes a checkpoint. Returns None if its precondition no longer holds."""


_CHANGED: Final = replace(POLICY_UNKNOWN, error_type="state_changed")
"""The fault of a stale read. The operation starts over."""


class StateService:
    """Stores the state of all servers."""

    def __init__(
        self,
        store: StateStore,
        patcher: JsonPatcher,
        options: StateSettings,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._patcher = patcher
        self._settings = options
        self._clock = clock
        # One writer per set on this node avoids retries against other writers.
        self._locks: WeakValueDictionary[StateKey, asyncio.Lock] = WeakValueDictionary()

    # Reading.

    async def current(self, state_key: StateKey) -> CurrentState | None:
        return await self._store.current(state_key)

    async def tree(self, state_key: StateKey) -> CheckpointTree:
        return await self._store.tree(state_key)

    async def summaries(self) -> Sequence[StateSummary]:
        return await self._store.summaries()

    async def state_of(self, state_key: StateKey, node: CheckpointNode) -> bytes | None:
        """Return the full state at a checkpoint.

        None if opaque. Raises MalformedMessage if it is gone.
        """
        try:
            return await self._full_state(state_key, node)
        except Unavailable as error:
            if error.fault is not _CHANGED:
                raise
            raise _unknown_error(node.name) from None

    # Writing.

    async def keep(self, state_key: StateKey, checkpoint: StateCheckpoint) -> CheckpointNode:
        """Store the checkpoint that a call produced as the head. Raises MalformedMessage."""
        for name in (checkpoint.name, checkpoint.parent):
            if name is not None and not values.is_name(name):
                raise MalformedMessage("no checkpoint can have this name", UPSTREAM_FAILED)
        async with self._lock(state_key):
            node = await self._until_written(lambda: self._try_keep(state_key, checkpoint))
            every = max(1, self._settings.retention_policy.max_checkpoints // model.PRUNE_SLACK)
            if node.number % every == 0:
                await self._prune(state_key)
        return node

    async def roll_back(self, live_server: LiveServer, feature: str, name: str) -> RollbackResult:
        """Ask the server to roll back, and move the head if it does. (§8.5, §8.6)

        Raises MalformedMessage, with the server's own code if it sent one, or Unavailable.
        """
        place = StateKey(live_server.server, feature)
        if feature == WHOLE or not live_server.require(feature, FeatureUse.TOOLS).has_rollback:
            reason = f"server {live_server.server!r} did not declare that this can be rolled back"
            raise MalformedMessage(reason, FEATURE_NOT_ENABLED)
        node = await self._store.find(place, name)
        if node is None:
            raise _unknown_error(name)
        asked = model.build_rollback_params(feature, name)
        try:
            answer = await live_server.request(
                model.ROLLBACK, asked, self._settings.rollback_timeout
            )
        except MalformedMessage as error:
            if error.fault.code != CHECKPOINT_UNKNOWN.code:
                raise
            await self._store.mark_lost(place, node.number)
            raise MalformedMessage(str(error), CHECKPOINT_UNKNOWN) from None
        told = model.rolled_back_in(answer)
        if told.checkpoint != name:
            reason = f"server {live_server.server!r} answered for another checkpoint"
            raise MalformedMessage(reason, UPSTREAM_FAILED)
        if told.success:
            await self._follow_rollback(place, name)
        return told

    async def forget(self, state_key: StateKey) -> int:
        """Remove all checkpoints of a feature set and return how many."""
        async with self._lock(state_key):
            return await self._store.forget(state_key)

    async def prune_all(self) -> None:
        """Remove outdated checkpoints of all feature sets. Raises Unavailable."""
        for each in await self._store.summaries():
            async with self._lock(each.state_key):
                await self._prune(each.state_key)

    # Internals.

    def _lock(self, state_key: StateKey) -> asyncio.Lock:
        return self._locks.setdefault(state_key, asyncio.Lock())

    async def _until_written(self, write: Write) -> CheckpointNode:
        for _ in range(MAX_WRITE_ATTEMPTS):
            try:
                written = await write()
            except Unavailable as error:
                if error.fault is not _CHANGED:
                    raise
                written = None
            if written is not None:
                return written
        raise Unavailable("too many change this state at once", POLICY_UNKNOWN)

    async def _try_keep(
        self, state_key: StateKey, checkpoint: StateCheckpoint
    ) -> CheckpointNode | None:
        known = await self._store.find(state_key, checkpoint.name)
        if known is not None and checkpoint.is_opaque:
            return await self._move_head(state_key, known)
        base = await self._base(state_key, checkpoint, known)
        state, why = await self._state(state_key, checkpoint, base)
        if (
            known is not None
            and state is not None
            and state == await self._full_state(state_key, known)
        ):
            return await self._move_head(state_key, known)
        if base is known:
            # The new checkpoint replaces its own base, so it has to be stored in full.
            base = None
        patch = (
            None
            if checkpoint.data is not None or checkpoint.patch is None
            else bytes(checkpoint.patch)
        )
        form, line = model.form_of(state, patch, base)
        number = None if base is None else base.number
        new = NewCheckpoint(
            checkpoint.name, self._clock(), checkpoint.parent, number, form, line, state, patch, why
        )
        instead = (
            None
            if known is None
            else await self._build_removal(state_key, frozenset({known.number}))
        )
        return await self._store.add(state_key, new, instead)

    async def _base(
        self, state_key: StateKey, checkpoint: StateCheckpoint, known: CheckpointNode | None
    ) -> CheckpointNode | None:
        if checkpoint.parent is None:
            return None
        return (
            known
            if checkpoint.parent == checkpoint.name
            else await self._store.find(state_key, checkpoint.parent)
        )

    async def _state(
        self, state_key: StateKey, checkpoint: StateCheckpoint, base: CheckpointNode | None
    ) -> tuple[bytes | None, str]:
        """Return the full state of a checkpoint, or the reason why Comity cannot know it."""
        most = self._settings.max_bytes
        if checkpoint.data is not None:
            data = bytes(checkpoint.data)
            return (data, "") if len(data) <= most else (None, f"longer than {most} bytes")
        if checkpoint.patch is None:
            return None, ""
        if base is None:
            return None, "its parent is not stored"
        before = await self._full_state(state_key, base)
        if before is None:
            return None, "its parent has no state here"
        try:
            return await self._apply_patches(before, [bytes(checkpoint.patch)], most), ""
        except MalformedMessage as error:
            return None, str(error)

    async def _move_head(self, state_key: StateKey, node: CheckpointNode) -> CheckpointNode | None:
        state = await self._full_state(state_key, node)
        moved = await self._store.move(state_key, node.number, state, self._clock())
        return node if moved else None

    async def _follow_rollback(self, state_key: StateKey, name: str) -> None:
        """Move the head after a rollback.

        Add the checkpoint by name if it was deleted meanwhile.
        """

        async def follow() -> CheckpointNode | None:
            node = await self._store.find(state_key, name)
            if node is not None:
                return await self._move_head(state_key, node)
            return await self._store.add(state_key, NewCheckpoint(name, self._clock()))

        async with self._lock(state_key):
            await self._until_written(follow)

    async def _full_state(self, state_key: StateKey, node: CheckpointNode) -> bytes | None:
        if node.form is StateForm.OPAQUE:
            return None
        line = await self._store.read_chain(state_key, node.number)
        if not line:
            raise _changed_error()
        return (
            line[0]
            if len(line) == 1
            else await self._apply_patches(line[0], line[1:], MAX_REBUILT_BYTES)
        )

    async def _apply_patches(self, data: bytes, patches: Sequence[bytes], maximum: int) -> bytes:
        if len(data) + sum(map(len, patches)) < _MAX_INLINE_BYTES:
            return self._patcher.apply(data, patches, maximum)
        return await asyncio.to_thread(self._patcher.apply, data, patches, maximum)

    async def _build_removal(
        self, state_key: StateKey, numbers: frozenset[int], tree: CheckpointTree | None = None
    ) -> CheckpointRemoval:
        """Return the removal of these checkpoints. Patches of them are stored in full."""
        tree = await self._store.tree(state_key) if tree is None else tree
        if not numbers <= tree.nodes.keys():
            raise _changed_error()
        whole: dict[int, bytes] = {}
        for each in model.patches_of_dropped(tree, numbers):
            whole[each.number] = await self._full_state(state_key, each) or b"null"
        return CheckpointRemoval(tree.revision, numbers, whole)

    async def _prune(self, state_key: StateKey) -> None:
        try:
            tree = await self._store.tree(state_key)
            late = model.find_outdated(tree, self._settings.retention_policy, self._clock())
            if late and await self._store.drop(
                state_key, await self._build_removal(state_key, late, tree)
            ):
                log.info("server %r: %d checkpoints are dropped", state_key.server, len(late))
        except Unavailable as error:
            # Pruning can wait: the only effect is that outdated checkpoints stay longer.
            log.info("server %r: old checkpoints could not be dropped: %s", state_key.server, error)


def _changed_error() -> Unavailable:
    return Unavailable("this state has changed meanwhile", _CHANGED)


def _unknown_error(name: str) -> MalformedMessage:
    return MalformedMessage(f"checkpoint {name!r:.300} is not stored", CHECKPOINT_UNKNOWN)


PATIENCE_SECONDS: Final = 15.0
"""How long a result waits for a store that does not respond."""

_RETRY_SECONDS: Final = 0.25

type Definition = Callable[[str, str], bytes | None]
"""Returns the definition of a server's tool. None if the server never listed it."""


class StateInterceptor:
    """Adds state to calls and stores the state in their results."""

    def __init__(
        self, states: StateService, audit: AuditLog | None, definition_of: Definition
    ) -> None:
        self._states = states
        self._audit = audit
        self._definition_of = definition_of
        # The owner of the state for each active call. It is decided once, before the call leaves.
        self._state_keys: WeakKeyDictionary[Call, tuple[StateKey, str]] = WeakKeyDictionary()

    def has_data_for(self, live_server: LiveServer, call: Call, frame: Frame) -> bool:
        tool = jsonrpc.decode_text(frame.parameters.get("name")) or ""
        place = self._state_key(live_server, tool)
        if place is None:
            self._state_keys.pop(call, None)
            return model.has_state(frame.parameters)
        self._state_keys[call] = (place, tool)
        return True

    async def add_data(self, live_server: LiveServer, call: Call, frame: Frame) -> Frame:
        of = self._state_keys.get(call)
        current = None if of is None else await self._states.current(of[0])
        if current is not None:
            params = model.with_state(frame.parameters, current.name, current.data)
        elif model.has_state(frame.parameters):
            params = model.without_state(frame.parameters)
        else:
            return frame
        return jsonrpc.with_params(frame, jsonrpc.to_raw(params))

    async def take_data(self, live_server: LiveServer, call: Call, frame: Frame) -> Frame:
        of = self._state_keys.pop(call, None)
        result = _members(frame)
        said = model.state_in(result)
        if said is None:
            return frame
        if of is not None:
            await self._keep(of, said, call)
            bare = model.result_without_state(result)
        else:
            bare = model.result_without_mirror(result)
            if bare == result:
                return frame
        return msgspec.structs.replace(frame, result=jsonrpc.to_raw(bare))

    def _state_key(self, live_server: LiveServer, tool: str) -> StateKey | None:
        """Return the owner of the state for calls of a tool. None if the tool may have no state."""
        definition = self._definition_of(live_server.server, tool)
        feature = feature_of_tool(definition, live_server.declared.sets)
        is_let = (
            bool(live_server.feature_sets_for(FeatureUse.TOOLS))
            if feature == WHOLE
            else feature in live_server.enabled
        )
        return StateKey(live_server.server, feature) if is_let else None

    async def _keep(self, of: tuple[StateKey, str], said: Raw, call: Call) -> None:
        place, tool = of
        deed = LiveAuditEntry(
            place.server, "tools/call", place.feature, tool=tool, trace=call.ensure_trace_id()
        )
        try:
            checkpoint = model.decode_checkpoint(said)
            node = await self._keep_with_retries(place, checkpoint)
        except MalformedMessage as error:
            log.warning("server %r: its state was not stored: %s", place.server, error)
            details = {"reason": str(error)[:200]}
            record_entry(
                self._audit,
                AuditType.STATE_DROPPED,
                replace(deed, details=details),
                AuditResult.FAILURE,
                is_limited=True,
            )
            return
        self._record_audit(deed, checkpoint, node)

    async def _keep_with_retries(
        self, state_key: StateKey, checkpoint: StateCheckpoint
    ) -> CheckpointNode:
        until = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            try:
                return await self._states.keep(state_key, checkpoint)
            except Unavailable as error:
                if asyncio.get_running_loop().time() > until:
                    reason = f"the tool ran, but its state was not stored: {error}"
                    # A retry would run the tool a second time.
                    raise Unavailable(reason, replace(error.fault, retryable=False)) from None
                await asyncio.sleep(_RETRY_SECONDS)

    def _record_audit(
        self, entry: LiveAuditEntry, checkpoint: StateCheckpoint, node: CheckpointNode
    ) -> None:
        details: dict[str, object] = {
            "checkpoint": node.name,
            "parent": checkpoint.parent,
            "stored_as": node.form,
            "bytes": node.size,
        }
        if checkpoint.data is not None and checkpoint.patch is not None:
            details["warning"] = "data and a patch at once; the data counts"
            log.warning("server %r: %s", entry.server, details["warning"])
        if node.why:
            details["reason"] = node.why
            log.warning("server %r: its state was not stored: %s", entry.server, node.why)
            record_entry(
                self._audit,
                AuditType.STATE_DROPPED,
                replace(entry, details=details),
                AuditResult.FAILURE,
                is_limited=True,
            )
        else:
            record_entry(
                self._audit,
                AuditType.STATE_STORED,
                replace(entry, details=details),
                is_limited=True,
            )


def _members(frame: Frame) -> dict[str, Raw]:
    try:
        return {} if frame.result is UNSET else jsonrpc.decode_members(frame.result)
    except MalformedMessage:
        return {}
