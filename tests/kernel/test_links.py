"""A link to a server: answers find their call, and no word of the server's does any harm."""

import asyncio

import pytest

from comity.kernel.call import Call
from comity.kernel.outbox import MOST_FRAMES, Outbox
from comity.rules.negotiation import Terms
from comity.wire import jsonrpc, mcp
from comity.wire.audit import NOTICE, as_uuid
from comity.wire.errors import EXHAUSTED, Unavailable
from comity.wire.mcp import STANDALONE
from tests.kernel.carriers import (
    hello,
    params_of,
    until,
)
from tests.kernel.link_room import frames_in, is_error, opened
from tests.kernel.refused import refusal_in

both_transports = pytest.mark.parametrize("process", [False, True], ids=["streams", "one stream"])


@both_transports
async def test_each_answer_reaches_its_own_call(process: bool) -> None:
    room = await opened(process)
    (first, one), (second, two) = room.call(), room.call()
    room.carrier.answers(two, {"n": 2})
    room.carrier.answers(one, {"n": 1})
    assert frames_in(first) == [jsonrpc.result("own-1", {"n": 1})]
    assert frames_in(second) == [jsonrpc.result("own-2", {"n": 2})]
    assert len(room.link.conversation) == len(room.underway) == 0


async def test_an_answer_on_another_calls_stream_reaches_nobody() -> None:
    room = await opened()
    (first, one), (second, two) = room.call(), room.call()
    room.carrier.says(jsonrpc.result(int(str(one.id)), {}), amid=two)
    room.carrier.says(jsonrpc.result(int(str(one.id)), {}))
    assert (frames_in(first), frames_in(second)) == ([], [])
    room.carrier.answers(one, {})
    assert len(frames_in(first)) == 1


@both_transports
async def test_a_second_answer_reaches_nobody(process: bool) -> None:
    room = await opened(process)
    call, asked = room.call()
    room.carrier.answers(asked, {"n": 1})
    room.carrier.answers(asked, {"n": 2})
    assert frames_in(call) == [jsonrpc.result("own-1", {"n": 1})]


async def test_a_question_amid_a_call_goes_to_that_calls_stream() -> None:
    room = await opened()
    (first, one), (second, _) = room.call(), room.call()
    room.carrier.says(jsonrpc.request("q", "vendor/ask"), amid=one)
    (seen,) = frames_in(first)
    assert (seen.method, frames_in(second), room.questions) == ("vendor/ask", [], [])
    room.session.hear(jsonrpc.result(int(str(seen.id)), {"yes": 1}))
    assert room.carrier.told() == [jsonrpc.result("q", {"yes": 1})]


@both_transports
async def test_what_belongs_to_no_call_is_for_the_audience(process: bool) -> None:
    room = await opened(process)
    room.carrier.says(jsonrpc.notification("vendor/note"))
    room.carrier.says(jsonrpc.request("q", "vendor/ask"))
    assert [frame.method for frame in room.heard] == ["vendor/note"]
    assert [question.asker_id for question in room.questions] == ["q"]


@both_transports
async def test_a_ping_is_answered_here(process: bool) -> None:
    room = await opened(process)
    call, asked = room.call()
    room.carrier.says(jsonrpc.request(5, mcp.PING), amid=asked)
    room.carrier.says(jsonrpc.request(5, mcp.PING))
    assert room.carrier.told() == [jsonrpc.result(5, {})] * 2
    assert (frames_in(call), room.questions) == ([], [])


async def test_a_question_under_an_id_in_use_is_dropped_and_the_first_stands() -> None:
    room = await opened(process=True)
    room.carrier.says(jsonrpc.request("q", "vendor/ask"))
    room.carrier.says(jsonrpc.request("q", "vendor/other"))
    assert [question.method for question in room.questions] == ["vendor/ask"]
    room.questions[0].answered(jsonrpc.result("q", {}))
    room.carrier.says(jsonrpc.request("q", "vendor/again"))
    assert len(room.questions) == 2


async def test_a_server_that_asks_without_end_is_refused_and_answered() -> None:
    room = await opened(process=True)
    for number in range(4096 + 3):
        room.carrier.says(jsonrpc.request(number, "vendor/ask"))
    assert len(room.questions) == 4096
    refused = [jsonrpc.error_of(frame) for frame in room.carrier.told()]
    assert [error.code for error in refused if error] == [EXHAUSTED.code] * 3


