"""What is said amid a call across the eras, and what becomes of it at its edges."""

import pytest

from comity.kernel import outbox
from comity.kernel.call import Call
from comity.wire import jsonrpc, mcp
from comity.wire.audit import as_uuid
from comity.wire.errors import MISSING_CAPABILITY, Unavailable
from comity.wire.jsonrpc import Frame
from tests.kernel.bridged import (
    ACCEPT,
    DONE,
    EVERYTHING,
    Bridged,
    bridged,
    handshake_server,
    inside,
    modern_server,
    parked,
)
from tests.kernel.carriers import Params, hello, params_of, result_of, settled, until
from tests.kernel.desks import Asked
from tests.kernel.refused import kind_of, refusal_in

each_transport = pytest.mark.parametrize("process", [True, False], ids=["stdio", "http"])


def frames_in(asked: Asked) -> list[Frame]:
    return [jsonrpc.decode(data) for data in asked.outbox.frames]


def progress(house: Bridged, done: float) -> None:
    meta = inside(params_of(house.asked), "_meta")
    told: Params = {"progressToken": meta["progressToken"], "progress": done}
    house.carrier.says(jsonrpc.notification(mcp.PROGRESS, told), house.asked)


def logs(house: Bridged, level: str) -> None:
    told = jsonrpc.notification(mcp.MESSAGE, {"level": level, "data": level})
    house.carrier.says(told, house.asked)


@each_transport
@pytest.mark.parametrize("token", [7, "seven", 2**60])
async def test_progress_reaches_a_modern_client_under_its_own_token(
    process: bool, token: object
) -> None:
    async with bridged(handshake_server(process)) as house:
        asked = await house.called(meta={"progressToken": token})
        progress(house, 0.5)
        house.finishes()
        (told, _) = frames_in(asked)
        assert params_of(told) == {"progressToken": token, "progress": 0.5}


async def test_two_clients_with_the_same_token_are_told_apart_by_the_server() -> None:
    async with bridged(handshake_server()) as house:
        for _ in range(2):
            await house.called(meta={"progressToken": 1})
        tokens = [params_of(frame)["_meta"] for frame in house.calls]
        assert tokens[0] != tokens[1]
        for frame in house.calls:
            house.carrier.answers(frame, {"content": []})


@each_transport
async def test_progress_after_a_return_bears_the_token_of_the_return(process: bool) -> None:
    async with bridged(handshake_server(process)) as house:
        first = await house.called(meta={"progressToken": "one"})
        house.asks("q")
        result = await first.result()
        # Whatever is told while nobody stands in front is told to nobody.
        progress(house, 0.1)
        second = house.retry(result["requestState"], {"1": ACCEPT}, meta={"progressToken": "two"})
        await until(lambda: house.heard_by_server("q"))
        progress(house, 0.7)
        house.finishes()
        (told, _) = frames_in(second)
        assert params_of(told) == {"progressToken": "two", "progress": 0.7}


@each_transport
async def test_progress_reaches_a_handshake_client_under_its_own_token(process: bool) -> None:
    async with bridged(modern_server(process)) as house:
        session = await house.front.client(**EVERYTHING)
        params: Params = {"name": "t", "_meta": {"progressToken": "mine"}}
        asked = house.front.ask(session, mcp.CALL_TOOL, params)
        await until(lambda: house.calls)
        progress(house, 0.5)
        house.finishes()
        (told, _) = frames_in(asked)
        assert params_of(told) == {"progressToken": "mine", "progress": 0.5}


async def test_progress_puts_off_the_deadline_of_a_call_across() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called(meta={"progressToken": 1})
        house.front.clock.passes(50)
        progress(house, 0.5)
        house.front.clock.passes(50)
        house.front.underway.look(1000)
        house.finishes()
        assert (await asked.result())["content"] == DONE["content"]


@each_transport
async def test_log_messages_reach_a_modern_client_from_its_level_on(process: bool) -> None:
    async with bridged(handshake_server(process)) as house:
        asked = await house.called(meta={mcp.LOG_LEVEL: "warning"})
        levels = [
            params_of(frame) for each in house.script.open for frame in each.asked(mcp.SET_LEVEL)
        ]
        assert levels == [{"level": "warning"}]
        for level in ("debug", "warning", "error"):
            logs(house, level)
        house.finishes()
        told = [params_of(frame)["level"] for frame in frames_in(asked)[:-1]]
        assert told == ["warning", "error"]


