"""What the registry shows is exactly what it lets be called, and a long catalogue stalls nobody."""

import asyncio
import json
import random
from typing import Any

import msgspec
import pytest

from comity.gateway.all_servers import AllServersEndpoint
from comity.gateway.pipeline import CallGate
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import LOCAL, Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.policy.grants import Effect, Grant, GrantSet
from comity.policy.snapshot import GrantSnapshot
from comity.registry.export import CatalogExport, ToolQuery
from comity.registry.service import CATALOGUE, EXPORT, OPENAPI, RegistryService, RegistryTimeouts
from comity.sessions.client_streams import ClientStream
from tests.support.carriers import Reply, Script, hello
from tests.support.desks import MODERN, all_servers

NAMES = ("add", "drop", "list")
SERVERS = ("a", "b", "c")
ROUNDS = 150
TARGETS = ("*", *(f"{s}/*" for s in SERVERS), *(f"{s}/{n}" for s in SERVERS for n in NAMES))
PARTIES = ("agent:x", "agent:y", "*")


def offering() -> Script:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
    replies: dict[str, Reply] = {
        protocol.INITIALIZE: hello(tools={}),
        protocol.LIST_TOOLS: {"tools": tools},
        protocol.CALL_TOOL: {"content": []},
    }
    return Script(starts_process=True, replies=replies)


def grants_of(chance: random.Random) -> GrantSet:
    effects = [Effect.ALLOW, Effect.ALLOW, Effect.DENY]
    return GrantSet.from_grants(
        Grant(
            chance.choice(PARTIES),
            protocol.CALL_TOOL,
            chance.choice(TARGETS),
            chance.choice(effects),
        )
        for _ in range(chance.randint(0, 8))
    )


async def asked(
    registry: RegistryService, actor: Actor, method: str, **params: object
) -> tuple[int, Any]:
    outbox = ClientStream()
    outbox.actor = actor
    async with (
        asyncio.timeout(10),
        registry.run_request(jsonrpc.make_request(1, method, params), outbox) as call,
    ):
        await outbox.wait_until_final()
        status, result, error = registry.final_answer(call, outbox.take()[-1])
    return status, msgspec.json.decode(result or error or b"null")


async def listed_by_mcp(desk: AllServersEndpoint, actor: Actor) -> set[str]:
    outbox = ClientStream()
    outbox.actor = actor
    frame = jsonrpc.make_request(1, protocol.LIST_TOOLS, {"_meta": MODERN})
    await desk.handle_modern_request(frame, outbox, ())
    await outbox.wait_until_final()
    answer = json.loads(outbox.take()[-1])
    return {tool["name"] for tool in answer["result"]["tools"]}


@pytest.mark.timeout(180)
async def test_what_is_shown_is_exactly_what_may_be_called() -> None:
    chance = random.Random(20261115)  # noqa: S311 - cases, not secrets
    async with all_servers({name: offering() for name in SERVERS}) as front:
        grants = GrantSnapshot(GrantSet())
        gate = CallGate(front.catalog, grants)
        desk = AllServersEndpoint(
            front.servers, gate, front.underway, front.bridge, front.subscriptions, front.info
        )
        registry = RegistryService(
            desk, gate, front.underway, CatalogExport(gate, front.servers), RegistryTimeouts()
        )
        for _ in range(ROUNDS):
            grants.replace(grants_of(chance))
            actor = Actor(chance.choice(("agent:x", "agent:y", "agent:z", "")))
            shown = {tool["name"] for tool in (await asked(registry, actor, CATALOGUE))[1]["tools"]}
            assert shown == await listed_by_mcp(desk, actor)
            _, document = await asked(registry, actor, OPENAPI)
            for name in (f"{server}__{name}" for server in SERVERS for name in NAMES):
                status, _ = await asked(registry, actor, protocol.CALL_TOOL, name=name)
                assert (status == 200) is (name in shown), (name, status)
                assert (await asked(registry, actor, EXPORT, name=name))[0] == status
                assert (f"/tools/{name}" in document["paths"]) is (name in shown)


async def test_a_denial_does_not_tell_what_there_is() -> None:
    async with all_servers({"a": offering()}) as front:
        gate = CallGate(front.catalog, GrantSnapshot(GrantSet()))
        desk = AllServersEndpoint(
            front.servers, gate, front.underway, front.bridge, front.subscriptions, front.info
        )
        registry = RegistryService(
            desk, gate, front.underway, CatalogExport(gate, front.servers), RegistryTimeouts()
        )
        for method in (protocol.CALL_TOOL, EXPORT, "tools/validate"):
            answers = [
                await asked(registry, Actor("agent:x"), method, name=name)
                for name in ("a__add", "a__nothing", "nobody__add")
            ]
            for _, error in answers:
                error["data"].pop("trace_id")
            assert answers[0] == answers[1] == answers[2]
            assert (answers[0][0], answers[0][1]["code"]) == (403, -32005)


@pytest.mark.timeout(180)
async def test_others_have_their_turn_while_a_long_catalogue_is_told() -> None:
    async with all_servers({"a": offering()}) as front:
        schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(8)}}
        offers = [
            CatalogEntry(
                f"a__t{number:06}",
                "a",
                f"t{number:06}",
                jsonrpc.to_json({"name": f"a__t{number:06}", "inputSchema": schema}),
            )
            for number in range(100_000)
        ]
        front.catalog.put("a", EntryKind.TOOL, offers)
        exports = CatalogExport(CallGate(front.catalog), front.servers)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(others())
        first = await exports.openapi(ToolQuery(LOCAL))
        assert turns >= 40
        assert 1000 <= len(first["paths"]) <= 2100  # type: ignore[arg-type]
        assert str(first["x-next"]).startswith("/openapi.json?cursor=")
        page = await exports.catalogue(ToolQuery(LOCAL))
        assert len(page["tools"]) == 1000  # type: ignore[arg-type]
        beside.cancel()
