"""What a server tells its host unasked, where it goes, and what became of it. (MCPL §9)"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from comity.wire import jsonrpc
from comity.wire.contents import Content, content_in
from comity.wire.errors import INVALID_PARAMS, MalformedMessage

PUSH: Final = "push/event"
LONGEST_ID: Final = 200
OF_HOOKS: Final = "hook:"
"""What the names of those begin with that are no servers: HTTP webhooks that come in."""


@dataclass(frozen=True, slots=True)
class Push:
    """One event. With its server its id names it for good. (D-99)"""

    server: str
    id: str
    at: datetime
    content: Content
    feature: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def key(self) -> str:
        """What it is known by everywhere, also as the cause of a turn. No server's id has a `/`."""
        return f"push:{self.server}/{self.id}"


class Goal(StrEnum):
    """What can follow from a push."""

    NOTHING = "nothing"
    EVENTS = "events"
    TOPIC = "topic"
    WEBHOOKS = "webhooks"
    TURN = "turn"


@dataclass(frozen=True, slots=True)
class Route:
    """What follows from one push; `place` is the topic. The rest is for turns."""

    to: Goal
    place: str = ""
    conversation: str = ""
    party: str = ""
    say_in: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.to}:{self.place}" if self.place else str(self.to)


class PushState(StrEnum):
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class KeptPush:
    """A push that was admitted, its route, and how far that is done.

    Of one that is done, what was in it is kept no longer.
    """

    push: Push
    route: Route
    received_at: datetime
    due_at: datetime
    number: int = 0
    state: PushState = PushState.WAITING
    attempts: int = 0
    inference: str = ""
    last_error: str = ""
    done_at: datetime | None = None


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
        found = jsonrpc.shaped(params, _Pushed)
        at = datetime.fromisoformat(found.timestamp)
    except (msgspec.DecodeError, ValueError) as problem:
        raise MalformedMessage(f"{PUSH}: {problem!s:.200}", INVALID_PARAMS) from None
    if not 0 < len(found.id) <= LONGEST_ID or not found.id.isprintable():
        raise MalformedMessage(f"{PUSH}: eventId has 1 to {LONGEST_ID} characters", INVALID_PARAMS)
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    content = content_in(found.payload.content, "payload.content")
    return Push(server, found.id, at, content, found.set, found.origin or {})


def accepted(inference: str = "") -> dict[str, object]:
    return {"accepted": True, **({"inferenceId": inference} if inference else {})}


def not_accepted(because: str, inference: str = "") -> dict[str, object]:
    """A policy decided so; who may not push at all gets an error. (D-60)

    Of what was accepted before, it says which turn came of it then.
    """
    told = {"inferenceId": inference} if inference else {}
    return {"accepted": False, "reason": because, **told}
