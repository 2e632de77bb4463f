"""Servers that do more than answer, joined with all that they need before the first one starts."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from comity.app.live_channels import join_channels
from comity.app.live_models import join_models
from comity.app.live_parts import Joined, LiveParts
from comity.app.live_pushes import join_pushes
from comity.app.live_scopes import join_scopes
from comity.app.live_state import join_state
from comity.app.live_turns import join_turns
from comity.config import Settings
from comity.kernel.live.hosting import Hosting

_JOINS = (join_scopes, join_state, join_models, join_turns, join_channels, join_pushes)


@asynccontextmanager
async def lively(settings: Settings, parts: Joined, hosting: Hosting) -> AsyncGenerator[None]:
    """Until the way out; what is joined first ends last."""
    live = LiveParts(settings, parts, hosting)
    async with AsyncExitStack() as stack:
        for join in _JOINS:
            await stack.enter_async_context(join(live))
        try:
            yield
        finally:
            hosting.stop()
