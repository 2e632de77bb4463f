"""Operator API for the state of live servers: its tree, rollback and deletion."""

from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal, NotRequired, Protocol, TypedDict

from msgspec import Raw

from comity.audit.events import AuditResult, AuditType
from comity.errors import (
    CHECKPOINT_UNKNOWN,
    NOTHING_HERE,
    SERVER_NOT_READY,
    MalformedMessage,
    Unavailable,
)
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import (
    EmptyBody,
    EmptyQuery,
    NonEmptyText,
    RequestBody,
)
from comity.live.audit import LiveAuditEntry, record_entry
from comity.live.features import WHOLE
from comity.live.host import LiveHost
from comity.live.state.model import (
    ROLLBACK,
    CheckpointNode,
    CheckpointTree,
    StateForm,
    StateKey,
    StateSummary,
    ancestors,
)
from comity.live.state.service import StateService
from comity.mcp.actors import ADMIN_READ, Actor

AS_A_WHOLE: Final = "*"
"""The name of the whole server in a path. No feature set has this name."""


class StateAuthorizer(Protocol):
    """Checks what an actor may administer."""

    def require_grant(self, actor: Actor, verb: str, target: str) -> None: ...


class RollbackBody(RequestBody, frozen=True):
    """The checkpoint to roll back to."""

    checkpoint: NonEmptyText


class StateKeyView(TypedDict):
    """The owner of a state: a feature set, or the whole server."""

    server: str
    feature_set: str | None


class StateSummaryView(StateKeyView):
    """The state of one feature set in a list."""

    head: str | None
    holds: Literal["reference", "data"]
    checkpoints: int
    bytes: int
    moved_at: datetime


class StateListView(TypedDict):
    """The states that the principal may administer."""

    state: list[StateSummaryView]


class CheckpointView(TypedDict):
    """A checkpoint. `parent` is what the server named, `follows` is the one that Comity keeps."""

    checkpoint: str
    parent: str | None
    follows: str | None
    holds: Literal["reference", "data"]
    stored_as: StateForm
    bytes: int
    at: datetime
    is_current: bool
    drop_reason: str | None
    is_lost: bool


class TreeNodeView(CheckpointView):
    """A checkpoint in its tree. `is_on_line` is whether the current one follows from it."""

    is_on_line: bool


class StateTreeView(StateKeyView):
    """The checkpoints of a state as a tree."""

    head: str | None
    can_roll_back: bool
    checkpoints: list[TreeNodeView]


class CheckpointDetailView(StateKeyView, CheckpointView):
    """A checkpoint and its data, if Comity holds the data."""

    data: NotRequired[Raw]


class RollbackView(StateKeyView):
    """The outcome of a rollback."""

    checkpoint: str
    success: bool
    reason: str | None
    code: NotRequired[int]


class DeletedStateView(StateKeyView):
    """How many checkpoints were deleted."""

    dropped: int


