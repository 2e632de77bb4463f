"""Calls that stream, on one link: whom pieces reach, what is dropped, and who may cancel."""

import asyncio

import pytest
from msgspec import Raw

from comity.errors import METHOD_NOT_FOUND, MalformedMessage
from comity.gateway.streaming import StreamingService
from comity.mcp import jsonrpc, mgp_streaming
from comity.mcp.actors import Actor, PrincipalKind
from comity.mcp.jsonrpc import Frame
from comity.mcp.mgp import NegotiatedTerms
from comity.mcp.protocol import CLIENT_CAPABILITIES
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.methods import MethodRequest, MethodTable
from tests.support.carriers import until
from tests.support.cases import loop_over
from tests.support.link_room import Room, frames_in, opened

TERMS = NegotiatedTerms("0.3.0", frozenset({"streaming"}))
MODERN = {CLIENT_CAPABILITIES: {"mgp": {"version": "0.3.0", "extensions": ["streaming"]}}}
ASKS = {"stream": True}


async def streaming_room(
    *,
    client: NegotiatedTerms | None = TERMS,
    server: NegotiatedTerms | None = TERMS,
    process: bool = False,
) -> tuple[Room, StreamingService]:
    room, made = await opened(process), StreamingService()
    room.session.mgp, room.link.mgp = client, server
    room.session.sees_all_servers = True
    room.link.activity.stream_relay = made
    room.link.initialize_result = {}
    return room, made


async def streaming_call(
    *,
    client: NegotiatedTerms | None = TERMS,
    server: NegotiatedTerms | None = TERMS,
    process: bool = False,
) -> tuple[Room, StreamingService, Call, Frame]:
    """A call that asks to be streamed, and the request as its server sees it."""
    room, made = await streaming_room(client=client, server=server, process=process)
    return room, made, *room.call(name="t", _mgp=ASKS)


def says(room: Room, minted: object, index: int, text: str = "", **more: object) -> None:
    content = {"type": "text", "text": text or f"<{index}>"}
    params = {"request_id": minted, "index": index, "content": content, "done": False, **more}
    tells(room, mgp_streaming.CHUNK, params)


def tells(room: Room, method: str, params: object) -> None:
    stream = None if not room.carrier.has_separate_streams else 0
    data = jsonrpc.encode_frame(jsonrpc.make_notification(method, params))
    room.link.on_message(data, stream, 200)


def answers(room: Room, minted: object, **result: object) -> None:
    body = {"content": [{"type": "text", "text": "<0><1>"}], **result}
    assert isinstance(minted, int)
    room.link.on_message(jsonrpc.encode_frame(jsonrpc.make_result(minted, body)), None, 200)


def told(call: Call) -> list[dict[str, object]]:
    """What its client has heard: method and parameters, or the result."""
    found: list[dict[str, object]] = []
    for frame in frames_in(call):
        said = frame.params if frame.result is jsonrpc.UNSET else frame.result
        body = jsonrpc.decode_value(jsonrpc.to_raw(said))
        assert isinstance(body, dict)
        found.append(dict(body))  # pyright: ignore[reportUnknownArgumentType]  # JSON: any values
    return found


def asked_of(frame: Frame) -> object:
    return jsonrpc.decode_value(frame.parameters.get("_mgp", Raw(b"null")))


def figures(made: StreamingService) -> dict[str, object]:
    (family,) = made.metric_families()
    return {dict(labels)["outcome"]: number for labels, number in family.samples}


async def test_pieces_reach_their_client_under_its_own_id() -> None:
    room, made, call, sent = await streaming_call(process=True)
    assert asked_of(sent) == {"stream": True}
    says(room, sent.id, 0, vendor="kept")
    says(room, sent.id, 1)
    answers(room, sent.id, _mgp={"streamed": True, "chunks_sent": 2, "duration_ms": 5})
    first, second, result = told(call)
    assert (first["request_id"], first["index"], first["vendor"]) == ("own-1", 0, "kept")
    assert second["index"] == 1
    assert result["_mgp"] == {"streamed": True, "chunks_sent": 2, "duration_ms": 5}
    assert result["_meta"] == {mgp_streaming.MIRROR: result["_mgp"]}
    assert figures(made) == {"passed": 2}


