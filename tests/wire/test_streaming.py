"""Partial results are read strictly, from either of the two places where they may be spoken of."""

from collections.abc import Callable

import pytest
from msgspec import Raw

from comity.wire import jsonrpc, streaming
from comity.wire.errors import MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame


def chunk(**said: object) -> Raw:
    content = {"type": "text", "text": "a"}
    return jsonrpc.to_raw({"request_id": 1, "index": 0, "content": content, **said})


def call(**params: object) -> Frame:
    return jsonrpc.request(1, "tools/call", params)


@pytest.mark.parametrize("named", [7, "7", "a name"])
def test_a_piece_names_its_request_by_a_number_or_by_a_text(named: object) -> None:
    found = streaming.chunk_in(chunk(request_id=named))
    assert (found.request_id, found.index, found.text, found.done) == (named, 0, "a", False)
    assert streaming.named_in(chunk(request_id=named)) == named


def test_what_is_no_text_is_a_piece_all_the_same() -> None:
    image = {"type": "image", "data": "", "mimeType": "image/png"}
    found = streaming.chunk_in(chunk(content=image, done=True))
    assert (found.text, found.kind, found.done) == (None, "image", True)


@pytest.mark.parametrize(
    "wrong",
    [
        chunk(request_id=1.5),
        chunk(request_id=True),
        chunk(index=-1),
        chunk(index=2**40),
        chunk(index="0"),
        chunk(content="a"),
        chunk(content={"text": "a"}),
        chunk(content={"type": "text", "text": 1}),
        chunk(done="no"),
        chunk(content={"type": "text", "text": "a" * streaming.LARGEST_CHUNK}),
        Raw(b"[]"),
        Raw(b'{"request_id":1,"request_id":2,"index":0,"content":{"type":"text","text":""}}'),
    ],
)
def test_a_misshapen_piece_is_none(wrong: Raw) -> None:
    with pytest.raises(MalformedMessage):
        streaming.chunk_in(wrong)


def test_without_parameters_there_is_neither_piece_nor_progress_nor_cancellation() -> None:
    for read in (streaming.chunk_in, streaming.progress_in, streaming.cancel_in):
        with pytest.raises(MalformedMessage):
            read(UNSET)
    assert streaming.named_in(UNSET) is None
    assert streaming.named_in(Raw(b"1")) is None


def test_progress_is_a_share_with_a_message_and_a_guess() -> None:
    said = {"request_id": "a", "progress": 0.65, "message": "13/20", "estimated_remaining_ms": 4500}
    found = streaming.progress_in(jsonrpc.to_raw(said))
    assert (found.progress, found.message, found.estimated_remaining_ms) == (0.65, "13/20", 4500)
    told = streaming.progress("a", 0.65, "13/20", estimated_remaining_ms=4500)
    assert jsonrpc.value(jsonrpc.to_raw(told.params)) == said
    assert "message" not in jsonrpc.params_of(streaming.progress("a", 0.1))


def test_a_cancellation_names_a_request_and_perhaps_why() -> None:
    said = {"request_id": "a", "reason": "user_cancelled"}
    assert streaming.cancel_in(jsonrpc.to_raw(said)) == ("a", "user_cancelled")
    assert streaming.cancel_in(jsonrpc.to_raw({"request_id": 2})) == (2, None)
    with pytest.raises(MalformedMessage):
        streaming.cancel_in(jsonrpc.to_raw({"request_id": None}))


def beside(said: object) -> Frame:
    return call(_mgp=said)


def mirrored(said: object) -> Frame:
    return call(_meta={streaming.MIRROR: said})


@pytest.mark.parametrize("asked", [beside, mirrored])
def test_a_request_asks_for_pieces_in_either_place(asked: Callable[[object], Frame]) -> None:
    assert streaming.asked_in(asked({"stream": True})) == (True, None)
    assert streaming.asked_in(asked({"stream": True, "stream_id": "mine"})) == (True, "mine")
    assert streaming.asked_in(asked({"stream": False})) == (False, None)
    assert streaming.asked_in(asked({"stream": "yes"})) == (False, None)
    assert streaming.asked_in(asked({"stream_id": "x" * 300})) == (False, None)
    assert streaming.asked_in(call()) == (False, None)


def test_a_result_says_it_in_both_places_and_is_read_from_either() -> None:
    plain = {"content": Raw(b"[]"), "_meta": Raw(b'{"other":1}')}
    told = jsonrpc.members(jsonrpc.to_raw(streaming.with_said(plain, {"streamed": True})))
    assert jsonrpc.value(told["_mgp"]) == {"streamed": True}
    assert jsonrpc.value(told["_meta"]) == {"other": 1, streaming.MIRROR: {"streamed": True}}
    for left_out in ("_mgp", "_meta"):
        half = {name: raw for name, raw in told.items() if name != left_out}
        assert jsonrpc.value(streaming.said_in(half)["streamed"]) is True
    assert jsonrpc.value(jsonrpc.to_raw(streaming.unsaid(told))) == {
        "content": [],
        "_meta": {"other": 1},
    }
    assert "_meta" not in streaming.unsaid({"_meta": Raw(b"{}")})


def test_what_is_said_beside_a_result_in_no_shape_is_nothing() -> None:
    assert streaming.said_in({"_mgp": Raw(b"1"), "_meta": Raw(b"[]")}) == {}


def test_the_answers_to_a_cancellation_are_those_of_the_document() -> None:
    content: list[object] = [{"type": "text", "text": "so far"}]
    assert streaming.cancelled(content) == {
        "cancelled": True,
        "partial_result": {"content": content},
    }
    assert streaming.cancelled([], truncated=True)["partial_result"] == {
        "content": [],
        "truncated": True,
    }
    assert streaming.too_late() == {"cancelled": False, "reason": "not_active"}


def test_a_piece_is_told_as_the_document_writes_it() -> None:
    told = streaming.chunk("a", 3, {"type": "text", "text": "b"}, done=True)
    assert told.method == "notifications/mgp.stream.chunk"
    assert streaming.chunk_in(told.params).index == 3
