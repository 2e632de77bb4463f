"""Many principals at one gateway: their keys, their limits, and what each of them sends."""

import asyncio
import json
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from comity.policy.grants import Effect, Grant
from comity.storage.sqlite import SCHEME
from tests.interop.processes import answers, running
from tests.scale.gateway import Gateway
from tests.support.principals import add_principals
from tests.support.visitor import LATEST, MODERN

type Frame = dict[str, Any]
type Replied = tuple[int, dict[str, str], bytes]

REQUESTS, STREAMS, SESSIONS, PARKED = 4, 4, 8, 4
"""The limits of each principal at the gateway."""

SECONDS = 120.0
INFO: Frame = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
}


@dataclass(frozen=True)
class Governed:
    """A gateway in required mode before one server, and a key for each principal."""

    gateway: Gateway
    keys: dict[str, str]


@contextmanager
def governed(folder: Path, principals: Iterable[str]) -> Generator[Governed]:
    """`comity serve` with low limits, before a server whose tool `asks` asks its caller."""
    store, pepper = f"{SCHEME}{folder / 'principals.db'}", token_hex(32)
    names = list(principals)
    grants = (Grant(name, "tools/call", "up/*", Effect.ALLOW) for name in names)
    keys = asyncio.run(add_principals(store, pepper, names, *grants))
    config = folder / "principals.toml"
    server = (
        f'id = "up"\ncommand = "{sys.executable}"\nargs = ["-m", "tests.security.asking_server"]'
    )
    config.write_text(
        f'[identity]\nmode = "required"\n[store]\nurl = "{store}"\n[limits]\n'
        f"max_requests_per_principal = {REQUESTS}\nmax_streams_per_principal = {STREAMS}\n"
        f"max_sessions_per_principal = {SESSIONS}\nmax_pending_input_per_principal = {PARKED}\n"
        f'[[servers]]\n{server}\n[servers.policy]\nrisk = "safe"\n'
    )
    comity = str(Path(sys.executable).with_name("comity"))
    command = [comity, "serve", "-c", str(config), "--port", "0"]
    with running(command, {"COMITY_PEPPER": pepper}) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"), SECONDS)
        yield Governed(Gateway(origin, program.pid), keys)


class Sender:
    """One keep-alive connection that shows one credential."""

    def __init__(self, origin: str, key: str) -> None:
        self._host, _, self._port = origin.removeprefix("http://").partition(":")
        self._shown = f"host: {self._host}:{self._port}\r\nauthorization: Bearer {key}\r\n"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def call(self, tool: str, who: str) -> Replied:
        """A call of the modern era at the door of the one server."""
        params: Frame = {"name": tool, "arguments": {"who": who}, "_meta": INFO}
        head = f"mcp-protocol-version: {MODERN}\r\nmcp-method: tools/call\r\nmcp-name: {tool}\r\n"
        return await self.post("/servers/up/mcp", "tools/call", params, head)

    async def initialize(self) -> Replied:
        about = {"name": "principal", "version": "1"}
        params: Frame = {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": about}
        return await self.post("/mcp", "initialize", params)

    async def post(self, path: str, method: str, params: Frame, head: str = "") -> Replied:
        frame = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        body = json.dumps(frame).encode()
        head += "content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
        return await self.send("POST", path, head, body)

    async def send(self, method: str, path: str, head: str = "", body: bytes = b"") -> Replied:
        """One request, and all of its response unless that is a stream."""
        if self._reader is None or self._writer is None:
            opened = await asyncio.open_connection(self._host, int(self._port))
            self._reader, self._writer = opened
        length = f"content-length: {len(body)}\r\n" if body else ""
        lines = f"{method} {path} HTTP/1.1\r\n{self._shown}{head}{length}\r\n"
        self._writer.write(lines.encode() + body)
        told = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in told[1:] if line)
        size = int(headers.get("content-length", "0"))
        return int(told[0].split()[1]), headers, await self._reader.readexactly(size)

    async def wait_for_end(self) -> None:
        """Until a stream that was begun has ended."""
        while self._reader is not None and await self._reader.read(65536):
            pass

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None
