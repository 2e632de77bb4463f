"""What all links to a server know together: when it fails as a whole, and who waits for it."""

import asyncio

import pytest

from comity.kernel.outbox import Outbox
from comity.kernel.pulse import Pulse
from comity.kernel.servers import Server
from comity.kernel.subscribing import GATHER_SECONDS
from comity.rules.circuit import MOST_FAILURES, Phase
from comity.wire import jsonrpc, mcp
from comity.wire.lifecycle import State
from tests.kernel.carriers import SILENCE, Params, Script, ScriptedCarrier, settled, until
from tests.kernel.desks import Front, all_servers, one_server
from tests.kernel.server_house import AT_ONCE, LATER, options, tools

LOOK: Params = {"name": "look", "arguments": {}}


def server_of(front: Front, name: str = "srv") -> Server:
    server = front.servers.get(name)
    assert server is not None
    return server


def fail_calls(carrier: ScriptedCarrier, times: int) -> None:
    for _ in range(times):
        carrier.receiver.faltered("cannot be reached", True)


def test_failures_in_a_row_open_the_circuit_and_each_is_told() -> None:
    told = list[str]()
    pulse = Pulse(told.append)
    for _ in range(MOST_FAILURES):
        assert pulse.circuit.phase is Phase.CLOSED
        pulse.falter("gone", in_a_call=True)
    assert pulse.circuit.phase is Phase.OPEN
    assert told == ["gone"] * MOST_FAILURES


def test_anything_heard_between_two_failures_begins_the_count_anew() -> None:
    pulse = Pulse()
    for _ in range(10 * MOST_FAILURES):
        pulse.falter("gone", in_a_call=True)
        pulse.heard += 1
    assert (pulse.circuit.phase, pulse.circuit.failures) == (Phase.CLOSED, 1)


def test_what_breaks_beside_a_call_counts_for_no_call() -> None:
    pulse = Pulse()
    for _ in range(10 * MOST_FAILURES):
        pulse.falter("gone", in_a_call=False)
    assert pulse.circuit.failures == 0


async def test_calls_to_a_remote_server_that_fails_are_refused_at_once_until_it_is_back() -> None:
    script = Script(replies={"tools/call": SILENCE, mcp.LIST_TOOLS: tools("look")})
    async with one_server(script, how=options(backoff=LATER)) as front:
        session = await front.client()
        under_way = front.ask(session, "tools/call", LOOK)
        await until(lambda: session.links["srv"].callers)
        own = next(each for each in script.open if each.asked("tools/call"))
        fail_calls(own, MOST_FAILURES - 1)
        await settled()
        assert server_of(front).state is State.CONNECTED
        fail_calls(own, 1)
        await until(lambda: server_of(front).state is State.RESTARTING)
        refusal = await front.ask(session, "tools/call", LOOK).refusal()
        assert refusal["error_type"] == "server_restarting"
        assert int(str(refusal["retry_after_ms"])) > 1_000_000
        assert "cannot be reached" in str(refusal["reason"])
        assert len(own.asked("tools/call")) == 1, "nothing was sent"
        assert own.is_open, "the session keeps its link"
        own.answers(own.asked("tools/call")[0], {"late": True})
        assert await under_way.result() == {"late": True}
        await front.servers.restart("srv")
        await until(lambda: server_of(front).state is State.CONNECTED)
        assert server_of(front).pulse.circuit.phase is Phase.CLOSED


async def test_a_remote_server_that_is_back_is_tried_by_the_gateway_itself() -> None:
    script = Script(replies={"tools/call": {"by": "it"}, mcp.LIST_TOOLS: tools("look")})
    async with all_servers({"srv": script}, how=options(backoff=AT_ONCE)) as front:
        session = await front.client()
        await front.ask(session, "tools/call", LOOK).result()
        own = next(each for each in script.open if each.asked("tools/call"))
        script.refuses = "connection refused"
        fail_calls(own, MOST_FAILURES)
        await until(lambda: server_of(front).restarts > 5)
        assert server_of(front).pulse.circuit.phase is not Phase.CLOSED
        assert (
            "connection refused" in (await front.ask(session, "tools/call", LOOK).error()).message
        )
        script.refuses = None
        await until(lambda: server_of(front).state is State.CONNECTED)
        assert await front.ask(session, "tools/call", LOOK).result() == {"by": "it"}
        assert await told(session.standalone) == {mcp.TOOLS_CHANGED}


