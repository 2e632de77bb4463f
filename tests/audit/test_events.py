"""Events are said as MGP says them, and come back from a journal as they were."""

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from comity.audit import events as audit
from comity.audit.events import AuditEvent, AuditResult, AuditType
from comity.errors import MalformedMessage
from comity.mcp.actors import PrincipalKind
from comity.toolkit import text
from tests.support.cases import loop_over

NOW = datetime(2026, 3, 4, 5, 6, 7, 891_000, tzinfo=UTC)
TRACE = "9c1f0b526a3e4d7c8b215e0d94f7a386"
EVENT = AuditEvent(
    AuditType.TOOL_EXECUTED,
    "agent:ci",
    NOW,
    PrincipalKind.AGENT,
    "files",
    "delete",
    AuditResult.SUCCESS,
    TRACE,
    "call-1",
    {"duration_ms": 12},
)

# Whatever a text may hold that JSON can: half a character is refused before it comes here.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
moments = st.datetimes(
    datetime(1970, 1, 2),  # noqa: DTZ001  # the zone is drawn with it
    datetime(9000, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))]),
)
traces = st.text("0123456789abcdef", min_size=32, max_size=32)
events = st.builds(
    AuditEvent,
    type=st.sampled_from([str(each) for each in AuditType]) | texts,
    actor=texts,
    at=moments,
    kind=st.sampled_from(PrincipalKind),
    server=texts,
    tool=texts,
    result=st.sampled_from([str(each) for each in AuditResult]) | texts,
    trace=traces | st.just(""),
    call=texts,
    details=st.dictionaries(texts, values, max_size=4),
)


def to_the_millisecond(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(microsecond=at.microsecond // 1_000 * 1_000)


def test_an_event_is_said_as_the_document_has_it() -> None:
    assert audit.params_of(EVENT) == {
        "timestamp": "2026-03-04T05:06:07.891Z",
        "trace_id": "9c1f0b52-6a3e-4d7c-8b21-5e0d94f7a386",
        "event_type": "TOOL_EXECUTED",
        "actor": {"type": "agent", "id": "agent:ci"},
        "target": {"server_id": "files", "tool_name": "delete"},
        "result": "SUCCESS",
        "details": {"duration_ms": 12},
    }


def test_what_there_is_none_of_is_not_said() -> None:
    bare = AuditEvent(AuditType.AUDIT_LOG_OPENED, "system:gateway", NOW)
    said = audit.params_of(bare)
    assert (said["target"], said["details"], said["trace_id"]) == ({}, {}, "")
    assert "call_id" not in json.loads(audit.body_of(bare))
    assert json.loads(audit.body_of(EVENT)) == {**audit.params_of(EVENT), "call_id": "call-1"}


def test_all_types_of_the_document_are_there_and_ours_have_a_name_of_our_own() -> None:
    theirs = {
        *("TOOL_EXECUTED", "TOOL_BLOCKED", "PERMISSION_GRANTED", "PERMISSION_DENIED"),
        *("PERMISSION_REVOKED", "ACCESS_GRANTED", "ACCESS_REVOKED", "SERVER_CONNECTED"),
        *("SERVER_DISCONNECTED", "VALIDATION_FAILED", "CODE_REJECTED"),
    }
    assert {each for each in AuditType if not each.startswith(audit.OURS)} == theirs


@given(events)
@example(replace(EVENT, details={"nul": "\0", "big": 10**300, "deep": [[{}]]}))
def test_an_event_comes_back_as_it_was_kept(event: AuditEvent) -> None:
    found = audit.event_of(audit.body_of(event))
    assert found == replace(event, at=to_the_millisecond(event.at))
    assert audit.body_of(found) == audit.body_of(event)


@given(events, events)
def test_no_two_events_are_kept_as_the_same_bytes(one: AuditEvent, other: AuditEvent) -> None:
    one, other = (replace(each, at=to_the_millisecond(each.at)) for each in (one, other))
    # A number and its text are told apart here, where Python takes 1, 1.0 and True for the same.
    are_the_same = repr(one) == repr(other)
    assert (audit.body_of(one) == audit.body_of(other)) == are_the_same


@loop_over("field", [each.name for each in fields(AuditEvent)])
def test_every_part_of_an_event_is_in_what_is_kept(field: str) -> None:
    others: dict[str, Any] = {
        "at": NOW + timedelta(milliseconds=1),
        "kind": PrincipalKind.PERSON,
        "details": {"duration_ms": 13},
    }
    other = replace(EVENT, **{field: others.get(field, "other")})
    assert audit.body_of(other) != audit.body_of(EVENT)


@given(traces)
def test_a_trace_is_a_uuid_to_others(trace: str) -> None:
    assert text.from_uuid(text.as_uuid(trace)) == trace
    assert len(text.as_uuid(trace)) == 36


@pytest.mark.parametrize("trace", ["", "x", "a-b", "0" * 31, "-" * 33, "8-4-4-4-12"])
def test_a_trace_that_is_none_stays_as_it_is(trace: str) -> None:
    assert text.as_uuid(trace) == trace
    assert text.from_uuid(trace) == trace


SAID: dict[str, Any] = json.loads(audit.body_of(EVENT))


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in SAID.items() if key != name}


@loop_over(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"actor":' * 50_000,
        *(json.dumps(without(name)).encode() for name in SAID if name != "call_id"),
        *(json.dumps({**SAID, name: []}).encode() for name in ("actor", "target", "details")),
        *(json.dumps({**SAID, name: None}).encode() for name in ("actor", "target", "details")),
        json.dumps({**SAID, "actor": {"type": "nobody", "id": "x"}}).encode(),
        json.dumps({**SAID, "actor": {"id": "x"}}).encode(),
        json.dumps({**SAID, "timestamp": "yesterday"}).encode(),
        json.dumps({**SAID, "timestamp": 17}).encode(),
        json.dumps({**SAID, "timestamp": "2026-03-04T05:06:07"}).encode(),
        json.dumps({**SAID, "timestamp": "0001-01-01T00:00:00+23:59"}).encode(),
    ],
    ids=lambda body: ascii(body[:60]),
)
def test_what_is_no_entry_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedMessage, match="invalid audit entry"):
        audit.event_of(body)


json_like = st.recursive(
    st.none() | st.integers() | texts | st.sampled_from(list(map(str, PrincipalKind))),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*SAID, "id", "type", "server_id"]), inner, max_size=7)
    ),
    max_leaves=20,
)


@given(st.binary(max_size=60) | json_like.map(json.dumps).map(str.encode))
def test_whatever_a_journal_holds_is_an_event_or_refused(body: bytes) -> None:
    try:
        found = audit.event_of(body)
    except MalformedMessage:
        return
    assert isinstance(found, AuditEvent)
    assert audit.event_of(audit.body_of(found)) == replace(found, at=to_the_millisecond(found.at))


@given(
    name=st.sampled_from(list(SAID)),
    value=values
    | st.dictionaries(st.sampled_from(["type", "id", "server_id"]), values, max_size=3),
)
def test_an_entry_with_any_part_replaced_is_an_event_or_refused(name: str, value: object) -> None:
    body = json.dumps({**SAID, name: value}).encode()
    with suppress(MalformedMessage):
        assert isinstance(audit.event_of(body), AuditEvent)
