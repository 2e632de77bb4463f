"""Turns: what is said to a model, and what it does with tools, as the settings say."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final

from comity.adapters.token_counts import open_tokens
from comity.app.live_parts import LiveParts
from comity.config import Settings
from comity.kernel.audit_recorder import kind_of
from comity.kernel.identity import Identity
from comity.kernel.live.hooks_after import After
from comity.kernel.live.hooks_before import Before
from comity.kernel.live.turn_echoes import Echoes
from comity.kernel.live.turn_taking import Company
from comity.kernel.live.turns import Pace, TurnTaker
from comity.kernel.live.using_tools import OWN, UsingTools
from comity.kernel.toolbelts import Outfit, Toolbelts
from comity.rules.toolbelt import Budget
from comity.rules.turns import Bounds
from comity.surfaces.turns_api import TurnsApi
from comity.wire.contents import said
from comity.wire.parties import LOCAL, Actor

_LOOK_SECONDS: Final = 0.05


@asynccontextmanager
async def join_turns(live: LiveParts) -> AsyncGenerator[None]:
    """Take turns, until the way out; what is then under way is for other nodes, or later."""
    taker = make_turns(live)
    live.turns = taker
    judge = live.parts.snapshot.grants
    live.parts.rooms.update(TurnsApi(taker, judge, live.settings.turn_party).rooms)
    working = asyncio.ensure_future(_work(live, taker))
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await taker.stop()


async def _work(live: LiveParts, taker: TurnTaker) -> None:
    servers, journal = live.parts.servers, live.parts.journaling.journal
    # Turns wait for those who have to do with them: servers that are still starting look at
    # nothing, and words have no place to go to before there is one.
    while not servers.is_started or live.places is None:  # noqa: ASYNC110 (nobody tells of it)
        await asyncio.sleep(_LOOK_SECONDS)
    await servers.first_tries(live.settings.start_deadline)
    # A chain is one process's alone, and so is its name.
    await journal.flush()
    if journal.head is not None:
        await taker.run(journal.head.node)


def make_turns(live: LiveParts) -> TurnTaker:
    settings, parts, bounds = live.settings, live.parts, bounds_of(live.settings)
    company = Company(
        parts.snapshot.records.conversations,
        Before(live.hosting, live.hooks, bounds),
        After(live.hosting, live.hooks, bounds, _guards(live)),
        UsingTools(parts.everything, _belts(live), bounds),
        Echoes(),
        parts.journaling.redactor.hide,
        actor_by(parts.identity),
        lambda: live.engine,
        lambda: live.places,
        bounds,
        said(settings.turn_system),
    )
    pace = Pace(settings.turns_at_once, kept=settings.turns_kept)
    return TurnTaker(company, live.hosting.noting, pace, parts.journaling.journal.clock)


def _guards(live: LiveParts) -> Callable[[], Collection[str]]:
    """Without whose look nothing goes out."""

    def guards() -> Collection[str]:
        policies = (
            (name, live.parts.caring.live_policy(name)) for name in live.parts.servers.names()
        )
        return [name for name, each in policies if each.rewrites and each.fails_closed]

    return guards


def _belts(live: LiveParts) -> Toolbelts:
    """What a model keeps at hand where not all tools fit: pinned, and what it used."""
    settings = live.settings
    most = settings.turn_tool_tokens
    own = sum(map(len, OWN)) // 3
    budget = Budget(most, max(most // 4, min(own, most)), 0, most // 2)
    outfit = Outfit(budget, settings.pinned_tools, OWN, settings.idle_session.total_seconds())
    now = asyncio.get_running_loop().time
    return Toolbelts(live.parts.everything.gate, open_tokens(os.environ), now, outfit)


def bounds_of(settings: Settings) -> Bounds:
    return Bounds(
        settings.turn_before,
        settings.turn_after,
        settings.turn_deadline,
        settings.turn_steps,
        settings.turn_tools,
        settings.turn_depth,
        settings.turn_attempts,
        settings.turn_hook_bytes,
        settings.turn_injected_tokens,
        settings.turn_result_length,
        settings.turn_message_length,
        settings.turn_reply_tokens,
        settings.turn_tool_tokens,
        settings.turn_past_turns,
    )


def actor_by(identity: Identity) -> Callable[[str], Actor | None]:
    """In whose name tools are used; None where that is nobody any more."""

    def actor_of(party: str) -> Actor | None:
        if party == LOCAL.party:
            return LOCAL if identity.is_local else None
        actor = identity.named(party) or Actor(party, kind_of(party), "turn")
        return actor if identity.stands(actor) else None

    return actor_of
