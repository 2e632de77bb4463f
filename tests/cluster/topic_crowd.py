"""Members of topics who come back whatever happens, and remember all that they were given."""

import asyncio
import contextlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

SECONDS = 60.0

type Envelope = dict[str, Any]


@dataclass
class Visit:
    """One connection: what came over it, in order."""

    node: str
    began: float
    ended: float = 0.0
    heard: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    missed: int = 0
    """How many envelopes it was told that it was not given."""
    in_doubt: int = 0
    """How often it was told that nobody knows what it was not given."""


@dataclass
class Member:
    """One party in one topic; `numbers` are those of its envelopes that its own node took."""

    party: str
    key: str
    topic: str
    nodes: Sequence[str]
    is_directed: bool = False
    visits: list[Visit] = field(default_factory=list[Visit])
    faults: list[str] = field(default_factory=list[str])
    sent: int = 0
    taken: set[int] = field(default_factory=set[int])
    line: ClientConnection | None = None
    is_welcome: asyncio.Event = field(default_factory=asyncio.Event)
    chance: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311  # chance, no secret

    async def live(self, ends: asyncio.Event) -> None:
        """Be in the topic, at one node or another, until the end."""
        turn = self.chance.randrange(len(self.nodes))
        while not ends.is_set():
            with contextlib.suppress(OSError, WebSocketException, TimeoutError, EOFError):
                await self._visit(self.nodes[turn % len(self.nodes)])
            self.line = None
            self.is_welcome.clear()
            turn += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ends.wait(), self.chance.uniform(0.2, 1.0))

    async def _visit(self, node: str) -> None:
        mode = "directed" if self.is_directed else "all"
        headers = {"authorization": f"Bearer {self.key}"}
        loop = asyncio.get_running_loop()
        async with connect(
            f"ws://{node}/ws?topic={self.topic}&mode={mode}",
            additional_headers=headers,
            compression=None,
            open_timeout=SECONDS,
            ping_interval=3,
            ping_timeout=5,
            close_timeout=1,
        ) as line:
            visit = Visit(node, loop.time())
            self.visits.append(visit)
            self.line = line
            try:
                async for text in line:
                    self._hear(visit, json.loads(text))
            finally:
                visit.ended = loop.time()

    def _hear(self, visit: Visit, said: Envelope) -> None:
        payload = said["payload"]
        match said["kind"]:
            case "system/welcome":
                self.is_welcome.set()
                if payload["you"]["id"] != self.party:
                    self.faults.append(f"welcomed as {payload['you']['id']}")
            case "system/missed":
                visit.missed += payload["count"]
                visit.in_doubt += payload["count"] == 0
            case "chat":
                self._heard_chat(visit, said)
            case _:
                pass

    def _heard_chat(self, visit: Visit, said: Envelope) -> None:
        payload, sender = said["payload"], said["from"]
        if payload["topic"] != self.topic:
            self.faults.append(f"given what was said in {payload['topic']}")
        if self.is_directed and said.get("to") and self.party not in said["to"]:
            self.faults.append("given what was for others")
        numbers = visit.heard[sender]
        if numbers and payload["n"] <= numbers[-1]:
            self.faults.append(f"{sender}: {payload['n']} after {numbers[-1]}")
        numbers.append(payload["n"])
        if sender == self.party:
            self.taken.add(payload["n"])

    async def say(self) -> None:
        """One numbered envelope for all, if there is a line."""
        line = self.line
        if line is None or not self.is_welcome.is_set():
            return
        self.sent += 1
        said = {
            "protocol": "mcpx/v0.1",
            "id": f"{self.party}/{self.sent}",
            "from": self.party,
            "kind": "chat",
            "payload": {"topic": self.topic, "n": self.sent, "text": "x" * 200},
        }
        with contextlib.suppress(WebSocketException, OSError, TimeoutError):
            async with asyncio.timeout(5):
                await line.send(json.dumps(said))


def unexplained(members: Sequence[Member]) -> list[str]:
    """Holes in what somebody was given on one connection that nobody told it of.

    What a sender's own node never took (no echo came back) was never said. Where a node died, what
    it took last may have got nowhere, and each member was told so.
    """
    taken = {member.party: member.taken for member in members}
    found: list[str] = []
    for member in members:
        for visit in member.visits:
            lost = 0
            for sender, numbers in visit.heard.items():
                if sender in taken and numbers:
                    got = set(numbers)
                    between = range(numbers[0], numbers[-1])
                    lost += sum(n in taken[sender] and n not in got for n in between)
            if lost > visit.missed and not visit.in_doubt:
                found.append(f"{member.party} at {visit.node}: {lost} lost, {visit.missed} told")
    return found


async def until(is_so: Callable[[], bool], seconds: float, what: str) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not is_so():
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise TimeoutError(f"not within {seconds:g} s: {what}") from None
