"""A gateway that asks everybody who it is, before one scripted server."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from comity.policy.grants import Effect, Grant
from tests.support.credentials import GivenOut, bearer
from tests.support.upstream import Exchange, Upstream, scripted
from tests.support.visitor import Visitor, at, request, visiting

INITIALIZE = request(0, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
# Who is granted a tool itself needs nobody's approval for it.
EVERYBODY_MAY_CALL = tuple(
    Grant("*", "tools/call", f"up/{tool}", Effect.ALLOW) for tool in ("plain", "heard", "asks")
)


@dataclass
class Admitted:
    """The gateway, the keys that were given out for it, and the server behind it."""

    visitor: Visitor
    given_out: GivenOut
    server: Upstream

    def come(self, key: str | None = None, path: str = "/mcp") -> Visitor:
        visitor = self.visitor.other(path)
        visitor.session = {} if key is None else bearer(key)
        return visitor

    async def greeted(self, key: str, path: str = "/mcp") -> Visitor:
        visitor = self.come(key, path)
        await visitor.greet()
        visitor.session |= bearer(key)
        return visitor


@asynccontextmanager
async def admitting(
    *, modern: bool = True, tools: tuple[str, ...] = (), **chosen: Any
) -> AsyncGenerator[Admitted]:
    given_out = GivenOut()
    decided: dict[str, Any] = {
        "identity_mode": "required",
        "grants": EVERYBODY_MAY_CALL,
        **chosen,
    }
    async with scripted(modern=modern) as server:

        @server.act("tools/list")
        async def listed(exchange: Exchange) -> None:
            offered = [{"name": name, "inputSchema": {"type": "object"}} for name in tools]
            await exchange.result({"tools": offered, "ttlMs": 1, "cacheScope": "private"})

        async with visiting(at(server.url), register=given_out.register, **decided) as visitor:
            yield Admitted(visitor, given_out, server)
