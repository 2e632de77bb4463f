"""Lines come out whole and once, whatever the pieces; a hostile line costs only its bytes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.wire import lines
from comity.wire.lines import LineSplitter, Overlong
from tests.wire.counted_buffer import CountedBuffer


def fed_in_pieces(stream: bytes, cuts: list[int], limit: int) -> list[bytes | Overlong]:
    splitter = LineSplitter(limit)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    return [item for piece in pieces for item in splitter.feed(piece)]


def without_sizes(items: list[bytes | Overlong]) -> list[bytes | None]:
    return [item if isinstance(item, bytes) else None for item in items]


def test_a_chunk_of_whole_lines_is_given_back_as_they_are() -> None:
    assert LineSplitter().feed(b'{"a":1}\n{"b":2}\n') == [b'{"a":1}', b'{"b":2}']


def test_a_line_in_pieces_is_held_until_its_newline() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"one") == []
    assert splitter.feed(b" two") == []
    assert splitter.feed(b" three\nfour") == [b"one two three"]
    assert splitter.feed(b"\n") == [b"four"]


def test_a_newline_alone_ends_the_held_line() -> None:
    splitter = LineSplitter()
    splitter.feed(b"one")
    assert splitter.feed(b"\ntwo\n") == [b"one", b"two"]


def test_one_carriage_return_before_the_newline_goes_with_it() -> None:
    assert LineSplitter().feed(b"one\r\ntwo\r\r\nth\rree\n") == [b"one", b"two\r", b"th\rree"]


def test_a_carriage_return_parted_from_its_newline_still_goes() -> None:
    splitter = LineSplitter()
    splitter.feed(b"one\r")
    assert splitter.feed(b"\n") == [b"one"]


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b"  \t \n", b"\n\n\r\n\n"])
def test_blank_lines_are_skipped(blank: bytes) -> None:
    assert LineSplitter().feed(blank + b"word\n" + blank) == [b"word"]


def test_a_line_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    splitter = LineSplitter(limit=4)
    assert splitter.feed(b"1234\n12345\n") == [b"1234", Overlong(5)]


def test_an_overlong_line_is_told_before_it_ends_and_what_follows_is_kept() -> None:
    splitter = LineSplitter(limit=4)
    assert splitter.feed(b"ok\n123") == [b"ok"]
    assert splitter.feed(b"456") == [Overlong(6)]
    assert splitter.feed(b"789" * 1000) == []
    assert splitter.feed(b"the end\nnext\n") == [b"next"]


def test_a_line_that_never_ends_is_not_held() -> None:
    splitter = LineSplitter(limit=1000)
    told = [item for _ in range(100) for item in splitter.feed(b"x" * 999)]
    assert told == [Overlong(1998)]
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
    assert without_sizes(fed_in_pieces(stream, cuts, limit)) == without_sizes(whole)


@given(st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line)))
def test_no_line_is_lost_or_changed(texts: list[bytes]) -> None:
    kept = [text.removesuffix(b"\r") for text in texts]
    expected = [line for line in kept if line.strip()]
    assert LineSplitter().feed(b"".join(text + b"\n" for text in texts)) == expected


@pytest.mark.parametrize("size", [64 * 1024, 4 * 1024 * 1024])
def test_work_grows_with_the_bytes_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(lines, "bytearray", CountedBuffer, raising=False)
    monkeypatch.setattr(CountedBuffer, "looked_at", 0)
    splitter = LineSplitter()
    piece = b"x" * 1024
    for _ in range(size // 1024):
        assert splitter.feed(piece) == []
    assert splitter.feed(b"\n") == [b"x" * size]
    # Once to keep it and once to hand it over.
    assert CountedBuffer.looked_at == 2 * size
