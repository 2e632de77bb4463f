"""What servers and webhooks push, and where it goes to, as the settings say."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comity.app.live_parts import LiveParts


@asynccontextmanager
async def join_pushes(live: LiveParts) -> AsyncGenerator[None]:
    yield
