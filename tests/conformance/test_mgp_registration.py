"""Servers that agents register and deregister, through the doors in both eras. (MGP §15.4-15.5)"""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from comity.approvals.model import ApprovalDecision
from comity.audit.events import AuditType
from comity.mcp.actors import ADMIN_WRITE, Actor, PrincipalKind
from comity.policy.grants import PERMISSION_VERB, Effect, Grant
from tests.conformance.governed import ADMIN, Governed, refusal_of
from tests.conformance.newcomer_scene import (
    AGENT,
    CODE,
    DEREGISTER,
    MADE,
    MAY_CODE,
    OTHER,
    REGISTER,
    SPOKEN,
    STATS,
    brought,
    called,
    greeted,
    is_there,
    journaled,
    listed,
    may_call,
    open_ask,
    tool_names,
    until,
    until_gone,
)
from tests.support.upstream import scripted

PERSON = Actor(ADMIN, PrincipalKind.PERSON)
CALLS = may_call(AGENT, "dynamic.stats", "average")


async def answer(scene: Governed, verdict: ApprovalDecision = ApprovalDecision.ACCEPT) -> None:
    ask = await open_ask(scene)
    await scene.visitor.parts.approval_components.approvals.answer(PERSON, ask.id, verdict)


@pytest.mark.requirement("MGP-15.4-register", "MGP-15.4-sandboxed")
async def test_what_is_registered_is_listed_and_its_tools_can_be_called(tmp_path: Path) -> None:
    async with brought(
        tmp_path, more_grants=[may_call(ADMIN, "dynamic.stats", "average")]
    ) as scene:
        admin = await greeted(scene)
        wish = {**STATS, "mgp": {"trust_level": "trusted"}, "created_by": "agent:somebody_else"}
        came = (await admin.ask(REGISTER, {**wish, "justification": "to count"}))["result"]
        assert (came["id"], came["status"]) == ("dynamic.stats", "connected")
        assert (came["trust_level"], came["created_by"]) == ("sandboxed", ADMIN)
        assert came["tools"] == ["average"]
        there = (await listed(admin))["dynamic.stats"]
        assert (there["trust_level"], there["tools"]) == ("sandboxed", ["average"])
        assert (await called(admin, [1, 2]))["result"]["content"][0]["text"] == "1.5"
        _, shown = await admin.http("GET", "/api/servers/dynamic.stats")
        assert shown["registered_by"] == ADMIN
        written = await journaled(scene, AuditType.SERVER_REGISTERED)
        assert [event.result for event in written] == ["PENDING", "SUCCESS"]
        assert written[0].details["claimed_by"] == "agent:somebody_else"
        assert {event.actor for event in written} == {ADMIN}


@pytest.mark.requirement("MGP-15.4-register")
async def test_it_is_registered_in_the_modern_era_too(tmp_path: Path) -> None:
    async with brought(tmp_path) as scene:
        came = await scene.guest(ADMIN).modern(REGISTER, STATS, **SPOKEN)
        assert (came["result"]["resultType"], came["result"]["status"]) == ("complete", "connected")
        gone = await scene.guest(ADMIN).modern(DEREGISTER, {"id": "dynamic.stats"}, **SPOKEN)
        assert gone["result"]["deregistered"] is True


@pytest.mark.requirement("MGP-15.4-register", "MGP-2.2-ext-discovery")
async def test_who_did_not_negotiate_discovery_has_no_such_method(tmp_path: Path) -> None:
    async with brought(tmp_path) as scene:
        plain = await scene.guest(ADMIN).greet()
        for method in (REGISTER, DEREGISTER):
            assert refusal_of(await plain.ask(method, STATS)) == "method_not_found"


@pytest.mark.requirement("MGP-15.4-register")
async def test_without_a_grant_a_person_is_asked_and_the_request_waits(tmp_path: Path) -> None:
    async with brought(tmp_path, more_grants=[CALLS]) as scene:
        agent = await greeted(scene, AGENT)
        waiting = asyncio.ensure_future(agent.ask(REGISTER, STATS))
        ask = await open_ask(scene)
        assert ask.asker == AGENT
        assert ask.about["command"] == ["python", "stats.py"]
        assert ask.about["code"] == CODE
        assert not is_there(scene)
        await answer(scene)
        assert (await waiting)["result"]["created_by"] == AGENT
        assert (await called(agent, [4, 6]))["result"]["content"][0]["text"] == "5.0"
        used = await scene.visitor.parts.approval_components.approvals.store.get(ask.id)
        assert used is not None
        assert used.state == "consumed"


