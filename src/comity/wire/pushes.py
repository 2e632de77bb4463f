"""What a server tells its host unasked, which may start a turn. (MCPL §9)"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from comity.wire import jsonrpc
from comity.wire.contents import Content, content_in
from comity.wire.errors import INVALID_PARAMS, MalformedMessage

PUSH: Final = "push/event"
LONGEST_ID: Final = 200


@dataclass(frozen=True, slots=True)
class Push:
    """One event. With its server its id names it for good. (D-99)"""

    server: str
    id: str
    at: datetime
    content: Content
    feature: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict[str, Any])


class _Payload(Struct):
    content: Raw


class _Pushed(Struct):
    set: str = msgspec.field(name="featureSet")
    id: str = msgspec.field(name="eventId")
    timestamp: str
    payload: _Payload
    origin: dict[str, Any] | None = None


def push_in(server: str, params: Raw) -> Push:
    """An event as a server wrote it. Raises MalformedMessage."""
    jsonrpc.value(params)
    try:
        found = msgspec.json.decode(params, type=_Pushed)
        at = datetime.fromisoformat(found.timestamp)
    except (msgspec.DecodeError, ValueError) as problem:
        raise MalformedMessage(f"{PUSH}: {problem}", INVALID_PARAMS) from None
    if not 0 < len(found.id) <= LONGEST_ID or not found.id.isprintable():
        raise MalformedMessage(f"{PUSH}: eventId has 1 to {LONGEST_ID} characters", INVALID_PARAMS)
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    content = content_in(found.payload.content, "payload.content")
    return Push(server, found.id, at, content, found.set, found.origin or {})


def accepted(inference: str = "") -> dict[str, object]:
    return {"accepted": True, **({"inferenceId": inference} if inference else {})}


def not_accepted(because: str) -> dict[str, object]:
    """A policy decided so; who may not push at all gets an error. (D-60)"""
    return {"accepted": False, "reason": because}