async def test_a_level_that_is_none_or_higher_than_before_is_not_set() -> None:
    async with bridged(handshake_server()) as house:
        for level in ("info", "error", "loud", 7, "debug"):
            await house.called(meta={mcp.LOG_LEVEL: level})
            house.finishes()
        set_to = [params_of(frame)["level"] for frame in house.carrier.asked(mcp.SET_LEVEL)]
        assert set_to == ["info", "debug"]


async def test_a_modern_client_that_named_no_level_hears_no_log() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        logs(house, "emergency")
        house.finishes()
        assert len(frames_in(asked)) == 1


async def test_log_messages_reach_a_handshake_client_amid_its_call() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        await house.front.ask(session, mcp.SET_LEVEL, {"level": "info"}).result()
        asked = house.front.ask(session, mcp.CALL_TOOL, {"name": "t"})
        await until(lambda: house.calls)
        meta = inside(params_of(house.asked), "_meta")
        assert meta[mcp.LOG_LEVEL] == "info"
        logs(house, "info")
        house.finishes()
        assert [frame.method for frame in frames_in(asked)[:-1]] == [mcp.MESSAGE]


@pytest.mark.parametrize(
    "params", [[], 7, {"progressToken": []}, {"level": {}}, {"_meta": 7}, None]
)
@each_transport
async def test_a_broken_notice_is_lost_and_its_call_goes_on(process: bool, params: object) -> None:
    async with bridged(handshake_server(process)) as house:
        asked = await house.called(meta={"progressToken": 1, mcp.LOG_LEVEL: "debug"})
        for method in (mcp.PROGRESS, mcp.MESSAGE, mcp.TOOLS_CHANGED, "notifications/vendor"):
            told = jsonrpc.encode(jsonrpc.notification(method, params))
            house.carrier.says(told, house.asked)
        house.finishes()
        assert (await asked.result())["content"] == DONE["content"]


async def test_a_notice_with_a_repeated_key_is_lost_and_its_call_goes_on() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called(meta={mcp.LOG_LEVEL: "debug"})
        method = b'{"jsonrpc":"2.0","method":"notifications/message",'
        house.carrier.says(method + b'"params":{"level":"info","level":1}}', house.asked)
        house.finishes()
        assert (await asked.result())["content"] == DONE["content"]


@pytest.mark.parametrize(
    "result", [[], 7, None, "x", {"_meta": 7}, {"structuredContent": {}, "_meta": []}]
)
async def test_a_broken_result_is_the_servers_fault(result: object) -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        house.finishes(result)
        assert kind_of(refusal_in(await asked.answer())) == "upstream_failed"


async def test_a_result_with_a_repeated_key_is_the_servers_fault() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        said = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"content":[]}}'
        house.carrier.says(said % house.asked.id, house.asked)
        assert kind_of(refusal_in(await asked.answer())) == "upstream_failed"


@each_transport
async def test_what_could_not_be_sent_was_not_done(process: bool) -> None:
    async with bridged(handshake_server(process)) as house:
        await house.called()
        house.finishes()
        house.carrier.breaks = Unavailable("the pipe is full")
        error = await house.modern().error()
        assert inside({"data": error.data}, "data")["details"] == {"outcome": "not_run"}


async def test_what_could_not_be_sent_to_a_modern_server_was_not_done_either() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        (carrier,) = house.script.open
        carrier.breaks = Unavailable("the pipe is full")
        error = await house.front.ask(session, mcp.CALL_TOOL, {"name": "t"}).error()
        assert inside({"data": error.data}, "data")["details"] == {"outcome": "not_run"}


