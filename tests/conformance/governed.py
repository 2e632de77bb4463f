"""A gateway that asks everybody who it is, before three servers of both eras, and its guests."""

import itertools
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE
from comity.policy.grants import Effect, Grant
from tests.support.credentials import GivenOut, bearer
from tests.support.upstream import Act, Exchange, Upstream, encode, scripted
from tests.support.visitor import ENVELOPE, MODERN, Frame, Visitor, at, request, visiting

TOOLS = ("read", "write", "delete")
SERVERS = {"files": False, "web": True, "mail": False}
"""Each server, and whether it is one of the modern era."""

CLIENT = "io.modelcontextprotocol/clientCapabilities"
MGP: dict[str, Any] = {
    "mgp": {"version": "0.3.0", "extensions": ["access_control", "discovery", "lifecycle"]}
}
ADMIN = "person:admin"
ADMINISTERS = tuple(Grant(ADMIN, verb, "*", Effect.ALLOW) for verb in (ADMIN_READ, ADMIN_WRITE))
UNHINDERED: dict[str, Any] = {
    "identity_mode": "required",
    "policy_require_approval": "never",
    "policy_fallback_validators": "off",
    "policy_on_suspicious_definition": "show",
}


@dataclass
class Guest:
    """Somebody with a key, who speaks both eras."""

    visitor: Visitor
    key: str
    session: dict[str, str] = field(default_factory=dict[str, str])
    _ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def modern(
        self,
        method: str,
        params: Frame | None = None,
        path: str = "/mcp",
        named: int | None = None,
        **spoken: Any,
    ) -> Frame:
        """The whole answer to a request of the modern era."""
        said: Frame = {**(params or {}), "_meta": {**ENVELOPE, CLIENT: spoken}}
        about = said.get("uri" if method == "resources/read" else "name")
        headers: dict[str, str] = {} if about is None else {"mcp-name": about}
        reply = await self.visitor.other(path).ask_modern(
            method, said, named or next(self._ids), **headers, **bearer(self.key)
        )
        return (await reply.frames())[-1]

    async def greet(self, path: str = "/mcp", **spoken: Any) -> "Guest":
        """A session of the handshake era at that door; greets again where it has another."""
        visitor = self.visitor.other(path)
        visitor.session = bearer(self.key)
        hello = {"protocolVersion": "2025-11-25", "capabilities": spoken}
        reply = await visitor.post(request(0, "initialize", hello))
        assert reply.status == 200, await reply.body()
        self.session = {**bearer(self.key), "mcp-session-id": reply.headers["mcp-session-id"]}
        self.hello = (await reply.frames())[-1]["result"]
        self.visitor = visitor
        return self

    async def ask(self, method: str, params: Frame | None = None) -> Frame:
        """The whole answer to a request in its session."""
        self.visitor.session = self.session
        reply = await self.visitor.post(request(next(self._ids), method, params or {}))
        return (await reply.frames())[-1]

    async def http(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        headers = {"content-type": "application/json", "accept": "*/*", **bearer(self.key)}
        data = b"" if body is None else json.dumps(body).encode()
        reply = await self.visitor.send(method, headers.items(), data, path)
        said = await reply.body()
        return reply.status, json.loads(said) if said else None


@dataclass
class Governed:
    """The gateway, whose grants a test writes as it likes."""

    visitor: Visitor
    given_out: GivenOut
    upstreams: dict[str, Upstream]

    def guest(self, party: str, *permissions: str) -> Guest:
        key = self.given_out.give(party, permissions=permissions)
        return Guest(self.visitor.other("/mcp"), key)

    async def grant(self, *grants: Grant) -> None:
        snapshot = self.visitor.parts.snapshot
        await snapshot.records.grants.put(*grants)
        await snapshot.refresh()

    async def grant_only(self, grants: Iterable[Grant]) -> None:
        """These grants and no others, but those of the file."""
        snapshot = self.visitor.parts.snapshot
        for grant in await snapshot.records.grants.page():
            await snapshot.records.grants.revoke(grant.subject, grant.verb, grant.target)
        await snapshot.records.grants.put(*grants)
        await snapshot.refresh()


@asynccontextmanager
async def governed(**chosen: Any) -> AsyncGenerator[Governed]:
    given_out = GivenOut()
    settings: dict[str, Any] = {**UNHINDERED, "grants": ADMINISTERS, **chosen}
    async with AsyncExitStack() as stack:
        upstreams = {
            name: await stack.enter_async_context(scripted(modern=modern))
            for name, modern in SERVERS.items()
        }
        for name, upstream in upstreams.items():
            _offer(name, upstream)
        servers = [at(upstream.url, name) for name, upstream in upstreams.items()]
        visitor = await stack.enter_async_context(
            visiting(*servers, register=given_out.register, **settings)
        )
        yield Governed(visitor, given_out, upstreams)


def _offer(name: str, upstream: Upstream) -> None:
    capabilities = {"tools": {}, "prompts": {}, "resources": {"subscribe": True}}
    schema = {"type": "object"}
    replies: dict[str, Frame] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "serverInfo": {"name": name, "version": "1"},
        },
        "server/discover": {"supportedVersions": [MODERN], "capabilities": capabilities},
        "tools/list": {"tools": [{"name": tool, "inputSchema": schema} for tool in TOOLS]},
        "prompts/list": {"prompts": [{"name": "review"}]},
        "prompts/get": {"messages": []},
        "resources/list": {
            "resources": [
                {"uri": f"{name}://one", "name": "one"},
                {"uri": "shared://one", "name": "shared"},
            ]
        },
        "resources/templates/list": {
            "resourceTemplates": [{"uriTemplate": f"{name}://docs/{{page}}", "name": "docs"}]
        },
        "resources/read": {"contents": [{"uri": "x://y", "text": name}]},
        "resources/subscribe": {},
        "completion/complete": {"completion": {"values": [name]}},
    }
    unspoken = "initialize" if upstream.modern else "server/discover"
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


def refusal_of(answer: Frame) -> str | None:
    """Why it was not done, as its kind; None where it was."""
    if "error" in answer:
        return answer["error"]["data"]["error_type"]
    result = answer["result"]
    if not result.get("isError"):
        return None
    return result["_meta"]["dev.comity/refusal"]["error_type"]
