"""How a server is asked whether it is well, when it is not asked, and when it is given up."""

import asyncio
from datetime import timedelta

from comity.errors import METHOD_NOT_FOUND, Unavailable
from comity.mcp import protocol
from comity.mcp.mgp import HEALTH_PING, ServerLifecycleState
from comity.servers.lifecycle import HealthCheckSettings
from tests.support.carriers import SILENCE, Params, Reply, Script, hello, params_of, settled, until
from tests.support.cases import loop_over
from tests.support.desks import one_server
from tests.support.server_house import AT_ONCE, connected, options, standing

MOMENT = timedelta(milliseconds=1)
OFTEN = HealthCheckSettings(interval=MOMENT, timeout=MOMENT * 50, doubt_interval=MOMENT)
HASTY = HealthCheckSettings(interval=MOMENT, timeout=MOMENT, doubt_interval=MOMENT)
LIFECYCLE: Params = {"version": "0.3.0", "extensions": ["lifecycle"]}
both_kinds = loop_over("process", [False, True], ids=["http", "stdio"])


@both_kinds
async def test_a_server_that_shook_hands_is_pinged(process: bool) -> None:
    async with standing() as house:
        script = Script(starts_process=process, replies={protocol.PING: {}})
        server = await connected(house, script, options(probing=OFTEN))
        await until(lambda: len(script.open[-1].asked(protocol.PING)) > 5)
        assert server.state is ServerLifecycleState.CONNECTED
        assert server.health.missed == 0


@both_kinds
async def test_a_server_of_the_modern_era_is_discovered_again(process: bool) -> None:
    async with standing() as house:
        script = Script(starts_process=process, handshake=False, modern=True)
        server = await connected(house, script, options(probing=OFTEN))
        (carrier,) = script.open
        await until(lambda: len(carrier.asked(protocol.DISCOVER)) > 5)
        assert server.state is ServerLifecycleState.CONNECTED
        assert "_meta" in params_of(carrier.asked(protocol.DISCOVER)[-1])


async def test_a_server_that_agreed_on_lifecycle_is_asked_by_mgp_and_its_word_kept() -> None:
    async with standing() as house:
        words = iter(["healthy", "degraded"])
        replies: dict[str, Reply] = {
            protocol.INITIALIZE: hello(tools={}, mgp=LIFECYCLE),
            HEALTH_PING: lambda params: {"status": next(words, "unhealthy")},
        }
        script = Script(starts_process=True, replies=replies)
        server = await connected(house, script, options(probing=OFTEN))
        for word in ("healthy", "degraded", "unhealthy"):
            await until(lambda word=word: server.health.status == word)
        asked = params_of(script.last.asked(HEALTH_PING)[0])
        assert str(asked["timestamp"]).endswith("Z")
        assert script.last.asked(protocol.PING) == []
        assert server.state is ServerLifecycleState.CONNECTED, (
            "what it says of itself is shown, and ends nothing"
        )


@both_kinds
async def test_a_server_that_stays_silent_is_given_up_and_started_again(process: bool) -> None:
    async with standing() as house:
        script = Script(starts_process=process, replies={protocol.PING: SILENCE})
        server = await connected(house, script, options(probing=HASTY, backoff=AT_ONCE))
        mute = script.open[-1]
        await until(lambda: server.restarts >= 1)
        script.replies[protocol.PING] = {}
        assert len(mute.asked(protocol.PING)) == 3
        assert not mute.is_open
        lost = next(step for step in house.steps if step.state is ServerLifecycleState.ERROR)
        assert "did not answer 3 times" in lost.reason


async def test_an_error_is_an_answer_too() -> None:
    async with standing() as house:
        refused = Unavailable("Method not found", METHOD_NOT_FOUND)
        script = Script(starts_process=True, replies={protocol.PING: refused})
        server = await connected(house, script, options(probing=OFTEN))
        await until(lambda: len(script.last.asked(protocol.PING)) > 5)
        assert (server.state, server.health.missed) == (ServerLifecycleState.CONNECTED, 0)


