"""Streams that can be taken up again: ids, bounds, and who reads."""

import asyncio

import pytest

from comity.kernel.outbox import Outbox
from comity.kernel.replay import KEPT_BYTES, KEPT_EVENTS, Replay, place_of
from tests.kernel.carriers import settled


def test_events_are_numbered_within_their_stream() -> None:
    replay = Replay(3, Outbox())
    assert [replay.record(b"a"), replay.record(b"b")] == ["3-1", "3-2"]


def test_what_followed_an_event_is_given_again() -> None:
    replay = Replay(0, Outbox())
    for data in (b"a", b"b", b"c"):
        replay.record(data)
    assert replay.after(1) == [("0-2", b"b"), ("0-3", b"c")]
    assert replay.after(0)[0] == ("0-1", b"a")
    assert replay.after(3) == replay.after(99) == []


def test_only_so_many_events_are_kept() -> None:
    replay = Replay(1, Outbox())
    for number in range(KEPT_EVENTS + 5):
        replay.record(b"%d" % number)
    kept = replay.after(0)
    assert len(kept) == KEPT_EVENTS
    assert kept[0] == ("1-6", b"5")


def test_only_so_many_bytes_are_kept() -> None:
    replay = Replay(1, Outbox())
    for _ in range(5):
        replay.record(b"x" * (KEPT_BYTES // 2))
    assert len(replay.after(0)) == 2
    replay.record(b"x" * (KEPT_BYTES + 1))
    assert replay.after(0) == []
    assert replay.record(b"y") == "1-7"
    assert replay.after(0) == [("1-7", b"y")]


async def test_the_newest_reader_has_the_stream_and_the_one_before_is_woken() -> None:
    replay = Replay(1, Outbox())
    first = replay.attach()
    waiting = asyncio.ensure_future(replay.outbox.wait())
    await settled()
    assert not waiting.done()
    second = replay.attach()
    async with asyncio.timeout(5):
        await waiting
    assert replay.reader == second != first


def test_a_first_reader_wakes_nobody() -> None:
    replay = Replay(1, Outbox())
    replay.attach()
    assert not replay.outbox.nudged


def test_what_a_stuck_reader_never_sent_is_for_the_one_after() -> None:
    replay = Replay(1, Outbox())
    for data in (b"a", b"b"):
        replay.outbox.put(data)
    assert replay.next() == b"a"
    replay.outbox.put(b"c")
    assert [replay.next(), replay.next(), replay.next()] == [b"b", b"c", None]


@pytest.mark.parametrize(
    ("event_id", "place"),
    [
        ("0-1", (0, 1)),
        ("12-345", (12, 345)),
        ("", None),
        ("5", None),
        ("-", None),
        ("1-", None),
        ("-1", None),
        ("1-2-3", None),
        ("a-1", None),
        ("1-b", None),
        ("٣-1", None),
        ("1-²", None),
        ("+1-1", None),
        ("9" * 16 + "-1", None),
        ("1-" + "9" * 5000, None),
    ],
)
def test_an_event_id_names_its_place_or_was_not_given_out_here(
    event_id: str, place: tuple[int, int] | None
) -> None:
    assert place_of(event_id) == place
