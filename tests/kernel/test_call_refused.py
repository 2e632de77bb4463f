"""What a call says when it is refused, and what of MGP reaches the one who called."""

import json
from datetime import timedelta
from typing import Any

import pytest

from comity.kernel.call import Call
from comity.kernel.outbox import Outbox
from comity.kernel.question import Question
from comity.kernel.sessions import Session
from comity.kernel.underway import Underway
from comity.rules.negotiation import Terms, offer
from comity.rules.refusals import MOST_KEPT_BYTES, AtRegistry
from comity.wire import jsonrpc, mcp
from comity.wire.errors import SERVER_RESTARTING, UPSTREAM_DOWN, Unavailable
from comity.wire.jsonrpc import Frame
from tests.kernel.carriers import Clock
from tests.kernel.link_room import Room, opened

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACED = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
MGP = {"mgp": offer({"lifecycle"})}


def called(client: Session | None, method: str = mcp.CALL_TOOL, **params: object) -> Call:
    underway = Underway(Clock(), 60, 300)
    return underway.begin(jsonrpc.request(1, method, params), Outbox(), client)


def answer_in(call: Call) -> dict[str, Any]:
    (data,) = call.outbox.take()
    return json.loads(data)


def negotiated() -> Session:
    session = Session("", 0)
    session.mgp = Terms("0.3.0", frozenset())
    return session


def test_a_plain_client_is_told_of_a_failed_tool_call_in_a_result() -> None:
    call = called(Session("", 0), _meta=TRACED)
    call.failed(Unavailable("it is gone", UPSTREAM_DOWN, timedelta(seconds=2)))
    body = answer_in(call)["result"]["_meta"]["dev.comity/refusal"]
    assert (body["error_type"], body["trace_id"], body["retry_after_ms"]) == (
        "upstream_down",
        TRACE,
        2000,
    )


def test_a_client_that_negotiated_mgp_is_told_its_number() -> None:
    call = called(negotiated(), _meta=TRACED)
    call.failed(Unavailable("soon", SERVER_RESTARTING, timedelta(seconds=2)))
    error = answer_in(call)["error"]
    assert error["code"] == 2002
    assert error["data"]["trace_id"] == TRACE
    assert error["data"]["_mgp"]["retry_after_ms"] == 2000


def test_a_request_without_a_trace_is_given_one_of_its_own() -> None:
    calls = [called(negotiated()), called(negotiated())]
    for call in calls:
        call.expire()
    traces = {answer_in(call)["error"]["data"]["trace_id"] for call in calls}
    assert len(traces) == 2
    assert all(len(bytes.fromhex(trace)) == 16 for trace in traces)


@pytest.mark.parametrize("size", [1, MOST_KEPT_BYTES])
def test_a_modern_request_is_refused_on_the_terms_of_its_envelope(size: int) -> None:
    meta = {mcp.CLIENT_CAPABILITIES: MGP, **TRACED}
    call = called(None, arguments={"long": "x" * size}, _meta=meta)
    call.expire()
    error = answer_in(call)["error"]
    assert (error["code"], error["data"]["trace_id"]) == (3003, TRACE)


def test_a_modern_request_of_plain_mcp_has_a_complete_result() -> None:
    call = called(None, _meta={mcp.CLIENT_CAPABILITIES: {}})
    call.expire()
    result = answer_in(call)["result"]
    assert (result["resultType"], result["isError"]) == ("complete", True)
    assert call.outbox.status == 200


@pytest.mark.parametrize(("sent", "retryable"), [(False, True), (True, False)])
async def test_only_a_call_that_was_never_sent_is_worth_making_again(
    sent: bool, retryable: bool
) -> None:
    room = await opened()
    room.session.mgp = Terms("0.3.0", frozenset())
    call = room.call()[0] if sent else called(room.session)
    call.failed(Unavailable("it is gone"))
    assert answer_in(call)["error"]["data"]["_mgp"]["retryable"] is retryable


async def test_a_call_that_its_link_would_not_take_was_never_sent() -> None:
    room = await opened()
    call = called(room.session)
    room.carrier.breaks = Unavailable("full")
    with pytest.raises(Unavailable):
        room.link.ask(call, jsonrpc.request(1, mcp.CALL_TOOL))
    assert call.link is None