@loop_over("falters", [False, True], ids=["refuses", "falters"])
async def test_a_remote_server_that_refuses_a_probe_by_http_lives_and_one_that_falters_does_not(
    falters: bool,
) -> None:
    async with standing() as house:
        script = Script()
        server = await connected(house, script, options(probing=OFTEN))
        carrier = script.open[-1]
        for number in range(4):
            await until(
                lambda n=number: len(carrier.asked(protocol.PING)) > n or not carrier.is_open
            )
            if carrier.is_open:
                if falters:
                    carrier.receiver.on_failure("HTTP 502", False)
                asked = int(str(carrier.asked(protocol.PING)[-1].id))
                carrier.receiver.on_stream_ended(asked, Unavailable("HTTP 404"))
        await settled()
        assert (server.state is ServerLifecycleState.CONNECTED) is not falters


@both_kinds
async def test_a_server_that_was_heard_is_not_asked(process: bool) -> None:
    async with standing() as house:
        script = Script(starts_process=process, replies={protocol.PING: {}})
        server = await connected(house, script, options(probing=OFTEN))

        async def speak() -> None:
            while True:
                # In every turn of the loop, and no probe is made without a turn before it.
                server.activity.received_messages += 1
                await asyncio.sleep(0)

        speaking = asyncio.ensure_future(speak())
        await settled()
        before = len(script.open[-1].asked(protocol.PING))
        async with asyncio.timeout(10):
            for _ in range(100):
                await asyncio.sleep(OFTEN.interval.total_seconds())
        assert len(script.open[-1].asked(protocol.PING)) - before <= 1
        speaking.cancel()
        await until(lambda: len(script.open[-1].asked(protocol.PING)) > before + 5)


@both_kinds
async def test_a_server_with_a_call_to_answer_may_be_silent_for_as_long_as_a_call_may_take(
    process: bool,
) -> None:
    script = Script(starts_process=process, replies={protocol.PING: SILENCE, "tools/call": SILENCE})
    patient = HealthCheckSettings(
        MOMENT, MOMENT, doubt_interval=MOMENT, busy_timeout=timedelta(hours=1)
    )
    async with one_server(script, how=options(probing=patient)) as front:
        server = front.servers.get("srv")
        assert server is not None
        session = await front.client()
        working = front.ask(session, "tools/call", {"name": "long"})
        await until(lambda: server.health.missed > 10)
        assert server.state is ServerLifecycleState.CONNECTED
        carrier = next(each for each in script.open if each.asked("tools/call"))
        carrier.answers(carrier.asked("tools/call")[0], {"done": True})
        assert await working.result() == {"done": True}
        await until(lambda: server.state is not ServerLifecycleState.CONNECTED)


async def test_new_calls_are_no_excuse_for_a_server_that_is_silent_for_too_long() -> None:
    script = Script(starts_process=True, replies={protocol.PING: SILENCE, "tools/call": SILENCE})
    hasty = HealthCheckSettings(MOMENT, MOMENT, doubt_interval=MOMENT, busy_timeout=MOMENT * 30)
    async with one_server(script, how=options(probing=hasty)) as front:
        server = front.servers.get("srv")
        assert server is not None
        waiting = front.ask(await front.client(), "tools/call", {"name": "long"})
        await until(lambda: server.state is ServerLifecycleState.RESTARTING)
        assert "did not answer" in (await waiting.error()).message


async def test_who_is_never_to_be_asked_is_not() -> None:
    async with standing() as house:
        script = Script(starts_process=True)
        server = await connected(
            house, script, options(probing=HealthCheckSettings(interval=timedelta(0)))
        )
        script.last.receiver.on_failure("hung up", False)
        await settled(100)
        assert script.last.asked(protocol.PING) == []
        assert server.state is ServerLifecycleState.CONNECTED


async def test_one_whose_stream_breaks_is_asked_soon() -> None:
    async with standing() as house:
        script = Script(replies={protocol.PING: SILENCE})
        probing = HealthCheckSettings(
            interval=timedelta(hours=1), timeout=MOMENT, doubt_interval=MOMENT
        )
        server = await connected(house, script, options(probing=probing))
        await settled(100)
        carrier = script.open[-1]
        assert carrier.asked(protocol.PING) == []
        carrier.receiver.on_failure("hung up", False)
        await until(lambda: server.state is ServerLifecycleState.RESTARTING)
        assert len(carrier.asked(protocol.PING)) == 3
