"""The gateway's own event channels, which are derived from audit events."""

from collections.abc import Iterable, Mapping
from typing import Final

from comity.audit import events
from comity.audit.events import AuditResult, AuditType
from comity.errors import (
    ACCESS_DENIED,
    AUDIT_LOG_AWAY,
    EXHAUSTED,
    PERMISSION_DENIED,
    POLICY_UNKNOWN,
    QUOTA_EXCEEDED,
    RATE_LIMITED,
)
from comity.events.model import EventChannel, GatewayEvent, Severity
from comity.mcp.mgp import ServerLifecycleState
from comity.toolkit.text import as_uuid

STARTED: Final = "tool.started"
SERVER_STATE: Final = "system.server_state"
CONFIG_CHANGED: Final = "system.config_changed"
CUT_OFF: Final = "system.source_cut_off"
LOST: Final = "system.events_lost"
BUDGET: Final = "model.tool_budget"
PUSHED: Final = "push.received"
UNWRITTEN: Final = frozenset({STARTED, SERVER_STATE, CONFIG_CHANGED, CUT_OFF, LOST, PUSHED})
"""The channels that are not derived from audit events."""

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "number"}
_BOOLEAN: Final = {"type": "boolean"}
_OBJECT: Final = {"type": "object"}
_CALL_FIELDS: Final = ("actor", "server_id", "tool_name", "trace_id", "call_id")
_ENDED: Final = ("outcome", "duration_ms", "risk_level")
_KINDS: Final[Mapping[str, Mapping[str, object]]] = {
    **dict.fromkeys(
        (
            *("duration_ms", "attempt", "lost", "number"),
            *("tokens_used", "tokens_remaining", "tools_loaded"),
        ),
        _NUMBER,
    ),
    **dict.fromkeys(("expired", "given_up", "outcome_known"), _BOOLEAN),
    **dict.fromkeys(("tools", "servers", "origin"), _OBJECT),
    "loaded": {"type": "array", "items": _TEXT},
    "content": {"type": "array", "items": _OBJECT},
}


def _channel(
    name: str, severity: Severity, description: str, members: Iterable[str] = ()
) -> EventChannel:
    shown = {member: _KINDS.get(member, _TEXT) for member in members}
    return EventChannel(name, description, severity, {"type": "object", "properties": shown})


_INFO, _WARNING, _ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR
_ACTOR_FIELDS: Final = ("actor", "server_id", "trace_id")
_APPROVAL_FIELDS: Final = (*_CALL_FIELDS, "approval", "kind")

