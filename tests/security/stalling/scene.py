"""A watched gateway where credentials are required, hostile servers behind it, and its visitors."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from comity.app.records import open_store
from comity.identity.keys import mint_key
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE
from comity.policy.grants import ANY_TARGET, Effect, Grant
from comity.storage.sqlite import SCHEME
from tests.interop.peers import ROOT
from tests.interop.processes import Program, answers, running
from tests.support.upstream import Exchange, scripted
from tests.support.visitor import BOTH, LATEST, MODERN, SECONDS, Reply, Visitor, visiting_at

GRANTED, UNGRANTED, OPERATOR = "agent:granted", "agent:ungranted", "person:operator"
SERVERS: Final = ("line", "body", "event", "calm")
"""Hostile by a line, by a body and by an event; the last one is what others use."""
SECRET: Final = b"a-secret-of-some-length"


@dataclass(frozen=True)
class Seen:
    """The largest hold of the loop, in seconds of the processor, and the largest work in one."""

    held: float
    built: int
    read: int


@dataclass
class Scene:
    """The gateway, whom it knows, and what its servers say next."""

    program: Program
    origin: str
    report: Path
    keys: dict[str, str]
    visitor: Visitor
    play: Path
    sessions: dict[tuple[str, str], dict[str, str]] = field(
        default_factory=dict[tuple[str, str], dict[str, str]]
    )
    reports: int = 0

    async def seen(self) -> Seen:
        """What the watch saw since it was last asked."""
        self.reports += 1
        os.kill(self.program.pid, signal.SIGUSR1)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                found: dict[str, Any] = json.loads(self.report.read_text())
            except FileNotFoundError:
                found = {"number": 0}
            if found.pop("number") == self.reports:
                return Seen(**found)
            await asyncio.sleep(0.005)
        raise TimeoutError(self.program.said)

    def shown(self, party: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[party]}"} if party else {}

    async def session(self, party: str, path: str) -> dict[str, str]:
        """The headers of an open session at a path."""
        known = self.sessions.get((party, path))
        if known is None:
            hello = {
                "protocolVersion": LATEST,
                "capabilities": {},
                "clientInfo": {"name": "v", "version": "1"},
            }
            said = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
            headers = {**self.shown(party), "content-type": "application/json", "accept": BOTH}
            body = json.dumps(said).encode()
            reply = await self.visitor.send("POST", headers.items(), body, path)
            assert reply.status == 200, await reply.body()
            known = {"mcp-session-id": reply.headers["mcp-session-id"]}
            known["mcp-protocol-version"] = LATEST
            self.sessions[party, path] = known
            reply.leave()
        return {**known, **self.shown(party), "content-type": "application/json", "accept": BOTH}

    def modern(self, tool: str) -> dict[str, str]:
        """The headers of a call without a session."""
        return {
            **self.shown(GRANTED),
            "content-type": "application/json",
            "accept": BOTH,
            "mcp-protocol-version": MODERN,
            "mcp-method": "tools/call",
            "mcp-name": tool,
        }

    async def post(self, body: bytes, headers: dict[str, str], path: str) -> int:
        """Say it, and read whatever is answered; its status, or 0 where the line was cut."""
        try:
            reply = await self.visitor.send("POST", headers.items(), body, path)
            await _read(reply)
        except (ConnectionError, asyncio.IncompleteReadError):
            return 0
        reply.leave()
        return reply.status

    async def is_served(self) -> bool:
        """Whether somebody else is served now."""
        headers = await self.session(GRANTED, "/mcp")
        said = {"jsonrpc": "2.0", "id": "other", "method": "tools/call"}
        said["params"] = {"name": "calm__plain", "arguments": {}}  # type: ignore[assignment]
        reply = await self.visitor.send("POST", headers.items(), json.dumps(said).encode(), "/mcp")
        (answer,) = await reply.frames()
        reply.leave()
        return "result" in answer


async def _read(reply: Reply) -> None:
    if reply.is_stream:
        await reply.events()
    else:
        await reply.body()


async def _settle(store: str, pepper: str) -> dict[str, str]:
    now, keys = datetime.now(UTC), dict[str, str]()
    records = open_store(store)
    await records.open()
    try:
        for party in (GRANTED, UNGRANTED, OPERATOR):
            keys[party], key = mint_key(pepper.encode(), ApiKey("", party, b"", created_at=now))
            await records.parties.put(Principal(party))
            await records.keys.put(key, now)
        rules = [
            Grant(OPERATOR, verb, ANY_TARGET, Effect.ALLOW) for verb in (ADMIN_READ, ADMIN_WRITE)
        ]
        uses = [Grant(GRANTED, "*", f"{server}/*", Effect.ALLOW) for server in SERVERS]
        talks = [Grant(GRANTED, "topic/send", "*/**", Effect.ALLOW)]
        await records.grants.put(*rules, *uses, *talks)
    finally:
        await records.close()
    return keys


def _settings(store: str, folder: Path, urls: dict[str, str]) -> str:
    secret = folder / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    rules = f"""
