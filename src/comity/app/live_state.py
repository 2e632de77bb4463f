"""The state that servers leave with the gateway, kept in its store."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comity.app.live_parts import LiveParts


@asynccontextmanager
async def join_state(live: LiveParts) -> AsyncGenerator[None]:
    yield
