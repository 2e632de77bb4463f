"""Clients, people and operators of a simulated cluster, and what each of them was told."""

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from comity.mcp import protocol
from tests.simulation.nodes import ALONE, EVERYWHERE, OPERATOR_TOKEN, Cluster, Json, SimulatedNode

ANSWER_SECONDS: Final = 9.0
"""How long a client waits for an answer: longer than the gateway lets a call take."""

_REFUSAL_KEY: Final = "dev.comity/refusal"
_MOST_REPEATS: Final = 3
_ENVELOPE: Final[Json] = {
    "io.modelcontextprotocol/protocolVersion": protocol.LATEST_MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(frozen=True)
class CallReply:
    """What a client learned of one call. Without a kind and an answer it learned nothing."""

    is_answered: bool = False
    refusal: str = ""
    may_repeat: bool = False
    approval: str = ""
    reason: str = ""


NOTHING: Final = CallReply()


@dataclass
class Observations:
    """What everybody outside of the cluster was told, with the moment."""

    started: int = 0
    answered: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    refusals: Counter[str] = field(default_factory=Counter[str])
    opened: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    verdicts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    # The agent, and between which moments it had no key.
    revocations: list[tuple[str, float, float]] = field(
        default_factory=list[tuple[str, float, float]]
    )
    caller_of: dict[str, str] = field(default_factory=dict[str, str])


@dataclass
class Agent:
    """A principal with a key."""

    name: str
    key: str
    key_id: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}", "content-type": "application/json"}


