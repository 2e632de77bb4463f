"""A server made with the authoring kit, met directly: what it says of MGP, and to whom."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from mcp import Client

from tests.conformance.servers.kit import kit
from tests.conformance.ways import Frame
from tests.interop.hand_client import (
    SECONDS,
    Exchange,
    HandClient,
    StdioClient,
    initialize,
    over_http,
    over_stdio,
)
from tests.interop.processes import http_server

COMMAND = [sys.executable, "-m", "tests.conformance.servers.kit"]
ALL = ["security", "lifecycle", "bidirectional", "audit", "streaming"]
OFFER: Frame = {"mgp": {"version": "0.3.0", "extensions": [*ALL, "tool_discovery"]}}
PLAIN: Frame = {}


type Meet = Callable[[], AbstractAsyncContextManager[HandClient]]
NEAR: Meet = partial(over_stdio, COMMAND)


@pytest.fixture(scope="module")
def far() -> Generator[Meet]:
    """The kit's server over HTTP, one for all tests."""
    with http_server(lambda port: [*COMMAND, str(port)]) as origin:
        yield partial(over_http, f"{origin}/mcp")


@pytest.fixture(params=["near", "far"])
def meet(request: pytest.FixtureRequest, far: Meet) -> Meet:
    """How the kit's server is met: on pipes, or over HTTP."""
    return NEAR if request.param == "near" else far


@asynccontextmanager
async def met(meet: Meet, capabilities: Frame) -> AsyncGenerator[tuple[HandClient, Frame]]:
    async with meet() as client:
        hello = await initialize(client, capabilities)
        yield client, hello["capabilities"]


async def call(client: HandClient, tool: str, **arguments: object) -> Any:
    asked = {"name": tool, "arguments": arguments}
    return (await client.request("tools/call", asked)).result["content"][0]["text"]


async def told(client: HandClient, method: str) -> Frame:
    async with asyncio.timeout(SECONDS):
        while (said := await client.standalone.get())["method"] != method:
            pass
    return said["params"]


@pytest.mark.requirement(
    *("MGP-2.3-permissions_required", "MGP-2.3-trust_level", "MGP-2.3-version"),
    *("MGP-2.3-extensions", "MGP-2.3-server_id", "MGP-3.1-declare", "MGP-8.1-listall"),
)
async def test_it_says_what_it_needs_and_what_both_can_do(meet: Meet) -> None:
    async with met(meet, OFFER) as (_, capabilities):
        assert capabilities["mgp"] == {
            "version": "0.3.0",
            "extensions": sorted(ALL),
            "permissions_required": ["network.outbound", "camera", "filesystem.write"],
            "server_id": "kit.example",
            "trust_level": "sandboxed",
        }


@pytest.mark.requirement("MGP-8.1-minimal")
async def test_it_speaks_only_of_what_was_offered(far: Meet) -> None:
    minimal: Frame = {"mgp": {"version": "0.3.0", "extensions": ["security"]}}
    async with met(far, minimal) as (client, capabilities):
        assert capabilities["mgp"]["extensions"] == ["security"]
        refused = (await client.request("mgp/health/ping", {})).response["error"]
        assert refused["code"] == -32601


@pytest.mark.requirement("MGP-1.1-degrade", "MGP-8.1-norequire")
async def test_to_a_plain_client_it_is_a_plain_server(meet: Meet) -> None:
    async with met(meet, PLAIN) as (client, capabilities):
        assert "mgp" not in str(capabilities)
        tools = (await client.request("tools/list", {})).result["tools"]
        assert not any("security" in tool or "_meta" in tool for tool in tools)
        assert await call(client, "say", text="hello") == "hello"
        # Nobody can be asked, and nobody's silence is a yes.
        assert await call(client, "wipe") == "left alone"
        refused = (await client.request("mgp/health/ping", {})).response["error"]
        assert refused["code"] == -32601


