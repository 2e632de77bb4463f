"""What a session was agreed on binds both sides, and whatever waits or lingers comes to an end."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from comity.cli.gateway_records import find_gateway
from tests.conformance.conftest import standing
from tests.conformance.ways import COMITY, Entry, Frame, House, Way, on_pipes, on_port
from tests.interop.hand_client import SECONDS, HttpClient, initialize
from tests.interop.processes import http_server, running

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
    way = hurried.way(label)
    async with way.talk() as talk:
        lost = (await talk.call("wait")).response
        async with asyncio.timeout(SECONDS):
            while not (told := _told_to_stop(seen := await talk.seen())):
                await asyncio.sleep(0.02)
    waits = [frame["id"] for frame in seen if frame.get("params", {}).get("name") == "wait"]
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
        async with asyncio.timeout(SECONDS):
            while not (told := _told_to_stop(seen := await talk.seen())):
                await asyncio.sleep(0.02)
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
    settings = '[limits]\ncall_deadline = "1s"\nidle_session = "2s"\n'
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
    with running([COMITY, "serve", str(config), "--port", "0"]) as program:
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
        *(COMITY, "serve", str(config), "--stdio"),
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


def _told_to_stop(seen: list[Frame]) -> list[object]:
    told = [frame for frame in seen if frame["method"] == "notifications/cancelled"]
    return [frame["params"]["requestId"] for frame in told]
