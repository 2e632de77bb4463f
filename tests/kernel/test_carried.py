"""Each end of a stream between nodes by itself: order, bounds, and one end."""

import asyncio

import pytest

from comity.kernel.carried import WINDOW, Incoming, Outgoing
from comity.wire.carried import Act, Piece
from comity.wire.errors import Unavailable
from tests.kernel.carriers import settled


def reading(said: list[tuple[Act, int]]) -> Incoming:
    forgotten = said.clear
    return Incoming(
        "b", lambda act, count: said.append((act, count)), lambda: forgotten, 2 * WINDOW, None
    )


def test_pieces_are_taken_in_order_or_not_at_all() -> None:
    stream = Outgoing("a")
    assert stream.takes(Piece(Act.OPEN, "a", number=0))
    assert not stream.takes(Piece(Act.SAY, "a", number=2))
    assert stream.takes(Piece(Act.SAY, "a", number=1))
    assert [stream.next(), stream.next()] == [0, 1]


async def test_what_came_before_the_end_is_still_read() -> None:
    stream = reading([])
    stream.put(b"one", False)
    stream.end(Unavailable("gone"))
    stream.put(b"two", False)
    assert await anext(stream) == b"one"
    with pytest.raises(Unavailable, match="gone"):
        await anext(stream)


async def test_an_end_amid_a_message_is_no_end() -> None:
    stream = reading([])
    stream.put(b"half", True)
    stream.end()
    with pytest.raises(Unavailable, match="amid a message"):
        await anext(stream)


async def test_the_other_end_is_told_what_was_taken_and_once_that_no_more_is_wanted() -> None:
    said: list[tuple[Act, int]] = []
    stream = reading(said)
    stream.put(bytes(WINDOW // 4), False)
    stream.put(b"x", False)
    await anext(stream)
    assert said == [(Act.CREDIT, WINDOW // 4)]
    stream.close()
    stream.close()
    assert said == [(Act.CREDIT, WINDOW // 4), (Act.CANCEL, 0)]


async def test_who_waits_for_room_is_told_that_nobody_reads() -> None:
    stream = Outgoing("a")
    await stream.room_for(2 * WINDOW)
    waiting = asyncio.ensure_future(stream.room_for(1))
    await settled()
    stream.credit(1)
    await settled()
    assert not waiting.done()
    stream.stop()
    with pytest.raises(Unavailable, match="nobody reads"):
        await waiting
    with pytest.raises(Unavailable, match="nobody reads"):
        await stream.room_for(1)
