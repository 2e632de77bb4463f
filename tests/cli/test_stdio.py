"""`comity serve --stdio`: one gateway for all clients, before real processes."""

import asyncio
import itertools
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from comity.cli.api_client import find_gateway
from tests.cli.program import EXAMPLE, Desk
from tests.interop.processes import answers, comity
from tests.support.fork_server import COMITY
from tests.support.piped import STDIO_ENTRY, Piped, piped
from tests.support.visitor import ENVELOPE, Frame

pytestmark = pytest.mark.timeout(600)

SECONDS = 120.0
SERVER = f"""
[[servers]]
id = "example"
command = "{EXAMPLE["command"]}"
args = {EXAMPLE["args"]}
"""
ECHO = ("example__echo", {"message": "hello"})


@pytest.fixture
def desk(tmp_path: Path) -> Generator[Desk]:
    """A desk with gateways of its own, which end with the test."""
    desk = Desk(tmp_path, COMITY_STATE_DIR=str(tmp_path / "state"), COMITY_IDLE_SECONDS="600")
    yield desk
    for each in records(desk):
        with suppress(ProcessLookupError):
            gateway = psutil.Process(each["pid"])
            gateway.terminate()
            psutil.wait_procs([gateway], timeout=SECONDS)


def records(desk: Desk) -> list[dict[str, Any]]:
    folder = Path(desk.env["COMITY_STATE_DIR"], "gateways")
    return [json.loads(file.read_text()) for file in folder.glob("[0-9]*.json")]


@asynccontextmanager
async def client(desk: Desk, config: Path, **env: str) -> AsyncGenerator[ClientSession]:
    """A client of MCP's own SDK that starts Comity as a desktop client does."""
    server = StdioServerParameters(
        command=COMITY, args=["serve", "--stdio", "-c", str(config)], env={**desk.env, **env}
    )
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        async with asyncio.timeout(SECONDS):
            await session.initialize()
        yield session


async def text(session: ClientSession, name: str, arguments: dict[str, Any]) -> str:
    async with asyncio.timeout(SECONDS):
        answer = await session.call_tool(name, arguments)
    return "".join(getattr(part, "text", "") for part in answer.content)


async def test_a_stdio_client_without_a_store_has_its_call_approved(desk: Desk) -> None:
    """Whatever the model is told is true: the page is served, and the command works."""
    config = desk.write(
        "comity.toml",
        f'[policy]\nrequire_approval = "dangerous"\n[approvals]\nclient_wait = "1s"\n{SERVER}',
    )
    async with client(desk, config) as session:
        told = await text(session, *ECHO)
        found = re.search(r"at (http://\S+/approvals/(\w+)) or by `comity (approve [^`]*)`", told)
        assert found is not None, told
        page, request, command = found.groups()
        assert await asyncio.to_thread(answers, page)
        listed = await asyncio.to_thread(desk.run, "approvals", "-o", "json", *command.split()[2:])
        assert [each["id"] for each in listed.json["approvals"]] == [request]
        approved = await asyncio.to_thread(desk.run, *command.split(), "--yes")
        assert approved.status == 0, approved.err
        assert await text(session, *ECHO) == "hello"


async def test_clients_that_start_at_once_share_one_gateway(desk: Desk) -> None:
    config = desk.write("comity.toml", SERVER)

    async def visit(number: int) -> str:
        async with client(desk, config) as session:
            return await text(session, "example__echo", {"message": f"hello {number}"})

    said = await asyncio.gather(*(visit(number) for number in range(3)))
    assert said == [f"hello {number}" for number in range(3)]
    assert len(records(desk)) == 1


async def test_a_client_joins_the_gateway_that_runs(desk: Desk) -> None:
    config = desk.write("comity.toml", SERVER)
    with comity(config, desk.env) as origin:
        async with client(desk, config) as session:
            assert await text(session, *ECHO) == "hello"
            (running,) = records(desk)
            assert running["url"] == origin
    assert records(desk) == []


async def test_a_gateway_that_dies_fails_its_calls_and_another_takes_its_place(desk: Desk) -> None:
    config = desk.write("comity.toml", SERVER)
    async with client(desk, config) as session:
        assert await text(session, *ECHO) == "hello"
        (first,) = records(desk)
        begun = asyncio.Event()

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            begun.set()

        counting = session.call_tool("example__countdown", {"seconds": 60}, progress_callback=tell)
        hanging = asyncio.ensure_future(counting)
        async with asyncio.timeout(SECONDS):
            await begun.wait()
            os.kill(first["pid"], signal.SIGKILL)
            with pytest.raises(MCPError, match="unknown"):
                await hanging
        assert await text(session, *ECHO) == "hello"
        (second,) = records(desk)
        assert second["pid"] != first["pid"]