async def test_gaps_are_told_with_the_answer_and_written_down() -> None:
    room, _, call, sent = await streaming_call(process=True)
    for index in (0, 2, 2, 1):
        says(room, sent.id, index)
    answers(room, sent.id, _mgp={"streamed": True, "chunks_sent": 4})
    result = told(call)[-1]["_mgp"]
    assert result == {"streamed": True, "chunks_sent": 4, "duration_ms": 0, "chunks_missing": 2}
    assert call.stream is not None
    assert call.stream.summary() == {"streamed": {"chunks": 2, "missing": 2, "late": 2}}


async def test_a_server_that_did_not_agree_hears_nothing_of_it_and_answers_whole() -> None:
    room, _, call, sent = await streaming_call(server=None, process=True)
    assert "_mgp" not in sent.parameters
    answers(room, sent.id)
    (result,) = told(call)
    assert "_mgp" not in result


async def test_a_client_that_did_not_agree_gets_no_pieces_however_it_asks() -> None:
    room, made, call, sent = await streaming_call(client=None, process=True)
    assert "_mgp" not in sent.parameters
    says(room, sent.id, 0)
    assert told(call) == []
    assert figures(made) == {"stray": 1}


@loop_over("named", [99, "1", 1.0, None, [1]])
async def test_a_piece_of_no_open_call_is_dropped_and_counted(named: object) -> None:
    room, made, call, sent = await streaming_call(process=True)
    assert sent.id == 1
    says(room, named, 0)
    assert told(call) == []
    assert room.heard == [], "nor is it anybody else's"
    assert figures(made) == {"stray": 1}


async def test_a_call_that_did_not_ask_gets_no_pieces() -> None:
    room, made = await streaming_room(process=True)
    call, sent = room.call(name="t")
    says(room, sent.id, 0)
    answers(room, sent.id)
    (result,) = told(call)
    assert "_mgp" not in result
    assert figures(made) == {"stray": 1}


async def test_on_another_calls_stream_nothing_is_believed() -> None:
    room, made, first, sent = await streaming_call()
    _, other = room.call(name="t", _mgp=ASKS)
    content = {"type": "text", "text": "not mine"}
    params = {"request_id": sent.id, "index": 0, "content": content}
    data = jsonrpc.encode_frame(jsonrpc.make_notification(mgp_streaming.CHUNK, params))
    assert isinstance(other.id, int)
    room.link.on_message(data, other.id, 200)
    assert told(first) == []
    assert figures(made) == {"stray": 1}


async def test_a_misshapen_piece_is_a_gap() -> None:
    room, _, call, sent = await streaming_call(process=True)
    says(room, sent.id, 0)
    says(room, sent.id, 1, done="never")
    says(room, sent.id, 2)
    answers(room, sent.id)
    assert [each.get("index") for each in told(call)][:2] == [0, 2]
    assert call.stream is not None
    noted = call.stream.summary()["streamed"]
    assert isinstance(noted, dict)
    assert (noted["missing"], noted["refused"]) == (1, 1)


async def test_a_plain_client_with_a_token_hears_pieces_as_progress() -> None:
    room, _ = await streaming_room(client=None, process=True)
    call, sent = room.call(name="t", _meta={"progressToken": "mine"})
    assert asked_of(sent) == {"stream": True}
    says(room, sent.id, 0)
    tells(room, mgp_streaming.STREAM_PROGRESS, {"request_id": sent.id, "progress": 0.5})
    says(room, sent.id, 1)
    answers(room, sent.id, _mgp={"streamed": True, "chunks_sent": 2})
    first, second, result = told(call)
    assert first == {"progressToken": "mine", "progress": 1.0, "message": "<0>"}
    assert second == {"progressToken": "mine", "progress": 2.0, "message": "<1>"}
    assert "_mgp" not in result


async def test_where_the_operator_does_not_want_it_no_plain_call_streams() -> None:
    room, made = await streaming_room(client=None, process=True)
    made.for_progress = False
    _, sent = room.call(name="t", _meta={"progressToken": "mine"})
    assert "_mgp" not in sent.parameters


