"""Partial results: their order, progress, and how they are read and written."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.errors import MalformedMessage
from comity.mcp import jsonrpc, mgp_streaming
from comity.mcp import mgp_streaming as rules
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp_streaming import ChunkBuffer, ProgressCounter, StreamChunk, StreamProgress
from comity.mcp.protocol import CLIENT_CAPABILITIES
from tests.support.cases import loop_over

TOKEN = jsonrpc.to_raw("mine")


def piece(index: int, text: str = "", *, done: bool = False) -> StreamChunk:
    said = {"type": "text", "text": text or f"<{index}>"}
    return StreamChunk(1, index, {name: jsonrpc.to_raw(each) for name, each in said.items()}, done)


def image() -> dict[str, Raw]:
    return {"type": jsonrpc.to_raw("image"), "data": jsonrpc.to_raw("")}


def taken(*indexes: int) -> tuple[ChunkBuffer, list[int]]:
    pieces = ChunkBuffer()
    return pieces, [index for index in indexes if pieces.add(piece(index))]


def values(frame: Frame | None) -> dict[str, object]:
    assert frame is not None
    found = jsonrpc.decode_value(jsonrpc.to_raw(frame.params))
    assert isinstance(found, dict)
    return dict(found)  # pyright: ignore[reportUnknownArgumentType]  # JSON: any values


def call(**params: object) -> Frame:
    return jsonrpc.make_request(1, "tools/call", params)


def test_pieces_in_order_go_on_and_nothing_is_missing() -> None:
    pieces, passed = taken(0, 1, 2)
    pieces.count_missing(3)
    assert passed == [0, 1, 2]
    assert (pieces.heard, pieces.missing, pieces.late) == (3, 0, 0)
    assert pieces.content() == [{"type": "text", "text": "<0><1><2>"}]


def test_a_gap_is_counted_and_the_rest_goes_on() -> None:
    pieces, passed = taken(1, 2, 5)
    assert passed == [1, 2, 5]
    assert pieces.missing == 3


def test_a_piece_that_comes_twice_or_too_late_is_dropped() -> None:
    pieces, passed = taken(0, 0, 2, 1, 3)
    assert passed == [0, 2, 3]
    assert (pieces.missing, pieces.late) == (1, 2)


def test_after_the_last_piece_there_is_none() -> None:
    pieces = ChunkBuffer()
    assert pieces.add(piece(0, done=True))
    assert not pieces.add(piece(1))
    assert pieces.late == 1


def test_pieces_that_a_server_says_it_sent_and_that_never_came_are_missing() -> None:
    pieces, _ = taken(0, 1)
    pieces.count_missing(5)
    assert pieces.missing == 3
    pieces.count_missing(None)
    pieces.count_missing(2**40)
    assert pieces.missing == 3


@given(st.lists(st.integers(0, 40)))
def test_what_goes_on_grows_and_is_accounted_for(indexes: list[int]) -> None:
    pieces, passed = taken(*indexes)
    assert passed == sorted(set(passed))
    assert pieces.heard + pieces.late == len(indexes)
    assert pieces.heard + pieces.missing == (passed[-1] + 1 if passed else 0)


def test_what_is_no_text_stands_between_the_texts() -> None:
    pieces = ChunkBuffer()
    pieces.add(piece(0, "a"))
    pieces.add(StreamChunk(1, 1, image()))
    pieces.add(piece(2, "b"))
    kinds = [jsonrpc.decode_members(jsonrpc.to_raw(block))["type"] for block in pieces.content()]
    assert [jsonrpc.decode_text(kind) for kind in kinds] == ["text", "image", "text"]


def test_only_the_beginning_is_kept_and_that_is_told() -> None:
    pieces = ChunkBuffer()
    half = "x" * (rules.MAX_KEPT_BYTES // 2)
    for index in range(4):
        assert pieces.add(piece(index, half))
    # A short one would fit again, but after a hole.
    pieces.add(piece(4, "y"))
    assert pieces.truncated
    assert pieces.content() == [{"type": "text", "text": half}]
    many = ChunkBuffer()
    for index in range(rules.MAX_KEPT_PIECES + 1):
        many.add(piece(index))
    assert many.truncated


def test_whole_pieces_that_say_something_else_than_the_answer_are_noticed() -> None:
    result = {"content": jsonrpc.to_raw([{"type": "text", "text": "<0><1>"}])}
    assert not taken(0, 1)[0].differs_from(result)
    assert taken(0)[0].differs_from(result)
    assert not taken(1)[0].differs_from(result), "with a gap nobody can tell"
    assert not ChunkBuffer().differs_from(result)
    assert taken(0)[0].differs_from({"content": Raw(b"1")})


def test_pieces_are_steps_with_their_text_for_a_message() -> None:
    ladder = ProgressCounter(TOKEN)
    first, second = (
        values(ladder.chunk_progress(piece(0, "a"))),
        values(ladder.chunk_progress(piece(1, "b"))),
    )
    assert first == {"progressToken": "mine", "progress": 1.0, "message": "a"}
    assert second == {"progressToken": "mine", "progress": 2.0, "message": "b"}
    assert values(ladder.chunk_progress(StreamChunk(1, 2, image())))["message"] == "[image]"


def test_a_share_is_told_of_a_total_of_one_while_it_grows() -> None:
    ladder = ProgressCounter(TOKEN)
    half = values(ladder.share(StreamProgress(1, 0.5, "half")))
    assert half == {"progressToken": "mine", "progress": 0.5, "total": 1, "message": "half"}
    assert ladder.share(StreamProgress(1, 0.5)) is None
    assert ladder.share(StreamProgress(1, float("nan"))) is None
    assert values(ladder.share(StreamProgress(1, 7.0)))["progress"] == 1.0


def test_the_servers_own_progress_is_told_as_it_is_until_pieces_are_steps_too() -> None:
    ladder = ProgressCounter(TOKEN)
    own = {"progress": Raw(b"7"), "vendor": Raw(b"1"), "progressToken": Raw(b"3")}
    assert values(ladder.server_progress(own)) == {
        "progress": 7,
        "vendor": 1,
        "progressToken": "mine",
    }
    assert values(ladder.chunk_progress(piece(0)))["progress"] == 8.0
    assert ladder.server_progress(own) is None
    assert values(ladder.server_progress({**own, "message": Raw(b'"m"')}))["progress"] == 9.0
    assert ladder.share(StreamProgress(1, 0.5)) is None
    assert values(ladder.share(StreamProgress(1, 0.5, "m")))["progress"] == 10.0


@given(st.lists(st.one_of(st.none(), st.floats(0, 1), st.integers(0, 9))))
def test_with_pieces_each_step_is_above_the_one_before(news: list[float | int | None]) -> None:
    ladder, told = ProgressCounter(TOKEN), [0.0]
    for each in (None, *news):
        if each is None:
            frame = ladder.chunk_progress(piece(0))
        elif isinstance(each, int):
            frame = ladder.server_progress(
                {"progress": jsonrpc.to_raw(each), "message": Raw(b'"m"')}
            )
        else:
            frame = ladder.share(StreamProgress(1, each, "m"))
        if frame is not None:
            told.append(float(str(values(frame)["progress"])))
    assert told == sorted(set(told))


def test_a_message_is_cut_at_its_bound() -> None:
    assert len(rules.shorten_message("x" * 10_000)) == rules.MAX_MESSAGE_LENGTH
    assert rules.shorten_message("short") == "short"
    assert (
        len(str(values(ProgressCounter(TOKEN).chunk_progress(piece(0, "y" * 10_000)))["message"]))
        == 4096
    )


def test_mcps_progress_is_a_share_of_its_total() -> None:
    assert rules.as_share({"progress": Raw(b"13"), "total": Raw(b"20")}) == (0.65, None)
    assert rules.as_share({"progress": Raw(b"3"), "message": Raw(b'"m"')}) == (0.0, "m")
    assert rules.as_share({"progress": Raw(b"30"), "total": Raw(b"20")}) == (1.0, None)
    for odd in (b"true", b'"1"', b"0", b"-1", b"1" * 400):
        assert rules.as_share({"progress": Raw(b"1"), "total": Raw(odd)})[0] == 0.0


def test_a_token_is_found_where_mcp_puts_it() -> None:
    assert rules.token_in(UNSET) is None
    assert rules.token_in(jsonrpc.to_raw({"name": "t"})) is None
    assert rules.token_in(jsonrpc.to_raw({"progressToken": 1})) is None
    assert rules.token_in(jsonrpc.to_raw({"_meta": {"progressToken": 1}})) == Raw(b"1")
    assert rules.token_in(Raw(b'{"_meta":{"progress\\u0054oken":1}}')) == Raw(b"1")
    assert rules.token_in(Raw(b'["progressToken"]')) is None


def test_a_server_is_asked_in_both_places_and_hears_no_name() -> None:
    asked = call(name="t", _mgp={"stream": True, "stream_id": "mine"}, _meta={"other": 1})
    said = values(rules.request_streaming(asked, "token"))
    assert said["_mgp"] == {"stream": True}
    assert said["_meta"] == {
        "other": 1,
        "progressToken": "token",
        mgp_streaming.MIRROR: {"stream": True},
    }
    kept = values(rules.request_streaming(call(_meta={"progressToken": 1}), "token"))["_meta"]
    assert isinstance(kept, dict)
    assert kept["progressToken"] == 1


def test_a_modern_request_says_that_its_client_can_hear_pieces() -> None:
    said = values(rules.request_streaming(call(_meta={CLIENT_CAPABILITIES: {"roots": {}}})))[
        "_meta"
    ]
    assert isinstance(said, dict)
    assert said[CLIENT_CAPABILITIES]["mgp"]["extensions"] == ["streaming"]
    own = {"mgp": {"version": "0.3.0", "extensions": ["streaming", "lifecycle"]}}
    said = values(rules.request_streaming(call(_meta={CLIENT_CAPABILITIES: own})))["_meta"]
    assert isinstance(said, dict)
    assert said[CLIENT_CAPABILITIES] == own


def test_a_server_that_does_not_stream_is_not_asked() -> None:
    plain = call(name="t", _meta={"other": 1})
    assert rules.strip_stream_request(plain) is plain
    mirrored = {"other": 1, mgp_streaming.MIRROR: {"stream": True}}
    said = values(rules.strip_stream_request(call(name="t", _mgp={"stream": True}, _meta=mirrored)))
    assert said == {"name": "t", "_meta": {"other": 1}}
    assert values(rules.strip_stream_request(call(name="t", _mgp={"stream": True}))) == {
        "name": "t"
    }
    assert values(rules.strip_stream_request(plain, "token"))["_meta"] == {
        "other": 1,
        "progressToken": "token",
    }


def test_only_a_whole_number_counts_pieces() -> None:
    assert rules.count_in({"chunks_sent": Raw(b"15")}) == 15
    for odd in (b"-1", b"1.5", b"true", b'"15"'):
        assert rules.count_in({"chunks_sent": Raw(odd)}) is None
    assert rules.count_in({}) is None


def chunk(**said: object) -> Raw:
    content = {"type": "text", "text": "a"}
    return jsonrpc.to_raw({"request_id": 1, "index": 0, "content": content, **said})


@loop_over("named", [7, "7", "a name"])
def test_a_piece_names_its_request_by_a_number_or_by_a_text(named: object) -> None:
    found = mgp_streaming.chunk_in(chunk(request_id=named))
    assert (found.request_id, found.index, found.text, found.done) == (named, 0, "a", False)
    assert mgp_streaming.request_id_in(chunk(request_id=named)) == named


def test_what_is_no_text_is_a_piece_all_the_same() -> None:
    image = {"type": "image", "data": "", "mimeType": "image/png"}
    found = mgp_streaming.chunk_in(chunk(content=image, done=True))
    assert (found.text, found.kind, found.done) == (None, "image", True)


@loop_over(
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
        chunk(content={"type": "text", "text": "a" * mgp_streaming.MAX_CHUNK_BYTES}),
        Raw(b"[]"),
        Raw(b'{"request_id":1,"request_id":2,"index":0,"content":{"type":"text","text":""}}'),
    ],
)
def test_a_misshapen_piece_is_none(wrong: Raw) -> None:
    with pytest.raises(MalformedMessage):
        mgp_streaming.chunk_in(wrong)


def test_without_parameters_there_is_neither_piece_nor_progress_nor_cancellation() -> None:
    for read in (mgp_streaming.chunk_in, mgp_streaming.progress_in, mgp_streaming.cancel_in):
        with pytest.raises(MalformedMessage):
            read(UNSET)
    assert mgp_streaming.request_id_in(UNSET) is None
    assert mgp_streaming.request_id_in(Raw(b"1")) is None


def test_progress_is_a_share_with_a_message_and_a_guess() -> None:
    said = {"request_id": "a", "progress": 0.65, "message": "13/20", "estimated_remaining_ms": 4500}
    found = mgp_streaming.progress_in(jsonrpc.to_raw(said))
    assert (found.progress, found.message, found.estimated_remaining_ms) == (0.65, "13/20", 4500)
    told = mgp_streaming.progress_notification("a", 0.65, "13/20", estimated_remaining_ms=4500)
    assert jsonrpc.decode_value(jsonrpc.to_raw(told.params)) == said
    assert "message" not in mgp_streaming.progress_notification("a", 0.1).parameters


def test_a_cancellation_names_a_request_and_perhaps_why() -> None:
    said = {"request_id": "a", "reason": "user_cancelled"}
    assert mgp_streaming.cancel_in(jsonrpc.to_raw(said)) == ("a", "user_cancelled")
    assert mgp_streaming.cancel_in(jsonrpc.to_raw({"request_id": 2})) == (2, None)
    with pytest.raises(MalformedMessage):
        mgp_streaming.cancel_in(jsonrpc.to_raw({"request_id": None}))


def beside(said: object) -> Frame:
    return call(_mgp=said)


def mirrored(said: object) -> Frame:
    return call(_meta={mgp_streaming.MIRROR: said})


@loop_over("asked", [beside, mirrored])
def test_a_request_asks_for_pieces_in_either_place(asked: Callable[[object], Frame]) -> None:
    assert mgp_streaming.streaming_request_in(asked({"stream": True})) == (True, None)
    assert mgp_streaming.streaming_request_in(asked({"stream": True, "stream_id": "mine"})) == (
        True,
        "mine",
    )
    assert mgp_streaming.streaming_request_in(asked({"stream": False})) == (False, None)
    assert mgp_streaming.streaming_request_in(asked({"stream": "yes"})) == (False, None)
    assert mgp_streaming.streaming_request_in(asked({"stream_id": "x" * 300})) == (False, None)
    assert mgp_streaming.streaming_request_in(call()) == (False, None)


def test_a_result_says_it_in_both_places_and_is_read_from_either() -> None:
    plain = {"content": Raw(b"[]"), "_meta": Raw(b'{"other":1}')}
    told = jsonrpc.decode_members(
        jsonrpc.to_raw(mgp_streaming.with_mgp_members(plain, {"streamed": True}))
    )
    assert jsonrpc.decode_value(told["_mgp"]) == {"streamed": True}
    assert jsonrpc.decode_value(told["_meta"]) == {
        "other": 1,
        mgp_streaming.MIRROR: {"streamed": True},
    }
    for left_out in ("_mgp", "_meta"):
        half = {name: raw for name, raw in told.items() if name != left_out}
        assert jsonrpc.decode_value(mgp_streaming.mgp_members_in(half)["streamed"]) is True
    assert jsonrpc.decode_value(jsonrpc.to_raw(mgp_streaming.strip_stream_result(told))) == {
        "content": [],
        "_meta": {"other": 1},
    }
    assert "_meta" not in mgp_streaming.strip_stream_result({"_meta": Raw(b"{}")})


def test_what_is_said_beside_a_result_in_no_shape_is_nothing() -> None:
    assert mgp_streaming.mgp_members_in({"_mgp": Raw(b"1"), "_meta": Raw(b"[]")}) == {}


def test_the_answers_to_a_cancellation_are_those_of_the_document() -> None:
    content: list[object] = [{"type": "text", "text": "so far"}]
    assert mgp_streaming.cancellation_result(content) == {
        "cancelled": True,
        "partial_result": {"content": content},
    }
    assert mgp_streaming.cancellation_result([], truncated=True)["partial_result"] == {
        "content": [],
        "truncated": True,
    }
    assert mgp_streaming.too_late() == {"cancelled": False, "reason": "not_active"}


def test_a_piece_is_told_as_the_document_writes_it() -> None:
    told = mgp_streaming.chunk_notification("a", 3, {"type": "text", "text": "b"}, done=True)
    assert told.method == "notifications/mgp.stream.chunk"
    assert mgp_streaming.chunk_in(told.params).index == 3
