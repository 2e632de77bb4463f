"""Calls in flight: one answer each, deadlines, refusals, counts and traces."""

import asyncio
import itertools
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw

from comity.errors import (
    METHOD_NOT_FOUND,
    SERVER_RESTARTING,
    TIMEOUT,
    UPSTREAM_DOWN,
    UPSTREAM_FAILED,
    MalformedMessage,
    Unavailable,
)
from comity.mcp import jsonrpc, protocol
from comity.mcp.conversation import Conversation
from comity.mcp.jsonrpc import Frame
from comity.mcp.mgp import NegotiatedTerms, offer_extensions
from comity.mcp.refusals import MAX_KEPT_BYTES, RegistryContext
from comity.sessions.calls import ActiveCalls, Call, GatewayCall, ServerRequest, run_periodically
from comity.sessions.client_streams import MAX_QUEUED_FRAMES, ClientStream
from comity.sessions.sessions import Session
from comity.telemetry.metrics import CallMetrics, Summary
from comity.telemetry.tracing import CallTrace, CallTraceOutcome, Headers, ModelTrace, TraceContext
from tests.support.carriers import Clock, settled
from tests.support.cases import loop_over
from tests.support.clock import ManualClock
from tests.support.link_room import Room, opened
from tests.support.refused import kind_of, refusal_in

DEADLINE, CAP, PATIENCE = 60.0, 300.0, 15.0
QUESTION = 600.0


class RecordingConnection:
    """The connection of a call, which only records."""

    mgp = None

    def __init__(self) -> None:
        self.conversation: Conversation[object] = Conversation()
        self.sent: list[Frame] = []
        self.forsaken: list[int] = []

    def send_message(self, frame: Frame) -> None:
        self.sent.append(frame)

    def cancel_request(self, outgoing_id: int, reason: Raw | None) -> None:
        self.forsaken.append(outgoing_id)

    def throttle(self, outgoing_id: int, paused: bool) -> None: ...


