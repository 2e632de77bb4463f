"""A gateway in this process: endpoints, sessions, servers that change, and the end of all of it."""

import asyncio
import json
import os
import select
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from comity.app.gateway import assemble_gateway
from comity.app.offline import audit_routes, open_audit_reader
from comity.app.settings import ServerSettings, Settings
from comity.audit.events import AuditEvent, AuditType
from comity.audit.wiring import open_audit_log
from comity.errors import Misconfigured
from comity.identity.wiring import open_policy_snapshot
from comity.mcp.mgp import ShutdownReason
from comity.storage.settings import StoreSettings
from tests.support.api_calls import call_route
from tests.support.cases import loop_over
from tests.support.commands import by_command
from tests.support.upstream import Exchange, Upstream, hello, scripted
from tests.support.visitor import ENVELOPE, LATEST, SECONDS, Frame, Visitor, at, visiting


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


JSON_BODY = (("content-type", "application/json"),)


async def test_a_call_while_its_server_starts_is_told_to_come_again() -> None:
    may_start = asyncio.Event()
    async with scripted() as server:

        @server.act("initialize")
        async def greet(exchange: Exchange) -> None:
            await may_start.wait()
            await exchange.result(hello(LATEST))

        @server.act("tools/list")
        async def tools(exchange: Exchange) -> None:
            await exchange.result({"tools": [{"name": "look", "inputSchema": {"type": "object"}}]})

        async with visiting(at(server.url, "slow"), waits=False) as visitor:
            merged = visitor.other("/mcp")
            for tool in ("slow__look", "look", "nowhere__look"):
                error = (await (await merged.call_modern(tool)).json())["error"]
                assert error["data"]["error_type"] == "server_not_ready", error
                reply = await visitor.send("POST", JSON_BODY, b"{}", path=f"/tools/{tool}")
                assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            read = {"uri": "note://one", "_meta": ENVELOPE}
            reply = await merged.ask_modern("resources/read", read, **{"mcp-name": "note://one"})
            assert "is starting" in str(await reply.json())
            may_start.set()
            await visitor.parts.servers.wait_for_first_starts(timedelta(seconds=SECONDS))
            reply = await visitor.send("POST", JSON_BODY, b"{}", path="/tools/slow__look")
            assert reply.status == 200
            for tool in ("slow__gone", "nowhere__look"):
                reply = await visitor.send("POST", JSON_BODY, b"{}", path=f"/tools/{tool}")
                assert reply.status == 404


async def refusals_of(visitor: Visitor) -> list[tuple[object, object]]:
    """How a call of the tool `look` is refused at each endpoint, in each protocol version."""
    merged, alone = visitor.other("/mcp"), visitor.other("/servers/up/mcp")
    errors = [
        (await (await each.call_modern(tool)).json())["error"]["data"]
        for each, tool in ((merged, "up__look"), (alone, "look"))
    ]
    await merged.greet()
    (frame,) = await (await merged.call("up__look")).frames()
    errors.append(frame["error"]["data"])
    reply = await visitor.send("POST", JSON_BODY, b"{}", path="/tools/up__look")
    assert (reply.status, int(reply.headers["retry-after"]) > 0) == (503, True)
    assert all(error["retry_after_ms"] > 0 for error in errors)
    return [(error["error_type"], error["retryable"]) for error in errors]


@pytest.mark.parametrize("order", ["replace", "stop and start"])
async def test_a_call_while_its_server_is_replaced_or_started_again_is_told_to_come_again(
    order: str,
) -> None:
    may_start = asyncio.Event()
    may_start.set()
    async with scripted() as server:

        @server.act("initialize")
        async def greet(exchange: Exchange) -> None:
            await may_start.wait()
            await exchange.result(hello(LATEST))

        @server.act("tools/list")
        async def tools(exchange: Exchange) -> None:
            await exchange.result({"tools": [{"name": "look", "inputSchema": {"type": "object"}}]})

        async with visiting(at(server.url)) as visitor:
            # A legacy session at the endpoint of the server outlives the replacement.
            old = visitor.other("/servers/up/mcp")
            await old.greet()
            may_start.clear()
            registry, settings = visitor.parts.upstream_registry, at(server.url)
            if order == "replace":
                await registry.stop_for_replacement("up", ShutdownReason.CONFIGURATION_CHANGE)
                registry.add(settings, registry.transport_factory(settings))
            else:
                await registry.servers.stop_server("up")
                await registry.servers.start_server("up")
            refusals = set(await refusals_of(visitor))
            # The endpoint of a server knows that this one was connected before.
            again: set[tuple[object, object]] = set()
            if order == "stop and start":
                again = {("server_restarting", True)}
            assert refusals <= {("server_not_ready", True)} | again
            (frame,) = await (await old.call("look")).frames()
            assert frame["error"]["data"]["retryable"] is True
            may_start.set()


async def test_a_call_of_a_stopped_server_is_not_told_to_come_again() -> None:
    async with scripted() as server:

        @server.act("initialize")
        async def greet(exchange: Exchange) -> None:
            await exchange.left()

        async with visiting(at(server.url, "up"), waits=False) as visitor:
            await server.arrival("initialize")
            await visitor.parts.servers.stop_server("up")
            reply = await visitor.send("POST", JSON_BODY, b"{}", path="/tools/up__look")
            assert reply.status == 404


def _frame(method: str) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": method}


async def test_a_disabled_server_has_no_door() -> None:
    disabled = ServerSettings("off", "off", "http", url="http://127.0.0.1:9/", disabled=True)
    async with visiting(disabled) as visitor:
        assert (await visitor.send("GET", path="/servers/off/mcp")).status == 404
        assert (await visitor.send("GET", path="/ready")).status == 200