@contextmanager
def taken(port: int = 0) -> Generator[int]:
    """A port that some other program holds; a gateway of another test may hold it for a while."""
    deadline = time.monotonic() + SECONDS
    with closing(socket.socket()) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        while True:
            try:
                other.bind(("127.0.0.1", port))
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        other.listen()
        yield other.getsockname()[1]


async def test_a_port_that_nobody_chose_is_given_up_where_it_is_taken(desk: Desk) -> None:
    config = desk.write("comity.toml", SERVER)
    with taken(2664):
        async with client(desk, config) as session:
            assert await text(session, *ECHO) == "hello"
    (running,) = records(desk)
    assert not running["url"].endswith(":2664")


def test_a_port_that_the_file_names_and_that_is_taken_is_told(desk: Desk) -> None:
    with taken() as port:
        config = desk.write("comity.toml", f"port = {port}\n{SERVER}")
        ran = desk.run("serve", "--stdio", "-c", str(config))
    assert (ran.status, ran.out) == (3, "")
    assert f"port {port}" in ran.err
    (log,) = re.findall(r"Its log is (\S+)", ran.err)
    assert f"port {port}" in Path(log).read_text()
    assert records(desk) == []


async def test_a_client_with_a_key_is_who_its_key_says(desk: Desk) -> None:
    # Any port: a gateway of another test may have the usual one, and --offline would refuse.
    written = f"""
port = 0

[store]
url = "sqlite:///{desk.home}/comity.db"

[identity]
mode = "required"

[[grants]]
subject = "agent:two"
verb = "tools/call"
target = "example/echo"
effect = "allow"
{SERVER}
"""
    config = desk.write("comity.toml", written)
    here = ("--offline", "-c", str(config))
    key = desk.run("keys", "create", "agent:two", *here).lines[0]
    async with client(desk, config, COMITY_KEY=key) as session:
        assert [tool.name for tool in (await session.list_tools()).tools] == ["example__echo"]
        assert await text(session, *ECHO) == "hello"
    # The one that runs now takes nobody without a key.
    greeting = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'
    ran = await asyncio.to_thread(desk.run, "serve", "--stdio", "-c", str(config), said=greeting)
    assert "Authorization" in ran.json["error"]["message"]


async def test_a_gateway_stays_as_long_as_one_of_its_clients_does(desk: Desk) -> None:
    config = desk.write("comity.toml", SERVER)
    async with client(desk, config, COMITY_IDLE_SECONDS="0.2") as staying:
        async with client(desk, config) as leaving:
            assert await text(leaving, *ECHO) == "hello"
        (running,) = records(desk)
        gateway = psutil.Process(running["pid"])
        # It has looked several times whether anybody is there.
        with suppress(psutil.TimeoutExpired):
            gateway.wait(1)
        assert await text(staying, *ECHO) == "hello"
    psutil.wait_procs([gateway], timeout=SECONDS)
    assert not gateway.is_running()
    assert find_gateway(config, desk.env) is None


@pytest.fixture
async def door(tmp_path: Path) -> AsyncGenerator[Piped]:
    async with piped(tmp_path, {"up": STDIO_ENTRY}) as door:
        yield door


async def tools_of(door: Piped, named: object = "list") -> list[str]:
    listed = await door.ask(named, "tools/list")
    return [tool["name"] for tool in listed["result"]["tools"]]


@pytest.mark.requirement("MCP-4.1-first", "MCP-5.1-list", "MCP-5.1-call", "MCP-1-route")
async def test_a_desktop_client_lists_and_calls_the_tools_of_its_servers(door: Piped) -> None:
    assert (await door.greet())["serverInfo"]["name"] == "comity"
    assert "up__plain" in await tools_of(door)
    told = json.loads(await door.call(1, "up__plain", word="w"))
    assert told["arguments"] == {"word": "w"}


async def test_the_first_request_fixes_the_era(door: Piped) -> None:
    modern = await door.ask(1, "tools/list", {"_meta": ENVELOPE})
    assert modern["result"]["resultType"] == "complete"
    late = await door.ask(2, "initialize", {"protocolVersion": "2025-11-25"})
    assert late["error"]["code"] == -32022
    bare = await door.ask(3, "tools/list")
    assert bare["error"]["code"] == -32602
    again = await door.ask(4, "tools/call", {"name": "up__plain", "_meta": ENVELOPE})
    assert "result" in again


