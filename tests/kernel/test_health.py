"""How a server is asked whether it is well, when it is not asked, and when it is given up."""

import asyncio
from datetime import timedelta

import pytest

from comity.rules.health import Probing
from comity.wire import mcp
from comity.wire.errors import METHOD_NOT_FOUND, Unavailable
from comity.wire.lifecycle import HEALTH_PING, State
from tests.kernel.carriers import SILENCE, Params, Reply, Script, hello, params_of, settled, until
from tests.kernel.desks import one_server
from tests.kernel.server_house import AT_ONCE, connected, options, standing

MOMENT = timedelta(milliseconds=1)
OFTEN = Probing(every=MOMENT, within=MOMENT * 50, when_in_doubt=MOMENT)
HASTY = Probing(every=MOMENT, within=MOMENT, when_in_doubt=MOMENT)
LIFECYCLE: Params = {"version": "0.3.0", "extensions": ["lifecycle"]}
both_kinds = pytest.mark.parametrize("process", [False, True], ids=["http", "stdio"])


@both_kinds
async def test_a_server_that_shook_hands_is_pinged(process: bool) -> None:
    async with standing() as house:
        script = Script(costs_a_process=process, replies={mcp.PING: {}})
        server = await connected(house, script, options(probing=OFTEN))
        await until(lambda: len(script.open[-1].asked(mcp.PING)) > 5)
        assert server.state is State.CONNECTED
        assert server.health.missed == 0


@both_kinds
async def test_a_server_of_the_modern_era_is_discovered_again(process: bool) -> None:
    async with standing() as house:
        script = Script(costs_a_process=process, handshake=False, modern=True)
        server = await connected(house, script, options(probing=OFTEN))
        (carrier,) = script.open
        await until(lambda: len(carrier.asked(mcp.DISCOVER)) > 5)
        assert server.state is State.CONNECTED
        assert "_meta" in params_of(carrier.asked(mcp.DISCOVER)[-1])


async def test_a_server_that_agreed_on_lifecycle_is_asked_by_mgp_and_its_word_kept() -> None:
    async with standing() as house:
        words = iter(["healthy", "degraded"])
        replies: dict[str, Reply] = {
            mcp.INITIALIZE: hello(tools={}, mgp=LIFECYCLE),
            HEALTH_PING: lambda params: {"status": next(words, "unhealthy")},
        }
        script = Script(costs_a_process=True, replies=replies)
        server = await connected(house, script, options(probing=OFTEN))
        for word in ("healthy", "degraded", "unhealthy"):
            await until(lambda word=word: server.health.status == word)
        asked = params_of(script.last.asked(HEALTH_PING)[0])
        assert str(asked["timestamp"]).endswith("Z")
        assert script.last.asked(mcp.PING) == []
        assert server.state is State.CONNECTED, "what it says of itself is shown, and ends nothing"


@both_kinds
async def test_a_server_that_stays_silent_is_given_up_and_started_again(process: bool) -> None:
    async with standing() as house:
        script = Script(costs_a_process=process, replies={mcp.PING: SILENCE})
        server = await connected(house, script, options(probing=HASTY, backoff=AT_ONCE))
        mute = script.open[-1]
        await until(lambda: server.restarts >= 1)
        script.replies[mcp.PING] = {}
        assert len(mute.asked(mcp.PING)) == 3
        assert not mute.is_open
        lost = next(step for step in house.steps if step.state is State.ERROR)
        assert "did not answer 3 times" in lost.reason


async def test_an_error_is_an_answer_too() -> None:
    async with standing() as house:
        refused = Unavailable("Method not found", METHOD_NOT_FOUND)
        script = Script(costs_a_process=True, replies={mcp.PING: refused})
        server = await connected(house, script, options(probing=OFTEN))
        await until(lambda: len(script.last.asked(mcp.PING)) > 5)
        assert (server.state, server.health.missed) == (State.CONNECTED, 0)