@pytest.mark.requirement("MGP-15.4-register")
async def test_who_cannot_wait_is_told_so_and_the_same_request_runs_once(tmp_path: Path) -> None:
    async with brought(tmp_path, approvals_client_wait=timedelta(milliseconds=200)) as scene:
        agent = await greeted(scene, AGENT)
        assert refusal_of(await agent.ask(REGISTER, STATS)) == "pending_approval"
        await answer(scene)
        other = {**STATS, "justification": "another one"}
        assert refusal_of(await agent.ask(REGISTER, other)) == "pending_approval"
        assert (await agent.ask(REGISTER, STATS))["result"]["status"] == "connected"
        await agent.ask(DEREGISTER, {"id": "dynamic.stats"})
        assert refusal_of(await agent.ask(REGISTER, STATS)) == "pending_approval"


@pytest.mark.requirement("MGP-15.4-register")
async def test_what_a_person_declines_does_not_start(tmp_path: Path) -> None:
    async with brought(tmp_path) as scene:
        agent = await greeted(scene, AGENT)
        waiting = asyncio.ensure_future(agent.ask(REGISTER, STATS))
        await answer(scene, ApprovalDecision.DECLINE)
        assert refusal_of(await waiting) == "declined"
        assert not is_there(scene)


@pytest.mark.requirement("MGP-15.4-register")
async def test_a_registration_grants_nobody_anything(tmp_path: Path) -> None:
    mine = Grant(AGENT, ADMIN_WRITE, "dynamic.stats/*", Effect.ALLOW)
    async with brought(tmp_path, more_grants=[mine]) as scene:
        agent = await greeted(scene, AGENT)
        assert (await agent.ask(REGISTER, STATS))["result"]["tools"] == []
        assert await tool_names(agent) == []
        assert await tool_names(await greeted(scene, OTHER)) == []


async def test_its_creator_may_call_it_where_the_operator_wants_that(tmp_path: Path) -> None:
    mine = Grant(AGENT, ADMIN_WRITE, "dynamic.stats/*", Effect.ALLOW)
    async with brought(tmp_path, more_grants=[mine], registration_creator_may_call=True) as scene:
        agent = await greeted(scene, AGENT)
        assert (await agent.ask(REGISTER, STATS))["result"]["tools"] == ["average"]
        assert await tool_names(await greeted(scene, OTHER)) == []
        await agent.ask(DEREGISTER, {"id": "dynamic.stats"})
        assert await scene.visitor.parts.snapshot.records.grants.page() == []


@pytest.mark.requirement("MGP-15.5-deregister")
async def test_its_creator_takes_it_away_and_its_calls_finish_first(tmp_path: Path) -> None:
    async with brought(tmp_path, more_grants=[CALLS]) as scene:
        agent = await greeted(scene, AGENT)
        waiting = asyncio.ensure_future(agent.ask(REGISTER, STATS))
        await answer(scene)
        await waiting
        gone = await agent.ask(DEREGISTER, {"id": "dynamic.stats", "reason": "no_longer_needed"})
        assert gone["result"] == {"id": "dynamic.stats", "deregistered": True}
        assert await tool_names(agent) == []
        assert not is_there(scene)
        (event,) = await journaled(scene, AuditType.SERVER_DEREGISTERED)
        assert (event.actor, event.details["reason"]) == (AGENT, "no_longer_needed")


@pytest.mark.requirement("MGP-15.5-deregister")
async def test_a_server_of_a_file_is_never_deregistered(tmp_path: Path) -> None:
    async with brought(tmp_path) as scene:
        admin = await greeted(scene)
        unknown = await admin.ask(DEREGISTER, {"id": "dynamic.nothing"})
        known = await admin.ask(DEREGISTER, {"id": "files"})
        assert unknown["error"]["message"] == known["error"]["message"]
        assert scene.visitor.parts.servers.require("files").state == "connected"


