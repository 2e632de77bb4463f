"""A session from the handshake to its end: what was agreed, utilities, deadlines. (MCP §4)"""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from comity.cli.api_client import find_gateway
from tests.conformance.conftest import standing
from tests.conformance.servers import talker_words as words
from tests.conformance.ways import COMITY, Entry, Frame, House, Talk, Way, on_pipes, on_port
from tests.interop.hand_client import (
    SECONDS,
    Exchange,
    HttpClient,
    frames_of,
    initialize,
    over_http,
)
from tests.interop.processes import http_server, running

OLDEST, LATEST = words.VERSIONS[0], words.VERSIONS[-1]
EVERYTHING: Frame = {
    "roots": {"listChanged": True},
    "sampling": {"tools": {}},
    "elicitation": {"form": {}, "url": {}},
}
_numbers = itertools.count(1)


@pytest.mark.requirement("MCP-4.1-echo")
@pytest.mark.parametrize(
    ("version", "answered"),
    [
        *((version, version) for version in words.VERSIONS),
        *((version, LATEST) for version in ("1999-01-01", "2099-12-31", "later")),
    ],
)
async def test_a_known_version_is_echoed_and_another_answered_with_the_latest(
    way: Way, version: str, answered: str
) -> None:
    async with way.talk(protocolVersion=version) as talk:
        assert isinstance(talk.client, HttpClient)
        talk.client.session["mcp-protocol-version"] = answered
        called = await talk.call("echo", {"in": version})
    assert talk.hello["protocolVersion"] == answered
    assert called.result["structuredContent"]["given"] == {"in": version}


@pytest.mark.requirement("MCP-4.1-result")
async def test_a_server_introduces_itself_at_its_own_door(house: House) -> None:
    for server in ("near", "far"):
        async with house.own(server).talk() as talk:
            info = {"name": server, "version": "2.0.0"}
            assert talk.hello == {
                **words.INITIALIZED,
                "serverInfo": info,
                "protocolVersion": LATEST,
            }


@pytest.mark.requirement(
    "MCP-4.1-result",
    "MCP-4.1-cap-tools",
    "MCP-4.1-cap-resources",
    "MCP-4.1-cap-prompts",
    "MCP-4.1-cap-logging",
    "MCP-4.1-cap-completions",
)
async def test_what_servers_can_do_is_declared_at_each_door(any_way: Way) -> None:
    async with any_way.talk() as talk:
        pass
    # Events are the gateway's own, at the door of all servers.
    declared = {name: said for name, said in talk.hello["capabilities"].items() if name != "events"}
    assert declared == words.CAPABILITIES
    assert talk.hello["serverInfo"].keys() >= {"name", "version"}


@pytest.mark.requirement("MCP-4.1-cap-roots", "MCP-4.1-cap-sampling", "MCP-4.1-cap-elicitation")
@pytest.mark.requirement("MCP-4.1-request")
@pytest.mark.parametrize("label", ["own far", "merged far"])
async def test_what_a_client_can_do_reaches_its_server(house: House, label: str) -> None:
    async with house.way(label).talk(EVERYTHING) as talk:
        hello = (await talk.seen())[0]["params"]
    # At the door of all servers the gateway adds that it takes results in pieces.
    said = {name: said for name, said in hello["capabilities"].items() if name != "mgp"}
    assert said == EVERYTHING
    assert hello["clientInfo"].keys() >= {"name", "version"}
    assert hello["protocolVersion"] == LATEST


@pytest.mark.requirement("MCP-4.1-latest", "MCP-4.1-request")
async def test_the_gateway_itself_offers_the_latest_version_it_knows(house: House) -> None:
    """A process that many clients share was greeted by the gateway, before any of them came."""
    async with house.own("near").talk(protocolVersion=OLDEST) as talk:
        hello = (await talk.seen())[0]
    assert hello["method"] == "initialize"
    assert hello["params"]["protocolVersion"] == LATEST
    assert hello["params"]["clientInfo"]["name"] == "comity"
    extended = {"mgp", "experimental", "extensions"}
    assert hello["params"]["capabilities"].keys() == EVERYTHING.keys() | extended


