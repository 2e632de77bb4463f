"""Gateways of one cluster, the notes of a server that one of them runs, and who speaks to them."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import aiohttp

from comity.mcp.framing import SseParser
from comity.mcp.refusals import REFUSAL_KEY
from tests.cli.program import EXAMPLE
from tests.interop.peers import ROOT
from tests.interop.processes import Program, answers, running

SECONDS: Final = 120.0
PEPPER: Final = "pepper-" * 8
MODERN: Final = "2026-07-28"
HANDSHAKE: Final = "2025-11-25"
BOTH: Final = {"accept": "application/json, text/event-stream"}
PAUSE: Final = 0.05


@dataclass(frozen=True)
class Setting:
    """What all nodes of a test share."""

    folder: Path
    nats: Sequence[str]
    store: str
    # More tables, and more of the server that runs once.
    tables: str = field(default="", kw_only=True)
    more: str = field(default="", kw_only=True)

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    def written(self, name: str, urls: Sequence[str] | None = None) -> Path:
        path = self.folder / f"{name}.toml"
        path.write_text(self.text(name, ",".join(urls or self.nats)), encoding="utf-8")
        return path

    def text(self, name: str, nats: str) -> str:
        """The configuration of one node, which reaches NATS there."""
        example = ", ".join(f'"{each}"' for each in EXAMPLE["args"])
        return f"""
[store]
url = "{self.store}"
[cluster]
url = "{nats}"
node = "{name}"
heartbeat_interval = "300ms"
dead_after = "2s"
lease_ttl = "8s"
{self.tables}
[[servers]]
id = "local"
command = "{EXAMPLE["command"]}"
args = [{example}]
[[servers]]
id = "fenced"
command = "{sys.executable}"
args = ["-m", "tests.cluster.fenced_server", "{self.notes}"]
env = {{ PYTHONPATH = "{ROOT}" }}
replicas = "single"
{self.more}
"""


@dataclass
class Node:
    name: str
    program: Program
    origin: str

    def kill(self) -> None:
        """As when a machine fails: nobody has time to say goodbye."""
        os.killpg(self.program.pid, signal.SIGKILL)


@contextlib.contextmanager
def some_nodes(
    setting: Setting, *names: str, urls: Sequence[str] | None = None
) -> Generator[list[Node]]:
    """Started at once, and each ready."""
    program = str(Path(sys.executable).with_name("comity"))
    environment = {"COMITY_PEPPER": PEPPER, "LOG_LEVEL": "INFO"}
    with contextlib.ExitStack() as started:
        programs = [
            started.enter_context(
                running(
                    [program, "serve", "-c", str(setting.written(name, urls)), "--port", "0"],
                    environment,
                )
            )
            for name in names
        ]
        nodes: list[Node] = []
        for name, each in zip(names, programs, strict=True):
            origin = each.wait_for_line(r"listening on (http://\S+)").group(1)
            each.wait_until(partial(answers, f"{origin}/ready?strict"))
            nodes.append(Node(name, each, origin))
        yield nodes


@dataclass(frozen=True)
class Said:
    """An answer: its status, its headers, and the message, or the last one of a stream."""

    status: int
    headers: dict[str, str]
    messages: list[dict[str, Any]]

    @property
    def body(self) -> dict[str, Any]:
        return self.messages[-1] if self.messages else {}

    @property
    def text(self) -> str:
        """What a tool says; empty where it did not."""
        result = self.body.get("result", {})
        is_well = "content" in result and not result.get("isError")
        return result["content"][0]["text"] if is_well else ""

    @property
    def refusal(self) -> dict[str, Any]:
        meta = self.body.get("result", {}).get("_meta", {})
        return meta.get(REFUSAL_KEY) or self.body.get("error", {}).get("data", {})


async def modern(
    http: aiohttp.ClientSession, origin: str, method: str, params: dict[str, Any]
) -> Said:
    """A request that stands alone."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "nodes", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
        **params.get("_meta", {}),
    }
    headers = {**BOTH, "mcp-protocol-version": MODERN, "mcp-method": method}
    if "name" in params:
        headers["mcp-name"] = params["name"]
    frame = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return await posted(http, origin, frame, headers)


