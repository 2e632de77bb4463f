"""Waiting until a store may hold something new: until somebody stirs, but not for too long."""

import asyncio
from datetime import timedelta


async def stirred(stir: asyncio.Event, within: timedelta) -> None:
    """Until it is set, and then it is not any more; or until the time is over."""
    try:
        async with asyncio.timeout(within.total_seconds()):
            await stir.wait()
    except TimeoutError:
        return
    stir.clear()
