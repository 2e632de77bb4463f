"""A thousand tools in a small context, for a real client of each SDK: found, called, counted.

The ledger is held against tiktoken's own count of definitions that the gateway did not write.
"""

import asyncio
import json
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiktoken

from tests.conformance.toolshed import META_TOOLS
from tests.interop.conftest import DIRECT
from tests.interop.hand_client import Dial, initialize, over_http, over_stdio
from tests.interop.peers import ROOT, javascript, node, python_sdk_1
from tests.interop.processes import answers, running
from tests.scale.gateway import READY_SECONDS, many_servers
from tests.scale.many_servers import definition
from tests.support.o200k import encoding_folder

pytestmark = [
    pytest.mark.skipif(DIRECT, reason="no server searches for tools by itself"),
    pytest.mark.timeout(600),
]

SERVERS, TOOLS = 10, 100
PINNED = [f"server-0__tool-{number}" for number in range(3)]
QUERY = "entry 42 in the records of server-7"
WANTED = "server-7__tool-42"
BUDGET = 8000
SECONDS = 120.0
JS = ROOT / "tests" / "interop" / "js" / "finding.mjs"


@dataclass(frozen=True)
class Scene:
    """The gateway, and its configuration for a client that starts one of its own."""

    origin: str
    config: Path
    env: dict[str, str]

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"


@contextmanager
def discovering(upstream: str, folder: Path) -> Generator[Scene]:
    pinned = json.dumps([f"server-0/tool-{number}" for number in range(3)])
    lines = ["[[discovery.pinned]]", 'principal = "*"', f"tools = {pinned}"]
    for number in range(SERVERS):
        url = f"{upstream}/server-{number}/mcp"
        lines += ["[[servers]]", f'id = "server-{number}"', 'transport = "http"', f'url = "{url}"']
    config = folder / "comity.toml"
    config.write_text("\n".join(lines))
    env = {"TIKTOKEN_CACHE_DIR": str(encoding_folder())}
    comity = str(Path(sys.executable).with_name("comity"))
    command = [comity, "serve", "-c", str(config), "--port", "0", "--discovery"]
    with running(command, env) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"), READY_SECONDS)
        for number in range(SERVERS):
            program.wait_for_line(f"server 'server-{number}' is ready", READY_SECONDS)
        yield Scene(origin, config, env)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with (
        many_servers(TOOLS) as upstream,
        discovering(upstream, tmp_path_factory.mktemp("finding")) as scene,
    ):
        yield scene


def count(text: str) -> int:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TIKTOKEN_CACHE_DIR", str(encoding_folder()))
        o200k = tiktoken.get_encoding("o200k_base")
    return len(o200k.encode(text, disallowed_special=()))


def written(tool: dict[str, Any]) -> str:
    return json.dumps(tool, separators=(",", ":"), ensure_ascii=False)


def cost(name: str) -> int:
    """What a server's tool costs, from what its server says of it."""
    server, _, own = name.partition("__")
    said = definition(server, int(own.removeprefix("tool-")))
    return count(written({**said, "name": name}))


CLIENTS = {
    "python-sdk-2 handshake": ("sdk2", "legacy"),
    "python-sdk-2 modern": ("sdk2", "2026-07-28"),
    "python-sdk-1": ("sdk1", ""),
    "typescript-sdk-1": ("js", "v1"),
    "typescript-sdk-2 handshake": ("js", "v2"),
    "typescript-sdk-2 modern": ("js", "v2-modern"),
}


def command(kind: str, url: str, mode: str) -> list[str]:
    if kind == "js":
        return [node(), str(JS), str(javascript()), url, mode, QUERY]
    python = python_sdk_1() if kind == "sdk1" else sys.executable
    return [python, "-m", f"tests.interop.finding.with_{kind}", url, mode, QUERY]


async def seen_by(words: list[str]) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *words, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()[-3000:]
    return json.loads(out)


