"""Tools that clients find, ask for and keep, as the settings say. (MGP §16)"""

import asyncio
import os
from collections.abc import Iterable

from comity.adapters.token_counts import open_tokens
from comity.app.caring import Caring
from comity.app.governing import Governance
from comity.app.journaling import Journaling
from comity.config import Settings
from comity.kernel.discovering import Discovering
from comity.kernel.finding import Finder
from comity.kernel.meta_tools import MetaTools
from comity.kernel.requesting import Requesting
from comity.kernel.search_log import SearchLog
from comity.kernel.switchboard import AllServers
from comity.kernel.toolbelts import Outfit, Toolbelts
from comity.kernel.withheld import Withheld
from comity.rules.meta_tools import DEFINITIONS
from comity.rules.toolbelt import Budget


def have_tools_found(
    settings: Settings,
    finder: Finder,
    everything: AllServers,
    caring: Caring,
    governance: Governance,
    journaling: Journaling,
) -> Requesting:
    """Join all of it at the door of all servers; gives who is asked for tools that are lacking."""
    is_on = settings.discovery_mode == "on"
    gate, judge = everything.gate, governance.snapshot.grants
    now = asyncio.get_running_loop().time
    belts = Toolbelts(gate, open_tokens(os.environ), now, _outfit(settings, is_on=is_on))
    log = SearchLog(journaling.journal, journaling.redact, searches=settings.log_searches)
    standing = caring.tools.standing
    limits = gate.admission.limits
    discovering = Discovering(finder, belts, standing, limits, log, settings.tool_results)

    def servers() -> Iterable[str]:
        return sorted(server.name for server in everything.servers)

    withheld = Withheld(gate.catalog, judge, caring.tools, lambda: caring.asked, servers)
    requesting = Requesting(discovering, judge, withheld)
    discovering.join(everything.methods)
    requesting.join(everything.methods)
    everything.own_tools = MetaTools(discovering, requesting, is_on=is_on)
    if is_on:
        belts.told = everything.subscriptions.relisted
        everything.subscriptions.lists_others = belts.is_other
        # Whoever has to search should not be the one who waits until all is read.
        finder.index.begin()
    return requesting


def _outfit(settings: Settings, *, is_on: bool) -> Outfit:
    budget = Budget(
        settings.tool_tokens,
        settings.tool_pinned_reserve,
        settings.tool_discovery_reserve,
        settings.tool_cache_limit,
    )
    own = tuple(DEFINITIONS.values()) if is_on else ()
    return Outfit(budget, settings.pinned_tools, own, settings.idle_session.total_seconds())
