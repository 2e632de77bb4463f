"""The channels on which the gateway itself tells what happens, and what it tells there. (MGP §13.5)

Rule 1: what is told follows from what was written down; nothing is told that was not, except that a
        call has begun and where a server stands.
Rule 2: only names, ids, outcomes and durations: no argument, no result, nobody's words, except of
        what was pushed and an operator lets go here.
Rule 3: the gateway runs no model: of `model.*` it tells only what the tools in a client's context
        cost; what servers tell of their models is passed on.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from comity.wire import audit
from comity.wire.audit import Result, Type, as_uuid
from comity.wire.errors import (
    ACCESS_DENIED,
    EXHAUSTED,
    JOURNAL_AWAY,
    PERMISSION_DENIED,
    POLICY_UNKNOWN,
    QUOTA_EXCEEDED,
    RATE_LIMITED,
)
from comity.wire.events import Channel, Event, Severity
from comity.wire.lifecycle import State

STARTED: Final = "tool.started"
SERVER_STATE: Final = "system.server_state"
CONFIG_CHANGED: Final = "system.config_changed"
CUT_OFF: Final = "system.source_cut_off"
LOST: Final = "system.events_lost"
BUDGET: Final = "model.tool_budget"
PUSHED: Final = "push.received"
UNWRITTEN: Final = frozenset({STARTED, SERVER_STATE, CONFIG_CHANGED, CUT_OFF, LOST, PUSHED})
"""What follows from no entry of the journal."""

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "number"}
_BOOLEAN: Final = {"type": "boolean"}
_OBJECT: Final = {"type": "object"}
_OF_CALL: Final = ("actor", "server_id", "tool_name", "trace_id", "call_id")
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
) -> Channel:
    shown = {member: _KINDS.get(member, _TEXT) for member in members}
    return Channel(name, description, severity, {"type": "object", "properties": shown})


_INFO, _WARNING, _ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR
_BY: Final = ("actor", "server_id", "trace_id")
_ASKED: Final = (*_OF_CALL, "ask", "kind")

STANDARD: Final[Mapping[str, Channel]] = {
    channel.name: channel
    for channel in (
        _channel(STARTED, _INFO, "A call was let through and leaves for its server.", _OF_CALL),
        _channel("tool.completed", _INFO, "A call ended well.", (*_OF_CALL, *_ENDED)),
        _channel("tool.failed", _WARNING, "A call ended in an error.", (*_OF_CALL, *_ENDED)),
        _channel(
            "tool.blocked", _WARNING, "A call was refused before it left.", (*_OF_CALL, *_ENDED)
        ),
        _channel(
            "tool.requested",
            _INFO,
            "Somebody lacks tools; some were found, perhaps.",
            ("actor", "trace_id", "status", "loaded"),
        ),
        _channel("tool.retried", _INFO, "A call is made again.", (*_OF_CALL, "attempt")),
        _channel("tool.outcome_unknown", _ERROR, "Whether a call ran is not known.", (*_OF_CALL,)),
        _channel("security.access_denied", _WARNING, "Somebody may not.", (*_OF_CALL, "outcome")),
        _channel(
            "security.validation_failed",
            _WARNING,
            "The arguments of a call were refused.",
            (*_OF_CALL, *_ENDED),
        ),
        _channel("security.code_rejected", _WARNING, "Code was refused.", (*_OF_CALL, *_ENDED)),
        _channel(
            "security.permission_granted", _INFO, "A server may.", (*_BY, "permission", "decision")
        ),
        _channel(
            "security.permission_denied",
            _WARNING,
            "A server may not.",
            (*_BY, "permission", "decision"),
        ),
        _channel(
            "security.permission_revoked",
            _WARNING,
            "A server may no more.",
            (*_BY, "permission", "decision", "expired"),
        ),
        _channel(
            "security.grant_changed",
            _INFO,
            "A grant was written, or taken back.",
            (*_BY, "change", "subject", "verb", "target", "permission", "expires_at"),
        ),
        _channel(
            "security.key_changed",
            _INFO,
            "A key was issued, or counts no more.",
            (*_BY, "change", "key", "party", "expires_at", "replaces", "counts_until"),
        ),
        _channel(
            "security.party_changed", _INFO, "A party was changed.", (*_BY, "party", "change")
        ),
        _channel(
            "security.definition_changed",
            _WARNING,
            "Tools are described otherwise than was accepted.",
            (*_BY, "number", "tools"),
        ),
        _channel(
            "security.definition_accepted",
            _INFO,
            "What a server says of its tools was accepted.",
            (*_BY, "number", "tools"),
        ),
        _channel(
            "security.ask_opened", _INFO, "Somebody has to be asked.", (*_ASKED, "expires_at")
        ),
        _channel(
            "security.ask_answered", _INFO, "An ask was answered.", (*_ASKED, "verdict", "state")
        ),
        _channel("security.ask_ended", _INFO, "An ask is over.", (*_ASKED, "state")),
        _channel(
            "security.webhook_changed",
            _INFO,
            "Who is told elsewhere has changed.",
            (*_BY, "change"),
        ),
        _channel(
            "system.server_registered",
            _INFO,
            "A server was registered while the gateway runs, or no more.",
            (*_BY, "change"),
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
            "A call was refused for want of room, or by a limit.",
            (*_OF_CALL, "outcome"),
        ),
        _channel(
            "system.error",
            _ERROR,
            "What must be known or written down cannot be, so calls are refused.",
            (*_OF_CALL, "outcome"),
        ),
        _channel(CONFIG_CHANGED, _INFO, "The settings were read anew.", ("servers",)),
        _channel(
            CUT_OFF, _WARNING, "A server told too much: its events are not heard.", ("server_id",)
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

_OF_TYPE: Final[Mapping[str, tuple[str, ...]]] = {
    Type.TOOL_BLOCKED: ("tool.blocked",),
    Type.VALIDATION_FAILED: ("tool.blocked", "security.validation_failed"),
    Type.CODE_REJECTED: ("tool.blocked", "security.code_rejected"),
    Type.CALL_RETRIED: ("tool.retried",),
    Type.OUTCOME_UNKNOWN: ("tool.outcome_unknown",),
    Type.PERMISSION_GRANTED: ("security.permission_granted",),
    Type.PERMISSION_DENIED: ("security.permission_denied",),
    Type.PERMISSION_REVOKED: ("security.permission_revoked",),
    Type.ACCESS_GRANTED: ("security.grant_changed",),
    Type.ACCESS_REVOKED: ("security.grant_changed",),
    Type.KEY_ISSUED: ("security.key_changed",),
    Type.KEY_REVOKED: ("security.key_changed",),
    Type.PARTY_CHANGED: ("security.party_changed",),
    Type.DEFINITION_CHANGED: ("security.definition_changed",),
    Type.DEFINITION_ACCEPTED: ("security.definition_accepted",),
    Type.TOOLS_REQUESTED: ("tool.requested",),
    Type.SERVER_REGISTERED: ("system.server_registered",),
    Type.SERVER_DEREGISTERED: ("system.server_registered",),
    Type.WEBHOOK_SUBSCRIBED: ("security.webhook_changed",),
    Type.WEBHOOK_REMOVED: ("security.webhook_changed",),
    Type.WEBHOOK_DISABLED: ("security.webhook_changed",),
    Type.ASK_OPENED: ("security.ask_opened",),
    Type.ASK_ANSWERED: ("security.ask_answered",),
    Type.ASK_ENDED: ("security.ask_ended",),
}
_CHANGE: Final[Mapping[str, str]] = {
    Type.ACCESS_GRANTED: "granted",
    Type.ACCESS_REVOKED: "revoked",
    Type.KEY_ISSUED: "issued",
    Type.KEY_REVOKED: "revoked",
    Type.SERVER_REGISTERED: "registered",
    Type.SERVER_DEREGISTERED: "deregistered",
    Type.WEBHOOK_SUBSCRIBED: "subscribed",
    Type.WEBHOOK_REMOVED: "removed",
    Type.WEBHOOK_DISABLED: "disabled",
}
_ATTEMPTS: Final = frozenset(
    {
        *(Type.ACCESS_GRANTED, Type.ACCESS_REVOKED, Type.ASK_ANSWERED),
        *(Type.PERMISSION_GRANTED, Type.PERMISSION_DENIED, Type.PERMISSION_REVOKED),
        *(Type.SERVER_REGISTERED, Type.SERVER_DEREGISTERED),
    }
)
"""What somebody can be kept from: then it did not happen, but that it was tried did."""

_DENIED: Final = "security.access_denied"
_OF_OUTCOME: Final[Mapping[str, str]] = {
    **dict.fromkeys((ACCESS_DENIED.error_type, PERMISSION_DENIED.error_type), _DENIED),
    **dict.fromkeys(
        (RATE_LIMITED.error_type, QUOTA_EXCEEDED.error_type, EXHAUSTED.error_type),
        "system.overload",
    ),
    **dict.fromkeys((JOURNAL_AWAY.error_type, POLICY_UNKNOWN.error_type), "system.error"),
}
_FROM_DETAILS: Final = (
    *("outcome", "duration_ms", "risk_level", "outcome_known", "attempt", "permission"),
    *("decision", "expired", "subject", "verb", "target", "expires_at", "key", "party"),
    *("replaces", "counts_until", "change", "number", "tools", "ask", "kind", "verdict", "state"),
    *("status", "loaded"),
)
"""All that is told of an entry's details, where it has them."""

