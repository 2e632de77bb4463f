"""What operators read and change at /api, through the door."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.commands import by_command
from tests.support.upstream import Exchange, Upstream, scripted
from tests.support.visitor import SECONDS, Visitor, at, visiting

type Answer = dict[str, Any]

LOOK: Answer = {
    "name": "look",
    "title": "Look at it",
    "description": "Tells what stands there.",
    "inputSchema": {"type": "object", "properties": {"where": {"type": "string"}}},
    "annotations": {"readOnlyHint": True},
}


def offering(server: Upstream, *tools: Answer) -> None:
    @server.act("tools/list")
    async def listed(exchange: Exchange) -> None:
        await exchange.result({"tools": list(tools)})


async def read(visitor: Visitor, path: str, status: int = 200) -> Answer:
    reply = await visitor.send("GET", path=path)
    body = await reply.json()
    assert reply.status == status, body
    return body


async def test_the_status_counts_what_there_is() -> None:
    async with scripted() as server:
        offering(server, LOOK, {**LOOK, "name": "touch"})
        gone = at("http://127.0.0.1:9/mcp", "gone")
        async with visiting(at(server.url), gone) as visitor:
            await visitor.greet()
            status = await read(visitor, "/api/status")
    assert (status["name"], status["version"].count(".")) == ("comity", 2)
    assert (status["ready"], status["tools"]) == (True, 2)
    assert (status["sessions"], status["calls"]) == (1, 0)
    assert status["servers"]["connected"] == 1
    assert sum(status["servers"].values()) == 2
    (troubled,) = status["troubled"]
    assert troubled["id"] == "gone"
    assert troubled["reason"]
    assert "T" in status["started"]


async def test_every_server_is_told_with_its_state_and_what_it_offers() -> None:
    async with scripted() as server:
        offering(server, LOOK, {"name": "broken", "inputSchema": {"type": "int"}})
        gone = at("http://127.0.0.1:9/mcp", "gone")
        async with visiting(at(server.url), gone, by_command("child")) as visitor:
            listed = (await read(visitor, "/api/servers"))["servers"]
    by_id = {each["id"]: each for each in listed}
    assert list(by_id) == ["up", "gone", "child"]
    assert (by_id["up"]["state"], by_id["up"]["tools"], by_id["up"]["quarantined"]) == (
        "connected",
        1,
        1,
    )
    assert by_id["up"]["transport"] == "http"
    assert by_id["up"]["protocol_versions"] == ["2025-11-25"]
    assert by_id["gone"]["state"] != "connected"
    assert "127.0.0.1" in by_id["gone"]["reason"]
    assert by_id["child"]["transport"] == "stdio"


async def test_servers_are_paged_and_found_by_state_and_text() -> None:
    gone = at("http://127.0.0.1:9/mcp", "gone")
    async with scripted() as server, visiting(at(server.url), gone, by_command("child")) as visitor:
        first = await read(visitor, "/api/servers?limit=2")
        rest = await read(visitor, f"/api/servers?limit=2&cursor={first['next']}")
        connected = await read(visitor, "/api/servers?state=connected")
        named = await read(visitor, "/api/servers?text=CHI")
        refused = await visitor.send("GET", path="/api/servers?state=nowhere")
    assert [each["id"] for each in (*first["servers"], *rest["servers"])] == ["up", "gone", "child"]
    assert (first["total"], "next" in rest) == (3, False)
    assert {each["id"] for each in connected["servers"]} == {"up", "child"}
    assert [each["id"] for each in named["servers"]] == ["child"]
    assert refused.status == 400


async def test_the_history_of_a_server_has_its_transitions_and_who_ordered_them() -> None:
    async with visiting(by_command("child")) as visitor:
        await order(visitor, "stop")
        server = await until(visitor, "disconnected")
        trust = visitor.parts.server_policies.tool_reviews.trust_of("child")
    newest = server["history"][0]
    assert newest["state"] == "disconnected"
    assert any(each["by"] for each in server["history"])
    assert [each["at"] for each in server["history"]] == sorted(
        (each["at"] for each in server["history"]), reverse=True
    )
    assert server["trust"] == trust


async def test_nothing_that_may_be_a_secret_is_told_of_a_server() -> None:
    async with scripted() as server:
        secret = at(server.url + "?key=canary-1", "up", {"authorization": "Bearer canary-2"})
        async with visiting(secret, by_command("child", {"TOKEN": "canary-3"})) as visitor:
            told = [
                await read(visitor, path)
                for path in ("/api/servers", "/api/servers/up", "/api/servers/child")
            ]
    assert "canary" not in json.dumps(told)


async def test_one_server_is_shown_with_its_details_and_output() -> None:
    async with scripted() as server:
        offering(server, LOOK, {"name": "broken", "inputSchema": {"type": "int"}})
        async with visiting(at(server.url), by_command("child")) as visitor:
            whole = await read(visitor, "/api/servers/up")
            logs = await read(visitor, "/api/servers/child/logs")
    assert whole["info"] == {"name": "scripted", "version": "1"}
    assert list(whole["quarantined"]) == ["broken"]
    assert whole["lines"] == []
    assert logs["id"] == "child"
    assert isinstance(logs["lines"], list)


async def test_tools_are_told_by_server_and_by_what_is_sought() -> None:
    async with scripted() as one, scripted() as two:
        offering(one, LOOK, {**LOOK, "name": "touch", "title": "Touch", "description": None})
        offering(two, LOOK)
        async with visiting(at(one.url, "one"), at(two.url, "two")) as visitor:
            everything = (await read(visitor, "/api/tools"))["tools"]
            of_one = (await read(visitor, "/api/tools?server=one"))["tools"]
            sought = (await read(visitor, "/api/tools?search=WHAT+stands"))["tools"]
            nothing = (await read(visitor, "/api/tools?search=stands+nowhere"))["tools"]
            page = await read(visitor, "/api/tools?cursor=x", 400)
    assert [tool["name"] for tool in everything] == ["one__look", "one__touch", "two__look"]
    assert [tool["name"] for tool in of_one] == ["one__look", "one__touch"]
    assert [tool["name"] for tool in sought] == ["one__look", "two__look"]
    assert nothing == []
    assert "cursor" in page["error"]["message"]
    assert everything[0] == {
        "name": "one__look",
        "server": "one",
        "tool": "look",
        "title": "Look at it",
        "description": "Tells what stands there.",
        "annotations": {"readOnlyHint": True},
        "risk": "dangerous",
    }


async def test_one_tool_is_told_with_its_schema() -> None:
    async with scripted() as server:
        offering(server, LOOK)
        async with visiting(at(server.url)) as visitor:
            tool = await read(visitor, "/api/tools/up__look")
            by_bare_name = await read(visitor, "/api/tools/look")
    assert tool["definition"]["inputSchema"] == LOOK["inputSchema"]
    assert (tool["server"], tool["tool"]) == ("up", "look")
    assert by_bare_name == tool


async def test_unknown_paths_and_names_are_not_found() -> None:
    async with visiting() as visitor:
        for path in (
            *("/api/", "/api/nothing", "/api/status/", "/api/servers/", "/api/servers/none"),
            *("/api/servers/none/logs", "/api/servers/none/dance", "/api/tools/none"),
            "/api/tools?server=none",
        ):
            answer = await read(visitor, path, 404)
            assert answer["error"]["message"], path


async def test_a_page_of_a_named_origin_may_call_tools_and_not_operate() -> None:
    origin = "https://console.example.org"
    async with visiting(allowed_origins=(origin,)) as visitor:
        reply = await visitor.send("GET", [("origin", origin)], path="/api/status")
        assert "access-control-allow-origin" not in reply.headers
        asking = [("origin", origin), ("access-control-request-method", "POST")]
        reply = await visitor.send("OPTIONS", asking, path="/api/servers/up/restart")
        assert (reply.status, "access-control-allow-origin" in reply.headers) == (405, False)
        elsewhere = [("origin", "https://elsewhere.example.org")]
        assert (await visitor.send("GET", elsewhere, path="/api/status")).status == 403
        lured = [("host", "evil.example")]
        assert (await visitor.send("GET", lured, path="/api/status")).status == 421


JSON = ("content-type", "application/json")


async def order(visitor: Visitor, deed: str, *headers: tuple[str, str], body: bytes = b"{}") -> Any:
    path = f"/api/servers/child/{deed}"
    return await visitor.send("POST", headers or (JSON,), body, path=path)


async def until(visitor: Visitor, state: str) -> Answer:
    async with asyncio.timeout(SECONDS):
        while (server := await read(visitor, "/api/servers/child"))["state"] != state:
            await asyncio.sleep(0.02)
    return server


async def test_server_is_stopped_started_and_restarted_by_order() -> None:
    async with visiting(by_command("child")) as visitor:
        assert (await read(visitor, "/api/servers/child"))["restarts"] == 0
        # As a page that the gateway serves would send it.
        own = ("origin", visitor.place.address)
        stopped = await (await order(visitor, "stop", JSON, own)).json()
        assert (stopped["state"], stopped["tools"]) == ("disconnected", 0)
        assert (await read(visitor, "/api/status"))["troubled"] == []
        assert (await order(visitor, "start")).status == 200
        before = await until(visitor, "connected")
        assert before["tools"] > 0
        assert (await order(visitor, "restart", JSON, body=b"")).status == 200
        after = await until(visitor, "connected")
        assert after["restarts"] == before["restarts"] + 1
        assert after["since"] > before["since"]


async def test_an_order_that_takes_long_is_told_as_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server waits for its calls; whoever ordered it to stop does not."""
    monkeypatch.setattr("comity.servers.api.ORDER_TIMEOUT_SECONDS", 0.05)
    async with visiting(by_command("child")) as visitor:
        caller = visitor.other("/servers/child/mcp")
        await caller.greet()
        hanging = await caller.call("hang")
        told = await (await order(visitor, "stop")).json()
        assert told["state"] == "draining"
        hanging.leave()