[identity]
mode = "required"
accept_auth_member = true
[store]
url = "{store}"
[topics]
message_rate = 0
chat_rate = 0
[[inbound_webhooks]]
name = "hook"
kind = "github"
secret_file = "{secret}"
to = "nothing"
"""
    program = f"""
policy = {{risk = "safe"}}
command = {json.dumps(sys.executable)}
args = ["-m", "tests.security.stalling.server"]
env = {{PYTHONPATH = {json.dumps(str(ROOT))}}}
"""
    run = "".join(f'[[servers]]\nid = "{name}"{program}' for name in ("line", "calm"))
    reached = "\n".join(
        f'[[servers]]\nid = "{name}"\ntransport = "http"\nurl = "{url}"\n'
        'policy = {risk = "safe"}\n'
        for name, url in urls.items()
    )
    return rules + run + reached


async def _plain_list(exchange: Exchange) -> None:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("play", "plain")]
    await exchange.result({"tools": tools})


@asynccontextmanager
async def staged(folder: Path) -> AsyncGenerator[Scene]:
    """The gateway, once all its servers were tried."""
    store, pepper = f"{SCHEME}{folder / 'stalls.db'}", token_hex(32)
    keys = await _settle(store, pepper)
    report, play = folder / "report.json", folder / "play"
    async with scripted() as body, scripted() as event:
        for server in (body, event):
            server.act("tools/list")(_plain_list)

        @body.act("play")
        async def say_body(exchange: Exchange) -> None:
            await exchange.respond(200, _played(play, exchange))

        @event.act("play")
        async def say_event(exchange: Exchange) -> None:
            await exchange.stream()
            said = _played(play, exchange)
            if not said.endswith(b"\n"):
                said = b"data: " + said + b"\n\n"
            await exchange.say(said)
            await exchange.event({"id": exchange.id, "result": {"content": []}})
            exchange.hang_up()

        config = folder / "comity.toml"
        config.write_text(_settings(store, folder, {"body": body.url, "event": event.url}))
        command = [sys.executable, "-m", "tests.security.stalling.watched", str(report)]
        opening = running(
            [*command, "serve", "-c", str(config), "--port", "0"], {"COMITY_PEPPER": pepper}
        )
        program = await asyncio.to_thread(opening.__enter__)
        try:
            line = await asyncio.to_thread(program.wait_for_line, r"listening on (http://\S+)")
            origin = line.group(1)
            await asyncio.to_thread(program.wait_until, lambda: answers(f"{origin}/ready"))
            async with visiting_at(origin) as visitor:
                yield Scene(program, origin, report, keys, visitor, play)
        finally:
            await asyncio.to_thread(opening.__exit__, None, None, None)


def _played(play: Path, exchange: Exchange) -> bytes:
    return play.read_bytes().replace(b"@id@", b"%d" % exchange.id)
