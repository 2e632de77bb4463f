"""Tools, resources, prompts, completion, logging and the merged catalog. (MCP §5)"""

import asyncio
import json
import re
from collections.abc import Iterator

import pytest

from tests.conformance.conftest import standing
from tests.conformance.servers import talker_words as words
from tests.conformance.servers.talker import LEVELS
from tests.conformance.ways import SHOWN, Frame, House, Talk, Way, on_pipes
from tests.interop.hand_client import SECONDS, Exchange

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
@pytest.mark.requirement("MCP-5.1-toolerr", "MCP-5.1-protoerr")
@pytest.mark.parametrize(
    "answer",
    [
        {
            "result": {
                "content": words.EVERY_CONTENT,
                "structuredContent": {"temperature": 4, "conditions": "sleet"},
                "isError": False,
            }
        },
        {"result": {**words.text("Error: City 'Atlantis' not found"), "isError": True}},
        {"error": {"code": -32602, "message": "Unknown city", "data": {"city": "Atlantis"}}},
    ],
    ids=["every content", "failed tool", "protocol error"],
)
async def test_the_answer_of_a_tool_reaches_the_client_unchanged(way: Way, answer: Frame) -> None:
    async with way.talk() as talk:
        response = (await talk.call("answer", {"members": answer})).response
    assert response == {"jsonrpc": "2.0", "id": response["id"], **answer}


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


async def _until_listed(talk: Talk, name: str) -> None:
    async with asyncio.timeout(SECONDS):
        while name not in await all_tools(talk):
            await asyncio.sleep(0.02)


UPDATED = "notifications/resources/updated"


@pytest.mark.requirement("MCP-5.2-list", "MCP-5.2-templates", "MCP-1-host")
async def test_resources_and_templates_are_listed_as_their_server_describes_them(
    any_way: Way,
) -> None:
    async with any_way.talk() as talk:
        resources = (await talk.client.request("resources/list", {})).result["resources"]
        listed = (await talk.client.request("resources/templates/list", {})).result
    own = [one for one in resources if one["uri"].startswith(any_way.uri(""))]
    by_uri = sorted(any_way.words(words.RESOURCES), key=lambda one: one["uri"])
    assert sorted(own, key=lambda one: one["uri"]) == by_uri
    templates = listed["resourceTemplates"]
    own = [one for one in templates if one["uriTemplate"].startswith(any_way.uri(""))]
    assert own == any_way.words(words.TEMPLATES)
    if any_way.prefix:
        for server in ("near", "far"):
            assert f"{server}://text" in [one["uri"] for one in resources]
            assert f"{server}://notes/{{day}}/list" in [one["uriTemplate"] for one in templates]


@pytest.mark.requirement("MCP-5.2-read", "MCP-5.2-multi")
@pytest.mark.parametrize(("path", "items"), [("text", 1), ("blob", 1), ("folder", 2)])
async def test_a_resource_is_read_as_text_or_bytes_or_several_items(
    way: Way, path: str, items: int
) -> None:
    async with way.talk() as talk:
        read = await talk.client.request("resources/read", {"uri": way.uri(path)})
    key = words.FOLDER if path == "folder" else f"talker://{path}"
    assert read.result["contents"] == way.words(words.CONTENTS[key])
    assert len(read.result["contents"]) == items


@pytest.mark.requirement("MCP-5.2-templates", "MCP-5.2-read")
async def test_a_uri_made_from_a_template_is_read_from_the_server_that_offers_it(way: Way) -> None:
    uri = way.uri("notes/2025-01-15/list")
    async with way.talk() as talk:
        read = await talk.client.request("resources/read", {"uri": uri})
    assert read.result["contents"] == [{"uri": uri, "text": f"the note at {uri}"}]


@pytest.mark.requirement("MCP-5.2-read")
async def test_an_unknown_resource_is_an_error_that_names_no_other(way: Way) -> None:
    async with way.talk() as talk:
        read = await talk.client.request("resources/read", {"uri": "nobody://there"})
    assert read.response["error"]["code"] == -32002


@pytest.mark.requirement("MCP-5.2-appcontrolled")
async def test_only_what_a_client_chose_is_fetched(way: Way) -> None:
    async with way.talk() as talk:
        await talk.client.request("resources/list", {})
        await talk.client.request("resources/templates/list", {})
        before = _reads(await talk.seen())
        await talk.client.request("resources/read", {"uri": way.uri("folder")})
        after = _reads(await talk.seen())
    assert after[len(before) :] == [way.uri("folder")]
    # What went before was asked for by the clients of the other tests; none began by itself.
    assert way.uri("blob") not in after[len(before) :]


@pytest.mark.requirement("MCP-5.2-subscribe")
async def test_a_change_is_told_to_those_who_subscribed_and_to_no_other(way: Way) -> None:
    uri = way.uri("text")
    async with way.talk() as reader, way.talk() as other:
        await reader.listen()
        await other.listen()
        await other.call("echo")
        assert (await reader.client.request("resources/subscribe", {"uri": uri})).result == {}
        await other.client.request("resources/subscribe", {"uri": way.uri("blob")})
        await reader.call("touch", {"uri": uri})
        await other.call("touch", {"uri": way.uri("blob")})
        assert (await reader.told(UPDATED))["params"] == {"uri": uri}
        # Updates come in order: had the first been told here too, it would have come first.
        assert (await other.told(UPDATED))["params"] == {"uri": way.uri("blob")}