async def test_missing_server_does_not_stop_the_others() -> None:
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

        async with assemble_gateway(Settings(servers=(at(server.url),))) as parts:
            await server.arrival("initialize")
            assert not parts.servers.is_every_server_tried
            go_on.set()
            await parts.servers.wait_for_first_starts(timedelta(seconds=SECONDS))
            assert parts.servers.is_every_server_tried


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
    monkeypatch.setattr("comity.app.gateway.CHECK_INTERVAL_SECONDS", 0.02)
    async with scripted() as server:
        idle = timedelta(milliseconds=100)
        async with visiting(at(server.url), limits_session_idle_timeout=idle) as visitor:
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
    monkeypatch.setattr("comity.app.gateway.CHECK_INTERVAL_SECONDS", 0.02)
    async with scripted() as server:

        @server.act("slow")
        async def slow(exchange: Exchange) -> None:
            await exchange.left()

        deadline = timedelta(milliseconds=100)
        async with visiting(at(server.url), limits_call_idle_timeout=deadline) as visitor:
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
        async with assemble_gateway(Settings(servers=(at(url),))):
            pass


async def test_nothing_of_a_visitor_is_left_when_it_ends() -> None:
    async with scripted() as server, visiting(at(server.url)) as visitor:
        await visitor.greet()
        await visitor.call("plain")
        await visitor.send("DELETE", visitor.session.items())
        assert (len(visitor.parts.sessions), len(visitor.parts.active_calls)) == (0, 0)


async def replace_server(visitor: Visitor, server: ServerSettings) -> None:
    residents = visitor.parts.upstream_registry
    reach = residents.transport_factory(server)
    await residents.stop_for_replacement(server.id, ShutdownReason.CONFIGURATION_CHANGE)
    residents.add(server, reach)
    added = visitor.parts.servers.get(server.id)
    assert added is not None
    await added.wait_for_first_start()


@asynccontextmanager
async def offering() -> AsyncGenerator[Upstream]:
    """A server over HTTP with one tool, `plain`."""
    async with scripted() as server:

        @server.act("tools/list")
        async def tools(exchange: Exchange) -> None:
            await exchange.result({"tools": [{"name": "plain", "inputSchema": {"type": "object"}}]})

        yield server


async def test_a_session_goes_on_with_what_took_the_place_of_its_server() -> None:
    async with (
        offering() as first,
        offering() as second,
        visiting(at(first.url, headers={"x-key": "old"})) as visitor,
    ):
        merged = visitor.other("/mcp")
        for client in (visitor, merged):
            await client.greet()
        await visitor.call("plain")
        await merged.call("up__plain")
        await replace_server(visitor, at(second.url, headers={"x-key": "new"}))
        await visitor.call("plain", named=2)
        await merged.call("up__plain", named=2)
        assert len(first.of("tools/call")) == len(second.of("tools/call")) == 2
        assert {each.headers["x-key"] for each in second.heard} == {"new"}
        # Every session that there was at the old place has been ended there.
        assert len([each for each in first.heard if each.verb == "DELETE"]) == 3


async def test_a_server_that_is_dismissed_leaves_nothing_behind() -> None:
    async with scripted() as server, visiting(at(server.url), at(server.url, "other")) as visitor:
        other = visitor.other("/servers/other/mcp")
        await visitor.greet()
        await other.greet()
        await visitor.parts.upstream_registry.remove("up", ShutdownReason.OPERATOR_REQUEST)
        assert (await visitor.call("plain")).status == 404
        assert (await visitor.send("GET", path="/servers/up/sse")).status == 404
        assert (await other.call("plain")).status == 200
        assert [session.endpoint_name for session in visitor.parts.sessions] == ["other"]
        assert list(visitor.parts.upstream_registry.descriptions) == ["other"]


async def test_a_server_that_cannot_be_is_refused_before_anything_is_done() -> None:
    async with scripted() as server, visiting(at(server.url)) as visitor:
        with pytest.raises(Misconfigured):
            visitor.parts.upstream_registry.transport_factory(at("http://host:99999/"))
        await visitor.greet()
        assert (await visitor.call("plain")).status == 200


STREAMING: Frame = {"version": "0.3.0", "extensions": ["streaming"]}


@loop_over(("wanted", "heard"), [(True, STREAMING), (False, None)])
async def test_a_plain_clients_server_is_offered_pieces_only_where_that_is_wanted(
    wanted: bool, heard: Frame | None
) -> None:
    async with scripted() as server:

        @server.act("tools/list")
        async def tools(exchange: Exchange) -> None:
            await exchange.result({"tools": [{"name": "plain", "inputSchema": {"type": "object"}}]})

        async with visiting(at(server.url), limits_stream_for_progress=wanted) as visitor:
            merged = visitor.other("/mcp")
            await merged.greet()
            await merged.call("up__plain")
        _, of_session = server.of("initialize")
        assert of_session.frame["params"]["capabilities"].get("mgp") == heard


async def test_the_routes_of_the_journal_find_what_was_kept(tmp_path: Path) -> None:
    settings = Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/c.db"))
    async with (
        open_policy_snapshot(settings) as snapshot,
        open_audit_log(settings, snapshot, b"p" * 32) as kept,
    ):
        journal = kept.audit_log
        await journal.write(AuditEvent(AuditType.TOOL_EXECUTED, "agent:a", journal.clock()))
        found = await call_route(
            audit_routes(snapshot.records, kept, settings), "GET", "/api/audit"
        )
    assert "agent:a" in str(found)
    async with open_audit_reader(settings) as history:
        lines = [line async for line in history.export()]
    assert len(lines) >= 3


async def test_without_a_store_there_is_no_journal_to_read() -> None:
    with pytest.raises(Misconfigured, match=r"\[store\]"):
        async with open_audit_reader(Settings()):
            pass
