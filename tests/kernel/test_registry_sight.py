"""What the registry shows is exactly what it lets be called, and a long catalogue stalls nobody."""

import asyncio
import json
import random
from typing import Any

import msgspec
import pytest

from comity.kernel.catalog import Kind, Offer
from comity.kernel.exports import Exports, Wanted
from comity.kernel.gate import Gate
from comity.kernel.grants import Grants
from comity.kernel.outbox import Outbox
from comity.kernel.registry import CATALOGUE, EXPORT, OPENAPI, Options, Registry
from comity.kernel.switchboard import AllServers
from comity.rules.access import Access
from comity.wire import jsonrpc, mcp
from comity.wire.grants import Effect, Grant
from comity.wire.parties import LOCAL, Actor
from tests.kernel.carriers import Reply, Script, hello
from tests.kernel.desks import MODERN, all_servers

NAMES = ("add", "drop", "list")
SERVERS = ("a", "b", "c")
ROUNDS = 150
TARGETS = ("*", *(f"{s}/*" for s in SERVERS), *(f"{s}/{n}" for s in SERVERS for n in NAMES))
PARTIES = ("agent:x", "agent:y", "*")


def offering() -> Script:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
    replies: dict[str, Reply] = {
        mcp.INITIALIZE: hello(tools={}),
        mcp.LIST_TOOLS: {"tools": tools},
        mcp.CALL_TOOL: {"content": []},
    }
    return Script(costs_a_process=True, replies=replies)


def grants_of(chance: random.Random) -> Access:
    effects = [Effect.ALLOW, Effect.ALLOW, Effect.DENY]
    return Access.of(
        Grant(chance.choice(PARTIES), mcp.CALL_TOOL, chance.choice(TARGETS), chance.choice(effects))
        for _ in range(chance.randint(0, 8))
    )


async def asked(registry: Registry, actor: Actor, method: str, **params: object) -> tuple[int, Any]:
    outbox = Outbox()
    outbox.actor = actor
    async with (
        asyncio.timeout(10),
        registry.asking(jsonrpc.request(1, method, params), outbox) as call,
    ):
        await outbox.until_final()
        status, result, error = registry.concluded(call, outbox.take()[-1])
    return status, msgspec.json.decode(result or error or b"null")


async def listed_by_mcp(desk: AllServers, actor: Actor) -> set[str]:
    outbox = Outbox()
    outbox.actor = actor
    frame = jsonrpc.request(1, mcp.LIST_TOOLS, {"_meta": MODERN})
    await desk.ask_modern(frame, outbox, ())
    await outbox.until_final()
    answer = json.loads(outbox.take()[-1])
    return {tool["name"] for tool in answer["result"]["tools"]}


@pytest.mark.timeout(180)
async def test_what_is_shown_is_exactly_what_may_be_called() -> None:
    chance = random.Random(20261115)  # noqa: S311 - cases, not secrets
    async with all_servers({name: offering() for name in SERVERS}) as front:
        grants = Grants(Access())
        gate = Gate(front.catalog, grants)
        desk = AllServers(
            front.servers, gate, front.underway, front.bridge, front.subscriptions, {"name": "c"}
        )
        registry = Registry(desk, gate, front.underway, Exports(gate, front.servers), Options())
        for _ in range(ROUNDS):
            grants.replace(grants_of(chance))
            actor = Actor(chance.choice(("agent:x", "agent:y", "agent:z", "")))
            shown = {tool["name"] for tool in (await asked(registry, actor, CATALOGUE))[1]["tools"]}
            assert shown == await listed_by_mcp(desk, actor)
            _, document = await asked(registry, actor, OPENAPI)
            for name in (f"{server}__{name}" for server in SERVERS for name in NAMES):
                status, _ = await asked(registry, actor, mcp.CALL_TOOL, name=name)
                assert (status == 200) is (name in shown), (name, status)
                assert (await asked(registry, actor, EXPORT, name=name))[0] == status
                assert (f"/tools/{name}" in document["paths"]) is (name in shown)


async def test_a_denial_does_not_tell_what_there_is() -> None:
    async with all_servers({"a": offering()}) as front:
        gate = Gate(front.catalog, Grants(Access()))
        desk = AllServers(
            front.servers, gate, front.underway, front.bridge, front.subscriptions, {"name": "c"}
        )
        registry = Registry(desk, gate, front.underway, Exports(gate, front.servers), Options())
        for method in (mcp.CALL_TOOL, EXPORT, "tools/validate"):
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
            Offer(
                f"a__t{number:06}",
                "a",
                f"t{number:06}",
                jsonrpc.to_json({"name": f"a__t{number:06}", "inputSchema": schema}),
            )
            for number in range(100_000)
        ]
        front.catalog.put("a", Kind.TOOL, offers)
        exports = Exports(Gate(front.catalog), front.servers)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(others())
        first = await exports.openapi(Wanted(LOCAL))
        assert turns >= 40
        assert 1000 <= len(first["paths"]) <= 2100  # type: ignore[arg-type]
        assert str(first["x-next"]).startswith("/openapi.json?cursor=")
        page = await exports.catalogue(Wanted(LOCAL))
        assert len(page["tools"]) == 1000  # type: ignore[arg-type]
        beside.cancel()
