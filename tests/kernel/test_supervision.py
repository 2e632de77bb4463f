"""What follows a server's end: its policy, the limit, an operator's order; what callers hear."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from comity.kernel.catalog import Kind
from comity.kernel.servers import Server
from comity.kernel.sessions import Session
from comity.rules.restarts import Restarts
from comity.wire import mcp
from comity.wire.errors import Misconfigured, Unavailable
from comity.wire.lifecycle import Reason, RestartPolicy, State
from tests.kernel.carriers import SILENCE, Script, ScriptedCarrier, settled, until
from tests.kernel.server_house import AT_ONCE, LATER, House, connected, options, standing, tools

NEVER = Restarts(RestartPolicy.NEVER)
ALWAYS = Restarts(RestartPolicy.ALWAYS)
both_kinds = pytest.mark.parametrize("process", [False, True], ids=["http", "stdio"])


def refusal_of(server: Server) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        server.require()
    return caught.value


async def test_a_server_that_is_never_to_be_restarted_stays_down_and_says_what_to_do() -> None:
    async with standing() as house:
        script = Script(costs_a_process=True)
        server = await connected(house, script, options(backoff=AT_ONCE, restarts=NEVER))
        script.last.dies()
        await until(lambda: server.state is State.ERROR)
        await settled()
        assert len(script.carriers) == 1
        assert "policy is never" in server.reason
        assert "comity servers restart srv" in server.reason
        refusal = refusal_of(server)
        assert (refusal.fault.error_type, refusal.retry_after) == ("server_stopped", None)


async def test_a_server_that_left_cleanly_starts_again_when_it_is_used() -> None:
    async with standing() as house:
        script = Script(costs_a_process=True, replies={mcp.LIST_TOOLS: tools("a")})
        server = await connected(house, script, options(backoff=LATER, restarts=Restarts()))
        script.last.dies("exited with status 0", well=True)
        await until(lambda: server.state is State.DISCONNECTED)
        await settled()
        assert len(script.carriers) == 1
        assert house.catalog.count("srv", Kind.TOOL) == 1, "what it offers can be used"
        with pytest.raises(Unavailable) as caught:
            await server.reached.link_for(Session("", 0), greeted=True)
        assert caught.value.fault.error_type == "server_not_ready"
        assert caught.value.retry_after is not None
        assert timedelta(milliseconds=100) <= caught.value.retry_after < timedelta(seconds=60)
        await until(lambda: server.state is State.CONNECTED)
        assert server.restarts == 1
        assert house.states[2:] == ["disconnected", "connecting", "connected"]


@pytest.mark.parametrize("well", [True, False], ids=["cleanly", "with an error"])
async def test_a_server_that_is_always_to_be_restarted_is_whatever_its_end(well: bool) -> None:
    async with standing() as house:
        script = Script(costs_a_process=True)
        server = await connected(house, script, options(backoff=AT_ONCE, restarts=ALWAYS))
        script.last.dies(well=well)
        await until(lambda: server.restarts == 1 and server.state is State.CONNECTED)
        ended = "disconnected" if well else "error"
        assert house.states[2:] == [ended, "restarting", "connecting", "connected"]


async def test_past_the_limit_a_server_is_left_in_error_until_an_operator_begins_it() -> None:
    async with standing() as house:
        how = options(backoff=AT_ONCE, restarts=Restarts(most=2))
        script = Script(costs_a_process=True, refuses="no such program")
        server = house.add("srv", script, how)
        house.servers.start()
        await until(lambda: server.state is State.ERROR and "exceeded" in server.reason)
        await settled()
        assert len(script.carriers) == 2 * 3, "one start and two more, each in both eras"
        assert (server.restarts, house.states.count("connecting")) == (2, 3)
        assert "no such program" in server.reason
        assert "restart_limit_exceeded" in server.reason
        assert not refusal_of(server).fault.retryable
        script.refuses = None
        await house.servers.begin("srv")
        await until(lambda: server.state is State.CONNECTED)
        assert (server.reason, server.restarts) == ("", 2)
        script.last.dies()
        await until(lambda: server.state is State.CONNECTED and server.restarts == 3)


async def test_a_server_that_leaves_as_soon_as_it_is_used_comes_to_its_limit_too() -> None:
    async with standing() as house:
        script = Script(costs_a_process=True)
        server = await connected(house, script, options(restarts=Restarts(most=3)))
        for _ in range(3):
            script.last.dies(well=True)
            await until(lambda: server.state is State.DISCONNECTED)
            await until(lambda: _used(server) and server.state is State.CONNECTED)
        script.last.dies(well=True)
        await until(lambda: server.state is State.ERROR)
        assert "restart_limit_exceeded" in server.reason


def _used(server: Server) -> bool:
    if server.state is State.DISCONNECTED:
        refusal_of(server)
    return True


async def test_who_calls_while_a_server_waits_to_start_again_is_told_how_long() -> None:
    async with standing() as house:
        script = Script(costs_a_process=True)
        server = await connected(house, script, options(backoff=LATER))
        script.last.dies()
        await until(lambda: server.state is State.RESTARTING)
        refusal = refusal_of(server)
        assert refusal.fault.error_type == "server_restarting"
        assert refusal.retry_after is not None
        assert timedelta(minutes=29) < refusal.retry_after <= timedelta(hours=1)


async def test_a_server_that_never_was_ready_is_not_said_to_restart() -> None:
    async with standing() as house:
        server = house.add("srv", Script(refuses="broken"))
        assert refusal_of(server).fault.error_type == "server_not_ready"
        house.servers.start()
        await until(lambda: server.state is State.RESTARTING)
        refusal = refusal_of(server)
        assert refusal.fault.error_type == "server_not_ready"
        assert refusal.retry_after is not None
        assert refusal.retry_after > timedelta(minutes=29)


async def test_a_failing_server_is_told_to_restart_before_its_end_has_come() -> None:
    """Its process may take seconds to die; who calls meanwhile shall come again."""

    class Stubborn(Script):
        def carrier(self, era: mcp.Era) -> ScriptedCarrier:
            made = super().carrier(era)
            made.close = stubborn.wait  # type: ignore[method-assign,assignment]
            return made

    stubborn = asyncio.Event()
    async with standing() as house:
        script = Stubborn(costs_a_process=True)
        server = await connected(house, script, options(backoff=LATER))
        script.last.dies()
        await until(lambda: server.state is State.RESTARTING)
        assert refusal_of(server).fault.error_type == "server_restarting"
        stubborn.set()


@both_kinds
async def test_a_halted_server_stays_down_whatever_its_policy_and_begins_when_told(
    process: bool,
) -> None:
    async with standing() as house:
        replies = {mcp.LIST_TOOLS: tools("a")}
        script = Script(costs_a_process=process, replies=dict(replies))
        server = await connected(house, script, options(backoff=AT_ONCE, restarts=ALWAYS))
        await house.servers.halt("srv")
        await settled()
        assert (server.state, server.reason, script.open) == (
            State.DISCONNECTED,
            "operator_request",
            [],
        )
        assert house.catalog.count("srv", Kind.TOOL) == 0
        refusal = refusal_of(server)
        assert (refusal.fault.error_type, refusal.retry_after) == ("server_stopped", None)
        await settled()
        assert server.state is State.DISCONNECTED, "a call does not undo an operator's word"
        await house.servers.begin("srv")
        await until(lambda: server.state is State.CONNECTED)
        assert house.catalog.count("srv", Kind.TOOL) == 1
        await house.servers.begin("srv")
        assert house.states[2:] == ["draining", "disconnected", "connecting", "connected"]


@both_kinds
async def test_an_operator_restarts_a_server_in_whatever_state_it_is(process: bool) -> None:
    async with standing() as house:
        script = Script(costs_a_process=process)
        server = await connected(house, script, options(restarts=NEVER))
        await house.servers.restart("srv")
        await until(lambda: server.state is State.CONNECTED)
        assert house.states[2:] == ["draining", "restarting", "connecting", "connected"]
        assert {step.reason for step in house.steps[2:5]} == {"operator_request"}
        assert (server.restarts, len(script.open)) == (1, 1)
        script.open[-1].dies()
        await until(lambda: server.state is State.ERROR)
        await house.servers.restart("srv")
        await until(lambda: server.state is State.CONNECTED)
        assert house.states[-4:] == ["error", "restarting", "connecting", "connected"]
        await house.servers.halt("srv")
        await house.servers.restart("srv")
        await until(lambda: server.state is State.CONNECTED)
        assert house.states[-4:] == ["disconnected", "restarting", "connecting", "connected"]


async def test_a_server_is_restarted_while_it_waits_or_hangs_at_its_start() -> None:
    async with standing() as house:
        script = Script(costs_a_process=True, replies={mcp.INITIALIZE: SILENCE})
        server = house.add("srv", script, options(backoff=LATER))
        house.servers.start()
        await until(lambda: script.carriers and script.last.asked(mcp.INITIALIZE))
        script.replies.clear()
        await house.servers.restart("srv")
        await until(lambda: server.state is State.CONNECTED)
        assert house.states == ["connecting", "restarting", "connecting", "connected"]
        assert len(script.open) == 1
        script.last.dies()
        await until(lambda: server.state is State.RESTARTING)
        await house.servers.restart("srv")
        await until(lambda: server.state is State.CONNECTED)


async def test_orders_are_carried_out_one_after_the_other() -> None:
    async with standing() as house:
        script = Script(costs_a_process=True)
        server = await connected(house, script)
        await asyncio.gather(
            *(house.servers.restart("srv") for _ in range(5)), house.servers.halt("srv")
        )
        assert (server.state, script.open) == (State.DISCONNECTED, [])
        await asyncio.gather(*(house.servers.begin("srv") for _ in range(5)))
        await until(lambda: server.state is State.CONNECTED)
        assert len(script.open) == 1


async def test_a_server_that_is_added_later_starts_and_one_that_is_removed_is_forgotten() -> None:
    async with standing() as house:
        await connected(house, Script())
        script = Script(costs_a_process=True, replies={mcp.LIST_TOOLS: tools("a")})
        later = house.add("later", script)
        await until(lambda: later.state is State.CONNECTED)
        assert house.catalog.find(Kind.TOOL, "later__a") is not None
        await house.servers.remove("later")
        assert (house.servers.get("later"), script.open) == (None, [])
        assert house.catalog.find(Kind.TOOL, "later__a") is None
        assert house.steps[-1].reason == "configuration_change"
        again = house.add("later", script)
        await until(lambda: again.state is State.CONNECTED)
        assert house.catalog.find(Kind.TOOL, "later__a") is not None


async def test_an_operator_who_names_no_server_is_told_so() -> None:
    async with standing() as house:
        house.add("srv", Script())
        with pytest.raises(Misconfigured, match="already"):
            house.add("srv", Script())
        for order in (house.servers.restart, house.servers.halt, house.servers.begin):
            with pytest.raises(Misconfigured, match="no server 'nobody'"):
                await order("nobody")
        with pytest.raises(Misconfigured, match="no server"):
            await house.servers.remove("nobody")


async def test_the_end_of_the_gateway_is_bounded_however_stubborn_its_servers() -> None:
    class Stubborn(Script):
        def carrier(self, era: mcp.Era) -> ScriptedCarrier:
            made = super().carrier(era)

            async def close() -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    killed.append(made)

            made.close = close
            return made

    killed = list[ScriptedCarrier]()
    house = House()
    script = Stubborn(costs_a_process=True)
    server = await connected(house, script)
    async with asyncio.timeout(5):
        await house.servers.stop(timedelta(milliseconds=50))
    assert killed == [script.last], "what does not go is killed"
    assert server.state is State.DRAINING
    assert house.steps[-1].reason == Reason.KERNEL_SHUTDOWN


async def test_a_watcher_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail(step: object) -> None:
        raise RuntimeError("a bug")

    async with standing() as house:
        house.servers.watch(fail)
        late = list[object]()
        house.servers.watch(late.append)
        await connected(house, Script())
        assert len(late) == 2
        assert "a watcher of the servers failed" in caplog.text


async def test_one_that_another_node_runs_is_asked_for_again_soon_and_for_ever() -> None:
    script = Script(refuses="not there")
    never = Restarts(RestartPolicy.NEVER, 0)
    how = replace(options(restarts=never), restarts_elsewhere=Restarts(RestartPolicy.ALWAYS, None))
    async with standing() as house:
        server = house.add("srv", script, how)
        house.servers.start()
        # Its backoff is an hour; another node is asked again within seconds.
        await until(lambda: server.state is State.RESTARTING)
        assert server.restarts == 0
        async with asyncio.timeout(10):
            while server.restarts == 0:
                await asyncio.sleep(0.02)
        assert not server.is_halted
        await house.servers.halt("srv")
        assert server.is_halted
        script.costs_a_process = True
        await house.servers.begin("srv")
        await until(lambda: server.state is State.ERROR)
        assert not server.is_halted
