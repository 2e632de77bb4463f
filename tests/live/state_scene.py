"""A real gateway with a server that has state, clients of both eras, and an operator."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from mcp import Client
from mcp_types import CallToolResult, TextContent
from mcp_types.version import LATEST_MODERN_VERSION

from tests.cluster.nodes import modern
from tests.interop.processes import ROOT, Program, answers, operator_headers
from tests.pace import here

COMITY: Final = str(Path(sys.executable).with_name("comity"))
PATIENCE: Final = 60.0
ERAS: Final = (LATEST_MODERN_VERSION, "legacy")
SERVERS: Final = f"""
[[servers]]
id = "desk"
command = "{sys.executable}"
args = ["-m", "tests.live.state_server"]
env = {{ PYTHONPATH = "{ROOT}" }}
[servers.live]
enabled = ["notes.*", "git.commit", "fixed"]
[servers.tools."*"]
risk = "safe"

[[servers]]
id = "shut"
command = "{sys.executable}"
args = ["-m", "tests.live.state_server"]
env = {{ PYTHONPATH = "{ROOT}" }}

[[servers]]
id = "plain"
command = "{COMITY}"
args = ["example"]
"""

type Answer = dict[str, Any]


def text_of(result: CallToolResult) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


def given(result: Answer) -> Answer:
    """What the server says that it was given beside the arguments."""
    return json.loads(result["content"][0]["text"])


@dataclass
class Desk:
    """Somebody who calls tools as any client, and looks after state as an operator."""

    http: aiohttp.ClientSession
    origin: str
    program: Program

    async def call(self, tool: str, **arguments: Any) -> Answer:
        """What the server was given beside the arguments."""
        return given(await self.raw(tool, **arguments))

    async def raw(self, tool: str, of: str = "desk", **arguments: Any) -> Answer:
        """The result as it comes over the wire."""
        return await self.sent({"name": f"{of}__{tool}", "arguments": arguments})

    async def sent(self, params: Answer) -> Answer:
        said = await modern(self.http, self.origin, "tools/call", params)
        assert "result" in said.body, said
        return said.body["result"]

    def client(self, era: str) -> Client:
        return Client(f"{self.origin}/mcp", mode=era, read_timeout_seconds=here(PATIENCE))

    async def say(self, name: str, **state: Any) -> Answer:
        return await self.call("say", state={"checkpoint": name, **state}, knows=[name])

    async def current(self) -> Answer:
        """What a call of the notes would carry now."""
        return (await self.call("look"))["beside"]

    async def get(self, *place: str, status: int = 200) -> Answer:
        async with self.http.get("/".join((f"{self.origin}/api/state", *place))) as reply:
            assert reply.status == status, await reply.text()
            return await reply.json()

    async def post(self, *place: str, status: int = 200, **body: Any) -> Answer:
        url = "/".join((f"{self.origin}/api/state", *place))
        async with self.http.post(url, json=body) as reply:
            assert reply.status == status, await reply.text()
            return await reply.json()

    async def rollback(self, name: str, feature: str = "notes.edit", **more: Any) -> Answer:
        return await self.post("desk", feature, "rollback", checkpoint=name, **more)

    async def journal(self, type: str, least: int = 1) -> list[Answer]:
        """The entries of a kind, the newest last; what safe calls did is written a little later."""
        async with asyncio.timeout(here(PATIENCE)):
            while True:
                url = f"{self.origin}/api/journal?type=dev.comity.{type}"
                async with self.http.get(url) as reply:
                    assert reply.status == 200, await reply.text()
                    entries = (await reply.json())["entries"]
                found = [each for each in entries if each["type"] == f"dev.comity.{type}"]
                if len(found) >= least:
                    return found[::-1]
                await asyncio.sleep(0.05)

    async def cli(self, *words: str) -> tuple[int, str]:
        """A command of an operator's."""
        command = (COMITY, *words, "--url", self.origin)
        pipe = asyncio.subprocess.PIPE
        ran = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        out, error = await asyncio.wait_for(ran.communicate(), here(PATIENCE))
        return ran.returncode or 0, out.decode() + error.decode()


class House:
    """One configuration, served again and again."""

    def __init__(self, folder: Path, more: str = "", store: str = "") -> None:
        self.config = folder / "comity.toml"
        url = store or f"sqlite:///{folder / 'store.db'}"
        self.config.write_text(f'[store]\nurl = "{url}"\n{more}{SERVERS}', "utf-8")

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Desk]:
        environment = {"COMITY_PEPPER": "pepper-" * 8}
        program = Program([COMITY, "serve", str(self.config), "--port", "0"], environment)
        try:
            found = await asyncio.to_thread(program.wait_for_line, r"listening on (http://\S+)")
            origin = found.group(1)
            await asyncio.to_thread(program.wait_until, lambda: answers(f"{origin}/ready?strict"))
            timeout = aiohttp.ClientTimeout(here(120))
            shown = operator_headers(origin)
            async with aiohttp.ClientSession(timeout=timeout, headers=shown) as http:
                yield Desk(http, origin, program)
        finally:
            await asyncio.to_thread(program.stop)
            print(program.said, file=sys.stderr)