@pytest.mark.requirement("MGP-15.4-register")
async def test_it_goes_with_the_session_of_its_creator(tmp_path: Path) -> None:
    async with brought(tmp_path) as scene:
        admin = await greeted(scene)
        assert (await admin.ask(REGISTER, STATS))["result"]["lifetime"] == "session"
        await admin.visitor.send("DELETE", admin.session.items())
        await until_gone(scene)


@pytest.mark.requirement("MGP-15.4-life")
async def test_its_whole_life_is_listed_and_written_down(tmp_path: Path) -> None:
    async with brought(tmp_path, more_grants=[may_call(ADMIN, "dynamic.stats")]) as scene:
        operator, maker = await greeted(scene), await greeted(scene)
        await maker.ask(REGISTER, STATS)
        assert (await listed(operator))["dynamic.stats"]["status"] == "connected"
        (_, came) = await journaled(scene, AuditType.SERVER_REGISTERED)
        assert (came.actor, came.server, came.result) == (ADMIN, "dynamic.stats", "SUCCESS")
        await maker.visitor.send("DELETE", maker.session.items())
        await until_gone(scene)
        assert "dynamic.stats" not in await listed(operator)

        async def look() -> Any:
            return await journaled(scene, AuditType.SERVER_DEREGISTERED)

        (went,) = await until(look)
        assert (went.server, went.result) == ("dynamic.stats", "SUCCESS")


async def test_it_stays_until_it_is_deregistered_or_its_time_is_over(tmp_path: Path) -> None:
    async with brought(
        tmp_path,
        registration_lifetime="deregistered",
        registration_max_lifetime=timedelta(seconds=2),
    ) as scene:
        admin = await greeted(scene)
        assert (await admin.ask(REGISTER, STATS))["result"]["lifetime"] == "deregistered"
        await admin.visitor.send("DELETE", admin.session.items())
        assert is_there(scene)
        await until_gone(scene)


@pytest.mark.parametrize("keep", [True, False])
async def test_it_outlives_a_restart_only_where_the_operator_keeps_it(
    tmp_path: Path, *, keep: bool
) -> None:
    chosen: dict[str, Any] = {
        "registration_lifetime": "deregistered",
        "registration_persist": keep,
        "store_url": f"sqlite:///{tmp_path / 'comity.db'}",
    }
    async with brought(tmp_path, **chosen) as scene:
        assert "result" in await (await greeted(scene)).ask(REGISTER, STATS)
    # What was approved is what runs again, whatever became of the file.
    async with brought(tmp_path, **chosen) as scene:
        (tmp_path / "stats.py").write_text("import os")
        admin = await greeted(scene)
        if keep:
            servers = scene.visitor.parts.servers

            async def look() -> bool:
                server = servers.get("dynamic.stats")
                return server is not None and server.state == "connected"

            await until(look)
            gone = await admin.ask(DEREGISTER, {"id": "dynamic.stats"})
            assert gone["result"]["deregistered"] is True
        else:
            assert not is_there(scene)


@pytest.mark.requirement("MGP-15.4-sandboxed")
async def test_what_it_needs_is_asked_for_whatever_it_says(tmp_path: Path) -> None:
    wish = {**STATS, "mgp": {"permissions_required": ["network.outbound"]}}
    async with brought(tmp_path, policy_approval_policy="auto_approve") as scene:
        admin = await greeted(scene)
        assert "result" in await admin.ask(REGISTER, wish)
        ask = await open_ask(scene, "permission")
        assert (ask.server, ask.about["permission"]) == ("dynamic.stats", "network.outbound")
        _, shown = await admin.http("GET", "/api/servers/dynamic.stats")
        assert shown["permissions"][0]["decision"] == "deferred"


@pytest.mark.requirement("MGP-15.4-sandboxed")
async def test_a_program_that_is_granted_the_network_is_started_anew_with_it(
    tmp_path: Path,
) -> None:
    wish = {**STATS, "mgp": {"permissions_required": ["network.outbound"]}}
    async with brought(tmp_path) as scene:
        assert "result" in await (await greeted(scene)).ask(REGISTER, wish)
        server = scene.visitor.parts.servers.require("dynamic.stats")
        grant = Grant("server:dynamic.stats", PERMISSION_VERB, "network.outbound", Effect.ALLOW)
        since = server.since
        await scene.grant(grant)

        async def look() -> bool:
            return server.state == "connected" and server.since > since

        await until(look)


