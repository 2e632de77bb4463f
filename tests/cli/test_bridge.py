"""The stdio door of the real command, before a real process."""

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.surfaces.piped import STDIO_ENTRY, Piped, piped
from tests.surfaces.visitor import ENVELOPE, SECONDS, Frame

pytestmark = pytest.mark.timeout(240)


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
@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"not json", -32700),
        (b"\xff\xfe", -32700),
        (b"[]", -32600),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
        (b"[" * 100_000, -32700),
        (b"x" * (5 * 2**20), -32600),
    ],
    ids=["words", "bytes", "batch", "repeated", "fraction", "deep", "overlong"],
)
async def test_what_is_no_message_is_refused_and_the_next_one_heard(
    door: Piped, line: bytes, code: int
) -> None:
    await door.greet()
    door.say(line)
    refusal = await door.next_answer()
    assert refusal["id"] is None
    assert refusal["error"]["code"] in (code, -32600)
    assert (await door.ask(2, "ping"))["result"] == {}


async def test_blank_lines_and_carriage_returns_are_no_messages(door: Piped) -> None:
    await door.greet()
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
