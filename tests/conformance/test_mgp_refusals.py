"""Refusals as each kind of link is told them: MGP's numbers, or plain MCP's words. (MGP §14)"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp import Client
from mcp_types import TextContent

from tests.conformance.conftest import standing
from tests.conformance.realm import OFFER, PLAIN, SPOKEN
from tests.conformance.ways import Entry, Frame, House, on_pipes, on_port
from tests.interop.hand_client import SECONDS, frames_of
from tests.interop.processes import http_server

REFUSAL = "dev.comity/refusal"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACED: Frame = {"_meta": {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}}
MODERN = "2026-07-28"
CATEGORIES = {2: "lifecycle", 3: "resource", 4: "validation", 5: "external"}

# What is called, its number in MGP, its name on every link, and whether trying again may help.
FAILURES = [
    pytest.param("near__wait", 3003, "timeout", False, id="deadline"),
    pytest.param("near__die", 5000, "upstream_failed", False, id="died"),
    pytest.param("far__status_500", 5000, "upstream_failed", False, id="failed"),
    pytest.param("far__status_504", 5001, "upstream_slow", False, id="slow"),
    pytest.param("far__status_503", 5002, "upstream_down", True, id="down"),
]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    spoken = json.dumps(SPOKEN)
    with http_server(on_port("weary"), {"TALKER_NAME": "far"}) as far:
        servers: dict[str, Entry] = {
            "near": on_pipes("talker", TALKER_NAME="near"),
            "mgpnear": on_pipes("talker", TALKER_NAME="mgpnear", TALKER_MGP=spoken),
            "far": {"type": "http", "url": f"{far}/mcp"},
        }
        settings = '[limits]\ncall_idle_timeout = "2s"'
        with standing(tmp_path_factory.mktemp("weary"), servers, settings) as house:
            yield house


async def called(house: House, capabilities: Frame, tool: str, **params: object) -> Frame:
    """The whole answer to one call at the door of all servers, made when its server is there."""
    async with house.among_all("near").talk(capabilities) as talk:
        async with asyncio.timeout(SECONDS):
            while "result" not in (await talk.call("echo")).response:
                await asyncio.sleep(0.05)
        asked: Frame = {"name": tool, "arguments": {}, **params}
        return (await talk.client.request("tools/call", asked)).response


@pytest.mark.requirement("MGP-14.3-3003", "MGP-14.3-5000", "MGP-14.3-5001", "MGP-14.3-5002")
@pytest.mark.requirement("MGP-14.2-range-3000", "MGP-14.2-range-5000", "MGP-14.4-data")
@pytest.mark.requirement("MGP-14.5-category", "MGP-14.5-retryable", "MGP-14.5-details")
@pytest.mark.parametrize(("tool", "code", "kind", "retryable"), FAILURES)
async def test_on_a_link_of_mgp_a_failed_call_is_an_error_with_its_number(
    house: House, tool: str, code: int, kind: str, retryable: bool
) -> None:
    answer = await called(house, OFFER, tool, **TRACED)
    assert answer.keys() == {"jsonrpc", "id", "error"}
    assert answer["error"]["code"] == code
    data = answer["error"]["data"]
    assert (data["error_type"], data["trace_id"]) == (kind, TRACE)
    assert data["reason"] == answer["error"]["message"]
    recovery = data["_mgp"]
    assert recovery["category"] == CATEGORIES[code // 1000]
    assert recovery["retryable"] is retryable
    assert recovery["details"]["outcome"] == ("not_run" if retryable else "unknown")


@pytest.mark.requirement("MCP-5.1-toolerr")
@pytest.mark.parametrize(("tool", "code", "kind", "retryable"), FAILURES)
async def test_on_a_plain_link_a_failed_call_is_a_result_that_says_what_to_do(
    house: House, tool: str, code: int, kind: str, retryable: bool
) -> None:
    answer = await called(house, PLAIN, tool, **TRACED)
    assert answer.keys() == {"jsonrpc", "id", "result"}
    result = answer["result"]
    assert result["isError"] is True
    assert "structuredContent" not in result
    (block,) = result["content"]
    assert block["type"] == "text"
    advice = "call it again" if not retryable else "calling it again in a moment may help"
    assert advice in block["text"]
    assert TRACE in block["text"]
    body = result["_meta"][REFUSAL]
    assert (body["error_type"], body["trace_id"], body["retryable"]) == (kind, TRACE, retryable)


@pytest.mark.requirement("MCP-5.1-toolerr")
@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_the_official_client_takes_a_refusal_of_a_tool_that_promised_a_structure(
    house: House, mode: str
) -> None:
    async with asyncio.timeout(SECONDS), Client(house.merged, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["far__status_503"].output_schema
        refused = await client.call_tool("far__status_503", {})
    assert refused.is_error
    assert isinstance(refused.content[0], TextContent)
    assert "did not run" in refused.content[0].text


@pytest.mark.requirement("MGP-14.5-retry_after_ms", "MGP-14.5-retry_strategy")
@pytest.mark.requirement("MGP-14.5-max_retries")
async def test_what_is_worth_trying_again_says_when_how_and_how_often(house: House) -> None:
    recovery = (await called(house, OFFER, "far__status_503"))["error"]["data"]["_mgp"]
    assert recovery["retryable"] is True
    assert recovery["retry_after_ms"] >= 0
    assert recovery["retry_strategy"] in ("immediate", "fixed_delay", "exponential_backoff")
    assert recovery["max_retries"] >= 1


@pytest.mark.requirement("MGP-14.3-4001", "MGP-14.2-range-4000", "MGP-14.2-range-jsonrpc")
async def test_an_unknown_tool_has_a_number_for_each_kind_of_link(house: House) -> None:
    governed = (await called(house, OFFER, "near__nothing"))["error"]
    plain = (await called(house, PLAIN, "near__nothing"))["error"]
    assert (governed["code"], plain["code"]) == (4001, -32602)
    assert governed["data"]["_mgp"]["category"] == "validation"
    assert governed["data"]["_mgp"]["retryable"] is False
    assert governed["data"]["error_type"] == plain["data"]["error_type"] == "tool_not_found"
    async with house.among_all("near").talk(OFFER) as talk:
        unknown = (await talk.client.request("no/such", {})).response["error"]
    assert (unknown["code"], unknown["data"]["_mgp"]["retryable"]) == (-32601, False)


async def test_every_refusal_has_a_trace_and_no_two_the_same(house: House) -> None:
    said = [await called(house, PLAIN, "near__nothing") for _ in range(2)]
    traces = {answer["error"]["data"]["trace_id"] for answer in said}
    assert len(traces) == 2
    assert all(len(bytes.fromhex(trace)) == 16 for trace in traces)


@pytest.mark.requirement("MGP-1.2-negotiated")
@pytest.mark.parametrize("door", ["own", "merged"])
async def test_a_servers_own_error_of_mgp_reaches_only_whoever_speaks_it(
    house: House, door: str
) -> None:
    recovery = {"category": "resource", "retryable": True, "retry_after_ms": 5000}
    error = {"code": 3000, "message": "Rate limited", "data": {"_mgp": recovery}}
    way = house.way(f"{door} mgpnear")
    async with way.talk(OFFER) as talk:
        governed = (await talk.call("answer", {"members": {"error": error}})).response
    async with way.talk(PLAIN) as talk:
        plain = (await talk.call("answer", {"members": {"error": error}})).result
    assert governed["error"] == error
    assert plain["isError"] is True
    assert plain["content"] == [{"type": "text", "text": "Rate limited"}]
    assert plain["_meta"][REFUSAL]["retry_after_ms"] == 5000


async def test_a_plain_server_may_have_any_errors_of_its_own(house: House) -> None:
    error = {"code": 3000, "message": "my own", "data": {"_mgp": {"retryable": True}}}
    async with house.own("far").talk(PLAIN) as talk:
        answered = (await talk.call("answer", {"members": {"error": error}})).response
    assert answered["error"] == error


@pytest.mark.requirement("MCP-2.2-32603")
async def test_a_server_that_is_not_there_is_an_error_on_a_plain_link(tmp_path: Path) -> None:
    with standing(tmp_path, {"absent": {"command": "no-such-program"}}) as house:
        async with house.own("absent").dial() as client:
            answer = (await client.request("initialize", {"capabilities": OFFER})).response
    error = answer["error"]
    assert error["code"] == -32603
    assert error["data"]["error_type"].startswith("server_")
    assert isinstance(error["data"]["retryable"], bool)


async def modern(house: House, capabilities: Frame, tool: str) -> tuple[int, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        **TRACED["_meta"],
    }
    params = {"name": tool, "arguments": {}, "_meta": meta}
    frame = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN}
    headers |= {"mcp-method": "tools/call", "mcp-name": tool}
    async with (
        aiohttp.ClientSession() as http,
        asyncio.timeout(SECONDS),
        http.post(house.merged, json=frame, headers=headers) as reply,
    ):
        return reply.status, [said async for said in frames_of(reply)][-1]


@pytest.mark.requirement("MGP-14.4-data")
@pytest.mark.parametrize("place", [OFFER, {"extensions": {"dev.comity/mgp": OFFER["mgp"]}}])
async def test_in_the_modern_era_each_request_says_on_which_terms(
    house: House, place: Frame
) -> None:
    status, governed = await modern(house, place, "far__status_503")
    assert (status, governed["error"]["code"]) == (200, 5002)
    assert governed["error"]["data"]["trace_id"] == TRACE
    assert governed["error"]["data"]["_mgp"]["category"] == "external"
    status, plain = await modern(house, PLAIN, "far__status_503")
    assert (status, plain["result"]["resultType"]) == (200, "complete")
    assert plain["result"]["isError"] is True
    assert plain["result"]["_meta"][REFUSAL]["trace_id"] == TRACE
