"""The state of a feature set's tools, which the host keeps or the server does. (MCPL §8)

Rule 1: each call begins with what the host brought. What a tool changed goes back as a new
        checkpoint whose parent is the one that it began with, so that a rollback makes a branch.
Rule 2: a tool that fails leaves nothing behind.
Rule 3: without MCPL the state lasts as long as the connection; where none lasts, it begins anew.
"""

import copy
import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import jsonpatch
from mcp import MCPError

from comity.wire import jsonrpc
from comity.wire.errors import CHECKPOINT_UNKNOWN, Misconfigured

MOST_KNOWN: Final = 1_000
"""Checkpoints of a feature set that are remembered by name."""


class CheckpointNotFound(MCPError):
    """The checkpoint was dropped, or never was: what a rollback to it gets. (§8.7)"""

    def __init__(self, checkpoint: str) -> None:
        data = {"checkpoint": checkpoint}
        super().__init__(CHECKPOINT_UNKNOWN.code, "Checkpoint not found", data)


class Checkpoints[T]:
    """What a server keeps of its own for rollbacks: the newest few, by name. (§8.7)"""

    def __init__(self, most: int = 100) -> None:
        self._most = most
        self._kept: OrderedDict[str, T] = OrderedDict()

    def keep(self, value: T, name: str | None = None) -> str:
        """Its name from now on."""
        named = name or new_checkpoint()
        self._kept[named] = value
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return named

    def __getitem__(self, name: str) -> T:
        """Raises CheckpointNotFound for what is not kept any more."""
        try:
            return self._kept[name]
        except KeyError:
            raise CheckpointNotFound(name) from None

    def __contains__(self, name: object) -> bool:
        return name in self._kept

    def __len__(self) -> int:
        return len(self._kept)


class Lineage:
    """Which checkpoints of one feature set hold what, as far as this process remembers."""

    def __init__(self) -> None:
        self._holds: OrderedDict[str, bytes] = OrderedDict()
        self._newest: dict[bytes, str] = {}

    def note(self, checkpoint: str, data: object) -> None:
        digest = _digest(data)
        self._holds[checkpoint] = digest
        self._holds.move_to_end(checkpoint)
        self._newest[digest] = checkpoint
        if len(self._holds) > MOST_KNOWN:
            dropped, digest = self._holds.popitem(last=False)
            if self._newest.get(digest) == dropped:
                del self._newest[digest]

    def returned(self, checkpoint: str) -> None:
        """The host rolled back to it: of those that hold the same, it is the one from now on."""
        digest = self._holds.get(checkpoint)
        if digest is not None:
            self._newest[digest] = checkpoint

    def holding(self, data: object) -> str | None:
        return self._newest.get(_digest(data))


class State:
    """What a tool finds and leaves. Change `data`, or name a checkpoint of your own with `mark`."""

    def __init__(self, data: Any, checkpoint: str | None, *, is_kept: bool) -> None:
        self.data: Any = data
        self.checkpoint = checkpoint
        self._before: Any = copy.deepcopy(data)
        # Whether the host had these data, so that a patch of them means something to it.
        self._is_kept = is_kept
        self._mark: str | None = None

    def mark(self, checkpoint: str | None = None) -> str:
        """Name a state that the server itself keeps; the host has no more than its name."""
        self._mark = checkpoint or new_checkpoint()
        return self._mark

    @property
    def has_changed(self) -> bool:
        return self._mark is not None or self._has_other_data

    @property
    def _has_other_data(self) -> bool:
        # As JSON has it: there true is not 1, whatever Python says.
        return _spelled(self.data) != _spelled(self._before)

    def told(self) -> dict[str, Any] | None:
        """What the result of a call says of it; None where nothing has changed. (§8.2, §8.3)"""
        if not self.has_changed:
            return None
        named = self._mark or new_checkpoint()
        told: dict[str, Any] = {"checkpoint": named, "parent": self.checkpoint}
        if not self._has_other_data:
            return told
        whole = jsonrpc.to_json(self.data)
        if self._is_kept and self.checkpoint is not None:
            patch = jsonpatch.make_patch(self._before, self.data).patch
            if len(jsonrpc.to_json(patch)) < len(whole):
                return {**told, "patch": patch}
        return {**told, "data": self.data}


class Keeper:
    """The state of one feature set: from a call's parameters to the member of its result."""

    def __init__(self, initial: object) -> None:
        self._initial = initial
        self.lineage = Lineage()
        self.is_opaque = False

    def opened(self, params: Mapping[str, Any]) -> State:
        """What the host brought with a call. (§8.4)"""
        named = params.get("checkpoint")
        checkpoint = named if isinstance(named, str) else None
        if "state" not in params:
            return State(copy.deepcopy(self._initial), checkpoint, is_kept=False)
        data = copy.deepcopy(params["state"])
        return State(data, checkpoint or self.lineage.holding(data), is_kept=True)

    def held(self, kept: object) -> State:
        """What a client that knows nothing of state has left on its connection, if anything."""
        data = self._initial if kept is None else kept
        return State(copy.deepcopy(data), None, is_kept=False)

    def closed(self, state: State) -> dict[str, Any] | None:
        told = state.told()
        if told is not None:
            if "data" in told or "patch" in told:
                self.lineage.note(told["checkpoint"], state.data)
            else:
                self.is_opaque = True
        return told


def new_checkpoint() -> str:
    return f"chk_{secrets.token_hex(8)}"


def _digest(data: object) -> bytes:
    return hashlib.sha256(_spelled(data).encode()).digest()


def _spelled(data: object) -> str:
    """One spelling for equal data, whatever the order of their members."""
    try:
        return json.dumps(data, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError):
        raise Misconfigured("the state of a feature set is JSON") from None
