"""Operator API for views: their tools, their problems, and suggested views."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, NotRequired, TypedDict, cast

from msgspec import Meta

from comity.catalog.access import ToolReviewSource
from comity.errors import NOTHING_HERE, UPSTREAM_SLOW, MalformedMessage, Unavailable
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyQuery, RequestQuery
from comity.policy.snapshot import WallClock
from comity.views.model import PrefixRule, ToolOverride
from comity.views.service import ServedView, ViewService
from comity.views.suggestions import FindEntries, called_tools, suggested_entry, view_name_for
from comity.views.tools import ViewTool

SUGGESTION_TIMEOUT: Final = timedelta(seconds=10)


class ViewToolState(StrEnum):
    """Whether a view serves a tool now."""

    SERVED = "served"
    WITHHELD = "withheld"
    QUARANTINED = "quarantined"


class ViewSummary(TypedDict):
    """A view in a list. `served` counts the tools that clients can use now."""

    name: str
    title: str
    description: str
    path: str
    prefix: PrefixRule
    tools: int
    served: int
    problems: list[str]


class ViewListView(TypedDict):
    """All views."""

    views: list[ViewSummary]


class ToolChangesView(TypedDict):
    """The changes that a view makes to a tool. Secrets in values are removed."""

    title: NotRequired[str]
    description: NotRequired[str]
    arguments: NotRequired[Mapping[str, object]]
    defaults: NotRequired[Mapping[str, object]]
    annotations: NotRequired[Mapping[str, bool]]


class ViewToolView(TypedDict):
    """A tool of a view: its name there, the real tool, its state, and what has drifted."""

    name: str
    server: str
    tool: str
    state: ViewToolState
    reason: str
    drift: Sequence[str]
    changes: ToolChangesView
    # The digest of the definition now, which `definition` in the configuration can hold.
    definition: str


class ViewDetail(ViewSummary):
    """One view. `whole_servers` are those whose resources and prompts it serves too."""

    items: list[ViewToolView]
    whole_servers: list[str]


class ViewSuggestionQuery(RequestQuery, frozen=True):
    """The days of calls to read, and the name of the suggested view."""

    days: Annotated[int, Meta(ge=1, le=366)] = 30
    name: Annotated[str, Meta(max_length=64, pattern="^([A-Za-z0-9][A-Za-z0-9_-]*)?$")] = ""


class CalledToolView(TypedDict):
    """A tool that the principal called, and how often."""

    server: str
    tool: str
    calls: int


class ViewSuggestion(TypedDict):
    """A suggested view, as data and as an entry of the configuration."""

    principal: str
    name: str
    tools: list[CalledToolView]
    is_complete: bool
    config: str


class ViewsApi:
    """The routes for views."""

    def __init__(
        self,
        views: ViewService,
        reviews: ToolReviewSource,
        find_entries: FindEntries,
        redact: Callable[[object], object],
        clock: WallClock,
    ) -> None:
        self._views = views
        self._reviews = reviews
        self._find_entries = find_entries
        self._redact = redact
        self._clock = clock

    @property
    def routes(self) -> ApiRoutes:
        read = Permission.ADMIN_READ
        return (
            ApiRoute("GET", "/api/views", read, self._list_views, EmptyQuery),
            ApiRoute("GET", "/api/views/{view}", read, self._show_view, EmptyQuery),
            ApiRoute(
                "GET",
                "/api/views/suggestions/{principal:path}",
                read,
                self._suggest_view,
                ViewSuggestionQuery,
            ),
        )

    async def _list_views(self, request: ApiRequest[EmptyQuery]) -> ViewListView:
        """Return all views with the number of their tools and their problems."""
        return {"views": [self._summary(view) for view in self._views]}

    async def _show_view(self, request: ApiRequest[EmptyQuery]) -> ViewDetail:
        """Return one view with its tools."""
        view = self._views.get(request.path["view"])
        if view is None:
            raise MalformedMessage("there is no such view", NOTHING_HERE)
        return {
            **self._summary(view),
            "items": [self._tool_view(tool) for tool in view.compiled.tools],
            "whole_servers": [each for each in view.servers if view.is_whole(each)],
        }

    async def _suggest_view(self, request: ApiRequest[ViewSuggestionQuery]) -> ViewSuggestion:
        """Return a view of the tools that a principal called, from the audit log."""
        principal, asked = request.path["principal"], request.input
        since: datetime = self._clock() - timedelta(days=asked.days)
        try:
            async with asyncio.timeout(SUGGESTION_TIMEOUT.total_seconds()):
                tools, is_complete = await called_tools(self._find_entries, principal, since)
        except TimeoutError:
            raise Unavailable(
                "the audit log did not answer in time; ask for fewer days", UPSTREAM_SLOW
            ) from None
        name = asked.name or view_name_for(principal)
        return {
            "principal": principal,
            "name": name,
            "tools": [{"server": e.server, "tool": e.tool, "calls": e.calls} for e in tools],
            "is_complete": is_complete,
            "config": suggested_entry(name, tools) if tools else "",
        }

    def _summary(self, view: ServedView) -> ViewSummary:
        compiled, said = view.compiled, view.settings
        states = [self._state_of(tool)[0] for tool in compiled.tools]
        return {
            "name": said.name,
            "title": said.title,
            "description": said.description,
            "path": f"/views/{said.name}/mcp",
            "prefix": said.prefix,
            "tools": len(states),
            "served": states.count(ViewToolState.SERVED),
            "problems": list(compiled.problems),
        }

    def _tool_view(self, tool: ViewTool) -> ViewToolView:
        state, reason = self._state_of(tool)
        return {
            "name": tool.listed.key,
            "server": tool.entry.server,
            "tool": tool.entry.name,
            "state": state,
            "reason": reason,
            "drift": tool.drift,
            "changes": {} if tool.override is None else self._changes_view(tool.override),
            "definition": self._reviews.review_of(tool.entry).digest,
        }

    def _state_of(self, tool: ViewTool) -> tuple[ViewToolState, str]:
        if tool.withheld:
            return ViewToolState.WITHHELD, tool.withheld
        refusal = self._reviews.review_of(tool.entry).refusal
        if refusal is not None:
            return ViewToolState.QUARANTINED, refusal.reason
        return ViewToolState.SERVED, ""

    def _changes_view(self, override: ToolOverride) -> ToolChangesView:
        said: ToolChangesView = {}
        if override.title:
            said["title"] = override.title
        if override.description:
            said["description"] = override.description
        if override.arguments:
            said["arguments"] = self._without_secrets(override.arguments)
        if override.defaults:
            said["defaults"] = self._without_secrets(override.defaults)
        if override.annotations:
            said["annotations"] = override.annotations
        return said

    def _without_secrets(self, values: Mapping[str, object]) -> Mapping[str, object]:
        return cast("Mapping[str, object]", self._redact(dict(values)))
