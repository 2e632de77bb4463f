"""Stragglers of a connection that was given up, and what is not ours."""

import logging

import pytest

from comity.adapters.nats.marks import NODE_SIZE, Marks

ONE = bytes(NODE_SIZE)
OTHER = b"\x01" * NODE_SIZE


def test_what_another_node_says_is_heard_as_it_was_said() -> None:
    said = Marks(ONE).next() + b"hello"
    hearer = Marks(OTHER)
    assert [hearer.body_of(said), hearer.body_of(said)] == [b"hello", b"hello"]


def test_what_comes_over_an_older_connection_comes_too_late() -> None:
    speaker, hearer = Marks(ONE), Marks(OTHER)
    first, second = speaker.next(), speaker.next()
    assert hearer.body_of(first + b"1") == b"1"
    assert hearer.body_of(second + b"2") == b"2"
    assert hearer.body_of(first + b"late") is None
    assert hearer.body_of(second + b"3") == b"3"
    assert hearer.stragglers == 1


def test_order_of_connections_holds_beyond_what_a_byte_counts() -> None:
    speaker, hearer = Marks(ONE), Marks(OTHER)
    marks = [speaker.next() for _ in range(300)]
    assert [hearer.body_of(mark + b"x") for mark in marks] == [b"x"] * 300
    assert hearer.body_of(marks[255]) is None


def test_a_nodes_own_words_come_back_to_nobody() -> None:
    marks = Marks(ONE)
    assert marks.body_of(marks.next() + b"mine") is None
    assert marks.stragglers == 1


def test_what_is_not_ours_is_heard_by_nobody_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hearer = Marks(OTHER)
    for foreign in (b"", b"\x01", b"hello, all of you", b"\x02" + bytes(20)):
        assert hearer.body_of(foreign) is None
    assert hearer.strangers == 4
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_nodes_that_went_away_are_forgotten_in_the_end() -> None:
    hearer = Marks(OTHER)
    gone = Marks(ONE)
    first, second = gone.next(), gone.next()
    assert hearer.body_of(second + b"x") == b"x"
    for number in range(1, 5001):
        assert hearer.body_of(Marks(number.to_bytes(NODE_SIZE, "big")).next() + b"x") is not None
    assert hearer.body_of(first + b"x") == b"x"