async def forgotten(outbox: Outbox) -> None:
    """Until the changes of the start have been told, which are gathered for a moment."""
    await asyncio.sleep(2 * GATHER_SECONDS)
    outbox.take()


async def told(outbox: Outbox) -> set[str]:
    """The methods of what waits on a session's own stream, once something does."""
    async with asyncio.timeout(10):
        while not outbox.frames:
            await asyncio.sleep(0.01)
    return {str(jsonrpc.decode(data).method) for data in outbox.frames}


@pytest.mark.parametrize("door", ["own", "merged"])
@pytest.mark.parametrize("process", [False, True], ids=["http", "stdio"])
async def test_a_client_is_told_when_a_server_is_back_though_its_list_is_the_same(
    door: str, process: bool
) -> None:
    script = Script(costs_a_process=process)
    script.replies |= {"tools/call": {"by": "it"}, mcp.LIST_TOOLS: tools("look")}
    opened = all_servers({"srv": script}, how=options(backoff=AT_ONCE))
    if door == "own":
        opened = one_server(script, how=options(backoff=AT_ONCE))
    async with opened as front:
        session = await front.client()
        await front.ask(session, "tools/call", LOOK).result()
        await forgotten(session.standalone)
        if process:
            script.last.dies()
        else:
            fail_calls(script.open[-1], MOST_FAILURES)
        await until(lambda: server_of(front).restarts == 1)
        assert await told(session.standalone) == {mcp.TOOLS_CHANGED}
        assert await front.ask(session, "tools/call", LOOK).result() == {"by": "it"}


async def test_a_client_that_shared_a_process_shares_the_next_one_without_a_call() -> None:
    script = Script(costs_a_process=True, replies={"tools/call": {"by": "it"}})
    async with one_server(script, how=options(backoff=AT_ONCE)) as front:
        session = await front.client()
        script.last.dies()
        await until(lambda: server_of(front).restarts == 1)
        await until(lambda: server_of(front).state is State.CONNECTED)
        await forgotten(session.standalone)
        script.last.says(jsonrpc.notification(mcp.PROMPTS_CHANGED))
        assert await told(session.standalone) == {mcp.PROMPTS_CHANGED}


async def test_a_listener_of_the_modern_era_is_told_too() -> None:
    script = Script(costs_a_process=True, replies={mcp.LIST_TOOLS: tools("look")})
    async with one_server(script, how=options(backoff=AT_ONCE)) as front:
        wanted: Params = {"notifications": {"toolsListChanged": True}}
        listening = front.ask_modern(mcp.LISTEN, wanted)
        await until(lambda: len(listening.outbox.frames) == 1)
        script.last.dies()
        async with asyncio.timeout(10):
            while len(listening.outbox.frames) < 2:
                await asyncio.sleep(0.01)
        assert mcp.TOOLS_CHANGED.encode() in listening.outbox.frames[-1]


async def test_a_process_of_a_session_lives_for_itself() -> None:
    script = Script(costs_a_process=True, replies={"tools/call": {"by": "it"}})
    async with one_server(script, how=options(own_process=True)) as front:
        session = await front.client()
        await front.ask(session, "tools/call", LOOK).result()
        script.carriers[0].dies()
        await until(lambda: server_of(front).state is State.RESTARTING)
        assert await front.ask(session, "tools/call", LOOK).result() == {"by": "it"}


async def test_a_link_that_ended_is_held_no_longer() -> None:
    script = Script(replies={"tools/call": {}})
    async with one_server(script) as front:
        pulse = server_of(front).pulse
        before = len(pulse.links)
        for _ in range(3):
            session = await front.client()
            await front.ask(session, "tools/call", LOOK).result()
            assert len(pulse.links) == before + 1
            await front.sessions.end(session)
        assert len(pulse.links) == before
