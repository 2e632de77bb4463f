"""Server-sent events and lines: whole in any pieces, bounded, at linear cost."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.errors import MalformedMessage
from comity.mcp import framing
from comity.mcp.framing import (
    LineSplitter,
    OverlongLine,
    SseEvent,
    SseParser,
    encode_comment,
    encode_event,
)
from tests.mcp.counted_buffer import CountedBuffer
from tests.support.cases import loop_over


def parsed(stream: bytes) -> list[SseEvent]:
    return SseParser().feed(stream)


def fed_in_pieces(parser: SseParser, stream: bytes, cuts: list[int]) -> list[SseEvent]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [event for start, end in pairwise(edges) for event in parser.feed(stream[start:end])]


def events_and_whether_it_broke(
    stream: bytes, cuts: list[int], limit: int
) -> tuple[list[SseEvent], bool]:
    parser, events = SseParser(limit), list[SseEvent]()
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream), len(stream)]
    try:
        for start, end in pairwise(edges):
            events += parser.feed(stream[start:end])
    except MalformedMessage:
        return events, True
    return events, False


@loop_over(
    ("stream", "events"),
    [
        pytest.param(b"data: a\n\n", [SseEvent(b"a")], id="newlines"),
        pytest.param(b"data: a\r\n\r\n", [SseEvent(b"a")], id="carriage returns and newlines"),
        pytest.param(b"data: a\r\r", [SseEvent(b"a")], id="carriage returns"),
        pytest.param(b"data: a\r\n\n", [SseEvent(b"a")], id="mixed line ends"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [SseEvent(b"a")], id="byte order mark"),
        pytest.param(b"\n\xef\xbb\xbfdata: a\n\n", [], id="byte order mark too late"),
        pytest.param(
            b"data:a\ndata:  b\ndata\n\n", [SseEvent(b"a\n b\n")], id="data of three lines"
        ),
        pytest.param(b"data\n\n", [SseEvent(b"")], id="a field without colon"),
        pytest.param(b": hello\ndata: a\n:\n\n", [SseEvent(b"a")], id="comments"),
        pytest.param(b"nonsense: 1\ndata: a\nDATA: b\n\n", [SseEvent(b"a")], id="unknown fields"),
        pytest.param(b" data: a\n\n", [], id="a space before the field"),
        pytest.param(b"event: add\ndata: a\n\n", [SseEvent(b"a", "add")], id="event name"),
        pytest.param(b"event:\ndata: a\n\n", [SseEvent(b"a")], id="empty event name"),
        pytest.param(b"event: add\n\ndata: a\n\n", [SseEvent(b"a")], id="name without data"),
        pytest.param(b"event: \xff\ndata: \xff\n\n", [SseEvent(b"\xff", "\ufffd")], id="not UTF-8"),
        pytest.param(b"id: 1\ndata: a\n\n", [SseEvent(b"a", id="1")], id="id"),
        pytest.param(b"id\ndata: a\n\n", [SseEvent(b"a", id="")], id="empty id"),
        pytest.param(b"id: 1\0\ndata: a\n\n", [SseEvent(b"a")], id="id with NUL"),
        pytest.param(b"id: 1\nretry: 5\ndata:\n\n", [SseEvent(b"", id="1", retry=5)], id="priming"),
        pytest.param(b"id: 1\n\n", [SseEvent(b"", id="1")], id="id alone"),
        pytest.param(b"retry: 10\n\n", [SseEvent(b"", retry=10)], id="retry alone"),
        pytest.param(b"retry: 1x\n\nretry: -1\n\nretry:\n\n", [], id="retry of no digits"),
        pytest.param(b"retry: %b\n\n" % (b"9" * 5000), [], id="retry beyond sense"),
        pytest.param(b"retry: \xd9\xa3\n\n", [], id="retry of other digits"),
        pytest.param(b"data: a\n", [], id="no blank line yet"),
        pytest.param(b"\n\n\n", [], id="blank lines"),
    ],
)
def test_a_stream_means_what_the_standard_says(stream: bytes, events: list[SseEvent]) -> None:
    assert parsed(stream) == events
    parser = SseParser()
    assert [event for byte in stream for event in parser.feed(bytes([byte]))] == events


def test_the_usual_event_is_taken_in_one_piece() -> None:
    parser = SseParser()
    for _ in range(3):
        assert parser.feed(b'event: message\ndata: {"id":1}\n\n') == [SseEvent(b'{"id":1}')]


@loop_over(
    ("before", "name", "event"),
    [
        (b"id: 7\n", b"message", SseEvent(b"x", id="7")),
        (b"data: w\n", b"message", SseEvent(b"w\nx")),
        (b": half a comment ", b"message", SseEvent(b"x")),
        (b": half a comment ", b"other", SseEvent(b"x")),
        (b"\r", b"message", SseEvent(b"x")),
    ],
)
def test_a_usual_event_inside_something_else_is_not_taken_by_itself(
    before: bytes, name: bytes, event: SseEvent
) -> None:
    parser = SseParser()
    parser.feed(b"\n" + before)
    assert parser.feed(b"event: %b\ndata: x\n\n" % name) == [event]


def test_a_newline_after_a_usual_event_ends_nothing_of_the_next() -> None:
    parser = SseParser()
    parser.feed(b"\r")
    parser.feed(b"event: message\ndata: x\n\n")
    parser.feed(b"data: y")
    assert parser.feed(b"\n\n") == [SseEvent(b"y")]


def test_a_byte_order_mark_is_skipped_at_the_very_start_only() -> None:
    parser = SseParser()
    parser.feed(b"event: message\ndata: x\n\n")
    assert parser.feed(b"\xef\xbb\xbfdata: y\n\n") == []


def test_the_last_id_stays_until_another_one_is_told() -> None:
    parser = SseParser()
    parser.feed(b"id: 1\ndata: a\n\ndata: b\n\n")
    assert parser.last_event_id == "1"
    parser.feed(b"id: 2\n")
    assert parser.last_event_id == "1", "an id counts once its block has ended"
    parser.feed(b"\nid: 3\0\n\n")
    assert parser.last_event_id == "2"
    parser.feed(b"id\n\n")
    assert parser.last_event_id == ""


def test_an_event_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    assert SseParser(limit=12).feed(b"data: 123456\n\n") == [SseEvent(b"123456")]
    with pytest.raises(MalformedMessage, match="larger than 12 bytes"):
        SseParser(limit=12).feed(b"data: 1234567\n\n")
    parser = SseParser(limit=12)
    assert parser.feed(b"data: 123456\n") == []
    assert parser.feed(b"\n") == [SseEvent(b"123456")]


@loop_over(
    ("before", "chunk"),
    [
        (b"\n", b"event: message\ndata: %b\n\n" % (b"x" * 1000)),
        (b"", b"data\n" * 201),
        (b"data: " + b"x" * 900, b"x" * 100),
    ],
    ids=["the usual event", "many small lines", "a line that never ends"],
)
def test_an_oversize_event_is_refused_in_any_form(before: bytes, chunk: bytes) -> None:
    parser = SseParser(limit=1000)
    parser.feed(before)
    with pytest.raises(MalformedMessage):
        parser.feed(chunk)


def test_comments_never_make_an_event_oversize() -> None:
    parser = SseParser(limit=100)
    parser.feed(b"data: a\n" + b": still here\n" * 1000)
    assert parser.feed(b"\n") == [SseEvent(b"a")]


def test_events_before_an_oversize_one_are_not_lost() -> None:
    parser = SseParser(limit=20)
    assert parser.feed(b"id: 1\ndata: a\n\ndata: %b\n\ndata: b\n\n" % (b"x" * 50)) == [
        SseEvent(b"a", id="1")
    ]
    for chunk in (b"", b"data: c\n\n", b"event: message\ndata: d\n\n"):
        with pytest.raises(MalformedMessage):
            parser.feed(chunk)
    assert parser.last_event_id == "1"


WORDS = st.lists(
    st.sampled_from(
        [
            *(
                b"\n",
                b"\r",
                b"\r\n",
                b"\n\n",
                b":",
                b" ",
                b"data",
                b"data: ",
                b"id: ",
                b"retry: 12",
            ),
            *(b"event: ", b"message", b"event: message\ndata: ", b"\0", b"\xef\xbb\xbf", b"xyz"),
        ]
    ),
    max_size=40,
)
CUTS = st.lists(st.integers(min_value=0), max_size=12)


@given(WORDS, CUTS)
def test_any_pieces_give_the_same_events(words: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(words)
    whole, pieces = SseParser(), SseParser()
    assert fed_in_pieces(pieces, stream, cuts) == whole.feed(stream)
    assert pieces.last_event_id == whole.last_event_id


@given(WORDS, CUTS, st.integers(min_value=0, max_value=40))
def test_any_pieces_break_at_the_same_event(
    words: list[bytes], cuts: list[int], limit: int
) -> None:
    stream = b"\n" + b"".join(words)
    whole = events_and_whether_it_broke(stream, [], limit)
    assert events_and_whether_it_broke(stream, cuts, limit) == whole


ONE_LINE = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]))


@given(
    st.lists(
        st.tuples(
            st.binary(),
            st.none() | ONE_LINE,
            st.none() | ONE_LINE,
            st.none() | st.integers(min_value=0, max_value=999_999_999),
        )
    ),
    CUTS,
)
def test_what_is_encoded_is_understood(
    sent: list[tuple[bytes, str | None, str | None, int | None]], cuts: list[int]
) -> None:
    stream = b"".join(
        encode_event(data, id=id_, event=event, retry=retry) + encode_comment("alive")
        for data, id_, event, retry in sent
    )
    expected = [
        SseEvent(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), event or "message", id_, retry)
        for data, id_, event, retry in sent
    ]
    assert fed_in_pieces(SseParser(), stream, cuts) == expected


def test_an_event_is_written_as_other_servers_write_it() -> None:
    assert encode_event(b"{}", event="message") == b"event: message\ndata: {}\n\n"
    assert encode_event(b"", id="1", retry=500) == b"id: 1\nretry: 500\ndata: \n\n"
    assert encode_event(b"a\r\nb\rc\n") == b"data: a\ndata: b\ndata: c\ndata: \n\n"
    assert encode_comment() == b": \n\n"


@loop_over("smuggled", ["1\ndata: forged", "1\rdata: forged", "1\0"])
def test_a_field_cannot_smuggle_another(smuggled: str) -> None:
    with pytest.raises(ValueError, match="neither line breaks nor NUL"):
        encode_event(b"{}", id=smuggled)
    with pytest.raises(ValueError, match="neither line breaks nor NUL"):
        encode_event(b"{}", event=smuggled)
    with pytest.raises(ValueError, match="neither line breaks nor NUL"):
        encode_comment(smuggled)


@pytest.mark.parametrize("size", [64 * 1024, 4 * 1024 * 1024])
def test_work_grows_with_the_bytes_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(framing, "bytearray", CountedBuffer, raising=False)
    monkeypatch.setattr(CountedBuffer, "looked_at", 0)
    parser = SseParser()
    parser.feed(b"data: ")
    for _ in range(size // 1024):
        assert parser.feed(b"x" * 1024) == []
    assert parser.feed(b"\n\n") == [SseEvent(b"x" * size)]
    # Once to keep it and once to hand it over.
    assert CountedBuffer.looked_at == 2 * (size + len(b"data: "))


def lines_in_pieces(stream: bytes, cuts: list[int], limit: int) -> list[bytes | OverlongLine]:
    splitter = LineSplitter(limit)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    return [item for piece in pieces for item in splitter.feed(piece)]


def without_sizes(items: list[bytes | OverlongLine]) -> list[bytes | None]:
    return [item if isinstance(item, bytes) else None for item in items]


@loop_over(
    ("chunks", "lines"),
    [
        ([b'{"a":1}\n{"b":2}\n'], [b'{"a":1}', b'{"b":2}']),
        ([b"one", b" two", b" three\nfour", b"\n"], [b"one two three", b"four"]),
        ([b"one", b"\ntwo\n"], [b"one", b"two"]),
        ([b"one\r\ntwo\r\r\nth\rree\n"], [b"one", b"two\r", b"th\rree"]),
        ([b"one\r", b"\n"], [b"one"]),
    ],
)
def test_a_line_ends_with_its_newline_and_one_carriage_return(
    chunks: list[bytes], lines: list[bytes]
) -> None:
    splitter = LineSplitter()
    assert [line for chunk in chunks for line in splitter.feed(chunk)] == lines


@loop_over("blank", [b"\n", b"\r\n", b"  \t \n", b"\n\n\r\n\n"])
def test_blank_lines_are_skipped(blank: bytes) -> None:
    assert LineSplitter().feed(blank + b"word\n" + blank) == [b"word"]


def test_a_line_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    splitter = LineSplitter(limit=4)
    assert splitter.feed(b"1234\n12345\n") == [b"1234", OverlongLine(5)]


def test_an_overlong_line_is_told_before_it_ends_and_what_follows_is_kept() -> None:
    splitter = LineSplitter(limit=4)
    assert splitter.feed(b"ok\n123") == [b"ok"]
    assert splitter.feed(b"456") == [OverlongLine(6)]
    assert splitter.feed(b"789" * 1000) == []
    assert splitter.feed(b"the end\nnext\n") == [b"next"]


def test_overlong_line_is_not_held() -> None:
    splitter = LineSplitter(limit=1000)
    told = [item for _ in range(100) for item in splitter.feed(b"x" * 999)]
    assert told == [OverlongLine(1998)]
    assert splitter.feed(b"\nafter\n") == [b"after"]


@given(
    st.lists(
        st.sampled_from([b"a", b"bcd", b"\n", b"\r", b"\r\n", b" ", b"efghijkl"]), max_size=40
    ),
    st.lists(st.integers(min_value=0), max_size=12),
    st.integers(min_value=0, max_value=12),
)
def test_any_pieces_give_the_same_lines(words: list[bytes], cuts: list[int], limit: int) -> None:
    stream = b"".join(words)
    whole = LineSplitter(limit).feed(stream)
    assert without_sizes(lines_in_pieces(stream, cuts, limit)) == without_sizes(whole)


@given(st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line)))
def test_no_line_is_lost_or_changed(texts: list[bytes]) -> None:
    kept = [text.removesuffix(b"\r") for text in texts]
    expected = [line for line in kept if line.strip()]
    assert LineSplitter().feed(b"".join(text + b"\n" for text in texts)) == expected


@pytest.mark.parametrize("size", [64 * 1024, 4 * 1024 * 1024])
def test_work_for_lines_grows_with_their_bytes(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(framing, "bytearray", CountedBuffer, raising=False)
    monkeypatch.setattr(CountedBuffer, "looked_at", 0)
    splitter = LineSplitter()
    piece = b"x" * 1024
    for _ in range(size // 1024):
        assert splitter.feed(piece) == []
    assert splitter.feed(b"\n") == [b"x" * size]
    # Once to keep it and once to hand it over.
    assert CountedBuffer.looked_at == 2 * size