@pytest.mark.requirement("MGP-15.4-sandboxed")
async def test_code_that_is_not_safe_does_not_even_reach_a_person(tmp_path: Path) -> None:
    async with brought(tmp_path) as scene:
        (tmp_path / "bad.py").write_text("import os\ndef f(): return os.environ")
        agent = await greeted(scene, AGENT)
        refused = await agent.ask(REGISTER, {**STATS, "args": ["bad.py"]})
        assert refusal_of(refused) == "code_unsafe"
        assert "'os'" in refused["error"]["message"]
        assert not await scene.visitor.parts.approval_components.approvals.store.page((), "", 10)
        (event,) = await journaled(scene, AuditType.SERVER_REGISTERED)
        assert event.result == "BLOCKED"


@pytest.mark.requirement("MGP-15.4-register")
async def test_a_server_that_does_not_run_is_reported_with_its_reason(tmp_path: Path) -> None:
    async with brought(tmp_path) as scene:
        (tmp_path / "empty.py").write_text("x = 1")
        admin = await greeted(scene)
        failed = await admin.ask(REGISTER, {**STATS, "args": ["empty.py"]})
        assert refusal_of(failed) == "upstream_failed"
        assert "defines no function" in failed["error"]["message"]
        assert not is_there(scene)
        written = await journaled(scene, AuditType.SERVER_REGISTERED)
        assert [event.result for event in written] == ["PENDING", "FAILURE"]
        assert "result" in await admin.ask(REGISTER, STATS)


@pytest.mark.requirement("MGP-15.4-register")
async def test_a_url_is_registered_and_called_like_any_other_server(tmp_path: Path) -> None:
    async with (
        scripted() as upstream,
        brought(
            tmp_path,
            registration_hosts=("127.0.0.1",),
            more_grants=[may_call(ADMIN, "dynamic.remote")],
        ) as scene,
    ):

        @upstream.act("tools/list")
        async def tools(exchange: Any) -> None:
            await exchange.result({"tools": [{"name": "look", "inputSchema": {"type": "object"}}]})

        admin = await greeted(scene)
        wish = {"id": "dynamic.remote", "transport": "http", "url": upstream.url}
        assert (await admin.ask(REGISTER, wish))["result"]["tools"] == ["look"]
        assert (await listed(admin))["dynamic.remote"]["trust_level"] == "sandboxed"


@pytest.mark.requirement("MGP-16.6-creating", "MGP-16.6-creating-cond", "MGP-16.6-followup")
async def test_an_agent_that_lacks_a_tool_makes_one_and_then_has_it(tmp_path: Path) -> None:
    async with brought(
        tmp_path,
        registration_allow_code_tools=True,
        policy_approval_policy="auto_approve",
        approvals_client_wait=timedelta(milliseconds=200),
        more_grants=[MAY_CODE, Grant(OTHER, "tools/call", "*", Effect.ALLOW)],
    ) as scene:
        agent = await greeted(scene, AGENT)
        lack = {"context": "arithmetic average", "requirements": {"capabilities": ["average"]}}
        lacking = (await agent.ask("mgp/tools/request", lack))["result"]
        assert lacking["status"] == "creating"
        told = lacking["creation"]
        assert told["method"] == REGISTER
        assert "statistics" in told["code_safety"]["allowed_imports"]
        made = await agent.ask(told["method"], {**told["params"], "code": CODE})
        assert made["result"]["tools"] == ["average"]
        assert made["result"]["lifetime"] == "session"
        found = (await agent.ask("mgp/tools/request", lack))["result"]
        assert found["status"] == "fulfilled"
        (tool,) = found["tools_loaded"]
        called = await agent.ask("tools/call", {"name": tool["name"], "arguments": {"values": [3]}})
        assert called["result"]["content"][0]["text"] == "3.0"
        # Nobody else uses code of an agent unasked, not even who may call every tool.
        other = await greeted(scene, OTHER)
        for method in ("mgp/tools/request", "tools/call"):
            same = {**lack, "name": tool["name"], "arguments": {"values": [3]}}
            answer = await other.ask(method, same)
            said = answer.get("result", {}).get("status") or refusal_of(answer)
            assert said == "pending_approval"
        await agent.visitor.send("DELETE", agent.session.items())
        grants = scene.visitor.parts.snapshot.records.grants

        async def have_ended() -> bool:
            return not await grants.page()

        await until(have_ended)


