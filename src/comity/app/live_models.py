"""Models, as the settings name them, and who may ask them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comity.app.live_parts import LiveParts


@asynccontextmanager
async def join_models(live: LiveParts) -> AsyncGenerator[None]:
    yield
