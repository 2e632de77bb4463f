"""Rates and quotas as callers meet them: told exactly when to come back, and let in then."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from comity.policy.grants import Effect, Grant
from comity.policy.limits import LimitRule, Quota
from comity.toolkit.resilience import RateLimit
from tests.conformance.realm import OFFER
from tests.support.credentials import GivenOut, bearer
from tests.support.upstream import Exchange, Upstream, scripted
from tests.support.visitor import SECONDS, Frame, Reply, Visitor, at, request, visiting

REFUSAL = "dev.comity/refusal"
PER_PARTY = LimitRule(rate=RateLimit(2, 3600.0, 2))
PER_TOOL = LimitRule(per=("tool",), rate=RateLimit(2, 3600.0, 2))
PER_SERVER = LimitRule(per=("server",), rate=RateLimit(2, 3600.0, 2))
PER_KEY = LimitRule(per=("key",), rate=RateLimit(2, 3600.0, 2))
DAILY = LimitRule(quota=Quota(2, "day"))
QUICK = LimitRule(rate=RateLimit(4, 1.0, 1))

WHERE: dict[str, Any] = {}
"""The store of the gateways of a test, in which they count."""


@pytest.fixture(params=["memory", "store"], autouse=True)
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if request.param == "store":
        monkeypatch.setitem(WHERE, "store_url", f"sqlite:///{tmp_path / 'comity.db'}")


class Counted:
    """A gateway with limits before the server `up`, whose tools are `add` and `sub`."""

    def __init__(self, visitor: Visitor, given: GivenOut, server: Upstream) -> None:
        self.visitor, self.given, self.server = visitor, given, server

    async def client(self, key: str, capabilities: Frame | None = None) -> Visitor:
        found = self.visitor.other("/mcp")
        found.session = bearer(key)
        await found.greet(capabilities=capabilities)
        found.session |= bearer(key)
        return found

    @property
    def calls(self) -> int:
        return len(self.server.of("tools/call"))


@asynccontextmanager
async def counting(*limits: LimitRule, **chosen: Any) -> AsyncGenerator[Counted]:
    given = GivenOut()
    async with scripted() as server:

        @server.act("tools/list")
        async def listed(exchange: Exchange) -> None:
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("add", "sub")]
            await exchange.result({"tools": tools})

        grants = (Grant("*", "*", "*", Effect.ALLOW),)
        async with visiting(
            at(server.url),
            register=given.register,
            identity_mode="required",
            grants=grants,
            policy_require_approval="never",
            limits_rates=limits,
            **WHERE,
            **chosen,
        ) as visitor:
            yield Counted(visitor, given, server)


async def outcome(client: Visitor, tool: str = "up__add") -> Frame | None:
    """The refusal of a call, or None where it went through."""
    answer = await (await client.call(tool)).json()
    if "error" in answer:
        return answer["error"]
    return answer["result"].get("_meta", {}).get(REFUSAL)


@pytest.mark.requirement("MGP-14.3-3000", "MGP-14.4-data", "MGP-14.5-retry_after_ms")
@pytest.mark.requirement("MGP-14.5-details")
async def test_a_caller_that_comes_too_often_is_told_exactly_when_to_come_back() -> None:
    async with counting(PER_PARTY) as counted:
        key = counted.given.give("agent:a")
        client = await counted.client(key, OFFER)
        assert [await outcome(client) for _ in range(2)] == [None, None]
        error = await outcome(client)
        assert error is not None
        assert error["code"] == 3000
        recovery = error["data"]["_mgp"]
        assert (recovery["category"], recovery["retryable"]) == ("resource", True)
        assert 0 < recovery["retry_after_ms"] <= 1_800_000
        told = recovery["details"]
        assert (told["limit"], told["window_secs"], told["current"]) == (2, 3600, 3)
        plain = await outcome(await counted.client(key))
        assert plain is not None
        assert (plain["error_type"], plain["retryable"]) == ("rate_limited", True)
        assert counted.calls == 2


@pytest.mark.parametrize(
    ("limit", "others"),
    [
        # Whether another party, another key of the same party, and another tool may still call.
        pytest.param(PER_PARTY, (True, False, False), id="party"),
        pytest.param(PER_KEY, (True, True, False), id="key"),
        pytest.param(PER_TOOL, (False, False, True), id="tool"),
        pytest.param(PER_SERVER, (False, False, False), id="server"),
        pytest.param(
            LimitRule(per=("principal", "tool"), rate=RateLimit(2, 3600.0, 2)),
            (True, False, True),
            id="both",
        ),
    ],
)
async def test_what_is_counted_is_what_the_operator_wrote(
    limit: LimitRule, others: tuple[bool, ...]
) -> None:
    async with counting(limit) as counted:
        first = await counted.client(counted.given.give("agent:a"))
        for _ in range(2):
            assert await outcome(first) is None
        assert await outcome(first) is not None
        found = (
            await outcome(await counted.client(counted.given.give("agent:b"))) is None,
            await outcome(await counted.client(counted.given.give("agent:a"))) is None,
            await outcome(first, "up__sub") is None,
        )
        assert found == others


async def test_a_refused_call_takes_nothing_of_another_limit() -> None:
    of_tool = LimitRule(target="up/add", per=("tool",), rate=RateLimit(3, 3600.0, 3))
    async with counting(of_tool, LimitRule(rate=RateLimit(1, 3600.0, 1))) as counted:
        eager = await counted.client(counted.given.give("agent:eager"))
        assert await outcome(eager) is None
        for _ in range(5):
            refusal = await outcome(eager)
            assert refusal is not None
            assert refusal["details"]["limit"] == 1
        others = [await counted.client(counted.given.give(f"agent:{n}")) for n in range(3)]
        assert [await outcome(other) is None for other in others] == [True, True, False]


async def test_a_dangerous_call_takes_more_of_a_rate() -> None:
    limit = LimitRule(rate=RateLimit(10, 3600.0, 10))
    async with counting(
        limit, limits_rate_cost_dangerous=6, limits_rate_cost_moderate=6
    ) as counted:
        # Of a tool that says nothing of itself the worst is believed.
        client = await counted.client(counted.given.give("agent:a"))
        assert await outcome(client) is None
        refusal = await outcome(client)
        assert refusal is not None
        assert refusal["details"]["current"] == 12


async def test_limits_are_followed_while_the_gateway_runs() -> None:
    async with counting() as counted:
        client = await counted.client(counted.given.give("agent:a"))
        assert await outcome(client) is None
        parts = counted.visitor.parts
        limited = replace(
            parts.upstream_registry.settings,
            limits=replace(parts.upstream_registry.settings.limits, rates=(PER_PARTY,)),
        )
        await parts.policy_components.apply_settings(limited)
        assert [await outcome(client) is None for _ in range(3)] == [True, True, False]
        await parts.policy_components.apply_settings(
            replace(limited, limits=replace(limited.limits, rates=()))
        )
        assert await outcome(client) is None


async def test_who_waits_as_long_as_told_is_let_through() -> None:
    async with counting(QUICK) as counted:
        client = await counted.client(counted.given.give("agent:a"))
        async with asyncio.timeout(SECONDS):
            refusal = None
            while refusal is None:
                refusal = await outcome(client)
            await asyncio.sleep(refusal["retry_after_ms"] / 1000)
            assert await outcome(client) is None


@pytest.mark.requirement("MGP-14.3-3002")
async def test_a_quota_that_is_used_up_says_when_it_renews() -> None:
    async with counting(DAILY) as counted:
        key = counted.given.give("agent:a")
        client = await counted.client(key, OFFER)
        assert [await outcome(client) for _ in range(2)] == [None, None]
        error = await outcome(client)
        assert error is not None
        assert error["code"] == 3002
        recovery = error["data"]["_mgp"]
        renews = datetime.fromisoformat(recovery["details"]["renews_at"])
        left = (renews - datetime.now(UTC)).total_seconds()
        assert 0 <= left <= 86_400
        assert abs(recovery["retry_after_ms"] / 1000 - left) < SECONDS
        reply = await called_at_registry(counted, key)
        assert (reply.status, (await reply.json())["error"]["code"]) == (429, -32603)


async def called_at_registry(counted: Counted, key: str) -> Reply:
    headers = {"content-type": "application/json", **bearer(key)}
    return await counted.visitor.send("POST", headers.items(), b"{}", "/tools/up__add")


@pytest.mark.parametrize("era", ["modern", "registry"])
async def test_every_door_counts_the_same_calls(era: str) -> None:
    async with counting(PER_PARTY) as counted:
        key = counted.given.give("agent:a")
        client = await counted.client(key)
        assert await outcome(client) is None
        if era == "registry":
            assert (await called_at_registry(counted, key)).status == 200
            refused = await called_at_registry(counted, key)
            body = (await refused.json())["error"]
            assert (refused.status, body["code"]) == (429, -32006)
            assert body["data"]["error_type"] == "RateLimited"
            assert int(refused.headers["retry-after"]) > 0
        else:
            other = counted.visitor.other("/servers/up/mcp")
            await other.call_modern("add", **bearer(key))
            answer = await (await other.call_modern("add", **bearer(key))).json()
            assert answer["result"]["_meta"][REFUSAL]["error_type"] == "rate_limited"
        assert await outcome(client) is not None


@pytest.mark.requirement("REG-rate-minute", "REG-rate-hour", "REG-auth-ratecheck")
@pytest.mark.parametrize(
    ("limits", "window"),
    [
        ({"requests_per_minute": 3}, 60),
        ({"requests_per_hour": 3}, 3600),
        ({"requests_per_minute": 50, "requests_per_hour": 3}, 3600),
    ],
)
async def test_a_key_has_limits_of_its_own_on_every_request(
    limits: dict[str, Any], window: int
) -> None:
    async with counting() as counted:
        key = counted.given.give("agent:a", **limits)
        headers = {"content-type": "application/json", **bearer(key)}
        spoken = json.dumps(request(5, "tools/list", {})).encode()
        # Reading the list is a request as good as any; so is a call, at whatever door.
        for _ in range(2):
            read = await counted.visitor.send("POST", headers.items(), spoken, "/tools")
            assert read.status == 200
        assert (await called_at_registry(counted, key)).status == 200
        refused = await called_at_registry(counted, key)
        error = (await refused.json())["error"]
        assert (refused.status, error["code"]) == (429, -32006)
        assert error["data"]["details"]["limit"] == 3
        assert error["data"]["details"]["window_secs"] == window
        at_mcp = counted.visitor.other("/mcp")
        answer = await (await at_mcp.call_modern("up__add", **bearer(key))).json()
        assert answer["result"]["_meta"][REFUSAL]["error_type"] == "rate_limited"
        listed = await (await at_mcp.ask_modern("tools/list", None, **bearer(key))).json()
        assert listed["error"]["data"]["error_type"] == "rate_limited"
        assert counted.calls == 1
        another = counted.given.give("agent:a")
        assert (await called_at_registry(counted, another)).status == 200


@pytest.mark.parametrize(("path", "tool"), [("/mcp", "up__add"), ("/servers/up/mcp", "add")])
async def test_a_call_within_the_limits_of_its_key_passes_at_each_endpoint(
    path: str, tool: str
) -> None:
    async with counting(DAILY) as counted:
        key = counted.given.give("agent:a", requests_per_minute=1)
        visitor = counted.visitor.other(path)
        answers = [await (await visitor.call_modern(tool, **bearer(key))).json() for _ in range(2)]
        assert [REFUSAL in str(each) for each in answers] == [False, True]
        assert counted.calls == 1


@pytest.mark.parametrize("path", ["/mcp", "/tools/up__add"])
async def test_an_address_that_shows_many_wrong_keys_is_told_to_wait(path: str) -> None:
    async with counting() as counted:
        good, newcomer = counted.given.give("agent:a"), counted.given.give("agent:b")
        assert (await called_at_registry(counted, good)).status == 200
        headers = {"content-type": "application/json", **bearer("no such key")}
        reply = await counted.visitor.send("POST", headers.items(), b"{}", path)
        async with asyncio.timeout(SECONDS):
            while reply.status == 401:
                reply = await counted.visitor.send("POST", headers.items(), b"{}", path)
        assert reply.status == 429
        assert int(reply.headers["retry-after"]) >= 1
        told = (await reply.json())["error"]["data"]
        assert told["retry_after_ms"] > 0
        # Somebody else's guesses never keep a right key out.
        assert (await called_at_registry(counted, newcomer)).status == 200
        assert (await called_at_registry(counted, good)).status == 200


async def test_credentials_that_have_expired_are_no_guesses() -> None:
    async with counting() as counted:
        past = datetime.now(UTC) - timedelta(days=1)
        expired = counted.given.give("agent:a", expires_at=past)
        for _ in range(35):
            assert (await called_at_registry(counted, expired)).status == 401
        assert (await called_at_registry(counted, counted.given.give("agent:b"))).status == 200
