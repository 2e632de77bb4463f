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
    CATALOG_ENTRY_USED = OURS + "catalog_entry_used"
    APPROVAL_REQUESTED = OURS + "approval_requested"
    APPROVAL_ANSWERED = OURS + "approval_answered"
    APPROVAL_CONSUMED = OURS + "approval_consumed"
    APPROVAL_RELEASED = OURS + "approval_released"
    APPROVAL_ENDED = OURS + "approval_ended"
    NOTICE_SENT = OURS + "notice_sent"
    NOTICE_FAILED = OURS + "notice_failed"
    NOTICE_ESCALATED = OURS + "notice_escalated"
    NOTICE_ANSWERED = OURS + "notice_answered"
    KEY_ISSUED = OURS + "key_issued"
    KEY_REVOKED = OURS + "key_revoked"
    PRINCIPAL_CHANGED = OURS + "principal_changed"
    SESSION_STARTED = OURS + "session_started"
    SESSION_ENDED = OURS + "session_ended"
    ACCOUNT_CONNECTED = OURS + "account_connected"
    ACCOUNT_DISCONNECTED = OURS + "account_disconnected"
    ACCOUNT_EXPIRED = OURS + "account_expired"
    GROUP_CHANGED = OURS + "group_changed"
    DEFINITION_CHANGED = OURS + "definition_changed"
    DEFINITION_ACCEPTED = OURS + "definition_accepted"
    RESTART_LIMIT_EXCEEDED = OURS + "restart_limit_exceeded"
    SUGGESTION_ACCEPTED = OURS + "suggestion_accepted"
    SUGGESTION_DISMISSED = OURS + "suggestion_dismissed"
    SERVER_REGISTERED = OURS + "server_registered"
    SERVER_DEREGISTERED = OURS + "server_deregistered"
    SERVER_REPORT = OURS + "server_report"
    SERVER_NETWORK = OURS + "server_network"
    GATEWAY_SHUTDOWN = OURS + "gateway_shutdown"
    TOOLS_SEARCHED = OURS + "tools_searched"
    TOOLS_REQUESTED = OURS + "tools_requested"
    TOPIC_JOINED = OURS + "topic_joined"
    TOPIC_LEFT = OURS + "topic_left"
    TOPIC_MESSAGE = OURS + "topic_message"
    TOPIC_REFUSED = OURS + "topic_refused"
    TOPIC_CALLED = OURS + "topic_called"
    PROPOSAL_FULFILLED = OURS + "proposal_fulfilled"
    PROPOSAL_REPEATED = OURS + "proposal_repeated"
    WEBHOOK_SUBSCRIBED = OURS + "webhook_subscribed"
    WEBHOOK_DELETED = OURS + "webhook_deleted"
    WEBHOOK_DISABLED = OURS + "webhook_disabled"
    SECRETS_ROTATED = OURS + "secrets_rotated"
    FEATURES_DECLARED = OURS + "features_declared"
    FEATURES_CHANGED = OURS + "features_changed"
    FEATURE_USED = OURS + "feature_used"
    FEATURE_REFUSED = OURS + "feature_refused"
    SCOPE_DECIDED = OURS + "scope_decided"
    STATE_STORED = OURS + "state_stored"
    STATE_DROPPED = OURS + "state_dropped"
    STATE_DELETED = OURS + "state_deleted"
    STATE_ROLLED_BACK = OURS + "state_rolled_back"
    MODEL_CALLED = OURS + "model_called"
    BUDGET_EXCEEDED = OURS + "budget_exceeded"
    BUDGET_RAISED = OURS + "budget_raised"
    TURN_STARTED = OURS + "turn_started"
    TURN_ENDED = OURS + "turn_ended"
    HOOK_CALLED = OURS + "hook_called"
    RESPONSE_REWRITTEN = OURS + "response_rewritten"
    PUSH_RECEIVED = OURS + "push_received"
    PUSH_REFUSED = OURS + "push_refused"
    PUSH_COMPLETED = OURS + "push_completed"
    PUSH_FAILED = OURS + "push_failed"
    AUDIT_LOG_OPENED = OURS + "audit_log_opened"
    AUDIT_LOG_CLOSED = OURS + "audit_log_closed"
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
    return _encode(
        _AuditBody(
            format_timestamp(event.at),
            as_uuid(event.trace),
            event.type,
            _AuditActor(event.kind, event.actor),
            _AuditTarget(event.server, event.tool),
            event.result,
            # The default is a read-only view, which has no JSON form.
            event.details or {},
            event.call,
        )
    )


class _AuditActor(Struct, gc=False):
    type: PrincipalKind
    id: str


class _AuditTarget(Struct, omit_defaults=True, gc=False):
    server_id: str = ""
    tool_name: str = ""


class _AuditBody(Struct, omit_defaults=True):
    """The members of a stored event. It is encoded faster than `params_of`."""

    timestamp: str
    trace_id: str
    event_type: str
    actor: _AuditActor
    target: _AuditTarget
    result: str
    details: Mapping[str, object]
    call_id: str = ""


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
        raise MalformedMessage(f"invalid audit entry: {type(error).__name__}") from None


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("no object")
    return cast("dict[str, Any]", value)


def _parse_timestamp(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("a time needs its zone")
    return at.astimezone(UTC)