@both_transports
async def test_a_broken_message_fails_only_its_call(process: bool) -> None:
    room = await opened(process)
    (first, one), (second, two) = room.call(), room.call()
    broken = b'{"jsonrpc":"2.0","id":%d,"result":{},"result":{}}' % int(str(one.id))
    room.carrier.says(broken, amid=one)
    assert is_error(frames_in(first)[0])
    room.carrier.answers(two, {})
    assert frames_in(second) == [jsonrpc.result("own-2", {})]


@both_transports
async def test_closing_a_link_tells_whoever_waits(process: bool) -> None:
    room = await opened(process)
    (call, asked), _ = room.call(), room.call()
    room.carrier.says(jsonrpc.request("q", "vendor/ask"), amid=asked)
    await room.link.close()
    assert is_error(frames_in(call)[-1])
    assert (len(room.underway), len(room.link.conversation), room.ends) == (0, 0, [])
    with pytest.raises(Unavailable):
        room.call()
    room.link.tell(jsonrpc.notification("x"))
    assert not room.carrier.is_open


async def test_a_link_that_goes_says_so_once() -> None:
    room = await opened()
    call, _ = room.call()
    room.carrier.dies("exit status 3")
    room.carrier.dies("again")
    (failure,) = frames_in(call)
    error = refusal_in(failure)
    assert error is not None
    assert "exit status 3" in error.message
    assert room.ends == ["exit status 3"]
    await room.link.close()
    assert room.ends == ["exit status 3"]


@both_transports
async def test_a_client_that_withdraws_is_heard_by_the_server(process: bool) -> None:
    room = await opened(process)
    call, asked = room.call()
    room.session.hear(jsonrpc.notification(mcp.CANCELLED, {"requestId": "own-1", "reason": "r"}))
    assert room.carrier.told() == [
        jsonrpc.notification(mcp.CANCELLED, {"requestId": asked.id, "reason": "r"})
    ]
    assert room.carrier.abandoned == [asked.id]
    room.carrier.answers(asked, {"late": True})
    assert (frames_in(call), call.outbox.final) == ([], True)


async def test_a_server_that_withdraws_its_question_is_heard_by_the_client() -> None:
    room = await opened()
    call, asked = room.call()
    room.carrier.says(jsonrpc.request("q", "vendor/ask"), amid=asked)
    room.carrier.says(jsonrpc.notification(mcp.CANCELLED, {"requestId": "q"}), amid=asked)
    question, taken_back = frames_in(call)
    assert taken_back.method == mcp.CANCELLED
    assert params_of(taken_back)["requestId"] == question.id
    room.session.hear(jsonrpc.result(int(str(question.id)), {}))
    assert room.carrier.told() == []


async def test_a_stream_that_ends_without_an_answer_fails_its_call() -> None:
    room = await opened()
    (first, one), (second, _) = room.call(), room.call()
    room.link.stream_ended(int(str(one.id)), None)
    room.link.stream_ended(int(str(one.id)), Unavailable("again"))
    room.link.stream_ended(99, None)
    assert is_error(frames_in(first)[0])
    assert not second.outbox.final


async def test_the_shape_of_a_servers_stream_is_the_shape_of_the_clients() -> None:
    room = await opened()
    call, asked = room.call()
    stream = int(str(asked.id))
    assert room.link.awaits(stream)
    room.link.stream_opened(stream)
    room.link.stream_suspended(stream)
    assert (call.outbox.streaming, call.outbox.suspended) == (True, True)
    room.carrier.answers(asked, {})
    assert not room.link.awaits(stream)
    room.link.stream_opened(stream)
    room.link.stream_suspended(STANDALONE)


