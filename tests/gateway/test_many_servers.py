"""1,000 servers with 100 tools each: all are listed, and a change voids only what it concerns.

The counts decide. The processor time of a change is told, since it depends on the machine.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from comity.app.gateway import GatewayParts, assemble_gateway
from comity.app.settings import ServerSettings
from comity.catalog.catalog import PAGE_ITEMS
from comity.gateway.pipeline import CallGate, CallPlan
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.protocol import public_name
from comity.policy.grants import Effect, Grant
from comity.servers.wiring import options_of
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from tests.pace import at_length
from tests.support.figures import Tell
from tests.support.planned_gateway import USUAL
from tests.support.settings import settings_with

pytestmark = pytest.mark.timeout(1800)

SERVERS, TOOLS, PRINCIPALS = at_length((1_000, 100, 100_000), (40, 30, 500))
PLANS = min(SERVERS, 100)
"""How many servers the two principals of the test call."""

CALLERS = [Actor("agent:0"), Actor("agent:1")]
FRAME = jsonrpc.make_request(1, protocol.CALL_TOOL, {"name": "tool-0", "arguments": {}})


@dataclass
class Scene:
    """A gateway with many servers and principals."""

    parts: GatewayParts

    @property
    def gate(self) -> CallGate:
        return self.parts.all_servers_endpoint.call_gate

    def plans(self) -> dict[tuple[str, str], CallPlan]:
        """The plan of each caller for a tool of each server."""
        found: dict[tuple[str, str], CallPlan] = {}
        for actor in CALLERS:
            for number in range(PLANS):
                stream = ClientStream()
                stream.actor = actor
                call, name = Call(FRAME, stream, None, 0), public_name(f"srv-{number}", "tool-0")
                found[actor.party, f"srv-{number}"] = self.gate.plan_for(call, "", name)
        return found

    def remade(self, before: dict[tuple[str, str], CallPlan]) -> set[tuple[str, str]]:
        """The calls whose plans were made anew."""
        return {key for key, plan in self.plans().items() if plan is not before[key]}

    async def list_tools(self, server: str, description: str = "") -> list[CatalogEntry]:
        entries = [entry_of(server, f"tool-{number}", description) for number in range(TOOLS)]
        await self.parts.server_policies.tool_reviews.review_list(server, entries)
        return entries

    async def put_grants(self, grants: Sequence[Grant]) -> None:
        await self.parts.snapshot.records.grants.put(*grants)
        await self.parts.snapshot.refresh()


def entry_of(server: str, name: str, description: str) -> CatalogEntry:
    public = public_name(server, name)
    told = {"name": public, "description": description, "inputSchema": {"type": "object"}}
    return CatalogEntry(public, server, name, jsonrpc.to_json(told))


@asynccontextmanager
async def many() -> AsyncGenerator[Scene]:
    settings = settings_with(**{**USUAL, "policy_default_policy": "deny"})
    async with assemble_gateway(settings) as parts:
        scene = Scene(parts)
        grants = [
            Grant(f"agent:{number}", protocol.CALL_TOOL, "*", Effect.ALLOW, granted_at=NOW)
            for number in range(PRINCIPALS)
        ]
        await scene.put_grants(grants)
        for number in range(SERVERS):
            told = ServerSettings(f"srv-{number}", "x", "http", url="http://127.0.0.1:9/")
            options = options_of(told, parts.upstream_registry.settings)
            parts.server_policies.apply_to_server(told, options)
            entries = await scene.list_tools(told.id)
            parts.catalog.put(told.id, EntryKind.TOOL, entries)
        yield scene


NOW = datetime(2026, 11, 15, tzinfo=UTC)


async def test_all_tools_are_listed_and_a_change_voids_only_its_own_plans(tell: Tell) -> None:
    async with many() as scene:
        names, pages, longest, cursor = set[bytes](), 0, 0.0, None
        while pages == 0 or cursor is not None:
            began = time.thread_time()
            page, cursor = scene.gate.page(CALLERS[0], EntryKind.TOOL, lambda _: True, cursor)
            longest, pages = max(longest, time.thread_time() - began), pages + 1
            assert len(page) <= PAGE_ITEMS
            names.update(page)
        assert len(names) == SERVERS * TOOLS
        tell(f"{len(names)} tools on {pages} pages, each within {1e3 * longest:.1f} ms")

        before = scene.plans()
        assert scene.remade(before) == set()
        entries = await scene.list_tools("srv-0", "It does more.")
        began = time.thread_time()
        scene.parts.catalog.put("srv-0", EntryKind.TOOL, entries)
        took = time.thread_time() - began
        assert scene.remade(before) == {(actor.party, "srv-0") for actor in CALLERS}
        tell(f"the change of one of {SERVERS} servers took {1e3 * took:.2f} ms of the loop")

        before = scene.plans()
        denied = Grant("agent:1", protocol.CALL_TOOL, "srv-1/other", Effect.DENY)
        await scene.parts.snapshot.records.grants.put(denied)
        began = time.thread_time()
        await scene.parts.snapshot.refresh()
        took = time.thread_time() - began
        assert scene.remade(before) == {key for key in before if key[0] == "agent:1"}
        tell(f"the change of one grant of {PRINCIPALS} took {1e3 * took:.2f} ms of the loop")


async def test_each_server_is_added_in_a_turn_of_its_own() -> None:
    async with assemble_gateway(settings_with(**USUAL)) as parts:
        counts, loop = list[int](), asyncio.get_running_loop()

        def count_servers() -> None:
            counts.append(len(parts.servers))
            if counts[-1] < 10:
                loop.call_soon(count_servers)

        loop.call_soon(count_servers)
        await parts.upstream_registry.add_all(
            ServerSettings(f"srv-{number}", "x", "http", url="http://127.0.0.1:9/")
            for number in range(10)
        )
        assert len(parts.servers) == 10
        assert sorted(set(counts)) == list(range(counts[0], 11))