@pytest.mark.parametrize("falters", [False, True], ids=["refuses", "falters"])
async def test_a_remote_server_that_refuses_a_probe_by_http_lives_and_one_that_falters_does_not(
    falters: bool,
) -> None:
    async with standing() as house:
        script = Script()
        server = await connected(house, script, options(probing=OFTEN))
        carrier = script.open[-1]
        for number in range(4):
            await until(lambda n=number: len(carrier.asked(mcp.PING)) > n or not carrier.is_open)
            if carrier.is_open:
                if falters:
                    carrier.receiver.faltered("HTTP 502", False)
                asked = int(str(carrier.asked(mcp.PING)[-1].id))
                carrier.receiver.stream_ended(asked, Unavailable("HTTP 404"))
        await settled()
        assert (server.state is State.CONNECTED) is not falters


@both_kinds
async def test_a_server_that_was_heard_is_not_asked(process: bool) -> None:
    async with standing() as house:
        script = Script(costs_a_process=process, replies={mcp.PING: {}})
        server = await connected(house, script, options(probing=OFTEN))

        async def speak() -> None:
            while True:
                # In every turn of the loop, and no probe is made without a turn before it.
                server.pulse.heard += 1
                await asyncio.sleep(0)

        speaking = asyncio.ensure_future(speak())
        await settled()
        before = len(script.open[-1].asked(mcp.PING))
        async with asyncio.timeout(10):
            for _ in range(100):
                await asyncio.sleep(OFTEN.every.total_seconds())
        assert len(script.open[-1].asked(mcp.PING)) - before <= 1
        speaking.cancel()
        await until(lambda: len(script.open[-1].asked(mcp.PING)) > before + 5)


@both_kinds
async def test_a_server_with_a_call_to_answer_may_be_silent_for_as_long_as_a_call_may_take(
    process: bool,
) -> None:
    script = Script(costs_a_process=process, replies={mcp.PING: SILENCE, "tools/call": SILENCE})
    patient = Probing(MOMENT, MOMENT, when_in_doubt=MOMENT, while_busy=timedelta(hours=1))
    async with one_server(script, how=options(probing=patient)) as front:
        server = front.servers.get("srv")
        assert server is not None
        session = await front.client()
        working = front.ask(session, "tools/call", {"name": "long"})
        await until(lambda: server.health.missed > 10)
        assert server.state is State.CONNECTED
        carrier = next(each for each in script.open if each.asked("tools/call"))
        carrier.answers(carrier.asked("tools/call")[0], {"done": True})
        assert await working.result() == {"done": True}
        await until(lambda: server.state is not State.CONNECTED)


async def test_new_calls_are_no_excuse_for_a_server_that_is_silent_for_too_long() -> None:
    script = Script(costs_a_process=True, replies={mcp.PING: SILENCE, "tools/call": SILENCE})
    hasty = Probing(MOMENT, MOMENT, when_in_doubt=MOMENT, while_busy=MOMENT * 30)
    async with one_server(script, how=options(probing=hasty)) as front:
        server = front.servers.get("srv")
        assert server is not None
        waiting = front.ask(await front.client(), "tools/call", {"name": "long"})
        await until(lambda: server.state is State.RESTARTING)
        assert "did not answer" in (await waiting.error()).message


async def test_who_is_never_to_be_asked_is_not() -> None:
    async with standing() as house:
        script = Script(costs_a_process=True)
        server = await connected(house, script, options(probing=Probing(every=timedelta(0))))
        script.last.receiver.faltered("hung up", False)
        await settled(100)
        assert script.last.asked(mcp.PING) == []
        assert server.state is State.CONNECTED


async def test_one_whose_stream_breaks_is_asked_soon() -> None:
    async with standing() as house:
        script = Script(replies={mcp.PING: SILENCE})
        probing = Probing(every=timedelta(hours=1), within=MOMENT, when_in_doubt=MOMENT)
        server = await connected(house, script, options(probing=probing))
        await settled(100)
        carrier = script.open[-1]
        assert carrier.asked(mcp.PING) == []
        carrier.receiver.faltered("hung up", False)
        await until(lambda: server.state is State.RESTARTING)
        assert len(carrier.asked(mcp.PING)) == 3
