"""The journal at /api/audit: who reads it, and what is told of each entry, call and chain."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from comity.audit.signing import is_valid_signature
from comity.audit.verify import ExportVerifier
from comity.policy.grants import Effect, Grant
from tests.conformance.governed import ADMIN, ADMINISTERS, Governed, governed
from tests.support.cases import loop_over

CALLS = Grant("agent:ci", "tools/call", "files/*", Effect.ALLOW)


@pytest.fixture
async def scene() -> AsyncGenerator[Governed]:
    async with governed(grants=(*ADMINISTERS, CALLS), audit_arguments="all") as scene:
        guest = scene.guest("agent:ci")
        await guest.modern(
            "tools/call", {"name": "files__read", "arguments": {"password": "hush-hush"}}
        )
        await guest.modern("tools/call", {"name": "mail__read", "arguments": {}})
        yield scene


async def read(scene: Governed, place: str = "", **query: str) -> Any:
    asked = f"/api/audit{place}" + (f"?{urlencode(query)}" if query else "")
    status, found = await scene.guest(ADMIN).http("GET", asked)
    assert status == 200, found
    return found


async def entries(scene: Governed, **query: str) -> list[Any]:
    """Entries are kept within a moment."""
    async with asyncio.timeout(30):
        while True:
            found = (await read(scene, **query))["entries"]
            if found:
                return found


async def test_what_happened_is_found_by_who_what_and_how(scene: Governed) -> None:
    (found,) = await entries(
        scene, actor="agent:ci", server="files", tool="read", type="tool_executed"
    )
    assert found["result"] == "SUCCESS"
    assert found["type"] == "TOOL_EXECUTED"
    assert found["details"]["arguments"]["password"].startswith("[secret:")
    assert "hush" not in json.dumps(await read(scene))
    (refused,) = await entries(scene, result="blocked")
    assert "read" in refused["tool"]
    assert (await read(scene, trace=found["trace"]))["entries"]
    assert (await read(scene, call=found["call"]))["entries"]
    for query in ({"until": "2026-01-01T00:00:00"}, {"since": "2999-01-01T00:00:00Z"}):
        assert (await read(scene, **query))["entries"] == []
    types = await entries(scene, type="tool_executed, tool_blocked,validation-failed")
    assert {each["type"] for each in types} <= {"TOOL_EXECUTED", "TOOL_BLOCKED"}


async def test_pages_follow_one_another_in_both_orders(scene: Governed) -> None:
    await entries(scene, result="blocked")
    for order in ("oldest", "newest"):
        seen: list[int] = []
        page = await read(scene, order=order, limit="1")
        while True:
            seen += [each["seq"] for each in page["entries"]]
            if "next" not in page:
                break
            page = await read(scene, order=order, limit="1", cursor=page["next"])
        whole = [each["seq"] for each in (await read(scene, order=order))["entries"]]
        assert seen == whole
        assert len(seen) >= 3


async def test_the_story_of_a_call_is_told(scene: Governed) -> None:
    (found,) = await entries(scene, type="tool_executed")
    story = await read(scene, f"/timeline/{found['trace']}")
    assert story["headline"].startswith("agent:ci called files/read: it succeeded")
    assert story["events"][0]["text"]
    assert story["unknown"] == []
    assert {each["trace"] for each in story["entries"]} == {found["trace"]}
    status, said = await scene.guest(ADMIN).http(
        "GET", f"/api/audit/timeline/{quote('no/such', safe='')}"
    )
    assert (status, "nothing" in json.dumps(said)) == (404, True)


async def test_an_export_is_proved_page_by_page(scene: Governed) -> None:
    await entries(scene, result="blocked")
    proof, page = ExportVerifier(is_valid_signature), await read(scene, "/export")
    while True:
        for line in page["lines"]:
            proof.take(line.encode())
        if "next" not in page:
            break
        page = await read(scene, "/export", cursor=page["next"])
    report = proof.finish()
    # Nobody signs a journal in memory, and it is younger than a signature may take.
    assert (report.findings, report.more) == ((), 0)
    assert report.entries >= 3


async def test_audit_log_is_read_by_operators_and_changed_by_nobody(scene: Governed) -> None:
    for place in ("", "/export", "/key", "/story/x"):
        status, _ = await scene.guest("agent:ci").http("GET", f"/api/audit{place}")
        assert status == 403
    for verb in ("POST", "PUT", "DELETE"):
        status, _ = await scene.guest(ADMIN).http(verb, "/api/audit", {})
        assert status in (404, 405)
    told = await read(scene, "/key")
    assert set(told) == {"node", "key", "signed_to", "waiting"}
    assert told["node"]


@loop_over(
    ("place", "status"),
    [
        ("?limit=0", 400),
        ("?limit=1001", 400),
        ("?limit=many", 400),
        ("?order=sideways", 400),
        ("?since=yesterday", 400),
        ("?cursor=nonsense", 400),
        ("?cursor=2026-01-01T00:00:00+1+node", 400),
        ("?colour=red", 400),
        ("/export?cursor=x", 400),
        ("/export?cursor=1+-1+node", 400),
        ("/nowhere", 404),
    ],
)
async def test_what_cannot_be_answered_is_refused(scene: Governed, place: str, status: int) -> None:
    answered, _ = await scene.guest(ADMIN).http("GET", f"/api/audit{place}")
    assert answered == status