async def test_a_client_that_only_probed_may_still_greet(door: Piped) -> None:
    """Clients that speak both give up on `server/discover` when its answer is late."""
    door.say({"id": "probe", "method": "server/discover", "params": {"_meta": ENVELOPE}})
    assert (await door.greet())["serverInfo"]["name"] == "comity"
    assert "up__plain" in await tools_of(door)


@pytest.mark.requirement("MCP-4.4-cancelled")
@pytest.mark.parametrize("envelope", [None, ENVELOPE])
async def test_a_cancelled_call_is_cancelled_at_its_server(
    door: Piped, envelope: Frame | None
) -> None:
    meta: Frame = {} if envelope is None else {"_meta": envelope}
    if envelope is None:
        await door.greet()
    await door.ask("warm", "tools/call", {"name": "up__plain", **meta})
    door.say({"id": 1, "method": "tools/call", "params": {"name": "up__hang", **meta}})
    for named in (True, "1", 1.0, [1], None):
        # None of these is the id of that call.
        door.say({"method": "notifications/cancelled", "params": {"requestId": named}})
    first = await _heard(door, "before", meta)
    assert [f for f in first if f["method"] == "notifications/cancelled"] == []
    door.say({"method": "notifications/cancelled", "params": {"requestId": 1, "reason": "enough"}})
    second = await _heard_cancelled(door, meta)
    (hanging,) = [f["id"] for f in second if f.get("params", {}).get("name") == "hang"]
    (told,) = [f["params"] for f in second if f["method"] == "notifications/cancelled"]
    assert told["requestId"] == hanging
    assert [frame for frame in door.seen if frame.get("id") == 1] == []


@pytest.mark.requirement("MCP-4.4-cancelled")
@pytest.mark.parametrize("envelope", [None, ENVELOPE])
async def test_a_cancellation_in_the_same_breath_finds_its_call(
    door: Piped, envelope: Frame | None
) -> None:
    meta: Frame = {} if envelope is None else {"_meta": envelope}
    if envelope is None:
        await door.greet()
    await door.ask("warm", "tools/call", {"name": "up__plain", **meta})
    call = {"id": 1, "method": "tools/call", "params": {"name": "up__hang", **meta}}
    enough = {"method": "notifications/cancelled", "params": {"requestId": 1}}
    both = [json.dumps({"jsonrpc": "2.0", **frame}).encode() for frame in (call, enough)]
    door.say(b"\n".join(both))
    told = await _heard(door, "after", meta)
    # It may not even have left: what its server never got need not be cancelled there.
    if any(frame.get("params", {}).get("name") == "hang" for frame in told):
        await _heard_cancelled(door, meta)
    assert [frame for frame in door.seen if frame.get("id") == 1] == []


async def _heard_cancelled(door: Piped, meta: Frame) -> list[Frame]:
    """What the server has heard, once a cancellation is among it: over HTTP it may take a while."""
    async with asyncio.timeout(SECONDS):
        for number in itertools.count():
            told = await _heard(door, f"after {number}", meta)
            if any(frame["method"] == "notifications/cancelled" for frame in told):
                return told
    raise AssertionError("unreachable")


async def _heard(door: Piped, named: str, meta: Frame) -> list[Frame]:
    answer = await door.ask(named, "tools/call", {"name": "up__heard", **meta})
    return json.loads(answer["result"]["content"][0]["text"])


@pytest.mark.requirement("MCP-2.2-32700", "MCP-2.2-32600")
async def test_invalid_line_is_refused_and_the_next_message_answered(door: Piped) -> None:
    await door.greet()
    for line, code in (
        (b"not json", -32700),
        (b"\xff\xfe", -32700),
        (b"[]", -32600),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
        (b"[" * 100_000, -32700),
        (b"x" * (5 * 2**20), -32600),
    ):
        door.say(line)
        refusal = await door.next_answer()
        assert refusal["id"] is None, line[:40]
        assert refusal["error"]["code"] in (code, -32600), line[:40]
        assert (await door.ask(2, "ping"))["result"] == {}
    # Blank lines and carriage returns are no messages.
    for blank in (b"", b"  ", b"\r", b'{"jsonrpc":"2.0","id":7,"method":"ping"}\r'):
        door.say(blank)
    assert (await door.answer(7))["result"] == {}


