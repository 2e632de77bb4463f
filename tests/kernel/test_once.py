"""What many need is opened once."""

import asyncio

import pytest

from comity.kernel.once import Once
from comity.wire.errors import Unavailable
from tests.kernel.carriers import settled


class Opener:
    """Opens things when the test says so."""

    def __init__(self) -> None:
        self.opened = 0
        self.may_end = asyncio.Event()
        self.fails = False

    async def __call__(self) -> int:
        self.opened += 1
        number = self.opened
        await self.may_end.wait()
        if self.fails:
            raise Unavailable("no")
        return number


async def test_those_who_come_while_it_opens_share_what_is_opened() -> None:
    once, opener = Once[str, int](), Opener()
    waiting = [asyncio.ensure_future(once.get("a", opener)) for _ in range(3)]
    await settled()
    opener.may_end.set()
    assert await asyncio.gather(*waiting) == [1, 1, 1]
    assert await once.get("a", opener) == 1
    assert await once.get("b", opener) == 2


async def test_what_was_forgotten_is_opened_again() -> None:
    once, opener = Once[str, int](), Opener()
    opener.may_end.set()
    await once.get("a", opener)
    once.forget("a")
    once.forget("a")
    assert await once.get("a", opener) == 2


async def test_an_opening_that_failed_fails_for_all_who_waited_and_is_tried_again() -> None:
    once, opener = Once[str, int](), Opener()
    opener.fails = True
    waiting = [asyncio.ensure_future(once.get("a", opener)) for _ in range(2)]
    await settled()
    opener.may_end.set()
    for each in waiting:
        with pytest.raises(Unavailable):
            await each
    opener.fails = False
    assert await once.get("a", opener) == 2


async def test_one_who_stops_waiting_stops_nobody_else() -> None:
    once, opener = Once[str, int](), Opener()
    first = asyncio.ensure_future(once.get("a", opener))
    second = asyncio.ensure_future(once.get("a", opener))
    await settled()
    first.cancel()
    await settled()
    opener.may_end.set()
    assert await second == 1
    assert opener.opened == 1


async def test_what_nobody_waits_for_any_more_fails_without_a_word() -> None:
    once, opener = Once[str, int](), Opener()
    opener.fails = True
    waiting = asyncio.ensure_future(once.get("a", opener))
    await settled()
    waiting.cancel()
    opener.may_end.set()
    await settled()
    assert once.clear() == []


async def test_all_that_is_held_is_given_back_and_all_that_opens_is_stopped() -> None:
    once, opener, slow = Once[str, int](), Opener(), Opener()
    opener.may_end.set()
    await once.get("a", opener)
    waiting = asyncio.ensure_future(once.get("b", slow))
    await settled()
    assert once.clear() == [1]
    with pytest.raises(Unavailable):
        await waiting
    assert once.clear() == []


async def test_beyond_a_number_what_is_idle_and_longest_unused_is_let_go() -> None:
    once, opener = Once[str, int](), Opener()
    opener.may_end.set()
    for key in ("a", "b", "c"):
        await once.get(key, opener)
    assert await once.get("a", opener) == 1
    assert once.beyond(3, lambda _: True) == []
    assert once.beyond(1, lambda number: number != 2) == [3, 1]
    assert once.beyond(0, lambda _: False) == []
    assert once.clear() == [2]
