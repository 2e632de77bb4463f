"""Senders of events as they are in the world: each sends until it is answered, wherever it can."""

import asyncio
import contextlib
import json
import os
import random
import secrets
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp

from comity.events.webhooks.model import build_signature_headers
from tests.cluster.nodes import modern
from tests.interop.peers import ROOT
from tests.interop.processes import Program, answers
from tests.pace import here

NAMES: Final = ("a", "b", "c")
SECRET: Final = b"of-the-sensors-0123456789"
AT_ONCE: Final = 25
COMITY: Final = str(Path(sys.executable).with_name("comity"))
MODEL: Final = """
[[models]]
id = "m"
api = "openai"
model = "m"
url = "{url}/v1"
"""
SENDERS: Final = 6
_AWAY: Final = (aiohttp.ClientError, ConnectionError, TimeoutError, OSError)


@dataclass
class Deployment:
    """Three nodes on one store and one NATS, which are killed and come back."""

    folder: Path
    nats: Sequence[str]
    store: str
    # Where a model is asked, by turns that are really taken; otherwise they are only begun.
    model: str = ""
    programs: dict[str, Program] = field(default_factory=dict[str, Program])
    origins: dict[str, str] = field(default_factory=dict[str, str])
    kills: int = 0

    def written(self, name: str) -> Path:
        path, secret = self.folder / f"{name}.toml", self.folder / "secret"
        secret.write_bytes(SECRET)
        secret.chmod(0o600)
        more = MODEL.format(url=self.model) if self.model else ""
        path.write_text(
            f"""{more}
[store]
url = "{self.store}"
[policy]
require_approval = "never"
[limits]
push_rate = 0
max_queued_pushes = 1000000
[webhooks]
allow_hosts = ["127.0.0.1"]
[cluster]
url = "{",".join(self.nats)}"
node = "{name}"
heartbeat_interval = "300ms"
dead_after = "2s"
lease_ttl = "8s"
[[pushes]]
from = "ci/ci.builds"
to = "turn"
[[pushes]]
from = "ci/ci"
to = "webhooks"
[[inbound_webhooks]]
name = "sensor"
kind = "standard"
secret_file = "{secret}"
to = "turn"
[[servers]]
id = "ci"
command = "{sys.executable}"
args = ["-m", "tests.live.pushing_server"]
env = {{ PYTHONPATH = "{ROOT}" }}
[servers.live]
enabled = ["ci", "ci.*"]
[servers.tools."*"]
risk = "safe"
""",
            encoding="utf-8",
        )
        return path

    async def start(self, *names: str) -> None:
        environment = {"COMITY_PEPPER": "pepper-" * 8}
        for name in names:
            whole = [COMITY, "serve", "-c", str(self.written(name)), "--port", "0"]
            begun = [sys.executable, "-m", "tests.cluster.push_node", str(self.written(name))]
            self.programs[name] = Program(whole if self.model else begun, environment)
        for name in names:
            program = self.programs[name]
            found = await asyncio.to_thread(program.wait_for_line, r"listening on (http://\S+)")
            await asyncio.to_thread(
                program.wait_until, lambda origin=found[1]: answers(f"{origin}/ready?strict")
            )
            self.origins[name] = found[1]

    async def kill(self, name: str) -> None:
        """As a machine dies: nothing is said and nothing is tidied up."""
        self.origins.pop(name)
        os.killpg(self.programs[name].pid, signal.SIGKILL)
        self.kills += 1
        await asyncio.to_thread(self.programs.pop(name).stop)

    async def stop(self) -> None:
        for program in self.programs.values():
            await asyncio.to_thread(program.stop)


@contextlib.asynccontextmanager
async def deployed(
    folder: Path, nats: Sequence[str], store: str, model: str = ""
) -> AsyncGenerator[Deployment]:
    deployment = Deployment(folder, nats, store, model)
    try:
        await deployment.start(*NAMES)
        yield deployment
    finally:
        await deployment.stop()


