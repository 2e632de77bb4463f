"""Health, readiness and figures, asked of a real gateway before real sockets."""

import asyncio
from contextlib import suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from comity.wire.grants import CALL, Effect, Grant
from tests.surfaces.commands import by_command
from tests.surfaces.credentials import GivenOut
from tests.surfaces.upstream import Exchange, Upstream, scripted
from tests.surfaces.visitor import ENVELOPE, SECONDS, Visitor, at, request, visiting

GONE = at("http://127.0.0.1:9/secret-path", "gone", {"authorization": "canary-token"})


def tools(server: Upstream, *names: str) -> None:
    @server.act("tools/list")
    async def listed(exchange: Exchange) -> None:
        offered = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        await exchange.result({"tools": offered})


async def scraped(visitor: Visitor) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample, read by Prometheus' own parser, by its name and labels."""
    reply = await visitor.send("GET", path="/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families((await reply.body()).decode())
    return {
        (each.name, frozenset(each.labels.items())): each.value
        for family in families
        for each in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


async def test_health_knows_nothing_of_servers() -> None:
    async with visiting(GONE) as visitor:
        reply = await visitor.send("GET", path="/health")
        assert (reply.status, await reply.body()) == (200, b'{"status":"ok"}')


async def test_readiness_is_told_with_counts_and_without_names_or_reasons() -> None:
    async with scripted() as server, visiting(GONE, at(server.url)) as visitor:
        reply = await visitor.send("GET", path="/ready")
        body = await reply.json()
        assert (reply.status, body["status"]) == (200, "ready")
        assert body["servers"]["connected"] == 1
        assert sum(body["servers"].values()) == 2
        for secret in ("gone", "secret", "canary", "127.0.0.1"):
            assert secret not in str(body)


async def test_there_is_no_readiness_before_the_first_tries() -> None:
    async with visiting(GONE) as visitor:
        gone = visitor.parts.servers.get("gone")
        assert gone is not None
        gone.tried.clear()
        reply = await visitor.send("GET", path="/ready")
        assert (reply.status, (await reply.json())["status"]) == (503, "starting")


async def test_a_server_that_comes_later_takes_no_readiness_back() -> None:
    async with visiting(GONE) as visitor:
        assert (await visitor.send("GET", path="/ready")).status == 200
        gone = visitor.parts.servers.get("gone")
        assert gone is not None
        gone.tried.clear()
        assert (await visitor.send("GET", path="/ready")).status == 200
        assert (await visitor.send("GET", path="/ready?server=gone")).status == 503


async def test_strict_readiness_wants_every_server_and_a_named_one_only_itself() -> None:
    async with scripted() as server, visiting(GONE, at(server.url)) as visitor:
        wanted = {
            "/ready?strict": (503, "degraded"),
            "/ready?server=up": (200, "ready"),
            "/ready?server=gone": (503, "degraded"),
            "/ready?server=gone&server=up": (503, "degraded"),
            "/ready?strict&server=up": (200, "ready"),
        }
        for path, told in wanted.items():
            reply = await visitor.send("GET", path=path)
            assert (reply.status, (await reply.json())["status"]) == told, path
        assert (await visitor.send("GET", path="/ready?server=no-such")).status == 404
        many = "&".join(["strict"] * 20)
        assert (await visitor.send("GET", path=f"/ready?{many}")).status == 400


async def test_calls_are_counted_by_server_method_tool_and_outcome() -> None:
    async with scripted() as server:
        tools(server, "look", "fail", "break")

        @server.act("fail")
        async def fail(exchange: Exchange) -> None:
            await exchange.result({"content": [], "isError": True})

        @server.act("break")
        async def broken(exchange: Exchange) -> None:
            exchange.hang_up()

        async with visiting(at(server.url)) as visitor:
            await visitor.greet()
            merged = visitor.other("/mcp")
            await merged.greet()
            for tool in ("look", "look", "fail", "no-such-tool", "break"):
                await (await visitor.call(tool)).frames()
            await (await merged.call("up__look")).frames()
            await (await merged.call("no-such-tool")).frames()
            await (await visitor.post(request(7, "made/up"))).frames()
            told = await scraped(visitor)
        ends = {
            ("look", "ok"): 3,
            ("fail", "tool_error"): 1,
            ("other", "ok"): 1,
            ("break", "upstream_failed"): 1,
        }
        for (tool, outcome), number in ends.items():
            labels = {"server": "up", "tool": tool, "outcome": outcome}
            assert told[key("comity_tool_calls_total", **labels)] == number, labels
        calls = {"server": "up", "method": "tools/call"}
        assert told[key("comity_calls_total", **calls, outcome="ok")] == 4
        assert told[key("comity_call_duration_seconds_count", **calls)] == 6
        assert told[key("comity_call_duration_seconds_bucket", **calls, le="+Inf")] == 6
        assert told[key("comity_tool_call_duration_seconds_count", server="up", tool="look")] == 3
        assert told[key("comity_calls_total", server="up", method="other", outcome="error")] == 1
        missed = {"server": "", "method": "tools/call", "outcome": "tool_not_found"}
        assert told[key("comity_calls_total", **missed)] == 1
        assert "no-such-tool" not in str(told)
        assert "made/up" not in str(told)


async def test_a_modern_call_is_counted_like_any_other() -> None:
    async with scripted(modern=True) as server:
        tools(server, "look")
        async with visiting(at(server.url)) as visitor:
            long = {"name": "look", "arguments": {"a": "x" * 20_000}, "_meta": ENVELOPE}
            await (await visitor.ask_modern("tools/call", long, **{"mcp-name": "look"})).frames()
            for _ in range(2):
                await (await visitor.call_modern("look")).frames()
            await (await visitor.other("/mcp").call_modern("up__look")).frames()
            told = await scraped(visitor)
        labels = {"server": "up", "tool": "look", "outcome": "ok"}
        assert told[key("comity_tool_calls_total", **labels)] == 4


async def test_a_call_under_way_is_seen_and_one_given_up_is_counted_once() -> None:
    async with scripted() as server:
        tools(server, "slow")

        @server.act("slow")
        async def slow(exchange: Exchange) -> None:
            await exchange.left()

        async with visiting(at(server.url)) as visitor:
            await visitor.greet()
            waiting = asyncio.ensure_future(visitor.call("slow", named="late"))
            await server.arrival("tools/call")
            told = await scraped(visitor)
            assert told[key("comity_calls_underway", server="up", method="tools/call")] == 1
            cancelled = {"requestId": "late", "reason": "enough"}
            notice = {"method": "notifications/cancelled", "params": cancelled}
            await visitor.post({"jsonrpc": "2.0", **notice})
            with suppress(asyncio.IncompleteReadError):
                await asyncio.wait_for(waiting, SECONDS)
            told = await scraped(visitor)
            labels = {"server": "up", "tool": "slow", "outcome": "cancelled"}
            assert told[key("comity_tool_calls_total", **labels)] == 1
            assert key("comity_calls_underway", server="up", method="tools/call") not in told


async def test_a_server_that_is_down_has_its_refused_calls_and_its_state() -> None:
    async with scripted() as server, visiting(GONE, at(server.url)) as visitor:
        gone = visitor.other("/servers/gone/mcp")
        params = {"protocolVersion": "2025-11-25"}
        await (await gone.post(request(1, "initialize", params))).frames()
        told = await scraped(visitor)
        assert told[key("comity_server_up", server="gone")] == 0
        assert told[key("comity_server_up", server="up")] == 1
        assert told[key("comity_servers", state="connected")] == 1
        refused = [each for each in told if each[0] == "comity_calls_total" and told[each]]
        ((_, labels),) = refused
        assert dict(labels)["server"] == "gone"
        assert dict(labels)["outcome"].startswith("server_")
        assert key("comity_server_restarts_total", server="up") in told
        for secret in ("secret-path", "canary"):
            assert secret not in str(told)


async def test_offers_sessions_connections_and_the_process_are_told() -> None:
    async with scripted() as server:
        tools(server, "look")
        async with visiting(at(server.url), by_command("child")) as visitor:
            await visitor.greet()
            told = await scraped(visitor)
            assert told[key("comity_sessions")] == 1
            assert told[key("comity_calls_parked")] == 0
            assert told[key("comity_offers", server="up", kind="tools")] == 1
            assert told[key("comity_connections")] >= 1
            assert told[key("comity_connections_total")] >= 3
            assert told[key("process_resident_memory_bytes")] > 1_000_000
            origin = server.url.removesuffix("/mcp")
            idle = {"pool": "calls", "origin": origin, "state": "idle"}
            assert told[key("comity_upstream_connections", **idle)] >= 1


async def test_a_connection_that_is_sent_away_is_counted() -> None:
    async with visiting() as visitor:
        long = await visitor.send("GET", path="/" + "x" * 9000)
        assert long.status == 414
        told = await scraped(visitor)
        assert told[key("comity_connections_refused_total", status="414")] == 1


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
async def test_probes_stand_behind_the_doorway(path: str) -> None:
    async with visiting() as visitor:
        assert (await visitor.send("GET", [("host", "evil.example")], path=path)).status == 421
        lured = [("origin", "https://evil.example")]
        assert (await visitor.send("GET", lured, path=path)).status == 403


async def test_figures_can_only_be_read() -> None:
    async with visiting() as visitor:
        reply = await visitor.send("POST", path="/metrics", body=b"{}")
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
        assert (await visitor.send("HEAD", path="/metrics")).status == 200


async def test_a_node_that_is_cut_off_is_not_ready_but_for_what_is_local() -> None:
    async with visiting(GONE) as visitor:
        visitor.parts.probes.cut_off = lambda: "the bus is away"
        reply = await visitor.send("GET", path="/ready")
        body = await reply.json()
        assert (reply.status, body["status"]) == (503, "cut off")
        assert body["cluster"] == {"status": "cut off", "reason": "the bus is away"}
        local = await visitor.send("GET", path="/ready?local")
        assert (local.status, (await local.json())["status"]) == (200, "ready")
        assert (await visitor.send("GET", path="/health")).status == 200
        visitor.parts.probes.cut_off = str
        assert "cluster" not in await (await visitor.send("GET", path="/ready")).json()


async def test_a_node_that_misses_another_says_so_and_is_ready() -> None:
    async with visiting(GONE) as visitor:
        visitor.parts.probes.nodes = lambda: {"nodes": 1, "silent": 1}
        reply = await visitor.send("GET", path="/ready")
        body = await reply.json()
        assert (reply.status, body["status"]) == (200, "ready")
        assert body["cluster"] == {"status": "joined", "nodes": 1, "silent": 1}


async def test_a_gateway_that_cannot_judge_calls_is_not_ready() -> None:
    async with scripted() as server, visiting(at(server.url)) as visitor:
        for problem in ("store unreachable", "policy unknown"):
            visitor.parts.probes.policy_problem = lambda problem=problem: problem
            reply = await visitor.send("GET", path="/ready")
            assert (reply.status, (await reply.json())["status"]) == (503, problem)
        visitor.parts.probes.policy_problem = str
        assert (await visitor.send("GET", path="/ready")).status == 200


async def test_which_servers_there_are_is_told_to_nobody_who_may_not_use_them() -> None:
    grants = (Grant("agent:ci", CALL, "up/*", Effect.ALLOW),)
    given_out = GivenOut()
    async with (
        scripted() as server,
        visiting(
            at(server.url),
            at(server.url, "other"),
            identity_mode="required",
            register=given_out.register,
            grants=grants,
        ) as visitor,
    ):
        shown = [("authorization", f"Bearer {given_out.give('agent:ci')}")]

        async def asked(query: str, headers: list[tuple[str, str]]) -> tuple[int, bytes]:
            reply = await visitor.send("GET", headers, path=f"/ready?{query}")
            return reply.status, (await reply.body()).partition(b"trace_id")[0]

        assert (await asked("strict", []))[0] == 200
        for query in ("server=up", "server=no-such", "strict&s%65rver=up"):
            assert (await asked(query, []))[0] == 401, query
        assert (await asked("server=up", shown))[0] == 200
        assert (await asked("server=other", shown)) == (await asked("server=no-such", shown))
        assert (await asked("server=up&server=other", shown))[0] == 404
