"""Grants for groups, at the endpoints of a real gateway."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from comity.errors import MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor
from comity.mcp.refusals import REFUSAL_KEY
from comity.policy.grants import Effect, Grant, Guardrail
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from tests.support.credentials import bearer
from tests.support.upstream import Exchange, scripted
from tests.support.visitor import ENVELOPE, SECONDS, Frame, Visitor, at, request, visiting

ANA, BEN = "person:ana", "person:ben"
TOOLS = ("read", "write", "drop", "ask", "secret")
GRANTS = (
    Grant("group:sre", "tools/call", "up/read", Effect.ALLOW),
    Grant("group:sre", "tools/call", "up/drop", Effect.ALLOW),
    Grant("group:sre", "tools/call", "up/secret", Effect.ALLOW),
    Grant("group:sre", "tools/call", "up/ask", Effect.ASK),
    Grant("group:interns", "tools/call", "up/drop", Effect.DENY),
    Grant(ANA, "tools/call", "up/write", Effect.ALLOW),
    Grant("group:interns", "tools/call", "up/write", Effect.DENY),
)


@dataclass
class Scene:
    """A gateway with grants for groups, its operator, and the keys of those who call."""

    visitor: Visitor
    keys: dict[str, str]

    async def order(self, path: str, body: object) -> Frame:
        headers = {"content-type": "application/json"}
        reply = await self.visitor.send("POST", headers.items(), json.dumps(body).encode(), path)
        assert reply.status == 200, await reply.body()
        return await reply.json()

    async def set_groups(self, principal: str, *groups: str) -> None:
        listed = await self.visitor.send("GET", path="/api/principals")
        (before,) = [
            each["groups"]
            for each in (await listed.json())["principals"]
            if each["id"] == principal
        ]
        path = f"/api/principals/{principal}/groups"
        await self.order(path, {"add": groups, "remove": sorted(set(before) - set(groups))})

    async def call(self, tool: str, principal: str = ANA, **headers: str) -> str:
        """What becomes of a call: `ok`, or the type of the refusal."""
        shown = {**bearer(self.keys[principal]), **headers}
        reply = await self.visitor.other("/mcp").call_modern(f"up__{tool}", **shown)
        (answer,) = await reply.frames()
        if "error" in answer:
            return answer["error"]["data"]["error_type"]
        refusal = answer["result"].get("_meta", {}).get(REFUSAL_KEY)
        return "ok" if refusal is None else refusal["error_type"]

    async def listed(self, principal: str = ANA) -> set[str]:
        shown = bearer(self.keys[principal])
        reply = await self.visitor.other("/mcp").ask_modern("tools/list", None, 1, **shown)
        tools = (await reply.json())["result"]["tools"]
        return {each["name"].removeprefix("up__") for each in tools if "up__" in each["name"]}


@asynccontextmanager
async def governed() -> AsyncGenerator[Scene]:
    async with scripted() as server:

        @server.act("tools/list")
        async def tools(exchange: Exchange) -> None:
            listed = [{"name": each, "inputSchema": {"type": "object"}} for each in TOOLS]
            await exchange.result({"tools": listed})

        async with visiting(
            at(server.url),
            grants=GRANTS,
            forbid=(Guardrail("group:auditors", "tools/*", "up/secret"),),
            approvals_client_wait=timedelta(milliseconds=100),
        ) as visitor:
            scene = Scene(visitor, {})
            for principal in (ANA, BEN):
                made = await scene.order("/api/keys", {"principal": principal})
                scene.keys[principal] = made["key"]
            yield scene


async def test_a_group_allows_denies_and_asks() -> None:
    async with governed() as scene:
        assert await scene.listed() == {"write"}
        assert await scene.call("read") == "access_denied"
        await scene.set_groups(ANA, "sre")
        assert await scene.listed() == {"read", "write", "drop", "ask", "secret"}
        assert [await scene.call(each) for each in ("read", "write", "drop")] == ["ok"] * 3
        assert await scene.call("ask") == "pending_approval"
        # The strictest of two groups, and of a group and the own grant, applies.
        await scene.set_groups(ANA, "sre", "interns")
        assert [await scene.call(each) for each in ("read", "write", "drop")] == [
            "ok",
            "access_denied",
            "access_denied",
        ]
        assert await scene.listed() == {"read", "ask", "secret"}
        # A guardrail denies what another group allows.
        await scene.set_groups(ANA, "sre", "auditors")
        assert [await scene.call(each) for each in ("read", "secret")] == ["ok", "access_denied"]
        assert await scene.call("read", BEN) == "access_denied"


async def test_a_group_that_nobody_granted_anything_changes_nothing() -> None:
    async with governed() as scene:
        await scene.set_groups(ANA, "SRE", "sre2", "group:sre", "s\u0433e", "person:ben")
        assert await scene.listed() == {"write"}
        assert await scene.call("read") == "access_denied"


async def test_a_warm_call_is_refused_once_the_group_is_gone() -> None:
    async with governed() as scene:
        await scene.set_groups(ANA, "sre")
        for _ in range(3):
            assert await scene.call("read") == "ok"
        await scene.set_groups(ANA)
        assert await scene.call("read") == "access_denied"


async def test_two_credentials_of_one_principal_share_no_plan() -> None:
    """A token names groups of its own, so the same principal can come with different ones."""
    async with governed() as scene:
        gate = scene.visitor.parts.all_servers_endpoint.call_gate
        frame = jsonrpc.decode_frame(
            jsonrpc.to_json(request(1, "tools/call", {"name": "up__read"}))
        )

        def is_planned(*groups: str) -> bool:
            stream = ClientStream()
            stream.actor = Actor(BEN, groups=groups, has_claimed_groups=True)
            call = Call(frame, stream, None, 0)
            try:
                gate.plan_for(call, "", "up__read")
            except MalformedMessage:
                return False
            return True

        assert [is_planned("sre"), is_planned(), is_planned("qa"), is_planned("sre")] == [
            True,
            False,
            False,
            True,
        ]


async def test_no_field_of_a_request_names_a_group() -> None:
    names = ("groups", "x-groups", "x-auth-request-groups", "x-forwarded-groups", "remote-groups")
    async with governed() as scene:
        for name in names:
            assert await scene.call("read", **{name: "sre"}) == "access_denied"
            assert await scene.call("read", **{name: "group:sre"}) == "access_denied"
        meta = {**ENVELOPE, "groups": ["sre"], "actor": {"groups": ["sre"]}}
        params = {"name": "up__read", "arguments": {}, "groups": ["sre"], "_meta": meta}
        shown = {**bearer(scene.keys[ANA]), "mcp-name": "up__read"}
        reply = await scene.visitor.other("/mcp").ask_modern("tools/call", params, **shown)
        assert "access_denied" in json.dumps(await reply.frames())


async def test_the_explanation_of_another_uses_the_groups_of_its_record() -> None:
    async with governed() as scene:
        await scene.set_groups(BEN, "sre")
        asked = "/api/grants/explain?tool=up/read&principal="
        for principal, effect in ((BEN, "allow"), (ANA, "deny"), ("person:none", "deny")):
            told = await (await scene.visitor.send("GET", path=asked + principal)).json()
            assert told["effect"] == effect
            assert ("group:sre" in told["sentence"]) is (principal == BEN)


async def test_a_change_of_a_groups_grants_is_announced_to_its_members() -> None:
    async with governed() as scene:
        await scene.set_groups(ANA, "sre")
        listener = scene.visitor.other("/mcp")
        params = {"notifications": {"toolsListChanged": True}, "_meta": ENVELOPE}
        shown = bearer(scene.keys[ANA])
        stream = await listener.ask_modern("subscriptions/listen", params, **shown)
        await stream.event()
        grant = {"subject": "group:sre", "target": "up/write", "effect": "allow"}
        await scene.order("/api/grants", grant)
        async with asyncio.timeout(SECONDS):
            told = await stream.event()
        assert told.frame["method"] == "notifications/tools/list_changed"
        stream.leave()
