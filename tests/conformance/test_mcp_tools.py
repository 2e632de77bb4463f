"""Tools: listed, called and changed, through each door and with all that can be said of them."""

import asyncio
import re

import pytest

from tests.conformance.servers import talker_words as words
from tests.conformance.ways import Frame, House, Talk, Way
from tests.interop.hand_client import SECONDS

_ANNOTATIONS = (
    "MCP-5.1-annotations",
    "MCP-5.1-readOnlyHint",
    "MCP-5.1-destructiveHint",
    "MCP-5.1-idempotentHint",
    "MCP-5.1-openWorldHint",
)


async def all_tools(talk: Talk) -> dict[str, Frame]:
    """Every tool by its name, page after page."""
    found: list[Frame] = []
    params: Frame = {}
    while True:
        page = (await talk.client.request("tools/list", params)).result
        found += page["tools"]
        if "nextCursor" not in page:
            break
        params = {"cursor": page["nextCursor"]}
    named = {tool["name"]: tool for tool in found}
    assert len(named) == len(found)
    return named


@pytest.mark.requirement("MCP-5.1-list", "MCP-5.1-cursor")
async def test_every_tool_is_listed_under_its_name_at_that_door(way: Way) -> None:
    async with way.talk() as talk:
        listed = await all_tools(talk)
    assert {way.name(tool["name"]) for tool in words.TOOLS} <= listed.keys()


@pytest.mark.requirement(
    "MCP-5.1-title", "MCP-5.1-description", "MCP-5.1-inputSchema", "MCP-5.1-outputSchema"
)
@pytest.mark.requirement(*_ANNOTATIONS)
async def test_what_a_server_says_of_a_tool_is_told_unchanged(any_way: Way) -> None:
    """Also what it leaves unsaid stays so, and the defaults of the hints with it."""
    async with any_way.talk() as talk:
        listed = await all_tools(talk)
    for tool in (words.WEATHER, words.DELETE):
        name = any_way.name(tool["name"])
        assert listed[name] == {**tool, "name": name}


@pytest.mark.requirement("MCP-5.1-cursor")
async def test_a_server_s_own_pages_are_turned_at_its_own_door(house: House) -> None:
    async with house.own("far").talk() as talk:
        first = (await talk.client.request("tools/list", {})).result
        second = await talk.client.request("tools/list", {"cursor": first["nextCursor"]})
    assert [len(first["tools"]), first["nextCursor"]] == [words.PAGE, str(words.PAGE)]
    assert second.result["tools"][0] == words.TOOLS[words.PAGE]


@pytest.mark.requirement("MCP-5.1-call", "MCP-1-route", "MCP-10.2-types")
async def test_a_call_reaches_the_server_that_listed_the_tool(any_way: Way) -> None:
    given: Frame = {
        "number": 7,
        "fraction": 0.5,
        "string": "Tokyo 東京",
        "boolean": False,
        "null": None,
        "object": {"nested": {}},
        "array": [1, "two", []],
    }
    async with any_way.talk() as talk:
        exchange = await talk.call("echo", given)
    said = exchange.result["structuredContent"]
    assert said == {"from": any_way.server, "given": given}
    assert [type(value) for value in said["given"].values()] == [*map(type, given.values())]


@pytest.mark.requirement("MCP-1-route")
async def test_a_bare_name_is_taken_only_while_one_server_has_it(house: House) -> None:
    async with house.among_all("near").talk() as talk:
        twice = await talk.client.request("tools/call", {"name": "echo", "arguments": {}})
        await talk.call("grow", {"name": "only_near"})
        await _until_listed(talk, "near__only_near")
        once = await talk.client.request("tools/call", {"name": "only_near", "arguments": {}})
    assert twice.response["error"]["code"] == -32602
    assert once.result["content"] == [{"type": "text", "text": "near: only_near"}]


