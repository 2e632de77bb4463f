"""The life of the servers behind the gateway: started at once, watched, started again."""

import asyncio
from datetime import timedelta

import pytest

from comity.kernel.catalog import Kind
from comity.kernel.sessions import Session
from comity.rules.backoff import Backoff
from comity.wire import mcp
from comity.wire.errors import Unavailable
from comity.wire.lifecycle import State
from comity.wire.mcp import Era
from tests.kernel.carriers import (
    SILENCE,
    Params,
    Script,
    ScriptedCarrier,
    discovered,
    hello,
    settled,
    until,
)
from tests.kernel.server_house import AT_ONCE, LATER, House, connected, options, standing, tools

both_kinds = pytest.mark.parametrize("process", [False, True], ids=["http", "stdio"])


@both_kinds
async def test_a_server_is_greeted_and_its_offers_are_read(process: bool) -> None:
    async with standing() as house:
        script = Script(costs_a_process=process, replies={mcp.LIST_TOOLS: tools("a", "b")})
        server = await connected(house, script)
        assert house.catalog.count("srv", Kind.TOOL) == 2
        assert server.reached.eras == {Era.HANDSHAKE}
        assert script.open[-1].listens == 1
        assert not script.open[-1].asked(mcp.LIST_PROMPTS), "it declared no prompts"


async def test_every_state_on_the_way_is_told_to_who_watches() -> None:
    greetings = iter([hello(), Unavailable("not yet"), hello()])
    async with standing() as house:
        script = Script(costs_a_process=True)
        script.replies[mcp.INITIALIZE] = lambda params: next(greetings)
        server = await connected(house, script, options(backoff=AT_ONCE))
        script.last.dies()
        await until(lambda: server.state is State.CONNECTED and len(house.steps) == 9)
    again = ["error", "restarting", "connecting"]
    first, ended = ["connecting", "connected"], ["connected", "draining", "disconnected"]
    assert house.states == [*first, *again, *again, *ended]
    assert [step.previous for step in house.steps] == ["registered", *house.states[:-1]]
    assert {step.server for step in house.steps} == {"srv"}
    reasons = [step.reason for step in house.steps]
    died = "exit status 1 | last words"
    assert reasons[:5] == ["", "", died, died, died]
    assert "not yet" in reasons[5]
    assert reasons[-3:] == ["", "kernel_shutdown", "kernel_shutdown"]
    times = [step.at for step in house.steps]
    assert times == sorted(times)
    assert server.since == times[-1]
    assert times[0].tzinfo is not None


async def test_one_failing_and_one_silent_server_delay_nobody() -> None:
    async with standing() as house:
        failing = house.add("bad", Script(refuses="no such command"))
        silent = house.add("silent", Script(replies={mcp.INITIALIZE: SILENCE}))
        good = house.add("good", Script())
        house.servers.start()
        await until(lambda: good.state is State.CONNECTED and failing.state is State.RESTARTING)
        assert silent.state is State.CONNECTING
        assert not house.servers.all_tried
        assert "no such command" in failing.reason


async def test_first_tries_are_waited_for_but_not_for_ever() -> None:
    async with standing() as house:
        house.add("silent", Script(replies={mcp.INITIALIZE: SILENCE}))
        await house.servers.first_tries(timedelta(milliseconds=10))
        assert len(house.servers) == 1
    async with standing() as house:
        house.add("good", Script())
        house.servers.start()
        await house.servers.first_tries(timedelta(seconds=10))
        assert house.servers.all_tried


async def test_a_server_that_does_not_start_in_time_has_failed() -> None:
    async with standing() as house:
        script = Script(replies={mcp.INITIALIZE: SILENCE, mcp.DISCOVER: SILENCE})
        server = house.add("slow", script, options(start_ms=30))
        house.servers.start()
        await until(lambda: server.state is State.RESTARTING)
        assert house.servers.all_tried
        await until(lambda: script.open == [])


@both_kinds
async def test_a_server_that_dies_is_started_again(process: bool) -> None:
    async with standing() as house:
        script = Script(costs_a_process=process)
        server = await connected(house, script, options(backoff=AT_ONCE))
        before = len(script.carriers)
        script.open[-1].dies("exit status 9")
        await until(lambda: server.state is State.CONNECTED and len(script.carriers) > before)
        assert len(script.open) == 1


async def test_why_a_server_failed_is_told_with_its_last_words() -> None:
    async with standing() as house:
        script = Script(costs_a_process=True)
        server = await connected(house, script)
        script.last.dies("exit status 9")
        await until(lambda: server.state is State.RESTARTING)
        with pytest.raises(Unavailable, match=r"exit status 9 \| last words"):
            server.require()
        assert [*server.hints()] == ["last words"]


