"""Clients that hear a tool before it ends: of the official SDKs, as processes, and by hand."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiohttp

from tests.interop.hand_client import Frame, HttpClient, initialize
from tests.interop.peers import ROOT, javascript, node, python_sdk_1
from tests.interop.streaming_signals import SECONDS

MGP: Frame = {"mgp": {"version": "0.3.0", "extensions": ["streaming"]}}
INTEROP = ROOT / "tests" / "interop"
CHUNK = "notifications/mgp.stream.chunk"

PEERS = {
    "Python SDK 2": ("python", "legacy"),
    "Python SDK 2, 2026-07-28": ("python", "2026-07-28"),
    "Python SDK 1": ("python", "sdk1"),
    "TypeScript SDK 1": ("typescript", "v1"),
    "TypeScript SDK 2": ("typescript", "v2"),
    "TypeScript SDK 2, 2026-07-28": ("typescript", "v2-modern"),
    "MGP by hand": ("mgp", ""),
}


class Client(Protocol):
    """What a test needs of a client, whoever made it."""

    partial: Any
    """What a cancellation brought back, where the client has such a thing."""

    async def begin(self, key: str, tool: str, arguments: Frame) -> None: ...
    async def cancel(self, key: str) -> None: ...
    async def texts(self, key: str, many: int) -> list[str]:
        """The first so many pieces of a call, as soon as they are there."""
        ...

    async def result(self, key: str) -> Any:
        """The texts of the answer, or why there is none."""
        ...

    def heard(self, key: str) -> list[str]: ...


class _News:
    """What has come of each call so far."""

    def __init__(self) -> None:
        self.partial: Any = None
        self._texts: dict[str, list[str]] = {}
        self._results: dict[str, Any] = {}
        self._changed = asyncio.Condition()

    async def note(self, key: str, text: str | None = None, result: Any = None) -> None:
        async with self._changed:
            if text is not None:
                self._texts.setdefault(key, []).append(text)
            if result is not None:
                self._results[key] = result
            self._changed.notify_all()

    async def texts(self, key: str, many: int) -> list[str]:
        await self._until(lambda: len(self.heard(key)) >= many)
        return self.heard(key)[:many]

    async def result(self, key: str) -> Any:
        await self._until(lambda: key in self._results)
        return self._results[key]

    def heard(self, key: str) -> list[str]:
        return self._texts.get(key, [])

    async def _until(self, is_so: Any) -> None:
        async with asyncio.timeout(SECONDS), self._changed:
            await self._changed.wait_for(is_so)


class Process(_News):
    """A client of an official SDK, in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__()
        self._process = process

    async def begin(self, key: str, tool: str, arguments: Frame) -> None:
        self._order({"key": key, "name": tool, "arguments": arguments})

    async def cancel(self, key: str) -> None:
        self._order({"key": key, "cancel": True})

    def _order(self, order: Frame) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def read(self, ready: asyncio.Event) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            news = json.loads(line)
            ready.set()
            await self.note(
                news["key"], news.get("message"), news.get("result", news.get("failed"))
            )


class ByHand(_News):
    """A client of MGP with no SDK: it asks for pieces, and cancels by the id of its request."""

    def __init__(self, http: HttpClient) -> None:
        super().__init__()
        self.answers: dict[str, Frame] = {}
        self._http = http
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, key: str, tool: str, arguments: Frame) -> None:
        self._tasks.append(asyncio.create_task(self._call(key, tool, arguments)))

    async def _call(self, key: str, tool: str, arguments: Frame) -> None:
        places: list[int] = []

        async def hear(frame: Frame) -> None:
            assert frame["method"] == CHUNK, frame
            assert frame["params"]["request_id"] == key
            places.append(frame["params"]["index"])
            await self.note(key, frame["params"]["content"]["text"])

        params = {"name": tool, "arguments": arguments, "_mgp": {"stream": True}}
        exchange = await self._http.request("tools/call", params, named=key, meanwhile=hear)
        assert places == list(range(len(places)))
        self.answers[key] = exchange.result
        await self.note(key, result=[block["text"] for block in exchange.result["content"]])

    async def cancel(self, key: str) -> None:
        params = {"request_id": key, "reason": "no longer needed"}
        self.partial = (await self._http.request("mgp/stream/cancel", params)).result


@asynccontextmanager
async def client(kind: str, mode: str, url: str) -> AsyncGenerator[Client]:
    if kind == "mgp":
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            made = HttpClient(http, url)
            await initialize(made, MGP)
            yield ByHand(made)
        return
    async with _process(_command(kind, mode, url)) as process:
        yield process


def _command(kind: str, mode: str, url: str) -> list[str]:
    if kind == "typescript":
        return [node(), str(INTEROP / "js" / "streaming.mjs"), str(javascript()), mode, url]
    python = python_sdk_1() if mode == "sdk1" else sys.executable
    return [python, str(INTEROP / "streaming_peer.py"), url, mode]


@asynccontextmanager
async def _process(command: list[str]) -> AsyncGenerator[Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    made, ready = Process(process), asyncio.Event()
    reading = asyncio.create_task(made.read(ready))
    try:
        async with asyncio.timeout(SECONDS):
            await ready.wait()
        yield made
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading
