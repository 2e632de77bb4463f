"""Connections to a server: calls, hostile messages, the handshake, and a server that fails."""

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.audit.events import NOTICE
from comity.errors import EXHAUSTED, INTERNAL_ERROR, MalformedMessage, Unavailable
from comity.gateway.subscriptions import BATCH_SECONDS
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import LIMITS, Frame
from comity.mcp.mgp import NegotiatedTerms, ServerLifecycleState
from comity.mcp.protocol import STANDALONE, UNKNOWN, Era
from comity.servers.connection_users import ConnectionUsers
from comity.servers.supervisor import UpstreamServer
from comity.sessions.calls import ActiveCalls, Call
from comity.sessions.client_streams import MAX_QUEUED_FRAMES, ClientStream
from comity.sessions.sessions import Session
from comity.sessions.upstream import ServerActivity, UpstreamConnection
from comity.toolkit.resilience import MAX_FAILURES, CircuitState
from comity.toolkit.text import as_uuid
from tests.support.carriers import (
    SILENCE,
    Clock,
    Params,
    Script,
    ScriptedCarrier,
    hello,
    params_of,
    settled,
    until,
)
from tests.support.cases import loop_over
from tests.support.desks import Front, all_servers, one_server
from tests.support.link_room import Room, frames_in, is_error, opened
from tests.support.refused import refusal_in
from tests.support.server_house import AT_ONCE, LATER, options, tools

both_transports = loop_over("process", [False, True], ids=["streams", "one stream"])


@both_transports
async def test_each_answer_reaches_its_own_call_once(process: bool) -> None:
    room = await opened(process)
    (first, one), (second, two) = room.call(), room.call()
    room.carrier.answers(two, {"n": 2})
    room.carrier.answers(one, {"n": 1})
    room.carrier.answers(one, {"n": 3})
    assert frames_in(first) == [jsonrpc.make_result("own-1", {"n": 1})]
    assert frames_in(second) == [jsonrpc.make_result("own-2", {"n": 2})]
    assert first.client_stream.is_final
    assert len(room.link.conversation) == len(room.underway) == 0
    assert len(room.session.conversation) == 0


async def test_an_answer_on_another_calls_stream_reaches_nobody() -> None:
    room = await opened()
    (first, one), (second, two) = room.call(), room.call()
    room.carrier.says(jsonrpc.make_result(int(str(one.id)), {}), amid=two)
    room.carrier.says(jsonrpc.make_result(int(str(one.id)), {}))
    assert (frames_in(first), frames_in(second)) == ([], [])
    room.carrier.answers(one, {})
    assert len(frames_in(first)) == 1


async def test_a_question_amid_a_call_goes_to_that_calls_stream() -> None:
    room = await opened()
    room.session.capabilities = {"sampling": Raw(b"{}")}
    (first, one), (second, _) = room.call(), room.call()
    room.carrier.says(jsonrpc.make_request("q", protocol.SAMPLE), amid=one)
    (seen,) = frames_in(first)
    assert (seen.method, frames_in(second), room.questions) == (protocol.SAMPLE, [], [])
    room.session.handle_message(jsonrpc.make_result(int(str(seen.id)), {"yes": 1}))
    assert room.carrier.told() == [jsonrpc.make_result("q", {"yes": 1})]


@both_transports
async def test_what_belongs_to_no_call_is_for_the_audience(process: bool) -> None:
    room = await opened(process)
    room.carrier.says(jsonrpc.make_notification("vendor/note"))
    room.carrier.says(jsonrpc.make_request("q", "vendor/ask"))
    assert [frame.method for frame in room.heard] == ["vendor/note"]
    assert [question.server_request_id for question in room.questions] == ["q"]


@both_transports
async def test_a_ping_is_answered_here(process: bool) -> None:
    room = await opened(process)
    call, asked = room.call()
    room.carrier.says(jsonrpc.make_request(5, protocol.PING), amid=asked)
    room.carrier.says(jsonrpc.make_request(5, protocol.PING))
    assert room.carrier.told() == [jsonrpc.make_result(5, {})] * 2
    assert (frames_in(call), room.questions) == ([], [])


