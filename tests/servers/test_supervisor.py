"""Servers are started, watched, restarted, drained and stopped."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from comity.errors import UPSTREAM_FAILED, Misconfigured, Unavailable
from comity.mcp import protocol
from comity.mcp.entries import EntryKind
from comity.mcp.mgp import SHUTDOWN, RestartPolicy, ServerLifecycleState, ShutdownReason
from comity.mcp.protocol import Era
from comity.servers.lifecycle import RestartRules
from comity.servers.supervisor import UpstreamServer
from comity.sessions.sessions import Session
from comity.toolkit.resilience import RetrySchedule
from tests.support.carriers import (
    SILENCE,
    Params,
    Script,
    ScriptedCarrier,
    discovered,
    hello,
    params_of,
    settled,
    until,
)
from tests.support.cases import loop_over
from tests.support.desks import Front, one_server
from tests.support.server_house import AT_ONCE, LATER, House, connected, options, standing, tools

both_kinds = loop_over("process", [False, True], ids=["http", "stdio"])


@both_kinds
async def test_a_server_is_greeted_and_its_offers_are_read(process: bool) -> None:
    async with standing() as house:
        script = Script(starts_process=process, replies={protocol.LIST_TOOLS: tools("a", "b")})
        server = await connected(house, script)
        assert house.catalog.count("srv", EntryKind.TOOL) == 2
        assert server.connections.eras == {Era.HANDSHAKE}
        assert script.open[-1].listens == 1
        assert not script.open[-1].asked(protocol.LIST_PROMPTS), "it declared no prompts"


async def test_every_state_on_the_way_is_told_to_who_watches() -> None:
    greetings = iter([hello(), Unavailable("not yet"), hello()])
    async with standing() as house:
        script = Script(starts_process=True)
        script.replies[protocol.INITIALIZE] = lambda params: next(greetings)
        server = await connected(house, script, options(backoff=AT_ONCE))
        script.last.dies()
        await until(
            lambda: server.state is ServerLifecycleState.CONNECTED and len(house.steps) == 9
        )
    again = ["error", "restarting", "connecting"]
    first, ended = ["connecting", "connected"], ["connected", "draining", "disconnected"]
    assert house.states == [*first, *again, *again, *ended]
    assert [step.previous for step in house.steps] == ["registered", *house.states[:-1]]
    assert {step.server for step in house.steps} == {"srv"}
    reasons = [step.reason for step in house.steps]
    died = "exit status 1; its last output: last words"
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
        silent = house.add("silent", Script(replies={protocol.INITIALIZE: SILENCE}))
        good = house.add("good", Script())
        house.servers.start()
        await until(
            lambda: (
                good.state is ServerLifecycleState.CONNECTED
                and failing.state is ServerLifecycleState.RESTARTING
            )
        )
        assert silent.state is ServerLifecycleState.CONNECTING
        assert not house.servers.is_every_server_tried
        assert "no such command" in failing.reason


async def test_first_tries_are_waited_for_but_not_for_ever() -> None:
    async with standing() as house:
        house.add("silent", Script(replies={protocol.INITIALIZE: SILENCE}))
        await house.servers.wait_for_first_starts(timedelta(milliseconds=10))
        assert len(house.servers) == 1
    async with standing() as house:
        house.add("good", Script())
        house.servers.start()
        await house.servers.wait_for_first_starts(timedelta(seconds=10))
        assert house.servers.is_every_server_tried


async def test_a_server_that_does_not_start_in_time_has_failed() -> None:
    async with standing() as house:
        script = Script(replies={protocol.INITIALIZE: SILENCE, protocol.DISCOVER: SILENCE})
        server = house.add("slow", script, options(start_ms=30))
        house.servers.start()
        await until(lambda: server.state is ServerLifecycleState.RESTARTING)
        assert house.servers.is_every_server_tried
        await until(lambda: script.open == [])


@both_kinds
async def test_a_server_that_dies_is_started_again(process: bool) -> None:
    async with standing() as house:
        script = Script(starts_process=process)
        server = await connected(house, script, options(backoff=AT_ONCE))
        before = len(script.carriers)
        script.open[-1].dies("exit status 9")
        await until(
            lambda: server.state is ServerLifecycleState.CONNECTED and len(script.carriers) > before
        )
        assert len(script.open) == 1


async def test_why_a_server_failed_is_told_with_its_last_words() -> None:
    async with standing() as house:
        script = Script(starts_process=True)
        server = await connected(house, script)
        script.last.dies("exit status 9")
        await until(lambda: server.state is ServerLifecycleState.RESTARTING)
        with pytest.raises(Unavailable, match=r"exit status 9; its last output: last words"):
            server.require_usable()
        assert [*server.stderr_lines()] == ["last words"]


async def test_a_server_that_dies_as_soon_as_it_started_is_tried_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = list[int]()

    def delay(self: RetrySchedule, failures: int, chance: float) -> timedelta:
        waits.append(failures)
        return timedelta(0)

    monkeypatch.setattr(RetrySchedule, "delay", delay)
    async with standing() as house:
        script = Script(starts_process=True)
        server = await connected(house, script, options(backoff=LATER))
        for number in range(1, 4):
            script.last.dies()
            await until(
                lambda n=number: len(waits) == n and server.state is ServerLifecycleState.CONNECTED
            )
        assert waits == [1, 2, 3]


async def test_what_was_offered_stays_listed_while_a_server_starts_again() -> None:
    """Or a client that lists at the wrong moment misses tools, and never hears that they came."""
    async with standing() as house:
        script = Script(starts_process=True, replies={protocol.LIST_TOOLS: tools("a")})
        server = await connected(house, script, options(backoff=AT_ONCE))
        script.replies[protocol.INITIALIZE] = SILENCE
        script.last.dies()
        await until(lambda: server.state is ServerLifecycleState.CONNECTING)
        assert server.connections.eras == {Era.HANDSHAKE}
        assert house.catalog.count("srv", EntryKind.TOOL) == 1


@both_kinds
async def test_a_server_that_is_not_ready_refuses_at_once(process: bool) -> None:
    async with standing() as house:
        script = Script(starts_process=process, refuses="broken")
        server = house.add("srv", script)
        house.servers.start()
        await until(lambda: server.state is ServerLifecycleState.RESTARTING)
        script.refuses = None
        with pytest.raises(Unavailable, match="broken"):
            await server.connections.connection_for(Session("", 0), is_initialized=True)
        with pytest.raises(Unavailable, match="broken"):
            server.connections.modern_connection()


async def test_a_server_that_was_never_tried_is_waited_for_in_bounds() -> None:
    async with standing() as house:
        server = house.add("srv", Script())
        trying = asyncio.ensure_future(server.wait_for_first_start())
        await settled()
        assert not trying.done()
        house.servers.start()
        async with asyncio.timeout(10):
            await trying
        await server.wait_for_first_start()


@both_kinds
async def test_stopping_ends_every_link(process: bool) -> None:
    house = House()
    script = Script(starts_process=process, modern=True)
    server = await connected(house, script)
    async with asyncio.timeout(10):
        await house.servers.stop()
    assert (server.state, script.open) == (ServerLifecycleState.DISCONNECTED, [])


async def test_a_server_that_is_stopped_while_it_starts_leaves_nothing() -> None:
    house = House()
    silence = {protocol.INITIALIZE: SILENCE, protocol.DISCOVER: SILENCE}
    scripts = [Script(replies=dict(silence)), Script(starts_process=True, replies=dict(silence))]
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
        server = await connected(house, Script(replies={protocol.INITIALIZE: odd}))
        assert server.state is ServerLifecycleState.CONNECTED
    async with standing() as house:
        odd: Params = {**discovered(), "capabilities": []}
        script = Script(handshake=False, replies={protocol.DISCOVER: odd})
        assert (await connected(house, script)).connections.eras == {Era.MODERN}


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
        def create_transport(self, era: Era) -> ScriptedCarrier:
            raise RuntimeError("a bug")

    async with standing() as house:
        broken = house.add("broken", Broken())
        good = house.add("good", Script())
        house.servers.start()
        await until(lambda: house.servers.is_every_server_tried)
        await until(lambda: good.state is ServerLifecycleState.CONNECTED)
        assert "bug" in caplog.text
        with pytest.raises(Unavailable, match="see its log"):
            broken.require_usable()


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
        await until(lambda: server.state is ServerLifecycleState.CONNECTED)
        script.handshake = False
        script.open[-1].dies()
        await until(lambda: caplog.text.count("server 'srv':") == 3)


NEVER = RestartRules(RestartPolicy.NEVER)

ALWAYS = RestartRules(RestartPolicy.ALWAYS)


def refusal_of(server: UpstreamServer) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        server.require_usable()
    return caught.value


async def test_a_server_that_is_never_to_be_restarted_stays_down_and_says_what_to_do() -> None:
    async with standing() as house:
        script = Script(starts_process=True)
        server = await connected(house, script, options(backoff=AT_ONCE, restarts=NEVER))
        script.last.dies()
        await until(lambda: server.state is ServerLifecycleState.ERROR)
        await settled()
        assert len(script.carriers) == 1
        assert "policy is never" in server.reason
        assert "comity servers restart srv" in server.reason
        refusal = refusal_of(server)
        assert (refusal.fault.error_type, refusal.retry_after) == ("server_stopped", None)


async def test_a_server_that_left_cleanly_starts_again_when_it_is_used() -> None:
    async with standing() as house:
        script = Script(starts_process=True, replies={protocol.LIST_TOOLS: tools("a")})
        server = await connected(house, script, options(backoff=LATER, restarts=RestartRules()))
        script.last.dies("exited with status 0", well=True)
        await until(lambda: server.state is ServerLifecycleState.DISCONNECTED)
        await settled()
        assert len(script.carriers) == 1
        assert house.catalog.count("srv", EntryKind.TOOL) == 1, "what it offers can be used"
        with pytest.raises(Unavailable) as caught:
            await server.connections.connection_for(Session("", 0), is_initialized=True)
        assert caught.value.fault.error_type == "server_not_ready"
        assert caught.value.retry_after is not None
        assert timedelta(milliseconds=100) <= caught.value.retry_after < timedelta(seconds=60)
        await until(lambda: server.state is ServerLifecycleState.CONNECTED)
        assert server.restarts == 1
        assert house.states[2:] == ["disconnected", "connecting", "connected"]


@loop_over("well", [True, False], ids=["cleanly", "with an error"])
async def test_a_server_that_is_always_to_be_restarted_is_whatever_its_end(well: bool) -> None:
    async with standing() as house:
        script = Script(starts_process=True)
        server = await connected(house, script, options(backoff=AT_ONCE, restarts=ALWAYS))
        script.last.dies(well=well)
        await until(lambda: server.restarts == 1 and server.state is ServerLifecycleState.CONNECTED)
        ended = "disconnected" if well else "error"
        assert house.states[2:] == [ended, "restarting", "connecting", "connected"]


async def test_past_the_limit_a_server_is_left_in_error_until_an_operator_begins_it() -> None:
    async with standing() as house:
        how = options(backoff=AT_ONCE, restarts=RestartRules(max_restarts=2))
        script = Script(starts_process=True, refuses="no such program")
        server = house.add("srv", script, how)
        house.servers.start()
        await until(
            lambda: server.state is ServerLifecycleState.ERROR and "exceeded" in server.reason
        )
        await settled()
        assert len(script.carriers) == 2 * 3, "one start and two more, each in both eras"
        assert (server.restarts, house.states.count("connecting")) == (2, 3)
        assert "no such program" in server.reason
        assert "restart_limit_exceeded" in server.reason
        assert not refusal_of(server).fault.retryable
        script.refuses = None
        await house.servers.start_server("srv")
        await until(lambda: server.state is ServerLifecycleState.CONNECTED)
        assert (server.reason, server.restarts) == ("", 2)
        script.last.dies()
        await until(lambda: server.state is ServerLifecycleState.CONNECTED and server.restarts == 3)


async def test_a_server_that_leaves_as_soon_as_it_is_used_comes_to_its_limit_too() -> None:
    async with standing() as house:
        script = Script(starts_process=True)
        server = await connected(house, script, options(restarts=RestartRules(max_restarts=3)))
        for _ in range(3):
            script.last.dies(well=True)
            await until(lambda: server.state is ServerLifecycleState.DISCONNECTED)
            await until(lambda: _used(server) and server.state is ServerLifecycleState.CONNECTED)
        script.last.dies(well=True)
        await until(lambda: server.state is ServerLifecycleState.ERROR)
        assert "restart_limit_exceeded" in server.reason


def _used(server: UpstreamServer) -> bool:
    if server.state is ServerLifecycleState.DISCONNECTED:
        refusal_of(server)
    return True


async def test_who_calls_while_a_server_waits_to_start_again_is_told_how_long() -> None:
    async with standing() as house:
        script = Script(starts_process=True)
        server = await connected(house, script, options(backoff=LATER))
        script.last.dies()
        await until(lambda: server.state is ServerLifecycleState.RESTARTING)
        refusal = refusal_of(server)
        assert refusal.fault.error_type == "server_restarting"
        assert refusal.retry_after is not None
        assert timedelta(minutes=29) < refusal.retry_after <= timedelta(hours=1)


async def test_a_server_that_never_was_ready_is_not_said_to_restart() -> None:
    async with standing() as house:
        server = house.add("srv", Script(refuses="broken"))
        assert refusal_of(server).fault.error_type == "server_not_ready"
        house.servers.start()
        await until(lambda: server.state is ServerLifecycleState.RESTARTING)
        refusal = refusal_of(server)
        assert refusal.fault.error_type == "server_not_ready"
        assert refusal.retry_after is not None
        assert refusal.retry_after > timedelta(minutes=29)


async def test_a_failing_server_is_told_to_restart_before_its_end_has_come() -> None:
    """Its process may take seconds to die; who calls meanwhile shall come again."""

    class Stubborn(Script):
        def create_transport(self, era: protocol.Era) -> ScriptedCarrier:
            made = super().create_transport(era)
            made.close = stubborn.wait  # type: ignore[method-assign,assignment]
            return made

    stubborn = asyncio.Event()
    async with standing() as house:
        script = Stubborn(starts_process=True)
        server = await connected(house, script, options(backoff=LATER))
        script.last.dies()
        await until(lambda: server.state is ServerLifecycleState.RESTARTING)
        assert refusal_of(server).fault.error_type == "server_restarting"
        stubborn.set()


@both_kinds
async def test_a_halted_server_stays_down_whatever_its_policy_and_begins_when_told(
    process: bool,
) -> None:
    async with standing() as house:
        replies = {protocol.LIST_TOOLS: tools("a")}
        script = Script(starts_process=process, replies=dict(replies))
        server = await connected(house, script, options(backoff=AT_ONCE, restarts=ALWAYS))
        await house.servers.stop_server("srv")
        await settled()
        assert (server.state, server.reason, script.open) == (
            ServerLifecycleState.DISCONNECTED,
            "operator_request",
            [],
        )
        assert house.catalog.count("srv", EntryKind.TOOL) == 0
        refusal = refusal_of(server)
        assert (refusal.fault.error_type, refusal.retry_after) == ("server_stopped", None)
        await settled()
        assert server.state is ServerLifecycleState.DISCONNECTED, (
            "a call does not undo an operator's word"
        )
        await house.servers.start_server("srv")
        await until(lambda: server.state is ServerLifecycleState.CONNECTED)
        assert house.catalog.count("srv", EntryKind.TOOL) == 1
        await house.servers.start_server("srv")
        assert house.states[2:] == ["draining", "disconnected", "connecting", "connected"]


@both_kinds
async def test_an_operator_restarts_a_server_in_whatever_state_it_is(process: bool) -> None:
    async with standing() as house:
        script = Script(starts_process=process)
        server = await connected(house, script, options(restarts=NEVER))
        await house.servers.restart("srv")
        await until(lambda: server.state is ServerLifecycleState.CONNECTED)
        assert house.states[2:] == ["draining", "restarting", "connecting", "connected"]
        assert {step.reason for step in house.steps[2:5]} == {"operator_request"}
        assert (server.restarts, len(script.open)) == (1, 1)
        script.open[-1].dies()
        await until(lambda: server.state is ServerLifecycleState.ERROR)
        await house.servers.restart("srv")
        await until(lambda: server.state is ServerLifecycleState.CONNECTED)
        assert house.states[-4:] == ["error", "restarting", "connecting", "connected"]
        await house.servers.stop_server("srv")
        await house.servers.restart("srv")
        await until(lambda: server.state is ServerLifecycleState.CONNECTED)
        assert house.states[-4:] == ["disconnected", "restarting", "connecting", "connected"]


async def test_a_server_is_restarted_while_it_waits_or_hangs_at_its_start() -> None:
    async with standing() as house:
        script = Script(starts_process=True, replies={protocol.INITIALIZE: SILENCE})
        server = house.add("srv", script, options(backoff=LATER))
        house.servers.start()
        await until(lambda: script.carriers and script.last.asked(protocol.INITIALIZE))
        script.replies.clear()
        await house.servers.restart("srv")
        await until(lambda: server.state is ServerLifecycleState.CONNECTED)
        assert house.states == ["connecting", "restarting", "connecting", "connected"]
        assert len(script.open) == 1
        script.last.dies()
        await until(lambda: server.state is ServerLifecycleState.RESTARTING)
        await house.servers.restart("srv")
        await until(lambda: server.state is ServerLifecycleState.CONNECTED)


async def test_orders_are_carried_out_one_after_the_other() -> None:
    async with standing() as house:
        script = Script(starts_process=True)
        server = await connected(house, script)
        await asyncio.gather(
            *(house.servers.restart("srv") for _ in range(5)), house.servers.stop_server("srv")
        )
        assert (server.state, script.open) == (ServerLifecycleState.DISCONNECTED, [])
        await asyncio.gather(*(house.servers.start_server("srv") for _ in range(5)))
        await until(lambda: server.state is ServerLifecycleState.CONNECTED)
        assert len(script.open) == 1


async def test_a_server_that_is_added_later_starts_and_one_that_is_removed_is_forgotten() -> None:
    async with standing() as house:
        await connected(house, Script())
        script = Script(starts_process=True, replies={protocol.LIST_TOOLS: tools("a")})
        later = house.add("later", script)
        await until(lambda: later.state is ServerLifecycleState.CONNECTED)
        assert house.catalog.find(EntryKind.TOOL, "later__a") is not None
        await house.servers.remove("later")
        assert (house.servers.get("later"), script.open) == (None, [])
        assert house.catalog.find(EntryKind.TOOL, "later__a") is None
        assert house.steps[-1].reason == "configuration_change"
        again = house.add("later", script)
        await until(lambda: again.state is ServerLifecycleState.CONNECTED)
        assert house.catalog.find(EntryKind.TOOL, "later__a") is not None


async def test_an_operator_who_names_no_server_is_told_so() -> None:
    async with standing() as house:
        house.add("srv", Script())
        with pytest.raises(Misconfigured, match="already"):
            house.add("srv", Script())
        for order in (house.servers.restart, house.servers.stop_server, house.servers.start_server):
            with pytest.raises(Misconfigured, match="no server 'nobody'"):
                await order("nobody")
        with pytest.raises(Misconfigured, match="no server"):
            await house.servers.remove("nobody")


async def test_the_end_of_the_gateway_is_bounded_however_stubborn_its_servers() -> None:
    class Stubborn(Script):
        def create_transport(self, era: protocol.Era) -> ScriptedCarrier:
            made = super().create_transport(era)

            async def close() -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    killed.append(made)

            made.close = close
            return made

    killed = list[ScriptedCarrier]()
    house = House()
    script = Stubborn(starts_process=True)
    server = await connected(house, script)
    async with asyncio.timeout(5):
        await house.servers.stop(timedelta(milliseconds=50))
    assert killed == [script.last], "what does not go is killed"
    assert server.state is ServerLifecycleState.DRAINING
    assert house.steps[-1].reason == ShutdownReason.KERNEL_SHUTDOWN


async def test_a_watcher_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail(step: object) -> None:
        raise RuntimeError("a bug")

    async with standing() as house:
        house.servers.watch(fail)
        late = list[object]()
        house.servers.watch(late.append)
        await connected(house, Script())
        assert len(late) == 2
        assert "A listener for servers failed" in caplog.text


async def test_one_that_another_node_runs_is_asked_for_again_soon_and_for_ever() -> None:
    script = Script(refuses="not there")
    never = RestartRules(RestartPolicy.NEVER, 0)
    how = replace(
        options(restarts=never), remote_restart_rules=RestartRules(RestartPolicy.ALWAYS, None)
    )
    async with standing() as house:
        server = house.add("srv", script, how)
        house.servers.start()
        # Its backoff is an hour; another node is asked again within seconds.
        await until(lambda: server.state is ServerLifecycleState.RESTARTING)
        assert server.restarts == 0
        async with asyncio.timeout(10):
            while server.restarts == 0:
                await asyncio.sleep(0.02)
        assert not server.is_halted
        await house.servers.stop_server("srv")
        assert server.is_halted
        script.starts_process = True
        await house.servers.start_server("srv")
        await until(lambda: server.state is ServerLifecycleState.ERROR)
        assert not server.is_halted


LIFECYCLE: Params = {"version": "0.3.0", "extensions": ["lifecycle"]}

LOOK: Params = {"name": "look", "arguments": {}}


def server_of(front: Front) -> UpstreamServer:
    server = front.servers.get("srv")
    assert server is not None
    return server


def calling(script: Script) -> list[object]:
    """The calls that the server has heard, over whatever link."""
    return [frame for each in script.carriers for frame in each.asked("tools/call")]


@both_kinds
async def test_a_call_under_way_finishes_and_a_new_one_is_refused(process: bool) -> None:
    script = Script(starts_process=process, replies={"tools/call": SILENCE})
    async with one_server(script) as front:
        session = await front.client()
        under_way = front.ask(session, "tools/call", LOOK)
        await until(lambda: calling(script))
        halting = asyncio.ensure_future(front.servers.stop_server("srv"))
        await until(lambda: server_of(front).state is ServerLifecycleState.DRAINING)
        for asked in (
            front.ask(session, "tools/call", LOOK),
            front.handle_modern_request("tools/call", LOOK),
        ):
            assert (await asked.refusal())["error_type"] == "server_draining"
        assert not halting.done()
        carrier = next(each for each in script.open if each.asked("tools/call"))
        carrier.answers(carrier.asked("tools/call")[0], {"done": True})
        assert await under_way.result() == {"done": True}
        async with asyncio.timeout(10):
            await halting
        assert len(calling(script)) == 1
        assert script.open == [], "the session's own link ends too"


@both_kinds
async def test_what_has_not_finished_by_the_deadline_is_ended_and_its_server_told(
    process: bool,
) -> None:
    script = Script(starts_process=process, replies={"tools/call": SILENCE})
    async with one_server(script, how=options(drain_ms=40)) as front:
        session = await front.client()
        under_way = front.ask(session, "tools/call", LOOK)
        await until(lambda: calling(script))
        carrier = next(each for each in script.open if each.asked("tools/call"))
        await front.servers.stop_server("srv")
        refusal = await under_way.refusal()
        assert refusal["error_type"] == UPSTREAM_FAILED.error_type
        assert refusal["details"] == {"outcome": "unknown"}
        assert [each.method for each in carrier.told()][-1] == protocol.CANCELLED
        assert len(front.underway) == 0


async def test_who_only_listens_holds_up_nobody() -> None:
    script = Script(handshake=False, modern=True, replies={protocol.LISTEN: SILENCE})
    async with one_server(script, how=options(drain_ms=600_000)) as front:
        listening = front.handle_modern_request(
            protocol.LISTEN, {"notifications": {"toolsListChanged": True}}
        )
        await until(lambda: len(script.last.asked(protocol.LISTEN)) == 1 or listening.asking.done())
        async with asyncio.timeout(10):
            await front.servers.stop_server("srv")


@loop_over("answers", [True, False], ids=["that goes", "that refuses"])
async def test_a_server_that_knows_how_is_asked_to_shut_down(answers: bool) -> None:
    script = Script(starts_process=True)
    script.replies[protocol.INITIALIZE] = hello(tools={}, mgp=LIFECYCLE)
    script.replies[SHUTDOWN] = {"accepted": True} if answers else SILENCE
    async with one_server(script, how=options(drain_ms=60)) as front:
        carrier = script.last
        halting = asyncio.ensure_future(front.servers.stop_server("srv"))
        await until(lambda: carrier.asked(SHUTDOWN))
        wish = params_of(carrier.asked(SHUTDOWN)[0])
        assert UUID(str(wish.pop("trace_id")))
        assert wish == {"reason": "operator_request", "timeout_ms": 60}
        if answers:
            carrier.dies("exited with status 0", well=True)
        async with asyncio.timeout(10):
            await halting
        assert server_of(front).state is ServerLifecycleState.DISCONNECTED


async def test_the_reason_of_each_end_is_told_to_the_server() -> None:
    script = Script(starts_process=True)
    script.replies[protocol.INITIALIZE] = hello(tools={}, mgp=LIFECYCLE)
    script.replies[SHUTDOWN] = SILENCE
    async with one_server(script, how=options(drain_ms=20)) as front:
        await front.servers.restart("srv")
        await until(lambda: server_of(front).state is ServerLifecycleState.CONNECTED)
        await front.servers.stop(timedelta(seconds=5))
        asked = [each.asked(SHUTDOWN) for each in script.carriers]
        reasons = [params_of(frames[0])["reason"] for frames in asked]
        assert reasons == ["operator_request", "kernel_shutdown"]


async def test_a_server_without_lifecycle_is_ended_the_way_of_mcp() -> None:
    script = Script(starts_process=True)
    async with one_server(script) as front:
        await front.servers.stop_server("srv")
        assert script.last.asked(SHUTDOWN) == []
        assert script.open == []
