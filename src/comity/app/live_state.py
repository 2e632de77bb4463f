"""The state that servers leave with the gateway, kept in its store."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from comity.adapters.json_patches import JsonPatches
from comity.app.live_parts import LiveParts
from comity.config import Settings
from comity.kernel.catalog import Kind
from comity.kernel.live.states import StateOptions, States
from comity.kernel.live.states_bearing import StateBearer
from comity.rules.states import Retention
from comity.surfaces.state_api import StateApi
from comity.wire.errors import Unavailable

log = logging.getLogger(__name__)

TENDED_EVERY_SECONDS: Final = 3_600.0


@asynccontextmanager
async def join_state(live: LiveParts) -> AsyncGenerator[None]:
    """Have calls carry state, and operators see it, until the way out."""
    parts, hosting = live.parts, live.hosting
    states = States(parts.snapshot.records.states, JsonPatches(), options_of(live.settings))
    catalog = parts.everything.gate.catalog

    def definition_of(server: str, tool: str) -> bytes | None:
        offer = catalog.offered(server, Kind.TOOL, tool)
        return None if offer is None else offer.definition

    hosting.parts.bearers.append(StateBearer(states, hosting.noting, definition_of))
    parts.rooms.update(StateApi(states, hosting, parts.governance.administration).rooms)
    tending = asyncio.ensure_future(_tended(states))
    try:
        yield
    finally:
        tending.cancel()
        await asyncio.gather(tending, return_exceptions=True)


def options_of(settings: Settings) -> StateOptions:
    retention = Retention(settings.state_keep, settings.state_keep_for or None)
    return StateOptions(settings.state_bytes, retention, settings.state_rollback_deadline)


async def _tended(states: States) -> None:
    """What is kept for long enough goes, also where nothing new comes."""
    while True:
        try:
            await states.tend()
        except Unavailable as error:
            log.info("state is not looked through now: %s", error)
        await asyncio.sleep(TENDED_EVERY_SECONDS)
