"""Places at a server: so many at once, a bounded wait, and nothing remembered of the unused."""

import asyncio

import pytest

from comity.errors import EXHAUSTED, Unavailable
from comity.registry.service import ConcurrencyLimit
from tests.support.carriers import until


async def test_whoever_finds_no_place_is_told_after_a_while() -> None:
    places = ConcurrencyLimit(1, 0.01)
    async with places.acquire("a"):
        with pytest.raises(Unavailable, match="all 1 places at server 'a' are taken") as refused:
            async with places.acquire("a"):
                pass
        assert refused.value.fault is EXHAUSTED
        async with places.acquire("b"):
            assert len(places) == 2
    assert len(places) == 0


async def test_a_place_that_comes_free_is_taken() -> None:
    places, entered = ConcurrencyLimit(1, 10), asyncio.Event()

    async def wait() -> None:
        async with places.acquire("a"):
            entered.set()

    async with places.acquire("a"):
        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        assert not entered.is_set()
    await until(entered.is_set)
    await waiting
    assert len(places) == 0


async def test_who_goes_away_while_waiting_takes_no_place_along() -> None:
    places = ConcurrencyLimit(1, 10)
    async with places.acquire("a"):
        waiting = asyncio.ensure_future(places.acquire("a").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert len(places) == 0
    async with places.acquire("a"):
        pass
