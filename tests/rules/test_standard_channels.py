"""What is written down, as it is told: on which channels, with which data, and what not."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from comity.rules.standard_channels import STANDARD, alarm, channels_of, told
from comity.wire.audit import Event, Result, Type
from comity.wire.events import Severity, is_channel
from comity.wire.lifecycle import State

AT = datetime(2026, 1, 1, tzinfo=UTC)
CALL = Event(
    Type.TOOL_EXECUTED,
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
ELSEWHERE = {
    *(Type.CALL_INTENDED, Type.OFFER_USED, Type.ASK_USED, Type.ASK_RESTORED, Type.TESTIMONY),
    *(Type.SERVER_CONNECTED, Type.SERVER_DISCONNECTED, Type.RESTART_LIMIT_EXCEEDED),
    Type.GATEWAY_SHUTDOWN,
    *(Type.SUGGESTION_ACCEPTED, Type.SUGGESTION_DISMISSED, Type.TOOLS_SEARCHED),
    *(Type.TOPIC_JOINED, Type.TOPIC_LEFT, Type.TOPIC_SAID, Type.TOPIC_REFUSED, Type.TOPIC_CALLED),
    *(Type.PROPOSAL_FULFILLED, Type.PROPOSAL_REPEATED),
    *(Type.FEATURES_TOLD, Type.FEATURES_CHANGED, Type.FEATURE_USED, Type.FEATURE_REFUSED),
    Type.SCOPE_DECIDED,
    *(Type.PUSH_RECEIVED, Type.PUSH_REFUSED, Type.PUSH_DONE, Type.PUSH_FAILED),
    *(Type.MODEL_ASKED, Type.BUDGET_EXCEEDED, Type.BUDGET_RAISED),
    *(Type.TURN_BEGUN, Type.TURN_ENDED, Type.HOOK_ASKED, Type.RESPONSE_REWRITTEN),
    *(Type.STATE_KEPT, Type.STATE_DROPPED, Type.STATE_FORGOTTEN, Type.STATE_ROLLED_BACK),
    *(Type.JOURNAL_OPENED, Type.JOURNAL_CLOSED, Type.SEGMENT_SEALED),
}
"""Told in another way (where a server stands, topics), or only to those who read the journal."""


@pytest.mark.parametrize("kind", list(Type))
def test_each_type_is_told_on_a_channel_that_there_is_or_is_known_not_to_be(kind: Type) -> None:
    channels = channels_of(replace(CALL, type=kind))
    assert set(channels) <= set(STANDARD)
    assert bool(channels) is (kind not in ELSEWHERE)


@pytest.mark.parametrize(
    ("kind", "result", "outcome", "channels"),
    [
        (Type.TOOL_EXECUTED, Result.SUCCESS, "ok", ["tool.completed"]),
        (Type.TOOL_EXECUTED, Result.FAILURE, "tool_error", ["tool.failed"]),
        (Type.TOOL_BLOCKED, Result.BLOCKED, "tool_not_found", ["tool.blocked"]),
        (
            *(Type.TOOL_BLOCKED, Result.BLOCKED, "access_denied"),
            ["tool.blocked", "security.access_denied"],
        ),
        (Type.OFFER_USED, Result.BLOCKED, "access_denied", ["security.access_denied"]),
        (Type.OFFER_USED, Result.SUCCESS, "ok", []),
        (
            *(Type.TOOL_BLOCKED, Result.BLOCKED, "rate_limited"),
            ["tool.blocked", "system.overload"],
        ),
        (Type.TOOL_BLOCKED, Result.BLOCKED, "exhausted", ["tool.blocked", "system.overload"]),
        (Type.TOOL_BLOCKED, Result.BLOCKED, "policy_unknown", ["tool.blocked", "system.error"]),
        (Type.ACCESS_GRANTED, Result.BLOCKED, None, ["security.access_denied"]),
        (Type.ACCESS_GRANTED, Result.SUCCESS, None, ["security.grant_changed"]),
        (Type.ASK_ANSWERED, Result.BLOCKED, None, ["security.access_denied"]),
        (
            *(Type.VALIDATION_FAILED, Result.BLOCKED, "validation_blocked"),
            ["tool.blocked", "security.validation_failed"],
        ),
    ],
)
def test_how_it_went_decides_the_channel(
    kind: Type, result: Result, outcome: str | None, channels: list[str]
) -> None:
    details = {} if outcome is None else {"outcome": outcome}
    entry = replace(CALL, type=kind, result=result, details=details)
    assert list(channels_of(entry)) == channels


def test_names_ids_outcomes_and_durations_are_told_and_nothing_else() -> None:
    event = told(CALL, "tool.completed", "e-1")
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
    for kind, change in ((Type.KEY_ISSUED, "issued"), (Type.KEY_REVOKED, "revoked")):
        entry = replace(CALL, type=kind, details={"key": "k", "label": "words"})
        (channel,) = channels_of(entry)
        data = told(entry, channel, "e").data
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
    assert alarm(State.CONNECTED, is_given_up=False) is Severity.INFO
    assert alarm(State.RESTARTING, is_given_up=False) is Severity.WARNING
    assert alarm(State.ERROR, is_given_up=False) is Severity.ERROR
    assert alarm(State.ERROR, is_given_up=True) is Severity.CRITICAL
