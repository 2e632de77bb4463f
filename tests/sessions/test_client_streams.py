"""The bounded queue of one stream, and streams that a client can resume."""

import asyncio

from comity.sessions.client_streams import (
    MAX_QUEUED_BYTES,
    MAX_QUEUED_FRAMES,
    MAX_REPLAY_BYTES,
    MAX_REPLAY_EVENTS,
    ClientStream,
    ResumableStream,
    parse_event_id,
)
from tests.support.carriers import settled
from tests.support.cases import loop_over


def test_what_was_put_is_taken_in_order_and_once() -> None:
    outbox = ClientStream()
    assert [outbox.put(b"%d" % number) for number in range(3)] == [True] * 3
    assert outbox.take() == [b"0", b"1", b"2"]
    assert outbox.take() == []


@loop_over(("size", "fitting"), [(1, MAX_QUEUED_FRAMES), (MAX_QUEUED_BYTES // 4, 4)])
def test_stream_is_bounded_by_number_and_size_of_its_messages(size: int, fitting: int) -> None:
    outbox = ClientStream()
    assert all(outbox.put(b"x" * size) for _ in range(fitting))
    assert not outbox.put(b"x")
    assert (outbox.is_overrun, outbox.is_final, len(outbox.frames)) == (True, True, fitting)


def test_room_that_was_taken_can_be_used_again() -> None:
    outbox = ClientStream()
    for _ in range(5):
        assert outbox.put(b"x" * (MAX_QUEUED_BYTES - 1))
        outbox.take()
    assert not outbox.is_overrun


def test_an_answer_is_never_refused_for_want_of_room() -> None:
    outbox = ClientStream()
    for _ in range(MAX_QUEUED_FRAMES):
        outbox.put(b"x")
    outbox.finish(b"answer", 404)
    assert outbox.take()[-1] == b"answer"
    assert (outbox.is_final, outbox.is_overrun, outbox.status) == (True, False, 404)


def test_there_is_only_one_last_message() -> None:
    outbox = ClientStream()
    outbox.finish(b"first", 200)
    outbox.finish(b"second", 500)
    assert not outbox.put(b"third")
    assert (outbox.take(), outbox.status) == ([b"first"], 200)


@loop_over(("size", "fitting"), [(1, MAX_QUEUED_FRAMES // 2), (MAX_QUEUED_BYTES // 2, 1)])
def test_source_is_paused_at_half_and_resumed_once(size: int, fitting: int) -> None:
    outbox, asked = ClientStream(), list[bool]()
    outbox.on_throttle = asked.append
    for _ in range(fitting):
        outbox.put(b"x" * size)
    assert asked == []
    outbox.put(b"x")
    outbox.put(b"x")
    assert asked == [True]
    outbox.take()
    outbox.take()
    assert asked == [True, False]


@loop_over("wake", ["put", "end", "stream", "suspend", "wake_reader", "finish"])
async def test_a_reader_is_woken_by_whatever_happens(wake: str) -> None:
    outbox = ClientStream()
    reading = asyncio.ensure_future(outbox.wait())
    await settled()
    assert not reading.done()
    getattr(outbox, wake)(*([b"x"] if wake in ("put", "finish") else []))
    async with asyncio.timeout(5):
        await reading


async def test_a_reader_does_not_wait_for_what_is_there() -> None:
    outbox = ClientStream()
    outbox.put(b"x")
    async with asyncio.timeout(5):
        await outbox.wait()


async def test_only_the_end_ends_a_wait_for_the_end() -> None:
    outbox = ClientStream()
    waiting = asyncio.ensure_future(outbox.wait_until_final())
    await settled()
    outbox.put(b"x")
    outbox.wake_reader()
    await settled()
    assert not waiting.done()
    outbox.finish(b"y")
    async with asyncio.timeout(5):
        await waiting


async def test_a_reader_that_was_replaced_does_not_take_the_new_ones_place() -> None:
    """The old reader wakes up after the new one lay down, and must not unhook its alarm."""
    outbox = ClientStream()
    old = asyncio.ensure_future(outbox.wait())
    await settled()
    outbox.wake_reader()
    outbox.is_nudged = False
    waiter = outbox.wait()
    waiting = waiter.send(None)
    await settled()
    assert old.done()
    outbox.put(b"x")
    assert waiting.done()
    waiter.close()


async def test_a_cancelled_reader_leaves_the_outbox_as_it_was() -> None:
    outbox = ClientStream()
    reading = asyncio.ensure_future(outbox.wait())
    await settled()
    reading.cancel()
    await asyncio.wait([reading])
    assert outbox.put(b"x")
    async with asyncio.timeout(5):
        await outbox.wait()


def test_events_after_a_given_one_are_replayed() -> None:
    replay = ResumableStream(3, ClientStream())
    assert [replay.record(data) for data in (b"a", b"b", b"c")] == ["3-1", "3-2", "3-3"]
    assert replay.events_after(1) == [("3-2", b"b"), ("3-3", b"c")]
    assert replay.events_after(0)[0] == ("3-1", b"a")
    assert replay.events_after(3) == replay.events_after(99) == []


def test_only_so_many_events_and_bytes_are_kept_for_replay() -> None:
    replay = ResumableStream(1, ClientStream())
    for number in range(MAX_REPLAY_EVENTS + 5):
        replay.record(b"%d" % number)
    kept = replay.events_after(0)
    assert (len(kept), kept[0]) == (MAX_REPLAY_EVENTS, ("1-6", b"5"))
    large = ResumableStream(1, ClientStream())
    for _ in range(5):
        large.record(b"x" * (MAX_REPLAY_BYTES // 2))
    assert len(large.events_after(0)) == 2
    large.record(b"x" * (MAX_REPLAY_BYTES + 1))
    assert large.events_after(0) == []
    assert large.record(b"y") == "1-7"
    assert large.events_after(0) == [("1-7", b"y")]


async def test_the_newest_reader_has_the_stream_and_the_one_before_is_woken() -> None:
    replay = ResumableStream(1, ClientStream())
    first = replay.attach()
    assert not replay.client_stream.is_nudged
    waiting = asyncio.ensure_future(replay.client_stream.wait())
    await settled()
    assert not waiting.done()
    second = replay.attach()
    async with asyncio.timeout(5):
        await waiting
    assert replay.reader_number == second != first


def test_what_a_stuck_reader_never_sent_is_for_the_one_after() -> None:
    replay = ResumableStream(1, ClientStream())
    for data in (b"a", b"b"):
        replay.client_stream.put(data)
    assert replay.next() == b"a"
    replay.client_stream.put(b"c")
    assert [replay.next(), replay.next(), replay.next()] == [b"b", b"c", None]


@loop_over(
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
    assert parse_event_id(event_id) == place
