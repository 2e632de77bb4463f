"""How a server is brought to its end: new calls are refused, others finish or are ended."""

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from comity.kernel.servers import Server
from comity.wire import mcp
from comity.wire.errors import UPSTREAM_FAILED
from comity.wire.lifecycle import SHUTDOWN, State
from tests.kernel.carriers import SILENCE, Params, Script, hello, params_of, until
from tests.kernel.desks import Front, one_server
from tests.kernel.server_house import options

both_kinds = pytest.mark.parametrize("process", [False, True], ids=["http", "stdio"])
LIFECYCLE: Params = {"version": "0.3.0", "extensions": ["lifecycle"]}
LOOK: Params = {"name": "look", "arguments": {}}


def server_of(front: Front) -> Server:
    server = front.servers.get("srv")
    assert server is not None
    return server


def calling(script: Script) -> list[object]:
    """The calls that the server has heard, over whatever link."""
    return [frame for each in script.carriers for frame in each.asked("tools/call")]


@both_kinds
async def test_a_call_under_way_finishes_and_a_new_one_is_refused(process: bool) -> None:
    script = Script(costs_a_process=process, replies={"tools/call": SILENCE})
    async with one_server(script) as front:
        session = await front.client()
        under_way = front.ask(session, "tools/call", LOOK)
        await until(lambda: calling(script))
        halting = asyncio.ensure_future(front.servers.halt("srv"))
        await until(lambda: server_of(front).state is State.DRAINING)
        for asked in (front.ask(session, "tools/call", LOOK), front.ask_modern("tools/call", LOOK)):
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
    script = Script(costs_a_process=process, replies={"tools/call": SILENCE})
    async with one_server(script, how=options(drain_ms=40)) as front:
        session = await front.client()
        under_way = front.ask(session, "tools/call", LOOK)
        await until(lambda: calling(script))
        carrier = next(each for each in script.open if each.asked("tools/call"))
        await front.servers.halt("srv")
        refusal = await under_way.refusal()
        assert refusal["error_type"] == UPSTREAM_FAILED.error_type
        assert refusal["details"] == {"outcome": "unknown"}
        assert [each.method for each in carrier.told()][-1] == mcp.CANCELLED
        assert len(front.underway) == 0


async def test_who_only_listens_holds_up_nobody() -> None:
    script = Script(handshake=False, modern=True, replies={mcp.LISTEN: SILENCE})
    async with one_server(script, how=options(drain_ms=600_000)) as front:
        listening = front.ask_modern(mcp.LISTEN, {"notifications": {"toolsListChanged": True}})
        await until(lambda: len(script.last.asked(mcp.LISTEN)) == 1 or listening.asking.done())
        async with asyncio.timeout(10):
            await front.servers.halt("srv")


@pytest.mark.parametrize("answers", [True, False], ids=["that goes", "that refuses"])
async def test_a_server_that_knows_how_is_asked_to_shut_down(answers: bool) -> None:
    script = Script(costs_a_process=True)
    script.replies[mcp.INITIALIZE] = hello(tools={}, mgp=LIFECYCLE)
    script.replies[SHUTDOWN] = {"accepted": True} if answers else SILENCE
    async with one_server(script, how=options(drain_ms=60)) as front:
        carrier = script.last
        halting = asyncio.ensure_future(front.servers.halt("srv"))
        await until(lambda: carrier.asked(SHUTDOWN))
        wish = params_of(carrier.asked(SHUTDOWN)[0])
        assert UUID(str(wish.pop("trace_id")))
        assert wish == {"reason": "operator_request", "timeout_ms": 60}
        if answers:
            carrier.dies("exited with status 0", well=True)
        async with asyncio.timeout(10):
            await halting
        assert server_of(front).state is State.DISCONNECTED


async def test_the_reason_of_each_end_is_told_to_the_server() -> None:
    script = Script(costs_a_process=True)
    script.replies[mcp.INITIALIZE] = hello(tools={}, mgp=LIFECYCLE)
    script.replies[SHUTDOWN] = SILENCE
    async with one_server(script, how=options(drain_ms=20)) as front:
        await front.servers.restart("srv")
        await until(lambda: server_of(front).state is State.CONNECTED)
        await front.servers.stop(timedelta(seconds=5))
        asked = [each.asked(SHUTDOWN) for each in script.carriers]
        reasons = [params_of(frames[0])["reason"] for frames in asked]
        assert reasons == ["operator_request", "kernel_shutdown"]


async def test_a_server_without_lifecycle_is_ended_the_way_of_mcp() -> None:
    script = Script(costs_a_process=True)
    async with one_server(script) as front:
        await front.servers.halt("srv")
        assert script.last.asked(SHUTDOWN) == []
        assert script.open == []
