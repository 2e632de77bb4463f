"""Operator API for the first view of the console: counts, and the traffic of the last hour."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from comity.approvals.model import ApprovalStore
from comity.approvals.service import OPEN_STATES
from comity.catalog.catalog import Catalog
from comity.console.samples import SAMPLE_SECONDS, SampleView, TrafficSampler
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyQuery
from comity.mcp.entries import EntryKind
from comity.mcp.mgp import ServerLifecycleState
from comity.servers.service import ServerService


class OverviewView(TypedDict):
    """The gateway at a glance. `series` has a sample for each `sample_seconds` of an hour.

    `quarantined` counts the tools that no client sees before a person has looked at them.
    """

    servers: Mapping[ServerLifecycleState, int]
    tools: int
    quarantined: int
    open_approvals: int
    principals: int
    sessions: int
    sample_seconds: int
    series: Sequence[SampleView]
    # The newest sample of each node, by its name.
    nodes: Mapping[str, SampleView]


@dataclass(frozen=True, slots=True)
class OverviewApi:
    """The route of the overview."""

    servers: ServerService
    catalog: Catalog
    withheld_definitions: Callable[[str], Awaitable[Mapping[str, str]]]
    approvals: ApprovalStore
    count_principals: Callable[[], int]
    count_sessions: Callable[[], int]
    sampler: TrafficSampler

    @property
    def routes(self) -> ApiRoutes:
        read = Permission.ADMIN_READ
        return (ApiRoute("GET", "/api/overview", read, self._show_overview, EmptyQuery),)

    async def _show_overview(self, _: ApiRequest[EmptyQuery]) -> OverviewView:
        """Return counts, and the traffic of all nodes in the last hour."""
        names = self.servers.names()
        withheld = [len(await self.withheld_definitions(name)) for name in names]
        states = Counter(server.state for server in self.servers)
        return {
            "servers": {state: states[state] for state in ServerLifecycleState if states[state]},
            "tools": sum(self.catalog.count(name, EntryKind.TOOL) for name in names),
            "quarantined": sum(withheld),
            "open_approvals": await self.approvals.count(OPEN_STATES),
            "principals": self.count_principals(),
            "sessions": self.count_sessions(),
            "sample_seconds": SAMPLE_SECONDS,
            "series": self.sampler.series(int(time.time())),
            "nodes": self.sampler.latest(),
        }