class StateApi:
    """Shows the state of servers to operators, rolls it back and deletes it."""

    def __init__(self, states: StateService, live_host: LiveHost, grants: StateAuthorizer) -> None:
        self._states = states
        self._live_host = live_host
        self._grants = grants

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.SERVER_READ, Permission.SERVER_WRITE
        one = "/api/state/{server}/{feature}"
        return (
            ApiRoute("GET", "/api/state", Permission.OWN_RECORDS, self._list_states, EmptyQuery),
            ApiRoute("GET", one, read, self._show_tree, EmptyQuery),
            ApiRoute("GET", one + "/{checkpoint}", read, self._show_checkpoint, EmptyQuery),
            ApiRoute("POST", f"{one}/rollback", write, self._roll_back, RollbackBody),
            ApiRoute("POST", f"{one}/delete", write, self._forget, EmptyBody),
        )

    async def _list_states(self, request: ApiRequest[EmptyQuery]) -> StateListView:
        """List the state of each server that the principal may administer."""
        every = await self._states.summaries()
        found = [each for each in every if self._may_see(request.actor, each)]
        return {"state": [_summary_view(each) for each in found]}

    def _may_see(self, actor: Actor, summary: StateSummary) -> bool:
        try:
            self._grants.require_grant(actor, ADMIN_READ, f"{summary.state_key.server}/*")
        except MalformedMessage:
            return False
        return True

    async def _show_tree(self, request: ApiRequest[EmptyQuery]) -> StateTreeView:
        place = _state_key(request)
        tree = await self._states.tree(place)
        if not tree.nodes:
            raise MalformedMessage("there is no state of this feature set", NOTHING_HERE)
        head = None if tree.head is None else tree.nodes[tree.head].name
        line = {each.number for each in ancestors(tree, tree.head)}
        return {
            **_state_key_view(place),
            "head": head,
            "can_roll_back": self._can_roll_back(place),
            "checkpoints": [
                {**_node_view(tree, each), "is_on_line": number in line}
                for number, each in sorted(tree.nodes.items())
            ],
        }

    async def _show_checkpoint(self, request: ApiRequest[EmptyQuery]) -> CheckpointDetailView:
        place, name = _state_key(request), request.path["checkpoint"]
        tree = await self._states.tree(place)
        node = tree.find(name)
        if node is None:
            raise MalformedMessage(f"there is no checkpoint {name!r:.300}", NOTHING_HERE)
        state = await self._states.state_of(place, node)
        found: CheckpointDetailView = {**_state_key_view(place), **_node_view(tree, node)}
        return found if state is None else {**found, "data": Raw(state)}

    async def _roll_back(self, request: ApiRequest[RollbackBody]) -> RollbackView:
        place, name = _state_key(request), request.input.checkpoint
        by = self._live_host.get(place.server)
        if by is None:
            reason = f"server {place.server!r:.200} is not there, or has no state"
            raise Unavailable(reason, SERVER_NOT_READY)
        deed = LiveAuditEntry(place.server, ROLLBACK, place.feature, by=request.actor.party)
        view: RollbackView = {
            **_state_key_view(place),
            "checkpoint": name,
            "success": False,
            "reason": None,
        }
        try:
            told = await self._states.roll_back(by, place.feature, name)
        except (MalformedMessage, Unavailable) as error:
            self._record_rollback(deed, name, error.fault.error_type, AuditResult.FAILURE)
            if error.fault is not CHECKPOINT_UNKNOWN:
                raise
            return {**view, "code": error.fault.code, "reason": str(error)}
        outcome = "ok" if told.success else "refused"
        self._record_rollback(
            deed, name, outcome, AuditResult.SUCCESS if told.success else AuditResult.FAILURE
        )
        return {**view, "success": told.success, "reason": told.reason or None}

    async def _forget(self, request: ApiRequest[EmptyBody]) -> DeletedStateView:
        place = _state_key(request)
        gone = await self._states.forget(place)
        deed = LiveAuditEntry(place.server, "", place.feature, by=request.actor.party)
        record_entry(
            self._live_host.audit,
            AuditType.STATE_DELETED,
            replace(deed, details={"dropped": gone}),
        )
        return {**_state_key_view(place), "dropped": gone}

    def _record_rollback(
        self, entry: LiveAuditEntry, checkpoint: str, outcome: str, result: AuditResult
    ) -> None:
        done = replace(entry, outcome=outcome, details={"checkpoint": checkpoint})
        record_entry(self._live_host.audit, AuditType.STATE_ROLLED_BACK, done, result)

    def _can_roll_back(self, state_key: StateKey) -> bool:
        by = self._live_host.get(state_key.server)
        declared = None if by is None else by.declared.sets.get(state_key.feature)
        is_enabled = by is not None and state_key.feature in by.enabled
        return declared is not None and is_enabled and declared.has_rollback


def _state_key(request: ApiRequest[Any]) -> StateKey:
    feature = request.path["feature"]
    return StateKey(request.path["server"], WHOLE if feature == AS_A_WHOLE else feature)


def _state_key_view(state_key: StateKey) -> StateKeyView:
    return {"server": state_key.server, "feature_set": state_key.feature or None}


def _summary_view(summary: StateSummary) -> StateSummaryView:
    return {
        **_state_key_view(summary.state_key),
        "head": summary.head,
        "holds": "reference" if summary.is_opaque else "data",
        "checkpoints": summary.checkpoints,
        "bytes": summary.size,
        "moved_at": summary.moved_at,
    }


def _node_view(tree: CheckpointTree, node: CheckpointNode) -> CheckpointView:
    follows = None if node.base is None else tree.nodes.get(node.base)
    return {
        "checkpoint": node.name,
        # The parent that the server named, and below it that parent if Comity keeps it.
        "parent": node.parent,
        "follows": None if follows is None else follows.name,
        "holds": "reference" if node.form is StateForm.OPAQUE else "data",
        "stored_as": node.form,
        "bytes": node.size,
        "at": node.at,
        "is_current": node.number == tree.head,
        "drop_reason": node.why or None,
        "is_lost": node.is_lost,
    }