class CallBench:
    """Calls of one session on one connection, with a clock of its own."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.underway = ActiveCalls(self.clock, DEADLINE, CAP, QUESTION)
        self.session = Session("", 0)
        self.link = RecordingConnection()
        self._ids = itertools.count(1)

    def call(self, method: str = "tools/call", session: bool = True) -> Call:
        frame = jsonrpc.make_request(next(self._ids), method, {})
        call = self.underway.begin(frame, ClientStream(), self.session if session else None)
        call.connection = self.link  # type: ignore[assignment]
        call.outgoing_id = 7
        return call

    def question(
        self, method: str = "vendor/ask", name: str = "q", **members: object
    ) -> tuple[ServerRequest, Frame]:
        frame = jsonrpc.make_request(name, method, members)
        question = ServerRequest(frame, self.link, self.link.send_message)  # type: ignore[arg-type]
        self.link.conversation.register_peer_request(name, question)
        return question, frame

    def reply(self) -> Frame:
        """The one answer that the server received, after which none of its questions is open."""
        (frame,) = self.link.sent
        assert len(self.link.conversation) == 0
        return frame

    def pass_time(self, seconds: float) -> None:
        self.clock.passes(seconds)
        self.underway.check(PATIENCE)


def answer_in(call: Call) -> Frame:
    assert call.client_stream.is_final
    (data,) = call.client_stream.take()
    return jsonrpc.decode_frame(data)


def error_in(call: Call) -> str:
    return kind_of(refusal_in(answer_in(call)))


def test_an_id_that_is_in_use_is_refused_and_leaves_nothing() -> None:
    bench = CallBench()
    frame = jsonrpc.make_request("same", "tools/call")
    bench.underway.begin(frame, ClientStream(), bench.session)
    with pytest.raises(MalformedMessage):
        bench.underway.begin(frame, ClientStream(), bench.session)
    assert len(bench.underway) == 1


def test_a_broken_answer_fails_only_its_call() -> None:
    bench = CallBench()
    call, other = bench.call(), bench.call()

    def choke(frame: Frame) -> Frame:
        raise MalformedMessage("a key is repeated")

    call.adapt_answer = choke
    call.deliver_answer(jsonrpc.make_result(1, []))
    assert error_in(call) == UPSTREAM_FAILED.error_type
    assert [*bench.underway] == [other]


@loop_over(("session", "status"), [(True, 200), (False, 404)])
def test_servers_error_is_passed_on_and_in_the_modern_era_decides_the_status(
    session: bool, status: int
) -> None:
    call = CallBench().call(session=session)
    call.adapt_answer = lambda frame: jsonrpc.make_result(1, "adapted")
    call.deliver_answer(jsonrpc.make_error(1, METHOD_NOT_FOUND, "no"))
    assert call.client_stream.status == status
    assert error_in(call) == "method_not_found"


@loop_over("error", [b"5", b"{}", b'{"code":1e5}', b'{"code":1,"code":2}', b"[]"])
def test_an_error_of_no_known_shape_is_passed_on_all_the_same(error: bytes) -> None:
    call = CallBench().call(session=False)
    call.deliver_answer(Frame("2.0", 1, error=Raw(error)))
    assert call.client_stream.is_final
    assert call.client_stream.take() == [b'{"jsonrpc":"2.0","id":1,"error":' + error + b"}"]


def test_call_past_its_deadline_is_refused_and_called_off() -> None:
    bench = CallBench()
    call = bench.call()
    bench.pass_time(DEADLINE)
    assert not call.client_stream.is_final
    bench.pass_time(1)
    assert error_in(call) == "timeout"
    assert bench.link.forsaken == [7]
    assert (len(bench.underway), len(bench.session.conversation)) == (0, 0)


def test_progress_puts_the_deadline_off_but_not_beyond_the_cap() -> None:
    bench = CallBench()
    call = bench.call()
    for _ in range(6):
        bench.clock.passes(DEADLINE - 10)
        call.deliver_notification(jsonrpc.make_notification(protocol.PROGRESS))
        bench.underway.check(PATIENCE)
    assert not call.client_stream.is_final
    bench.pass_time(1)
    assert call.client_stream.is_final


def test_the_deadlines_stand_still_while_somebody_is_asked() -> None:
    """A person may take longer to answer than any server should. (D-94)"""
    bench = CallBench()
    bench.session.capabilities = {"elicitation": Raw(b"{}")}
    call = bench.call()
    for ends_by in ("answer", "withdrawal"):
        question, frame = bench.question(protocol.ELICIT)
        call.deliver_request(question, frame)
        bench.pass_time(CAP + 1)
        assert not call.client_stream.is_final
        if ends_by == "answer":
            question.deliver_answer(jsonrpc.make_result("q", {"action": "accept"}))
        else:
            question.withdraw(None)
        bench.pass_time(DEADLINE)
        assert not call.client_stream.is_final, "the deadline goes on where it stood"
    bench.pass_time(DEADLINE + 1)
    assert call.client_stream.is_final


def test_a_question_that_the_client_never_answers_ends_and_the_call_goes_on() -> None:
    bench = CallBench()
    bench.session.capabilities = {"elicitation": Raw(b"{}")}
    call = bench.call()
    call.deliver_request(*bench.question(protocol.ELICIT))
    bench.pass_time(QUESTION - 1)
    assert not bench.link.sent
    bench.pass_time(2)
    assert kind_of(refusal_in(bench.reply())) == "timeout"
    asked, withdrawn = (jsonrpc.decode_frame(each) for each in call.client_stream.take())
    assert (asked.method, withdrawn.method) == (protocol.ELICIT, protocol.CANCELLED)
    assert len(bench.session.conversation) == 1, "only the call itself is open"
    bench.pass_time(DEADLINE - 1)
    assert not call.client_stream.is_final
    bench.pass_time(2)
    assert call.client_stream.is_final


def test_the_deadline_stands_still_until_the_last_of_several_questions_is_settled() -> None:
    bench = CallBench()
    call = bench.call()
    first, second = bench.question(), bench.question(name="r")
    call.deliver_request(*first)
    call.deliver_request(*second)
    first[0].deliver_answer(jsonrpc.make_result("q", {"action": "accept"}))
    bench.pass_time(DEADLINE + 1)
    assert not call.client_stream.is_final
    second[0].withdraw(None)
    bench.pass_time(DEADLINE + 1)
    assert call.client_stream.is_final


def test_listener_has_no_deadline_and_is_nudged() -> None:
    bench = CallBench()
    call = bench.call(protocol.LISTEN, session=False)
    bench.pass_time(CAP * 100)
    assert (call.client_stream.is_final, call.client_stream.is_nudged) == (False, True)


def test_a_call_that_takes_long_is_watched_once_and_then_nudged() -> None:
    bench = CallBench()
    call, watched = bench.call(), list[int]()
    call.on_first_check = lambda: watched.append(1)
    bench.pass_time(0)
    bench.pass_time(0)
    assert watched == [1]
    assert not call.client_stream.is_nudged
    bench.pass_time(PATIENCE + 1)
    assert call.client_stream.is_nudged


def test_a_reader_that_is_too_slow_loses_its_own_call_only() -> None:
    bench = CallBench()
    slow, other = bench.call(), bench.call()
    for _ in range(MAX_QUEUED_FRAMES + 1):
        slow.deliver_notification(jsonrpc.make_notification(protocol.PROGRESS))
    assert slow.client_stream.is_overrun
    assert bench.link.forsaken == [7]
    assert [*bench.underway] == [other]


@loop_over("method", sorted(protocol.CLIENT_CAPABILITY))
def test_a_client_is_not_asked_what_it_did_not_declare(method: str) -> None:
    bench = CallBench()
    call = bench.call()
    call.deliver_request(*bench.question(method))
    assert call.client_stream.take() == []
    error = jsonrpc.error_of(bench.reply())
    assert error is not None
    assert error.code == METHOD_NOT_FOUND.code


def test_modern_request_cannot_be_asked() -> None:
    bench = CallBench()
    bench.call(session=False).deliver_request(*bench.question())
    assert jsonrpc.error_of(bench.reply()) is not None


def test_a_question_that_cannot_be_read_is_refused() -> None:
    bench = CallBench()
    broken = Frame("2.0", "q", "vendor/ask", Raw(b'{"progressToken":1,"a":1,"a":2}'))
    bench.call().deliver_request(bench.question()[0], broken)
    assert jsonrpc.error_of(bench.reply()) is not None
    assert bench.session.conversation.pending_requests == []


def test_a_question_on_a_stream_that_has_ended_is_refused() -> None:
    bench = CallBench()
    question, frame = bench.question()
    gone = ClientStream()
    gone.end()
    question.send_to_client(bench.session, frame, gone)
    assert jsonrpc.error_of(bench.reply()) is not None
    assert bench.session.conversation.pending_requests == []


def test_question_amid_an_answer_is_refused() -> None:
    bench = CallBench()
    bench.question()[0].deliver_request(*bench.question(name="r"))
    assert jsonrpc.error_of(bench.link.sent[0]) is not None
    assert bench.link.sent[0].id == "r"


def test_progress_of_a_clients_answer_reaches_the_server() -> None:
    bench = CallBench()
    bench.call().deliver_request(*bench.question(_meta={"progressToken": "t"}))
    progress = {"progressToken": 1, "progress": 1}
    bench.session.handle_message(jsonrpc.make_notification(protocol.PROGRESS, progress))
    assert bench.link.sent == [
        jsonrpc.make_notification(protocol.PROGRESS, {**progress, "progressToken": "t"})
    ]


async def test_a_request_of_our_own_has_one_answer_or_one_failure() -> None:
    frame, notices = jsonrpc.make_request("comity", "tools/list"), list[Frame]()
    answered, failed = GatewayCall(frame, notices.append), GatewayCall(frame, None)
    for call in (answered, failed):
        call.deliver_notification(jsonrpc.make_notification("x"))
    assert notices == [jsonrpc.make_notification("x")]
    answered.deliver_answer(jsonrpc.make_result("comity", 1))
    answered.deliver_answer(jsonrpc.make_result("comity", 2))
    answered.fail(Unavailable("late"))
    assert await answered.answer_future == jsonrpc.make_result("comity", 1)
    failed.fail(Unavailable("gone"))
    failed.fail(Unavailable("again"))
    with pytest.raises(Unavailable, match="gone"):
        await failed.answer_future


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_one_bad_look_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    seen = list[float]()

    def bad(patience: float) -> None:
        raise RuntimeError("a bug")

    tending = asyncio.ensure_future(
        run_periodically((bad, seen.append), interval=0, keep_alive_seconds=15)
    )
    await settled()
    tending.cancel()
    await asyncio.wait([tending])
    assert len(seen) > 1
    assert "Cleaning up waiting calls failed" in caplog.text


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACED = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
MGP = {"mgp": offer_extensions({"lifecycle"})}


def called(client: Session | None, method: str = protocol.CALL_TOOL, **params: object) -> Call:
    underway = ActiveCalls(Clock(), 60, 300, 600)
    return underway.begin(jsonrpc.make_request(1, method, params), ClientStream(), client)


def body_in(call: Call) -> dict[str, Any]:
    (data,) = call.client_stream.take()
    return json.loads(data)


def negotiated() -> Session:
    session = Session("", 0)
    session.mgp = NegotiatedTerms("0.3.0", frozenset())
    return session


def test_a_plain_client_is_told_of_a_failed_tool_call_in_a_result() -> None:
    call = called(Session("", 0), _meta=TRACED)
    call.fail(Unavailable("it is gone", UPSTREAM_DOWN, timedelta(seconds=2)))
    body = body_in(call)["result"]["_meta"]["dev.comity/refusal"]
    assert (body["error_type"], body["trace_id"], body["retry_after_ms"]) == (
        "upstream_down",
        TRACE,
        2000,
    )


def test_a_client_that_negotiated_mgp_is_told_its_number() -> None:
    call = called(negotiated(), _meta=TRACED)
    call.fail(Unavailable("soon", SERVER_RESTARTING, timedelta(seconds=2)))
    error = body_in(call)["error"]
    assert error["code"] == 2002
    assert error["data"]["trace_id"] == TRACE
    assert error["data"]["_mgp"]["retry_after_ms"] == 2000


def test_a_request_without_a_trace_is_given_one_of_its_own() -> None:
    calls = [called(negotiated()), called(negotiated())]
    for call in calls:
        call.expire()
    traces = {body_in(call)["error"]["data"]["trace_id"] for call in calls}
    assert len(traces) == 2
    assert all(len(bytes.fromhex(trace)) == 16 for trace in traces)


@loop_over("size", [1, MAX_KEPT_BYTES])
def test_a_modern_request_is_refused_on_the_terms_of_its_envelope(size: int) -> None:
    meta = {protocol.CLIENT_CAPABILITIES: MGP, **TRACED}
    call = called(None, arguments={"long": "x" * size}, _meta=meta)
    call.expire()
    error = body_in(call)["error"]
    assert (error["code"], error["data"]["trace_id"]) == (3003, TRACE)


def test_a_modern_request_of_plain_mcp_has_a_complete_result() -> None:
    call = called(None, _meta={protocol.CLIENT_CAPABILITIES: {}})
    call.expire()
    result = body_in(call)["result"]
    assert (result["resultType"], result["isError"]) == ("complete", True)
    assert call.client_stream.status == 200


@loop_over(("sent", "retryable"), [(False, True), (True, False)])
async def test_only_a_call_that_was_never_sent_is_worth_making_again(
    sent: bool, retryable: bool
) -> None:
    room = await opened()
    room.session.mgp = NegotiatedTerms("0.3.0", frozenset())
    call = room.call()[0] if sent else called(room.session)
    call.fail(Unavailable("it is gone"))
    assert body_in(call)["error"]["data"]["_mgp"]["retryable"] is retryable


@loop_over(
    ("by_client", "by_gateway", "passes"),
    [(True, True, True), (False, True, False), (False, False, True)],
)
async def test_an_error_that_a_server_owes_to_the_gateways_mgp_is_told_plainly_to_plain_clients(
    by_client: bool, by_gateway: bool, passes: bool
) -> None:
    room = await opened()
    terms = NegotiatedTerms("0.3.0", frozenset())
    room.session.mgp = terms if by_client else None
    room.link.mgp = terms if by_gateway else None
    call, asked = room.call()
    error = {"code": 3000, "message": "slower", "data": {"_mgp": {"retryable": True}}}
    room.carrier.says(jsonrpc.Frame("2.0", asked.id, error=jsonrpc.to_raw(error)), amid=asked)
    answer = body_in(call)
    assert answer.get("error") == (error if passes else None)
    assert answer.get("result", {}).get("isError") is (None if passes else True)


def notice(method: str) -> jsonrpc.Frame:
    return jsonrpc.make_notification(method, {"server_id": "another"})


async def heard(room: Room, method: str) -> bool:
    call, asked = room.call()
    room.carrier.says(notice(method), amid=asked)
    return bool(call.client_stream.take())


@loop_over(
    ("capabilities", "at_all_servers", "passes"),
    [({}, False, False), (MGP, False, True), (MGP, True, False), ({}, True, False)],
)
async def test_a_notice_of_mgp_reaches_only_whoever_negotiated_with_that_server(
    capabilities: object, at_all_servers: bool, passes: bool
) -> None:
    room = await opened()
    room.session.store_client_info({"capabilities": jsonrpc.to_raw(capabilities)})
    room.session.sees_all_servers = at_all_servers
    assert await heard(room, "notifications/mgp.lifecycle") is passes
    assert await heard(room, "notifications/message") is True
    room.session.on_notification(room.link, notice("notifications/mgp.lifecycle"))
    assert bool(room.session.standalone.take()) is passes


@loop_over(
    ("capabilities", "at_all_servers", "passes"),
    [({}, False, False), (MGP, False, True), (MGP, True, False)],
)
def test_a_modern_request_says_itself_whether_its_server_may_speak_of_mgp(
    capabilities: object, at_all_servers: bool, passes: bool
) -> None:
    call = called(None, _meta={protocol.CLIENT_CAPABILITIES: capabilities})
    call.is_for_all_servers = at_all_servers
    call.deliver_notification(notice("notifications/mgp.stream.chunk"))
    assert bool(call.client_stream.take()) is passes


@loop_over(("capabilities", "asked"), [({}, False), (MGP, True)])
async def test_only_whoever_negotiated_mgp_is_asked_in_it(
    capabilities: object, asked: bool
) -> None:
    room = await opened()
    room.session.store_client_info({"capabilities": jsonrpc.to_raw(capabilities)})
    frame = jsonrpc.make_request("q", "mgp/permission/request", {})
    answers: list[jsonrpc.Frame] = []
    question = ServerRequest(frame, room.link, answers.append)
    question.send_to_client(room.session, frame, room.session.standalone)
    assert bool(room.session.standalone.take()) is asked
    assert bool(answers) is not asked


def test_what_a_client_and_its_server_agreed_on_is_noted() -> None:
    session = Session("", 0)
    said = jsonrpc.to_raw({"mgp": offer_extensions({"audit", "streaming"})})
    session.store_mgp_terms({"capabilities": said})
    assert session.mgp is None
    session.store_client_info(
        {"capabilities": jsonrpc.to_raw({"mgp": offer_extensions({"streaming"})})}
    )
    session.store_mgp_terms({"capabilities": said})
    assert session.mgp == NegotiatedTerms("0.3.0", frozenset({"streaming"}))
    session.store_mgp_terms({})
    assert session.mgp is None


def test_at_the_registry_a_late_call_says_which_tool_and_how_long_was_waited() -> None:
    call = called(None)
    call.client_stream.registry, call.tool = RegistryContext(), "add"
    call.expire(30)
    error = body_in(call)["error"]
    assert (call.client_stream.status, error["code"]) == (504, -32003)
    assert "documentation_url" not in error["data"]
    details = {name: error["data"][name] for name in ("error_type", "tool_name", "timeout_ms")}
    assert details == {"error_type": "ToolTimeout", "tool_name": "add", "timeout_ms": 30000}


def test_at_the_registry_a_servers_own_error_has_the_registrys_number() -> None:
    call = called(None)
    call.client_stream.registry = RegistryContext()
    said = {"code": 12, "message": "oops"}
    call.deliver_answer(Frame("2.0", call.client_request_id, error=jsonrpc.to_raw(said)))
    error = body_in(call)["error"]
    assert (call.client_stream.status, error["code"], error["message"]) == (502, -32003, "oops")
    assert error["data"]["error_type"] == "ToolExecution"


CALL = jsonrpc.make_request(1, "tools/call", {"name": "look"})
WELL = jsonrpc.make_result(1, {"content": []})


class Record:
    """A tracer of one call, which is its own trace."""

    def __init__(self) -> None:
        self.begun: list[tuple[CallTrace | None, str, str]] = []
        self.endings: list[CallTraceOutcome] = []
        self.context: TraceContext | None = None

    def begin(self, frame: Frame, told: CallTrace | None, session: str, version: str) -> CallTrace:
        self.begun.append((told, session, version))
        return self

    def begin_model(self, vendor: str, model: str, max_tokens: int) -> ModelTrace:
        raise NotImplementedError

    def onward(
        self, frame: Frame, headers: Headers, server: str, in_headers: bool
    ) -> tuple[Frame, Headers]:
        return frame, headers

    def ended(self, outcome: CallTraceOutcome) -> None:
        self.endings.append(outcome)

    async def close(self) -> None: ...


def watched() -> tuple[ActiveCalls, ManualClock[float], Record]:
    clock, record = ManualClock(100.0), Record()
    underway = ActiveCalls(clock, 60, 300, 600, CallMetrics(lambda server, tool: tool == "look"))
    underway.tracer = record
    return underway, clock, record


def counted(underway: ActiveCalls) -> dict[str, float | Summary]:
    families = {family.name: family for family in underway.update_metrics().families()}
    ends = families["comity_tool_calls_total"].samples
    return {labels[-1][1]: number for labels, number in ends if isinstance(number, int) and number}


def test_a_call_that_is_withdrawn_after_its_answer_is_counted_once() -> None:
    underway, clock, record = watched()
    call = underway.begin(CALL, ClientStream(), None, underway.metrics.at("files"))
    clock.now += 2
    call.deliver_answer(WELL)
    call.withdraw(None)
    call.refuse(TIMEOUT, "too late")
    assert counted(underway) == {"ok": 1}
    (ending,) = record.endings
    assert ending[:4] == ("files", "tools/call", "look", "ok")
    assert ending.answer is not None


def test_each_end_has_its_word() -> None:
    underway, _, record = watched()
    ends: list[Callable[[Call], None]] = [
        lambda call: call.deliver_answer(jsonrpc.make_error(1, TIMEOUT, "no")),
        lambda call: call.withdraw(None),
        Call.expire,
    ]
    for end in ends:
        end(underway.begin(CALL, ClientStream(), None, underway.metrics.at("files")))
    assert [ending.outcome for ending in record.endings] == ["error", "cancelled", "timeout"]
    assert counted(underway) == {"error": 1, "cancelled": 1, "timeout": 1}


def test_a_tracer_hears_whose_call_it_is_and_what_the_door_was_told() -> None:
    underway, _, record = watched()
    told, outbox = Record(), ClientStream()
    outbox.trace = told
    underway.begin(CALL, outbox, None)
    session = Session("files", 0)
    session.version = "2025-06-18"
    underway.begin(CALL, ClientStream(), session)
    assert record.begun == [(told, "", "2026-07-28"), (None, session.id, "2025-06-18")]
    assert outbox.trace is record


def test_the_tool_of_a_call_too_long_to_keep_is_remembered() -> None:
    underway, _, record = watched()
    params = {"name": "look", "arguments": {"a": "x" * 100_000}}
    call = underway.begin(
        jsonrpc.make_request(1, "tools/call", params),
        ClientStream(),
        None,
        underway.metrics.at("files"),
    )
    call.deliver_answer(WELL)
    assert record.endings[0].tool == "look"


def test_a_trace_beside_the_parameters_is_the_calls() -> None:
    underway, _, _ = watched()
    said = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "trace_id": "1f" * 16}
    call = underway.begin(jsonrpc.decode_frame(jsonrpc.to_json(said)), ClientStream(), None)
    assert call.ensure_trace_id() == "1f" * 16
