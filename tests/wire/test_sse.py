"""Server-sent events mean what the HTML standard says, in any pieces and at linear cost."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.wire import sse
from comity.wire.errors import MalformedMessage
from comity.wire.sse import Event, EventParser, encode_comment, encode_event
from tests.wire.counted_buffer import CountedBuffer


def parsed(stream: bytes) -> list[Event]:
    return EventParser().feed(stream)


def fed_in_pieces(parser: EventParser, stream: bytes, cuts: list[int]) -> list[Event]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [event for start, end in pairwise(edges) for event in parser.feed(stream[start:end])]


def events_and_whether_it_broke(
    stream: bytes, cuts: list[int], limit: int
) -> tuple[list[Event], bool]:
    parser, events = EventParser(limit), list[Event]()
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream), len(stream)]
    try:
        for start, end in pairwise(edges):
            events += parser.feed(stream[start:end])
    except MalformedMessage:
        return events, True
    return events, False


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        pytest.param(b"data: a\n\n", [Event(b"a")], id="newlines"),
        pytest.param(b"data: a\r\n\r\n", [Event(b"a")], id="carriage returns and newlines"),
        pytest.param(b"data: a\r\r", [Event(b"a")], id="carriage returns"),
        pytest.param(b"data: a\r\n\n", [Event(b"a")], id="mixed line ends"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [Event(b"a")], id="byte order mark"),
        pytest.param(b"\n\xef\xbb\xbfdata: a\n\n", [], id="byte order mark too late"),
        pytest.param(b"data:a\ndata:  b\ndata\n\n", [Event(b"a\n b\n")], id="data of three lines"),
        pytest.param(b"data\n\n", [Event(b"")], id="a field without colon"),
        pytest.param(b": hello\ndata: a\n:\n\n", [Event(b"a")], id="comments"),
        pytest.param(b"nonsense: 1\ndata: a\nDATA: b\n\n", [Event(b"a")], id="unknown fields"),
        pytest.param(b" data: a\n\n", [], id="a space before the field"),
        pytest.param(b"event: add\ndata: a\n\n", [Event(b"a", "add")], id="event name"),
        pytest.param(b"event:\ndata: a\n\n", [Event(b"a")], id="empty event name"),
        pytest.param(b"event: add\n\ndata: a\n\n", [Event(b"a")], id="name without data"),
        pytest.param(b"event: \xff\ndata: \xff\n\n", [Event(b"\xff", "\ufffd")], id="not UTF-8"),
        pytest.param(b"id: 1\ndata: a\n\n", [Event(b"a", id="1")], id="id"),
        pytest.param(b"id\ndata: a\n\n", [Event(b"a", id="")], id="empty id"),
        pytest.param(b"id: 1\0\ndata: a\n\n", [Event(b"a")], id="id with NUL"),
        pytest.param(b"id: 1\nretry: 5\ndata:\n\n", [Event(b"", id="1", retry=5)], id="priming"),
        pytest.param(b"id: 1\n\n", [Event(b"", id="1")], id="id alone"),
        pytest.param(b"retry: 10\n\n", [Event(b"", retry=10)], id="retry alone"),
        pytest.param(b"retry: 1x\n\nretry: -1\n\nretry:\n\n", [], id="retry of no digits"),
        pytest.param(b"retry: %b\n\n" % (b"9" * 5000), [], id="retry beyond sense"),
        pytest.param(b"retry: \xd9\xa3\n\n", [], id="retry of other digits"),
        pytest.param(b"data: a\n", [], id="no blank line yet"),
        pytest.param(b"\n\n\n", [], id="blank lines"),
    ],
)
def test_a_stream_means_what_the_standard_says(stream: bytes, events: list[Event]) -> None:
    assert parsed(stream) == events
    parser = EventParser()
    assert [event for byte in stream for event in parser.feed(bytes([byte]))] == events


def test_the_usual_event_is_taken_in_one_piece() -> None:
    parser = EventParser()
    for _ in range(3):
        assert parser.feed(b'event: message\ndata: {"id":1}\n\n') == [Event(b'{"id":1}')]


@pytest.mark.parametrize(
    ("before", "event"),
    [
        (b"id: 7\n", Event(b"x", id="7")),
        (b"data: w\n", Event(b"w\nx")),
        (b": half a comment ", None),
        (b"\r", Event(b"x")),
    ],
)
def test_a_usual_event_inside_something_else_is_not_taken_by_itself(
    before: bytes, event: Event | None
) -> None:
    parser = EventParser()
    parser.feed(b"\n" + before)
    expected = [event] if event else [Event(b"x")]
    assert parser.feed(b"event: message\ndata: x\n\n") == expected


def test_a_half_comment_swallows_the_first_line_of_what_follows() -> None:
    parser = EventParser()
    parser.feed(b"\n: half a comment ")
    assert parser.feed(b"event: other\ndata: x\n\n") == [Event(b"x")]


def test_a_newline_after_a_usual_event_ends_nothing_of_the_next() -> None:
    parser = EventParser()
    parser.feed(b"\r")
    parser.feed(b"event: message\ndata: x\n\n")
    parser.feed(b"data: y")
    assert parser.feed(b"\n\n") == [Event(b"y")]


def test_a_byte_order_mark_is_skipped_at_the_very_start_only() -> None:
    parser = EventParser()
    parser.feed(b"event: message\ndata: x\n\n")
    assert parser.feed(b"\xef\xbb\xbfdata: y\n\n") == []


def test_the_last_id_stays_until_another_one_is_told() -> None:
    parser = EventParser()
    parser.feed(b"id: 1\ndata: a\n\ndata: b\n\n")
    assert parser.last_event_id == "1"
    parser.feed(b"id: 2\n")
    assert parser.last_event_id == "1", "an id counts once its block has ended"
    parser.feed(b"\nid: 3\0\n\n")
    assert parser.last_event_id == "2"
    parser.feed(b"id\n\n")
    assert parser.last_event_id == ""


def test_an_event_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    assert EventParser(limit=12).feed(b"data: 123456\n\n") == [Event(b"123456")]
    with pytest.raises(MalformedMessage, match="larger than 12 bytes"):
        EventParser(limit=12).feed(b"data: 1234567\n\n")


def test_a_full_event_may_wait_for_its_blank_line() -> None:
    parser = EventParser(limit=12)
    assert parser.feed(b"data: 123456\n") == []
    assert parser.feed(b"\n") == [Event(b"123456")]


def test_the_usual_event_is_measured_too() -> None:
    parser = EventParser(limit=30)
    parser.feed(b"\n")
    with pytest.raises(MalformedMessage):
        parser.feed(b"event: message\ndata: %b\n\n" % (b"x" * 100))


def test_many_small_data_lines_make_an_oversize_event() -> None:
    with pytest.raises(MalformedMessage):
        EventParser(limit=1000).feed(b"data\n" * 201)


def test_a_line_that_never_ends_is_not_held() -> None:
    parser = EventParser(limit=1000)
    parser.feed(b"data: " + b"x" * 900)
    with pytest.raises(MalformedMessage):
        parser.feed(b"x" * 100)


def test_comments_never_make_an_event_oversize() -> None:
    parser = EventParser(limit=100)
    parser.feed(b"data: a\n" + b": still here\n" * 1000)
    assert parser.feed(b"\n") == [Event(b"a")]


def test_events_before_an_oversize_one_are_not_lost() -> None:
    parser = EventParser(limit=20)
    assert parser.feed(b"id: 1\ndata: a\n\ndata: %b\n\ndata: b\n\n" % (b"x" * 50)) == [
        Event(b"a", id="1")
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
    whole, pieces = EventParser(), EventParser()
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
        Event(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), event or "message", id_, retry)
        for data, id_, event, retry in sent
    ]
    assert fed_in_pieces(EventParser(), stream, cuts) == expected


def test_an_event_is_written_as_other_servers_write_it() -> None:
    assert encode_event(b"{}", event="message") == b"event: message\ndata: {}\n\n"
    assert encode_event(b"", id="1", retry=500) == b"id: 1\nretry: 500\ndata: \n\n"
    assert encode_event(b"a\r\nb\rc\n") == b"data: a\ndata: b\ndata: c\ndata: \n\n"
    assert encode_comment() == b": \n\n"


@pytest.mark.parametrize("smuggled", ["1\ndata: forged", "1\rdata: forged", "1\0"])
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
    monkeypatch.setattr(sse, "bytearray", CountedBuffer, raising=False)
    monkeypatch.setattr(CountedBuffer, "looked_at", 0)
    parser = EventParser()
    parser.feed(b"data: ")
    for _ in range(size // 1024):
        assert parser.feed(b"x" * 1024) == []
    assert parser.feed(b"\n\n") == [Event(b"x" * size)]
    # Once to keep it and once to hand it over.
    assert CountedBuffer.looked_at == 2 * (size + len(b"data: "))
