"""How far live servers may reach, as the settings and people say."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comity.app.live_parts import LiveParts


@asynccontextmanager
async def join_scopes(live: LiveParts) -> AsyncGenerator[None]:
    journaling = live.parts.journaling
    live.hosting.noting.attach(journaling.journal, journaling.redact)
    yield