CONSOLE = "https://console.example.org"
FOREIGN_REQUESTS: list[tuple[list[tuple[str, str]], int]] = [
    ([("content-type", "text/plain")], 415),
    ([("content-type", "application/x-www-form-urlencoded")], 415),
    ([("accept", "*/*")], 415),
    ([JSON, ("origin", "http://localhost:3000")], 403),
    ([JSON, ("origin", CONSOLE)], 403),
    ([JSON, ("origin", "null")], 403),
    ([JSON, ("sec-fetch-site", "cross-site")], 403),
    ([JSON, ("sec-fetch-site", "same-site")], 403),
    ([JSON, ("host", "evil.example")], 421),
]


async def test_orders_of_other_sites_and_malformed_orders_are_refused() -> None:
    async with visiting(by_command("child"), allowed_origins=(CONSOLE,)) as visitor:
        for headers, status in FOREIGN_REQUESTS:
            assert (await order(visitor, "stop", *headers)).status == status, headers
        for body in (b"[]", b"{", b"x" * 5000):
            assert (await order(visitor, "stop", JSON, body=body)).status in (400, 413)
        assert (await visitor.send("GET", path="/api/servers/child/stop")).status == 405
        assert (await visitor.send("POST", (JSON,), b"{}", path="/api/servers")).status == 405
        missing = await visitor.send("POST", (JSON,), b"{}", path="/api/servers/none/stop")
        assert missing.status == 404
        assert (await read(visitor, "/api/servers/child"))["state"] == "connected"
