"""How a server of 2026-07-28 reaches its host: that era has no requests of servers. (mcp-wire §4)

The host asks once and for long (`mcpl/listen`). On that stream the server tells what it asks
(`mcpl.request`) and what it only says (`mcpl.notification`); answers go back as requests
(`mcpl/respond`). What a host would notify it sends as a request, for stock peers drop the others.
"""

from typing import Final

import msgspec
from msgspec import Raw, Struct, UnsetType

from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame, Id

LISTEN: Final = "mcpl/listen"
RESPOND: Final = "mcpl/respond"
ASKED: Final = "mcpl.request"
TOLD: Final = "mcpl.notification"


class _Carried(Struct):
    method: str
    id: Id | UnsetType = UNSET
    params: Raw | UnsetType = UNSET


def carried_in(frame: Frame) -> Frame:
    """The request or notification within. Raises MalformedMessage."""
    try:
        found = msgspec.json.decode(jsonrpc.to_raw(frame.params), type=_Carried)
    except (msgspec.DecodeError, TypeError) as problem:
        raise MalformedMessage(f"{frame.method}: {problem}", INVALID_PARAMS) from None
    if frame.method == TOLD:
        return jsonrpc.notification(found.method, found.params)
    if found.id is UNSET:
        raise MalformedMessage(f"{ASKED} has no id", INVALID_PARAMS)
    return jsonrpc.request(found.id, found.method, found.params)


def response(frame: Frame) -> dict[str, object]:
    """An answer, as what a request carries back."""
    told: dict[str, object] = {"id": frame.id}
    if frame.error is not UNSET:
        return {**told, "error": frame.error}
    return {**told, "result": frame.result}
