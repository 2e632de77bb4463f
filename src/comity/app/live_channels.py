"""Places outside that words come from and go to, as the settings say."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comity.app.live_parts import LiveParts


@asynccontextmanager
async def join_channels(live: LiveParts) -> AsyncGenerator[None]:
    yield