async def called(http: aiohttp.ClientSession, origin: str, tool: str, n: str) -> str:
    """What a tool says, as soon as it does: on a starved machine its server may just move."""

    async def text() -> str:
        return (await call(http, origin, tool, n)).text

    return str(await until(text))


async def call(http: aiohttp.ClientSession, origin: str, tool: str, n: str, **more: Any) -> Said:
    params = {"name": tool, "arguments": {"n": n}, **more}
    return await modern(http, origin, "tools/call", params)


async def posted(
    http: aiohttp.ClientSession, origin: str, frame: dict[str, Any], headers: dict[str, str]
) -> Said:
    async with (
        asyncio.timeout(SECONDS),
        http.post(f"{origin}/mcp", json=frame, headers=headers) as reply,
    ):
        told = {name.lower(): value for name, value in reply.headers.items()}
        if reply.content_type == "text/event-stream":
            events = SseParser().feed(await reply.read())
            return Said(reply.status, told, [json.loads(each.data) for each in events if each.data])
        data = await reply.read()
        return Said(reply.status, told, [json.loads(data)] if data else [])


@dataclass
class Session:
    """A client of the handshake era, which may say each thing at another node."""

    http: aiohttp.ClientSession
    id: str = ""
    _numbers: int = 0

    @property
    def headers(self) -> dict[str, str]:
        named = {"mcp-session-id": self.id} if self.id else {}
        return {**BOTH, **named, "mcp-protocol-version": HANDSHAKE}

    async def ask(self, origin: str, method: str, **params: Any) -> Said:
        self._numbers += 1
        frame = {"jsonrpc": "2.0", "id": self._numbers, "method": method, "params": params}
        return await posted(self.http, origin, frame, self.headers)

    async def begin(self, origin: str) -> None:
        about = {"name": "nodes", "version": "1"}
        said = await self.ask(
            origin, "initialize", protocolVersion=HANDSHAKE, capabilities={}, clientInfo=about
        )
        self.id = said.headers["mcp-session-id"]
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await posted(self.http, origin, told, self.headers)).status == 202


@dataclass
class Notes:
    """What the server that must run once wrote down of itself."""

    path: Path

    def read(self) -> list[dict[str, Any]]:
        lines = self.path.read_text("utf-8").splitlines() if self.path.exists() else []
        return [json.loads(line) for line in lines]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.read() if each["kind"] == kind]

    @property
    def runs_at(self) -> str:
        """The name of the node that ran it last."""
        return str(self.of("start")[-1]["node"]).rpartition("-")[0]

    def show_one_owner_at_every_moment(self) -> None:
        """No two of them lived at once, each had a greater fence, and each call the right one."""
        lives: dict[int, list[float]] = {}
        for each in self.read():
            lives.setdefault(each["fence"], []).append(each["at"])
        for (earlier, ended), (later, began) in pairwise(
            (fence, at) for fence, at in sorted(lives.items(), key=lambda life: min(life[1]))
        ):
            assert earlier < later
            assert max(ended) < min(began), f"{earlier} lived on beside {later}"
        assert all(each["told"] == each["fence"] for each in self.of("call"))


async def until(is_so: Any, seconds: float = SECONDS) -> Any:
    """What it gives as soon as that counts as true."""
    async with asyncio.timeout(seconds):
        while True:
            found = is_so()
            found = await found if asyncio.iscoroutine(found) else found
            if found:
                return found
            await asyncio.sleep(PAUSE)


@dataclass
class Cable:
    """A way to a port that can be cut: connections end, and no new one comes to be."""

    port: int = 0
    is_cut: bool = False
    _ends: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])

    def cut(self) -> None:
        self.is_cut = True
        for end in list(self._ends):
            end.transport.abort()

    def mend(self) -> None:
        self.is_cut = False

    async def carry(
        self, to: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        onward = await asyncio.open_connection("127.0.0.1", to)
        self._ends |= {writer, onward[1]}
        try:
            await asyncio.gather(_pour(reader, onward[1]), _pour(onward[0], writer))
        finally:
            self._ends -= {writer, onward[1]}


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def a_cable(to: int) -> AsyncGenerator[Cable]:
    cable = Cable()
    server = await asyncio.start_server(
        lambda reader, writer: cable.carry(to, reader, writer), "127.0.0.1", 0
    )
    cable.port = server.sockets[0].getsockname()[1]
    try:
        yield cable
    finally:
        server.close()
        cable.cut()
