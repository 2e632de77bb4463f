"""A real gateway that posts events, in a process that a test kills; and a client that calls it."""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.events.webhook_receiver import SECRET_TEXT
from tests.interop.processes import Program, answers

COMITY = str(Path(sys.executable).with_name("comity"))
HASTE = """
[webhooks]
allow_hosts = ["127.0.0.1"]
retry_delay = "20ms"
max_retry_delay = "200ms"
timeout = "1s"
"""
EXAMPLE = f"""
[[servers]]
id = "ex"
command = "{sys.executable}"
args = ["-m", "comity.cli", "dev", "example-server"]

[servers.tools.echo]
risk = "safe"
"""
"""Of a safe call nothing is kept before its answer, unless somebody was promised to hear of it."""


class House:
    """One configuration, served again and again."""

    def __init__(self, folder: Path, store: str, more: str = "") -> None:
        self.config = folder / "comity.toml"
        pepper = folder / "pepper"
        pepper.write_text(secrets.token_hex(32))
        pepper.chmod(0o600)
        written = f'[identity]\npepper_file = "{pepper}"\n[store]\nurl = "{store}"\n'
        self.config.write_text(written + HASTE + more + EXAMPLE)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[tuple[Program, str]]:
        """The waits are for threads: whoever receives posts lives in this loop."""
        program = Program([COMITY, "serve", "-c", str(self.config), "--port", "0"])
        try:
            found = await asyncio.to_thread(program.wait_for_line, r"listening on (http://\S+)")
            origin = found.group(1)
            await asyncio.to_thread(program.wait_until, lambda: answers(f"{origin}/ready"))
            yield program, origin
        finally:
            await asyncio.to_thread(program.stop)
            print(program.said, file=sys.stderr)


def kill(program: Program) -> None:
    """As a machine dies: nothing is said and nothing is tidied up."""
    os.kill(program.pid, signal.SIGKILL)


class Client:
    """Calls at /mcp, each under a trace of its own, and knows which were answered."""

    def __init__(self, http: aiohttp.ClientSession, origin: str) -> None:
        self._http = http
        self._url = f"{origin}/mcp"
        self._session = ""
        self._ids = 0

    async def greet(self) -> None:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _ABOUT}
        await self.ask("initialize", hello)

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """The whole answer; raises where there is none."""
        self._ids += 1
        body = {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params or {}}
        headers = {"accept": "application/json, text/event-stream"}
        if self._session:
            headers["mcp-session-id"] = self._session
        async with self._http.post(self._url, json=body, headers=headers) as reply:
            self._session = reply.headers.get("mcp-session-id", self._session)
            return await reply.json()

    async def call(self) -> str | None:
        """The trace of a call that was answered; None where its gateway died first."""
        trace = secrets.token_hex(16)
        meta = {"traceparent": f"00-{trace}-{trace[:16]}-01"}
        params = {"name": "ex__echo", "arguments": {"message": trace}, "_meta": meta}
        try:
            answer = await self.ask("tools/call", params)
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            return None
        return trace if trace in str(answer.get("result")) else None

    async def subscribe(self, url: str, name: str = "tool.*", **more: Any) -> dict[str, Any]:
        place = {"mode": "webhook", "url": url, "secret": SECRET_TEXT}
        return await self.ask("events/subscribe", {"name": name, "delivery": place, **more})


_ABOUT = {"name": "a test", "version": "1"}


async def calling(client: Client, until: asyncio.Event, answered: list[str]) -> None:
    """Call on and on, until told to stop or nobody answers."""
    while not until.is_set():
        trace = await client.call()
        if trace is None:
            return
        answered.append(trace)
