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
from comity.telemetry.outcomes import OutcomeClass
from tests.conformance.governed import ADMIN, ADMINISTERS, Governed, governed
from tests.support.cases import loop_over
from tests.support.upstream import Exchange

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
        ("?outcome=blocked", 400),
        ("/export?cursor=x", 400),
        ("/export?cursor=1+-1+node", 400),
        ("/nowhere", 404),
    ],
)
async def test_what_cannot_be_answered_is_refused(scene: Governed, place: str, status: int) -> None:
    answered, _ = await scene.guest(ADMIN).http("GET", f"/api/audit{place}")
    assert answered == status


async def fail(exchange: Exchange) -> None:
    await exchange.result({"content": [{"type": "text", "text": "no"}], "isError": True})


async def test_calls_are_found_by_how_they_ended(scene: Governed) -> None:
    scene.upstreams["files"].acts["tools/call"] = fail
    for name in ("files__read", "nosuch__tool", "files__write", "nosuch__tool"):
        await ended(scene, name)
    await entries(scene, type="tool_executed", result="failure")
    for order in ("newest", "oldest"):
        listed = (await read(scene, actor="agent:ci", order=order))["entries"]
        outcomes = {each["outcome"] for each in listed}
        assert outcomes >= {"done", "denied", "unknown", "failed"}
        for outcome in OutcomeClass:
            query = {"actor": "agent:ci", "outcome": outcome, "order": order}
            expected = [each for each in listed if each["outcome"] == outcome]
            assert await read(scene, **query) == {"entries": expected}
            # Page by page, with entries of other outcomes between.
            found, page = [], await read(scene, **query, limit="1")
            while "next" in page:
                found += page["entries"]
                page = await read(scene, **query, limit="1", cursor=page["next"])
            assert found + page["entries"] == expected
    assert (await read(scene, outcome="done", result="blocked"))["entries"] == []
    assert (await read(scene, outcome="denied", result="failure"))["entries"] == []
    assert (await read(scene, outcome="unknown", result="blocked", tool="nosuch"))["entries"] == []


async def ended(scene: Governed, name: str, agent: str = "agent:ci") -> Any:
    """Call a tool, and return the entry of how that ended."""
    await scene.guest(agent).modern("tools/call", {"name": name, "arguments": {}})
    async with asyncio.timeout(30):
        while True:
            for each in (await read(scene, actor=agent))["entries"]:
                if each["outcome"] is not None and name.endswith(each["tool"]):
                    return each


async def test_a_denial_names_the_grant_to_auditors_and_nothing_more_to_the_caller(
    scene: Governed,
) -> None:
    target, verb = "files/write", "tools/call"
    why = "interns only read"
    await scene.grant(Grant("agent:ci", verb, target, Effect.DENY, justification=why))
    guest = scene.guest("agent:ci")
    answers = [
        await guest.modern("tools/call", {"name": name, "arguments": {}})
        for name in ("files__write", "nosuch__tool")
    ]
    assert why not in json.dumps(answers)
    texts = [answer["result"]["content"][0]["text"] for answer in answers]
    # Apart from its trace, the answer is the one for a name that nothing has.
    assert len({text.partition("(trace")[0] for text in texts}) == 1
    denied = await ended(scene, "files__write")
    assert (denied["result"], denied["outcome"]) == ("BLOCKED", "denied")
    decider = denied["decided_by"]
    assert (decider["kind"], decider["why"]) == ("grant", why)
    assert decider["entry"] == f"deny agent:ci {verb} {target}"
    assert (decider["server"], decider["tool"]) == ("files", "write")
    story = await read(scene, f"/timeline/{denied['trace']}")
    assert any(why in more for each in story["events"] for more in each["more"])
    unknown = await ended(scene, "nosuch__tool")
    assert (unknown["outcome"], unknown["decided_by"]["kind"]) == ("unknown", "nothing")


async def test_a_call_without_a_grant_is_denied_by_the_default(scene: Governed) -> None:
    (denied,) = await entries(scene, result="blocked")
    assert (denied["outcome"], denied["decided_by"]["kind"]) == ("denied", "default")
    assert (denied["decided_by"]["server"], denied["decided_by"]["tool"]) == ("mail", "read")
    (done,) = await entries(scene, type="tool_executed")
    assert (done["outcome"], done["decided_by"]) == ("done", None)
