"""Waiting for a store to stir: at once where it has, and never for longer than was said."""

import asyncio
from datetime import timedelta

from comity.adapters.stirring import stirred


async def test_what_has_stirred_is_not_waited_for_and_counts_once() -> None:
    stir = asyncio.Event()
    stir.set()
    async with asyncio.timeout(5):
        await stirred(stir, timedelta(hours=1))
    assert not stir.is_set()


async def test_nobody_waits_longer_than_was_said() -> None:
    async with asyncio.timeout(5):
        await stirred(asyncio.Event(), timedelta(milliseconds=1))