@pytest.mark.requirement(
    "MCP-5.1-result", "MCP-5.1-c-text", "MCP-5.1-c-image", "MCP-5.1-c-audio", "MCP-5.1-c-resource"
)
async def test_a_result_crosses_with_every_kind_of_content(way: Way) -> None:
    result = {
        "content": words.EVERY_CONTENT,
        "structuredContent": {"temperature": 4, "conditions": "sleet"},
        "isError": False,
    }
    async with way.talk() as talk:
        exchange = await talk.call("answer", {"members": {"result": result}})
    assert exchange.result == result


@pytest.mark.requirement("MCP-5.1-toolerr")
async def test_the_failure_of_a_tool_is_a_result_that_the_model_sees(way: Way) -> None:
    failure = {**words.text("Error: City 'Atlantis' not found"), "isError": True}
    async with way.talk() as talk:
        exchange = await talk.call("answer", {"members": {"result": failure}})
    assert exchange.response.keys() == {"jsonrpc", "id", "result"}
    assert exchange.result == failure


@pytest.mark.requirement("MCP-5.1-protoerr")
async def test_an_error_of_the_protocol_is_an_error_and_no_result(way: Way) -> None:
    error = {"code": -32602, "message": "Unknown city", "data": {"city": "Atlantis"}}
    async with way.talk() as talk:
        exchange = await talk.call("answer", {"members": {"error": error}})
    assert exchange.response.keys() == {"jsonrpc", "id", "error"}
    assert exchange.response["error"] == error


@pytest.mark.requirement("MCP-5.1-protoerr", "MCP-2.2-32602")
async def test_a_call_of_an_unknown_tool_is_an_error_of_the_protocol(way: Way) -> None:
    async with way.talk() as talk:
        exchange = await talk.call("no_such_tool")
    assert exchange.response["error"]["code"] == -32602
    assert "result" not in exchange.response


@pytest.mark.requirement("MCP-5.1-listchanged", "MCP-10.7-dynamic")
@pytest.mark.parametrize("label", ["own near", "own far", "merged near", "merged far"])
async def test_a_new_tool_is_announced_and_then_listed_and_callable(
    house: House, label: str
) -> None:
    way = house.way(label)
    name = "grown_" + label.replace(" ", "_")
    async with way.talk() as talk:
        await talk.listen()
        assert way.name(name) not in await all_tools(talk)
        await talk.call("grow", {"name": name})
        # Among all servers a change of another one may be told first; the right one follows.
        await talk.told("notifications/tools/list_changed")
        while way.name(name) not in await all_tools(talk):
            await talk.told("notifications/tools/list_changed")
        called = await talk.call(name)
    assert called.result["content"][0]["text"] == f"{way.server}: {name}"


@pytest.mark.requirement("MCP-5.1-listchanged")
async def test_a_change_of_one_server_is_told_to_every_client_of_all(house: House) -> None:
    async with house.among_all("near").talk() as one, house.among_all("far").talk() as other:
        await one.listen()
        await other.listen()
        # Whoever uses only the other server hears of it too: its list has changed.
        await other.call("echo")
        await one.call("grow", {"name": "grown_for_all"})
        await one.told("notifications/tools/list_changed")
        await other.told("notifications/tools/list_changed")
        # What was told first may have been of an earlier change.
        while "near__grown_for_all" not in await all_tools(other):
            await other.told("notifications/tools/list_changed")


@pytest.mark.requirement("MCP-5.1-name")
async def test_names_at_the_merged_door_are_plain_and_of_one_server_only(house: House) -> None:
    async with house.among_all("near").talk() as talk:
        listed = await all_tools(talk)
    assert listed
    for name in listed:
        assert re.fullmatch(r"(near|far)__[A-Za-z0-9_-]{1,60}", name)


async def _until_listed(talk: Talk, name: str) -> None:
    async with asyncio.timeout(SECONDS):
        while name not in await all_tools(talk):
            await asyncio.sleep(0.02)
