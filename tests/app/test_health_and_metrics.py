"""Health, readiness and metrics of a running gateway."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from comity.app.metrics import PoolFigures, SnapshotMetrics
from comity.http.client.pool import HttpConnectionPool, PoolLimits
from comity.identity.principals import Principal
from comity.mcp.actors import CALL
from comity.policy.grants import Effect, Grant
from comity.policy.snapshot import GrantSnapshot, PolicySnapshot, SnapshotFreshness
from comity.telemetry.outcomes import class_of
from tests.support.commands import by_command
from tests.support.credentials import GivenOut
from tests.support.http_script import OK, Visit, on_both_loops, pooled, post, serving
from tests.support.inline_store import inline_records
from tests.support.upstream import Exchange, Upstream, scripted
from tests.support.visitor import ENVELOPE, SECONDS, Visitor, at, request, visiting

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
    if "outcome" in labels:
        labels["class"] = class_of(labels["outcome"])
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


async def test_gateway_is_ready_after_the_first_try_of_each_server_and_stays_so() -> None:
    async with visiting(GONE) as visitor:
        gone = visitor.parts.servers.get("gone")
        assert gone is not None
        gone.first_start_tried.clear()
        reply = await visitor.send("GET", path="/ready")
        assert (reply.status, (await reply.json())["status"]) == (503, "starting")
        gone.first_start_tried.set()
        assert (await visitor.send("GET", path="/ready")).status == 200
        # As when a server is added later.
        gone.first_start_tried.clear()
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
            assert told[key("comity_calls_active", server="up", method="tools/call")] == 1
            cancelled = {"requestId": "late", "reason": "enough"}
            notice = {"method": "notifications/cancelled", "params": cancelled}
            await visitor.post({"jsonrpc": "2.0", **notice})
            with suppress(asyncio.IncompleteReadError):
                await asyncio.wait_for(waiting, SECONDS)
            told = await scraped(visitor)
            labels = {"server": "up", "tool": "slow", "outcome": "cancelled"}
            assert told[key("comity_tool_calls_total", **labels)] == 1
            assert key("comity_calls_active", server="up", method="tools/call") not in told


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
            assert told[key("comity_calls_waiting_for_input")] == 0
            assert told[key("comity_catalog_entries", server="up", kind="tools")] == 1
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


async def test_probes_are_read_only_and_refuse_other_origins() -> None:
    async with visiting() as visitor:
        for path in ("/health", "/ready", "/metrics"):
            assert (await visitor.send("GET", [("host", "evil.example")], path=path)).status == 421
            lured = [("origin", "https://evil.example")]
            assert (await visitor.send("GET", lured, path=path)).status == 403
        reply = await visitor.send("POST", path="/metrics", body=b"{}")
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
        assert (await visitor.send("HEAD", path="/metrics")).status == 200


async def test_a_node_that_is_cut_off_is_not_ready_but_for_what_is_local() -> None:
    async with visiting(GONE) as visitor:
        visitor.parts.probes.isolation_reason = lambda: "the bus is away"
        reply = await visitor.send("GET", path="/ready")
        body = await reply.json()
        assert (reply.status, body["status"]) == (503, "cut off")
        assert body["cluster"] == {"status": "cut off", "reason": "the bus is away"}
        local = await visitor.send("GET", path="/ready?local")
        assert (local.status, (await local.json())["status"]) == (200, "ready")
        assert (await visitor.send("GET", path="/health")).status == 200
        visitor.parts.probes.isolation_reason = str
        assert "cluster" not in await (await visitor.send("GET", path="/ready")).json()


async def test_silent_node_of_the_cluster_is_reported_and_readiness_stays() -> None:
    async with visiting(GONE) as visitor:
        visitor.parts.probes.node_counts = lambda: {"nodes": 1, "silent": 1}
        body = await (await visitor.send("GET", path="/ready")).json()
        assert body["status"] == "ready"
        assert body["cluster"] == {"status": "joined", "nodes": 1, "silent": 1}


async def test_gateway_that_cannot_decide_calls_is_not_ready() -> None:
    async with visiting(GONE) as visitor:
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


def policy_samples(snapshot: PolicySnapshot[Any]) -> dict[str, object]:
    return {
        " ".join([family.name, *(value for _, value in labels)]): figure
        for family in SnapshotMetrics(snapshot)()
        for labels, figure in family.samples
    }


async def test_what_is_known_is_counted_and_has_an_age() -> None:
    now = 100.0
    certainty = SnapshotFreshness(timedelta(seconds=30), lambda: now)
    records = inline_records()
    snapshot = PolicySnapshot(records, GrantSnapshot(freshness=certainty), certainty)
    before = policy_samples(snapshot)
    assert before["comity_policy_loaded"] == 0
    assert "comity_policy_age_seconds" not in before
    await records.grants.put(Grant("agent:a", CALL, "*", Effect.ALLOW))
    await records.parties.put(Principal("agent:a"), Principal("agent:b"))
    await snapshot.refresh()
    now += 3
    assert policy_samples(snapshot) == {
        "comity_policy_loaded": 1,
        "comity_policy_age_seconds": 3.0,
        "comity_policy_version": 3,
        "comity_records grants": 1,
        "comity_records principals": 2,
        "comity_records keys": 0,
    }
    now += 28
    assert policy_samples(snapshot)["comity_policy_loaded"] == 0


async def test_what_is_in_memory_alone_does_not_grow_old() -> None:
    certainty = SnapshotFreshness()
    snapshot = PolicySnapshot(inline_records(), GrantSnapshot(freshness=certainty), certainty)
    await snapshot.refresh()
    assert policy_samples(snapshot)["comity_policy_loaded"] == 1
    assert "comity_policy_age_seconds" not in policy_samples(snapshot)


def pool_samples(pool: HttpConnectionPool, name: str) -> dict[str, float]:
    families = {family.name: family for family in PoolFigures({"calls": pool})()}
    samples = families[name].samples
    return {labels[-1][1]: figure for labels, figure in samples if isinstance(figure, int)}


@on_both_loops
async def test_connections_are_told_by_what_they_do_and_who_waits_for_one() -> None:
    go_on = asyncio.Event()

    async def script(visit: Visit) -> None:
        while await visit.request():
            await go_on.wait()
            await visit.say(OK)

    async with serving(script) as server, pooled(limits=PoolLimits(connections=1)) as pool:
        assert PoolFigures({"calls": pool})()[0].samples == []
        first = post(pool, server.origin)
        assert pool_samples(pool, "comity_upstream_connections") == {
            "busy": 0,
            "idle": 0,
            "opening": 1,
        }
        second = post(pool, server.origin)
        while not server.visits:
            await asyncio.sleep(0)
        while pool_samples(pool, "comity_upstream_connections")["busy"] != 1:
            await asyncio.sleep(0)
        assert pool_samples(pool, "comity_upstream_requests_waiting") == {str(server.origin): 1}
        go_on.set()
        await first.response()
        await second.response()
        assert pool_samples(pool, "comity_upstream_connections") == {
            "busy": 0,
            "idle": 1,
            "opening": 0,
        }
        assert pool_samples(pool, "comity_upstream_requests_waiting") == {str(server.origin): 0}


@on_both_loops
async def test_an_origin_is_named_without_path_or_query() -> None:
    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(OK)

    async with serving(script) as server, pooled() as pool:
        await post(pool, server.origin).response()
        (labels, _), *_ = PoolFigures({"calls": pool})()[0].samples
    assert dict(labels) == {"pool": "calls", "origin": str(server.origin), "state": "busy"}
