"""Pieces between nodes come back as they were, and nothing else is taken for one."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.wire import carried
from comity.wire.carried import PIECE_BYTES, Act, Opening, Piece, Sum
from comity.wire.errors import EXHAUSTED, UPSTREAM_FAILED, MalformedMessage, Unavailable


def test_a_piece_is_read_as_it_was_written() -> None:
    piece = Piece(Act.SAY, "a-1", 7, True, 3, True, b"\x00\xff")
    assert carried.decode(carried.encode(piece)) == piece
    begun = Opening("http", b"head", 1.5, b"body")
    assert carried.opening(carried.encode(begun)) == begun
    told = [Sum(1, True, 4), Sum(2, False, 0)]
    assert carried.sums(carried.encode(told)) == told


@given(st.binary(max_size=64))
def test_whatever_comes_is_a_piece_or_is_refused(data: bytes) -> None:
    for read in (carried.decode, carried.opening, carried.sums, carried.unavailable):
        try:
            read(data)
        except MalformedMessage:
            continue


@pytest.mark.parametrize("length", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_a_message_is_split_into_pieces_that_a_bus_takes(length: int) -> None:
    data = bytes(length)
    pieces = list(carried.split(data))
    assert b"".join(piece for piece, _ in pieces) == data
    assert [more for _, more in pieces] == [True] * (len(pieces) - 1) + [False]
    assert all(len(piece) <= PIECE_BYTES for piece, _ in pieces)


def test_a_failure_keeps_its_kind_and_its_time() -> None:
    error = Unavailable("too much", EXHAUSTED, timedelta(seconds=2))
    told = carried.unavailable(carried.failure(error))
    assert (str(told), told.fault, told.retry_after) == ("too much", EXHAUSTED, error.retry_after)
    plain = carried.unavailable(carried.failure(MalformedMessage("x" * 5000)))
    assert (len(str(plain)), plain.retry_after) == (2000, None)


def test_a_failure_of_a_kind_that_is_not_known_is_a_plain_one() -> None:
    data = carried.failure(Unavailable("x", EXHAUSTED)).replace(b"exhausted", b"unheardof")
    assert carried.unavailable(data).fault is UPSTREAM_FAILED
