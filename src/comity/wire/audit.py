"""What happened, as it is told and as it is kept: MGP's audit event. (MGP §6)

The standard types are the document's; ours begin with `dev.comity.`. What a server says happened is
testimony: it is kept under a type of its own, with the server as its actor. (S6)
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from comity.wire.errors import MalformedMessage
from comity.wire.parties import PartyKind

NOTICE: Final = "notifications/mgp.audit"
OURS: Final = "dev.comity."
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


class Type(StrEnum):
    """The document's types of events (MGP §6.4), and after them our own."""

    TOOL_EXECUTED = "TOOL_EXECUTED"
    TOOL_BLOCKED = "TOOL_BLOCKED"
    PERMISSION_GRANTED = "PERMISSION_GRANTED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    PERMISSION_REVOKED = "PERMISSION_REVOKED"
    ACCESS_GRANTED = "ACCESS_GRANTED"
    ACCESS_REVOKED = "ACCESS_REVOKED"
    SERVER_CONNECTED = "SERVER_CONNECTED"
    SERVER_DISCONNECTED = "SERVER_DISCONNECTED"
    VALIDATION_FAILED = "VALIDATION_FAILED"
    CODE_REJECTED = "CODE_REJECTED"

    CALL_INTENDED = OURS + "call_intended"
    CALL_RETRIED = OURS + "call_retried"
    OUTCOME_UNKNOWN = OURS + "outcome_unknown"
    OFFER_USED = OURS + "offer_used"
    ASK_OPENED = OURS + "ask_opened"
    ASK_ANSWERED = OURS + "ask_answered"
    ASK_USED = OURS + "ask_used"
    ASK_RESTORED = OURS + "ask_restored"
    ASK_ENDED = OURS + "ask_ended"
    KEY_ISSUED = OURS + "key_issued"
    KEY_REVOKED = OURS + "key_revoked"
    PARTY_CHANGED = OURS + "party_changed"
    DEFINITION_CHANGED = OURS + "definition_changed"
    DEFINITION_ACCEPTED = OURS + "definition_accepted"
    RESTART_LIMIT_EXCEEDED = OURS + "restart_limit_exceeded"
    SUGGESTION_ACCEPTED = OURS + "suggestion_accepted"
    SUGGESTION_DISMISSED = OURS + "suggestion_dismissed"
    SERVER_REGISTERED = OURS + "server_registered"
    SERVER_DEREGISTERED = OURS + "server_deregistered"
    TESTIMONY = OURS + "testimony"
    GATEWAY_SHUTDOWN = OURS + "gateway_shutdown"
    TOOLS_SEARCHED = OURS + "tools_searched"
    TOOLS_REQUESTED = OURS + "tools_requested"
    TOPIC_JOINED = OURS + "topic_joined"
    TOPIC_LEFT = OURS + "topic_left"
    TOPIC_SAID = OURS + "topic_said"
    TOPIC_REFUSED = OURS + "topic_refused"
    TOPIC_CALLED = OURS + "topic_called"
    PROPOSAL_FULFILLED = OURS + "proposal_fulfilled"
    PROPOSAL_REPEATED = OURS + "proposal_repeated"
    WEBHOOK_SUBSCRIBED = OURS + "webhook_subscribed"
    WEBHOOK_REMOVED = OURS + "webhook_removed"
    WEBHOOK_DISABLED = OURS + "webhook_disabled"
    FEATURES_TOLD = OURS + "features_told"
    FEATURES_CHANGED = OURS + "features_changed"
    FEATURE_USED = OURS + "feature_used"
    FEATURE_REFUSED = OURS + "feature_refused"
    SCOPE_DECIDED = OURS + "scope_decided"
    STATE_KEPT = OURS + "state_kept"
    STATE_DROPPED = OURS + "state_dropped"
    STATE_FORGOTTEN = OURS + "state_forgotten"
    STATE_ROLLED_BACK = OURS + "state_rolled_back"
    MODEL_ASKED = OURS + "model_asked"
    BUDGET_EXCEEDED = OURS + "budget_exceeded"
    BUDGET_RAISED = OURS + "budget_raised"
    TURN_BEGUN = OURS + "turn_begun"
    TURN_ENDED = OURS + "turn_ended"
    HOOK_ASKED = OURS + "hook_asked"
    RESPONSE_REWRITTEN = OURS + "response_rewritten"
    PUSH_RECEIVED = OURS + "push_received"
    PUSH_REFUSED = OURS + "push_refused"
    PUSH_DONE = OURS + "push_done"
    PUSH_FAILED = OURS + "push_failed"
    JOURNAL_OPENED = OURS + "journal_opened"
    JOURNAL_CLOSED = OURS + "journal_closed"
    SEGMENT_SEALED = OURS + "segment_sealed"