async def test_a_server_that_dies_as_soon_as_it_started_is_tried_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = list[int]()

    def delay(self: Backoff, failures: int, chance: float) -> timedelta:
        waits.append(failures)
        return timedelta(0)

    monkeypatch.setattr(Backoff, "delay", delay)
    async with standing() as house:
        script = Script(costs_a_process=True)
        server = await connected(house, script, options(backoff=LATER))
        for number in range(1, 4):
            script.last.dies()
            await until(lambda n=number: len(waits) == n and server.state is State.CONNECTED)
        assert waits == [1, 2, 3]


async def test_what_was_offered_stays_listed_while_a_server_starts_again() -> None:
    """Or a client that lists at the wrong moment misses tools, and never hears that they came."""
    async with standing() as house:
        script = Script(costs_a_process=True, replies={mcp.LIST_TOOLS: tools("a")})
        server = await connected(house, script, options(backoff=AT_ONCE))
        script.replies[mcp.INITIALIZE] = SILENCE
        script.last.dies()
        await until(lambda: server.state is State.CONNECTING)
        assert server.reached.eras == {Era.HANDSHAKE}
        assert house.catalog.count("srv", Kind.TOOL) == 1


@both_kinds
async def test_a_server_that_is_not_ready_refuses_at_once(process: bool) -> None:
    async with standing() as house:
        script = Script(costs_a_process=process, refuses="broken")
        server = house.add("srv", script)
        house.servers.start()
        await until(lambda: server.state is State.RESTARTING)
        script.refuses = None
        with pytest.raises(Unavailable, match="broken"):
            await server.reached.link_for(Session("", 0), greeted=True)
        with pytest.raises(Unavailable, match="broken"):
            server.reached.modern_link()


async def test_a_server_that_was_never_tried_is_waited_for_in_bounds() -> None:
    async with standing() as house:
        server = house.add("srv", Script())
        trying = asyncio.ensure_future(server.first_try())
        await settled()
        assert not trying.done()
        house.servers.start()
        async with asyncio.timeout(10):
            await trying
        await server.first_try()


@both_kinds
async def test_stopping_ends_every_link(process: bool) -> None:
    house = House()
    script = Script(costs_a_process=process, modern=True)
    server = await connected(house, script)
    async with asyncio.timeout(10):
        await house.servers.stop()
    assert (server.state, script.open) == (State.DISCONNECTED, [])


async def test_a_server_that_is_stopped_while_it_starts_leaves_nothing() -> None:
    house = House()
    silence = {mcp.INITIALIZE: SILENCE, mcp.DISCOVER: SILENCE}
    scripts = [Script(replies=dict(silence)), Script(costs_a_process=True, replies=dict(silence))]
    for number, script in enumerate(scripts):
        house.add(str(number), script)
    house.servers.start()
    await until(lambda: all(script.open for script in scripts))
    async with asyncio.timeout(10):
        await house.servers.stop()
    assert [script.open for script in scripts] == [[], []]


async def test_capabilities_of_no_known_shape_offer_nothing() -> None:
    async with standing() as house:
        odd: Params = {**hello(), "capabilities": 5}
        server = await connected(house, Script(replies={mcp.INITIALIZE: odd}))
        assert server.state is State.CONNECTED
    async with standing() as house:
        odd: Params = {**discovered(), "capabilities": []}
        script = Script(handshake=False, replies={mcp.DISCOVER: odd})
        assert (await connected(house, script)).reached.eras == {Era.MODERN}


def test_a_server_is_found_by_its_name() -> None:
    house = House()
    server = house.add("srv", Script())
    assert house.servers.get("srv") is server
    assert house.servers.get("other") is None
    assert [*house.servers] == [server]


async def test_a_bug_in_the_care_for_one_server_is_told_and_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Script):
        def carrier(self, era: Era) -> ScriptedCarrier:
            raise RuntimeError("a bug")

    async with standing() as house:
        broken = house.add("broken", Broken())
        good = house.add("good", Script())
        house.servers.start()
        await until(lambda: house.servers.all_tried)
        await until(lambda: good.state is State.CONNECTED)
        assert "bug" in caplog.text
        with pytest.raises(Unavailable, match="see its log"):
            broken.require()


async def test_the_same_failure_is_told_once_until_the_server_was_well_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with standing() as house:
        script = Script(handshake=False)
        server = house.add("srv", script, options(backoff=AT_ONCE))
        house.servers.start()
        await until(lambda: len(script.carriers) > 8)
        assert caplog.text.count("server 'srv':") == 1
        script.handshake = True
        await until(lambda: server.state is State.CONNECTED)
        script.handshake = False
        script.open[-1].dies()
        await until(lambda: caplog.text.count("server 'srv':") == 3)