async def test_a_slow_reader_pauses_its_own_stream_where_there_is_one() -> None:
    room = await opened()
    call, asked = room.call()
    room.link.stream_opened(int(str(asked.id)))
    for _ in range(MOST_FRAMES // 2 + 1):
        room.carrier.says(jsonrpc.notification("vendor/note"), amid=asked)
    call.outbox.take()
    assert room.carrier.paused == [(True, asked.id), (False, asked.id)]


async def test_a_shared_stream_is_never_paused_for_one_of_its_readers() -> None:
    room = await opened(process=True)
    call, asked = room.call(_meta={"progressToken": "t"})
    progress = jsonrpc.notification(mcp.PROGRESS, {"progressToken": asked.id, "progress": 1})
    for _ in range(MOST_FRAMES // 2 + 1):
        room.carrier.says(progress)
    assert len(call.outbox.take()) == MOST_FRAMES // 2 + 1
    assert room.carrier.paused == []


async def test_a_request_that_the_carrier_does_not_take_is_not_open() -> None:
    room = await opened()
    room.carrier.breaks = Unavailable("pipe full")
    with pytest.raises(Unavailable, match="pipe full"):
        room.call()
    room.link.tell(jsonrpc.notification("x"))
    assert len(room.link.conversation) == 0


async def test_a_call_that_was_withdrawn_on_its_way_is_never_sent() -> None:
    room = await opened()
    frame = jsonrpc.request(1, "tools/call")
    call = room.underway.begin(frame, Outbox(), room.session)
    call.withdraw(None)
    room.link.ask(call, frame)
    assert (room.carrier.sent, len(room.link.conversation)) == ([], 0)


async def test_a_change_of_lists_is_noted_wherever_it_is_told_but_amid_our_own_requests() -> None:
    """Some servers tell it on the stream of the call by which it came about."""
    room = await opened()
    noted: list[str] = []
    room.link.on_change = noted.append
    changed = jsonrpc.notification(mcp.TOOLS_CHANGED)
    call, asked = room.call()
    room.carrier.says(changed, asked)
    assert noted == [mcp.TOOLS_CHANGED]
    assert jsonrpc.decode(call.outbox.take()[0]).method == mcp.TOOLS_CHANGED
    room.carrier.says(changed)
    assert (len(noted), len(room.heard)) == (2, 1)
    own = asyncio.ensure_future(room.link.request(mcp.LISTEN))
    await until(lambda: room.carrier.asked(mcp.LISTEN))
    room.carrier.says(changed, room.carrier.asked(mcp.LISTEN)[0])
    assert len(noted) == 2
    own.cancel()


async def test_a_request_says_its_trace_where_both_speak_mgp_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = await opened()
    _, plain = room.call(name="look")
    assert "trace_id" not in params_of(plain)
    room.link.mgp = Terms("0.3.0", frozenset())
    # At the server's own door a plain client's request crosses as it is.
    assert "trace_id" not in params_of(room.call(name="look")[1])
    monkeypatch.setattr(Call, "is_for_all_servers", True)
    call, asked = room.call(name="look")
    assert params_of(asked) == {"trace_id": as_uuid(call.traced()), "name": "look"}
    _, told = room.call(name="look", trace_id=as_uuid("1f" * 16))
    assert params_of(told)["trace_id"] == as_uuid("1f" * 16)
    own = asyncio.ensure_future(room.link.request(mcp.PING))
    await until(lambda: room.carrier.asked(mcp.PING))
    assert params_of(room.carrier.asked(mcp.PING)[0]).keys() == {"trace_id"}
    own.cancel()


async def test_what_a_server_says_has_happened_is_heard_once_where_that_was_agreed_on() -> None:
    room = await opened()
    said = jsonrpc.notification(NOTICE, {"event_type": "X"})
    room.carrier.says(said)
    heard: list[jsonrpc.Frame] = []
    room.link.pulse.notices[NOTICE] = lambda _, frame: heard.append(frame)
    _, asked = room.call()
    room.carrier.says(said, asked)
    room.carrier.says(said)
    assert [frame.method for frame in heard] == [NOTICE, NOTICE]


async def test_a_server_that_speaks_mgp_unasked_has_agreed_on_nothing() -> None:
    room = await opened()
    said = {"version": "0.3.0", "extensions": ["audit", "lifecycle"]}
    room.script.replies[mcp.INITIALIZE] = hello(mgp=said)
    await room.link.greet({"capabilities": {}})
    assert room.link.mgp is None
    offered = {"version": "0.3.0", "extensions": ["audit", "streaming"]}
    await room.link.greet({"capabilities": {"mgp": offered}})
    assert room.link.mgp == Terms("0.3.0", frozenset({"audit"}))
