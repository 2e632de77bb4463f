"""Three gateways, three NATS servers, PostgreSQL, and all who take part in them."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import aiohttp

from comity.approvals.model import ANSWER_VERB
from comity.policy.grants import Effect, Grant
from comity.storage import stores
from tests.cluster.namespaces import Namespace, a_namespace
from tests.cluster.nats_cluster import NatsCluster
from tests.cluster.postgres import Postgres, a_postgres
from tests.cluster.topic_crowd import Member
from tests.interop.peers import ROOT
from tests.interop.processes import Program, free_port
from tests.support.principals import add_principals

ROUNDS = int(os.environ.get("COMITY_CHAOS_ROUNDS", "1"))
MEMBERS = int(os.environ.get("COMITY_CHAOS_MEMBERS", "300" if ROUNDS > 1 else "90"))
TOPICS = MEMBERS // 30
CALLER = "agent:caller"
PERSON = "person:ana@example.org"
SECONDS = 90.0
"""Nothing here is measured: what has not come after this time does not come."""


@dataclass
class Node:
    """One gateway; `space` is the namespace it runs in, if any."""

    name: str
    scene: "Scene"
    space: Namespace | None = None
    port: int = field(default_factory=free_port)
    program: Program | None = None

    @property
    def host(self) -> str:
        return "127.0.0.1" if self.space is None else self.space.inside

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        config = self.scene.folder / f"{self.name}.toml"
        config.write_text(self._settings())
        within = [] if self.space is None else self.space.enter
        command = [*within, sys.executable, "-m", "comity.cli", "serve", "-c", str(config)]
        self.program = Program(command, {"COMITY_PEPPER": self.scene.pepper})

    def kill(self) -> None:
        assert self.program is not None
        os.killpg(self.program.pid, signal.SIGKILL)
        self.program.stop()
        self.program = None

    def _reached(self, port: int) -> str:
        if self.space is None:
            return f"127.0.0.1:{port}"
        return f"{self.space.outside}:{self.space.ports[port]}"

    def _settings(self) -> str:
        scene = self.scene
        urls = ",".join(f"nats://{self._reached(server.port)}" for server in scene.nats.servers)
        store = f"postgresql://postgres@{self._reached(scene.postgres.port)}/postgres"
        arguments = ["-m", "tests.cluster.noting_server", str(scene.effects)]
        return f"""
host = "{self.host}"
port = {self.port}
allowed_hosts = ["{self.host}"]
[identity]
mode = "required"
[store]
url = "{store}"
policy_max_staleness = "10m"
[audit]
node = "{self.name}"
write_timeout = "2s"
[approvals]
client_wait = "200ms"
request_ttl = "30m"
approval_ttl = "30m"
[topics]
max_members = 1000
message_rate = 0
chat_rate = 0
reconnect_grace = "1s"
[cluster]
url = "{urls}"
node = "{self.name}"
name = "{scene.name}"
heartbeat_interval = "500ms"
dead_after = "4s"
lease_ttl = "6s"
allow_open_nats = true
[[servers]]
id = "fenced"
transport = "stdio"
command = {json.dumps(sys.executable)}
args = {json.dumps(arguments)}
cwd = {json.dumps(str(ROOT))}
replicas = "single"
[servers.tools.write]
risk = "safe"
[servers.tools.wipe]
risk = "dangerous"
require_approval = "always"
"""


@dataclass
class Scene:
    folder: Path
    postgres: Postgres
    nats: NatsCluster
    pepper: str = field(default_factory=lambda: token_hex(32))
    name: str = field(default_factory=lambda: f"chaos{token_hex(4)}")
    nodes: list[Node] = field(default_factory=list[Node])
    keys: dict[str, str] = field(default_factory=dict[str, str])
    members: list[Member] = field(default_factory=list[Member])
    done: set[str] = field(default_factory=set[str])
    wiped: set[str] = field(default_factory=set[str])
    accepted: set[str] = field(default_factory=set[str])
    refused: str = ""
    """Why what was approved was not done when it was last tried."""
    chance: random.Random = field(default_factory=lambda: random.Random(11))  # noqa: S311  # chance, no secret

    @property
    def effects(self) -> Path:
        return self.folder / "effects"

    async def settle(self) -> None:
        """Every party, its key, and what it was granted."""
        await stores.upgrade_store(self.postgres.url)
        named = {f"agent:m{n}": f"room{n % TOPICS}" for n in range(MEMBERS)}
        grants = [
            Grant(party, "topic/send", f"{topic}/chat", Effect.ALLOW)
            for party, topic in named.items()
        ]
        grants.append(Grant(CALLER, "tools/*", "fenced/*", Effect.ALLOW))
        grants.append(Grant(PERSON, ANSWER_VERB, "*", Effect.ALLOW))
        parties = (*named, CALLER, PERSON)
        self.keys |= await add_principals(self.postgres.url, self.pepper, parties, *grants)
        places = [node.place for node in self.nodes]
        for n, (party, topic) in enumerate(named.items()):
            member = Member(party, self.keys[party], topic, places, is_directed=n % 10 == 9)
            member.chance.seed(n)
            self.members.append(member)

    async def post(
        self, web: aiohttp.ClientSession, node: Node, path: str, body: object, party: str = CALLER
    ) -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {self.keys[party]}"}
        url = f"http://{node.place}{path}"
        try:
            async with web.post(url, json=body, headers=headers) as reply:
                return reply.status, await reply.json()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return 0, None

    def lines(self) -> list[list[str]]:
        text = self.effects.read_text() if self.effects.exists() else ""
        return [line.split() for line in text.splitlines()]


@contextlib.asynccontextmanager
async def a_scene(folder: Path) -> AsyncGenerator[Scene]:
    nats = NatsCluster(folder, 3)
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(a_postgres())
        nats.start()
        stack.callback(nats.stop)
        ports = [postgres.port, *(server.port for server in nats.servers)]
        space = await stack.enter_async_context(a_namespace(ports))
        scene = Scene(folder, postgres, nats)
        scene.nodes += [Node("one", scene), Node("two", scene), Node("far", scene, space)]
        await scene.settle()
        for node in scene.nodes:
            node.start()
        try:
            await all_ready(scene)
            yield scene
        finally:
            for node in scene.nodes:
                if node.program is not None:
                    node.program.stop()
                    if os.environ.get("COMITY_CHAOS_LOGS"):
                        print(f"--- {node.name}\n{node.program.said}", file=sys.stderr)


async def all_ready(scene: Scene) -> None:
    timeout = aiohttp.ClientTimeout(5)
    async with aiohttp.ClientSession(timeout=timeout) as web, asyncio.timeout(SECONDS):
        for node in scene.nodes:
            while not await _is_ready(web, node):
                await asyncio.sleep(0.2)


async def _is_ready(web: aiohttp.ClientSession, node: Node) -> bool:
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with web.get(f"http://{node.place}/ready") as reply:
            return reply.status == 200
    return False
