"""State that servers left, at /api/state: its trees, what stands in them, and the way back.

Whoever administers a server may do so with its state: reading it needs `admin/read` over the
server, for what is in it may be anybody's; rolling it back and dropping it need `admin/write`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol

from msgspec import Raw

from comity.kernel.live.hosting import Hosting
from comity.kernel.live.noting import Deed
from comity.kernel.live.states import States
from comity.ports.states import Place, Summary
from comity.rules.claims import refuse_claims
from comity.rules.features_of_tools import WHOLE
from comity.rules.states import line_to
from comity.surfaces.asked import Asked, Room, View
from comity.wire.audit import Result, Type
from comity.wire.checkpoints import ROLLBACK
from comity.wire.errors import (
    CHECKPOINT_UNKNOWN,
    INVALID_PARAMS,
    NOTHING_HERE,
    SERVER_NOT_READY,
    MalformedMessage,
    Unavailable,
)
from comity.wire.grants import ADMIN_READ, ADMIN_WRITE
from comity.wire.parties import Actor
from comity.wire.state_trees import Form, Node, Tree

AS_A_WHOLE: Final = "*"
"""How an address names the server as a whole; no feature set is called that."""


class Demands(Protocol):
    """Who knows what an actor may administer."""

    def demand(self, actor: Actor, verb: str, target: str) -> None: ...


class StateApi:
    """What operators see of state, and decide about it."""

    def __init__(self, states: States, hosting: Hosting, grants: Demands) -> None:
        self._states = states
        self._hosting = hosting
        self._grants = grants

    @property
    def rooms(self) -> dict[str, Room]:
        return {"state": self.state}

    async def state(self, asked: Asked) -> View:
        refuse_claims(asked.body, asked.actor.party)
        match asked.method, asked.place:
            case "GET", ():
                return await self._list(asked.actor)
            case "GET", (server, feature):
                return await self._tree(self._place(asked, server, feature))
            case "GET", (server, feature, checkpoint):
                return await self._one(self._place(asked, server, feature), checkpoint)
            case "POST", (server, feature, "rollback"):
                place = self._place(asked, server, feature)
                return await self._roll_back(asked, place, _text(asked.body, "checkpoint"))
            case "POST", (server, feature, "forget"):
                return await self._forget(asked, self._place(asked, server, feature))
            case _:
                raise MalformedMessage("there is no such address under /api/state", NOTHING_HERE)

    def _place(self, asked: Asked, server: str, feature: str) -> Place:
        verb = ADMIN_READ if asked.method == "GET" else ADMIN_WRITE
        self._grants.demand(asked.actor, verb, f"{server}/*")
        return Place(server, WHOLE if feature == AS_A_WHOLE else feature)

    async def _list(self, actor: Actor) -> View:
        found = [each for each in await self._states.summaries() if self._may_see(actor, each)]
        return {"state": [_summary_view(each) for each in found]}

    def _may_see(self, actor: Actor, summary: Summary) -> bool:
        try:
            self._grants.demand(actor, ADMIN_READ, f"{summary.place.server}/*")
        except MalformedMessage:
            return False
        return True

    async def _tree(self, place: Place) -> View:
        tree = await self._states.tree(place)
        if not tree.nodes:
            raise MalformedMessage("no state is kept of this feature set", NOTHING_HERE)
        head = None if tree.head is None else tree.nodes[tree.head].name
        line = {each.number for each in line_to(tree, tree.head)}
        return {
            **_place_view(place),
            "head": head,
            "can_roll_back": self._can_roll_back(place),
            "checkpoints": [
                {**_node_view(tree, each), "is_on_line": number in line}
                for number, each in sorted(tree.nodes.items())
            ],
        }

    async def _one(self, place: Place, name: str) -> View:
        tree = await self._states.tree(place)
        node = tree.named(name)
        if node is None:
            raise MalformedMessage(f"there is no checkpoint {name!r:.300}", NOTHING_HERE)
        state = await self._states.state_of(place, node)
        shown = {} if state is None else {"data": Raw(state)}
        return {**_place_view(place), **_node_view(tree, node), **shown}

    async def _roll_back(self, asked: Asked, place: Place, name: str) -> View:
        by = self._hosting.get(place.server)
        if by is None:
            because = f"server {place.server!r:.200} is not there, or has no state"
            raise Unavailable(because, SERVER_NOT_READY)
        deed = Deed(place.server, ROLLBACK, place.feature, by=asked.actor.party)
        view: dict[str, object] = {**_place_view(place), "checkpoint": name}
        try:
            told = await self._states.roll_back(by, place.feature, name)
        except (MalformedMessage, Unavailable) as error:
            self._note(deed, name, error.fault.error_type, Result.FAILURE)
            if error.fault is not CHECKPOINT_UNKNOWN:
                raise
            return {**view, "success": False, "code": error.fault.code, "reason": str(error)}
        outcome = "ok" if told.success else "refused"
        self._note(deed, name, outcome, Result.SUCCESS if told.success else Result.FAILURE)
        return {**view, "success": told.success, "reason": told.reason or None}

    async def _forget(self, asked: Asked, place: Place) -> View:
        gone = await self._states.forget(place)
        deed = Deed(place.server, "", place.feature, by=asked.actor.party)
        self._hosting.noting.keep(Type.STATE_FORGOTTEN, replace(deed, details={"dropped": gone}))
        return {**_place_view(place), "dropped": gone}

    def _note(self, deed: Deed, checkpoint: str, outcome: str, result: Result) -> None:
        done = replace(deed, outcome=outcome, details={"checkpoint": checkpoint})
        self._hosting.noting.keep(Type.STATE_ROLLED_BACK, done, result)

    def _can_roll_back(self, place: Place) -> bool:
        by = self._hosting.get(place.server)
        declared = None if by is None else by.declared.sets.get(place.feature)
        is_enabled = by is not None and place.feature in by.enabled
        return declared is not None and is_enabled and declared.has_rollback


def _place_view(place: Place) -> dict[str, object]:
    return {"server": place.server, "feature_set": place.feature or None}


def _summary_view(summary: Summary) -> dict[str, object]:
    return {
        **_place_view(summary.place),
        "head": summary.head,
        "holds": "reference" if summary.is_opaque else "data",
        "checkpoints": summary.checkpoints,
        "bytes": summary.size,
        "moved_at": summary.moved_at,
    }


def _node_view(tree: Tree, node: Node) -> dict[str, object]:
    follows = None if node.base is None else tree.nodes.get(node.base)
    return {
        "checkpoint": node.name,
        # What its server said, and whether that is kept too.
        "parent": node.parent,
        "follows": None if follows is None else follows.name,
        "holds": "reference" if node.form is Form.OPAQUE else "data",
        "kept_as": node.form,
        "bytes": node.size,
        "at": node.at,
        "is_current": node.number == tree.head,
        "not_kept_because": node.why or None,
        "is_lost": node.is_lost,
    }


def _text(body: Mapping[str, object], name: str) -> str:
    said = body.get(name)
    if not isinstance(said, str) or not said:
        raise MalformedMessage(f"{name} must be a text", INVALID_PARAMS)
    return said