@dataclass
class Storm:
    """All that is sent, and how it was answered."""

    deployment: Deployment
    http: aiohttp.ClientSession
    chance: random.Random
    sent: int = 0
    again: int = 0
    answers: Counter[str] = field(default_factory=Counter[str])
    # What was said to have come of each event; never two things.
    inferences: dict[str, set[str]] = field(default_factory=dict[str, set[str]])

    def plan(self, events: Sequence[str]) -> list[str]:
        """Each of them one to five times, in any order."""
        sends = [each for each in events for _ in range(self.chance.randint(1, 5))]
        self.chance.shuffle(sends)
        return sends

    async def send_all(self, sends: list[str]) -> None:
        waiting = list(sends)

        async def sender() -> None:
            while waiting:
                some = [waiting.pop() for _ in range(min(AT_ONCE, len(waiting)))]
                while some:
                    some = await self._send(some)

        await asyncio.gather(*(sender() for _ in range(SENDERS)))

    async def _send(self, events: list[str]) -> list[str]:
        """Those that have to be sent again."""
        origins = list(self.deployment.origins.values())
        if not origins:
            await asyncio.sleep(0.1)
            return events
        origin = self.chance.choice(origins)
        self.sent += len(events)
        kinds = {"turn": "ci.builds", "post": "ci"}
        left: list[str] = []
        for kind, feature in kinds.items():
            named = [each for each in events if each.startswith(kind)]
            if named:
                left += await self.push(origin, named, feature)
        sensed = [each for each in events if each.startswith("hook")]
        posts = await asyncio.gather(*(self._post(origin, each) for each in sensed))
        left += [each for each, is_known in zip(sensed, posts, strict=True) if not is_known]
        self.again += len(left)
        if left:
            await asyncio.sleep(0.05)
        return left

    async def push(self, origin: str, events: list[str], feature: str) -> list[str]:
        params = {"name": "ci__push", "arguments": {"ids": events, "featureSet": feature}}
        try:
            said = await modern(self.http, origin, "tools/call", params)
            found: list[dict[str, Any]] = json.loads(said.text)
        except (*_AWAY, ValueError):
            self.answers["unanswered"] += len(events)
            return events
        left: list[str] = []
        for event, each in zip(events, found, strict=True):
            result = each.get("result", {})
            reason = str(result.get("reason", ""))
            is_known = bool(result.get("accepted")) or reason.startswith("duplicate")
            self.answers["accepted" if result.get("accepted") else reason[:9] or "error"] += 1
            if result.get("inferenceId"):
                self.inferences.setdefault(event, set()).add(result["inferenceId"])
            if not is_known:
                left.append(event)
        return left

    async def _post(self, origin: str, event: str) -> bool:
        body = json.dumps({"event": event}).encode()
        headers = build_signature_headers([SECRET], "", event, datetime.now(UTC), body)
        try:
            url = f"{origin}/hooks/sensor"
            async with self.http.post(url, data=body, headers=headers) as reply:
                self.answers[f"HTTP {reply.status}"] += 1
                return reply.status in (200, 202)
        except _AWAY:
            self.answers["unanswered"] += 1
            return False


async def killing(storm: Storm, total: int, kills: int, seconds: float = 600.0) -> None:
    """A node dies each time that another part of all is sent, and comes back."""
    for turn in range(kills):
        async with asyncio.timeout(here(seconds)):
            while storm.sent < total * (turn + 1) // (kills + 1):
                await asyncio.sleep(0.02)
        name = NAMES[turn % len(NAMES)]
        # Somewhere within what is under way, and not between two parts of it.
        await asyncio.sleep(storm.chance.random() / 10)
        await storm.deployment.kill(name)
        await storm.deployment.start(name)


def event_names(count: int) -> list[str]:
    """Of ten, seven begin turns as pushes, two as webhooks that come in, one is posted."""
    kinds = ("turn",) * 7 + ("hook",) * 2 + ("post",)
    run = secrets.token_hex(3)
    return [f"{kinds[each % 10]}-{run}-{each}" for each in range(count)]
