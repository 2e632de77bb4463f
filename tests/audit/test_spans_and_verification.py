"""A trace as spans, the verification in the background, and the indexes of the search."""

import asyncio
import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.dialects import sqlite

from comity.audit.chain import AuditFilter
from comity.audit.events import AuditEvent, AuditType
from comity.audit.spans import build_spans
from comity.audit.store import sought_for
from comity.mcp.actors import CALL
from comity.policy.grants import Effect, Grant
from tests.conformance.governed import ADMIN
from tests.support.inbox_scene import Scene, an_inbox
from tests.support.visitor import SECONDS

START = datetime(2026, 3, 1, tzinfo=UTC)
AGENT = "agent:ci"


def event(type: AuditType, after_ms: int, call: str = "", **details: object) -> AuditEvent:
    at = START + timedelta(milliseconds=after_ms)
    return AuditEvent(
        type, AGENT, at, server="files", tool="write", trace="1" * 32, call=call, details=details
    )


def test_a_trace_becomes_spans_of_its_calls_and_approvals() -> None:
    spans = build_spans(
        [
            event(AuditType.APPROVAL_REQUESTED, 10, approval="a1"),
            event(AuditType.APPROVAL_ANSWERED, 510, approval="a1"),
            event(AuditType.CALL_INTENDED, 520, call="c1"),
            event(AuditType.TOOL_EXECUTED, 570, call="c1"),
            event(AuditType.TOOL_EXECUTED, 600, duration_ms=20),
        ]
    )
    assert [(span.kind, span.duration_ms) for span in spans] == [
        ("trace", 590.0),
        ("approval", 500.0),
        ("call", 50.0),
        ("call", 20.0),
    ]
    assert {span.parent for span in spans} == {None, "trace"}
    assert spans[2].name == "files/write"


def test_a_duration_that_makes_no_sense_is_ignored() -> None:
    for said in (-1, True, "soon", 10**20):
        assert (
            build_spans([event(AuditType.TOOL_EXECUTED, 5, duration_ms=said)])[1].duration_ms == 0
        )
    assert build_spans([]) == []


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with an_inbox(Grant(AGENT, CALL, "files/read", Effect.ALLOW)) as scene:
        yield scene


async def verified(scene: Scene) -> Any:
    admin = scene.person(ADMIN)
    async with asyncio.timeout(SECONDS):
        while True:
            _, found = await admin.http("GET", "/api/audit/verification")
            if found["state"] != "running":
                return found
            await asyncio.sleep(0.01)


async def test_a_verification_runs_in_the_background_and_its_result_stays(scene: Scene) -> None:
    admin = scene.person(ADMIN)
    assert (await admin.http("GET", "/api/audit/verification"))[1]["state"] == "never"
    status, begun = await admin.http("POST", "/api/audit/verification", {})
    assert (status, begun["state"], begun["started_by"]) == (200, "running", ADMIN)
    found = await verified(scene)
    # Nothing is signed without a store, and nothing is altered.
    assert found["state"] in ("whole", "unsigned")
    assert found["entries"] == sum(each["entries"] for each in found["chains"]) > 0
    assert found["ended_at"]


async def test_a_verification_can_be_cancelled(scene: Scene) -> None:
    admin = scene.person(ADMIN)
    await admin.http("POST", "/api/audit/verification", {})
    _, ended = await admin.http("POST", "/api/audit/verification/cancel", {})
    assert ended["state"] in ("cancelled", "whole", "unsigned")


async def test_a_call_is_shown_as_spans(scene: Scene) -> None:
    agent = scene.governed.guest(AGENT)
    await agent.modern("tools/call", {"name": "files__read", "arguments": {}})
    admin = scene.person(ADMIN)
    _, found = await admin.http("GET", f"/api/audit?actor={AGENT}&type=tool_executed")
    (entry,) = found["entries"]
    status, told = await admin.http("GET", f"/api/audit/traces/{entry['trace']}")
    assert status == 200
    assert [span["kind"] for span in told["spans"]] == ["trace", "call"]
    assert (await admin.http("GET", "/api/audit/traces/" + "0" * 32))[0] == 404


@pytest.mark.parametrize(
    ("criteria", "index"),
    [
        (AuditFilter(actor=AGENT), "by_actor"),
        (AuditFilter(server="files"), "by_server"),
        (AuditFilter(server="files", tool="write"), "by_server"),
        (AuditFilter(tool="write"), "by_time"),
        (AuditFilter(results=("BLOCKED",)), "by_result"),
        (AuditFilter(results=("SUCCESS",)), "by_time"),
        (AuditFilter(results=("BLOCKED", "FAILURE"), newest_first=True), "by_result"),
        (AuditFilter(types=("dev.comity.key_issued",)), "by_type"),
        (AuditFilter(types=("TOOL_EXECUTED", "dev.comity.key_issued")), "by_time"),
        (AuditFilter(trace="1" * 32), "by_trace"),
        (AuditFilter(since=START), "by_time"),
        (AuditFilter(after=(START, "n", 1), newest_first=True), "by_time"),
        (AuditFilter(actor=AGENT, after=(START, "n", 1), newest_first=True), "by_actor"),
    ],
)
async def test_every_filter_of_the_search_has_an_index(
    scene: Scene, criteria: AuditFilter, index: str
) -> None:
    store: Any = scene.governed.visitor.parts.snapshot.records
    plain = str(
        sought_for(criteria, 100).compile(
            dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}
        )
    )
    async with store._database.reading() as connection:
        rows = await connection.execute(text("EXPLAIN QUERY PLAN " + plain.replace(":", "\\:")))
        plan = " ".join(str(row[3]) for row in rows)
    assert f"comity_audit_entries_{index}" in plan, plan
    # The pages of several results are sorted when they are merged. The entries are not.
    plan = re.sub(r"SCAN anon_\d+ USE TEMP B-TREE FOR ORDER BY", "", plan)
    assert "TEMP B-TREE" not in plan or index in ("by_trace", "by_type"), plan