async def test_a_question_under_an_id_in_use_is_dropped_and_the_first_stands() -> None:
    room = await opened(process=True)
    room.carrier.says(jsonrpc.make_request("q", "vendor/ask"))
    room.carrier.says(jsonrpc.make_request("q", "vendor/other"))
    assert [question.method for question in room.questions] == ["vendor/ask"]
    room.questions[0].deliver_answer(jsonrpc.make_result("q", {}))
    room.carrier.says(jsonrpc.make_request("q", "vendor/again"))
    assert len(room.questions) == 2


async def test_a_server_that_asks_without_end_is_refused_and_answered() -> None:
    room = await opened(process=True)
    for number in range(4096 + 3):
        room.carrier.says(jsonrpc.make_request(number, "vendor/ask"))
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
    assert frames_in(second) == [jsonrpc.make_result("own-2", {})]


@both_transports
async def test_closing_a_link_tells_whoever_waits(process: bool) -> None:
    room = await opened(process)
    (call, asked), _ = room.call(), room.call()
    room.carrier.says(jsonrpc.make_request("q", "vendor/ask"), amid=asked)
    await room.link.close()
    assert is_error(frames_in(call)[-1])
    assert (len(room.underway), len(room.link.conversation), room.ends) == (0, 0, [])
    with pytest.raises(Unavailable):
        room.call()
    room.link.send_message(jsonrpc.make_notification("x"))
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
async def test_cancelled_call_is_cancelled_at_the_server_and_has_no_answer(process: bool) -> None:
    room = await opened(process)
    call, asked = room.call()
    room.session.handle_message(
        jsonrpc.make_notification(protocol.CANCELLED, {"requestId": "own-1", "reason": "r"})
    )
    assert room.carrier.told() == [
        jsonrpc.make_notification(protocol.CANCELLED, {"requestId": asked.id, "reason": "r"})
    ]
    assert room.carrier.abandoned == [asked.id]
    assert len(room.underway) == 0
    room.carrier.answers(asked, {"late": True})
    call.deliver_answer(jsonrpc.make_result("own-1", {}))
    assert (frames_in(call), call.client_stream.is_final) == ([], True)


async def test_question_that_its_server_cancels_is_cancelled_at_the_client_once() -> None:
    room = await opened()
    call, asked = room.call()
    room.carrier.says(jsonrpc.make_request("q", "vendor/ask"), amid=asked)
    cancelled = {"requestId": "q", "reason": "enough"}
    for _ in range(2):
        room.carrier.says(jsonrpc.make_notification(protocol.CANCELLED, cancelled), amid=asked)
    question, taken_back = frames_in(call)
    assert taken_back.method == protocol.CANCELLED
    assert params_of(taken_back) == {"requestId": question.id, "reason": "enough"}
    room.session.handle_message(jsonrpc.make_result(int(str(question.id)), {}))
    assert room.carrier.told() == []
    assert len(room.link.conversation) == 1


async def test_a_stream_that_ends_without_an_answer_fails_its_call() -> None:
    room = await opened()
    (first, one), (second, _) = room.call(), room.call()
    room.link.on_stream_ended(int(str(one.id)), None)
    room.link.on_stream_ended(int(str(one.id)), Unavailable("again"))
    room.link.on_stream_ended(99, None)
    assert is_error(frames_in(first)[0])
    assert not second.client_stream.is_final


async def test_the_shape_of_a_servers_stream_is_the_shape_of_the_clients() -> None:
    room = await opened()
    call, asked = room.call()
    stream = int(str(asked.id))
    assert room.link.is_awaited(stream)
    room.link.on_stream_opened(stream)
    room.link.on_stream_suspended(stream)
    assert (call.client_stream.is_streaming, call.client_stream.is_suspended) == (True, True)
    room.carrier.answers(asked, {})
    assert not room.link.is_awaited(stream)
    room.link.on_stream_opened(stream)
    room.link.on_stream_suspended(STANDALONE)


