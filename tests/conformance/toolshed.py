"""A gateway before servers with tools worth searching for, and clients of both eras that search."""

import json
import math
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from comity.audit.events import OURS
from comity.identity.principals import Principal
from comity.mcp.actors import PrincipalKind
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.policy.grants import Effect, Grant
from tests.conformance.governed import ADMINISTERS, UNHINDERED, Guest
from tests.support.credentials import GivenOut
from tests.support.upstream import Act, Exchange, Upstream, encode, scripted
from tests.support.visitor import MODERN, Frame, Visitor, at, visiting

AGENT = "agent:finder"
MGP: dict[str, Any] = {"mgp": {"version": "0.3.0", "extensions": ["tool_discovery"]}}
META_TOOLS = ["search_tools", "request_tools", "call_tool", "session_tools"]
ERAS = ("handshake", "modern")
DISCOVER = "mgp/tools/discover"
REQUEST = "mgp/tools/request"
SESSION = "mgp/tools/session"
EVICT = "mgp/tools/session/evict"


def tool(name: str, description: str, risk: str = "safe", *needs: str, pad: int = 0) -> Frame:
    """A definition with a schema that must arrive whole."""
    path = {"type": "string", "description": "what it is about " + "x" * pad}
    return {
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": {"path": path}, "required": ["path"]},
        "security": {"risk_level": risk, "permissions_required": list(needs)},
    }


FILES = [
    tool("read_file", "Read the contents of a text file from disk"),
    tool("write_file", "Write text into a file on disk", "moderate"),
    tool("delete_file", "Delete a file from disk for good", "dangerous"),
    *(tool(f"archive_{n}", f"Archive volume {n} of the records") for n in range(12)),
]
DATA = [
    tool("analyze_csv", "Compute statistics on CSV tables"),
    tool("draw_chart", "Draw a chart of numbers", "moderate"),
]
AIR = [
    tool("book_flight", "Book a seat on a flight", "safe", "network.outbound"),
    tool("weather_here", "Tell the weather forecast of a place"),
]
SERVERS: Mapping[str, tuple[bool, list[Frame]]] = {
    "files": (False, FILES),
    "data": (True, DATA),
    "air": (False, AIR),
}
"""Each server, whether it is of the modern era, and its tools."""


def definition(server: str, described: Frame) -> bytes:
    """A tool as the merged door lists it, written by other means than the gateway's."""
    said = {**described, "name": f"{server}__{described['name']}"}
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()


def tokens(*definitions: bytes) -> int:
    """What they cost by the stated estimate, counted anew."""
    return sum(math.ceil(len(each) / 4.3) for each in definitions)


def cost(server: str, *names: str) -> int:
    known = {each["name"]: each for each in SERVERS[server][1]}
    return tokens(*(definition(server, known[name]) for name in names))


@dataclass
class Client:
    """Somebody who speaks MGP in one era, or plain MCP."""

    guest: Guest
    era: str
    spoken: dict[str, Any]

    async def answer(self, method: str, params: Frame | None = None) -> Frame:
        if self.era == "modern":
            return await self.guest.modern(method, params, **self.spoken)
        return await self.guest.ask(method, params)

    async def ask(self, method: str, params: Frame | None = None) -> Frame:
        answer = await self.answer(method, params)
        assert "result" in answer, answer
        return answer["result"]

    async def call(self, name: str, arguments: Frame | None = None) -> Frame:
        return await self.answer("tools/call", {"name": name, "arguments": arguments or {}})

    async def meta(self, name: str, arguments: Frame | None = None) -> Frame:
        """What a tool of the gateway's own answers, as data."""
        answer = await self.call(name, arguments)
        assert not answer["result"].get("isError"), answer
        (text,) = answer["result"]["content"]
        assert text["type"] == "text"
        assert text["text"]
        return answer["result"]["structuredContent"]

    async def listed(self) -> list[Frame]:
        return (await self.ask("tools/list"))["tools"]

    async def names(self) -> list[str]:
        return [each["name"] for each in await self.listed()]


async def wanted(client: Client, *capabilities: str, **more: Any) -> dict[str, Any]:
    """The answer to a request for these."""
    said: dict[str, Any] = {"reason": "capability_gap", "context": "a task", **more}
    said["requirements"] = {**more.get("requirements", {}), "capabilities": list(capabilities)}
    return await client.ask(REQUEST, said)