@pytest.mark.parametrize(
    ("by_client", "by_gateway", "passes"),
    [(True, True, True), (False, True, False), (False, False, True)],
)
async def test_an_error_that_a_server_owes_to_the_gateways_mgp_is_told_plainly_to_plain_clients(
    by_client: bool, by_gateway: bool, passes: bool
) -> None:
    room = await opened()
    terms = Terms("0.3.0", frozenset())
    room.session.mgp = terms if by_client else None
    room.link.mgp = terms if by_gateway else None
    call, asked = room.call()
    error = {"code": 3000, "message": "slower", "data": {"_mgp": {"retryable": True}}}
    room.carrier.says(jsonrpc.Frame("2.0", asked.id, error=jsonrpc.to_raw(error)), amid=asked)
    answer = answer_in(call)
    assert answer.get("error") == (error if passes else None)
    assert answer.get("result", {}).get("isError") is (None if passes else True)


def notice(method: str) -> jsonrpc.Frame:
    return jsonrpc.notification(method, {"server_id": "another"})


async def heard(room: Room, method: str) -> bool:
    call, asked = room.call()
    room.carrier.says(notice(method), amid=asked)
    return bool(call.outbox.take())


@pytest.mark.parametrize(
    ("capabilities", "at_all_servers", "passes"),
    [({}, False, False), (MGP, False, True), (MGP, True, False), ({}, True, False)],
)
async def test_a_notice_of_mgp_reaches_only_whoever_negotiated_with_that_server(
    capabilities: object, at_all_servers: bool, passes: bool
) -> None:
    room = await opened()
    room.session.introduce({"capabilities": jsonrpc.to_raw(capabilities)})
    room.session.sees_all_servers = at_all_servers
    assert await heard(room, "notifications/mgp.lifecycle") is passes
    assert await heard(room, "notifications/message") is True
    room.session.told(room.link, notice("notifications/mgp.lifecycle"))
    assert bool(room.session.standalone.take()) is passes


@pytest.mark.parametrize(
    ("capabilities", "at_all_servers", "passes"),
    [({}, False, False), (MGP, False, True), (MGP, True, False)],
)
def test_a_modern_request_says_itself_whether_its_server_may_speak_of_mgp(
    capabilities: object, at_all_servers: bool, passes: bool
) -> None:
    call = called(None, _meta={mcp.CLIENT_CAPABILITIES: capabilities})
    call.is_for_all_servers = at_all_servers
    call.told(notice("notifications/mgp.stream.chunk"))
    assert bool(call.outbox.take()) is passes


@pytest.mark.parametrize(("capabilities", "asked"), [({}, False), (MGP, True)])
async def test_only_whoever_negotiated_mgp_is_asked_in_it(
    capabilities: object, asked: bool
) -> None:
    room = await opened()
    room.session.introduce({"capabilities": jsonrpc.to_raw(capabilities)})
    frame = jsonrpc.request("q", "mgp/permission/request", {})
    answers: list[jsonrpc.Frame] = []
    question = Question(frame, room.link, answers.append)
    question.put_to(room.session, frame, room.session.standalone)
    assert bool(room.session.standalone.take()) is asked
    assert bool(answers) is not asked


def test_what_a_client_and_its_server_agreed_on_is_noted() -> None:
    session = Session("", 0)
    said = jsonrpc.to_raw({"mgp": offer({"audit", "streaming"})})
    session.agree({"capabilities": said})
    assert session.mgp is None
    session.introduce({"capabilities": jsonrpc.to_raw({"mgp": offer({"streaming"})})})
    session.agree({"capabilities": said})
    assert session.mgp == Terms("0.3.0", frozenset({"streaming"}))
    session.agree({})
    assert session.mgp is None


def test_at_the_registry_a_late_call_says_which_tool_and_how_long_was_waited() -> None:
    call = called(None)
    call.outbox.registry, call.tool = AtRegistry(), "add"
    call.expire(30)
    error = answer_in(call)["error"]
    assert (call.outbox.status, error["code"]) == (504, -32003)
    data = error["data"]
    told = (data["error_type"], data["tool_name"], data["timeout_ms"])
    assert told == ("ToolTimeout", "add", 30000)


def test_at_the_registry_a_servers_own_error_has_the_registrys_number() -> None:
    call = called(None)
    call.outbox.registry = AtRegistry()
    said = {"code": 12, "message": "oops"}
    call.answered(Frame("2.0", call.asker_id, error=jsonrpc.to_raw(said)))
    error = answer_in(call)["error"]
    assert (call.outbox.status, error["code"], error["message"]) == (502, -32003, "oops")
    assert error["data"]["error_type"] == "ToolExecution"