STANDARD: Final[Mapping[str, EventChannel]] = {
    channel.name: channel
    for channel in (
        _channel(STARTED, _INFO, "A call was let through and leaves for its server.", _CALL_FIELDS),
        _channel("tool.completed", _INFO, "A call ended well.", (*_CALL_FIELDS, *_ENDED)),
        _channel("tool.failed", _WARNING, "A call ended in an error.", (*_CALL_FIELDS, *_ENDED)),
        _channel(
            "tool.blocked", _WARNING, "A call was refused before it left.", (*_CALL_FIELDS, *_ENDED)
        ),
        _channel(
            "tool.requested",
            _INFO,
            "A client requested tools.",
            ("actor", "trace_id", "status", "loaded"),
        ),
        _channel("tool.retried", _INFO, "A call is made again.", (*_CALL_FIELDS, "attempt")),
        _channel(
            "tool.outcome_unknown", _ERROR, "It is unknown whether a call ran.", (*_CALL_FIELDS,)
        ),
        _channel(
            "security.access_denied", _WARNING, "Access was denied.", (*_CALL_FIELDS, "outcome")
        ),
        _channel(
            "security.validation_failed",
            _WARNING,
            "The arguments of a call were refused.",
            (*_CALL_FIELDS, *_ENDED),
        ),
        _channel("security.code_rejected", _WARNING, "Code was refused.", (*_CALL_FIELDS, *_ENDED)),
        _channel(
            "security.permission_granted",
            _INFO,
            "A server may.",
            (*_ACTOR_FIELDS, "permission", "decision"),
        ),
        _channel(
            "security.permission_denied",
            _WARNING,
            "A server may not.",
            (*_ACTOR_FIELDS, "permission", "decision"),
        ),
        _channel(
            "security.permission_revoked",
            _WARNING,
            "A server may no more.",
            (*_ACTOR_FIELDS, "permission", "decision", "expired"),
        ),
        _channel(
            "security.grant_changed",
            _INFO,
            "A grant was written, or taken back.",
            (*_ACTOR_FIELDS, "change", "subject", "verb", "target", "permission", "expires_at"),
        ),
        _channel(
            "security.key_changed",
            _INFO,
            "A key was issued, or counts no more.",
            (
                *_ACTOR_FIELDS,
                "change",
                "key",
                "principal",
                "expires_at",
                "replaces",
                "counts_until",
            ),
        ),
        _channel(
            "security.principal_changed",
            _INFO,
            "A principal was changed.",
            (*_ACTOR_FIELDS, "principal", "change"),
        ),
        _channel(
            "security.group_changed",
            _INFO,
            "A group of an identity provider was changed.",
            (*_ACTOR_FIELDS, "group", "change"),
        ),
        _channel(
            "security.definition_changed",
            _WARNING,
            "Tools are described otherwise than was accepted.",
            (*_ACTOR_FIELDS, "number", "tools"),
        ),
        _channel(
            "security.definition_accepted",
            _INFO,
            "Tool definitions were accepted.",
            (*_ACTOR_FIELDS, "number", "tools"),
        ),
        _channel(
            "security.approval_requested",
            _INFO,
            "An approval was requested.",
            (*_APPROVAL_FIELDS, "expires_at"),
        ),
        _channel(
            "security.approval_answered",
            _INFO,
            "An approval request was answered.",
            (*_APPROVAL_FIELDS, "verdict", "state"),
        ),
        _channel(
            "security.approval_ended",
            _INFO,
            "An approval request ended.",
            (*_APPROVAL_FIELDS, "state"),
        ),
        _channel(
            "security.webhook_changed",
            _INFO,
            "A webhook subscription was changed.",
            (*_ACTOR_FIELDS, "change"),
        ),
        _channel(
            "system.server_registered",
            _INFO,
            "A server was registered while the gateway runs, or no more.",
            (*_ACTOR_FIELDS, "change"),
        ),
        _channel(
            SERVER_STATE,
            _INFO,
            "A server went from one state to another.",
            ("server_id", "previous_state", "new_state", "reason", "given_up"),
        ),
        _channel(
            "system.overload",
            _WARNING,
            "A call was refused because of a limit.",
            (*_CALL_FIELDS, "outcome"),
        ),
        _channel(
            "system.error",
            _ERROR,
            "Permissions or the audit log are unavailable, so calls are refused.",
            (*_CALL_FIELDS, "outcome"),
        ),
        _channel(CONFIG_CHANGED, _INFO, "The settings were read anew.", ("servers",)),
        _channel(
            CUT_OFF, _WARNING, "A server sent too many events; they are dropped.", ("server_id",)
        ),
        _channel(
            BUDGET,
            _INFO,
            "The tools in a client's context are other ones.",
            ("actor", "tokens_used", "tokens_remaining", "tools_loaded"),
        ),
        _channel(
            LOST, _WARNING, "A subscriber read too slowly; so many events are lost.", ("lost",)
        ),
        _channel(
            PUSHED,
            _INFO,
            "A server, or a webhook that came in, pushed this; the words are its own.",
            ("server_id", "event_id", "feature_set", "timestamp", "origin", "content"),
        ),
    )
}

_CHANNELS_BY_TYPE: Final[Mapping[str, tuple[str, ...]]] = {
    AuditType.TOOL_BLOCKED: ("tool.blocked",),
    AuditType.VALIDATION_FAILED: ("tool.blocked", "security.validation_failed"),
    AuditType.CODE_REJECTED: ("tool.blocked", "security.code_rejected"),
    AuditType.CALL_RETRIED: ("tool.retried",),
    AuditType.OUTCOME_UNKNOWN: ("tool.outcome_unknown",),
    AuditType.PERMISSION_GRANTED: ("security.permission_granted",),
    AuditType.PERMISSION_DENIED: ("security.permission_denied",),
    AuditType.PERMISSION_REVOKED: ("security.permission_revoked",),
    AuditType.ACCESS_GRANTED: ("security.grant_changed",),
    AuditType.ACCESS_REVOKED: ("security.grant_changed",),
    AuditType.KEY_ISSUED: ("security.key_changed",),
    AuditType.KEY_REVOKED: ("security.key_changed",),
    AuditType.PRINCIPAL_CHANGED: ("security.principal_changed",),
    AuditType.GROUP_CHANGED: ("security.group_changed",),
    AuditType.DEFINITION_CHANGED: ("security.definition_changed",),
    AuditType.DEFINITION_ACCEPTED: ("security.definition_accepted",),
    AuditType.TOOLS_REQUESTED: ("tool.requested",),
    AuditType.SERVER_REGISTERED: ("system.server_registered",),
    AuditType.SERVER_DEREGISTERED: ("system.server_registered",),
    AuditType.WEBHOOK_SUBSCRIBED: ("security.webhook_changed",),
    AuditType.WEBHOOK_DELETED: ("security.webhook_changed",),
    AuditType.WEBHOOK_DISABLED: ("security.webhook_changed",),
    AuditType.APPROVAL_REQUESTED: ("security.approval_requested",),
    AuditType.APPROVAL_ANSWERED: ("security.approval_answered",),
    AuditType.APPROVAL_ENDED: ("security.approval_ended",),
}
_CHANGE: Final[Mapping[str, str]] = {
    AuditType.ACCESS_GRANTED: "granted",
    AuditType.ACCESS_REVOKED: "revoked",
    AuditType.KEY_ISSUED: "issued",
    AuditType.KEY_REVOKED: "revoked",
    AuditType.SERVER_REGISTERED: "registered",
    AuditType.SERVER_DEREGISTERED: "deregistered",
    AuditType.WEBHOOK_SUBSCRIBED: "subscribed",
    AuditType.WEBHOOK_DELETED: "removed",
    AuditType.WEBHOOK_DISABLED: "disabled",
}
_ATTEMPTS: Final = frozenset(
    {
        *(AuditType.ACCESS_GRANTED, AuditType.ACCESS_REVOKED, AuditType.APPROVAL_ANSWERED),
        *(AuditType.PERMISSION_GRANTED, AuditType.PERMISSION_DENIED, AuditType.PERMISSION_REVOKED),
        *(AuditType.SERVER_REGISTERED, AuditType.SERVER_DEREGISTERED),
    }
)
"""Actions that can be refused. A refusal is published as an attempt."""

