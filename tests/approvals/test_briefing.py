"""What an approver sees of a request, how requests are found, and approving with a rule."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from comity.approvals.model import ApprovalFilter, ApprovalKind, ApprovalState
from comity.catalog.tool_reviews import ToolReview, ToolReviewService
from comity.mcp.actors import CALL
from comity.mcp.entries import CatalogEntry
from comity.policy.grants import Effect, Grant
from comity.policy.risk import Risk
from tests.conformance.governed import ADMIN
from tests.support.inbox_scene import ANA, Scene, an_inbox
from tests.support.visitor import SECONDS

MODERATE: dict[str, Any] = {"risk": "moderate"}


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with an_inbox() as scene:
        yield scene


@pytest.fixture
def is_moderate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tool is moderate, and one answer may cover further calls."""
    reviewed = ToolReviewService.review_of

    def review_of(service: ToolReviewService, entry: CatalogEntry) -> ToolReview:
        found = reviewed(service, entry)
        return replace(found, risk=Risk.MODERATE, repeat_approval_reason=None)

    monkeypatch.setattr(ToolReviewService, "review_of", review_of)


async def ids(scene: Scene, query: str) -> tuple[list[str], Any]:
    status, page = await scene.person(ADMIN).http("GET", f"/api/approvals?{query}")
    assert status == 200, page
    return [each["id"] for each in page["approvals"]], page


async def test_requests_are_found_by_state_principal_tool_kind_and_text(scene: Scene) -> None:
    first = await scene.ask(1)
    other = await scene.ask(2, asker="agent:other", server="mail", tool="send")
    third = await scene.ask(3, kind=ApprovalKind.INPUT, message="Which 100% branch?", tool="read")
    assert (await ids(scene, "order=oldest"))[0] == [first.id, other.id, third.id]
    assert (await ids(scene, "principal=agent:other"))[0] == [other.id]
    assert (await ids(scene, "server=files&tool=write"))[0] == [first.id]
    assert (await ids(scene, "kind=input"))[0] == [third.id]
    assert (await ids(scene, "text=100%25+BRANCH"))[0] == [third.id]
    assert (await ids(scene, "text=100_"))[0] == []
    assert (await ids(scene, "state=denied"))[0] == []


async def test_pages_follow_each_other_in_both_orders_and_count_all(scene: Scene) -> None:
    made = [(await scene.ask(number)).id for number in range(5)]
    for order, expected in (("oldest", sorted(made)), ("newest", sorted(made, reverse=True))):
        found: list[str] = []
        cursor = ""
        while True:
            listed, page = await ids(scene, f"order={order}&limit=2&cursor={cursor}")
            assert page["total"] == 5
            found += listed
            if "next" not in page:
                break
            cursor = page["next"]
        assert found == expected


async def test_only_a_reader_of_all_requests_learns_how_many_there_are(scene: Scene) -> None:
    await scene.ask(1, server="mail", tool="send")
    _, page = await scene.person(ANA).http("GET", "/api/approvals")
    assert page == {"approvals": []}


async def test_a_request_shows_all_that_an_approver_needs(scene: Scene) -> None:
    before = await scene.ask(1)
    ana = scene.person(ANA)
    word = {"verdict": "decline", "reason": "not today"}
    await ana.http("POST", f"/api/approvals/{before.id}/answer", word)
    await scene.governed.grant(Grant("agent:ci", CALL, "files/read", Effect.ALLOW))
    agent = scene.governed.guest("agent:ci")
    await agent.modern("tools/call", {"name": "files__read", "arguments": {}})
    await scene.governed.visitor.parts.audit_log_components.audit_log.flush()
    asked = await scene.ask(2)
    _, found = await ana.http("GET", f"/api/approvals/{asked.id}")
    assert found["arguments"] == {"path": "/reports/2.txt"}
    assert found["risk_reasons"]
    assert [each["id"] for each in found["earlier_requests"]] == [before.id]
    assert found["earlier_requests"][0]["answers"][0]["reason"] == "not today"
    assert [(each["server"], each["tool"]) for each in found["recent_calls"]] == [("files", "read")]
    assert found["approver_names"] is None
    assert (found["quorum"], found["accepted_count"]) == (1, 0)
    assert found["rule"] is None
    assert "dangerous" in found["rule_refusal"]
    _, seen = await scene.person(ADMIN).http("GET", f"/api/approvals/{asked.id}")
    assert ANA in seen["approver_names"]


async def test_a_dangerous_tool_gets_no_rule(scene: Scene) -> None:
    asked = await scene.ask(1)
    admin = scene.person(ADMIN)
    word: Any = {"verdict": "accept", "rule": {}}
    status, refused = await admin.http("POST", f"/api/approvals/{asked.id}/answer", word)
    assert (status, refused["error"]["data"]["error_type"]) == (400, "access_denied")
    current = await scene.approvals.store.get(asked.id)
    assert current is not None
    assert current.state is ApprovalState.PENDING