@pytest.mark.requirement("MGP-16.6-creating", "MGP-16.6-creating-cond", "MGP-16.6-followup")
@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_an_agent_of_plain_mcp_makes_a_tool_by_a_tool(tmp_path: Path, era: str) -> None:
    async with brought(
        tmp_path,
        registration_allow_code_tools=True,
        policy_approval_policy="auto_approve",
        discovery_mode="on",
        approvals_client_wait=timedelta(milliseconds=200),
        more_grants=[MAY_CODE, Grant(OTHER, "tools/call", "*", Effect.ALLOW)],
    ) as scene:

        async def ask(party: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
            answer = await asks[party](method, params)
            assert "result" in answer, answer
            return answer["result"]

        async def use(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            return await ask(AGENT, "tools/call", {"name": tool, "arguments": arguments})

        asks: dict[str, Any] = {}
        for party in (AGENT, OTHER):
            guest = scene.guest(party)
            asks[party] = (await guest.greet()).ask if era == "handshake" else guest.modern
        offered = {
            party: [each["name"] for each in (await ask(party, "tools/list", {}))["tools"]]
            for party in asks
        }
        assert "create_tool" in offered[AGENT]
        assert set(offered[AGENT]) - set(offered[OTHER]) == {"create_tool"}
        refused = await asks[OTHER]("tools/call", {"name": "create_tool"})
        assert refusal_of(refused) == "tool_not_found"
        lack = {"context": "arithmetic average", "requirements": {"capabilities": ["average"]}}
        lacking = await use("request_tools", lack)
        creation = lacking["structuredContent"]["creation"]
        assert lacking["structuredContent"]["status"] == "creating"
        assert creation["tool"] == "create_tool"
        assert creation["arguments"]["id"] in lacking["content"][0]["text"]
        wrong = {**creation["arguments"], "code": "import socket\n" + CODE}
        rejected = await use("create_tool", wrong)
        assert refusal_of({"result": rejected}) == "code_unsafe"
        made = await use("create_tool", {**creation["arguments"], "code": CODE})
        (name,) = made["structuredContent"]["tools"]
        assert name in made["content"][0]["text"]
        assert (await use(name, {"values": [3]}))["content"][0]["text"] == "3.0"
        found = (await use("request_tools", lack))["structuredContent"]
        assert found["status"] == "fulfilled"
        (tool,) = found["tools_loaded"]
        assert (await use(tool["name"], {"values": [5]}))["content"][0]["text"] == "5.0"
        session = (await use("session_tools", {}))["structuredContent"]
        assert session["total_tokens"] == sum(session["tokens"].values())


@pytest.mark.parametrize(
    "chosen",
    [
        {"registration_allow_code_tools": False, "more_grants": [MAY_CODE]},
        {"more_grants": []},
        {"more_grants": [MAY_CODE], "policy_approval_policy": "interactive"},
        {"more_grants": [Grant(AGENT, "*", "*", Effect.ALLOW)]},
        {"more_grants": [MAY_CODE], "registration_from_network": False},
        {"more_grants": [MAY_CODE, Grant(AGENT, ADMIN_WRITE, "*", Effect.DENY)]},
    ],
    ids=["off", "no grant", "no policy", "a pattern", "not from here", "denied"],
)
@pytest.mark.requirement("MGP-16.6-creating-cond")
async def test_otherwise_there_is_no_such_tool_and_nothing_more(
    tmp_path: Path, chosen: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {
        "registration_allow_code_tools": True,
        "policy_approval_policy": "auto_approve",
        **chosen,
    }
    async with brought(
        tmp_path, approvals_client_wait=timedelta(milliseconds=100), **settings
    ) as scene:
        agent = await greeted(scene, AGENT)
        lack = {"requirements": {"capabilities": ["average"]}}
        lacking = (await agent.ask("mgp/tools/request", lack))["result"]
        assert (lacking["status"], "creation" in lacking) == ("unavailable", False)
        refused = refusal_of(await agent.ask(REGISTER, MADE))
        assert refused in ("access_denied", "pending_approval")
        assert not is_there(scene, "dynamic.made")
