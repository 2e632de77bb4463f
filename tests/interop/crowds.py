"""Many light servers behind one gateway, and clients that call them all at once."""

import asyncio
import itertools
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil

from comity.mcp import protocol
from comity.mcp.refusals import REFUSAL_KEY
from tests.interop.hand_client import frames_of
from tests.interop.peers import SERVERS
from tests.interop.processes import Program, running

type Frame = dict[str, Any]
type Entry = dict[str, Any]

VERSION = "2025-11-25"
NOTHING: Mapping[str, str] = {}
ENVELOPE: Frame = {
    protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
    protocol.CLIENT_CAPABILITIES: {},
    protocol.CLIENT_INFO: {"name": "one-of-many", "version": "1"},
}
SECONDS = 120.0
LIGHT = str(SERVERS / "light.py")
MEASURED = (sys.executable, "-m", "tests.interop.measured")
# The interpreter itself: the one of an environment looks for its environment first.
PYTHON = str(Path(sys.executable).resolve())


def light(name: str, illness: str = "", **settings: object) -> Entry:
    """How a configuration names one of them."""
    return {"command": PYTHON, "args": ["-S", "-E", "-I", LIGHT, name, illness], **settings}


def deaf(name: str, illness: str, **settings: object) -> Entry:
    """One that cannot be asked to end by a signal."""
    command = f"trap '' TERM HUP INT; exec {PYTHON} -S -E -I {LIGHT} {name} {illness}"
    return {"command": "/bin/sh", "args": ["-c", command], **settings}


@dataclass(frozen=True)
class Held:
    """What a gateway holds of the machine."""

    processes: int
    files: int
    memory: int
    objects: int


@dataclass(frozen=True)
class Gateway:
    """One run of `comity serve`."""

    program: Program
    origin: str
    began: float
    _collections: list[None] = field(default_factory=list[None])

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.program.pid)

    async def held(self) -> "Held":
        """What it holds when it has let go of all that it can."""
        self._collections.append(None)
        os.kill(self.program.pid, signal.SIGUSR1)
        said = rf"collected {len(self._collections)}: (\d+) objects"
        found = await asyncio.to_thread(self.program.wait_for_line, said)
        process = self.process
        children = process.children(recursive=True)
        return Held(
            len(children), process.num_fds(), process.memory_info().rss, int(found.group(1))
        )

    def door(self, server: str = "") -> str:
        return f"{self.origin}/servers/{server}/mcp" if server else f"{self.origin}/mcp"


@contextmanager
def serving(folder: Path, servers: Mapping[str, Entry], **env: str) -> Generator[Gateway]:
    """The gateway before these servers, as soon as it listens and whether or not they are there."""
    config = folder / "mcp.json"
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps({"mcpServers": servers}))
    began = time.monotonic()
    with running([*MEASURED, "serve", "-c", str(config), "--port", "0"], env) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        yield Gateway(program, origin, began)


class Caller:
    """A handshake client without any limit on how many of its calls are under way."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url
        self.headers = {"accept": "application/json, text/event-stream"}
        self._names = itertools.count(1)

    async def post(self, frame: Frame, headers: Mapping[str, str] = NOTHING) -> Frame | None:
        """The answer to a request; None where nothing is answered."""
        sent = {**self.headers, **headers}
        async with self.http.post(self.url, json=frame, headers=sent) as reply:
            if session := reply.headers.get("mcp-session-id"):
                self.headers |= {"mcp-session-id": session, "mcp-protocol-version": VERSION}
            if reply.status == 202:
                return None
            if reply.status == 404 and self.headers.pop("mcp-session-id", None):
                # Idle for too long, it was forgotten; a client begins anew then. (MCP §3.2)
                await self.greet()
                return await self.post(frame, headers)
            async for said in frames_of(reply):
                if "method" not in said:
                    return said
        raise ConnectionError(f"the stream of {frame.get('method')} ended without an answer")

    async def request(self, method: str, params: Frame | None = None) -> Frame:
        frame, headers = self.dressed(method, params or {})
        answer = await self.post(frame, headers)
        assert answer is not None
        assert answer["id"] == frame["id"]
        return answer

    def dressed(self, method: str, params: Frame) -> tuple[Frame, dict[str, str]]:
        """A request as this client's era has it, and the headers that go with it."""
        name = next(self._names)
        return {"jsonrpc": "2.0", "id": name, "method": method, "params": params}, {}

    async def greet(self) -> None:
        who = {"name": "one-of-many", "version": "1"}
        hello = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": who}
        _accepted(await self.request("initialize", hello))
        await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def listen(self, told: asyncio.Queue[Frame], opened: asyncio.Event) -> None:
        """Hear what belongs to no call, until cancelled."""
        async with self.http.get(self.url, headers=self.headers) as reply:
            assert reply.status == 200, reply.status
            opened.set()
            async for said in frames_of(reply):
                told.put_nowait(said)

    async def tools(self) -> set[str]:
        found = set[str]()
        params: Frame = {}
        while True:
            answer = await self.request("tools/list", params)
            _accepted(answer)
            result = answer["result"]
            found |= {tool["name"] for tool in result["tools"]}
            if "nextCursor" not in result:
                return found
            params = {"cursor": result["nextCursor"]}

    async def call(self, tool: str, **arguments: object) -> Frame:
        """The whole answer, be it a result or a refusal."""
        return await self.request("tools/call", {"name": tool, "arguments": arguments})

    async def until_listed(self, tools: Iterable[str]) -> None:
        """Until all of these can be seen."""
        wanted = set(tools)
        async with asyncio.timeout(SECONDS):
            while not wanted <= await self.tools():
                await asyncio.sleep(0.02)

    async def until_said(self, tool: str, most: float = SECONDS) -> Frame:
        """The first answer of a server that is not ready at once, asked when it says to ask.

        `most` is for the impatient, who ask sooner.
        """
        async with asyncio.timeout(SECONDS):
            while (refused := refusal(answer := await self.call(tool, n=1))) is not None:
                assert refused["retryable"], refused
                await asyncio.sleep(min(refused["retry_after_ms"] / 1000, most))
        return answer


