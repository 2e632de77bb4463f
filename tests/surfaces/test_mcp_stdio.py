"""The stdio door of the real command, before a real process."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.surfaces.piped import STDIO_ENTRY, Piped, piped
from tests.surfaces.visitor import ENVELOPE, SECONDS, Frame


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
    second = await _heard(door, "after", meta)
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
    sent = [frame for frame in told if frame.get("params", {}).get("name") == "hang"]
    cancelled = [frame for frame in told if frame["method"] == "notifications/cancelled"]
    assert len(sent) == len(cancelled) <= 1
    assert [frame for frame in door.seen if frame.get("id") == 1] == []


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
