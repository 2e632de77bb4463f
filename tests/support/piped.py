"""`comity serve --stdio` as a desktop client runs it, and the pipes to talk to it."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.commands import ARGS, ROOT

type Frame = dict[str, Any]

SECONDS = 120.0
"""The first answer waits for a gateway to be started."""

COMITY = str(Path(sys.executable).with_name("comity"))
STDIO_ENTRY: Frame = {"command": sys.executable, "args": list(ARGS), "cwd": str(ROOT)}


class Piped:
    """One run of the command; lines go in, and every line that comes out is kept."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.stdin, self.stdout = process.stdin, process.stdout
        self.seen: list[Frame] = []

    def say(self, frame: Frame | bytes) -> None:
        line = (
            frame if isinstance(frame, bytes) else json.dumps({"jsonrpc": "2.0", **frame}).encode()
        )
        self.stdin.write(line + b"\n")

    async def next(self) -> Frame:
        async with asyncio.timeout(SECONDS):
            line = await self.stdout.readline()
        assert line, "the pipe was closed"
        self.seen.append(json.loads(line))
        return self.seen[-1]

    async def next_answer(self) -> Frame:
        """The next answer; a server that has just come may have its lists told of before it."""
        while "method" in (found := await self.next()):
            pass
        return found

    async def answer(self, named: object) -> Frame:
        """The answer to that request; what comes before it is only kept."""
        while (found := await self.next()).get("id") != named or "method" in found:
            pass
        return found

    async def ask(self, named: object, method: str, params: Frame | None = None) -> Frame:
        self.say({"id": named, "method": method, **({} if params is None else {"params": params})})
        return await self.answer(named)

    async def greet(self) -> Frame:
        who = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "p"}}
        answer = await self.ask("hello", "initialize", who)
        self.say({"method": "notifications/initialized"})
        return answer["result"]

    async def call(self, named: object, tool: str, **arguments: object) -> str:
        answer = await self.ask(named, "tools/call", {"name": tool, "arguments": arguments})
        return answer["result"]["content"][0]["text"]

    async def end(self) -> int:
        """Close its input, as a client does, and wait for its end."""
        self.stdin.close()
        async with asyncio.timeout(SECONDS):
            return await self.process.wait()


@asynccontextmanager
async def piped(
    folder: Path, servers: Mapping[str, Frame], stderr: int = asyncio.subprocess.DEVNULL
) -> AsyncGenerator[Piped]:
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": dict(servers)}))
    process = await asyncio.create_subprocess_exec(
        COMITY,
        "serve",
        "-c",
        str(config),
        "--stdio",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        limit=2**26,
        cwd=ROOT,
    )
    running = Piped(process)
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        running.stdin.close()
        with suppress(BrokenPipeError, ConnectionResetError):
            await running.stdin.wait_closed()