async def test_a_slow_reader_pauses_its_own_stream_where_there_is_one() -> None:
    room = await opened()
    call, asked = room.call()
    room.link.on_stream_opened(int(str(asked.id)))
    for _ in range(MAX_QUEUED_FRAMES // 2 + 1):
        room.carrier.says(jsonrpc.make_notification("vendor/note"), amid=asked)
    call.client_stream.take()
    assert room.carrier.paused == [(True, asked.id), (False, asked.id)]


async def test_a_shared_stream_is_never_paused_for_one_of_its_readers() -> None:
    room = await opened(process=True)
    call, asked = room.call(_meta={"progressToken": "t"})
    progress = jsonrpc.make_notification(
        protocol.PROGRESS, {"progressToken": asked.id, "progress": 1}
    )
    for _ in range(MAX_QUEUED_FRAMES // 2 + 1):
        room.carrier.says(progress)
    assert len(call.client_stream.take()) == MAX_QUEUED_FRAMES // 2 + 1
    assert room.carrier.paused == []


async def test_a_request_that_the_carrier_does_not_take_is_not_open() -> None:
    room = await opened()
    frame = jsonrpc.make_request(1, protocol.CALL_TOOL)
    call = room.underway.begin(frame, ClientStream(), room.session)
    room.carrier.breaks = Unavailable("pipe full")
    with pytest.raises(Unavailable, match="pipe full"):
        room.link.send_call(call, frame)
    room.link.send_message(jsonrpc.make_notification("x"))
    assert (call.connection, len(room.link.conversation)) == (None, 0)


async def test_a_call_that_was_withdrawn_on_its_way_is_never_sent() -> None:
    room = await opened()
    frame = jsonrpc.make_request(1, "tools/call")
    call = room.underway.begin(frame, ClientStream(), room.session)
    call.withdraw(None)
    room.link.send_call(call, frame)
    assert (room.carrier.sent, len(room.link.conversation)) == ([], 0)


async def test_a_change_of_lists_is_noted_wherever_it_is_told_but_amid_our_own_requests() -> None:
    """Some servers tell it on the stream of the call by which it came about."""
    room = await opened()
    noted: list[str] = []
    room.link.on_list_changed = noted.append
    changed = jsonrpc.make_notification(protocol.TOOLS_CHANGED)
    call, asked = room.call()
    room.carrier.says(changed, asked)
    assert noted == [protocol.TOOLS_CHANGED]
    assert jsonrpc.decode_frame(call.client_stream.take()[0]).method == protocol.TOOLS_CHANGED
    room.carrier.says(changed)
    assert (len(noted), len(room.heard)) == (2, 1)
    own = asyncio.ensure_future(room.link.request(protocol.LISTEN))
    await until(lambda: room.carrier.asked(protocol.LISTEN))
    room.carrier.says(changed, room.carrier.asked(protocol.LISTEN)[0])
    assert len(noted) == 2
    own.cancel()


async def test_a_request_says_its_trace_where_both_speak_mgp_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = await opened()
    _, plain = room.call(name="look")
    assert "trace_id" not in params_of(plain)
    room.link.mgp = NegotiatedTerms("0.3.0", frozenset())
    # At the server's own door a plain client's request crosses as it is.
    assert "trace_id" not in params_of(room.call(name="look")[1])
    monkeypatch.setattr(Call, "is_for_all_servers", True)
    call, asked = room.call(name="look")
    assert params_of(asked) == {"trace_id": as_uuid(call.ensure_trace_id()), "name": "look"}
    _, told = room.call(name="look", trace_id=as_uuid("1f" * 16))
    assert params_of(told)["trace_id"] == as_uuid("1f" * 16)
    own = asyncio.ensure_future(room.link.request(protocol.PING))
    await until(lambda: room.carrier.asked(protocol.PING))
    assert params_of(room.carrier.asked(protocol.PING)[0]).keys() == {"trace_id"}
    own.cancel()


async def test_what_a_server_says_has_happened_is_heard_once_where_that_was_agreed_on() -> None:
    room = await opened()
    said = jsonrpc.make_notification(NOTICE, {"event_type": "X"})
    room.carrier.says(said)
    heard: list[jsonrpc.Frame] = []
    room.link.activity.notification_handlers[NOTICE] = lambda _, frame: heard.append(frame)
    _, asked = room.call()
    room.carrier.says(said, asked)
    room.carrier.says(said)
    assert [frame.method for frame in heard] == [NOTICE, NOTICE]


async def test_a_server_that_speaks_mgp_unasked_has_agreed_on_nothing() -> None:
    room = await opened()
    said = {"version": "0.3.0", "extensions": ["audit", "lifecycle"]}
    room.script.replies[protocol.INITIALIZE] = hello(mgp=said)
    await room.link.initialize({"capabilities": {}})
    assert room.link.mgp is None
    offered = {"version": "0.3.0", "extensions": ["audit", "streaming"]}
    await room.link.initialize({"capabilities": {"mgp": offered}})
    assert room.link.mgp == NegotiatedTerms("0.3.0", frozenset({"audit"}))


hostile_values = st.sampled_from(
    [
        b"null",
        b"[]",
        b"5",
        b'"x"',
        b"{}",
        b'{"a":1,"a":2}',
        b'{"_meta":{"b":1,"b":2}}',
        b'{"_meta":{"progressToken":{"c":1,"c":2}}}',
        b'{"uri":{"d":1,"d":2}}',
        b'{"level":["e"]}',
        b'{"taskId":{"f":1,"f":1}}',
        b'{"protocolVersion":"x\\r\\nevil: 1"}',
        b'{"requestId":{"g":1,"g":1}}',
        b'{"progressToken":1e999}',
        b'{"progressToken":' + b"9" * 5000 + b"}",
    ]
)
hostile_methods = st.sampled_from(
    [
        protocol.PROGRESS,
        protocol.CANCELLED,
        protocol.MESSAGE,
        protocol.RESOURCE_UPDATED,
        protocol.TOOLS_CHANGED,
        protocol.SAMPLE,
        protocol.PING,
        "notifications/tasks/status",
        "vendor/x",
    ]
)
hostile_frames = st.one_of(
    st.builds(
        b'{"jsonrpc":"2.0","method":"%b","params":%b}'.__mod__,
        st.tuples(hostile_methods.map(str.encode), hostile_values),
    ),
    st.builds(
        b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}'.__mod__,
        st.tuples(st.integers(0, 3), hostile_methods.map(str.encode), hostile_values),
    ),
    st.builds(
        b'{"jsonrpc":"2.0","id":%d,"result":%b}'.__mod__,
        st.tuples(st.integers(0, 5), hostile_values),
    ),
    st.builds(
        b'{"jsonrpc":"2.0","id":%d,"error":%b}'.__mod__,
        st.tuples(st.integers(0, 5), hostile_values),
    ),
    st.binary(max_size=20),
)


@given(st.booleans(), st.booleans(), st.lists(hostile_frames, max_size=12), st.data())
def test_whatever_a_server_says_nothing_is_raised_and_nothing_is_left(
    process: bool, merged: bool, frames: list[bytes], data: st.DataObject
) -> None:
    asyncio.run(_hear_all(process, merged, frames, data))


async def _hear_all(process: bool, merged: bool, frames: list[bytes], data: st.DataObject) -> None:
    script = Script(starts_process=process)
    session = Session("", 0)
    session.sees_all_servers = merged
    session.log_level = "error"
    sharers = ConnectionUsers(None, lambda link, because: None)
    sharers.attach(session)
    link = UpstreamConnection(
        "srv", script.create_transport(Era.HANDSHAKE), sharers if process else session, LIMITS
    )
    await link.open()
    underway = ActiveCalls(Clock(), 60, 300, 600)
    calls = list[Call]()
    for number in range(3):
        frame = jsonrpc.make_request(number, protocol.LISTEN if number else "tools/call", {})
        calls.append(underway.begin(frame, ClientStream(), session))
        if number == 2:
            calls[-1].adapt_answer = _read_everything
        link.send_call(calls[-1], frame)
    for frame in frames:
        stream = UNKNOWN if process else data.draw(st.integers(0, 4))
        link.on_message(frame, stream, 200)
    await link.close()
    assert all(call.client_stream.is_final for call in calls)
    assert len(underway) == len(link.conversation) == 0


def _read_everything(frame: Frame) -> Frame:
    assert isinstance(frame.result, Raw)
    jsonrpc.decode_members(frame.result)
    return frame


async def test_a_request_of_our_own_is_answered_or_raises() -> None:
    room = await opened()
    room.script.replies |= {"a": {"n": 1}, "b": Unavailable("no", INTERNAL_ERROR)}
    async with asyncio.timeout(10):
        assert (await room.link.request("a")).result is not jsonrpc.UNSET
        assert is_error(await room.link.request("b"))
    asking = asyncio.ensure_future(room.link.request("silent"))
    await settled()
    room.carrier.dies()
    with pytest.raises(Unavailable):
        await asking
    with pytest.raises(Unavailable):
        await room.link.request("a")


async def test_a_request_of_our_own_survives_pauses_and_floods() -> None:
    """A stream that a server closes for now once made the gateway spin for ever."""
    room = await opened()
    told = list[Frame]()
    asking = asyncio.ensure_future(room.link.request("silent", on_notification=told.append))
    await settled()
    asked = room.carrier.sent[-1].frame
    room.link.on_stream_opened(int(str(asked.id)))
    room.link.on_stream_suspended(int(str(asked.id)))
    for _ in range(MAX_QUEUED_FRAMES * 2):
        room.carrier.says(jsonrpc.make_notification("vendor/note"), amid=asked)
    await settled()
    assert not asking.done()
    room.carrier.answers(asked, {"n": 1})
    async with asyncio.timeout(10):
        assert await asking == jsonrpc.make_result("comity", {"n": 1})
    assert len(told) == MAX_QUEUED_FRAMES * 2


async def test_a_request_of_our_own_that_is_given_up_is_called_off() -> None:
    room = await opened()
    asking = asyncio.ensure_future(room.link.request("silent"))
    await settled()
    asking.cancel()
    await asyncio.wait([asking])
    assert [frame.method for frame in room.carrier.told()] == [protocol.CANCELLED]
    assert len(room.link.conversation) == 0


async def test_a_link_full_of_calls_is_unavailable_to_our_own() -> None:
    room = await opened()
    for number in range(4096):
        room.link.conversation.register_request(jsonrpc.make_request(number, "x"), room.call)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        await room.link.request("a")
    with pytest.raises(MalformedMessage):
        room.call()
    room.link.conversation.close()


async def test_a_handshake_comes_before_the_word_that_it_is_over() -> None:
    room = await opened()
    async with asyncio.timeout(10):
        found = await room.link.initialize({"capabilities": {}})
    assert [sent.frame.method for sent in room.carrier.sent] == ["initialize", protocol.INITIALIZED]
    assert found == room.link.initialize_result
    assert room.carrier.versions == [protocol.LATEST_HANDSHAKE]
    assert room.link.has_capability("tools")
    assert not room.link.has_capability("logging")


@loop_over(
    "answer",
    [
        Unavailable("go away"),
        [],
        "x",
        {"protocolVersion": "x\r\nevil: 1"},
        {"protocolVersion": 5},
        {**hello(), "protocolVersion": "1999-01-01"},
        Raw(b'{"protocolVersion":{"a":1,"a":2}}'),
    ],
    ids=["refused", "list", "word", "control", "number", "older", "a key twice"],
)
async def test_a_handshake_that_goes_wrong_closes_the_link(answer: object) -> None:
    room = Room()
    room.script.replies["initialize"] = answer
    with pytest.raises((Unavailable, MalformedMessage)):
        await room.link.begin(timedelta(seconds=5), {})
    assert not room.carrier.is_open
    assert not room.link.is_open
    assert all("\r" not in version for version in room.carrier.versions)


async def test_a_server_that_never_answers_the_handshake_is_given_up() -> None:
    room = Room()
    room.script.replies["initialize"] = SILENCE
    with pytest.raises(Unavailable, match="silent"):
        await room.link.begin(timedelta(milliseconds=20), {})
    assert not room.carrier.is_open


async def test_a_link_that_its_client_greets_is_only_opened() -> None:
    room = Room()
    await room.link.begin(timedelta(seconds=5), None)
    assert room.carrier.is_open
    assert room.carrier.sent == []


async def test_capabilities_of_no_known_shape_declare_nothing() -> None:
    room = await opened()
    room.link.initialize_result = {"capabilities": Raw(b'{"tools":1,"tools":2}')}
    assert not room.link.has_capability("tools")


LOOK: Params = {"name": "look", "arguments": {}}


def server_of(front: Front, name: str = "srv") -> UpstreamServer:
    server = front.servers.get(name)
    assert server is not None
    return server


def fail_calls(carrier: ScriptedCarrier, times: int) -> None:
    for _ in range(times):
        carrier.receiver.on_failure("cannot be reached", True)


def test_failures_in_a_row_open_the_circuit_and_each_is_reported() -> None:
    reported = list[str]()
    pulse = ServerActivity(reported.append)
    for _ in range(MAX_FAILURES):
        assert pulse.circuit.state is CircuitState.CLOSED
        pulse.record_failure("gone", is_in_call=True)
    assert pulse.circuit.state is CircuitState.OPEN
    assert reported == ["gone"] * MAX_FAILURES


@loop_over(("in_a_call", "heard", "failures"), [(True, 1, 1), (False, 0, 0)])
def test_only_failures_of_calls_with_nothing_heard_between_them_are_counted(
    in_a_call: bool, heard: int, failures: int
) -> None:
    pulse = ServerActivity()
    for _ in range(10 * MAX_FAILURES):
        pulse.record_failure("gone", is_in_call=in_a_call)
        pulse.received_messages += heard
    assert (pulse.circuit.state, pulse.circuit.failures) == (CircuitState.CLOSED, failures)


async def test_calls_to_a_remote_server_that_fails_are_refused_at_once_until_it_is_back() -> None:
    script = Script(replies={"tools/call": SILENCE, protocol.LIST_TOOLS: tools("look")})
    async with one_server(script, how=options(backoff=LATER)) as front:
        session = await front.client()
        under_way = front.ask(session, "tools/call", LOOK)
        await until(lambda: session.own_connections["srv"].callers)
        own = next(each for each in script.open if each.asked("tools/call"))
        fail_calls(own, MAX_FAILURES - 1)
        await settled()
        assert server_of(front).state is ServerLifecycleState.CONNECTED
        fail_calls(own, 1)
        await until(lambda: server_of(front).state is ServerLifecycleState.RESTARTING)
        refusal = await front.ask(session, "tools/call", LOOK).refusal()
        assert refusal["error_type"] == "server_restarting"
        assert int(str(refusal["retry_after_ms"])) > 1_000_000
        assert "cannot be reached" in str(refusal["reason"])
        assert len(own.asked("tools/call")) == 1, "nothing was sent"
        assert own.is_open, "the session keeps its link"
        own.answers(own.asked("tools/call")[0], {"late": True})
        assert await under_way.result() == {"late": True}
        await front.servers.restart("srv")
        await until(lambda: server_of(front).state is ServerLifecycleState.CONNECTED)
        assert server_of(front).activity.circuit.state is CircuitState.CLOSED


async def test_a_remote_server_that_is_back_is_tried_by_the_gateway_itself() -> None:
    script = Script(replies={"tools/call": {"by": "it"}, protocol.LIST_TOOLS: tools("look")})
    async with all_servers({"srv": script}, how=options(backoff=AT_ONCE)) as front:
        session = await front.client()
        await front.ask(session, "tools/call", LOOK).result()
        own = next(each for each in script.open if each.asked("tools/call"))
        script.refuses = "connection refused"
        fail_calls(own, MAX_FAILURES)
        await until(lambda: server_of(front).restarts > 5)
        assert server_of(front).activity.circuit.state is not CircuitState.CLOSED
        assert (
            "connection refused" in (await front.ask(session, "tools/call", LOOK).error()).message
        )
        script.refuses = None
        await until(lambda: server_of(front).state is ServerLifecycleState.CONNECTED)
        assert await front.ask(session, "tools/call", LOOK).result() == {"by": "it"}
        assert await told(session.standalone) == {protocol.TOOLS_CHANGED}


async def forgotten(outbox: ClientStream) -> None:
    """Until the changes of the start have been told, which are gathered for a moment."""
    await asyncio.sleep(2 * BATCH_SECONDS)
    outbox.take()


async def told(outbox: ClientStream) -> set[str]:
    """The methods of what waits on a session's own stream, once something does."""
    async with asyncio.timeout(10):
        while not outbox.frames:
            await asyncio.sleep(0.01)
    return {str(jsonrpc.decode_frame(data).method) for data in outbox.frames}


@loop_over("door", ["own", "merged"])
@loop_over("process", [False, True], ids=["http", "stdio"])
async def test_a_client_is_told_when_a_server_is_back_though_its_list_is_the_same(
    door: str, process: bool
) -> None:
    script = Script(starts_process=process)
    script.replies |= {"tools/call": {"by": "it"}, protocol.LIST_TOOLS: tools("look")}
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
            fail_calls(script.open[-1], MAX_FAILURES)
        await until(lambda: server_of(front).restarts == 1)
        assert await told(session.standalone) == {protocol.TOOLS_CHANGED}
        assert await front.ask(session, "tools/call", LOOK).result() == {"by": "it"}


async def test_a_client_that_shared_a_process_shares_the_next_one_without_a_call() -> None:
    script = Script(starts_process=True, replies={"tools/call": {"by": "it"}})
    async with one_server(script, how=options(backoff=AT_ONCE)) as front:
        session = await front.client()
        script.last.dies()
        await until(lambda: server_of(front).restarts == 1)
        await until(lambda: server_of(front).state is ServerLifecycleState.CONNECTED)
        await forgotten(session.standalone)
        script.last.says(jsonrpc.make_notification(protocol.PROMPTS_CHANGED))
        assert await told(session.standalone) == {protocol.PROMPTS_CHANGED}


async def test_a_listener_of_the_modern_era_is_told_too() -> None:
    script = Script(starts_process=True, replies={protocol.LIST_TOOLS: tools("look")})
    async with one_server(script, how=options(backoff=AT_ONCE)) as front:
        wanted: Params = {"notifications": {"toolsListChanged": True}}
        listening = front.handle_modern_request(protocol.LISTEN, wanted)
        await until(lambda: len(listening.outbox.frames) == 1)
        script.last.dies()
        async with asyncio.timeout(10):
            while len(listening.outbox.frames) < 2:
                await asyncio.sleep(0.01)
        assert protocol.TOOLS_CHANGED.encode() in listening.outbox.frames[-1]


async def test_a_process_of_a_session_lives_for_itself() -> None:
    script = Script(starts_process=True, replies={"tools/call": {"by": "it"}})
    async with one_server(script, how=options(own_process=True)) as front:
        session = await front.client()
        await front.ask(session, "tools/call", LOOK).result()
        script.carriers[0].dies()
        await until(lambda: server_of(front).state is ServerLifecycleState.RESTARTING)
        assert await front.ask(session, "tools/call", LOOK).result() == {"by": "it"}


async def test_a_link_that_ended_is_held_no_longer() -> None:
    script = Script(replies={"tools/call": {}})
    async with one_server(script) as front:
        pulse = server_of(front).activity
        before = len(pulse.connections)
        for _ in range(3):
            session = await front.client()
            await front.ask(session, "tools/call", LOOK).result()
            assert len(pulse.connections) == before + 1
            await front.sessions.end(session)
        assert len(pulse.connections) == before
