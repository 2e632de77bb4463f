"""The queue of one stream: bounded, in order, ending only itself."""

import asyncio

import pytest

from comity.kernel.outbox import MOST_BYTES, MOST_FRAMES, Outbox
from tests.kernel.carriers import settled


def test_what_was_put_is_taken_in_order_and_once() -> None:
    outbox = Outbox()
    assert [outbox.put(b"%d" % number) for number in range(3)] == [True] * 3
    assert outbox.take() == [b"0", b"1", b"2"]
    assert outbox.take() == []


def test_an_outbox_is_bounded_by_its_number_of_messages() -> None:
    outbox = Outbox()
    assert all(outbox.put(b"x") for _ in range(MOST_FRAMES))
    assert not outbox.put(b"x")
    assert outbox.overrun
    assert outbox.final
    assert len(outbox.frames) == MOST_FRAMES


def test_an_outbox_is_bounded_by_its_bytes() -> None:
    outbox = Outbox()
    quarter = b"x" * (MOST_BYTES // 4)
    assert all(outbox.put(quarter) for _ in range(4))
    assert not outbox.put(b"x")
    assert outbox.overrun


def test_room_that_was_taken_can_be_used_again() -> None:
    outbox = Outbox()
    for _ in range(5):
        assert outbox.put(b"x" * (MOST_BYTES - 1))
        outbox.take()
    assert not outbox.overrun


def test_an_overrun_of_one_outbox_ends_no_other() -> None:
    slow, quick = Outbox(), Outbox()
    while slow.put(b"x"):
        quick.put(b"x")
        quick.take()
    assert (slow.final, quick.final) == (True, False)
    assert quick.put(b"x")


def test_an_answer_is_never_refused_for_want_of_room() -> None:
    outbox = Outbox()
    for _ in range(MOST_FRAMES):
        outbox.put(b"x")
    outbox.finish(b"answer", 404)
    assert outbox.take()[-1] == b"answer"
    assert (outbox.final, outbox.overrun, outbox.status) == (True, False, 404)


def test_there_is_only_one_last_message() -> None:
    outbox = Outbox()
    outbox.finish(b"first", 200)
    outbox.finish(b"second", 500)
    assert not outbox.put(b"third")
    assert (outbox.take(), outbox.status) == ([b"first"], 200)


def test_the_source_is_asked_to_pause_at_half_and_to_go_on_once() -> None:
    outbox, asked = Outbox(), list[bool]()
    outbox.throttle = asked.append
    for _ in range(MOST_FRAMES // 2):
        outbox.put(b"x")
    assert asked == []
    outbox.put(b"x")
    outbox.put(b"x")
    assert asked == [True]
    outbox.take()
    outbox.take()
    assert asked == [True, False]


def test_the_source_is_asked_to_pause_at_half_of_the_bytes() -> None:
    outbox, asked = Outbox(), list[bool]()
    outbox.throttle = asked.append
    outbox.put(b"x" * (MOST_BYTES // 2 + 1))
    assert asked == [True]


@pytest.mark.parametrize("wake", ["put", "end", "stream", "suspend", "nudge", "finish"])
async def test_a_reader_is_woken_by_whatever_happens(wake: str) -> None:
    outbox = Outbox()
    reading = asyncio.ensure_future(outbox.wait())
    await settled()
    assert not reading.done()
    getattr(outbox, wake)(*([b"x"] if wake in ("put", "finish") else []))
    async with asyncio.timeout(5):
        await reading


async def test_a_reader_does_not_wait_for_what_is_there() -> None:
    outbox = Outbox()
    outbox.put(b"x")
    async with asyncio.timeout(5):
        await outbox.wait()


async def test_only_the_end_ends_a_wait_for_the_end() -> None:
    outbox = Outbox()
    waiting = asyncio.ensure_future(outbox.until_final())
    await settled()
    outbox.put(b"x")
    outbox.nudge()
    await settled()
    assert not waiting.done()
    outbox.finish(b"y")
    async with asyncio.timeout(5):
        await waiting


async def test_a_reader_that_was_replaced_does_not_take_the_new_ones_place() -> None:
    """The old reader wakes up after the new one lay down, and must not unhook its alarm."""
    outbox = Outbox()
    old = asyncio.ensure_future(outbox.wait())
    await settled()
    outbox.nudge()
    outbox.nudged = False
    waiter = outbox.wait()
    waiting = waiter.send(None)
    await settled()
    assert old.done()
    outbox.put(b"x")
    assert waiting.done()
    waiter.close()


async def test_a_cancelled_reader_leaves_the_outbox_as_it_was() -> None:
    outbox = Outbox()
    reading = asyncio.ensure_future(outbox.wait())
    await settled()
    reading.cancel()
    await asyncio.wait([reading])
    assert outbox.put(b"x")
    async with asyncio.timeout(5):
        await outbox.wait()
