"""Suggested views: the tools that a principal really calls, as an entry of the configuration."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from comity.audit.chain import AuditFilter, AuditRecord
from comity.audit.events import AuditType, event_of
from comity.config.toml_writer import toml_text
from comity.errors import MalformedMessage
from comity.policy.grants import ANY, parse_target
from comity.views.model import MAX_VIEW_TOOLS

MAX_EVENTS_READ: Final = 20_000
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]+")

type FindEntries = Callable[[AuditFilter, int], Awaitable[Sequence[AuditRecord]]]


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A tool that a principal called, and how often."""

    server: str
    tool: str
    calls: int


async def called_tools(
    find_entries: FindEntries, principal: str, since: datetime
) -> tuple[list[CalledTool], bool]:
    """Return the tools that a principal called, the most used first, and whether all were read.

    A name with a star is left out, because it would select other tools too.
    """
    sought = AuditFilter(
        actor=principal, types=(AuditType.TOOL_EXECUTED,), since=since, newest_first=True
    )
    records = await find_entries(sought, MAX_EVENTS_READ)
    # Decoding so many entries would hold the event loop.
    counts = await asyncio.to_thread(_count_calls, records)
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    found = [CalledTool(*place, calls) for place, calls in ordered[:MAX_VIEW_TOOLS]]
    return found, len(records) < MAX_EVENTS_READ and len(found) == len(ordered)


def _count_calls(records: Sequence[AuditRecord]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for record in records:
        event = event_of(record.body)
        if _is_selectable(event.server, event.tool):
            counts[event.server, event.tool] += 1
    return counts


def _is_selectable(server: str, tool: str) -> bool:
    if not server or not tool or ANY in tool:
        return False
    try:
        return parse_target(f"{server}/{tool}") == f"{server}/{tool}"
    except MalformedMessage:
        return False


def view_name_for(principal: str) -> str:
    """Return a name for the view of a principal: `ci` for `agent:ci`."""
    return _UNFIT.sub("-", principal.rpartition(":")[2]).strip("-_")[:64] or "view"


def suggested_entry(name: str, tools: Sequence[CalledTool]) -> str:
    """Return a view of these tools as the configuration holds it."""
    selected = "".join(
        f"  {toml_text(f'{each.server}/{each.tool}')},  # {each.calls} calls\n" for each in tools
    )
    return f"[[views]]\nname = {toml_text(name)}\nselect = [\n{selected}]\n"