class Result(StrEnum):
    """How it went. (D-34) The last two are said of our own types alone."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    BLOCKED = "BLOCKED"
    PENDING = "PENDING"
    UNKNOWN = "UNKNOWN"


class Event(Struct, frozen=True):
    """One thing that happened.

    `trace` is 32 hexadecimal digits; `call` names one attempt, which its intent and its outcome
    have in common, and is empty where there was none.
    """

    type: str
    actor: str
    at: datetime
    kind: PartyKind = PartyKind.SYSTEM
    server: str = ""
    tool: str = ""
    result: str = Result.SUCCESS
    trace: str = ""
    call: str = ""
    details: Mapping[str, object] = _NOTHING


def stamp(at: datetime) -> str:
    """A moment as the document writes it: UTC, with milliseconds."""
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    return at.isoformat(timespec="milliseconds")[:-6] + "Z"


def as_uuid(trace: str) -> str:
    """A trace as MGP writes it; one that is not of 32 digits stays as it is."""
    if len(trace) != 32:
        return trace
    return f"{trace[:8]}-{trace[8:12]}-{trace[12:16]}-{trace[16:20]}-{trace[20:]}"


def from_uuid(trace: str) -> str:
    """A trace as it is here; one that is no UUID stays as it is."""
    parts = trace.split("-")
    return "".join(parts) if [len(part) for part in parts] == [8, 4, 4, 4, 12] else trace


def params_of(event: Event) -> dict[str, object]:
    """The event as MGP §6.3 has it."""
    target: dict[str, object] = {"server_id": event.server} if event.server else {}
    if event.tool:
        target["tool_name"] = event.tool
    return {
        "timestamp": stamp(event.at),
        "trace_id": as_uuid(event.trace),
        "event_type": event.type,
        "actor": {"type": event.kind, "id": event.actor},
        "target": target,
        "result": event.result,
        "details": dict(event.details),
    }


def body_of(event: Event) -> bytes:
    """The event as it is kept, and as its hash is taken of: MGP's form, and the call's name."""
    params = params_of(event)
    if event.call:
        params["call_id"] = event.call
    return msgspec.json.encode(params)


_body: Final = msgspec.json.Decoder(dict[str, Any])
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)


def event_of(body: bytes) -> Event:
    """An event as it was kept. Raises MalformedMessage."""
    try:
        said = _body.decode(body)
        actor, target = _object(said["actor"]), _object(said["target"])
        return Event(
            type=str(said["event_type"]),
            actor=str(actor["id"]),
            kind=PartyKind(actor["type"]),
            server=str(target.get("server_id", "")),
            tool=str(target.get("tool_name", "")),
            result=str(said["result"]),
            trace=from_uuid(str(said["trace_id"])),
            call=str(said.get("call_id", "")),
            details=_object(said["details"]),
            at=_moment(said["timestamp"]),
        )
    except (*_UNREADABLE, KeyError, TypeError, ValueError) as error:
        raise MalformedMessage(f"no entry of a journal: {type(error).__name__}") from None


def _object(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError("no object")
    return cast("dict[str, Any]", found)


def _moment(written: str) -> datetime:
    at = datetime.fromisoformat(written)
    if at.tzinfo is None:
        raise ValueError("a time must say its zone")
    return at.astimezone(UTC)
