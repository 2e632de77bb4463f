"""A participant of MCPx v0.1 on plain `websockets`, from the document alone; it knows no Comity."""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

PROTOCOL = "mcpx/v0.1"
GATEWAY = "system:gateway"
SECONDS = 30
type Envelope = dict[str, Any]
type Tool = Callable[[dict[str, Any]], Awaitable[str]]


class Participant:
    """What section 8.2 asks of a participant, and nothing else."""

    def __init__(self, socket: ClientConnection, tools: dict[str, Tool]) -> None:
        self.id = ""
        self.capabilities: list[str] = []
        self.others: dict[str, list[str]] = {}
        self.heard: list[Envelope] = []
        self.dropped: list[Envelope] = []
        self._socket = socket
        self._tools = tools
        self._news = asyncio.Condition()

    async def send(self, kind: str, payload: Envelope, **more: Any) -> str:
        id = str(uuid.uuid4())
        moment = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        envelope = {"protocol": PROTOCOL, "id": id, "ts": moment, "from": self.id, "kind": kind}
        await self._socket.send(json.dumps({**envelope, "payload": payload, **more}))
        return id

    async def chat(self, text: str) -> str:
        return await self.send("chat", {"text": text, "format": "plain"})

    async def request(self, tool: str, to: str, arguments: Envelope, **more: Any) -> str:
        """`correlation_id` among `more` makes it the fulfilment of a proposal. (3.2.1)"""
        params = {"name": tool, "arguments": arguments}
        payload = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return await self.send(f"mcp/request:tools/call:{tool}", payload, to=[to], **more)

    async def propose(self, tool: str, to: str, arguments: Envelope) -> str:
        payload = {"method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        return await self.send(f"mcp/proposal:tools/call:{tool}", payload, to=[to])

    async def fulfil(self, proposal: Envelope) -> str:
        params, (to,) = proposal["payload"]["params"], proposal["to"]
        about = proposal["id"]
        return await self.request(params["name"], to, params["arguments"], correlation_id=about)

    async def until(self, is_it: Callable[[Envelope], bool]) -> Envelope:
        """The first envelope of which this is true, heard already or still to come."""
        async with asyncio.timeout(SECONDS), self._news:
            while True:
                for envelope in self.heard:
                    if is_it(envelope):
                        return envelope
                await self._news.wait()

    async def until_kind(self, kind: str, about: str | None = None) -> Envelope:
        return await self.until(
            lambda each: (
                each["kind"].startswith(kind) and about in (None, each.get("correlation_id"))
            )
        )

    async def listen(self) -> None:
        try:
            async for frame in self._socket:
                await self._hear(json.loads(frame))
        except ConnectionClosed:
            pass

    async def _hear(self, envelope: Envelope) -> None:
        is_known = envelope["from"] == GATEWAY or not envelope["kind"].startswith("system/")
        if envelope["protocol"] != PROTOCOL or not is_known or not _is_true(envelope):
            self.dropped.append(envelope)
            return
        if envelope["kind"] == "system/welcome":
            you = envelope["payload"]["you"]
            self.id, self.capabilities = you["id"], you["capabilities"]
            there = envelope["payload"]["participants"]
            self.others = {each["id"]: each["capabilities"] for each in there}
        if envelope["kind"] == "system/presence":
            who = envelope["payload"]["participant"]
            self.others.pop(who["id"], None)
            if envelope["payload"]["event"] == "join" and who["id"] != self.id:
                self.others[who["id"]] = who["capabilities"]
        async with self._news:
            self.heard.append(envelope)
            self._news.notify_all()
        is_asked = envelope["kind"].startswith("mcp/request:tools/call")
        if is_asked and self.id in envelope.get("to", []):
            await self._answer(envelope)

    async def _answer(self, asked: Envelope) -> None:
        params = asked["payload"]["params"]
        text = await self._tools[params["name"]](params["arguments"])
        body = {"content": [{"type": "text", "text": text}]}
        about = asked.get("correlation_id")
        proposed = [each["from"] for each in self.heard if each["id"] == about]
        kind = asked["kind"].replace("mcp/request", "mcp/response", 1)
        payload = {"jsonrpc": "2.0", "id": asked["payload"]["id"], "result": body}
        to = [asked["from"], *proposed]
        await self.send(kind, payload, to=to, correlation_id=asked["id"])


def _is_true(envelope: Envelope) -> bool:
    """Whether METHOD and CONTEXT of the kind are those of the payload. (4.3)"""
    family, _, rest = envelope["kind"].partition(":")
    if family not in ("mcp/request", "mcp/proposal"):
        return True
    method, _, context = rest.partition(":")
    payload = envelope["payload"]
    if payload.get("method") != method:
        return False
    return not context or context in (payload["params"].get("name"), payload["params"].get("uri"))


@asynccontextmanager
async def joined(
    url: str, topic: str, token: str, tools: dict[str, Tool] | None = None
) -> AsyncGenerator[Participant]:
    """A participant that has been welcomed. (6.2)"""
    headers = {"Authorization": f"Bearer {token}"}
    async with connect(f"{url}/ws?topic={topic}", additional_headers=headers) as socket:
        me = Participant(socket, tools or {})
        listening = asyncio.create_task(me.listen())
        await me.until_kind("system/welcome")
        yield me
        await socket.close()
        await listening
