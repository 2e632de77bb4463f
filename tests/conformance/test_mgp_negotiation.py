"""MGP as it is negotiated between clients, the gateway and servers. (MGP §1, §2)"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.conformance.realm import EXTENSIONS, GATEWAY, OFFER, PLAIN, SPOKEN, offer, realm
from tests.conformance.ways import Frame, House, Talk, Way
from tests.interop.hand_client import SECONDS

MGP_SERVERS = ("mgpnear", "mgpfar")
SERVERS = ("near", "far", *MGP_SERVERS)
ODD: list[Any] = [
    None,
    True,
    "0.3.0",
    [],
    {},
    {"version": "0.3.0"},
    {"extensions": ["lifecycle"]},
    {"version": 3, "extensions": []},
    {"version": "0.3.0", "extensions": "lifecycle"},
    {"version": "zero", "extensions": ["lifecycle"]},
]
REQUESTS: list[tuple[str, Frame]] = [
    ("ping", {}),
    ("tools/list", {}),
    ("prompts/list", {}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("tools/call", {"name": "SERVER__echo", "arguments": {"a": 1}, "extra": {"kept": True}}),
    ("prompts/get", {"name": "SERVER__review", "arguments": {"language": "rust"}}),
    ("resources/read", {"uri": "SERVER://text"}),
    ("resources/subscribe", {"uri": "SERVER://text"}),
    ("resources/unsubscribe", {"uri": "SERVER://text"}),
    ("logging/setLevel", {"level": "warning"}),
    (
        "completion/complete",
        {
            "ref": {"type": "ref/prompt", "name": "SERVER__review"},
            "argument": {"name": "language", "value": "ru"},
        },
    ),
]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with realm(tmp_path_factory.mktemp("realm")) as house:
        yield house


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["own", "merged"])
def way(house: House, server: str, request: pytest.FixtureRequest) -> Way:
    return house.way(f"{request.param} {server}")


def says(hello: Frame) -> Frame | None:
    return hello["capabilities"].get("mgp")


async def works(talk: Talk) -> None:
    """The link does what MCP asks of it."""
    assert (await talk.call("echo", {"well": True})).result["structuredContent"]["given"]
    assert (await talk.client.request("tools/list", {})).result["tools"]


@pytest.mark.requirement("MGP-1.3-mcp-mcp", "MGP-1.3-mcp-mgp", "MGP-1.3-noconfig", "MGP-2.1-absent")
async def test_a_plain_client_has_plain_mcp_with_every_server(way: Way) -> None:
    async with way.talk(PLAIN) as talk:
        assert "mgp" not in json.dumps(talk.hello["capabilities"])
        await works(talk)
        lifecycle = {"method": "notifications/mgp.lifecycle", "params": {"server_id": "x"}}
        progress = {"method": "notifications/message", "params": {"level": "info", "data": 1}}
        told = await talk.call("tell", {"notices": [lifecycle, progress]})
        assert told.said("notifications/message")
        assert not told.said("notifications/mgp.lifecycle")


@pytest.mark.requirement("MGP-1.3-mgp-mcp", "MGP-1.3-noconfig", "MGP-2.1-absent", "MGP-2.2-ignore")
@pytest.mark.parametrize("server", ["near", "far"])
async def test_with_a_plain_server_a_client_of_mgp_falls_back_to_mcp(
    house: House, server: str
) -> None:
    async with house.own(server).talk(OFFER) as talk:
        assert "mgp" not in json.dumps(talk.hello["capabilities"])
        await works(talk)
        refused = await talk.client.request("mgp/health/ping", {"timestamp": "now"})
        assert refused.response["error"]["code"] == -32601
    async with house.among_all(server).talk(OFFER) as talk:
        await works(talk)


@pytest.mark.requirement("MGP-1.3-mgp-mgp", "MGP-1.3-noconfig", "MGP-2.1-piggyback")
@pytest.mark.parametrize("server", MGP_SERVERS)
async def test_at_a_servers_own_door_a_client_of_mgp_has_all_of_it(
    house: House, server: str
) -> None:
    both = ["security", "lifecycle", "streaming"]
    async with house.own(server).talk(OFFER) as talk:
        assert says(talk.hello) == {**SPOKEN, "extensions": both}
        hello = next(frame for frame in await talk.seen() if frame["method"] == "initialize")
        assert hello["params"]["capabilities"]["mgp"] == OFFER["mgp"]
        await works(talk)
        well = await talk.client.request("mgp/health/ping", {"timestamp": "now"})
        assert (well.result["status"], well.result["server_id"]) == ("healthy", server)
        notice = {"method": "notifications/mgp.vendor", "params": {"index": 0}}
        told = await talk.call("tell", {"notices": [notice]})
        assert told.said("notifications/mgp.vendor") == [{"jsonrpc": "2.0", **notice}]


@pytest.mark.requirement(
    *("MGP-1.3-mgp-mgp", "MGP-2.1-piggyback", "MGP-2.2-optional", "MGP-2.2-ext-security"),
    *("MGP-2.3-version", "MGP-2.3-extensions", "MGP-2.3-server_id"),
)
async def test_at_the_door_of_all_the_gateway_negotiates_for_itself(
    house: House, server: str
) -> None:
    async with house.among_all(server).talk(OFFER) as talk:
        both = ["discovery", "lifecycle", "security", "streaming"]
        agreed = {"version": "0.3.0", "extensions": both}
        assert says(talk.hello) == {**agreed, "server_id": GATEWAY}
        await works(talk)
        hello = next(frame for frame in await talk.seen() if frame["method"] == "initialize")
        own = {
            "version": "0.3.0",
            "extensions": ["audit", "bidirectional", "lifecycle", "security", "streaming"],
        }
        assert hello["params"]["capabilities"]["mgp"] == own
        spoof = {"method": "notifications/mgp.lifecycle", "params": {"server_id": "another"}}
        told = await talk.call("tell", {"notices": [spoof]})
        assert not told.said("notifications/mgp.lifecycle")


@pytest.mark.requirement("MGP-2.4-intersection", "MGP-2.2-ext-code_safety")
@pytest.mark.parametrize(
    ("offered", "active"),
    [
        (EXTENSIONS, ["discovery", "lifecycle", "security", "streaming"]),
        (["access_control", "security"], ["access_control", "security"]),
        (["lifecycle"], ["lifecycle"]),
        (["audit", "code_safety"], ["audit", "code_safety"]),
        (["discovery", "com.example.own"], ["discovery"]),
        (["streaming", "tool_discovery"], ["streaming", "tool_discovery"]),
        ([], []),
    ],
)
async def test_what_is_active_is_what_both_named(
    house: House, offered: list[str], active: list[str]
) -> None:
    async with house.among_all("near").talk(offer(*offered)) as talk:
        said = says(talk.hello)
        assert said is not None
        assert said["extensions"] == active
        for extension, method in (
            ("discovery", "mgp/discovery/list"),
            ("lifecycle", "mgp/health/ping"),
            ("access_control", "mgp/access/query"),
        ):
            answer = (await talk.client.request(method, {"server_id": "near"})).response
            assert ("result" in answer) is (extension in active)
            assert answer.get("error", {}).get("code") == (None if extension in active else -32601)


@pytest.mark.requirement("MGP-1.2-negotiated", "MGP-2.4-nounsolicited")
@pytest.mark.parametrize(
    "method", ["mgp/discovery/list", "mgp/health/ping", "mgp/access/grant", "mgp/tools/discover"]
)
async def test_to_a_plain_client_no_method_of_mgp_exists_at_the_door_of_all(
    house: House, method: str
) -> None:
    async with house.among_all("mgpnear").talk(PLAIN) as talk:
        assert "mgp" not in json.dumps(talk.hello["capabilities"])
        refused = (await talk.client.request(method, {})).response
    assert refused["error"]["code"] == -32601
    assert "_mgp" not in refused["error"]["data"]


@pytest.mark.requirement("MGP-1.2-negotiated")
async def test_a_plain_client_is_asked_nothing_of_mgp(way: Way) -> None:
    async with way.talk(PLAIN) as talk:
        asked = await talk.ask("mgp/permission/request", request_id="perm-001")
    assert asked.result["structuredContent"]["error"]["code"] == -32601
    assert not asked.said("mgp/permission/request")


@pytest.mark.requirement("MGP-2.4-servernone")
@pytest.mark.parametrize("server", ["near", "far"])
async def test_a_server_without_a_word_of_mgp_is_one_of_plain_mcp(
    house: House, server: str
) -> None:
    async with house.among_all(server).talk(OFFER) as talk:
        listed = (await talk.client.request("mgp/discovery/list", {})).result["servers"]
        shown = next(each for each in listed if each["id"] == server)
        seen = await talk.seen()
    assert (shown["mgp_version"], shown["extensions"]) == (None, [])
    assert not [frame for frame in seen if frame["method"].startswith("mgp/")]


@pytest.mark.requirement("MGP-2.4-major")
async def test_another_major_version_is_plain_mcp(house: House) -> None:
    async with house.among_all("near").talk(offer("lifecycle", version="1.0.0")) as talk:
        assert says(talk.hello) is None
        await works(talk)
        refused = await talk.client.request("mgp/health/ping", {})
        assert refused.response["error"]["code"] == -32601


@pytest.mark.requirement("MGP-2.4-minor")
@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.2.0-draft", "0.3.0", "0.3.7", "0.9.0"])
async def test_any_minor_version_is_understood(house: House, version: str) -> None:
    async with house.among_all("near").talk(offer("lifecycle", version=version)) as talk:
        said = says(talk.hello)
        assert said is not None
        assert (said["version"], said["extensions"]) == ("0.3.0", ["lifecycle"])
        assert (await talk.client.request("mgp/health/ping", {})).result["status"]


@pytest.mark.requirement("MGP-2.1-absent", "MGP-2.2-version", "MGP-2.2-extensions")
@pytest.mark.parametrize("odd", ODD, ids=json.dumps)
async def test_what_cannot_be_read_of_mgp_is_no_error_but_plain_mcp(
    house: House, odd: object
) -> None:
    for way in (house.among_all("near"), house.own("near"), house.own("far")):
        async with way.talk({"mgp": odd}) as talk:
            assert says(talk.hello) is None
            await works(talk)


@pytest.mark.requirement("MGP-2.1-piggyback")
async def test_a_client_whose_sdk_lets_nothing_else_through_may_say_it_as_an_experiment(
    house: House,
) -> None:
    async with house.among_all("near").talk({"experimental": OFFER}) as talk:
        said = talk.hello["capabilities"]
        assert said["experimental"]["mgp"] == said["mgp"]
        assert (await talk.client.request("mgp/discovery/list", {})).result["servers"]


@pytest.mark.requirement("MGP-1.1-superset", "MGP-1.2-nomodify")
async def test_all_of_mcp_is_the_same_with_mgp_as_without(house: House, server: str) -> None:
    way = house.among_all(server)
    async with way.talk(PLAIN) as plain, way.talk(OFFER) as governed:
        for method, written in REQUESTS:
            params = json.loads(json.dumps(written).replace("SERVER", server))
            answers = [(await talk.client.request(method, params)) for talk in (plain, governed)]
            assert [answer.result for answer in answers] == [answers[0].result] * 2
        for talk in (plain, governed):
            reported = await talk.call("report", _meta={"progressToken": "mine"})
            assert len(reported.said("notifications/progress")) == 3
        del governed.hello["capabilities"]["mgp"]
        assert governed.hello == plain.hello


@pytest.mark.requirement("MGP-1.4-transports")
@pytest.mark.parametrize("label", ["merged mgpnear", "pipe mgpnear", "merged mgpfar"])
async def test_mgp_is_spoken_over_the_transports_of_mcp(house: House, label: str) -> None:
    async with house.way(label).talk(OFFER) as talk:
        assert says(talk.hello) is not None
        listed = (await talk.client.request("mgp/discovery/list", {})).result["servers"]
        assert {each["id"] for each in listed} == set(SERVERS)
        await works(talk)


@pytest.mark.requirement("MGP-1.4-transports", "MGP-1.5-jsonrpc")
async def test_mgp_is_spoken_over_the_old_pair_of_doors_too(house: House) -> None:
    who = {"name": "old", "version": "1"}
    hello = {"protocolVersion": "2024-11-05", "capabilities": OFFER, "clientInfo": who}
    async with (
        asyncio.timeout(SECONDS),
        aiohttp.ClientSession(house.origin) as http,
        http.get("/sse", headers={"accept": "text/event-stream"}) as stream,
    ):
        door = await _next_event(stream)
        asked = {"initialize": hello, "mgp/discovery/list": {}}
        answers: list[Frame] = []
        for number, (method, params) in enumerate(asked.items()):
            frame = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            async with http.post(door, json=frame) as taken:
                assert taken.status == 202
            answers.append(json.loads(await _next_event(stream)))
    assert says(answers[0]["result"]) is not None
    assert answers[1].keys() == {"jsonrpc", "id", "result"}
    assert {each["id"] for each in answers[1]["result"]["servers"]} == set(SERVERS)


async def _next_event(stream: aiohttp.ClientResponse) -> str:
    """The data of the next event, which is one line here."""
    while not (line := await stream.content.readline()).startswith(b"data:"):
        assert line
    return line.removeprefix(b"data:").strip().decode()


@pytest.mark.requirement("MGP-1.5-jsonrpc", "MGP-1.5-methodprefix")
async def test_messages_of_mgp_are_json_rpc_under_names_of_their_own(house: House) -> None:
    async with house.among_all("near").talk(OFFER) as talk:
        answered = await talk.client.request("mgp/health/ping", {}, named="mine")
        refused = await talk.client.request("mgp/no/such", {}, named=7)
        unprefixed = await talk.client.request("discovery/list", {})
    assert answered.response.keys() == {"jsonrpc", "id", "result"}
    assert (answered.response["jsonrpc"], answered.response["id"]) == ("2.0", "mine")
    assert refused.response.keys() == {"jsonrpc", "id", "error"}
    assert (refused.response["id"], refused.response["error"]["code"]) == (7, -32601)
    assert unprefixed.response["error"]["code"] == -32601
