"""`comity serve --stdio` with real clients: one gateway for all of them, and a way to approve."""

import asyncio
import json
import os
import re
import signal
import socket
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

from comity.cli.gateway_records import find_gateway
from tests.cli.program import COMITY, EXAMPLE, Desk
from tests.interop.processes import answers, comity

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
        command=COMITY, args=["serve", "--stdio", str(config)], env={**desk.env, **env}
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
        "comity.toml", f'[policy]\nrequire_approval = "dangerous"\n[asks]\nhold = "1s"\n{SERVER}'
    )
    async with client(desk, config) as session:
        told = await text(session, *ECHO)
        found = re.search(r"at (http://\S+/asks/(\w+)) or by `comity (approve [^`]*)`", told)
        assert found is not None, told
        page, request, command = found.groups()
        assert await asyncio.to_thread(answers, page)
        listed = await asyncio.to_thread(desk.run, "asks", "--json", *command.split()[2:])
        assert [each["id"] for each in listed.json["asks"]] == [request]
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
        ran = desk.run("serve", "--stdio", str(config))
    assert (ran.status, ran.out) == (3, "")
    assert f"port {port}" in ran.err
    (log,) = re.findall(r"Its log is (\S+)", ran.err)
    assert f"port {port}" in Path(log).read_text()
    assert records(desk) == []


async def test_a_client_with_a_key_is_who_its_key_says(desk: Desk) -> None:
    written = f"""
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
    here = ("--offline", "--config", str(config))
    key = desk.run("keys", "create", "agent:two", *here).lines[0]
    async with client(desk, config, COMITY_KEY=key) as session:
        assert [tool.name for tool in (await session.list_tools()).tools] == ["example__echo"]
        assert await text(session, *ECHO) == "hello"
    # The one that runs now takes nobody without a key.
    greeting = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'
    ran = await asyncio.to_thread(desk.run, "serve", "--stdio", str(config), said=greeting)
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