@dataclass
class Crowd:
    """All clients of one run. Each has random numbers of its own."""

    cluster: Cluster
    seed: int
    seen: Observations = field(default_factory=Observations)
    is_over: bool = False
    agents: list[Agent] = field(default_factory=list[Agent])
    _ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def set_up(self, count: int) -> None:
        """Make agents that may call everything, and some that will lose that."""
        (node, *_) = self.cluster.up
        for number in range(count):
            name = f"agent:a{number}"
            await self._administer(node, "/api/principals", {"id": name})
            made = await self._administer(node, "/api/keys", {"principal": name})
            for server in (EVERYWHERE, ALONE):
                await self._administer(
                    node, "/api/grants", {"subject": name, "target": f"{server}/*"}
                )
            self.agents.append(Agent(name, made["key"], made["id"]))
        # The other nodes learn of the keys by the store.
        await asyncio.sleep(1)

    def tasks(self) -> list[asyncio.Task[None]]:
        """Start every client."""
        kinds = (
            *(self._writer(number, RestClient) for number in range(2)),
            *(self._writer(number, ModernClient) for number in range(2, 4)),
            *(self._writer(number, SessionClient) for number in range(4, 6)),
            *(self._asker(number) for number in range(6, 8)),
            self._revoker(),
        )
        return [asyncio.ensure_future(each) for each in kinds]

    def _pick(self, random: Random) -> SimulatedNode:
        return random.choice(list(self.cluster.nodes.values()))

    async def _writer(self, number: int, kind: "type[RestClient]") -> None:
        """Call tools with an argument that no other call has, and repeat only what may be."""
        random = Random(f"writer {self.seed} {number}")  # noqa: S311  # a seed, not a secret
        agent = self.agents[number % len(self.agents)]
        client = kind(self, agent, random)
        for count in itertools.count():
            if self.is_over:
                return
            server = EVERYWHERE if random.random() < 0.7 else ALONE
            tool = "write" if random.random() < 0.8 else "look"
            argument = f"{number}-{count}"
            for _ in range(_MOST_REPEATS):
                reply = await client.call(self._pick(random), server, tool, argument)
                if not reply.may_repeat or self.is_over:
                    break
                await asyncio.sleep(0.2 + random.random())
            await asyncio.sleep(random.random() * 0.25)

    async def _asker(self, number: int) -> None:
        """Call a tool that needs a person, from two nodes at once as soon as a person agreed."""
        random = Random(f"asker {self.seed} {number}")  # noqa: S311  # a seed, not a secret
        agent = self.agents[number % len(self.agents)]
        clients = [RestClient(self, agent, random), ModernClient(self, agent, random)]
        for count in itertools.count():
            if self.is_over:
                return
            argument = f"{number}-{count}"
            for _ in range(_MOST_REPEATS * 2):
                replies = await asyncio.gather(
                    *(
                        client.call(self._pick(random), EVERYWHERE, "wipe", argument)
                        for client in clients
                    )
                )
                await asyncio.sleep(random.random() * 0.1)
                # Whoever repeats a call that may have run, and approves it again, wants it twice.
                if self.is_over or not all(each.approval or each.may_repeat for each in replies):
                    break
                for id in sorted({each.approval for each in replies} - {""}):
                    await self._answer_twice(id, argument, random)
            await asyncio.sleep(random.random() * 0.25)

    async def _answer_twice(self, id: str, argument: str, random: Random) -> None:
        """Two people answer one request at two nodes, not always in the same way."""
        if id in self.seen.verdicts:
            return
        self.seen.opened[id] = "wipe", argument
        verdicts = ["accept", random.choice(["accept", "accept", "decline"])]
        await asyncio.gather(*(self._answer(id, each, self._pick(random)) for each in verdicts))

    async def _answer(self, id: str, verdict: str, node: SimulatedNode) -> None:
        reply = await self._administer(node, f"/api/approvals/{id}/answer", {"verdict": verdict})
        if reply and "error" not in reply:
            self.seen.verdicts.setdefault(id, []).append(verdict)

    async def _revoker(self) -> None:
        """Take keys and grants from one agent after another, and give it new ones."""
        random = Random(f"revoker {self.seed}")  # noqa: S311  # a seed, not a secret
        while not self.is_over:
            await asyncio.sleep(1 + random.random() * 4)
            agent, node = random.choice(self.agents), self._pick(random)
            reply = await self._administer(node, f"/api/keys/{agent.key_id}/revoke", {})
            if not reply or "error" in reply:
                continue
            since = self._now()
            self.cluster.machinery.loop.note(f"revoked {agent.name}")
            await asyncio.sleep(1 + random.random())
            await self._give_new_key(agent, since, random)

    async def _give_new_key(self, agent: Agent, since: float, random: Random) -> None:
        number = len(self.seen.revocations)
        self.seen.revocations.append((agent.name, since, math.inf))
        while not self.is_over:
            body = {"principal": agent.name}
            until = self._now()
            made = await self._administer(self._pick(random), "/api/keys", body)
            if "key" in made:
                agent.key, agent.key_id = made["key"], made["id"]
                self.seen.revocations[number] = agent.name, since, until
                return
            await asyncio.sleep(0.5)

    def _now(self) -> float:
        return self.cluster.machinery.loop.time()

    async def probe(self, node: SimulatedNode, server: str) -> "CallReply":
        """Call a tool as the operator, when all should be well again."""
        body = {"n": f"probe-{node.run}-{server}"}
        reply = await self._administer(node, f"/tools/{server}__write", body)
        return _read_rest([reply]) if reply else NOTHING

    async def _administer(self, node: SimulatedNode, path: str, body: Json) -> Json:
        headers = {
            "authorization": f"Bearer {OPERATOR_TOKEN}",
            "content-type": "application/json",
        }
        exchange = node.send("POST", path, body, headers)
        if not await exchange.wait(ANSWER_SECONDS):
            await asyncio.sleep(0.05)
            return {}
        (reply,) = exchange.frames() or [{"error": {}}]
        return reply

    def begin(self, agent: Agent, tool: str, argument: str) -> None:
        self.seen.started += 1
        self.seen.caller_of[f"{tool} {argument}"] = agent.name

    def learn(self, tool: str, argument: str, reply: CallReply) -> CallReply:
        if reply.is_answered:
            self.seen.answered.add((tool, argument))
        elif reply is not NOTHING:
            self.seen.refusals[reply.refusal] += 1
        answer = "answered" if reply.is_answered else reply.refusal or "nothing"
        answer += f" ({reply.reason})" if reply.reason else ""
        self.cluster.machinery.loop.note(f"client {tool} {argument}: {answer}")
        return reply

    def next_id(self) -> int:
        return next(self._ids)


class RestClient:
    """Calls tools as REST endpoints."""

    def __init__(self, crowd: Crowd, agent: Agent, random: Random) -> None:
        self.crowd, self.agent, self.random = crowd, agent, random

    async def call(self, node: SimulatedNode, server: str, tool: str, argument: str) -> CallReply:
        self.crowd.begin(self.agent, tool, argument)
        path = f"/tools/{server}__{tool}"
        exchange = node.send("POST", path, {"n": argument}, self.agent.headers)
        reply = NOTHING
        if await exchange.wait(self.patience()):
            reply = _read_rest(exchange.frames())
        else:
            await asyncio.sleep(0.05)
        return self.crowd.learn(tool, argument, reply)

    def patience(self) -> float:
        """Some calls are given up soon: the client closes its connection."""
        return ANSWER_SECONDS if self.random.random() < 0.95 else self.random.random() * 0.2