@pytest.mark.usefixtures("is_moderate")
async def test_an_approval_with_a_rule_makes_the_grant_that_was_shown(scene: Scene) -> None:
    asked = await scene.ask(1, about=moderate_subject(scene))
    admin = scene.person(ADMIN)
    _, shown = await admin.http("GET", f"/api/approvals/{asked.id}")
    assert shown["rule_refusal"] is None
    assert "/reports/1.txt" in shown["rule"]["where_text"]
    word: Any = {"verdict": "accept", "rule": {}}
    status, found = await admin.http("POST", f"/api/approvals/{asked.id}/answer", word)
    assert (status, found["state"]) == (200, "approved")
    made = found["remembered"]
    assert {name: made[name] for name in shown["rule"]} == shown["rule"]
    grants = scene.governed.visitor.parts.snapshot.grants.latest.index_of("agent:ci").grants
    assert [grant.where for grant in grants] == [shown["rule"]["where"]]


@pytest.mark.usefixtures("is_moderate")
async def test_a_rule_needs_admin_write_and_must_cover_the_call(scene: Scene) -> None:
    asked = await scene.ask(1, about=moderate_subject(scene))
    path = f"/api/approvals/{asked.id}/answer"
    status, _ = await scene.person(ANA).http("POST", path, {"verdict": "accept", "rule": {}})
    assert status == 400
    where = {"paths": {"/path": {"is": "/other"}}, "only": ["path"]}
    word = {"verdict": "accept", "rule": {"where": where}}
    status, refused = await scene.person(ADMIN).http("POST", path, word)
    assert status == 400
    assert "does not cover" in refused["error"]["message"]
    assert (await scene.person(ADMIN).http("POST", path, {**word, "verdict": "decline"}))[0] == 400
    assert await scene.approvals.store.count_matches(ApprovalFilter()) == 1
    current = await scene.approvals.store.get(asked.id)
    assert current is not None
    assert not current.answers


def moderate_subject(scene: Scene) -> dict[str, object]:
    return {**scene.new(1).about, **MODERATE}


async def test_a_rule_for_a_request_that_is_over_is_refused_by_its_end(scene: Scene) -> None:
    asked, ana = await scene.ask(1), scene.person(ANA)
    await ana.http("POST", f"/api/approvals/{asked.id}/answer", {"verdict": "decline"})
    word: Any = {"verdict": "accept", "rule": {}}
    path = f"/api/approvals/{asked.id}/answer"
    _, refused = await scene.person(ADMIN).http("POST", path, word)
    assert f"already denied by {ANA}" in refused["error"]["message"]


async def test_the_facts_of_a_request_outlive_the_connection_of_its_server(scene: Scene) -> None:
    facts = {"description": "Writes a file.", "risk_reasons": ["it may destroy something"]}
    about = {**scene.new().about, **facts, "client": "client 1.0"}
    kept = await scene.ask(1, server="gone", tool="write", about=about)
    older = await scene.ask(2, server="gone", tool="erase")
    undescribed = await scene.ask(3, server="gone", about={**about, "description": ""})
    admin = scene.person(ADMIN)
    seen = [
        (await admin.http("GET", f"/api/approvals/{each.id}"))[1]
        for each in (kept, older, undescribed)
    ]
    assert seen[0]["tool_description"] == "Writes a file."
    assert (seen[0]["risk_reasons"], seen[0]["client"]) == (facts["risk_reasons"], "client 1.0")
    # Not known, and known to be empty, are two things.
    assert [each["tool_description"] for each in seen[1:]] == [None, ""]
    assert not any(each["is_tool_listed"] for each in seen)


async def test_the_result_of_an_approved_call_is_read_by_those_who_took_part(
    scene: Scene,
) -> None:
    await scene.governed.grant(Grant("agent:ci", CALL, "files/*", Effect.ASK))
    agent = scene.governed.guest("agent:ci")
    calling = asyncio.ensure_future(
        agent.modern("tools/call", {"name": "files__write", "arguments": {"path": "a"}})
    )
    ana, admin = scene.person(ANA), scene.person(ADMIN)
    async with asyncio.timeout(SECONDS):
        while not (found := (await ana.http("GET", "/api/approvals"))[1]["approvals"]):
            await asyncio.sleep(0.01)
        path = f"/api/approvals/{found[0]['id']}"
        assert (await ana.http("GET", path))[1]["result"] is None
        await ana.http("POST", f"{path}/answer", {"verdict": "accept"})
        answer = await calling
        while (seen := (await ana.http("GET", path))[1])["result"] is None:
            if "inputRequired" in str(answer) or "pending_approval" in str(answer):
                params = {"name": "files__write", "arguments": {"path": "a"}}
                answer = await agent.modern("tools/call", params)
            await asyncio.sleep(0.01)
    (block,) = answer["result"]["content"]
    assert (seen["result"]["outcome"], seen["result"]["text"]) == ("done", block["text"])
    assert (await admin.http("GET", path))[1]["result"]["text"] is None
    assert (await admin.http("GET", path))[1]["result"]["outcome"] == "done"
