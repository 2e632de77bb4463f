"""Plain clients of every official SDK at a live server: nothing is other than at a plain one."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack
from typing import Any, Final

import aiohttp
import pytest

from tests.interop.peer_plans import Answers, Step, with_python, with_typescript
from tests.interop.peers import python_sdk_1
from tests.interop.processes import http_server

pytestmark = pytest.mark.timeout(600)

PLAN: Final[dict[str, Step]] = {
    "tools": {"do": "tools"},
    "resources": {"do": "resources"},
    "prompts": {"do": "prompts"},
    "said": {"do": "call", "name": "say", "arguments": {"text": "hello"}},
    "wrong": {"do": "call", "name": "say", "arguments": {}},
    "unknown": {"do": "call", "name": "no_such_tool", "arguments": {}},
    "read": {"do": "read", "uri": "poem://pond"},
    "prompt": {"do": "prompt", "name": "greet", "arguments": {"name": "Ana"}},
}
SDK1: Final = """
import asyncio, json, sys
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

async def main(url):
    told = []
    async def hear(message):
        told.append(type(message).__name__)
    async with streamablehttp_client(url) as (read, write, _):
        async with ClientSession(read, write, message_handler=hear) as client:
            found = [await client.initialize(), await client.list_tools()]
            found.append(await client.call_tool("say", {"text": "hello"}))
            found.append(await client.list_resources())
            await asyncio.sleep(0.2)
    shown = [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in found]
    print(json.dumps([*shown, told]))

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def twins() -> Generator[tuple[str, str]]:
    with ExitStack() as stack:
        urls = [
            stack.enter_context(
                http_server(
                    lambda port, kind=kind: [
                        *(sys.executable, "-m", "tests.sdk.live_twin", kind, str(port))
                    ]
                )
            )
            for kind in ("live", "plain")
        ]
        yield f"{urls[0]}/mcp", f"{urls[1]}/mcp"


async def python_1(url: str) -> Answers:
    command = [python_sdk_1(), "-c", SDK1, url]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


CLIENTS: Final[dict[str, Callable[[str], Awaitable[Answers]]]] = {
    "python1": python_1,
    "python2": lambda url: with_python(url, "legacy", PLAN),
    "python2-modern": lambda url: with_python(url, "2026-07-28", PLAN),
    "typescript1": lambda url: with_typescript(url, "v1", PLAN),
    "typescript2": lambda url: with_typescript(url, "v2", PLAN),
    "typescript2-modern": lambda url: with_typescript(url, "v2-modern", PLAN),
}


@pytest.mark.requirement("MCPL-3.2-ignored", "MCPL-2-compat", "MCPL-2-orthogonal")
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_plain_client_finds_no_difference(client: str, twins: tuple[str, str]) -> None:
    live, plain = [await CLIENTS[client](url) for url in twins]
    assert live == plain
    assert "hello" in json.dumps(live)


@pytest.mark.requirement("MCPL-3.2-ignored", "MCPL-2-orthogonal")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_the_greeting_is_the_same_to_the_byte(version: str, twins: tuple[str, str]) -> None:
    params: dict[str, Any] = {"protocolVersion": version, "capabilities": {"roots": {}}}
    params["clientInfo"] = {"name": "plain", "version": "1"}
    frame = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    said: list[bytes] = []
    async with aiohttp.ClientSession() as http:
        for url in twins:
            headers = {"accept": "application/json, text/event-stream"}
            async with http.post(url, json=frame, headers=headers) as reply:
                said.append(
                    b"\n".join(line for line in (await reply.read()).splitlines() if b"{" in line)
                )
    assert said[0] == said[1]
    assert version.encode() in said[0]