async def test_a_slow_reader_pauses_the_server_before_and_after_its_return() -> None:
    async with bridged(handshake_server()) as house:
        first = await house.called(meta={"progressToken": 1})
        minted = house.asked.id
        assert isinstance(minted, int)
        house.carrier.receiver.stream_opened(minted)
        for _ in range(outbox.MOST_FRAMES // 2 + 1):
            progress(house, 0.1)
        assert house.carrier.paused == [(True, minted)]
        house.asks("q")
        state = result_of(frames_in(first)[-1])["requestState"]
        # The client never read the rest of that stream, and comes back on another.
        second = house.retry(state, {"1": ACCEPT}, meta={"progressToken": 2})
        await until(lambda: house.heard_by_server("q"))
        assert house.carrier.paused[-1] == (False, minted)
        for _ in range(outbox.MOST_FRAMES // 2 + 1):
            progress(house, 0.2)
        assert house.carrier.paused[-1] == (True, minted)
        second.outbox.take()
        assert house.carrier.paused[-1] == (False, minted)
        house.finishes()
        await second.result()


async def test_a_reader_that_falls_too_far_behind_ends_its_call_and_no_other() -> None:
    async with bridged(handshake_server()) as house:
        slow = await house.called(meta={"progressToken": 1})
        slow_call = house.asked
        quick = await house.called()
        for _ in range(outbox.MOST_FRAMES + 1):
            meta = inside(params_of(slow_call), "_meta")
            told: Params = {"progressToken": meta["progressToken"], "progress": 1}
            house.carrier.says(jsonrpc.notification(mcp.PROGRESS, told), slow_call)
        assert slow.outbox.overrun
        assert slow_call.id in house.carrier.abandoned
        house.finishes()
        assert (await quick.result())["content"] == DONE["content"]


async def test_a_client_of_the_modern_era_cannot_be_spoken_to_while_parked() -> None:
    async with bridged(handshake_server()) as house:
        _, state = await parked(house)
        for method in (mcp.MESSAGE, mcp.PROGRESS, "notifications/vendor"):
            house.carrier.says(jsonrpc.notification(method, {}), house.asked)
        await settled()
        house.finishes()
        again = house.retry(state, {})
        await again.result()


async def test_a_modern_server_cannot_ask_by_a_request() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client(**EVERYTHING)
        asked = house.front.ask(session, mcp.CALL_TOOL, {"name": "t"})
        await until(lambda: house.calls)
        house.asks("q")
        (heard,) = house.heard_by_server("q")
        assert jsonrpc.error_of(heard) is not None
        house.finishes()
        await asked.result()


async def test_a_modern_server_cannot_tell_amid_a_call_what_it_should_tell_elsewhere() -> None:
    async with bridged(modern_server()) as house:
        session = await house.front.client()
        asked = house.front.ask(session, mcp.CALL_TOOL, {"name": "t"})
        await until(lambda: house.calls)
        for method in (mcp.ACKNOWLEDGED, mcp.TOOLS_CHANGED, "notifications/vendor"):
            house.carrier.says(jsonrpc.notification(method, {}), house.asked)
        house.finishes()
        assert [frame.method for frame in frames_in(asked)[:-1]] == ["notifications/vendor"]


async def test_an_error_has_its_http_status_although_the_server_opened_a_stream() -> None:
    async with bridged(handshake_server()) as house:
        asked = await house.called()
        assert isinstance(house.asked.id, int)
        house.carrier.receiver.stream_opened(house.asked.id)
        house.carrier.receiver.stream_suspended(house.asked.id)
        assert not asked.outbox.streaming
        told = jsonrpc.failure(house.asked.id, MISSING_CAPABILITY, "no elicitation")
        house.carrier.says(told, house.asked)
        assert (await asked.error()).code == MISSING_CAPABILITY.code
        assert asked.outbox.status == 400


async def test_a_call_that_is_withdrawn_while_its_way_is_found_is_never_made() -> None:
    async with bridged(handshake_server()) as house:
        asked = house.modern()
        await until(lambda: len(house.front.underway))
        (call,) = house.front.underway
        call.withdraw(None)
        await asked.asking
        assert house.calls == []


@each_transport
async def test_a_call_across_has_the_trace_of_the_call_in_front(
    process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At a server's own door a trace is the client's own affair.
    monkeypatch.setattr(Call, "is_for_all_servers", True)
    said = hello(tools={}, mgp={"version": "0.3.0", "extensions": []})
    async with bridged(handshake_server(process, initialize=said)) as house:
        asked = await house.called()
        front = await asked.asking
        assert params_of(house.asked)["trace_id"] == as_uuid(front.traced())
        house.finishes()