@pytest.mark.requirement("MCP-4.1-first", "MCP-4.1-initialized", "MCP-4.1-pre-client")
async def test_a_server_is_greeted_first_and_asked_only_after_that(any_way: Way) -> None:
    async with any_way.talk() as talk:
        await talk.call("echo")
        methods = [frame["method"] for frame in await talk.seen()]
    assert methods[:2] == ["initialize", "notifications/initialized"]
    assert methods.count("initialize") == methods.count("notifications/initialized") == 1


@pytest.mark.requirement("MCP-1-client", "MCP-2.1-id")
async def test_each_server_is_spoken_to_on_a_connection_of_its_own(house: House) -> None:
    async with house.among_all("near").talk() as talk:
        near = await talk.client.request("tools/call", {"name": "near__seen"})
        far = await talk.client.request("tools/call", {"name": "far__seen"})
    said = [one.result["structuredContent"] for one in (near, far)]
    assert said[0]["process"] != said[1]["process"]
    for one in said:
        asked = [frame["id"] for frame in one["frames"] if "id" in frame]
        assert one["frames"][0]["method"] == "initialize"
        assert len(asked) == len(set(asked))


@pytest.mark.requirement("MCP-1-server", "MCP-2.4-stateful")
async def test_each_session_has_one_client(way: Way) -> None:
    async with way.talk(EVERYTHING) as one, way.talk() as other:
        assert isinstance(one.client, HttpClient)
        assert isinstance(other.client, HttpClient)
        assert one.client.session != other.client.session
        one.client.answer = other.client.answer = lambda frame: {"result": {"roots": []}}
        # The two declared different things, and each is held to its own word.
        assert "result" in (await one.ask("roots/list")).result["structuredContent"]
        assert "error" in (await other.ask("roots/list")).result["structuredContent"]


@pytest.mark.requirement("MCP-4.4-ping")
async def test_a_ping_of_either_side_is_answered_with_nothing(any_way: Way) -> None:
    async with any_way.talk() as talk:
        assert (await talk.client.request("ping")).result == {}
        heard = await talk.call("ask", {"method": "ping"})
    assert heard.result["structuredContent"] == {"result": {}}


@pytest.mark.requirement("MCP-4.4-progress")
@pytest.mark.parametrize("token", ["abc-123", 7, "7"])
async def test_progress_of_a_call_comes_under_the_caller_s_own_token(
    way: Way, token: object
) -> None:
    async with way.talk() as talk:
        exchange = await talk.call("report", _meta={"progressToken": token})
    told = [frame["params"] for frame in exchange.said("notifications/progress")]
    assert [(type(one["progressToken"]), one["progressToken"]) for one in told] == [
        (type(token), token)
    ] * 3
    assert [one["progress"] for one in told] == [1, 2.5, 3]
    assert told[1] == {"progressToken": token, "progress": 2.5, "total": 3, "message": "at 2.5"}


@pytest.mark.requirement("MCP-4.4-progress")
async def test_two_callers_with_one_token_each_hear_of_their_own_call(way: Way) -> None:
    async with way.talk() as one, way.talk() as other:
        calls = [talk.call("report", _meta={"progressToken": 1}) for talk in (one, other)]
        for exchange in await asyncio.gather(*calls):
            told = exchange.said("notifications/progress")
            assert [frame["params"]["progress"] for frame in told] == [1, 2.5, 3]


@pytest.mark.requirement("MCP-4.4-progress")
async def test_progress_of_a_client_s_answer_reaches_the_server_that_asked(way: Way) -> None:
    token = f"of the server {next(_numbers)}"
    question: Frame = {"method": "roots/list", "params": {"_meta": {"progressToken": token}}}
    async with way.talk(EVERYTHING) as talk:
        assert isinstance(talk.client, HttpClient)
        params: Frame = {"name": way.name("ask"), "arguments": question}
        call = {"jsonrpc": "2.0", "id": "asks", "method": "tools/call", "params": params}
        async with asyncio.timeout(SECONDS), talk.client.post(call) as reply:
            async for frame in frames_of(reply):
                if frame.get("method") == "roots/list":
                    given = frame["params"]["_meta"]["progressToken"]
                    progress = {"progressToken": given, "progress": 0.5, "total": 1}
                    await talk.client.notify("notifications/progress", progress)
                    answer: Frame = {"jsonrpc": "2.0", "id": frame["id"], "result": {"roots": []}}
                    async with talk.client.post(answer) as taken:
                        assert taken.status == 202
        seen = await talk.seen()
    told = [frame["params"] for frame in seen if frame["method"] == "notifications/progress"]
    assert {"progressToken": token, "progress": 0.5, "total": 1} in told