@pytest.mark.requirement(
    *("MGP-4.1-security", "MGP-4.3-risk_level", "MGP-4.3-permissions_required"),
    *("MGP-4.3-side_effects", "MGP-4.3-reversible", "MGP-4.3-validator"),
    *("MGP-7.3-declare", "MGP-7.3-level", "MGP-7.3-language", "MGP-7.3-max_code_size_bytes"),
    *("MGP-7.3-blocked_imports", "MGP-7.3-blocked_patterns", "MGP-7.3-allowed_imports"),
)
async def test_every_tool_is_listed_with_its_label(meet: Meet) -> None:
    async with met(meet, OFFER) as (client, _):
        listed = (await client.request("tools/list", {})).result["tools"]
    tools = {tool["name"]: tool for tool in listed}
    assert all(tool["security"] == tool["_meta"]["dev.comity/security"] for tool in listed)
    assert tools["wipe"]["security"] == {
        "risk_level": "dangerous",
        "permissions_required": ["filesystem.write"],
        "side_effects": ["filesystem", "process"],
        "validator": "sandbox",
        "reversible": False,
        "confirmation_required": True,
    }
    assert {tool["security"]["risk_level"] for tool in listed} == {"safe", "moderate", "dangerous"}
    assert tools["calculate"]["security"]["code_safety"] == {
        "level": "standard",
        "language": "python",
        "max_code_size_bytes": 500,
        "blocked_imports": ["csv"],
        "blocked_patterns": ["eval("],
        "allowed_imports": ["math"],
    }


@pytest.mark.requirement("MGP-4.2-ignored")
async def test_a_plain_client_of_the_official_sdk_does_without_labels() -> None:
    """Labels are put before it that it never asked for, and it lists and calls all the same."""

    async def labelled(ctx: Any, call_next: Any) -> Any:
        result = await call_next(ctx)
        return kit.labels.labelled(result) if ctx.method == "tools/list" else result

    server = kit.server
    server.middleware.append(labelled)
    try:
        async with Client(server, mode="legacy") as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert "wipe" in names
            said = await client.call_tool("say", {"text": "hello"})
            assert said.content[0].model_dump()["text"] == "hello"
    finally:
        server.middleware.remove(labelled)


@pytest.mark.requirement(
    *("MGP-11.3-ping", "MGP-11.3-ping-result", "MGP-11.3-healthy", "MGP-11.3-degraded"),
    *("MGP-11.3-unhealthy", "MGP-11.3-status", "MGP-11.3-status-result"),
)
async def test_it_says_how_it_is_while_tools_run(meet: Meet) -> None:
    async with met(meet, OFFER) as (client, _):
        waiting = asyncio.ensure_future(call(client, "wait"))
        states: list[str] = []
        for well, ailment in ((True, ""), (False, ""), (False, "no disk")):
            await call(client, "feel", disk_is_well=well, ailment=ailment)
            async with asyncio.timeout(5):
                asked = {"timestamp": "2026-02-27T12:00:00.000Z"}
                ping = (await client.request("mgp/health/ping", asked)).result
            states.append(ping["status"])
            assert ping.keys() == {"status", "timestamp", "uptime_secs", "server_id"}
            assert datetime.fromisoformat(ping["timestamp"]).tzinfo is not None
            assert (ping["server_id"], type(ping["uptime_secs"])) == ("kit.example", int)
        assert states == ["healthy", "degraded", "unhealthy"]
        status = (await client.request("mgp/health/status", {})).result
        tools = (await client.request("tools/list", {})).result["tools"]
        assert type(status.pop("uptime_secs")) is int
        assert status == {
            "status": "unhealthy",
            "tools_available": len(tools),
            "tools_total": len(tools),
            "pending_requests": 1,
            "resources": {"notes": 3},
            "checks": {"disk": False},
        }
        await call(client, "go")
        assert await waiting == "waited"
        await call(client, "feel", disk_is_well=True)


