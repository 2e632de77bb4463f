"""A configuration that changes under a running gateway, seen by clients who are at work."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from os import kill
from pathlib import Path
from typing import Any

import pytest

from comity.config.trust import content_digest, trust_file
from tests.interop.peers import ROOT
from tests.interop.processes import Program, answers, running
from tests.support.piped import COMITY
from tests.support.visitor import ENVELOPE, SECONDS, Reply, Visitor, request, visiting_at

TELLER = str(ROOT / "tests" / "conformance" / "servers" / "teller.py")
LISTEN = {"notifications": {"toolsListChanged": True}}

type Entry = dict[str, Any]

ids = count(1)


def teller(*tools: str, **env: str) -> Entry:
    return {"command": sys.executable, "args": [TELLER, *tools], "env": env}


class Gateway:
    """`comity serve` on a file, and the file."""

    def __init__(self, program: Program, origin: str, file: Path) -> None:
        self.program = program
        self.origin = origin
        self._file = file

    def write(self, text: str, *, at_once: bool = True, is_approved: bool = False) -> None:
        """Replace the file; `at_once` does not wait until it is looked at."""
        if is_approved:
            trust_file(self._file, content_digest(text.encode()))
        self._file.write_text(text)
        if at_once:
            kill(self.program.pid, signal.SIGHUP)

    def configure(
        self, *, at_once: bool = True, is_approved: bool = False, **servers: Entry
    ) -> None:
        text = json.dumps({"mcpServers": servers})
        self.write(text, at_once=at_once, is_approved=is_approved)

    @asynccontextmanager
    async def visitor(self, path: str = "/mcp") -> AsyncGenerator[Visitor]:
        async with visiting_at(self.origin) as somebody:
            yield somebody.other(path)


@contextmanager
def serving(tmp_path: Path, **servers: Entry) -> Generator[Gateway]:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    with running([COMITY, "serve", "-c", str(file), "--port", "0"]) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        yield Gateway(program, origin, file)


async def tools_of(visitor: Visitor) -> set[str]:
    listed = await (await visitor.ask_modern("tools/list")).json()
    return {tool["name"] for tool in listed["result"]["tools"]}


async def until_listed(visitor: Visitor, *names: str) -> None:
    async with asyncio.timeout(SECONDS):
        while await tools_of(visitor) != set(names):
            await asyncio.sleep(0.02)


async def told_by(visitor: Visitor, tool: str, **arguments: str) -> Entry:
    params = {"name": tool, "arguments": arguments}
    (answer,) = await (await visitor.post(request(next(ids), "tools/call", params))).frames()
    return answer["result"]["structuredContent"]


async def held(visitor: Visitor, tool: str, done: Path) -> asyncio.Future[Entry]:
    """A call that is under way, and will be answered when the file is there."""
    begun = done.with_name("begun")
    files = {"begun": str(begun), "until": str(done)}
    call = asyncio.ensure_future(told_by(visitor, tool, **files))
    async with asyncio.timeout(SECONDS):
        while not begun.exists():
            await asyncio.sleep(0.02)
    return call


async def hears_of_tools(stream: Reply) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            event = await stream.event()
            if event.data and event.frame.get("method") == "notifications/tools/list_changed":
                return


async def test_a_server_comes_changes_and_goes_while_another_is_at_work(tmp_path: Path) -> None:
    done = tmp_path / "done"
    with serving(tmp_path, a=teller("hold")) as gateway:
        async with gateway.visitor() as old, gateway.visitor() as modern:
            await old.greet()
            stream = await old.get()
            listening = await modern.ask_modern(
                "subscriptions/listen", {**LISTEN, "_meta": ENVELOPE}
            )
            holding = await held(old, "a__hold", done)
            first = await told_by(old, "a__hold")

            gateway.configure(a=teller("hold"), b=teller("one"))
            await until_listed(modern, "a__hold", "b__one")
            await hears_of_tools(stream)
            await hears_of_tools(listening)
            before = await told_by(old, "b__one")

            gateway.configure(a=teller("hold"), b=teller("two", TELLER_NEW="yes"))
            await until_listed(modern, "a__hold", "b__two")
            await hears_of_tools(stream)
            await hears_of_tools(listening)
            after = await told_by(old, "b__two")
            assert (after["args"], after["env"]) == (["two"], {"TELLER_NEW": "yes"})
            assert before["life"] != after["life"]

            gateway.configure(a=teller("hold"), is_approved=True)
            await until_listed(modern, "a__hold")
            await hears_of_tools(stream)
            await hears_of_tools(listening)

            # Neither the call that was open all the time nor its process noticed anything.
            assert not holding.done()
            done.touch()
            assert (await holding)["life"] == first["life"]
            assert (await told_by(old, "a__hold"))["life"] == first["life"]


async def test_the_door_of_a_server_comes_and_goes_with_it(tmp_path: Path) -> None:
    with serving(tmp_path, a=teller("tell")) as gateway:
        async with gateway.visitor("/servers/b/mcp") as visitor, gateway.visitor() as modern:
            assert (await visitor.send("GET")).status == 404
            gateway.configure(a=teller("tell"), b=teller("one"))
            await until_listed(modern, "a__tell", "b__one")
            await visitor.greet()
            first = await told_by(visitor, "one")
            stream = await visitor.get()
            listen = {**LISTEN, "_meta": ENVELOPE}
            listening = await visitor.ask_modern("subscriptions/listen", listen)

            # A client at the door goes on in its session with what stands behind the door now.
            gateway.configure(a=teller("tell"), b=teller("two"))
            await until_listed(modern, "a__tell", "b__two")
            await hears_of_tools(stream)
            await hears_of_tools(listening)
            second = await told_by(visitor, "two")
            assert first["life"] != second["life"]

            gateway.configure(a=teller("tell"), b={**teller("two"), "disabled": True})
            await until_listed(modern, "a__tell")
            # Nobody is left waiting at a door that is no more.
            await stream.events()
            await listening.events()
            assert (await visitor.post(request(next(ids), "ping"))).status == 404


async def test_a_call_on_a_server_that_is_changed_is_answered_before_its_end(
    tmp_path: Path,
) -> None:
    done = tmp_path / "done"
    with serving(tmp_path, b=teller("hold")) as gateway:
        async with gateway.visitor() as old, gateway.visitor() as modern:
            await old.greet()
            first = await told_by(old, "b__hold")
            holding = await held(old, "b__hold", done)
            gateway.configure(b=teller("other"))
            await asyncio.to_thread(gateway.program.wait_for_line, "has changed: changed b")
            done.touch()
            assert (await holding)["life"] == first["life"]
            await until_listed(modern, "b__other")
            assert answers(f"{gateway.origin}/ready")


async def test_a_file_is_followed_without_being_asked(tmp_path: Path) -> None:
    with serving(tmp_path, a=teller("tell")) as gateway:
        async with gateway.visitor() as modern:
            gateway.configure(b=teller("one"), at_once=False, is_approved=True)
            await until_listed(modern, "b__one")
        gateway.program.wait_for_line("comity: the configuration has changed: added b; removed a")


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_mistake_changes_nothing_and_is_told_once(tmp_path: Path, at_once: bool) -> None:
    with serving(tmp_path, a=teller("tell")) as gateway:
        async with gateway.visitor() as old, gateway.visitor() as modern:
            await old.greet()
            first = await told_by(old, "a__tell")
            wrong = '{"mcpServers": {\n"a": {"command": "${NOT_SET_ANYWHERE}"}}}'
            gateway.write(wrong, at_once=at_once)
            gateway.program.wait_for_line(
                r"not applied: .*mcp\.json:2: .*NOT_SET_ANYWHERE is not set"
            )
            assert await told_by(old, "a__tell") == first
            gateway.configure(a=teller("tell"), b=teller("one"))
            await until_listed(modern, "a__tell", "b__one")
            assert await told_by(old, "a__tell") == first
        assert gateway.program.said.count("was not applied") == 1


async def test_what_needs_a_restart_is_told_and_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "comity.toml"
    entry = f'[[servers]]\nid = "a"\ncommand = "{sys.executable}"\nargs = ["{TELLER}", "tell"]\n'
    file.write_text(entry)
    with running([COMITY, "serve", "-c", str(file), "--port", "0"]) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        file.write_text("port = 1\n[limits]\nmax_depth = 100\n" + entry)
        program.wait_for_line(r"Changes to limits\.max_depth need a restart")
        assert answers(f"{origin}/health")


async def test_a_url_that_cannot_be_keeps_the_whole_change_from_being_taken(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, a=teller("tell")) as gateway:
        async with gateway.visitor() as modern:
            gateway.configure(b=teller("one"), c={"url": "http://host:99999/"})
            gateway.program.wait_for_line("not applied: ")
            assert await tools_of(modern) == {"a__tell"}
            assert (await modern.send("GET", path="/servers/b/mcp")).status == 404


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("first", "last"), [(0, 0), (0, 1), (0, 2), (2, 3)], ids=["empty", "comment", "half", "shorter"]
)
async def test_a_file_that_lost_its_end_changes_nothing_before_a_person_approves_it(
    tmp_path: Path, first: int, last: int, at_once: bool
) -> None:
    entry = f'[[servers]]\nid = "{{}}"\ncommand = "{sys.executable}"\nargs = ["{TELLER}", "tell"]\n'
    file = tmp_path / "comity.toml"
    parts = ["# Servers\n", entry.format("a"), entry.format("b")]
    file.write_text("".join(parts))
    with running([COMITY, "serve", "-c", str(file), "--port", "0"]) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        gateway = Gateway(program, origin, file)
        async with gateway.visitor() as old, gateway.visitor() as modern:
            await until_listed(modern, "a__tell", "b__tell")
            await old.greet()
            before = await told_by(old, "a__tell")
            rest = "".join(parts[first:last])
            gateway.write(rest, at_once=at_once)
            await asyncio.to_thread(
                program.wait_for_line, "not applied: .*`comity config trust .*comity.toml`"
            )
            assert await tools_of(modern) == {"a__tell", "b__tell"}
            assert await told_by(old, "a__tell") == before
            kept = [name for name in ("a", "b") if f'id = "{name}"' in rest]
            trust_file(file, content_digest(rest.encode()))
            await until_listed(modern, *(f"{name}__tell" for name in kept))
        assert program.said.count("was not applied") == 1


async def test_a_file_that_only_loses_a_comment_is_applied_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, a=teller("tell")) as gateway:
        async with gateway.visitor() as modern:
            gateway.configure(a=teller("tell", TELLER_NEW="a" * 200))
            await asyncio.to_thread(gateway.program.wait_for_line, "has changed: changed a")
            gateway.configure(a=teller("one"))
            await until_listed(modern, "a__one")
