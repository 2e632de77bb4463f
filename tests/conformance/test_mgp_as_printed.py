"""What MGP prints works as printed, for a gateway with its default settings."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from tests.conformance.governed import refusal_of
from tests.conformance.printed_scene import (
    ADMIN,
    AGENT,
    MGP,
    PrintedScene,
    PrintedServer,
    error_of,
    may_call,
    printed_gateway,
    tool,
)
from tests.support.visitor import Frame

NO_TIME = timedelta(milliseconds=100)
SAFE: Frame = {"risk_level": "safe", "permissions_required": []}
MIND = {
    "version": "0.1.0",
    "extensions": ["security", "streaming"],
    "server_id": "mind.cerebras",
    "trust_level": "standard",
}
"""What the server of the document says of itself. (MGP §2.3)"""

SERVERS = {
    "mind.cerebras": PrintedServer(
        (tool("think", "Think about a message", security=SAFE),),
        {**MIND, "permissions_required": ["network"]},
        {"trust": "trusted", "permissions": {"network.outbound": ()}},
    ),
    "tool.doubted": PrintedServer(
        (tool("think", "Think about a message", security=SAFE),), MIND, None
    ),
    "tool.humble": PrintedServer(
        (tool("think", "Think about a message", security=SAFE),),
        {**MIND, "trust_level": "sandboxed"},
        {"trust": "trusted"},
    ),
}


@pytest_asyncio.fixture
async def scene() -> AsyncGenerator[PrintedScene]:
    # No client of these tests can be asked, so that a call that needs an approval is told at once.
    async with printed_gateway(
        SERVERS,
        *may_call(AGENT, *(f"{server}/*" for server in SERVERS)),
        approvals_client_wait=NO_TIME,
    ) as scene:
        yield scene


@pytest.mark.requirement("MGP-4.4-safe")
async def test_a_safe_tool_of_a_trusted_server_runs_though_the_server_says_standard(
    scene: PrintedScene,
) -> None:
    agent = await scene.client(AGENT, **MGP)
    answer = await agent.ask("tools/call", {"name": "mind_cerebras__think", "arguments": {}})
    assert answer["result"]["content"] == [{"type": "text", "text": "done"}]
    (call,) = scene.calls_at("mind.cerebras")
    assert call["name"] == "think"


@pytest.mark.requirement("MGP-1.2-secure")
@pytest.mark.parametrize("server", ["tool_doubted", "tool_humble"])
async def test_a_safe_tool_waits_where_the_operator_or_the_server_trusts_less(
    scene: PrintedScene, server: str
) -> None:
    agent = await scene.client(AGENT, **MGP)
    answer = await agent.ask("tools/call", {"name": f"{server}__think", "arguments": {}})
    assert error_of(answer) == (1000, "pending_approval")
    assert scene.calls_at(server.replace("_", ".")) == []


@pytest.mark.requirement("MGP-15.2-list", "MGP-15.2-list-result")
@pytest.mark.parametrize("permissions", [["network.outbound"], ["network"]])
async def test_the_listed_trust_is_in_force_and_the_filter_knows_both_names_of_a_permission(
    scene: PrintedScene, permissions: list[str]
) -> None:
    agent = await scene.client(AGENT, **MGP)
    printed = {"extensions": ["streaming"], "permissions": permissions, "status": "connected"}
    found = (await agent.ask("mgp/discovery/list", {"filter": printed}))["result"]
    (mind,) = found["servers"]
    assert (mind["id"], mind["status"], mind["trust_level"]) == (
        *("mind.cerebras", "connected", "trusted"),
    )
    everyone = (await agent.ask("mgp/discovery/list"))["result"]["servers"]
    assert {each["id"]: each["trust_level"] for each in everyone} == {
        "mind.cerebras": "trusted",
        "tool.doubted": "standard",
        "tool.humble": "sandboxed",
    }


@pytest.mark.requirement("MGP-5.4-grant", "MGP-5.4-grant-provenance")
async def test_the_printed_grant_is_accepted_and_names_its_sender_as_the_grantor(
    scene: PrintedScene,
) -> None:
    newcomer = "agent:newcomer"
    printed: dict[str, Any] = {
        "entry_type": "server_grant",
        "agent_id": newcomer,
        "server_id": "mind.cerebras",
        "tool_name": None,
        "permission": "allow",
        "granted_by": "admin",
        "justification": "Required for agent reasoning",
        "expires_at": None,
    }
    admin = await scene.client(ADMIN, **MGP)
    entry = (await admin.ask("mgp/access/grant", printed))["result"]
    assert (entry["permission"], entry["granted_by"]) == ("allow", ADMIN)
    (stored,) = await scene.visitor.parts.snapshot.records.grants.page()
    assert (stored.granted_by, stored.justification) == (ADMIN, printed["justification"])
    agent = await scene.client(newcomer, **MGP)
    answer = await agent.ask("tools/call", {"name": "mind_cerebras__think", "arguments": {}})
    assert refusal_of(answer) is None
    # The name gives no right to anybody: who may not administer is refused, whomever it names.
    stranger = await scene.client("agent:stranger", **MGP)
    refused = await stranger.ask("mgp/access/grant", {**printed, "granted_by": ADMIN})
    assert error_of(refused) == (1001, "access_denied")


@pytest.mark.requirement("MGP-16.5-discover-tool")
async def test_ids_with_dots_give_readable_names_and_a_written_id_is_understood(
    scene: PrintedScene,
) -> None:
    agent = await scene.client(AGENT, **MGP)
    names = [each["name"] for each in (await agent.ask("tools/list"))["result"]["tools"]]
    assert sorted(names) == ["mind_cerebras__think", "tool_doubted__think", "tool_humble__think"]
    for name in ("mind_cerebras__think", "mind.cerebras__think"):
        answer = await agent.ask("tools/call", {"name": name, "arguments": {}})
        assert refusal_of(answer) is None
        status, found = await agent.http("POST", f"/tools/{name}", {})
        assert (status, found["content"][0]["text"]) == (200, "done")


async def test_no_server_takes_a_name_of_another_by_its_id() -> None:
    shared = {
        id: PrintedServer((tool("think"),), policy={"risk": "safe"}) for id in ("a.b", "a_b", "a-b")
    }
    async with printed_gateway(shared, *may_call(AGENT, "a.b/*", "a_b/*", "a-b/*")) as scene:
        agent = await scene.client(AGENT, **MGP)
        names = [each["name"] for each in (await agent.ask("tools/list"))["result"]["tools"]]
        (plain,) = [name for name in names if name == "a-b__think"]
        marked = [name for name in names if name != plain]
        assert all(name.startswith("a_b__think_") for name in marked)
        assert len(set(marked)) == 2
        refused = await agent.ask("tools/call", {"name": "a_b__think", "arguments": {}})
        assert error_of(refused) == (4001, "tool_not_found")
        assert all(name in refused["error"]["message"] for name in marked)
        assert not any(scene.calls_at(server) for server in shared)
        for name in marked:
            assert refusal_of(await agent.ask("tools/call", {"name": name})) is None
        assert [len(scene.calls_at(server)) for server in shared] == [1, 1, 0]
        answer = await agent.ask("tools/call", {"name": "a.b__think", "arguments": {}})
        assert refusal_of(answer) is None
        assert len(scene.calls_at("a.b")) == 2


@pytest.mark.requirement("MGP-14.3-4001", "REG-err-32002", "REG-openapi-404")
@pytest.mark.parametrize(
    ("principal", "name", "is_unknown"),
    [
        (AGENT, "nope", True),
        (AGENT, "mind_cerebras__nope", True),
        (AGENT, "mind.cerebras__nope", True),
        (AGENT, "nowhere__nope", False),
        ("agent:stranger", "nope", False),
        ("agent:stranger", "mind_cerebras__nope", False),
        ("agent:stranger", "mind_cerebras__think", False),
    ],
)
async def test_an_unknown_name_is_unknown_at_every_endpoint_for_whom_its_server_is_in_sight(
    scene: PrintedScene, principal: str, name: str, *, is_unknown: bool
) -> None:
    client = await scene.client(principal, **MGP)
    answer = await client.ask("tools/call", {"name": name, "arguments": {}})
    expected = (4001, "tool_not_found") if is_unknown else (1001, "access_denied")
    assert error_of(answer) == expected
    status, found = await client.http("POST", f"/tools/{name}", {})
    code = found["error"]["code"]
    assert (status, code) == ((404, -32002) if is_unknown else (403, -32005))
    plain = await scene.client(principal)
    assert refusal_of(await plain.ask("tools/call", {"name": name})) == expected[1]
