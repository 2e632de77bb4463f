"""When a server has been unused for too long, or holds too much; with a clock driven by hand."""

from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from comity.kernel.life import ServerOptions
from comity.kernel.server_limits import ServerLimits
from comity.kernel.servers import Servers
from comity.kernel.tallies import OK
from comity.kernel.underway import Underway
from comity.wire.jsonrpc import UNSET
from comity.wire.lifecycle import Reason, State

IDLE = timedelta(seconds=10)


@dataclass
class FakeServer:
    """As much of a server as is looked at."""

    options: ServerOptions
    name: str = "a"
    state: State = State.CONNECTED
    calls: list[object] = field(default_factory=list[object])
    held: int = 0
    ended: list[Reason] = field(default_factory=list[Reason])

    @property
    def pulse(self) -> Any:
        return SimpleNamespace(calls=self.calls)

    @property
    def reached(self) -> Any:
        link = SimpleNamespace(carrier=self)
        return SimpleNamespace(own=SimpleNamespace(link=link), modern=None)

    def memory(self) -> int:
        return self.held

    async def retire(self, reason: Reason) -> None:
        self.ended.append(reason)
        self.state = State.DISCONNECTED


class Scene:
    def __init__(self, **options: Any) -> None:
        self.server = FakeServer(ServerOptions(**options))
        self.at = 0.0
        self.underway = Underway(lambda: self.at, 300, 3600)
        servers = cast("Servers", [self.server])
        self.limits = ServerLimits(servers, self.underway, lambda: self.at)

    async def after(self, seconds: float) -> list[Reason]:
        self.at += seconds
        self.limits.look(15)
        await self.limits.settle()
        return self.server.ended

    def use(self) -> None:
        self.underway.tallies.at("a").add("tools/call", UNSET, "echo", OK, 0.1)


async def test_what_is_unused_for_so_long_is_ended() -> None:
    scene = Scene(stop_when_idle=IDLE)
    assert await scene.after(0) == []
    assert await scene.after(9) == []
    assert await scene.after(1) == [Reason.IDLE_TIMEOUT]


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
    assert await scene.after(1) == [Reason.IDLE_TIMEOUT]


async def test_what_is_not_there_is_not_idle() -> None:
    scene = Scene(stop_when_idle=IDLE)
    await scene.after(0)
    scene.server.state = State.RESTARTING
    assert await scene.after(60) == []
    scene.server.state = State.CONNECTED
    assert await scene.after(60) == []
    assert await scene.after(10) == [Reason.IDLE_TIMEOUT]


async def test_what_holds_more_than_it_may_is_ended_whatever_it_does() -> None:
    scene = Scene(most_memory=100)
    scene.server.calls.append(object())
    scene.server.held = 100
    assert await scene.after(1) == []
    scene.server.held = 101
    assert await scene.after(1) == [Reason.RESOURCE_LIMIT]


@pytest.mark.parametrize("seconds", [1, 1e9])
async def test_without_a_bound_nothing_is_ended(seconds: float) -> None:
    scene = Scene()
    scene.server.held = 10**12
    await scene.after(0)
    assert await scene.after(seconds) == []
