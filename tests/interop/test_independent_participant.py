"""A participant that was written from the document alone takes part: interoperability is ours."""

import ast
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from comity.sdk.topics.participant import join_topic
from comity.topics.rules import FULL
from tests.interop import independent_participant
from tests.interop.independent_participant import Participant, joined
from tests.sdk.door import ADMIN, TOPIC, Door, door

ANA, BOT, WORKER = "person:ana@example.org", "agent:bot", "agent:worker"
NEWCOMER = ["mcp/proposal:*", "mcp/response:*", "chat"]


async def write(arguments: dict[str, Any]) -> str:
    return f"wrote {arguments['path']}"


@asynccontextmanager
async def everybody() -> AsyncGenerator[tuple[Door, Participant, Participant, Participant]]:
    async with door({ANA: FULL}) as gateway:
        url = gateway.url.replace("http", "ws", 1)
        async with (
            joined(url, TOPIC, gateway.token(WORKER), {"write": write}) as worker,
            joined(url, TOPIC, gateway.token(ANA)) as ana,
            joined(url, TOPIC, gateway.token(BOT)) as bot,
        ):
            yield gateway, ana, bot, worker


def test_it_is_short_and_knows_nothing_of_us() -> None:
    source = Path(str(independent_participant.__file__)).read_text(encoding="utf-8")
    assert len(source.splitlines()) < 150
    nodes = ast.walk(ast.parse(source))
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not any(str(name).startswith(("comity", "tests")) for name in named)


@pytest.mark.requirement("MCPX-6.2-connect", "MCPX-6.2-welcome", "MCPX-3.5.1-you")
async def test_it_joins_and_knows_who_it_is_and_who_else_is_there() -> None:
    async with everybody() as (_, ana, bot, worker):
        assert (bot.id, bot.capabilities) == (BOT, NEWCOMER)
        assert bot.others == {ANA: ana.capabilities, WORKER: NEWCOMER}
        await ana.until(lambda each: each["payload"].get("participant", {}).get("id") == BOT)
        assert worker.others.keys() == {ANA, BOT}


@pytest.mark.requirement("MCPX-9.1-flow", "MCPX-4.2-block", "MCPX-3.5.2-error")
async def test_it_is_refused_proposes_is_fulfilled_and_is_given_the_result() -> None:
    async with everybody() as (_, ana, bot, _):
        refused = await bot.request("write", WORKER, {"path": "/srv/a"})
        error = await bot.until_kind("system/error", refused)
        assert error["payload"]["error"] == "capability_violation"
        assert error["payload"]["your_capabilities"] == NEWCOMER
        proposed = await bot.propose("write", WORKER, {"path": "/srv/a"})
        proposal = await ana.until_kind("mcp/proposal")
        assert proposal["id"] == proposed
        fulfilment = await ana.fulfil(proposal)
        for member in (ana, bot):
            answer = await member.until_kind("mcp/response", fulfilment)
            assert answer["payload"]["result"]["content"][0]["text"] == "wrote /srv/a"
            assert answer["to"] == [ANA, BOT]


@pytest.mark.requirement("MCPX-11.3-admin", "MCPX-11.3-response", "MCPX-5.1-dynamic")
async def test_it_is_promoted_told_so_by_a_new_welcome_and_may_ask_at_once() -> None:
    async with everybody() as (gateway, _, bot, _):
        told = await gateway.promote(BOT, "mcp/request:tools/*")
        assert told["participantId"] == BOT
        assert told["oldCapabilities"] == NEWCOMER
        assert told["newCapabilities"] == [*NEWCOMER, "mcp/request:tools/*"]
        assert told["modifiedBy"] == ADMIN
        await bot.until(
            lambda each: (
                each["kind"] == "system/welcome"
                and each["payload"]["you"]["capabilities"] == told["newCapabilities"]
            )
        )
        asked = await bot.request("write", WORKER, {"path": "/srv/b"})
        answer = await bot.until_kind("mcp/response", asked)
        assert answer["payload"]["result"]["content"][0]["text"] == "wrote /srv/b"


async def test_it_and_ours_understand_each_other() -> None:
    async with (
        everybody() as (gateway, ana, _, _),
        join_topic(gateway.url, TOPIC, token=gateway.token("agent:ours")) as ours,
    ):
        proposed = await ours.propose(
            "tools/call", {"name": "write", "arguments": {"path": "/srv/d"}}, to=WORKER
        )
        proposal = await ana.until(lambda each: each["id"] == proposed.id)
        await ana.fulfil(proposal)
        assert await proposed == {"content": [{"type": "text", "text": "wrote /srv/d"}]}


async def test_it_drops_what_is_not_what_it_says() -> None:
    async with everybody() as (_, ana, _, worker):
        params = {"name": "delete", "arguments": {"path": "/"}}
        payload = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        await ana.send("mcp/request:tools/call:write", payload, to=[WORKER])
        await ana.chat("that was all")
        await worker.until_kind("chat")
        assert [each["payload"]["params"]["name"] for each in worker.dropped] == ["delete"]