class ModernCaller(Caller):
    """A client of 2026-07-28, which shakes no hands."""

    def dressed(self, method: str, params: Frame) -> tuple[Frame, dict[str, str]]:
        frame, _ = super().dressed(method, {**params, "_meta": ENVELOPE})
        headers = {"mcp-protocol-version": protocol.LATEST_MODERN, "mcp-method": method}
        return frame, headers | ({"mcp-name": params["name"]} if "name" in params else {})

    async def greet(self) -> None:
        _accepted(await self.request("server/discover"))

    async def listen(self, told: asyncio.Queue[Frame], opened: asyncio.Event) -> None:
        wanted = {"notifications": {"toolsListChanged": True}}
        frame, headers = self.dressed("subscriptions/listen", wanted)
        sent = {**self.headers, **headers}
        async with self.http.post(self.url, json=frame, headers=sent) as reply:
            async for said in frames_of(reply):
                opened.set()
                told.put_nowait(said)


@asynccontextmanager
async def calling(url: str, era: type[Caller] = Caller) -> AsyncGenerator[Caller]:
    """A client that was received at that door."""
    unbounded = aiohttp.TCPConnector(limit=0, limit_per_host=0)
    patient = aiohttp.ClientTimeout(total=None, sock_connect=SECONDS)
    async with aiohttp.ClientSession(connector=unbounded, timeout=patient) as http:
        caller = era(http, url)
        async with asyncio.timeout(SECONDS):
            await caller.greet()
        yield caller


class Posting:
    """Calls on connections of their own, as many at once as anybody likes: each costs little."""

    def __init__(self) -> None:
        # Whoever opens thousands at once is too slow for each of them.
        self._turn = asyncio.Semaphore(64)

    async def call(self, caller: Caller, tool: str, **arguments: object) -> Frame:
        frame, headers = caller.dressed("tools/call", {"name": tool, "arguments": arguments})
        async with self._turn:
            reader, writer = await self._send(caller, frame, headers)
        try:
            return _answer(await reader.read(), frame["id"])
        finally:
            writer.close()

    async def _send(
        self, caller: Caller, frame: Frame, headers: Mapping[str, str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        url, body = urlsplit(caller.url), json.dumps(frame).encode()
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        lines = [f"POST {url.path} HTTP/1.1", f"host: {url.netloc}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in {**caller.headers, **headers}.items()]
        lines += ["content-type: application/json", f"content-length: {len(body)}", "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()
        return reader, writer


def _answer(reply: bytes, name: object) -> Frame:
    """The one answer in a whole response, be it JSON or a stream of events."""
    said = [line.removeprefix(b"data: ") for line in reply.splitlines()]
    frames = [json.loads(line) for line in said if line.startswith(b'{"jsonrpc"')]
    (answer,) = [frame for frame in frames if "method" not in frame]
    assert answer["id"] == name, answer
    return answer


@asynccontextmanager
async def hearing(caller: Caller) -> AsyncGenerator[asyncio.Queue[Frame]]:
    """What the client is told outside of its calls."""
    told, opened = asyncio.Queue[Frame](), asyncio.Event()
    listening = asyncio.ensure_future(caller.listen(told, opened))
    try:
        async with asyncio.timeout(SECONDS):
            await opened.wait()
        yield told
    finally:
        listening.cancel()
        await asyncio.wait([listening])


async def until_forgotten(told: asyncio.Queue[Frame]) -> None:
    """Until what happened before has been told: changes are gathered for a moment."""
    await asyncio.sleep(0.2)
    while not told.empty():
        told.get_nowait()


async def until_told(told: asyncio.Queue[Frame], method: str) -> None:
    async with asyncio.timeout(SECONDS):
        while (await told.get()).get("method") != method:
            pass


def _accepted(answer: Frame) -> None:
    if (refused := refusal(answer)) is not None:
        raise ConnectionRefusedError(refused["error_type"])


def refusal(answer: Frame) -> Frame | None:
    """What the gateway itself said of why it was not done; None where the server answered."""
    if "error" in answer:
        return answer["error"].get("data") or {"error_type": "unknown", **answer["error"]}
    return answer["result"].get("_meta", {}).get(REFUSAL_KEY)


def heard(answer: Frame) -> Frame:
    """What the server says it heard, with who it is."""
    assert refusal(answer) is None, answer
    return answer["result"]["structuredContent"]


def growth(values: Sequence[float]) -> float:
    """How much each next value is larger, as half of all pairs say (Theil and Sen)."""
    pairs = [
        (second - first) / (there - here)
        for here, first in enumerate(values)
        for there, second in enumerate(values)
        if there > here
    ]
    return statistics.median(pairs)


def processes_of(name: str) -> list[psutil.Process]:
    """Every process that is one of the light servers by that name, or was left behind by it."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["cmdline"]):
        words: list[str] = process.info["cmdline"] or []
        if (LIGHT in words and name in words) or words[:1] == [f"sleep-{name}"]:
            found.append(process)
    return found
