"""Attacks 17, 18 and 19 of `docs/design/security.md` §1.5: too much, too slowly, too cleverly."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from comity.http.connection import ListenerLimits
from tests.interop.processes import Program, answers, running
from tests.support.commands import by_command
from tests.support.piped import COMITY, STDIO_ENTRY, piped
from tests.support.upstream import Exchange, scripted
from tests.support.visitor import SECONDS, Visitor, at, visiting, visiting_at

MEBIBYTE = 2**20


@pytest.fixture
async def visitor() -> AsyncGenerator[Visitor]:
    async with visiting(by_command()) as visitor:
        await visitor.greet()
        yield visitor


async def said(visitor: Visitor, tool: str, named: object = 1) -> str:
    frames = await (await visitor.call(tool, named)).frames()
    return frames[-1]["result"]["content"][0]["text"]


REPEATED: dict[str, Any] = {"type": "string", "pattern": "^(a+)+$", "default": "a" * 40 + "!"}
HOSTILE: dict[str, Any] = {
    "backtracking": {"type": "object", "properties": {"s": REPEATED}},
    "huge-repeat": {"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}"},
    "itself": {"$ref": "#"},
    "circle": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "towers": {"allOf": [{"allOf": [{"type": "object"}] * 50}] * 200},
    "no-schema": "object",
}


def exponential(depth: int) -> dict[str, Any]:
    """Each definition needs the next one twice."""
    pairs = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": {**pairs, f"d{depth}": {"type": "object"}}}


async def test_attack_17_a_hostile_schema_stops_neither_the_loop_nor_its_own_server() -> None:
    """Other calls are answered while the schemas are judged, and nothing is fetched for them."""
    async with scripted() as hostile, scripted() as honest, scripted() as trap:
        schemas = {**HOSTILE, "exponential": exponential(40), "remote": {"$ref": trap.url}}
        schemas["file"] = {"$ref": "file:///etc/hostname"}

        @hostile.act("tools/list")
        async def tools(exchange: Exchange) -> None:
            offered = [{"name": name, "inputSchema": schema} for name, schema in schemas.items()]
            good = {"name": "good", "inputSchema": {"type": "object"}}
            await exchange.result({"tools": [*offered, good]})

        async with visiting(at(hostile.url, "hostile"), at(honest.url, "up")) as visitor:
            await visitor.greet()
            for number in range(50):
                assert await said(visitor, "plain", number) == "done"
            merged = visitor.other("/mcp")
            await merged.greet()
            async with asyncio.timeout(SECONDS):
                names: set[str] = set()
                while "hostile__good" not in names:
                    listed = await (await merged.post(_list())).json()
                    names = {tool["name"] for tool in listed["result"]["tools"]}
            assert "hostile__no-schema" not in names
            assert "hostile__remote" not in names
            assert "hostile__file" not in names
            assert await said(merged, "hostile__good") == "done"
        assert trap.heard == []


def _list() -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "list", "method": "tools/list"}


async def test_attack_18_half_open_requests_keep_nobody_else_waiting(visitor: Visitor) -> None:
    for number in range(150):
        head = b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n"
        peer = await visitor.place.connect()
        peer.say(head if number % 2 else head + b"content-type: application/json\r\n\r\n")
        waiting = await visitor.place.connect()
        waiting.say(head + b"content-type: application/json\r\ncontent-length: 99\r\n\r\n{")
    assert "pid" in await said(visitor, "plain")
    someone = visitor.other()
    await someone.greet()
    assert "pid" in await said(someone, "plain")


async def test_attack_18_a_line_without_an_end_costs_the_server_that_line_alone(
    visitor: Visitor,
) -> None:
    assert await said(visitor, "long") == "after the long line"
    assert "pid" in await said(visitor, "plain")


async def test_attack_18_what_a_server_prints_besides_is_passed_over(visitor: Visitor) -> None:
    assert await said(visitor, "garbage") == "after the garbage"


async def test_attack_18_a_flood_of_one_server_delays_no_other_for_ever() -> None:
    async with visiting(by_command(), by_command("calm")) as visitor:
        await visitor.greet()
        calm = visitor.other("/servers/calm/mcp")
        await calm.greet()
        flooding = [asyncio.ensure_future(visitor.call("flood", n)) for n in range(3)]
        for number in range(30):
            assert "pid" in await said(calm, "plain", number)
        for flood in flooding:
            (await flood).leave()
        assert "pid" in await said(calm, "plain", "last")


async def test_attack_18_a_line_without_an_end_at_the_stdio_door(tmp_path: Path) -> None:
    async with piped(tmp_path, {"up": STDIO_ENTRY}) as door:
        await door.greet()
        before = psutil.Process(door.process.pid).memory_info().rss
        for _ in range(64):
            door.stdin.write(b"x" * MEBIBYTE)
            await door.stdin.drain()
        refusal = await door.next_answer()
        assert (refusal["id"], refusal["error"]["code"]) == (None, -32600)
        door.say(b"")
        assert (await door.ask(1, "ping"))["result"] == {}
        assert psutil.Process(door.process.pid).memory_info().rss - before < 40 * MEBIBYTE


@contextmanager
def served(folder: Path, url: str) -> Generator[tuple[Program, str]]:
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"up": {"type": "http", "url": url}}}))
    with running([COMITY, "serve", "-c", str(config), "--port", "0"]) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        yield program, origin


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_attack_19_a_client_that_does_not_read_costs_a_bounded_memory(
    tmp_path: Path, era: str
) -> None:
    """The server pours as fast as it is allowed to; it is stopped, and another client is served."""
    poured = 0

    async def pour(exchange: Exchange) -> None:
        nonlocal poured
        note = {"method": "notifications/message", "params": {"data": "x" * 65536}}
        await exchange.stream()
        while poured < 512 * MEBIBYTE:
            await exchange.event(note)
            poured += 65536

    async with scripted(modern=True) as server:
        server.act("pour")(pour)
        opening = served(tmp_path, server.url)
        program, origin = await asyncio.to_thread(opening.__enter__)
        try:
            async with visiting_at(origin) as visitor:
                await _pour_and_look(visitor, psutil.Process(program.pid), era, lambda: poured)
        finally:
            await asyncio.to_thread(opening.__exit__, None, None, None)


async def _pour_and_look(
    visitor: Visitor, process: psutil.Process, era: str, poured: Callable[[], int]
) -> None:
    await visitor.greet()
    before = process.memory_info().rss
    unread = await (visitor.call("pour") if era == "handshake" else visitor.call_modern("pour"))
    unread.peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    steady, seen = 0, -1
    async with asyncio.timeout(SECONDS):
        while steady < 20:
            assert "done" in await said(visitor, "plain", f"{seen}-{steady}")
            steady = steady + 1 if poured() == seen else 0
            seen = poured()
            await asyncio.sleep(0.02)
    assert poured() < 128 * MEBIBYTE, "the server was never stopped"
    assert process.memory_info().rss - before < 100 * MEBIBYTE
    unread.leave()


async def test_attack_19_a_client_that_never_reads_is_let_go_in_the_end() -> None:
    """With it goes its call: in the modern era the end of a stream is the end of its request."""
    over = asyncio.Event()

    async def pour(exchange: Exchange) -> None:
        try:
            await exchange.stream()
            note = {"method": "notifications/message", "params": {"data": "x" * 65536}}
            for _ in range(1024):
                await exchange.event(note)
            await exchange.left()
        finally:
            over.set()

    quick = ListenerLimits(
        send_time=timedelta(milliseconds=50), header_time=timedelta(milliseconds=200)
    )
    async with scripted(modern=True) as server, visiting(at(server.url), limits=quick) as visitor:
        server.act("pour")(pour)
        await visitor.greet()
        unread = await visitor.call_modern("pour")
        unread.peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(SECONDS):
            while not over.is_set():
                assert await said(visitor, "plain") == "done"
                await asyncio.sleep(0.02)