async def test_many_calls_at_once_are_each_answered_under_their_own_id(door: Piped) -> None:
    await door.greet()
    for number in range(200):
        params = {"name": "up__plain", "arguments": {"n": number}}
        door.say({"id": f"{number}", "method": "tools/call", "params": params})
        door.say({"id": number, "method": "ping"})
    answers = [await door.next_answer() for _ in range(400)]
    assert {a["id"] for a in answers} == {*range(200), *map(str, range(200))}
    for answer in answers:
        if isinstance(answer["id"], str):
            told = json.loads(answer["result"]["content"][0]["text"])
            assert told["arguments"]["n"] == int(answer["id"])


@pytest.mark.requirement("MCP-4.3-stdio", "MCP-4.3-noshutdown")
async def test_the_end_of_input_ends_the_gateway_and_its_servers(door: Piped) -> None:
    await door.greet()
    child = os.pidfd_open(json.loads(await door.call(1, "up__plain"))["pid"])
    try:
        door.say({"id": 2, "method": "tools/call", "params": {"name": "up__hang"}})
        assert await door.end() == 0
        await _ended(child)
    finally:
        os.close(child)


async def test_a_client_that_dies_without_a_word_leaves_nothing_running(door: Piped) -> None:
    """Both pipes break at once, with answers still on the way."""
    await door.greet()
    child = os.pidfd_open(json.loads(await door.call(1, "up__plain"))["pid"])
    try:
        for number in range(50):
            door.say(
                {"id": f"late {number}", "method": "tools/call", "params": {"name": "up__flood"}}
            )
        vars(door.stdout)["_transport"].close()
        await door.end()
        await _ended(child)
    finally:
        os.close(child)


async def test_a_client_that_closes_its_input_and_reads_nothing_is_not_waited_for(
    door: Piped,
) -> None:
    await door.greet()
    for number in range(20):
        door.say({"id": number, "method": "tools/call", "params": {"name": "up__flood"}})
    await door.next()
    # Twenty megabytes are on their way, and nobody takes them any more.
    vars(door.stdout)["_transport"].pause_reading()
    gateway = os.pidfd_open(door.process.pid)
    try:
        door.stdin.close()
        await _ended(gateway)
    finally:
        os.close(gateway)
        vars(door.stdout)["_transport"].close()


async def _ended(process: int) -> None:
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(process, gone.set)
    try:
        async with asyncio.timeout(SECONDS):
            await gone.wait()
    finally:
        loop.remove_reader(process)


MARKED = """
import json
import sys

for line in sys.stdin:
    said = json.loads(line)
    result = {}
    if said.get("method") == "initialize":
        version = said["params"]["protocolVersion"]
        about = {"serverInfo": {"name": "marked", "version": "1"}}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, **about}
    elif said.get("method") == "tools/list":
        place = {"type": "string", "x-mcp-header": "Place"}
        schema = {"type": "object", "properties": {"place": place}}
        result = {"tools": [{"name": "go", "inputSchema": schema}]}
    elif said.get("method") == "tools/call":
        result = {"content": [{"type": "text", "text": said["params"]["arguments"]["place"]}]}
    if "id" in said:
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": result}), flush=True)
"""


@pytest.mark.parametrize("is_listed", [True, False])
async def test_arguments_that_http_wants_in_headers_need_none_on_a_pipe(
    tmp_path: Path, is_listed: bool
) -> None:
    """The bridge repeats them; a tool that it has not seen in a list yet is looked up."""
    (tmp_path / "marked.py").write_text(MARKED)
    entry = {"command": sys.executable, "args": [str(tmp_path / "marked.py")]}
    async with piped(tmp_path, {"up": entry}) as door:
        if is_listed:
            await door.ask("list", "tools/list", {"_meta": ENVELOPE})
        for number in range(2):
            went = {"name": "up__go", "arguments": {"place": f"Zürich {number}"}, "_meta": ENVELOPE}
            answer = await door.ask(number, "tools/call", went)
            assert answer["result"]["content"][0]["text"] == f"Zürich {number}"


async def test_what_nobody_here_knows_is_passed_on_as_it_is(door: Piped) -> None:
    await door.greet()
    strange = {"name": "up__heard", "arguments": {"a": [1.50, None]}, "_meta": {"x/y": {"z": "ü"}}}
    answer = await door.ask("s", "tools/call", {**strange, "other": {"deep": [[]]}})
    told = json.loads(answer["result"]["content"][0]["text"])
    (sent,) = [frame["params"] for frame in told if frame.get("method") == "tools/call"]
    assert sent["other"] == {"deep": [[]]}
    assert sent["arguments"] == strange["arguments"]
    assert sent["_meta"]["x/y"] == {"z": "ü"}
