"""A server is waited for; what the gateway takes for itself does not count."""

import asyncio

import pytest

from comity.kernel.patience import Patience


async def test_a_deadline_stands_still_while_we_are_at_work() -> None:
    loop, turn = asyncio.get_running_loop(), asyncio.Event()
    async with asyncio.timeout(0.05) as limit:
        with Patience(limit).paused():
            loop.call_later(0.2, turn.set)
            await turn.wait()
            assert limit.when() is None
        assert limit.when() is not None


async def test_a_deadline_goes_on_where_it_stopped() -> None:
    async def wait() -> None:
        async with asyncio.timeout(0.05) as limit:
            with Patience(limit).paused():
                await asyncio.sleep(0)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await wait()


async def test_what_fails_at_work_leaves_the_deadline_running() -> None:
    async def fail() -> None:
        raise RuntimeError

    async with asyncio.timeout(60) as limit:
        with pytest.raises(RuntimeError), Patience(limit).paused():
            await fail()
        assert limit.when() is not None


async def test_without_a_deadline_there_is_nothing_to_stop() -> None:
    with Patience().paused():
        await asyncio.sleep(0)