@pytest.mark.requirement("MCP-4.4-cancelled")
async def test_a_call_that_the_client_takes_back_is_taken_back_from_its_server(way: Way) -> None:
    reason = f"User cancelled {next(_numbers)}"

    async def cancel(_: Frame) -> None:
        taken_back = {"requestId": "mine", "reason": reason}
        await talk.client.notify("notifications/cancelled", taken_back)

    async with way.talk() as talk:
        with pytest.raises(ConnectionError):
            await talk.call("wait", named="mine", meanwhile=cancel)
        async with asyncio.timeout(SECONDS):
            while not (told := _cancelled(seen := await talk.seen(), reason)):
                await asyncio.sleep(0.02)
    waits = [frame["id"] for frame in seen if _tool(frame) == "wait"]
    # Named as the server knows the call, and no other call of anybody's.
    assert [one["requestId"] for one in told] == waits[-1:]


@pytest.mark.requirement("MCP-4.4-cancelled")
async def test_a_question_that_the_server_takes_back_is_taken_back_from_the_client(
    way: Way,
) -> None:
    async with way.talk(EVERYTHING) as talk:
        # What has an answer already cannot be taken back.
        talk.client.answer = lambda _: {}
        exchange: Exchange = await talk.call("ask_in_vain")
    (asked,) = exchange.said("sampling/createMessage")
    (taken_back,) = exchange.said("notifications/cancelled")
    assert taken_back["params"] == {"requestId": asked["id"], "reason": "no longer needed"}


@pytest.mark.requirement("MCP-4.4-cancelled")
@pytest.mark.parametrize("server", ["near", "far"])
async def test_a_cancellation_touches_no_call_of_another_client(house: House, server: str) -> None:
    way = house.own(server)
    async with way.talk() as mine, way.talk() as theirs:
        taken_back = {"requestId": "same", "reason": "not yours"}

        async def cancel_theirs(_: Frame) -> None:
            await theirs.client.notify("notifications/cancelled", taken_back)
            await mine.client.notify(words.GO)

        waited = await mine.call("wait", named="same", meanwhile=cancel_theirs)
    assert waited.result["content"][0]["text"] == "went"


async def test_a_session_of_one_door_opens_no_other(house: House) -> None:
    async with house.own("near").talk() as talk, over_http(house.door("far")) as other:
        assert isinstance(talk.client, HttpClient)
        other.session = dict(talk.client.session)
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        async with other.post(ping) as refused:
            assert refused.status == 404
        other.session = {}


def _cancelled(seen: list[Frame], reason: str) -> list[Frame]:
    told = [frame["params"] for frame in seen if frame["method"] == "notifications/cancelled"]
    return [one for one in told if one.get("reason") == reason]


def _tool(frame: Frame) -> str:
    return frame["params"]["name"] if frame["method"] == "tools/call" else ""


BARE = json.dumps({"tools": {}})
SILENT = ("prompts/get", "resources/read", "resources/subscribe", "completion/complete")
UNDECLARED = ("resources/list", "resources/templates/list", "prompts/list")


def only_tools(name: str) -> dict[str, str]:
    return {"TALKER_NAME": name, "TALKER_CAPABILITIES": BARE}


@pytest.mark.requirement("MCP-4.1-contract")
async def test_a_server_is_asked_for_nothing_that_it_did_not_declare(tmp_path: Path) -> None:
    with http_server(on_port("talker"), only_tools("far")) as far:
        servers: dict[str, Entry] = {
            "near": on_pipes("talker", **only_tools("near")),
            "far": {"type": "http", "url": f"{far}/mcp"},
        }
        with standing(tmp_path, servers) as house:
            for server in servers:
                await _ask_all_the_same(house, server)