@pytest.mark.requirement(
    *("MGP-11.4-shutdown", "MGP-11.4-shutdown-result", "MGP-11.4-lifecycle"),
    "MGP-11.2-draining",
)
async def test_it_lets_its_calls_finish_and_tells_each_step() -> None:
    """On a pipe, a step belongs to the oldest call that is open when it comes, or to none."""
    changed = "notifications/mgp.lifecycle"
    exchanges: list[Exchange] = []
    async with met(NEAR, OFFER) as (client, _):

        async def amid_the_call(frame: Frame) -> None:
            if frame["method"] != "notifications/mgp.callback.request":
                return
            wish = {"reason": "operator_request", "timeout_ms": 15_000}
            answer = (await client.request("mgp/lifecycle/shutdown", wish)).result
            assert (answer["accepted"], answer["pending_requests"]) == (True, 1)
            assert 0 < answer["estimated_drain_ms"] <= 15_000
            refused = (await client.request("tools/call", {"name": "say"})).response["error"]
            assert (refused["code"], refused["data"]["_mgp"]["category"]) == (2001, "lifecycle")
            assert refused["data"]["_mgp"]["retryable"] is True
            given = {"callback_id": frame["params"]["callback_id"], "response": "confirm"}
            exchanges.append(await client.request("mgp/callback/respond", given))

        exchange = await client.request("tools/call", {"name": "wipe"}, meanwhile=amid_the_call)
        assert exchange.result["content"][0]["text"] == "wiped"
        exchanges.insert(0, exchange)
        steps = [frame["params"] for each in exchanges for frame in each.said(changed)]
        assert steps, "its first step comes before its last call has ended"
        if len(steps) == 1:
            steps.append(await told(client, changed))
        states = [(step["previous_state"], step["new_state"]) for step in steps]
        assert states == [("connected", "draining"), ("draining", "disconnected")]
        for step in steps:
            assert (step["server_id"], step["reason"]) == ("kit.example", "operator_request")
            assert datetime.fromisoformat(step["timestamp"])


async def _until_pending(client: HandClient) -> None:
    async with asyncio.timeout(SECONDS):
        while not (await client.request("mgp/health/status", {})).result["pending_requests"]:
            await asyncio.sleep(0.02)


@pytest.mark.requirement("MGP-11.4-shutdown", "MGP-11.4-lifecycle")
async def test_after_its_last_call_the_process_ends_by_itself() -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    client = StdioClient(process.stdout, process.stdin)
    reading = asyncio.ensure_future(client.read())
    await initialize(client, OFFER)
    waiting = asyncio.ensure_future(client.request("tools/call", {"name": "wait"}))
    await _until_pending(client)
    wish = {"reason": "idle_timeout", "timeout_ms": 500}
    assert (await client.request("mgp/lifecycle/shutdown", wish)).result["accepted"] is True
    async with asyncio.timeout(SECONDS):
        assert await process.wait() == 0
    reading.cancel()
    waiting.cancel()


@pytest.mark.parametrize("wish", [{}, {"reason": "boredom"}, {"reason": 7, "timeout_ms": 1}])
async def test_a_shutdown_without_a_known_reason_is_refused(far: Meet, wish: Frame) -> None:
    async with met(far, OFFER) as (client, _):
        refused = (await client.request("mgp/lifecycle/shutdown", wish)).response["error"]
        assert refused["code"] == -32602
        assert await call(client, "say", text="still here") == "still here"


@pytest.mark.requirement("MGP-3.6-denied", "MGP-3.6-deferred")
async def test_it_waits_for_what_is_deferred_and_does_without_what_is_denied() -> None:
    async with met(partial(over_stdio, COMMAND), OFFER) as (client, _):
        ask = {"request_id": "perm-1", "permissions": ["camera"], "policy": "interactive"}
        await client.request("mgp/permission/request", {**ask, "message": "wait"})
        held = asyncio.ensure_future(client.request("tools/call", {"name": "look"}))
        await _until_pending(client)
        assert await call(client, "say", text="others work") == "others work"
        assert not held.done()
        grants = {"request_id": "perm-1", "approved_by": "op"}
        await client.request(
            "mgp/permission/response", {**grants, "grants": {"camera": "approved"}}
        )
        assert (await held).result["content"][0]["text"] == "seen"
        await client.request("mgp/permission/response", {**grants, "grants": {"camera": "denied"}})
        refused = (await client.request("tools/call", {"name": "look"})).response["error"]
        assert (refused["code"], refused["data"]["_mgp"]["retryable"]) == (1000, False)
        assert await call(client, "say", text="others work") == "others work"
        status = (await client.request("mgp/health/status", {})).result
        assert status["tools_available"] == status["tools_total"] - 1


