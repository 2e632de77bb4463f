"""Reasons that come about by themselves, heard at the doors of three dialects. (refusal table)"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.policy.grants import Effect, Grant
from comity.policy.risk import ToolPolicy
from tests.conformance.realm import OFFER
from tests.support.credentials import GivenOut, bearer
from tests.support.upstream import Exchange, scripted
from tests.support.visitor import Frame, Reply, Visitor, at, visiting
from tests.toolkit.test_errors import TABLE

REFUSAL = "dev.comity/refusal"
EVERYTHING = Grant("*", "*", "*", Effect.ALLOW)


@dataclass(frozen=True)
class Scene:
    """How things stand when `up__add` is called, or another name."""

    tool: str = "up__add"
    status: int = 0
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    server: dict[str, Any] = field(default_factory=dict[str, Any])
    security: Frame = field(default_factory=dict[str, Any])


SCENES = {
    "access_denied": Scene(settings={"grants": (Grant("*", "*", "up/sub", Effect.ALLOW),)}),
    "pending_approval": Scene(
        settings={
            "grants": (Grant("*", "tools/call", "up/add", Effect.ASK),),
            "approvals_client_wait": timedelta(milliseconds=200),
        }
    ),
    "tool_not_found": Scene("up__nothing"),
    "tool_disabled": Scene(server={"tools": {"add": ToolPolicy(disabled=True)}}),
    "permission_denied": Scene(
        settings={"policy_approval_policy": "deny_all"},
        security={"permissions_required": ["network.outbound"]},
    ),
    "upstream_failed": Scene(status=500),
    "upstream_slow": Scene(status=504),
    "upstream_down": Scene(status=503),
}
each_scene = pytest.mark.parametrize("reason", SCENES)


@dataclass
class Stage:
    """The gateway of one scene, and a key that opens it."""

    visitor: Visitor
    key: str
    scene: Scene

    async def at_mcp(self, capabilities: Frame | None = None) -> Frame:
        client = self.visitor.other("/mcp")
        client.session = bearer(self.key)
        await client.greet(capabilities=capabilities)
        client.session |= bearer(self.key)
        return await (await client.call(self.scene.tool)).json()

    async def at_registry(self, key: str | None = None) -> Reply:
        headers = {"content-type": "application/json", **bearer(key or self.key)}
        path = f"/tools/{self.scene.tool}"
        return await self.visitor.send("POST", headers.items(), b"{}", path)


@asynccontextmanager
async def staged(scene: Scene) -> AsyncGenerator[Stage]:
    given = GivenOut()
    async with scripted() as server:

        @server.act("tools/list")
        async def listed(exchange: Exchange) -> None:
            tool: Frame = {"name": "add", "inputSchema": {"type": "object"}}
            await exchange.result({"tools": [{**tool, "security": scene.security}]})

        if scene.status:

            @server.act("add")
            async def fail(exchange: Exchange) -> None:
                await exchange.respond(scene.status)

        decided: dict[str, Any] = {
            "grants": (EVERYTHING,),
            "policy_require_approval": "never",
            **scene.settings,
        }
        async with visiting(
            replace(at(server.url), **scene.server),
            register=given.register,
            identity_mode="required",
            **decided,
        ) as visitor:
            yield Stage(visitor, given.give("agent:a"), scene)


@pytest.mark.requirement("MGP-14.3-1000", "MGP-14.3-1001", "MGP-14.3-4001", "MGP-14.3-4002")
@pytest.mark.requirement("REG-err-32002", "REG-err-32003", "REG-err-32005")
@each_scene
async def test_a_reason_is_told_in_the_words_of_each_dialect(reason: str) -> None:
    mgp, code, status, _, _, in_result = TABLE[reason]
    async with staged(SCENES[reason]) as stage:
        governed = (await stage.at_mcp(OFFER))["error"]
        assert (governed["code"], governed["data"]["error_type"]) == (mgp, reason)
        assert governed["data"]["_mgp"]["category"]
        plain = await stage.at_mcp()
        body = plain["result"]["_meta"][REFUSAL] if in_result else plain["error"]["data"]
        assert body["error_type"] == reason
        reply = await stage.at_registry()
        spoken = (await reply.json())["error"]
        assert (reply.status, spoken["code"]) == (status, code)
        assert spoken["data"]["suggestions"]


@pytest.mark.requirement("MGP-14.3-1002", "MGP-14.3-1003", "REG-err-32004")
@pytest.mark.parametrize("reason", ["unauthenticated", "credential_expired"])
async def test_whoever_is_not_known_is_told_so_at_the_door(reason: str) -> None:
    async with staged(Scene()) as stage:
        given = GivenOut()
        key = "nobody's key"
        if reason == "credential_expired":
            key = given.give("agent:a", expires_at=datetime.now(UTC) - timedelta(days=1))
            known = stage.visitor.parts.authenticator
            register = getattr(known, "_register")  # noqa: B009
            register.keys.update(given.keys)
        client = stage.visitor.other("/mcp")
        refused = await client.call_modern("up__add", **bearer(key))
        assert (refused.status, "www-authenticate" in refused.headers) == (401, True)
        data = (await refused.json())["error"]["data"]
        assert (data["error_type"], data["_mgp"]["code"]) == (reason, TABLE[reason][0])
        reply = await stage.at_registry(key)
        spoken = (await reply.json())["error"]
        assert (reply.status, spoken["code"]) == (401, -32004)
        assert spoken["data"]["error_type"] == "AuthenticationError"