@dataclass
class Shed:
    """The gateway, whose grants a test writes as it likes."""

    visitor: Visitor
    given_out: GivenOut
    upstreams: dict[str, Upstream]

    async def client(
        self, era: str = "handshake", party: str = AGENT, spoken: dict[str, Any] | None = None
    ) -> Client:
        said = MGP if spoken is None else spoken
        self.given_out.parties.setdefault(
            party, Principal(party, PrincipalKind(party.partition(":")[0]))
        )
        guest = Guest(self.visitor.other("/mcp"), self.given_out.give(party))
        if era == "handshake":
            await guest.greet(**said)
        return Client(guest, era, said)

    async def grant(self, *grants: Grant) -> None:
        snapshot = self.visitor.parts.snapshot
        await snapshot.records.grants.put(*grants)
        await snapshot.refresh()

    async def revoke(self, target: str, party: str = AGENT) -> None:
        snapshot = self.visitor.parts.snapshot
        await snapshot.records.grants.revoke(party, "tools/call", target)
        await snapshot.refresh()

    async def relist(self, server: str, tools: list[Frame]) -> None:
        """Have a server's tools read anew, and be these."""
        offers = [
            CatalogEntry(
                f"{server}__{each['name']}", server, each["name"], definition(server, each)
            )
            for each in tools
        ]
        parts = self.visitor.parts
        await parts.server_policies.tool_reviews.review_list(server, offers)
        parts.catalog.put(server, EntryKind.TOOL, offers)

    async def journal(self, kind: str) -> list[Frame]:
        journal = self.visitor.parts.audit_log_components.audit_log
        await journal.flush()
        lines = await journal.store.page(journal.node, 0, 10_000)
        found = [json.loads(line.body) for line in lines]
        return [each for each in found if each["event_type"] in (kind, OURS + kind)]


def allow(*targets: str, party: str = AGENT, effect: Effect = Effect.ALLOW) -> Iterable[Grant]:
    return [Grant(party, "tools/call", target, effect) for target in targets]


@asynccontextmanager
async def toolshed(**chosen: Any) -> AsyncGenerator[Shed]:
    given_out = GivenOut()
    granted = tuple(allow("files/*", "data/*", "air/*"))
    # A model of meaning would be loaded in each: whoever needs one asks for it.
    plain: Frame = {**UNHINDERED, "discovery_embedder": "none"}
    settings: Frame = {**plain, "grants": (*ADMINISTERS, *granted), **chosen}
    async with AsyncExitStack() as stack:
        upstreams: dict[str, Upstream] = {}
        for name, (modern, tools) in SERVERS.items():
            upstreams[name] = await stack.enter_async_context(scripted(modern=modern))
            _speaks(upstreams[name], name, tools)
        policy = {"trust": "trusted", "approval_policy": "interactive", "trust_definitions": "off"}
        servers = [replace(at(u.url, name), policy=policy) for name, u in upstreams.items()]
        visitor = await stack.enter_async_context(
            visiting(*servers, register=given_out.register, **settings)
        )
        yield Shed(visitor, given_out, upstreams)


def _speaks(upstream: Upstream, name: str, tools: list[Frame]) -> None:
    capabilities: Frame = {"tools": {"listChanged": True}}
    about = {"serverInfo": {"name": name, "version": "1"}, "capabilities": capabilities}
    unspoken = "initialize" if upstream.modern else "server/discover"
    replies: dict[str, Frame] = {
        "initialize": {"protocolVersion": "2025-11-25", **about},
        "server/discover": {"supportedVersions": [MODERN], **about},
        "tools/list": {"tools": tools},
    }
    for method, result in replies.items():
        if method != unspoken:
            upstream.acts[method] = _result({"resultType": "complete", **result})
    upstream.acts[unspoken] = _unknown


async def _unknown(exchange: Exchange) -> None:
    error = {"code": -32601, "message": "Method not found"}
    await exchange.respond(200, encode({"id": exchange.id, "error": error}))


def _result(result: Frame) -> Act:
    async def act(exchange: Exchange) -> None:
        await exchange.result(result)

    return act