@pytest.mark.requirement("MGP-6.5-propagate")
async def test_what_it_tells_of_a_call_is_of_the_trace_of_the_call(far: Meet) -> None:
    trace = "0af76519-16cd-43dd-8448-eb211c80319c"
    async with met(far, OFFER) as (client, _):
        asked = {"name": "say", "arguments": {"text": "x"}, "trace_id": trace}
        exchange = await client.request("tools/call", asked)
        (notice,) = exchange.said("notifications/mgp.audit")
        assert notice["params"]["trace_id"] == trace
        assert notice["params"]["event_type"] == "com.example.said"
        assert notice["params"]["target"] == {"server_id": "kit.example", "tool_name": "say"}


@pytest.mark.requirement(
    *("MGP-13.2-subscribe", "MGP-13.2-subscribe-result", "MGP-13.2-unsubscribe"),
    *("MGP-13.3-event", "MGP-13.5-model", "MGP-13.5-system", "MGP-13.5-tool"),
    "MGP-13.5-security",
)
async def test_whoever_subscribed_is_told_and_nobody_else(meet: Meet) -> None:
    async with met(meet, OFFER) as (client, _):
        await client.listen()
        assert await call(client, "publish", channel="system.error", severity="error") == "0"
        wanted = {"channels": ["*", "nothing.here"], "filter": {"min_severity": "warning"}}
        answer = (await client.request("mgp/events/subscribe", wanted)).result
        families = {name.partition(".")[0] for name in answer["subscribed"]}
        assert families == {"model", "system", "tool", "security"}
        assert answer["unsupported"] == ["nothing.here"]
        assert await call(client, "publish", channel="system.error", severity="info") == "0"
        exchange = await client.request(
            "tools/call",
            {"name": "publish", "arguments": {"channel": "system.error", "severity": "error"}},
        )
        came = exchange.said("notifications/mgp.event")
        event = came[0]["params"] if came else await told(client, "notifications/mgp.event")
        assert event["subscription_id"] == answer["subscription_id"]
        assert (event["channel"], event["data"]) == ("system.error", {"n": 1})
        assert datetime.fromisoformat(event["timestamp"])
        left = {"subscription_id": answer["subscription_id"]}
        await client.request("mgp/events/unsubscribe", left)
        assert await call(client, "publish", channel="system.error", severity="error") == "0"


@pytest.mark.requirement("MGP-13.4-callback", "MGP-13.4-callback-fields")
@pytest.mark.parametrize(("said", "done"), [("confirm", "wiped"), ("cancel", "left alone")])
async def test_it_asks_amid_a_call_and_goes_by_the_answer(meet: Meet, said: str, done: str) -> None:
    async with met(meet, OFFER) as (client, _):

        async def answer(frame: Frame) -> None:
            asked = frame["params"]
            assert asked.keys() == {
                *("callback_id", "request_id", "type", "message", "options", "timeout_ms")
            }
            assert (asked["request_id"], asked["type"]) == (71, "confirmation")
            assert asked["options"] == ["confirm", "cancel"]
            given = {"callback_id": asked["callback_id"], "response": said}
            await client.request("mgp/callback/respond", given)

        exchange = await client.request("tools/call", {"name": "wipe"}, named=71, meanwhile=answer)
        assert exchange.result["content"][0]["text"] == done


async def test_words_and_choices_are_taken_only_as_they_were_asked_for(far: Meet) -> None:
    async with met(far, OFFER) as (client, _):
        said = {"input": "tree", "selection": "green"}
        heard: list[str] = []

        async def answer(frame: Frame) -> None:
            asked = frame["params"]
            heard.append(asked["type"])
            if asked["type"] in said:
                given = {"callback_id": asked["callback_id"], "response": said[asked["type"]]}
                await client.request("mgp/callback/respond", given)

        exchange = await client.request("tools/call", {"name": "survey"}, meanwhile=answer)
        assert exchange.result["structuredContent"] == {"word": "tree", "colour": None}
        assert heard == ["input", "selection", "notification"]
