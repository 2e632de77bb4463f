"""What is written down, as it is told: on which channels, with which data, and what not."""

from datetime import UTC, datetime

from msgspec.structs import replace

from comity.audit.events import AuditEvent, AuditResult, AuditType
from comity.events.model import Severity, is_channel
from comity.events.standard_channels import (
    STANDARD,
    channels_of,
    severity_of_state,
    to_channel_event,
)
from comity.mcp.mgp import ServerLifecycleState
from tests.support.cases import loop_over

AT = datetime(2026, 1, 1, tzinfo=UTC)
CALL = AuditEvent(
    AuditType.TOOL_EXECUTED,
    *("agent:ci", AT),
    server="files",
    tool="read",
    trace="0af7651916cd43dd8448eb211c80319c",
    call="run-1",
    details={
        "outcome": "ok",
        "duration_ms": 1.5,
        "risk_level": "safe",
        "arguments": {"secret": "hunter2"},
        "arguments_digest": "d",
        "reason": "nobody's words",
    },
)


def test_each_audit_event_is_told_on_standard_channels_or_on_none() -> None:
    for kind in AuditType:
        assert set(channels_of(replace(CALL, type=kind))) <= set(STANDARD)
    assert not channels_of(replace(CALL, type=AuditType.SERVER_REPORT))


@loop_over(
    ("kind", "result", "outcome", "channels"),
    [
        (AuditType.TOOL_EXECUTED, AuditResult.SUCCESS, "ok", ["tool.completed"]),
        (AuditType.TOOL_EXECUTED, AuditResult.FAILURE, "tool_error", ["tool.failed"]),
        (AuditType.TOOL_BLOCKED, AuditResult.BLOCKED, "tool_not_found", ["tool.blocked"]),
        (
            *(AuditType.TOOL_BLOCKED, AuditResult.BLOCKED, "access_denied"),
            ["tool.blocked", "security.access_denied"],
        ),
        (
            AuditType.CATALOG_ENTRY_USED,
            AuditResult.BLOCKED,
            "access_denied",
            ["security.access_denied"],
        ),
        (AuditType.CATALOG_ENTRY_USED, AuditResult.SUCCESS, "ok", []),
        (
            *(AuditType.TOOL_BLOCKED, AuditResult.BLOCKED, "rate_limited"),
            ["tool.blocked", "system.overload"],
        ),
        (
            AuditType.TOOL_BLOCKED,
            AuditResult.BLOCKED,
            "exhausted",
            ["tool.blocked", "system.overload"],
        ),
        (
            AuditType.TOOL_BLOCKED,
            AuditResult.BLOCKED,
            "policy_unknown",
            ["tool.blocked", "system.error"],
        ),
        (AuditType.ACCESS_GRANTED, AuditResult.BLOCKED, None, ["security.access_denied"]),
        (AuditType.ACCESS_GRANTED, AuditResult.SUCCESS, None, ["security.grant_changed"]),
        (AuditType.APPROVAL_ANSWERED, AuditResult.BLOCKED, None, ["security.access_denied"]),
        (
            *(AuditType.VALIDATION_FAILED, AuditResult.BLOCKED, "validation_blocked"),
            ["tool.blocked", "security.validation_failed"],
        ),
    ],
)
def test_how_it_went_decides_the_channel(
    kind: AuditType, result: AuditResult, outcome: str | None, channels: list[str]
) -> None:
    details = {} if outcome is None else {"outcome": outcome}
    entry = replace(CALL, type=kind, result=result, details=details)
    assert list(channels_of(entry)) == channels


def test_names_ids_outcomes_and_durations_are_told_and_nothing_else() -> None:
    event = to_channel_event(CALL, "tool.completed", "e-1")
    assert event.data == {
        "actor": "agent:ci",
        "trace_id": "0af76519-16cd-43dd-8448-eb211c80319c",
        "server_id": "files",
        "tool_name": "read",
        "call_id": "run-1",
        "outcome": "ok",
        "duration_ms": 1.5,
        "risk_level": "safe",
    }
    assert (event.id, event.at, event.severity) == ("e-1", AT, Severity.INFO)
    assert (event.server, event.tool, event.party, event.source) == (
        *("files", "read", "agent:ci"),
        "",
    )


def test_what_changed_is_said_where_one_channel_tells_of_several_changes() -> None:
    for kind, change in ((AuditType.KEY_ISSUED, "issued"), (AuditType.KEY_REVOKED, "revoked")):
        entry = replace(CALL, type=kind, details={"key": "k", "label": "words"})
        (channel,) = channels_of(entry)
        data = to_channel_event(entry, channel, "e").data
        assert (data["change"], data["key"], "label" in data) == (change, "k", False)


def test_every_channel_has_a_name_words_and_a_schema_of_what_it_tells() -> None:
    for name, channel in STANDARD.items():
        assert is_channel(name)
        # The document's families, and one of our own for what servers push.
        assert name.split(".")[0] in ("tool", "security", "system", "model", "push")
        assert channel.schema is not None
        properties = channel.schema["properties"]
        assert isinstance(properties, dict)
        assert properties


def test_a_server_that_fails_matters_more_than_one_that_comes() -> None:
    assert severity_of_state(ServerLifecycleState.CONNECTED, is_given_up=False) is Severity.INFO
    assert severity_of_state(ServerLifecycleState.RESTARTING, is_given_up=False) is Severity.WARNING
    assert severity_of_state(ServerLifecycleState.ERROR, is_given_up=False) is Severity.ERROR
    assert severity_of_state(ServerLifecycleState.ERROR, is_given_up=True) is Severity.CRITICAL
