"""The merged catalog: many pages, names that fit, and no server that passes for another."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.conformance.conftest import standing
from tests.conformance.servers import talker_words as words
from tests.conformance.ways import SHOWN, Frame, House, Talk, on_pipes

MANY = 1_200
LONGEST = "l" * 128
ODD_NAMES = ["Case", "case", "a.dotted.name", "a_dotted_name", LONGEST, LONGEST[:-1] + "m"]
PRETENDERS = ["absent__echo", "plain__echo", "__echo", "plain__"]

SOUND: Frame = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"prefixItems": [{"type": "string"}]}},
    "$defs": {"a": {"$anchor": "a", "anyOf": [{"type": "integer"}, {"const": None}]}},
    "unevaluatedProperties": False,
}
DEFINITIONS: list[Frame] = [
    {"name": "sound", "inputSchema": SOUND},
    {"name": "empty", "inputSchema": {"type": "object"}},
    {"name": "a_list_for_an_object", "inputSchema": {"type": "array"}},
    {"name": "no_such_type", "inputSchema": {"type": "thing"}},
    {"name": "nowhere", "inputSchema": {"type": "object", "$ref": "#/$defs/none"}},
    {"name": "elsewhere", "inputSchema": {"type": "object", "$ref": "http://127.0.0.1:9/x"}},
    {"name": "a_word", "inputSchema": "object"},
    {"name": "nothing", "inputSchema": None},
]


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    servers = {
        "many": on_pipes("talker", TALKER_NAME="many", TALKER_MANY=str(MANY)),
        "odd": on_pipes("talker", TALKER_NAME="odd", TALKER_TOOLS=json.dumps(ODD_NAMES)) | SHOWN,
        "evil": on_pipes("talker", TALKER_NAME="evil", TALKER_TOOLS=json.dumps(PRETENDERS)) | SHOWN,
        "plain": on_pipes("talker", TALKER_NAME="plain"),
        "schemas": on_pipes("talker", TALKER_DEFINITIONS=json.dumps(DEFINITIONS)),
        "absent": {"command": "/nonexistent/server"},
    }
    with standing(tmp_path_factory.mktemp("crowd"), servers) as house:
        yield house


async def pages(talk: Talk) -> list[Frame]:
    """Every page of the list of tools."""
    found: list[Frame] = []
    while not found or "nextCursor" in found[-1]:
        params: Frame = {"cursor": found[-1]["nextCursor"]} if found else {}
        found.append((await talk.client.request("tools/list", params)).result)
    return found


async def merged(house: House) -> list[Frame]:
    async with house.among_all("plain").talk() as talk:
        return await pages(talk)


@pytest.mark.requirement("MCP-5.1-cursor", "MCP-5.1-list", "MCP-1-host")
async def test_the_tools_of_all_servers_are_listed_once_over_several_pages(crowd: House) -> None:
    turned = await merged(crowd)
    names = [tool["name"] for page in turned for tool in page["tools"]]
    assert len(turned) > 1
    assert all(page["tools"] for page in turned)
    assert len(names) == len(set(names)) == 5 * len(words.TOOLS) + MANY + 6 + 4 + 2
    assert {f"many__n{number:05}" for number in range(MANY)} <= set(names)


@pytest.mark.requirement("MCP-5.1-cursor")
async def test_the_order_of_the_pages_does_not_move(crowd: House) -> None:
    assert await merged(crowd) == await merged(crowd)


@pytest.mark.requirement("MCP-5.1-name")
async def test_every_name_is_short_plain_and_names_one_tool(crowd: House) -> None:
    names = [tool["name"] for page in await merged(crowd) for tool in page["tools"]]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
    verbs = {f"odd__{tool['name']}" for tool in words.TOOLS}
    odd = [name for name in names if name.startswith("odd__") and name not in verbs]
    async with crowd.among_all("plain").talk() as talk:
        called: list[str] = []
        for name in odd:
            said = await talk.client.request("tools/call", {"name": name, "arguments": {}})
            called.append(said.result["content"][0]["text"])
    # Each public name reaches the one tool it stands for, by that tool's own name.
    assert sorted(called) == sorted(f"odd: {name}" for name in ODD_NAMES)


@pytest.mark.requirement("MCP-1-route")
async def test_no_tool_answers_to_the_name_of_another_server_s(crowd: House) -> None:
    async with crowd.among_all("plain").talk() as talk:
        absent = await talk.client.request("tools/call", {"name": "absent__echo", "arguments": {}})
        plain = await talk.client.request("tools/call", {"name": "plain__echo", "arguments": {}})
        unnamed = await talk.client.request("tools/call", {"name": "__echo", "arguments": {}})
    assert plain.result["structuredContent"]["from"] == "plain"
    assert absent.response["error"]["code"] == -32602
    assert unnamed.response["error"]["code"] == -32602


@pytest.mark.requirement("MCP-1-route")
async def test_a_tool_whose_server_failed_to_start_harms_no_other(crowd: House) -> None:
    async with crowd.among_all("many").talk() as talk:
        called = await talk.client.request("tools/call", {"name": "n00007", "arguments": {}})
    assert called.result["content"][0]["text"] == "many: n00007"


@pytest.mark.requirement("MCP-6.1-schema", "MCP-5.1-inputSchema")
@pytest.mark.parametrize("label", ["own schemas", "merged schemas"])
async def test_only_tools_with_a_schema_of_an_object_are_shown_and_the_rest_works(
    crowd: House, label: str
) -> None:
    way = crowd.way(label)
    names = [tool["name"] for tool in DEFINITIONS]
    async with way.talk() as talk:
        shown = {tool["name"]: tool for page in await pages(talk) for tool in page["tools"]}
        called = await talk.call("sound")
    assert [name for name in names if way.name(name) in shown] == ["sound", "empty"]
    assert shown[way.name("sound")]["inputSchema"] == SOUND
    assert called.result["content"][0]["text"].endswith(": sound")
