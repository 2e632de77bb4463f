"""Pieces go on in their order, gaps are counted, and progress only grows."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.rules import streaming as rules
from comity.rules.streaming import Ladder, Pieces
from comity.wire import jsonrpc, streaming
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.mcp import CLIENT_CAPABILITIES
from comity.wire.streaming import Chunk, Progress

TOKEN = jsonrpc.to_raw("mine")


def piece(index: int, text: str = "", *, done: bool = False) -> Chunk:
    said = {"type": "text", "text": text or f"<{index}>"}
    return Chunk(1, index, {name: jsonrpc.to_raw(each) for name, each in said.items()}, done)


def image() -> dict[str, Raw]:
    return {"type": jsonrpc.to_raw("image"), "data": jsonrpc.to_raw("")}


def taken(*indexes: int) -> tuple[Pieces, list[int]]:
    pieces = Pieces()
    return pieces, [index for index in indexes if pieces.take(piece(index))]


def values(frame: Frame | None) -> dict[str, object]:
    assert frame is not None
    found = jsonrpc.value(jsonrpc.to_raw(frame.params))
    assert isinstance(found, dict)
    return dict(found)  # pyright: ignore[reportUnknownArgumentType]  # JSON: any values


def call(**params: object) -> Frame:
    return jsonrpc.request(1, "tools/call", params)


def test_pieces_in_order_go_on_and_nothing_is_missing() -> None:
    pieces, passed = taken(0, 1, 2)
    pieces.ended(3)
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
    pieces = Pieces()
    assert pieces.take(piece(0, done=True))
    assert not pieces.take(piece(1))
    assert pieces.late == 1


def test_pieces_that_a_server_says_it_sent_and_that_never_came_are_missing() -> None:
    pieces, _ = taken(0, 1)
    pieces.ended(5)
    assert pieces.missing == 3
    pieces.ended(None)
    pieces.ended(2**40)
    assert pieces.missing == 3


@given(st.lists(st.integers(0, 40)))
def test_what_goes_on_grows_and_is_accounted_for(indexes: list[int]) -> None:
    pieces, passed = taken(*indexes)
    assert passed == sorted(set(passed))
    assert pieces.heard + pieces.late == len(indexes)
    assert pieces.heard + pieces.missing == (passed[-1] + 1 if passed else 0)


def test_what_is_no_text_stands_between_the_texts() -> None:
    pieces = Pieces()
    pieces.take(piece(0, "a"))
    pieces.take(Chunk(1, 1, image()))
    pieces.take(piece(2, "b"))
    kinds = [jsonrpc.members(jsonrpc.to_raw(block))["type"] for block in pieces.content()]
    assert [jsonrpc.text(kind) for kind in kinds] == ["text", "image", "text"]


def test_only_the_beginning_is_kept_and_that_is_told() -> None:
    pieces = Pieces()
    half = "x" * (rules.MOST_KEPT_BYTES // 2)
    for index in range(4):
        assert pieces.take(piece(index, half))
    # A short one would fit again, but after a hole.
    pieces.take(piece(4, "y"))
    assert pieces.truncated
    assert pieces.content() == [{"type": "text", "text": half}]
    many = Pieces()
    for index in range(rules.MOST_KEPT_PIECES + 1):
        many.take(piece(index))
    assert many.truncated


def test_whole_pieces_that_say_something_else_than_the_answer_are_noticed() -> None:
    result = {"content": jsonrpc.to_raw([{"type": "text", "text": "<0><1>"}])}
    assert not taken(0, 1)[0].differs_from(result)
    assert taken(0)[0].differs_from(result)
    assert not taken(1)[0].differs_from(result), "with a gap nobody can tell"
    assert not Pieces().differs_from(result)
    assert taken(0)[0].differs_from({"content": Raw(b"1")})


def test_pieces_are_steps_with_their_text_for_a_message() -> None:
    ladder = Ladder(TOKEN)
    first, second = values(ladder.piece(piece(0, "a"))), values(ladder.piece(piece(1, "b")))
    assert first == {"progressToken": "mine", "progress": 1.0, "message": "a"}
    assert second == {"progressToken": "mine", "progress": 2.0, "message": "b"}
    assert values(ladder.piece(Chunk(1, 2, image())))["message"] == "[image]"


def test_a_share_is_told_of_a_total_of_one_while_it_grows() -> None:
    ladder = Ladder(TOKEN)
    half = values(ladder.share(Progress(1, 0.5, "half")))
    assert half == {"progressToken": "mine", "progress": 0.5, "total": 1, "message": "half"}
    assert ladder.share(Progress(1, 0.5)) is None
    assert ladder.share(Progress(1, float("nan"))) is None
    assert values(ladder.share(Progress(1, 7.0)))["progress"] == 1.0


def test_the_servers_own_progress_is_told_as_it_is_until_pieces_are_steps_too() -> None:
    ladder = Ladder(TOKEN)
    own = {"progress": Raw(b"7"), "vendor": Raw(b"1"), "progressToken": Raw(b"3")}
    assert values(ladder.own(own)) == {"progress": 7, "vendor": 1, "progressToken": "mine"}
    assert values(ladder.piece(piece(0)))["progress"] == 8.0
    assert ladder.own(own) is None
    assert values(ladder.own({**own, "message": Raw(b'"m"')}))["progress"] == 9.0
    assert ladder.share(Progress(1, 0.5)) is None
    assert values(ladder.share(Progress(1, 0.5, "m")))["progress"] == 10.0


@given(st.lists(st.one_of(st.none(), st.floats(0, 1), st.integers(0, 9))))
def test_with_pieces_each_step_is_above_the_one_before(news: list[float | int | None]) -> None:
    ladder, told = Ladder(TOKEN), [0.0]
    for each in (None, *news):
        if each is None:
            frame = ladder.piece(piece(0))
        elif isinstance(each, int):
            frame = ladder.own({"progress": jsonrpc.to_raw(each), "message": Raw(b'"m"')})
        else:
            frame = ladder.share(Progress(1, each, "m"))
        if frame is not None:
            told.append(float(str(values(frame)["progress"])))
    assert told == sorted(set(told))


def test_a_message_is_cut_at_its_bound() -> None:
    assert len(rules.cut("x" * 10_000)) == rules.LONGEST_MESSAGE
    assert rules.cut("short") == "short"
    assert len(str(values(Ladder(TOKEN).piece(piece(0, "y" * 10_000)))["message"])) == 4096


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
    said = values(rules.asking(asked, "token"))
    assert said["_mgp"] == {"stream": True}
    assert said["_meta"] == {
        "other": 1,
        "progressToken": "token",
        streaming.MIRROR: {"stream": True},
    }
    kept = values(rules.asking(call(_meta={"progressToken": 1}), "token"))["_meta"]
    assert isinstance(kept, dict)
    assert kept["progressToken"] == 1


def test_a_modern_request_says_that_its_client_can_hear_pieces() -> None:
    said = values(rules.asking(call(_meta={CLIENT_CAPABILITIES: {"roots": {}}})))["_meta"]
    assert isinstance(said, dict)
    assert said[CLIENT_CAPABILITIES]["mgp"]["extensions"] == ["streaming"]
    own = {"mgp": {"version": "0.3.0", "extensions": ["streaming", "lifecycle"]}}
    said = values(rules.asking(call(_meta={CLIENT_CAPABILITIES: own})))["_meta"]
    assert isinstance(said, dict)
    assert said[CLIENT_CAPABILITIES] == own


def test_a_server_that_does_not_stream_is_not_asked() -> None:
    plain = call(name="t", _meta={"other": 1})
    assert rules.unasked(plain) is plain
    mirrored = {"other": 1, streaming.MIRROR: {"stream": True}}
    said = values(rules.unasked(call(name="t", _mgp={"stream": True}, _meta=mirrored)))
    assert said == {"name": "t", "_meta": {"other": 1}}
    assert values(rules.unasked(call(name="t", _mgp={"stream": True}))) == {"name": "t"}
    assert values(rules.unasked(plain, "token"))["_meta"] == {"other": 1, "progressToken": "token"}


def test_only_a_whole_number_counts_pieces() -> None:
    assert rules.count_in({"chunks_sent": Raw(b"15")}) == 15
    for odd in (b"-1", b"1.5", b"true", b'"15"'):
        assert rules.count_in({"chunks_sent": Raw(odd)}) is None
    assert rules.count_in({}) is None
