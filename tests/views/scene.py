"""A gateway with views before scripted servers, and clients of both protocol versions."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from comity.views.model import View
from tests.support.credentials import bearer
from tests.support.planned_gateway import (
    PlannedGateway,
    ToolServer,
    gateway_before,
    tool_servers,
)
from tests.support.visitor import BOTH, ENVELOPE, LATEST, MODERN, Frame, Reply, Visitor, request

PAY: Frame = {
    "description": "Pays an amount.",
    "inputSchema": {
        "type": "object",
        "properties": {"region": {"type": "string"}, "amount": {"type": "number"}},
        "required": ["region", "amount"],
        "additionalProperties": False,
    },
}
READ: Frame = {"description": "Reads.", "inputSchema": {"type": "object"}}


@dataclass
class ViewClient:
    """A client at one path, in one protocol version."""

    visitor: Visitor
    path: str
    version: str
    key: str
    session: dict[str, str] = field(default_factory=dict[str, str])

    async def send(self, method: str, params: Frame, **more: str) -> Reply:
        """Send a request, with more headers."""
        headers = {
            "content-type": "application/json",
            "accept": BOTH,
            "mcp-protocol-version": self.version,
            **bearer(self.key),
            **self.session,
        }
        if self.version == MODERN:
            params = {**params, "_meta": ENVELOPE}
            headers["mcp-method"] = method
            named = params.get("name") or params.get("uri")
            if named is not None:
                headers["mcp-name"] = named
        body = json.dumps(request(1, method, params)).encode()
        return await self.visitor.send("POST", {**headers, **more}.items(), body, self.path)

    async def begin(self) -> int:
        """Begin a session if the version has sessions. Returns the status."""
        if self.version == MODERN:
            return (await self.send("server/discover", {})).status
        info = {"name": "c", "version": "1"}
        said = {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": info}
        reply = await self.send("initialize", said)
        if reply.status == 200:
            self.session = {"mcp-session-id": reply.headers["mcp-session-id"]}
        return reply.status

    async def listen(self) -> Reply:
        """Open the stream of notifications outside of calls."""
        if self.version == MODERN:
            stream = await self.send(
                "subscriptions/listen", {"notifications": {"toolsListChanged": True}}
            )
            assert (await stream.event()).frame["method"].endswith("acknowledged")
            return stream
        headers = {"accept": "text/event-stream", **bearer(self.key), **self.session}
        return await self.visitor.send("GET", headers.items(), path=self.path)

    async def ask(self, method: str, params: Frame | None = None, **more: str) -> Frame:
        """Return the answer: its result or its error."""
        return (await (await self.send(method, params or {}, **more)).frames())[-1]

    async def call(self, name: str, arguments: Frame) -> Frame:
        return await self.ask("tools/call", {"name": name, "arguments": arguments})

    async def names(self, method: str = "tools/list", member: str = "tools") -> list[str]:
        listed = (await self.ask(method))["result"][member]
        return [each.get("uri") or each["name"] for each in listed]

    async def definition(self, name: str) -> Frame:
        listed = (await self.ask("tools/list"))["result"]["tools"]
        return next(each for each in listed if each["name"] == name)


@dataclass
class ViewScene:
    """A gateway with views, whose clients are one agent with a key."""

    gateway: PlannedGateway
    key: str

    async def client(self, path: str, version: str = MODERN, key: str = "") -> ViewClient:
        client = ViewClient(self.gateway.visitor, path, version, key or self.key)
        assert await client.begin() == 200
        return client

    async def status(self, path: str, version: str = MODERN) -> int:
        return await ViewClient(self.gateway.visitor, path, version, self.key).begin()

    async def apply(self, **chosen: Any) -> None:
        """Apply changed settings, as a reload of the file does."""
        self.gateway.settings = replace(self.gateway.settings, **chosen)
        await self.gateway.visitor.parts.apply_settings(self.gateway.settings)

    def received(self, server: str) -> list[Frame]:
        """The parameters of the calls that a server received."""
        heard = self.gateway.servers[server].upstream.of("tools/call")
        return [each.frame["params"] for each in heard]


@asynccontextmanager
async def viewing(
    *views: View,
    tools: Mapping[str, Mapping[str, Frame]],
    grants: tuple[str, ...] = (),
    prepare: Callable[[Mapping[str, ToolServer]], None] | None = None,
    **chosen: Any,
) -> AsyncGenerator[ViewScene]:
    """Run a gateway before these servers with their tools, with views and grants of the agent."""
    async with tool_servers(tuple(tools)) as servers:
        for name, offered in tools.items():
            servers[name].tools = dict(offered)
        if prepare is not None:
            prepare(servers)
        async with gateway_before(servers, views=views, **chosen) as gateway:
            key: str = (await gateway.new_key())["key"]
            for target in grants:
                await gateway.grant(target)
            yield ViewScene(gateway, key)