async def own_tools(dial: Dial) -> dict[str, int]:
    """What each of the gateway's own tools costs, from what is on the wire."""
    async with dial() as client:
        await initialize(client, {})
        listed = (await client.request("tools/list", {})).result["tools"]
    assert [each["name"] for each in listed[:4]] == META_TOOLS
    return {each["name"]: count(written(each)) for each in listed[:4]}


@pytest.mark.requirement("MGP-16.2-omit", "MGP-16.2-metatool", "MGP-16.3-L2", "MGP-16.3-L3")
@pytest.mark.requirement("MGP-16.7-session", "MGP-16.8-budget")
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_real_client_lists_a_few_finds_calls_and_the_ledger_is_right_to_the_token(
    scene: Scene, client: str
) -> None:
    kind, mode = CLIENTS[client]
    seen = await seen_by(command(kind, scene.url, mode))
    own = sum((await own_tools(partial(over_http, scene.url))).values())
    assert seen["first"] == seen["last"] == [*META_TOOLS, *PINNED]
    assert seen["then"] == [*META_TOOLS, *PINNED, WANTED]
    assert seen["called"] == seen["directly"] == "said"
    assert WANTED in seen["read"]
    found = seen["found"]
    assert found["tools"][0]["name"] == WANTED
    assert found["tools"][0]["inputSchema"] == definition("server-7", 42)["inputSchema"]
    assert found["total_available"] == SERVERS * TOOLS
    assert found["context_tokens"] == sum(cost(each["name"]) for each in found["tools"])
    ledger = seen["ledger"]
    assert (ledger["pinned"], ledger["cached"]) == (PINNED, [WANTED])
    assert ledger["token_count"] == {"method": "o200k", "exact": True}
    assert ledger["tokens"] == {"own": own} | {name: cost(name) for name in (*PINNED, WANTED)}
    assert ledger["total_tokens"] == own + sum(map(cost, (*PINNED, WANTED)))
    assert seen["gone"]["total_tokens"] == ledger["total_tokens"] - cost(WANTED)
    assert ledger["total_tokens"] <= ledger["max_tokens"] == BUDGET


async def test_it_is_the_same_at_the_door_of_standard_input_and_output(scene: Scene) -> None:
    comity = str(Path(sys.executable).with_name("comity"))
    command = ["env", *(f"{name}={value}" for name, value in scene.env.items())]
    command += [comity, "serve", "-c", str(scene.config), "--stdio", "--discovery"]
    async with asyncio.timeout(SECONDS), over_stdio(command) as client:
        await initialize(client, {})

        async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            said = {"name": name, "arguments": arguments}
            return (await client.request("tools/call", said)).result

        while True:
            found = (await call("search_tools", {"query": QUERY}))["structuredContent"]
            if found["total_available"] == SERVERS * TOOLS:
                break
            await asyncio.sleep(0.1)
        assert found["tools"][0]["name"] == WANTED
        arguments = {"subject": "the weather in May"}
        await call("call_tool", {"name": WANTED, "arguments": arguments})
        listed = (await client.request("tools/list", {})).result["tools"]
        ledger = (await call("session_tools", {}))["structuredContent"]
    assert [each["name"] for each in listed] == [*META_TOOLS, *PINNED, WANTED]
    assert ledger["total_tokens"] == sum(count(written(each)) for each in listed)


async def test_the_context_is_a_hundredth_of_what_all_tools_would_take(scene: Scene) -> None:
    """Must-show 4: what a client holds, against what it would without discovery mode."""
    own = await own_tools(partial(over_http, scene.url))
    everything = sum(cost(f"server-0__tool-{number}") for number in range(TOOLS)) * SERVERS
    held = sum(own.values()) + sum(map(cost, PINNED))
    print(f"{held} tokens listed, {everything} for all {SERVERS * TOOLS} tools")
    assert held < everything / 50
