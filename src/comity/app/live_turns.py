"""Turns: what is said to a model, and what it does with tools, as the settings say."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from comity.app.live_parts import LiveParts


@asynccontextmanager
async def join_turns(live: LiveParts) -> AsyncGenerator[None]:
    yield