class ModernClient(RestClient):
    """A client of MCP 2026-07-28: each request stands for itself."""

    async def call(self, node: SimulatedNode, server: str, tool: str, argument: str) -> CallReply:
        self.crowd.begin(self.agent, tool, argument)
        headers = {
            **self.agent.headers,
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": protocol.LATEST_MODERN,
            "mcp-method": protocol.CALL_TOOL,
            "mcp-name": tool,
        }
        id = self.crowd.next_id()
        params: Json = {"name": tool, "arguments": {"n": argument}, "_meta": _ENVELOPE}
        body: Json = {"jsonrpc": "2.0", "id": id, "method": protocol.CALL_TOOL, "params": params}
        exchange = node.send("POST", f"/servers/{server}/mcp", body, headers)
        reply = NOTHING
        if await exchange.wait(self.patience()):
            reply = _read_mcp(exchange.frames(), id)
        else:
            await asyncio.sleep(0.05)
        return self.crowd.learn(tool, argument, reply)


class SessionClient(RestClient):
    """A client of MCP 2025-11-25, with a session that any node serves while its node lives."""

    session: Mapping[str, str] | None = None
    server = ""

    async def call(self, node: SimulatedNode, server: str, tool: str, argument: str) -> CallReply:
        if self.session is None or self.server != server:
            await self._initialize(node, server)
        if self.session is None:
            await asyncio.sleep(0.1)
            return NOTHING
        self.crowd.begin(self.agent, tool, argument)
        id = self.crowd.next_id()
        params = {"name": tool, "arguments": {"n": argument}}
        exchange = self._send(node, {"id": id, "method": protocol.CALL_TOOL, "params": params})
        if self.random.random() < 0.1:
            await asyncio.sleep(self.random.random() * 0.1)
            cancelled = {"method": protocol.CANCELLED, "params": {"requestId": id}}
            await self._send(node, cancelled).wait(ANSWER_SECONDS)
            await exchange.wait(1)
        reply = NOTHING
        if await exchange.wait(ANSWER_SECONDS):
            reply = _read_mcp(exchange.frames(), id)
        if exchange.status == 404 or reply is NOTHING:
            self.session = None
        return self.crowd.learn(tool, argument, reply)

    async def _initialize(self, node: SimulatedNode, server: str) -> None:
        self.server, self.session = server, {}
        params = {
            "protocolVersion": protocol.LATEST_HANDSHAKE,
            "capabilities": {},
            "clientInfo": {"name": "simulated", "version": "1"},
        }
        exchange = self._send(node, {"id": 0, "method": protocol.INITIALIZE, "params": params})
        self.session = None
        if not await exchange.wait(ANSWER_SECONDS) or "mcp-session-id" not in exchange.headers:
            return
        self.session = {
            "mcp-session-id": exchange.headers["mcp-session-id"],
            "mcp-protocol-version": protocol.LATEST_HANDSHAKE,
        }
        await self._send(node, {"method": protocol.INITIALIZED}).wait(ANSWER_SECONDS)

    def _send(self, node: SimulatedNode, frame: Json) -> Any:
        headers = {
            **self.agent.headers,
            "accept": "application/json, text/event-stream",
            **(self.session or {}),
        }
        return node.send(
            "POST", f"/servers/{self.server}/mcp", {"jsonrpc": "2.0", **frame}, headers
        )


def _read_rest(frames: list[Json]) -> CallReply:
    (frame,) = frames or [{"error": {}}]
    error = frame.get("error")
    return CallReply(is_answered=True) if error is None else _refusal(error.get("data", {}))


def _read_mcp(frames: list[Json], id: int) -> CallReply:
    for frame in frames:
        if frame.get("id") != id and ("id" in frame or "error" not in frame):
            continue
        if "error" in frame:
            return _refusal(frame["error"].get("data", {}))
        refusal = frame["result"].get("_meta", {}).get(_REFUSAL_KEY)
        return CallReply(is_answered=True) if refusal is None else _refusal(refusal)
    return NOTHING


def _refusal(data: Json) -> CallReply:
    approval = data.get("details", {}).get("approval_id", "")
    kind = str(data.get("error_type", "unreadable"))
    reason = str(data.get("reason", ""))
    return CallReply(False, kind, bool(data.get("retryable")), approval, reason)