@pytest.mark.requirement("MCP-5.2-subscribe")
async def test_after_unsubscribing_nothing_more_is_told(way: Way) -> None:
    text, blob = way.uri("text"), way.uri("blob")
    async with way.talk() as talk:
        await talk.listen()
        for uri in (text, blob):
            await talk.client.request("resources/subscribe", {"uri": uri})
        assert (await talk.client.request("resources/unsubscribe", {"uri": text})).result == {}
        await talk.call("touch", {"uri": text})
        await talk.call("touch", {"uri": blob})
        assert (await talk.told(UPDATED))["params"] == {"uri": blob}


@pytest.mark.requirement("MCP-5.2-subscribe")
async def test_one_reader_who_leaves_takes_no_other_s_subscription_along(way: Way) -> None:
    uri = way.uri("text")
    async with way.talk() as stays:
        await stays.listen()
        await stays.client.request("resources/subscribe", {"uri": uri})
        async with way.talk() as leaves:
            await leaves.client.request("resources/subscribe", {"uri": uri})
            await leaves.client.request("resources/unsubscribe", {"uri": uri})
        await stays.call("touch", {"uri": uri})
        assert (await stays.told(UPDATED))["params"] == {"uri": uri}


def _reads(seen: list[Frame]) -> list[str]:
    return [frame["params"]["uri"] for frame in seen if frame["method"] == "resources/read"]


@pytest.mark.requirement("MCP-5.3-list")
async def test_prompts_are_listed_as_their_server_describes_them(any_way: Way) -> None:
    (prompt,) = words.PROMPTS
    name = any_way.name("review")
    async with any_way.talk() as talk:
        listed = (await talk.client.request("prompts/list", {})).result["prompts"]
    assert [one for one in listed if one["name"] == name] == [{**prompt, "name": name}]


@pytest.mark.requirement("MCP-5.3-get", "MCP-5.3-fill")
async def test_a_prompt_is_filled_by_its_server_with_messages_of_any_kind(way: Way) -> None:
    params = {"name": way.name("review"), "arguments": {"language": "Rust"}}
    async with way.talk() as talk:
        got = (await talk.client.request("prompts/get", params)).result
    assert got["description"] == "A review."
    text = {"type": "text", "text": "Review this Rust code."}
    assert got["messages"][0] == {"role": "user", "content": text}
    assert [message["content"] for message in got["messages"][1:]] == words.EVERY_CONTENT


@pytest.mark.requirement("MCP-5.3-get", "MCP-2.2-32602")
async def test_an_unknown_prompt_is_refused(way: Way) -> None:
    async with way.talk() as talk:
        got = await talk.client.request("prompts/get", {"name": way.name("nothing")})
    assert got.response["error"]["code"] == -32602


@pytest.mark.requirement("MCP-4.1-cap-completions", "MCP-4.1-complete")
async def test_prompts_and_templates_are_completed_by_their_server(way: Way) -> None:
    uri = way.uri("notes/{day}/list")
    # The server hears its own name for the prompt.
    expected = {"review": {"type": "ref/prompt", "name": way.name("review")}}
    expected |= {uri: {"type": "ref/resource", "uri": uri}}
    async with way.talk() as talk:
        for own_name, reference in expected.items():
            params = {"ref": reference, "argument": {"name": "language", "value": "ru"}}
            completed = (await talk.client.request("completion/complete", params)).result
            assert completed["completion"]["values"] == [f"{own_name} language ru…"]


@pytest.mark.requirement("MCP-4.1-cap-logging", "MCP-4.1-setlevel")
async def test_a_level_set_before_the_first_call_is_the_server_s_level(
    house: House, way: Way
) -> None:
    await _silence(house, way)
    async with way.talk() as talk:
        assert (await talk.client.request("logging/setLevel", {"level": "debug"})).result == {}
        assert _levels(await talk.call("log")) == list(LEVELS)


@pytest.mark.requirement("MCP-4.1-cap-logging", "MCP-4.1-setlevel", "MCP-4.1-message")
async def test_nothing_below_the_level_is_told(way: Way) -> None:
    async with way.talk() as talk:
        await talk.call("echo")
        await talk.client.request("logging/setLevel", {"level": "error"})
        logged = await talk.call("log")
    assert _levels(logged) == list(LEVELS[LEVELS.index("error") :])
    note = {"level": "error", "logger": "talker", "data": {"said": "error"}}
    assert logged.said("notifications/message")[0]["params"] == note


@pytest.mark.requirement("MCP-4.1-cap-logging", "MCP-2.4-stateful")
async def test_each_session_has_a_level_of_its_own(house: House, way: Way) -> None:
    await _silence(house, way)
    async with way.talk() as curious, way.talk() as calm:
        await curious.client.request("logging/setLevel", {"level": "debug"})
        await calm.client.request("logging/setLevel", {"level": "alert"})
        assert _levels(await calm.call("log")) == ["alert", "emergency"]
        assert _levels(await curious.call("log")) == list(LEVELS)


async def test_a_log_message_out_of_any_call_reaches_the_one_client(house: House) -> None:
    async with house.own("far").talk() as talk:
        await talk.listen()
        await talk.call("log", {"standalone": True})
        told = await talk.told("notifications/message")
    assert told["params"]["level"] == "warning"


async def _silence(house: House, way: Way) -> None:
    """Have a process that several share say as little as it can, whatever was asked before."""
    async with house.own(way.server).talk() as talk:
        await talk.client.request("logging/setLevel", {"level": "emergency"})


def _levels(exchange: Exchange) -> list[str]:
    return [note["params"]["level"] for note in exchange.said("notifications/message")]


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
    assert await merged(crowd) == turned


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
    # The name belongs to a server that failed, and its caller may know that.
    assert absent.response["error"]["data"]["error_type"] == "server_stopped"
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