_DENIED: Final = "security.access_denied"
_CHANNELS_BY_OUTCOME: Final[Mapping[str, str]] = {
    **dict.fromkeys((ACCESS_DENIED.error_type, PERMISSION_DENIED.error_type), _DENIED),
    **dict.fromkeys(
        (RATE_LIMITED.error_type, QUOTA_EXCEEDED.error_type, EXHAUSTED.error_type),
        "system.overload",
    ),
    **dict.fromkeys((AUDIT_LOG_AWAY.error_type, POLICY_UNKNOWN.error_type), "system.error"),
}
_FROM_DETAILS: Final = (
    *("outcome", "duration_ms", "risk_level", "outcome_known", "attempt", "permission"),
    *("decision", "expired", "subject", "verb", "target", "expires_at", "key", "principal"),
    *(
        "replaces",
        "counts_until",
        "change",
        "number",
        "tools",
        "approval",
        "kind",
        "verdict",
        "state",
    ),
    *("status", "loaded", "group"),
)
"""The members of an audit event's details that a channel event includes."""

_ALARMING: Final[Mapping[ServerLifecycleState, Severity]] = {
    ServerLifecycleState.ERROR: Severity.ERROR,
    ServerLifecycleState.DISCONNECTED: Severity.WARNING,
    ServerLifecycleState.RESTARTING: Severity.WARNING,
}


def channels_of(event: events.AuditEvent) -> tuple[str, ...]:
    """Return the channels of an audit event. Most have one, and some have none."""
    if event.type in _ATTEMPTS and event.result == AuditResult.BLOCKED:
        return (_DENIED,)
    also = _CHANNELS_BY_OUTCOME.get(str(event.details.get("outcome")))
    more = () if also is None or event.result != AuditResult.BLOCKED else (also,)
    if event.type == AuditType.CATALOG_ENTRY_USED:
        return more
    if event.type == AuditType.TOOL_EXECUTED:
        return ("tool.completed" if event.result == AuditResult.SUCCESS else "tool.failed",)
    return (*_CHANNELS_BY_TYPE.get(event.type, ()), *more)


def to_channel_event(event: events.AuditEvent, channel: str, name: str) -> GatewayEvent:
    """Convert an audit event to an event on a channel, with an id of its own."""
    data: dict[str, object] = {"actor": event.actor, "trace_id": as_uuid(event.trace)}
    data |= {"server_id": event.server} if event.server else {}
    data |= {"tool_name": event.tool} if event.tool else {}
    data |= {"call_id": event.call} if event.call else {}
    data |= {each: event.details[each] for each in _FROM_DETAILS if each in event.details}
    if event.type in _CHANGE:
        data["change"] = _CHANGE[event.type]
    severity = STANDARD[channel].severity
    about = (event.server, event.tool, event.actor)
    return GatewayEvent(name, channel, event.at, severity, data, *about)


def severity_of_state(state: ServerLifecycleState, *, is_given_up: bool) -> Severity:
    """Return the severity of a server's change to this state."""
    return Severity.CRITICAL if is_given_up else _ALARMING.get(state, Severity.INFO)
