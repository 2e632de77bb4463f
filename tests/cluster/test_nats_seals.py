"""Seals of messages between nodes: what is taken, and what strangers cannot bring about."""

import logging
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.cluster.nats.seals import (
    CLOCK,
    CLOCK_TOLERANCE,
    EARLIER,
    FORGED,
    QUIET_SECONDS,
    REPLAYED,
    SEAL_SIZE,
    MessageSeals,
)

SECOND = 1_000_000_000
TOLERANCE = int(CLOCK_TOLERANCE.total_seconds())


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000 * SECOND

    def __call__(self) -> int:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


class Pair:
    """Two nodes, each with a clock of its own."""

    def __init__(self) -> None:
        self.there, self.here = Clock(), Clock()
        self.speaker = MessageSeals(b"secret", self.there)
        self.hearer = MessageSeals(b"secret", self.here)

    def said(self, data: bytes = b"hello", subject: bytes = b"a.b", reply: bytes = b"") -> bytes:
        return self.speaker.seal(subject, reply, data)

    def heard(self, sealed: bytes, sid: int = 1, subject: bytes = b"a.b") -> bytes | None:
        return self.hearer.open(sid, subject, b"", sealed)


def test_another_node_opens_what_was_sealed_and_nobody_else_reads_it() -> None:
    pair = Pair()
    for data in (b"", b"hello", bytes(300_000)):
        sealed = pair.said(data)
        assert len(sealed) == len(data) + SEAL_SIZE
        assert not data or data not in sealed
        assert pair.heard(sealed) == data
    assert MessageSeals(b"another", pair.here).open(1, b"a.b", b"", pair.said()) is None
    assert pair.hearer.refused.total() == 0


def test_a_message_is_taken_once_and_only_in_its_order() -> None:
    pair = Pair()
    first, second, third = pair.said(b"1"), pair.said(b"2"), pair.said(b"3")
    assert [pair.heard(each) for each in (first, first, third, second, third, first)] == [
        *(b"1", None, b"3"),
        *(None, None, None),
    ]
    assert pair.hearer.refused[REPLAYED] == 4
    assert pair.heard(pair.said(b"4")) == b"4"


def test_each_subscription_that_matches_takes_a_message_once() -> None:
    pair = Pair()
    sealed = pair.said()
    assert [pair.heard(sealed, sid) for sid in (1, 2, 3, 1, 2, 3)] == [b"hello"] * 3 + [None] * 3
    assert pair.heard(pair.said(b"next"), 2) == b"next"
    assert pair.heard(sealed, 4) is None


def test_a_message_is_for_one_subject_and_one_answer() -> None:
    pair = Pair()
    sealed = pair.said(reply=b"_INBOX.x")
    for subject, reply in ((b"a.c", b"_INBOX.x"), (b"a.b", b"_INBOX.y"), (b"a.b", b""), (b"", b"")):
        assert pair.hearer.open(1, subject, reply, sealed) is None
    assert pair.hearer.refused[FORGED] == 4
    assert pair.hearer.open(1, b"a.b", b"_INBOX.x", sealed) == b"hello"


@given(st.data())
def test_no_altered_byte_passes_and_none_of_them_harms_the_true_node(data: st.DataObject) -> None:
    pair = Pair()
    sealed = bytearray(pair.said(b"a message"))
    place = data.draw(st.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    assert pair.heard(bytes(sealed)) is None
    assert pair.heard(pair.said(b"true")) == b"true"


@given(st.binary(max_size=200))
def test_no_bytes_of_strangers_raise_anything_or_pass(junk: bytes) -> None:
    pair = Pair()
    for forged in (junk, b"\x01" + junk, b"\x02" + junk, pair.said()[:33] + junk):
        assert pair.heard(forged) is None
    assert pair.hearer.refused[FORGED] == 4


def test_a_nodes_own_words_come_back_to_nobody() -> None:
    pair = Pair()
    assert pair.speaker.open(1, b"a.b", b"", pair.said()) is None
    assert pair.speaker.refused[REPLAYED] == 1


@pytest.mark.parametrize("ahead", [-TOLERANCE - 1, TOLERANCE + 1])
def test_clocks_that_are_too_far_apart_are_told(
    ahead: int, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair()
    assert pair.heard(pair.said()) is not None
    pair.there.passes(ahead)
    for _ in range(3):
        assert pair.heard(pair.said()) is None
    assert pair.hearer.refused[CLOCK] == 3
    assert [record.message.count("Synchronise the clocks") for record in caplog.records] == [1]
    pair.there.passes(-ahead * (TOLERANCE - 1) / (TOLERANCE + 1))
    assert pair.heard(pair.said()) == b"hello"


def test_a_node_that_just_started_takes_nothing_from_before() -> None:
    """It cannot know what its predecessor has taken."""
    pair = Pair()
    before = [pair.said(b"%d" % number) for number in range(5)]
    pair.here.passes(1)
    started = MessageSeals(b"secret", pair.here)
    assert [started.open(1, b"a.b", b"", each) for each in before] == [None] * 5
    assert started.refused[EARLIER] == 5
    pair.there.passes(1)
    assert started.open(1, b"a.b", b"", pair.said()) == b"hello"
    assert [started.open(1, b"a.b", b"", each) for each in before] == [None] * 5


def test_a_sender_is_forgotten_only_when_its_time_is_over() -> None:
    pair = Pair()
    old = pair.said()
    assert pair.heard(old) == b"hello"
    pair.here.passes(2 * TOLERANCE + 1)
    pair.there.passes(2 * TOLERANCE + 1)
    another = MessageSeals(b"secret", pair.there)
    assert pair.hearer.open(1, b"a.b", b"", another.seal(b"a.b", b"", b"new")) == b"new"
    assert pair.heard(old) is None
    assert pair.hearer.refused[CLOCK] == 1
    assert pair.heard(pair.said(b"on")) == b"on"


def test_what_is_dropped_is_logged_once_until_it_was_quiet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pair = Pair()
    for _ in range(3):
        for _ in range(200):
            pair.here.passes(QUIET_SECONDS / 100)
            assert pair.heard(b"\x02 forged") is None
        pair.here.passes(QUIET_SECONDS + 1)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    assert all("a.b that no node of this cluster sealed" in each.message for each in caplog.records)
    assert pair.hearer.refused[FORGED] == 600


def test_a_seal_says_nothing_of_the_secret() -> None:
    seals = MessageSeals(b"s3cret", time.time_ns)
    assert "s3cret" not in repr(seals) + repr(vars(seals))
