"""Call plans: a change of what decides about a call takes effect on the very next call.

Each test makes a call for which the gateway keeps a plan, makes one change as an operator or a
server makes it, and looks at the next call on the same connection.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from comity.app.http import KnownSender
from comity.app.settings import Settings
from comity.errors import Unavailable
from comity.http.fast_path import RequestHead
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.mcpl import ScopeBounds
from comity.policy.grants import Effect, Grant, Guardrail
from comity.policy.limits import LimitRule
from comity.policy.risk import RequireApproval, Risk, ToolPolicy
from comity.storage.settings import StoreSettings
from comity.toolkit.resilience import RateLimit
from tests.support.planned_gateway import (
    CALLER,
    OPERATOR_GRANTS,
    PLAIN_SCHEMA,
    Caller,
    PlannedGateway,
    gateway_before,
    planning,
    reloading,
    tool_servers,
)
from tests.support.visitor import Frame

PERMISSION = "network.outbound"
NEEDS_PERMISSION: Frame = {
    "inputSchema": PLAIN_SCHEMA,
    "security": {"risk_level": "safe", "permissions_required": [PERMISSION]},
}
FEATURE_SETS = {"files": {"description": "Files", "uses": ["tools"]}}
LIVE: Frame = {"mcpl": {"version": "0.4", "featureSets": FEATURE_SETS}}
NEEDS_PATH: Frame = {"type": "object", "required": ["path"]}


type Heads = dict[tuple[tuple[bytes, bytes], ...], RequestHead]

DENIED = ("access_denied", "nothing_here")
"""How a denied call is refused. A path does not exist for a caller who may use nothing there."""


@pytest.fixture(autouse=True)
def heads(monkeypatch: pytest.MonkeyPatch) -> Heads:
    """Let requests with equal headers share one head, which stays known until a change."""
    shared: Heads = {}

    def share_head(
        path: bytes,
        headers: dict[bytes, bytes],
        listed: list[tuple[bytes, bytes]],
        keep_alive: bool,
        length_at: int,
    ) -> RequestHead:
        key = ((b":path", path), *listed)
        return shared.setdefault(key, RequestHead(path, headers, listed, keep_alive, length_at))

    monkeypatch.setattr("comity.http.connection.RequestHead", share_head)
    # However slow this machine is, only a change ends what the gateway knows of a head.
    monkeypatch.setattr("comity.app.http.KNOWN_SECONDS", 3600.0)
    return shared


async def granted_caller(gateway: PlannedGateway, path: str = "/servers/up/mcp") -> Caller:
    """Return a caller who has a grant, and whose calls have a plan."""
    await gateway.grant("up/read")
    caller = await gateway.caller(path, "read" if path.startswith("/servers") else "up__read")
    await caller.pass_with_plan()
    return caller


def soon(seconds: float = 1.5) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def test_head_is_known_as_long_as_nothing_changes(heads: Heads) -> None:
    async with planning() as gateway:
        caller = await granted_caller(gateway)
        (known,) = [each for each in heads.values() if type(each.sender) is KnownSender]
        before = known.sender
        assert not await caller.call()
        assert known.sender is before
        await gateway.grant("up/write")
        assert not await caller.call()
        assert known.sender is not before


# Grants and the rules of the settings.


@pytest.mark.requirement("MGP-5.4-revoke")
@pytest.mark.parametrize("path", ["/servers/up/mcp", "/mcp"])
async def test_a_revoked_grant_ends_the_plan(path: str) -> None:
    async with planning() as gateway:
        caller = await granted_caller(gateway, path)
        await gateway.order("/api/grants/delete", subject=CALLER, target="up/read")
        assert await caller.call() in DENIED
        await gateway.grant("up/read")
        assert not await caller.call()


async def test_grant_replaced_by_a_denial() -> None:
    async with planning() as gateway:
        caller = await granted_caller(gateway)
        await gateway.grant("up/read", "deny")
        assert await caller.call() in DENIED


async def test_denial_for_everybody() -> None:
    async with planning() as gateway:
        caller = await granted_caller(gateway)
        await gateway.grant("up/read", "deny", subject="*")
        assert await caller.call() in DENIED


async def test_grant_that_says_ask() -> None:
    async with planning() as gateway:
        caller = await granted_caller(gateway)
        before = gateway.servers["up"].calls
        await gateway.grant("up/read", "ask")
        assert await caller.call() == "pending_approval"
        assert gateway.servers["up"].calls == before


async def test_grant_that_expires() -> None:
    async with planning() as gateway:
        caller = await granted_caller(gateway)
        end = soon()
        await gateway.grant("up/read", expires_at=end.isoformat())
        assert await caller.refusal_at(end) in DENIED
        assert gateway.plan_of("read") is None


async def test_denial_that_expires() -> None:
    async with planning(policy_default_policy="allow") as gateway:
        caller = await gateway.caller()
        await caller.pass_with_plan()
        end = soon()
        await gateway.grant("up/read", "deny", expires_at=end.isoformat())
        async with asyncio.timeout(20):
            while await caller.call():
                assert gateway.plan_of("read") is None
        assert datetime.now(UTC) >= end


async def test_guardrail_added_by_a_reload() -> None:
    async with planning() as gateway:
        caller = await granted_caller(gateway)
        await gateway.apply(forbid=(Guardrail("agent:*", "tools/call", "up/*"),))
        assert await caller.call() in DENIED
        await gateway.apply(forbid=())
        assert not await caller.call()


async def test_grant_of_the_settings_removed_by_a_reload() -> None:
    own = Grant(CALLER, "tools/call", "up/read", Effect.ALLOW)
    async with planning(grants=(*OPERATOR_GRANTS, own)) as gateway:
        caller = await gateway.caller()
        await caller.pass_with_plan()
        await gateway.apply(grants=OPERATOR_GRANTS)
        assert await caller.call() in DENIED


async def test_default_policy_changed_by_a_reload() -> None:
    async with planning(policy_default_policy="allow") as gateway:
        caller = await gateway.caller()
        await caller.pass_with_plan()
        strict = replace(gateway.settings.policy, default_policy="deny")
        await gateway.apply(policy=strict)
        assert await caller.call() in DENIED


async def test_default_policy_of_a_server_changed_by_a_reload() -> None:
    async with planning(policy_default_policy="allow") as gateway:
        caller = await gateway.caller()
        await caller.pass_with_plan()
        (server,) = gateway.settings.servers
        await gateway.apply(servers=(replace(server, default_policy="deny"),))
        assert await caller.call() in DENIED


async def test_rate_limit_added_by_a_reload() -> None:
    async with planning() as gateway:
        caller = await granted_caller(gateway)
        rule = LimitRule(rate=RateLimit(2, 3600.0, 2))
        await gateway.apply(limits=replace(gateway.settings.limits, rates=(rule,)))
        assert [await caller.call() for _ in range(3)] == ["", "", "rate_limited"]
        await gateway.apply(limits=replace(gateway.settings.limits, rates=()))
        assert not await caller.call()


# Keys and principals.


@pytest.mark.requirement("REG-auth-keys")
async def test_a_revoked_key_ends_the_plan() -> None:
    async with planning() as gateway:
        await gateway.grant("up/read")
        key = await gateway.new_key()
        caller = await gateway.caller(key=key["key"])
        await caller.pass_with_plan()
        await gateway.order(f"/api/keys/{key['id']}/revoke")
        assert await caller.call() == "unauthenticated"


async def test_a_rotated_key_ends_the_plan() -> None:
    async with planning() as gateway:
        await gateway.grant("up/read")
        key = await gateway.new_key()
        caller = await gateway.caller(key=key["key"])
        await caller.pass_with_plan()
        await gateway.order(f"/api/keys/{key['id']}/rotate", grace_seconds=0)
        assert await caller.call() in ("unauthenticated", "credential_expired")


async def test_key_that_expires() -> None:
    async with planning() as gateway:
        await gateway.grant("up/read")
        end = soon(2.5)
        key = await gateway.new_key(expires_at=end.isoformat())
        caller = await gateway.caller(key=key["key"])
        await caller.pass_with_plan()
        assert await caller.refusal_at(end) in ("unauthenticated", "credential_expired")


async def test_key_with_fewer_permissions() -> None:
    async with planning() as gateway:
        await gateway.grant("up/read")
        made = await gateway.new_key()
        caller = await gateway.caller(key=made["key"])
        await caller.pass_with_plan()
        snapshot = gateway.visitor.parts.snapshot
        key = await snapshot.records.keys.get(made["id"])
        assert key is not None
        narrowed = replace(key, permissions=("ToolInvoke(up/write)",))
        await snapshot.records.keys.put(narrowed, datetime.now(UTC))
        await snapshot.refresh()
        assert await caller.call() in DENIED


async def test_a_disabled_principal_is_refused() -> None:
    async with planning() as gateway:
        caller = await granted_caller(gateway)
        await gateway.order(f"/api/principals/{CALLER}/disable")
        assert await caller.call() == "unauthenticated"
        await gateway.order(f"/api/principals/{CALLER}/enable")
        assert not await caller.call()


# Tools, their definitions and the permissions of their servers.


def entry_of(gateway: PlannedGateway, server: str, tool: str) -> CatalogEntry | None:
    return gateway.visitor.parts.catalog.find_own(server, EntryKind.TOOL, tool)


async def change_tool(gateway: PlannedGateway, server: str, tool: str, told: Frame | None) -> None:
    """Let a server change, add or remove a tool, until the gateway has read the new list."""
    before, offered = entry_of(gateway, server, tool), gateway.servers[server].tools
    if told is None:
        del offered[tool]
    else:
        offered[tool] = told
    await gateway.servers[server].tell_list_changed()
    await gateway.until(lambda: entry_of(gateway, server, tool) != before)


@pytest.mark.requirement("MGP-16.7-pinned")
async def test_changed_definition_and_its_acceptance() -> None:
    async with planning() as gateway:
        caller = await granted_caller(gateway)
        changed: Frame = {"inputSchema": PLAIN_SCHEMA, "description": "Now it does more."}
        await change_tool(gateway, "up", "read", changed)
        assert await caller.call() == "tool_disabled"
        assert await caller.call() == "tool_disabled"
        assert gateway.plan_of("read") is not None
        (seen,) = (await gateway.read("/api/definitions?server=up"))["tools"]
        accepted = await gateway.order(
            "/api/definitions/accept", server="up", tools={"read": seen["digest"]}
        )
        assert accepted["accepted"] == ["read"]
        assert not await caller.call()


async def test_a_changed_schema_is_applied() -> None:
    async with planning(policy_trust_definitions="off") as gateway:
        caller = await granted_caller(gateway)
        await change_tool(gateway, "up", "read", {"inputSchema": NEEDS_PATH})
        assert await caller.call() == "invalid_tool_args"
        await change_tool(gateway, "up", "read", {"inputSchema": PLAIN_SCHEMA})
        assert not await caller.call()


async def test_a_removed_tool_is_not_found() -> None:
    async with planning() as gateway:
        caller = await granted_caller(gateway, "/mcp")
        await change_tool(gateway, "up", "read", None)
        assert await caller.call() == "tool_not_found"
        await change_tool(gateway, "up", "read", {"inputSchema": PLAIN_SCHEMA})
        assert not await caller.call()


@asynccontextmanager
async def with_permission(**approval: object) -> AsyncGenerator[tuple[PlannedGateway, Caller]]:
    """Run a gateway whose server needs a permission, which the operator approved."""
    async with (
        tool_servers(tools={"read": NEEDS_PERMISSION}) as servers,
        gateway_before(servers) as gateway,
    ):
        await gateway.grant("up/read")
        caller = await gateway.caller()
        assert await caller.call() == "permission_denied"
        told = {"server": "up", "permission": PERMISSION, **approval}
        await gateway.order("/api/permissions/approve", **told)
        assert not await caller.call()
        yield gateway, caller


@pytest.mark.parametrize("decision", ["deny", "reset"])
async def test_permission_of_a_server_revoked(decision: str) -> None:
    async with with_permission() as (gateway, caller):
        await caller.pass_with_plan()
        path = f"/api/permissions/{decision}"
        await gateway.order(path, server="up", permission=PERMISSION)
        assert await caller.call() == "permission_denied"


async def test_permission_of_a_server_that_expires() -> None:
    begun = datetime.now(UTC)
    async with with_permission(expires_in_seconds=3) as (gateway, caller):
        permits = gateway.visitor.parts.server_policies.tool_reviews.permission_service
        end = permits.permissions_of("up").expires_at
        assert end is not None
        assert end > begun
        assert gateway.plan_of("read") is None
        assert await caller.refusal_at(end) == "permission_denied"


async def test_tool_that_needs_another_permission() -> None:
    async with planning(policy_trust_definitions="off") as gateway:
        caller = await granted_caller(gateway)
        await change_tool(gateway, "up", "read", NEEDS_PERMISSION)
        assert await caller.call() == "permission_denied"


# Names that several servers use.


@asynccontextmanager
async def two_servers(**chosen: Any) -> AsyncGenerator[PlannedGateway]:
    """Run a gateway before two servers, of which only `up` has the tool `read` at first."""
    async with tool_servers(("up", "other")) as servers:
        del servers["other"].tools["read"]
        async with gateway_before(servers, **chosen) as gateway:
            yield gateway


async def test_another_server_with_the_same_tool_name() -> None:
    async with two_servers(policy_default_policy="allow") as gateway:
        caller = await gateway.caller("/mcp", "read")
        await caller.pass_with_plan()
        await change_tool(gateway, "other", "read", {"inputSchema": PLAIN_SCHEMA})
        assert await caller.call() == "tool_not_found"
        await change_tool(gateway, "other", "read", None)
        assert not await caller.call()


async def test_another_server_whose_tool_becomes_visible_by_time() -> None:
    async with two_servers(policy_default_policy="allow") as gateway:
        caller = await gateway.caller("/mcp", "read")
        await change_tool(gateway, "other", "read", {"inputSchema": PLAIN_SCHEMA})
        assert await caller.call() == "tool_not_found"
        end = soon()
        await gateway.grant("other/read", "deny", expires_at=end.isoformat())
        assert await caller.refusal_at(end) == "tool_not_found"


async def test_another_server_that_imitates_a_tool() -> None:
    async with two_servers(policy_on_suspicious_definition="strict") as gateway:
        caller = await granted_caller(gateway)
        await change_tool(gateway, "other", "read", {"inputSchema": PLAIN_SCHEMA})
        assert await caller.call() == "tool_disabled"
        await change_tool(gateway, "other", "read", None)
        assert not await caller.call()


# Servers, their policies and their endpoints.


@pytest.mark.parametrize(
    ("policy", "refusal"),
    [
        (ToolPolicy(disabled=True), "tool_disabled"),
        (ToolPolicy(validators=("unknown_validator",)), "validation_blocked"),
        (ToolPolicy(risk=Risk.DANGEROUS), "pending_approval"),
        (ToolPolicy(require_approval=RequireApproval.ALWAYS), "pending_approval"),
    ],
    ids=["disabled", "validator", "risk", "approval"],
)
async def test_policy_of_a_tool_changed_by_a_reload(
    policy: ToolPolicy, refusal: str, tmp_path: Path
) -> None:
    async with tool_servers() as servers:
        safe = replace(servers["up"].settings, tools={"read": ToolPolicy(risk=Risk.SAFE)})
        async with (
            gateway_before(servers, safe, policy_require_approval="dangerous") as gateway,
            reloading(gateway, tmp_path) as file,
        ):
            await gateway.grant("up/*")
            caller = await gateway.caller()
            await caller.pass_with_plan()
            policies = gateway.visitor.parts.server_policies
            file.write(_with_server(gateway, tools={"read": policy}))
            await gateway.until(lambda: policies.policy_of("up").tool_policy("read") == policy)
            await gateway.until(lambda: entry_of(gateway, "up", "read"))
            assert await caller.call() == refusal


async def test_scopes_of_a_server_changed_by_a_reload(tmp_path: Path) -> None:
    async with planning() as gateway, reloading(gateway, tmp_path) as file:
        caller = await granted_caller(gateway)
        policies = gateway.visitor.parts.server_policies
        scoped = {"scope_of": {"read": "/path"}, "scopes": {"*": ScopeBounds(("/project/**",))}}
        file.write(_with_server(gateway, live=scoped))
        await gateway.until(lambda: policies.live_policy("up").scope_of)
        assert await caller.call() == "invalid_tool_args"


async def test_feature_set_disabled_by_a_reload(tmp_path: Path) -> None:
    async with tool_servers() as servers:
        up = servers["up"]
        up.capabilities["experimental"] = LIVE
        enabled = replace(up.settings, live={"enabled": ("files",)})
        async with (
            gateway_before(servers, enabled) as gateway,
            reloading(gateway, tmp_path) as file,
        ):
            caller = await granted_caller(gateway)
            policies = gateway.visitor.parts.server_policies
            file.write(_with_server(gateway, live={}))
            await gateway.until(lambda: not policies.live_policy("up").enabled)
            assert await caller.call() == "tool_disabled"


async def test_server_that_has_feature_sets_after_a_restart() -> None:
    async with planning() as gateway:
        caller = await granted_caller(gateway)
        gateway.servers["up"].capabilities["experimental"] = LIVE
        await gateway.order("/api/servers/up/restart")
        host = gateway.visitor.parts.server_policies.live_host
        await gateway.until(lambda: host.get("up"))
        await gateway.until(lambda: entry_of(gateway, "up", "read"))
        assert await caller.call() == "tool_disabled"


def _with_server(gateway: PlannedGateway, **changed: Any) -> Settings:
    """Return the settings of a gateway with one server that is changed."""
    (server,) = gateway.settings.servers
    return replace(gateway.settings, servers=(replace(server, **changed),))


@pytest.mark.parametrize(
    ("path", "refusal"), [("/servers/up/mcp", "nothing_here"), ("/mcp", "tool_not_found")]
)
async def test_server_removed_by_a_reload(path: str, refusal: str, tmp_path: Path) -> None:
    async with planning() as gateway, reloading(gateway, tmp_path) as file:
        caller = await granted_caller(gateway, path)
        file.write(replace(gateway.settings, servers=()))
        registry = gateway.visitor.parts.upstream_registry
        await gateway.until(lambda: registry.endpoint_of("up") is None)
        assert await caller.call() == refusal


async def test_a_stopped_server_is_not_called() -> None:
    async with planning() as gateway:
        caller = await granted_caller(gateway)
        await gateway.order("/api/servers/up/stop")
        assert await caller.call() == "server_stopped"
        await gateway.order("/api/servers/up/start")
        await gateway.until(lambda: entry_of(gateway, "up", "read"))
        assert not await caller.call()


async def test_a_removed_endpoint_is_not_found() -> None:
    async with planning() as gateway:
        caller = await granted_caller(gateway)
        gateway.visitor.parts.http_app.remove_endpoints(["/servers/up/mcp"])
        assert await caller.call() == "nothing_here"


async def test_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = StoreSettings(f"sqlite:///{tmp_path / 'store.db'}", timedelta(seconds=2))
    async with planning(store=store) as gateway:
        caller = await granted_caller(gateway)
        snapshot = gateway.visitor.parts.snapshot

        async def fail(version: int) -> None:
            raise Unavailable("the store does not answer")

        monkeypatch.setattr(snapshot.records.changes, "since", fail)
        while snapshot.is_fresh:
            # The store cannot be asked any more, so nothing can make the policy fresh again.
            passed = not await caller.call()
            assert passed or not snapshot.is_fresh
        assert await caller.call() == "policy_unknown"
        assert gateway.plan_of("read") is not None
        monkeypatch.undo()
        await snapshot.refresh()
        assert not await caller.call()


# Two nodes on one store: the node that did not make the change follows it.


@dataclass
class TwoNodes:
    """Two gateways on one store and before one server. The caller is at the second one."""

    first: PlannedGateway
    second: PlannedGateway
    key: Frame
    caller: Caller


@asynccontextmanager
async def two_nodes(folder: Path, **tools: Frame) -> AsyncGenerator[TwoNodes]:
    store = StoreSettings(f"sqlite:///{folder / 'store.db'}")
    async with (
        tool_servers(tools=tools) as servers,
        gateway_before(servers, store=store) as first,
        gateway_before(servers, store=store) as second,
    ):
        await first.grant("up/read")
        key = await first.new_key()
        caller = await second.caller(key=key["key"])
        yield TwoNodes(first, second, key, caller)


async def until_passes(caller: Caller) -> None:
    """Call until the node knows what the other node wrote."""
    async with asyncio.timeout(20):
        while await caller.call():
            await asyncio.sleep(0.02)


PLAIN_TOOL: Frame = {"inputSchema": PLAIN_SCHEMA}


async def test_other_node_follows_a_revoked_grant(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, read=PLAIN_TOOL) as nodes:
        await until_passes(nodes.caller)
        await nodes.caller.pass_with_plan()
        await nodes.first.order("/api/grants/delete", subject=CALLER, target="up/read")
        assert await nodes.caller.is_refused_soon() in DENIED


async def test_other_node_follows_a_revoked_key(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, read=PLAIN_TOOL) as nodes:
        await until_passes(nodes.caller)
        await nodes.caller.pass_with_plan()
        await nodes.first.order(f"/api/keys/{nodes.key['id']}/revoke")
        assert await nodes.caller.is_refused_soon() == "unauthenticated"


async def test_other_node_follows_a_disabled_principal(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, read=PLAIN_TOOL) as nodes:
        await until_passes(nodes.caller)
        await nodes.caller.pass_with_plan()
        await nodes.first.order(f"/api/principals/{CALLER}/disable")
        assert await nodes.caller.is_refused_soon() == "unauthenticated"


async def test_other_node_follows_a_permission_of_a_server(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, read=NEEDS_PERMISSION) as nodes:
        about = {"server": "up", "permission": PERMISSION}
        await nodes.first.order("/api/permissions/approve", **about)
        await until_passes(nodes.caller)
        await nodes.caller.pass_with_plan()
        await nodes.first.order("/api/permissions/deny", **about)
        assert await nodes.caller.is_refused_soon() == "permission_denied"


async def test_other_node_follows_an_accepted_definition(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, read=PLAIN_TOOL) as nodes:
        await until_passes(nodes.caller)
        before = [entry_of(each, "up", "read") for each in (nodes.first, nodes.second)]
        await change_tool(nodes.first, "up", "read", {**PLAIN_TOOL, "description": "It does more."})
        await nodes.second.until(lambda: entry_of(nodes.second, "up", "read") not in before)
        assert await nodes.caller.call() == "tool_disabled"
        assert await nodes.caller.call() == "tool_disabled"
        assert nodes.second.plan_of("read") is not None
        (seen,) = (await nodes.first.read("/api/definitions?server=up"))["tools"]
        await nodes.first.order(
            "/api/definitions/accept", server="up", tools={"read": seen["digest"]}
        )
        async with asyncio.timeout(5):
            while refusal := await nodes.caller.call():
                assert refusal == "tool_disabled"
                await asyncio.sleep(0.02)
