"""A gateway in front of a dangerous server, whose calls wait for a person; and that person.

It can be killed without a word and started again, on the same store and the same port.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import aiohttp

from comity.app.records import open_store
from comity.approvals.model import ANSWER_OWN_VERB, ANSWER_VERB
from comity.audit.events import AuditEvent, event_of
from comity.policy.grants import Effect, Grant
from comity.storage.sqlite import SCHEME
from tests.interop.peers import ROOT
from tests.interop.processes import Program, answers, free_port
from tests.support.principals import add_principals

AGENT = "agent:matrix"
OWNER = "person:bea@example.org"
AUTHORITY = "person:ana@example.org"
SERVER = "disks"
SECONDS = 90.0
"""Nothing here is measured: what has not come after this time does not come."""

UNSURE = (403, 503)
"""What a gateway says that was starved for a moment, and does not know who may do what."""


@dataclass
class Gateway:
    """Comity in a process of its own."""

    folder: Path
    tools: list[str]
    asks: dict[str, str]
    port: int = field(default_factory=free_port)
    pepper: str = field(default_factory=lambda: token_hex(32))
    keys: dict[str, str] = field(default_factory=dict[str, str])
    program: Program | None = None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def store(self) -> str:
        return f"{SCHEME}{self.folder / 'comity.db'}"

    def start(self) -> None:
        comity = str(Path(sys.executable).with_name("comity"))
        config = self.folder / "comity.toml"
        config.write_text(self._settings())
        command = [comity, "serve", "-c", str(config), "--port", str(self.port)]
        self.program = Program(command, {"COMITY_PEPPER": self.pepper})

    async def ready(self) -> None:
        assert self.program is not None
        program = self.program
        await asyncio.to_thread(program.wait_until, lambda: answers(f"{self.origin}/ready"))

    def kill(self) -> None:
        """Without a word to anybody, as a machine ends that loses its power."""
        assert self.program is not None
        os.kill(self.program.pid, signal.SIGKILL)
        self.program.stop()

    def stop(self) -> None:
        if self.program is not None:
            self.program.stop()
            print(self.program.said, file=sys.stderr)

    def runs(self, tool: str) -> int:
        """How often a tool has run."""
        file = self.folder / f"{tool}.runs"
        return len(file.read_text().splitlines()) if file.exists() else 0

    async def settle(self) -> None:
        """Three parties and their keys: who calls, who answers, and who may do both."""
        target = f"{SERVER}/*"
        self.keys |= await add_principals(
            self.store,
            self.pepper,
            (AGENT, OWNER, AUTHORITY),
            Grant(AGENT, "tools/*", target, Effect.ALLOW),
            # Of no use to an agent, however it is granted.
            Grant(AGENT, ANSWER_VERB, "*", Effect.ALLOW),
            Grant(AGENT, ANSWER_OWN_VERB, "*", Effect.ALLOW),
            Grant(OWNER, "tools/*", target, Effect.ALLOW),
            Grant(OWNER, ANSWER_OWN_VERB, "*", Effect.ALLOW),
            Grant(AUTHORITY, ANSWER_VERB, "*", Effect.ALLOW),
        )

    async def journal(self) -> list[AuditEvent]:
        """All that was written down, once nobody writes any more."""
        records = open_store(self.store)
        await records.open()
        try:
            found: list[AuditEvent] = []
            for node in await records.audit_log.nodes():
                after = 0
                while lines := await records.audit_log.page(node, after, 500):
                    found += [event_of(line.body) for line in lines]
                    after = lines[-1].seq
            return found
        finally:
            await records.close()

    def _settings(self) -> str:
        arguments = ["-m", "tests.interop.approving.dangerous", str(self.folder), *self.tools]
        lines = [
            '[identity]\nmode = "required"',
            f'[store]\nurl = "{self.store}"',
            "[approvals]",
            *(f'{name} = "{value}"' for name, value in self.asks.items()),
            f'[[servers]]\nid = "{SERVER}"\ntransport = "stdio"',
            f"command = {json.dumps(sys.executable)}\nargs = {json.dumps(arguments)}",
            f"cwd = {json.dumps(str(ROOT))}",
            'policy = { risk = "dangerous" }',
        ]
        return "\n".join([*lines, ""])


@dataclass
class Person:
    """Somebody at the operators' API."""

    gateway: Gateway
    http: aiohttp.ClientSession
    party: str = AUTHORITY

    async def ask_about(self, tool: str, state: str = "") -> dict[str, Any]:
        """The newest ask about a tool, once there is one."""
        async with asyncio.timeout(SECONDS):
            while True:
                found = await self._get(f"/api/approvals?state={state}")
                about = [ask for ask in found["approvals"] if ask["tool"] == tool]
                if about:
                    return max(about, key=lambda ask: ask["id"])
                await asyncio.sleep(0.1)

    async def decide(self, ask: str, verdict: str) -> None:
        status, said = await self.answer(ask, verdict)
        assert status == 200, (status, said)

    async def answer(self, ask: str, verdict: str) -> tuple[int, str]:
        """What becomes of somebody's word, once the gateway knows who may say something."""
        url = f"{self.gateway.origin}/api/approvals/{ask}/answer"
        said = {"verdict": verdict, "reason": "for the matrix"}
        async with asyncio.timeout(SECONDS):
            while True:
                async with self.http.post(url, json=said, headers=self._headers()) as reply:
                    if reply.status not in UNSURE:
                        return reply.status, await reply.text()
                await asyncio.sleep(0.5)

    async def listed(self) -> set[str]:
        """The tools that somebody may call."""
        found = await self._get("/tools")
        return {tool["name"].removeprefix(f"{SERVER}__") for tool in found["tools"]}

    async def _get(self, path: str) -> dict[str, Any]:
        url = f"{self.gateway.origin}{path}"
        while True:
            async with self.http.get(url, headers=self._headers()) as reply:
                if reply.status == 200:
                    return await reply.json()
                assert reply.status in UNSURE, await reply.text()
            await asyncio.sleep(0.5)

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.gateway.keys[self.party]}"}


@asynccontextmanager
async def governing(gateway: Gateway) -> AsyncGenerator[Person]:
    """A gateway that was settled, for as long as it is needed; gives who answers there."""
    gateway.start()
    try:
        await gateway.ready()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as http:
            yield Person(gateway, http)
    finally:
        gateway.stop()
