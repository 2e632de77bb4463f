"""What a server reports of its health, and limits on idle time and memory."""

from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from comity.errors import METHOD_NOT_FOUND, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import UNSET
from comity.mcp.mgp import ServerLifecycleState, ShutdownReason
from comity.servers.service import (
    MAX_REPORT_BYTES,
    MAX_REPORT_MEMBERS,
    MAX_TEXT_LENGTH,
    ResourceLimits,
    ServerService,
    decode_health,
)
from comity.servers.supervisor import ServerOptions
from comity.sessions.calls import ActiveCalls
from comity.telemetry.outcomes import OK
from tests.support.cases import loop_over


def said(**members: object) -> Any:
    return decode_health(jsonrpc.make_result(1, members))


def test_what_it_says_is_shown_by_its_own_names() -> None:
    shown = said(status="degraded", uptime_secs=7, resources={"bees": 3}, checks={"hive": False})
    assert shown == {
        "status": "degraded",
        "uptime_secs": 7,
        "resources": {"bees": 3},
        "checks": {"hive": False},
    }


@loop_over(
    "odd",
    [
        {},
        {"status": "splendid", "uptime_secs": "long", "resources": [1], "checks": "all"},
        {"status": 7, "tools_total": True, "pending_requests": None, "resources": None},
    ],
)
def test_what_cannot_be_understood_is_left_out(odd: dict[str, object]) -> None:
    assert said(**odd) == {"status": None, "resources": {}, "checks": {}}


def test_much_and_long_and_deep_is_cut() -> None:
    resources: dict[str, object] = {f"r{n}": n for n in range(MAX_REPORT_MEMBERS * 2)}
    checks = {"x" * MAX_TEXT_LENGTH * 2: "y" * MAX_TEXT_LENGTH * 2, "deep": {"a": [1]}}
    shown = said(resources=resources, checks=checks)
    assert len(shown["resources"]) == MAX_REPORT_MEMBERS
    assert shown["checks"] == {"x" * MAX_TEXT_LENGTH: "y" * MAX_TEXT_LENGTH, "deep": "…"}
    with pytest.raises(MalformedMessage):
        said(resources={"r": "z" * MAX_REPORT_BYTES})


def test_a_server_that_refuses_is_shown_to_refuse() -> None:
    assert decode_health(jsonrpc.make_error(1, METHOD_NOT_FOUND, "no such thing")) == {
        "problem": "no such thing"
    }


IDLE = timedelta(seconds=10)


@dataclass
class FakeServer:
    """As much of a server as is looked at."""

    options: ServerOptions
    name: str = "a"
    state: ServerLifecycleState = ServerLifecycleState.CONNECTED
    calls: list[object] = field(default_factory=list[object])
    held: int = 0
    ended: list[ShutdownReason] = field(default_factory=list[ShutdownReason])

    @property
    def activity(self) -> Any:
        return SimpleNamespace(calls=self.calls)

    @property
    def connections(self) -> Any:
        connection = SimpleNamespace(transport=self)
        own = SimpleNamespace(connection=connection)
        return SimpleNamespace(own_connection=own, own_modern_connection=None)

    def memory(self) -> int:
        return self.held

    async def retire(self, reason: ShutdownReason) -> None:
        self.ended.append(reason)
        self.state = ServerLifecycleState.DISCONNECTED


class Scene:
    def __init__(self, **options: Any) -> None:
        self.server = FakeServer(ServerOptions(**options))
        self.at = 0.0
        self.underway = ActiveCalls(lambda: self.at, 300, 3600, 600)
        servers = cast("ServerService", [self.server])
        self.limits = ResourceLimits(servers, self.underway, lambda: self.at)

    async def after(self, seconds: float) -> list[ShutdownReason]:
        self.at += seconds
        self.limits.check(15)
        await self.limits.wait_until_retired()
        return self.server.ended

    def use(self) -> None:
        self.underway.metrics.at("a").add("tools/call", UNSET, "echo", OK, 0.1)


async def test_what_is_unused_for_so_long_is_ended() -> None:
    scene = Scene(stop_when_idle=IDLE)
    assert await scene.after(0) == []
    assert await scene.after(9) == []
    assert await scene.after(1) == [ShutdownReason.IDLE_TIMEOUT]


async def test_a_call_begins_the_time_anew_and_one_under_way_stops_it() -> None:
    scene = Scene(stop_when_idle=IDLE)
    await scene.after(0)
    scene.use()
    assert await scene.after(9) == []
    assert await scene.after(9) == []
    scene.server.calls.append(object())
    assert await scene.after(60) == []
    scene.server.calls.clear()
    assert await scene.after(9) == []
    assert await scene.after(1) == [ShutdownReason.IDLE_TIMEOUT]


async def test_what_is_not_there_is_not_idle() -> None:
    scene = Scene(stop_when_idle=IDLE)
    await scene.after(0)
    scene.server.state = ServerLifecycleState.RESTARTING
    assert await scene.after(60) == []
    scene.server.state = ServerLifecycleState.CONNECTED
    assert await scene.after(60) == []
    assert await scene.after(10) == [ShutdownReason.IDLE_TIMEOUT]


async def test_what_holds_more_than_it_may_is_ended_whatever_it_does() -> None:
    scene = Scene(max_memory=100)
    scene.server.calls.append(object())
    scene.server.held = 100
    assert await scene.after(1) == []
    scene.server.held = 101
    assert await scene.after(1) == [ShutdownReason.RESOURCE_LIMIT]


@loop_over("seconds", [1, 1e9])
async def test_without_a_bound_nothing_is_ended(seconds: float) -> None:
    scene = Scene()
    scene.server.held = 10**12
    await scene.after(0)
    assert await scene.after(seconds) == []
