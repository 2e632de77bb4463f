"""Types of audit events, and their JSON form."""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from comity.errors import MalformedMessage
from comity.mcp.actors import PrincipalKind
from comity.toolkit.text import as_uuid, format_timestamp, from_uuid

NOTICE: Final = "notifications/mgp.audit"
OURS: Final = "dev.comity."
_NO_DETAILS: Final[Mapping[str, object]] = MappingProxyType({})


class AuditType(StrEnum):
    """The types that MGP §6.4 names, then the types of Comity."""

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


class AuditResult(StrEnum):
    """The result of an event. (D-34) Only types of Comity have the last two."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    BLOCKED = "BLOCKED"
    PENDING = "PENDING"
    UNKNOWN = "UNKNOWN"


class AuditEvent(Struct, frozen=True):
    """One event of the audit log. `AuditLog.record` builds it.

    `trace` is 32 hexadecimal digits. `call` is the id of one attempt: the intent and the outcome of
    a call have it in common. It is empty for an event that belongs to no attempt.
    """

    type: str
    actor: str
    at: datetime
    kind: PrincipalKind = PrincipalKind.SYSTEM
    server: str = ""
    tool: str = ""
    result: str = AuditResult.SUCCESS
    trace: str = ""
    call: str = ""
    details: Mapping[str, object] = _NO_DETAILS


def params_of(event: AuditEvent) -> dict[str, object]:
    """The event in the form of MGP §6.3."""
    target: dict[str, object] = {"server_id": event.server} if event.server else {}
    if event.tool:
        target["tool_name"] = event.tool
    return {
        "timestamp": format_timestamp(event.at),
        "trace_id": as_uuid(event.trace),
        "event_type": event.type,
        "actor": {"type": event.kind, "id": event.actor},
        "target": target,
        "result": event.result,
        "details": dict(event.details),
    }


def body_of(event: AuditEvent) -> bytes:
    """The bytes that are stored and hashed: the form of MGP §6.3, and the id of the call."""
    params = params_of(event)
    if event.call:
        params["call_id"] = event.call
    return _encode(params)


_encode: Final = msgspec.json.Encoder().encode
_body: Final = msgspec.json.Decoder(dict[str, Any])
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)


def event_of(body: bytes) -> AuditEvent:
    """Decode a stored event. Raises MalformedMessage."""
    try:
        said = _body.decode(body)
        actor, target = _object(said["actor"]), _object(said["target"])
        return AuditEvent(
            type=str(said["event_type"]),
            actor=str(actor["id"]),
            kind=PrincipalKind(actor["type"]),
            server=str(target.get("server_id", "")),
            tool=str(target.get("tool_name", "")),
            result=str(said["result"]),
            trace=from_uuid(str(said["trace_id"])),
            call=str(said.get("call_id", "")),
            details=_object(said["details"]),
            at=_parse_timestamp(said["timestamp"]),
        )
    except (*_UNREADABLE, KeyError, TypeError, ValueError) as error:
        raise MalformedMessage(f"no entry of a journal: {type(error).__name__}") from None


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("no object")
    return cast("dict[str, Any]", value)


def _parse_timestamp(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("a time must say its zone")
    return at.astimezone(UTC)
