"""What goes along with calls of tools to live servers, and comes back with their answers.

Whatever goes wrong on the way, the call is answered: a bug here is told, and ends one call.
"""

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.live.hosted import Hosted
from comity.kernel.pulse import LiveLink
from comity.ports import Headers
from comity.wire import features, jsonrpc, mcp
from comity.wire.errors import INTERNAL_ERROR, MalformedMessage, Unavailable
from comity.wire.jsonrpc import UNSET, Frame

log = logging.getLogger(__name__)

_NOTHING: Final = Raw(b"{}")
_FAILED: Final = "the gateway failed; its log says how"


class Bearer(Protocol):
    """Who adds to calls of tools what belongs to them, and takes it from their answers."""

    def carries(self, by: Hosted, call: Call, frame: Frame) -> bool:
        """Whether there is anything to add to this call; `bring` then does it."""
        ...

    async def bring(self, by: Hosted, call: Call, frame: Frame) -> Frame:
        """The call with it. Raises Unavailable, MalformedMessage where it may not go."""
        ...

    async def take(self, by: Hosted, call: Call, frame: Frame) -> Frame:
        """The answer without it, once it is kept."""
        ...


async def carry(
    bearers: Sequence[Bearer],
    by: Hosted,
    link: LiveLink,
    call: Call,
    outgoing: tuple[Frame, Headers],
) -> None:
    """Send a call with all that belongs to it."""
    frame, headers = outgoing
    try:
        for each in bearers:
            frame = await each.bring(by, call, frame)
        link.send(call, frame, headers)
    except (Unavailable, MalformedMessage) as error:
        if not _is_over(call):
            call.failed(error)
    except Exception:
        log.exception("a call to server %r was not sent", by.server)
        if not _is_over(call):
            call.refuse(INTERNAL_ERROR, _FAILED)


async def take(
    bearers: Sequence[Bearer], by: Hosted, call: Call, frame: Frame, status: int
) -> None:
    """Answer a call with what its server said, without what is the gateway's to keep."""
    try:
        for each in bearers:
            frame = await each.take(by, call, frame)
        if not _is_over(call):
            call.answered(frame, status)
    except (Unavailable, MalformedMessage) as error:
        if not _is_over(call):
            call.failed(error)
    except Exception:
        log.exception("an answer of server %r was not taken", by.server)
        if not _is_over(call):
            call.refuse(INTERNAL_ERROR, _FAILED)


def _is_over(call: Call) -> bool:
    """Withdrawn, or past its deadline, meanwhile."""
    return call.outbox.final or call.is_concluded


def speaks_for_itself(frame: Frame) -> bool:
    """Whether the client of a modern request is a host of MCPL itself."""
    return features.said_in(_capabilities(frame)) is not None


def _capabilities(frame: Frame) -> Raw | None:
    try:
        params = {} if frame.params is UNSET else jsonrpc.members(frame.params)
        return jsonrpc.members(params.get("_meta", _NOTHING)).get(mcp.CLIENT_CAPABILITIES)
    except MalformedMessage:
        return None


def introduced(frame: Frame) -> Frame:
    """A modern call whose server may go by scopes and state: in that era each request says so."""
    params = {} if frame.params is UNSET else jsonrpc.members(frame.params)
    meta = jsonrpc.members(params.get("_meta", _NOTHING))
    said = jsonrpc.members(meta.get(mcp.CLIENT_CAPABILITIES, _NOTHING))
    inside = jsonrpc.members(said.get("extensions", _NOTHING))
    extensions = {**inside, features.EXTENSION_KEY: features.OFFERED_TO_CALLERS}
    meta[mcp.CLIENT_CAPABILITIES] = jsonrpc.to_raw({**said, "extensions": extensions})
    return jsonrpc.with_params(frame, jsonrpc.to_raw({**params, "_meta": meta}))
