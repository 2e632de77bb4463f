"""The parts, joined: what stands behind which door, and that all of it ends."""

import asyncio
import json
import os
import select
from collections.abc import Callable
from datetime import timedelta

import pytest

from comity.app.assembly import assembled
from comity.config import ServerSettings, Settings
from comity.wire.errors import Misconfigured
from tests.surfaces.commands import by_command
from tests.surfaces.upstream import Exchange, hello, scripted
from tests.surfaces.visitor import SECONDS, at, visiting


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():
            await asyncio.sleep(0.01)


@pytest.mark.requirement("MCP-1-route", "MCP-5.1-list")
async def test_one_door_for_all_servers_and_one_for_each() -> None:
    async with scripted() as first, scripted() as second:
        for server in (first, second):

            @server.act("tools/list")
            async def tools(exchange: Exchange) -> None:
                await exchange.result(
                    {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}
                )

        async with visiting(at(first.url, "one"), at(second.url, "two")) as visitor:
            merged = visitor.other("/mcp")
            await merged.greet()
            listed = await (await merged.post(_frame("tools/list"))).json()
            names = [tool["name"] for tool in listed["result"]["tools"]]
            assert names == ["one__look", "two__look"]
            await merged.call("two__look")
            assert (len(first.of("tools/call")), len(second.of("tools/call"))) == (0, 1)
            alone = visitor.other("/servers/one/mcp")
            await alone.greet()
            await alone.call("look")
            assert first.of("tools/call")[0].frame["params"]["name"] == "look"


def _frame(method: str) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": method}


async def test_a_disabled_server_has_no_door() -> None:
    disabled = ServerSettings("off", "off", "http", url="http://127.0.0.1:9/", disabled=True)
    async with visiting(disabled) as visitor:
        assert (await visitor.send("GET", path="/servers/off/mcp")).status == 404
        assert (await visitor.send("GET", path="/ready")).status == 200


async def test_a_server_that_is_not_there_keeps_no_other_from_serving() -> None:
    async with scripted() as server:
        gone = at("http://127.0.0.1:9/mcp", "gone")
        async with visiting(gone, at(server.url)) as visitor:
            assert (await visitor.send("GET", path="/ready")).status == 200
            await visitor.greet()
            assert (await visitor.call("plain")).status == 200
            said = {**_frame("initialize"), "params": {"protocolVersion": "2025-11-25"}}
            refused = await visitor.other("/servers/gone/mcp").post(said)
            error = (await refused.json())["error"]
            assert error["data"]["error_type"] == "server_not_ready"
            assert "gone" in error["message"]


async def test_readiness_waits_for_the_first_try_of_every_server() -> None:
    async with scripted() as server:
        go_on = asyncio.Event()

        @server.act("initialize")
        async def slow(exchange: Exchange) -> None:
            await go_on.wait()
            await exchange.result(hello("2025-11-25"))

        async with assembled(Settings(servers=(at(server.url),))) as parts:
            await server.arrival("initialize")
            assert not parts.servers.all_tried
            go_on.set()
            await parts.servers.first_tries(timedelta(seconds=SECONDS))
            assert parts.servers.all_tried


async def test_the_end_of_the_gateway_is_the_end_of_its_sessions_and_processes() -> None:
    async with scripted() as server:
        async with visiting(at(server.url), by_command("child")) as visitor:
            await visitor.greet()
            child = visitor.other("/servers/child/mcp")
            await child.greet()
            told = await (await child.call("plain")).json()
            pid = json.loads(told["result"]["content"][0]["text"])["pid"]
            process = os.pidfd_open(pid)
        ended = [each.headers["mcp-session-id"] for each in server.heard if each.verb == "DELETE"]
        assert sorted(ended) == ["session-1", "session-2"]
    try:
        await until(lambda: _has_ended(process))
    finally:
        os.close(process)


def _has_ended(process: int) -> bool:
    # A descriptor of a process is readable once the process is no more.
    return bool(select.select([process], [], [], 0)[0])


async def test_idle_sessions_end_and_busy_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comity.app.assembly.LOOK_EVERY_SECONDS", 0.02)
    async with scripted() as server:
        idle = timedelta(milliseconds=100)
        async with visiting(at(server.url), idle_session=idle) as visitor:
            await visitor.greet()
            listening = visitor.other()
            await listening.greet()
            await listening.get()
            await until(lambda: len(visitor.parts.sessions) == 1)
            assert (await visitor.call("plain")).status == 404
            assert (await listening.call("plain")).status == 200


@pytest.mark.requirement("MCP-4.4-timeouts")
async def test_a_call_past_its_deadline_is_cancelled_and_its_client_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("comity.app.assembly.LOOK_EVERY_SECONDS", 0.02)
    async with scripted() as server:

        @server.act("slow")
        async def slow(exchange: Exchange) -> None:
            await exchange.left()

        deadline = timedelta(milliseconds=100)
        async with visiting(at(server.url), call_deadline=deadline) as visitor:
            await visitor.greet()
            answer = await (await visitor.call("slow", named="late")).json()
            refusal = answer["result"]["_meta"]["dev.comity/refusal"]
            assert refusal["error_type"] == "timeout"
            told = await server.arrival("notifications/cancelled")
            called = server.of("tools/call")[0]
            assert told.frame["params"]["requestId"] == called.id


@pytest.mark.parametrize(
    "url", ["ftp://localhost/", "http://", "http://host:99999/", "http://h/\r\nx: y"]
)
async def test_a_url_that_cannot_be_is_the_operators_mistake(url: str) -> None:
    with pytest.raises(Misconfigured):
        async with assembled(Settings(servers=(at(url),))):
            pass


async def test_nothing_of_a_visitor_is_left_when_it_ends() -> None:
    async with scripted() as server, visiting(at(server.url)) as visitor:
        await visitor.greet()
        await visitor.call("plain")
        await visitor.send("DELETE", visitor.session.items())
        assert (len(visitor.parts.sessions), len(visitor.parts.underway)) == (0, 0)