async def _ask_all_the_same(house: House, server: str) -> None:
    """A client of the merged door asks for what some other server might have had."""
    completion = {
        "ref": {"type": "ref/prompt", "name": f"{server}__review"},
        "argument": {"name": "language", "value": "ru"},
    }
    async with house.among_all(server).talk() as talk:
        await talk.call("echo")
        for method in UNDECLARED:
            assert (await talk.client.request(method, {})).result
        await talk.client.request("logging/setLevel", {"level": "debug"})
        await talk.client.request("completion/complete", completion)
        await talk.client.request("resources/subscribe", {"uri": f"{server}://text"})
        asked = {frame["method"] for frame in await talk.seen()}
    assert asked == {"initialize", "notifications/initialized", "tools/list", "tools/call"} & asked


@pytest.mark.requirement("MCP-4.1-disconnect")
@pytest.mark.parametrize("version", ["1999-01-01", ""])
async def test_a_server_of_an_unknown_version_is_left_and_the_others_work(
    tmp_path: Path, version: str
) -> None:
    servers = {
        "strange": on_pipes("talker", TALKER_NAME="strange", TALKER_VERSION=version),
        "near": on_pipes("talker", TALKER_NAME="near"),
    }
    with standing(tmp_path, servers) as house:
        async with house.among_all("near").talk() as talk:
            listed = (await talk.client.request("tools/list", {})).result["tools"]
            lost = await talk.client.request("tools/call", {"name": "strange__echo"})
            called = await talk.call("echo", {"well": True})
    assert {tool["name"].partition("__")[0] for tool in listed} == {"near"}
    assert "error" in lost.response
    assert called.result["structuredContent"]["given"] == {"well": True}


@pytest.mark.requirement("MCP-4.4-timeouts")
@pytest.mark.parametrize("label", ["own near", "merged near", "own far", "merged far"])
async def test_a_call_without_an_answer_is_given_up_and_its_server_told(
    hurried: House, label: str
) -> None:
    async with hurried.way(label).talk() as talk:
        lost = (await talk.call("wait")).response
        seen, told = await _until_cancelled(talk)
    waits = [frame["id"] for frame in seen if _tool(frame) == "wait"]
    assert lost["result"]["isError"] is True
    assert "deadline" in lost["result"]["content"][0]["text"]
    assert told[-1] == waits[-1]


@pytest.mark.requirement("MCP-4.4-every")
@pytest.mark.parametrize("method", SILENT)
@pytest.mark.parametrize("label", ["own mute", "merged mute", "own silent", "merged silent"])
async def test_whatever_a_server_is_asked_it_is_given_up_and_told(
    hurried: House, label: str, method: str
) -> None:
    way = hurried.way(label)
    prompt = way.name("review")
    params: dict[str, Frame] = {
        "prompts/get": {"name": prompt, "arguments": {"language": "x"}},
        "resources/read": {"uri": way.uri("text")},
        "resources/subscribe": {"uri": way.uri("text")},
        "completion/complete": {
            "ref": {"type": "ref/prompt", "name": prompt},
            "argument": {"name": "language", "value": "ru"},
        },
    }
    async with way.talk() as talk:
        lost = (await talk.client.request(method, params[method])).response
        seen, told = await _until_cancelled(talk)
    asked = [frame["id"] for frame in seen if frame["method"] == method]
    assert "deadline" in lost["error"]["message"]
    assert told[-1] == asked[-1]


@pytest.mark.requirement("MCP-4.3-http")
async def test_a_session_that_nobody_uses_ends(hurried: House) -> None:
    ways = (hurried.own("near"), hurried.own("far"), hurried.among_all("far"))
    await asyncio.gather(*(_be_forgotten(way) for way in ways))


async def _be_forgotten(way: Way) -> None:
    async with way.dial() as client:
        assert isinstance(client, HttpClient)
        await initialize(client, {})
        async with asyncio.timeout(SECONDS):
            while await _is_known(client):
                # Longer than a session may be idle: asking sooner would keep it.
                await asyncio.sleep(3.5)
        client.session = {}


