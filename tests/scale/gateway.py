"""The gateway as a process of its own, what it costs, and clients on few connections."""

import asyncio
import itertools
import json
import re
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.interop.processes import answers, running

type Frame = dict[str, Any]

SECONDS = 120.0
READY_SECONDS = 240.0
"""A hundred servers at once, each with a thousand tools to look at, beside whatever else runs."""

HELLO: Frame = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}},
    "clientInfo": {"name": "one-of-many", "version": "1.0.0"},
}


@dataclass(frozen=True)
class Gateway:
    """One run of `comity serve`."""

    origin: str
    pid: int

    def memory(self) -> int:
        """Bytes that are in memory for this process."""
        return psutil.Process(self.pid).memory_info().rss

    def cpu(self) -> float:
        """Seconds that a processor has worked for it, exact where the system tells exactly."""
        exact = Path(f"/proc/{self.pid}/schedstat")
        if exact.exists():
            return int(exact.read_text().split()[0]) / 1e9
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system


@contextmanager
def many_servers(tools: int) -> Generator[str]:
    """The stub with all servers, as its origin."""
    command = [sys.executable, "-m", "tests.scale.many_servers", str(tools)]
    with running(command) as program:
        yield program.wait_for_line(r"listening on (http://[^,]+)").group(1)


@contextmanager
def gateway(upstream: str, servers: int, folder: Path) -> Generator[Gateway]:
    """`comity serve` before the first so many of the servers, once each is ready."""
    entries = {
        f"server-{number}": {"type": "http", "url": f"{upstream}/server-{number}/mcp"}
        for number in range(servers)
    }
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": entries}))
    comity = str(Path(sys.executable).with_name("comity"))
    serve = [comity, "serve", "-c", str(config), "--port", "0"]
    # Each server says one line when it is ready, and one when it has to be tried again.
    with running(serve, kept_lines=400 + 2 * servers) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"), READY_SECONDS)
        # On a busy machine one may have been tried in vain, and is tried again.
        ready = re.compile(r"server '([^']+)' is ready")
        program.wait_until(
            lambda: set(ready.findall(program.said)) >= entries.keys(), READY_SECONDS
        )
        yield Gateway(origin, program.pid)


class Caller:
    """One keep-alive connection to one door."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        door: str,
        host: str,
        key: str = "",
    ) -> None:
        self._reader, self._writer = reader, writer
        self._names = itertools.count(1)
        self._head = (
            f"POST {door} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            "accept: application/json, text/event-stream\r\n"
            + (f"authorization: Bearer {key}\r\n" if key else "")
        )
        self._session = ""

    async def post(self, frame: Frame) -> tuple[dict[str, str], bytes]:
        status, headers, reply = await self.exchange(frame)
        assert status in (200, 202), (status, reply)
        return headers, reply

    async def exchange(self, frame: Frame) -> tuple[int, dict[str, str], bytes]:
        body = json.dumps({"jsonrpc": "2.0", **frame}).encode()
        head = f"{self._head}{self._session}content-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines if line)
        reply = await self._reader.readexactly(int(headers["content-length"]))
        return int(first.split()[1]), headers, reply

    async def begin_session(self) -> None:
        """Shake hands; later calls are made in this session."""
        self._session = ""
        headers, _ = await self.post({"id": 0, "method": "initialize", "params": HELLO})
        self._session = f"mcp-session-id: {headers['mcp-session-id']}\r\n"
        await self.post({"method": "notifications/initialized"})

    async def call(self, tool: str) -> None:
        params = {"name": tool, "arguments": {"subject": "the weather in May", "limit": 3}}
        _, body = await self.post(
            {"id": next(self._names), "method": "tools/call", "params": params}
        )
        assert b'"said"' in body, body


@asynccontextmanager
async def calling(
    gateway: Gateway, door: str, connections: int = 1, *, key: str = ""
) -> AsyncGenerator[list[Caller]]:
    host, _, port = gateway.origin.removeprefix("http://").partition(":")
    streams = [await asyncio.open_connection(host, int(port)) for _ in range(connections)]
    try:
        yield [Caller(*stream, door, f"{host}:{port}", key) for stream in streams]
    finally:
        for _, writer in streams:
            writer.close()
            await writer.wait_closed()


async def open_sessions(gateway: Gateway, door: str, count: int) -> None:
    """Open so many more sessions at that door, and leave them idle."""
    async with calling(gateway, door, 8) as callers:

        async def open_some(caller: Caller, some: int) -> None:
            for _ in range(some):
                await caller.begin_session()

        share = count // len(callers)
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(open_some(caller, share) for caller in callers))


async def cost_of_calls(gateway: Gateway, caller: Caller, tool: str, calls: int) -> float:
    """Seconds of the gateway's processor time for one call."""
    before = gateway.cpu()
    for _ in range(calls):
        await caller.call(tool)
    return (gateway.cpu() - before) / calls
