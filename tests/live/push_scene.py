"""A real gateway with a server that pushes, and somebody who has it push and sees what follows."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.cluster.nodes import modern
from tests.interop.processes import ROOT, Program, answers, operator_headers
from tests.pace import here

COMITY: Final = str(Path(sys.executable).with_name("comity"))
PATIENCE: Final = 60.0
SERVER: Final = f"""
[[servers]]
id = "ci"
command = "{sys.executable}"
args = ["-m", "tests.live.pushing_server"]
env = {{ PYTHONPATH = "{ROOT}" }}
[servers.live]
enabled = ["ci", "ci.*"]
[servers.tools."*"]
risk = "safe"
"""

type Answer = dict[str, Any]


@dataclass
class Pusher:
    """Has the server push, and asks the gateway what came of it."""

    http: aiohttp.ClientSession
    origin: str
    program: Program

    async def push(self, *ids: str, **more: Any) -> list[Answer]:
        """What the host answered to each."""
        return await self._tool("push", {"ids": list(ids), **more})

    async def ask(self, *frames: Answer) -> list[Answer]:
        return await self._tool("ask", {"frames": list(frames)})

    async def results(self, *ids: str, **more: Any) -> list[Answer]:
        return [each["result"] for each in await self.push(*ids, **more)]

    async def listed(self, **query: str) -> Answer:
        async with self.http.get(f"{self.origin}/api/pushes", params=query) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()

    async def settled(self, id: str, state: str = "done") -> Answer:
        """The push of this id, once it stands so."""
        found: Answer | None = None
        async with asyncio.timeout(here(PATIENCE)):
            while True:
                for each in (await self.listed())["pushes"]:
                    if each["event"] == id:
                        found = each
                if found is not None and found["state"] == state:
                    return found
                await asyncio.sleep(0.05)

    async def journal(self) -> list[Answer]:
        async with self.http.get(f"{self.origin}/api/journal") as reply:
            assert reply.status == 200, await reply.text()
            return (await reply.json())["entries"]

    async def noted(self, type: str) -> list[Answer]:
        """Entries of this type, once there are some: they are kept a moment after."""
        async with asyncio.timeout(here(PATIENCE)):
            while True:
                entries = await self.journal()
                found = [each for each in entries if each["type"] == f"dev.comity.{type}"]
                if found:
                    return found
                await asyncio.sleep(0.05)

    async def _tool(self, name: str, arguments: Answer) -> list[Answer]:
        params = {"name": f"ci__{name}", "arguments": arguments}
        said = await modern(self.http, self.origin, "tools/call", params)
        assert said.text, said
        return json.loads(said.text)


class House:
    """One configuration, served again and again."""

    def __init__(self, folder: Path, more: str = "", *, is_kept: bool = True) -> None:
        """`more` begins with what stands above all tables."""
        self.folder = folder
        self.config = folder / "comity.toml"
        store = f'[store]\nurl = "sqlite:///{folder / "store.db"}"\n' if is_kept else ""
        self.config.write_text(f"{more}{store}{SERVER}", "utf-8")

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Pusher]:
        environment = {"COMITY_PEPPER": "pepper-" * 8}
        program = Program([COMITY, "serve", str(self.config), "--port", "0"], environment)
        try:
            found = await asyncio.to_thread(program.wait_for_line, r"listening on (http://\S+)")
            origin = found.group(1)
            await asyncio.to_thread(program.wait_until, lambda: answers(f"{origin}/ready?strict"))
            timeout = aiohttp.ClientTimeout(here(120))
            shown = operator_headers(origin)
            async with aiohttp.ClientSession(timeout=timeout, headers=shown) as http:
                yield Pusher(http, origin, program)
        finally:
            await asyncio.to_thread(program.stop)
            print(program.said, file=sys.stderr)
