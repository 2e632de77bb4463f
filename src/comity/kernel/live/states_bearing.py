"""State on its way with calls of tools, and back with their answers. (MCPL §8.2 to §8.4)

Rule 1: a call carries the state of its tool's feature set, where that is enabled; whatever its
        client said of state is taken away, for only a host may say that.
Rule 2: an answer goes on when what it says of state is kept, and without it: clients have no use
        for it, and it holds what others wrote.
Rule 3: state that cannot be read is no reason to keep an answer from its client; that nothing can
        be written down is one, for the next call would then go out with old state.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.live.hosted import Hosted
from comity.kernel.live.noting import Deed, Noting
from comity.kernel.live.states import States
from comity.ports.states import Place
from comity.rules.features_of_tools import WHOLE, feature_of_tool
from comity.wire import checkpoints, jsonrpc
from comity.wire.audit import Result, Type
from comity.wire.checkpoints import Checkpoint
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.features import Use
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.state_trees import Node

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 15.0
"""How long an answer waits for a store that does not answer."""

_AGAIN_SECONDS: Final = 0.25

type Definition = Callable[[str, str], bytes | None]
"""The definition of a server's tool by its own name; None where it never listed it."""


class StateBearer:
    """Adds state to calls, and keeps what their answers say of it."""

    def __init__(self, states: States, noting: Noting, definition_of: Definition) -> None:
        self._states = states
        self._noting = noting
        self._definition_of = definition_of
        # Whose state a call under way has to do with: decided once, before it goes.
        self._places: WeakKeyDictionary[Call, tuple[Place, str]] = WeakKeyDictionary()

    def carries(self, by: Hosted, call: Call, frame: Frame) -> bool:
        tool = jsonrpc.text(frame.parameters.get("name")) or ""
        place = self._place(by, tool)
        if place is None:
            self._places.pop(call, None)
            return checkpoints.bears_state(frame.parameters)
        self._places[call] = (place, tool)
        return True

    async def bring(self, by: Hosted, call: Call, frame: Frame) -> Frame:
        of = self._places.get(call)
        current = None if of is None else await self._states.current(of[0])
        if current is not None:
            params = checkpoints.with_state(frame.parameters, current.name, current.data)
        elif checkpoints.bears_state(frame.parameters):
            params = checkpoints.without_state(frame.parameters)
        else:
            return frame
        return jsonrpc.with_params(frame, jsonrpc.to_raw(params))

    async def take(self, by: Hosted, call: Call, frame: Frame) -> Frame:
        of = self._places.pop(call, None)
        result = _members(frame)
        said = checkpoints.state_in(result)
        if of is None or said is None:
            return frame
        await self._keep(of, said, call)
        bare = jsonrpc.to_raw(checkpoints.result_without_state(result))
        return msgspec.structs.replace(frame, result=bare)

    def _place(self, by: Hosted, tool: str) -> Place | None:
        """Whose state belongs to calls of a tool; None where it may have none."""
        definition = self._definition_of(by.server, tool)
        feature = feature_of_tool(definition, by.declared.sets)
        is_let = bool(by.using(Use.TOOLS)) if feature == WHOLE else feature in by.enabled
        return Place(by.server, feature) if is_let else None

    async def _keep(self, of: tuple[Place, str], said: Raw, call: Call) -> None:
        place, tool = of
        deed = Deed(place.server, "tools/call", place.feature, tool=tool, trace=call.traced())
        try:
            checkpoint = checkpoints.read(said)
            node = await self._kept(place, checkpoint)
        except MalformedMessage as error:
            log.warning("server %r: the state it left is not kept: %s", place.server, error)
            details = {"reason": str(error)[:200]}
            self._noting.note(Type.STATE_DROPPED, replace(deed, details=details), Result.FAILURE)
            return
        self._note(deed, checkpoint, node)

    async def _kept(self, place: Place, checkpoint: Checkpoint) -> Node:
        until = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            try:
                return await self._states.keep(place, checkpoint)
            except Unavailable as error:
                if asyncio.get_running_loop().time() > until:
                    because = f"the tool ran, but the state that it left is not kept: {error}"
                    # Whoever tries again would have it run twice.
                    raise Unavailable(because, replace(error.fault, retryable=False)) from None
                await asyncio.sleep(_AGAIN_SECONDS)

    def _note(self, deed: Deed, said: Checkpoint, node: Node) -> None:
        details: dict[str, object] = {
            "checkpoint": node.name,
            "parent": said.parent,
            "kept_as": node.form,
            "bytes": node.size,
        }
        if said.data is not None and said.patch is not None:
            details["warning"] = "data and a patch at once; the data counts"
            log.warning("server %r: %s", deed.server, details["warning"])
        if node.why:
            details["reason"] = node.why
            log.warning("server %r: the state it left is not kept: %s", deed.server, node.why)
            self._noting.note(Type.STATE_DROPPED, replace(deed, details=details), Result.FAILURE)
        else:
            self._noting.note(Type.STATE_KEPT, replace(deed, details=details))


def _members(frame: Frame) -> dict[str, Raw]:
    try:
        return {} if frame.result is UNSET else jsonrpc.members(frame.result)
    except MalformedMessage:
        return {}