async def _is_known(client: HttpClient) -> bool:
    async with client.post({"jsonrpc": "2.0", "method": "notifications/unknown"}) as reply:
        return reply.status != 404


@pytest.fixture(scope="module", name="hurried")
def _hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    settings = '[limits]\ncall_idle_timeout = "1s"\nsession_idle_timeout = "2s"\n'
    quiet = {"TALKER_SILENT": json.dumps(SILENT)}
    with (
        http_server(on_port("talker"), {"TALKER_NAME": "far"}) as far,
        http_server(on_port("talker"), {"TALKER_NAME": "silent", **quiet}) as silent,
    ):
        servers: dict[str, Entry] = {
            "near": on_pipes("talker", TALKER_NAME="near"),
            "far": {"url": f"{far}/mcp"},
            "mute": on_pipes("talker", TALKER_NAME="mute", **quiet),
            "silent": {"url": f"{silent}/mcp"},
        }
        with standing(tmp_path_factory.mktemp("hurried"), servers, settings) as house:
            yield house


@pytest.mark.requirement("MCP-4.3-stdio", "MCP-4.3-noshutdown")
def test_a_process_is_asked_to_end_by_its_input_then_by_signals_and_is_ended(
    tmp_path: Path,
) -> None:
    log, config = tmp_path / "wiretap", tmp_path / "mcp.json"
    config.write_text(
        json.dumps({"mcpServers": {"stubborn": on_pipes("wiretap", WIRETAP=str(log))}})
    )
    with running([COMITY, "serve", "-c", str(config), "--port", "0"]) as program:
        program.wait_for_line("listening on")
        program.wait_until(lambda: log.exists() and len(log.read_text().splitlines()) > 3)
        began = log.read_text().splitlines()[0]
        stubborn = psutil.Process(int(began.rsplit(" ", 1)[1]))
        psutil.Process(program.pid).terminate()
        psutil.wait_procs([stubborn], timeout=SECONDS)
    told = [line for line in log.read_text().splitlines() if line in ("end of input", "SIGTERM")]
    assert told == ["end of input", "SIGTERM"]
    assert not stubborn.is_running()
    sent = [bytes.fromhex(line) for line in log.read_text().splitlines()[1:] if line not in told]
    methods = {json.loads(line)["method"] for line in sent}
    assert methods <= {"initialize", "notifications/initialized", "tools/list", "server/discover"}


@pytest.mark.requirement("MCP-4.3-stdio", "MCP-4.3-noshutdown")
async def test_comity_itself_ends_when_its_client_closes_the_pipe(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"near": on_pipes("talker")}}))
    process = await asyncio.create_subprocess_exec(
        *(COMITY, "serve", "-c", str(config), "--stdio"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    async with asyncio.timeout(SECONDS):
        await process.stdout.readline()
        running = find_gateway(config)
        assert running is not None
        gateway = psutil.Process(running.pid)
        started = [gateway, *gateway.children(recursive=True)]
        process.stdin.close()
        assert await process.wait() == 0
    # The gateway was started for this client; soon nobody needs it any more.
    gone, alive = await asyncio.to_thread(psutil.wait_procs, started, timeout=SECONDS)
    assert len(gone) > 1
    assert not alive


@pytest.mark.requirement("MCP-4.1-first")
async def test_on_a_pipe_nothing_but_a_ping_is_answered_before_the_handshake(
    tmp_path: Path,
) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"near": on_pipes("talker")}}))
    way = House("", config).by_pipe("near")
    async with way.dial() as client:
        assert (await client.request("ping")).result == {}
        early = (await client.request("tools/list", {})).response
        called = (await client.request("tools/call", {"name": "near__echo"})).response
    assert early["error"]["code"] == -32600
    assert called["error"]["code"] == -32600


async def _until_cancelled(talk: Talk) -> tuple[list[Frame], list[object]]:
    """What the server saw, and the ids of the requests that were cancelled, once one was."""
    async with asyncio.timeout(SECONDS):
        while True:
            seen = await talk.seen()
            told = [frame for frame in seen if frame["method"] == "notifications/cancelled"]
            if told:
                return seen, [frame["params"]["requestId"] for frame in told]
            await asyncio.sleep(0.02)