async def test_a_client_of_mgp_hears_a_plain_servers_progress_in_its_own_words() -> None:
    room, _ = await streaming_room(server=None, process=True)
    call, sent = room.call(name="t")
    meta = jsonrpc.decode_value(sent.parameters["_meta"])
    assert meta == {"progressToken": sent.id}
    news = {"progressToken": sent.id, "progress": 13, "total": 20, "message": "13/20"}
    tells(room, "notifications/progress", news)
    assert told(call) == [{"request_id": "own-1", "progress": 0.65, "message": "13/20"}]


async def test_pieces_put_the_deadline_off() -> None:
    room, _, call, sent = await streaming_call(process=True)
    call.last_activity_at = -1000.0
    says(room, sent.id, 0)
    assert call.last_activity_at == room.underway.now()


async def test_a_slow_reader_loses_pieces_and_keeps_the_answer() -> None:
    room, made, call, sent = await streaming_call(process=True)
    other, beside = room.call(name="t", _mgp=ASKS)
    for index in range(1000):
        says(room, sent.id, index)
    assert call.client_stream.size < 2 * 1024 * 1024
    says(room, beside.id, 0)
    answers(room, sent.id)
    heard = told(call)
    assert len(heard) == 513
    assert heard[-1]["_mgp"] == {
        "streamed": True,
        "chunks_sent": 1000,
        "duration_ms": 0,
        "chunks_missing": 488,
    }
    assert len(told(other)) == 1
    assert figures(made) == {"passed": 513, "dropped": 488}


async def test_a_source_that_can_wait_is_asked_to_before_anything_is_lost() -> None:
    room, _, call, sent = await streaming_call()
    assert isinstance(sent.id, int)
    room.link.on_stream_opened(sent.id)
    for index in range(257):
        says(room, sent.id, index)
    assert room.carrier.paused == [(True, sent.id)]
    told(call)
    assert room.carrier.paused == [(True, sent.id), (False, sent.id)]


async def cancels(room: Room, made: StreamingService, named: object) -> dict[str, object]:
    frame = jsonrpc.make_request(
        "c", mgp_streaming.CANCEL, {"request_id": named, "reason": "enough"}
    )
    by = room.underway.begin(frame, ClientStream(), room.session)
    methods = MethodTable()
    methods.register(made)
    answer = await methods.answer(MethodRequest(by, room.session, room.session.mgp, frame))
    room.session.conversation.settle("c")
    assert answer is not None
    return answer


async def test_a_cancelled_call_is_answered_with_what_has_come() -> None:
    room, made, call, sent = await streaming_call(process=True)
    says(room, sent.id, 0)
    answer = await cancels(room, made, "own-1")
    so_far = [{"type": "text", "text": "<0>"}]
    assert answer == {"cancelled": True, "partial_result": {"content": so_far}}
    result = told(call)[-1]
    assert result["content"] == so_far
    assert result["_mgp"] == {
        "streamed": True,
        "chunks_sent": 1,
        "duration_ms": 0,
        "cancelled": True,
    }
    # The server hears it in MGP's words; what it still answers is nobody's.
    stop = room.carrier.sent[-1].frame
    assert stop.method == mgp_streaming.CANCEL
    assert jsonrpc.decode_value(stop.parameters["request_id"]) == sent.id
    answers(room, sent.id)
    assert told(call) == []
    assert await cancels(room, made, "own-1") == mgp_streaming.too_late()


async def test_a_server_that_does_not_know_the_word_hears_mcps() -> None:
    room, made, _, sent = await streaming_call(process=True)
    await cancels(room, made, "own-1")
    stop = room.carrier.sent[-1].frame
    assert isinstance(stop.id, int)
    refused = jsonrpc.make_error(stop.id, METHOD_NOT_FOUND, "what is that?")
    room.link.on_message(jsonrpc.encode_frame(refused), None, 200)
    await until(lambda: room.carrier.sent[-1].frame.method == "notifications/cancelled")
    cancelled = room.carrier.sent[-1].frame.parameters
    assert jsonrpc.decode_value(cancelled["requestId"]) == sent.id


async def test_a_plain_server_hears_of_a_cancellation_in_mcps_words() -> None:
    room, made = await streaming_room(server=None, process=True)
    call, _ = room.call(name="t")
    assert (await cancels(room, made, "own-1"))["cancelled"] is True
    assert room.carrier.sent[-1].frame.method == "notifications/cancelled"
    assert told(call)[-1]["content"] == []


