"""What the gateway itself calls again: by an operator's word alone. (MGP §14.6, S9)"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from comity.policy.grants import Effect, Grant
from comity.policy.risk import ToolPolicy
from tests.conformance.realm import OFFER
from tests.support.credentials import GivenOut, bearer
from tests.support.upstream import Exchange, Upstream, encode, scripted
from tests.support.visitor import SECONDS, Frame, Visitor, at, visiting

SAFE = ToolPolicy(idempotent=True, max_retries=2)
WITH_SPARE = ToolPolicy(idempotent=True, max_retries=1, fallback_tool="spare")
WAIT_MS = 40
REFUSAL = "dev.comity/refusal"


@dataclass
class Tried:
    """A gateway before the server `up`, whose tool `add` fails as often as it is told to."""

    visitor: Visitor
    server: Upstream
    given: GivenOut
    fails: int = 0
    recovery: Frame = field(default_factory=dict[str, Any])
    at: list[float] = field(default_factory=list[float])

    @property
    def called(self) -> list[str]:
        return [each.frame["params"]["name"] for each in self.server.of("tools/call")]

    async def client(self, key: str, capabilities: Frame | None = None) -> Visitor:
        found = self.visitor.other("/mcp")
        found.session = bearer(key)
        await found.greet(capabilities=capabilities)
        found.session |= bearer(key)
        return found

    async def call(self, capabilities: Frame | None = None, key: str = "") -> Frame:
        client = await self.client(key or self.given.give("agent:a"), capabilities)
        return await (await client.call("up__add")).json()

    async def entries(self, kind: str) -> list[Frame]:
        journal = self.visitor.parts.audit_log_components.audit_log
        await journal.flush()
        lines = await journal.store.page(journal.node, 0, 10_000)
        found = [json.loads(line.body) for line in lines]
        return [each for each in found if each["event_type"] == kind]

    async def figures(self) -> str:
        operator = self.given.give("agent:a")
        reply = await self.visitor.send("GET", bearer(operator).items(), path="/metrics")
        return (await reply.body()).decode()


@asynccontextmanager
async def trying(
    tool: ToolPolicy | None, fails: int, recovery: Frame, **chosen: Any
) -> AsyncGenerator[Tried]:
    given = GivenOut()
    async with scripted() as server:
        policies = {} if tool is None else {"add": tool}
        settings = replace(at(server.url), tools=policies)
        decided: dict[str, Any] = {
            "grants": (Grant("*", "*", "*", Effect.ALLOW),),
            "policy_require_approval": "never",
            **chosen,
        }

        @server.act("tools/list")
        async def listed(exchange: Exchange) -> None:
            names = ("add", "spare", "read")
            tools: list[Frame] = [{"name": n, "inputSchema": {"type": "object"}} for n in names]
            tools[2]["annotations"] = {"readOnlyHint": True}
            await exchange.result({"tools": tools})

        async with visiting(
            settings, register=given.register, identity_mode="required", **decided
        ) as visitor:
            tried = Tried(visitor, server, given, fails, recovery)

            @server.act("add")
            async def add(exchange: Exchange) -> None:
                tried.at.append(time.monotonic())
                if len(tried.at) > tried.fails:
                    await exchange.text("added")
                    return
                error = {"code": 3001, "message": "no room", "data": {"_mgp": tried.recovery}}
                await exchange.respond(200, encode({"id": exchange.id, "error": error}))

            yield tried


def said(retryable: bool = True, **more: object) -> Frame:
    return {
        "category": "resource",
        "retryable": retryable,
        "retry_after_ms": WAIT_MS,
        "retry_strategy": "fixed_delay",
        "max_retries": 3,
        **more,
    }


@pytest.mark.requirement("MGP-14.6-wait", "MGP-14.6-audit")
async def test_a_marked_tool_is_called_again_after_at_least_the_wait_and_that_is_told() -> None:
    async with trying(SAFE, 2, said()) as tried:
        answer = await tried.call()
        assert answer["result"]["content"][0]["text"] == "added"
        waits = [b - a for a, b in zip(tried.at, tried.at[1:], strict=False)]
        assert len(waits) == 2
        assert all(wait >= WAIT_MS / 1000 for wait in waits)
        figures = await tried.figures()
        entries = await tried.entries("dev.comity.call_retried")
    assert 'comity_retries_total{server="up",tool="add",reason="exhausted"} 2' in figures
    told = [(each["actor"]["id"], each["target"]["tool_name"], each["details"]) for each in entries]
    assert told == [
        ("agent:a", "add", {"attempt": attempt, "reason": "exhausted"}) for attempt in (1, 2)
    ]


@pytest.mark.requirement("MGP-14.6-written")
async def test_each_time_that_a_call_is_made_again_is_in_the_journal() -> None:
    async with trying(SAFE, 2, said()) as tried:
        await tried.call()
        journal = tried.visitor.parts.audit_log_components.audit_log
        await journal.flush()
        lines = await journal.store.page(journal.node, 0, 1000)
    entries = [json.loads(line.body) for line in lines]
    again = [each for each in entries if each["event_type"] == "dev.comity.call_retried"]
    assert [each["details"]["attempt"] for each in again] == [1, 2]
    assert {each["details"]["reason"] for each in again} == {"exhausted"}
    assert {each["actor"]["id"] for each in again} == {"agent:a"}
    target = {"server_id": "up", "tool_name": "add"}
    assert all(target.items() <= each["target"].items() for each in again)


@pytest.mark.requirement("MGP-14.6-strategy")
async def test_waits_grow_where_the_server_asks_for_that() -> None:
    async with trying(SAFE, 2, said(retry_strategy="exponential_backoff")) as tried:
        assert "result" in await tried.call()
        first, second = (b - a for a, b in zip(tried.at, tried.at[1:], strict=False))
        assert first >= WAIT_MS / 1000
        assert second >= 2 * WAIT_MS / 1000


@pytest.mark.requirement("MGP-14.6-stop", "MGP-14.3-3001")
@pytest.mark.parametrize(
    ("operators", "servers", "made"), [(2, 3, 3), (5, 1, 2), (5, 0, 1), (0, 3, 1)]
)
async def test_attempts_end_with_the_smaller_number_and_the_error_is_told(
    operators: int, servers: int, made: int
) -> None:
    tool = ToolPolicy(idempotent=True, max_retries=operators)
    async with trying(tool, 99, said(max_retries=servers)) as tried:
        error = (await tried.call(OFFER))["error"]
        assert (error["code"], error["message"]) == (3001, "no room")
        assert len(tried.at) == made


@pytest.mark.requirement("MGP-14.6-noretry")
async def test_what_is_not_retryable_is_reported_and_not_repeated() -> None:
    async with trying(WITH_SPARE, 99, said(retryable=False)) as tried:
        assert (await tried.call(OFFER))["error"]["code"] == 3001
        assert tried.called == ["add"]


@pytest.mark.parametrize(
    "tool",
    [
        pytest.param(None, id="nothing decided"),
        pytest.param(ToolPolicy(max_retries=5), id="retries without a mark"),
        pytest.param(ToolPolicy(idempotent=True), id="a mark without retries"),
    ],
)
async def test_a_servers_word_alone_repeats_nothing_and_chooses_no_other_tool(
    tool: ToolPolicy | None,
) -> None:
    async with trying(tool, 99, said(fallback_tool="spare", max_retries=50)) as tried:
        assert (await tried.call())["error"]["code"] == 3001
        assert tried.called == ["add"]


@pytest.mark.requirement("MGP-14.6-fallback")
async def test_the_operators_other_tool_is_tried_when_all_retries_have_failed() -> None:
    async with trying(WITH_SPARE, 99, said()) as tried:
        result = (await tried.call())["result"]
        assert tried.called == ["add", "add", "spare"]
        assert result["content"][0]["text"] == "done"
        told = result["_meta"]["dev.comity/fallback"]
        assert told == {"tool": "up__spare", "instead_of": "up__add"}
        assert 'comity_fallbacks_total{server="up",tool="add"} 1' in await tried.figures()


async def test_the_other_tool_is_not_called_for_whoever_may_not_use_it() -> None:
    grants = (Grant("agent:a", "*", "up/add", Effect.ALLOW),)
    async with trying(WITH_SPARE, 99, said(), grants=grants) as tried:
        assert (await tried.call(OFFER))["error"]["code"] == 3001
        assert tried.called == ["add", "add"]


async def test_tools_that_only_read_are_repeated_where_the_operator_chose_that() -> None:
    async with trying(None, 0, {}, limits_retry_read_only=1) as tried:
        attempts = 0

        @tried.server.act("read")
        async def read(exchange: Exchange) -> None:
            nonlocal attempts
            attempts += 1
            if attempts > 1:
                await exchange.text("read")
            else:
                await exchange.respond(503)

        client = await tried.client(tried.given.give("agent:a"))
        answer = await (await client.call("up__read")).json()
        assert answer["result"]["content"][0]["text"] == "read"
        assert attempts == 2


async def test_a_call_that_broke_off_is_made_again_and_an_unmarked_one_is_in_doubt() -> None:
    async with trying(SAFE, 0, {}) as tried:
        broken = 0

        async def breaks_once(exchange: Exchange) -> None:
            nonlocal broken
            broken += 1
            if broken == 1:
                exchange.hang_up()
            else:
                await exchange.text("added")

        tried.server.acts["add"] = breaks_once
        assert "isError" not in (await tried.call())["result"]
        assert broken == 2

        @tried.server.act("spare")
        async def spare(exchange: Exchange) -> None:
            exchange.hang_up()

        client = await tried.client(tried.given.give("agent:a"))
        refused = (await (await client.call("up__spare")).json())["result"]["_meta"][REFUSAL]
        assert (refused["retryable"], refused["details"]["outcome"]) == (False, "unknown")
        assert tried.called.count("spare") == 1


async def test_a_client_that_leaves_amid_the_pause_ends_the_attempts() -> None:
    async with trying(SAFE, 99, said(retry_after_ms=300)) as tried:
        key = tried.given.give("agent:a")
        visitor = tried.visitor.other("/mcp")
        calling = asyncio.ensure_future(visitor.call_modern("up__add", **bearer(key)))
        await tried.server.arrival("tools/call")
        calling.cancel()
        for peer in visitor.place.peers:
            peer.writer.transport.abort()
        underway = tried.visitor.parts.active_calls
        async with asyncio.timeout(SECONDS):
            while len(underway):
                underway.check(0)
                await asyncio.sleep(0.01)
        assert len(tried.at) <= 2