_ALARMING: Final[Mapping[State, Severity]] = {
    State.ERROR: Severity.ERROR,
    State.DISCONNECTED: Severity.WARNING,
    State.RESTARTING: Severity.WARNING,
}


def channels_of(event: audit.Event) -> tuple[str, ...]:
    """On which channels an entry of the journal is told; most are on one, some on none."""
    if event.type in _ATTEMPTS and event.result == Result.BLOCKED:
        return (_DENIED,)
    also = _OF_OUTCOME.get(str(event.details.get("outcome")))
    more = () if also is None or event.result != Result.BLOCKED else (also,)
    if event.type == Type.OFFER_USED:
        return more
    if event.type == Type.TOOL_EXECUTED:
        return ("tool.completed" if event.result == Result.SUCCESS else "tool.failed",)
    return (*_OF_TYPE.get(event.type, ()), *more)


def told(event: audit.Event, channel: str, name: str) -> Event:
    """An entry of the journal as it is told on a channel, under a name of its own."""
    data: dict[str, object] = {"actor": event.actor, "trace_id": as_uuid(event.trace)}
    data |= {"server_id": event.server} if event.server else {}
    data |= {"tool_name": event.tool} if event.tool else {}
    data |= {"call_id": event.call} if event.call else {}
    data |= {each: event.details[each] for each in _FROM_DETAILS if each in event.details}
    if event.type in _CHANGE:
        data["change"] = _CHANGE[event.type]
    severity = STANDARD[channel].severity
    about = (event.server, event.tool, event.actor)
    return Event(name, channel, event.at, severity, data, *about)


def alarm(state: State, *, is_given_up: bool) -> Severity:
    """How much it matters that a server is in this state now."""
    return Severity.CRITICAL if is_given_up else _ALARMING.get(state, Severity.INFO)