async def test_what_is_not_open_or_is_the_cancellation_itself_is_not_cancelled() -> None:
    room, made = await streaming_room(process=True)
    room.call(name="t", _mgp=ASKS)
    for named in ("own-2", 1, "c"):
        assert await cancels(room, made, named) == mgp_streaming.too_late()
    with pytest.raises(MalformedMessage):
        await cancels(room, made, None)


async def test_another_request_than_a_tools_ends_without_an_answer() -> None:
    room, made = await streaming_room(process=True)
    call, _ = room.call("resources/read", uri="a://b")
    assert (await cancels(room, made, "own-1"))["cancelled"] is True
    assert call.client_stream.is_final
    assert told(call) == []


def modern_call(room: Room, party: str, name: str | None) -> Call:
    asked = ASKS if name is None else {**ASKS, "stream_id": name}
    frame = jsonrpc.make_request(1, "tools/call", {"name": "t", "_mgp": asked, "_meta": MODERN})
    outbox = ClientStream()
    outbox.actor = Actor(party, PrincipalKind.AGENT)
    call = room.underway.begin(frame, outbox, None)
    room.link.send_call(call, frame)
    return call


def modern_cancel(room: Room, made: StreamingService, party: str, named: object) -> object:
    frame = jsonrpc.make_request("c", mgp_streaming.CANCEL, {"request_id": named})
    outbox = ClientStream()
    outbox.actor = Actor(party, PrincipalKind.AGENT)
    return made.cancel(None, room.underway.begin(frame, outbox, None), frame)["cancelled"]


async def test_in_the_modern_era_a_call_is_cancelled_by_the_name_its_party_gave() -> None:
    room, made = await streaming_room(process=True)
    call = modern_call(room, "agent:a", "mine")
    assert modern_cancel(room, made, "agent:b", "mine") is False, "it is another party's"
    assert modern_cancel(room, made, "agent:a", 1) is False, "an id means nothing here"
    assert modern_cancel(room, made, "agent:a", "mine") is True
    assert told(call)[-1]["resultType"] == "complete"
    assert modern_cancel(room, made, "agent:a", "mine") is False


async def test_two_open_calls_of_a_party_have_two_names() -> None:
    room, _ = await streaming_room(process=True)
    first = modern_call(room, "agent:a", "mine")
    with pytest.raises(MalformedMessage):
        modern_call(room, "agent:a", "mine")
    modern_call(room, "agent:b", "mine")
    first.withdraw(None)
    modern_call(room, "agent:a", "mine")


async def test_what_is_made_again_after_some_was_told_is_answered_whole() -> None:
    room, made, call, sent = await streaming_call(process=True)
    says(room, sent.id, 0)
    frame = jsonrpc.make_request("own-1", "tools/call", {"name": "t", "_mgp": ASKS})
    room.link.send_call(call, frame)
    again = room.carrier.sent[-1].frame
    assert "_mgp" not in again.parameters
    says(room, again.id, 0)
    answers(room, again.id)
    first, result = told(call)
    assert first["index"] == 0
    said = result["_mgp"]
    assert isinstance(said, dict)
    assert said["made_again"] is True
    assert figures(made) == {"passed": 1, "stray": 1}


async def test_a_call_that_goes_on_apart_from_its_client_does_not_stream() -> None:
    room, _ = await streaming_room(process=True)
    frame = jsonrpc.make_request("apart", "tools/call", {"name": "t", "_mgp": ASKS})
    call = room.underway.begin(frame, ClientStream(), room.session)
    call.is_detached = True
    room.link.send_call(call, frame)
    assert "_mgp" not in room.carrier.sent[-1].frame.parameters


async def test_the_gateways_own_requests_never_stream() -> None:
    room, _ = await streaming_room(process=True)
    asking = asyncio.ensure_future(room.link.request("tools/call", {"name": "t", "_mgp": ASKS}))
    await asyncio.sleep(0)
    sent = room.carrier.sent[-1].frame
    answers(room, sent.id)
    assert (await asking).result is not jsonrpc.UNSET
