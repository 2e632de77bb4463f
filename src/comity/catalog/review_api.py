"""Operator API for the permissions of servers and the accepted definitions of tools."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, NotRequired, Protocol, TypedDict

from msgspec import Meta, field

from comity.catalog.definitions import (
    DefinitionDifference,
    DefinitionSuspicion,
    ReviewState,
    reveal_hidden,
)
from comity.catalog.tool_reviews import ToolReviewService
from comity.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.http.api import ApiHandler, ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyQuery, NonEmptyText, RequestBody, ServerQuery, ShortText
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry
from comity.policy.grants import MAX_PLACES, PERMISSION_VERB, Effect, Grant
from comity.policy.risk import (
    SERVER_SUBJECT_PREFIX,
    PermissionOutcome,
    Risk,
    expand_aliases,
    is_writable_name,
    permission_risk,
)
from comity.policy.server_permissions import PermissionService

MAX_LISTED_TOOLS: Final = 1000
TOOLS_PER_STEP: Final = 200
MAX_SHOWN_TEXT: Final = 500


class PermissionView(TypedDict):
    """A permission that a server needs or has, and the decision on it.

    `reach` has the folders, hosts or programs that an approved permission is for.
    """

    server: str
    permission: str
    risk: Risk
    decision: PermissionOutcome
    by: str
    reason: str
    expires_at: datetime | None
    reach: list[str]
    declared: bool


class PermissionListView(TypedDict):
    """The permissions of one or all servers."""

    permissions: list[PermissionView]


class FindingView(TypedDict):
    """Something suspicious in a definition: how it was found, where, and what it is."""

    look: str
    where: str
    what: str


class AcceptanceView(TypedDict):
    """The acceptance of a definition: its author and its time."""

    digest: str
    by: str
    at: datetime | None


class DefinitionView(TypedDict):
    """The definition of a tool, and its review."""

    server: str
    tool: str
    name: str
    state: ReviewState
    digest: str
    risk: Risk
    permissions: list[str]
    validators: list[str]
    advised: list[str]
    findings: list[FindingView]
    accepted: AcceptanceView | None
    title: str | None
    description: str | None


class DefinitionPage(TypedDict):
    """One page of definitions that a person has not accepted, or of all."""

    tools: list[DefinitionView]
    more: bool
    next: NotRequired[str]


class DefinitionChange(TypedDict):
    """One difference between the accepted definition and the current one."""

    at: str
    before: str | None
    after: str | None


class ComparedDefinition(DefinitionView):
    """A definition with its differences from the accepted one, and the tools that it shadows."""

    shown: str
    changes: list[DefinitionChange]
    shadows: list[FindingView]


class AcceptedToolsView(TypedDict):
    """The tools whose definition is accepted now."""

    server: str
    accepted: Sequence[str]


class PermissionDecisionBody(RequestBody, frozen=True):
    """The permission of a server that an operator decides on."""

    server: NonEmptyText
    permission: NonEmptyText
    justification: ShortText = ""
    expires_in_seconds: Annotated[int, Meta(ge=1, le=366 * 86_400)] | None = None
    # The folders, hosts or programs to add. Only an approval has them.
    reach: Annotated[tuple[ShortText, ...], Meta(max_length=MAX_PLACES)] = ()

    @property
    def expires_at(self) -> datetime | None:
        """The time when the decision expires; None for never."""
        seconds = self.expires_in_seconds
        return None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds)


class DefinitionPageQuery(ServerQuery, frozen=True):
    """Whether to list also the tools whose definition is accepted."""

    all: str = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED_TOOLS)] = MAX_LISTED_TOOLS
    # The number of tools of the pages before.
    cursor: Annotated[int, Meta(ge=0, le=10**9)] = 0


class DefinitionAcceptanceBody(RequestBody, frozen=True):
    """The tools of a server to accept, each with the digest of its definition."""

    server: NonEmptyText
    tools: dict[str, str] = field(default_factory=dict[str, str])


class ReviewGrantWriter(Protocol):
    """Writes and revokes grants on behalf of an operator."""

    async def put(
        self, actor: Actor, grant: Grant, trace: str = "", *, keeps_reach: bool = False
    ) -> Grant: ...
    async def revoke(self, actor: Actor, subject: str, verb: str, target: str) -> bool: ...


class ServerNameSource(Protocol):
    """Provides the names of all servers."""

    def names(self) -> Iterable[str]: ...


class CareApi:
    """The endpoints with which operators decide on permissions of servers and accept tools."""

    def __init__(
        self, tool_reviews: ToolReviewService, servers: ServerNameSource, grants: ReviewGrantWriter
    ) -> None:
        self._tool_reviews = tool_reviews
        self._servers = servers
        self._grants = grants

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.ADMIN_READ, Permission.ADMIN_WRITE
        decide, body = self._decision_handler, PermissionDecisionBody
        return (
            ApiRoute("GET", "/api/permissions", read, self._list_permissions, ServerQuery),
            ApiRoute("POST", "/api/permissions/approve", write, decide(Effect.ALLOW), body),
            ApiRoute("POST", "/api/permissions/deny", write, decide(Effect.DENY), body),
            ApiRoute("POST", "/api/permissions/reset", write, decide(None), body),
            ApiRoute("GET", "/api/definitions", read, self._list_tools, DefinitionPageQuery),
            ApiRoute(
                "GET", "/api/definitions/{server}/{tool}", read, self._compare_tool, EmptyQuery
            ),
            ApiRoute(
                "POST", "/api/definitions/accept", write, self._accept, DefinitionAcceptanceBody
            ),
        )

    async def _list_permissions(self, request: ApiRequest[ServerQuery]) -> PermissionListView:
        service = self._tool_reviews.permission_service
        servers = self._requested_servers(request.input.server)
        listed = [each for server in servers for each in permission_views(service, server)]
        return {"permissions": listed}

    def _decision_handler(self, effect: Effect | None) -> ApiHandler[PermissionDecisionBody]:
        """Return the handler that sets this effect for a permission; None revokes the decision."""

        async def handle(request: ApiRequest[PermissionDecisionBody]) -> PermissionListView:
            wanted = request.input
            server, names = self._require_server(wanted.server), expand_aliases([wanted.permission])
            for name in names:
                if not is_writable_name(name):
                    raise MalformedMessage(
                        f"no permission can be named {name!r:.200}", INVALID_PARAMS
                    )
                await self._write(request.actor, name, effect, wanted)
            service = self._tool_reviews.permission_service
            service.permissions_of(server)
            await service.wait_until_told()
            views = permission_views(service, server)
            return {"permissions": [each for each in views if each["permission"] in names]}

        return handle

    async def _write(
        self, actor: Actor, name: str, effect: Effect | None, wanted: PermissionDecisionBody
    ) -> None:
        subject = SERVER_SUBJECT_PREFIX + wanted.server
        if wanted.reach and effect is not Effect.ALLOW:
            raise MalformedMessage("only an approval has a reach", INVALID_PARAMS)
        if effect is None:
            await self._grants.revoke(actor, subject, PERMISSION_VERB, name)
            return
        why, ends = wanted.justification, wanted.expires_at
        grant = Grant(subject, PERMISSION_VERB, name, effect, justification=why, expires_at=ends)
        grant = replace(grant, reach=wanted.reach)
        await self._grants.put(actor, grant, keeps_reach=effect is Effect.ALLOW)

    async def _accept(self, request: ApiRequest[DefinitionAcceptanceBody]) -> AcceptedToolsView:
        server = self._require_server(request.input.server)
        accepted = await self._tool_reviews.accept(server, request.input.tools, request.actor.party)
        return {"server": server, "accepted": accepted}

    async def _list_tools(self, request: ApiRequest[DefinitionPageQuery]) -> DefinitionPage:
        """Return one page of the tools that are not accepted, or of all tools."""
        servers, everything = (
            self._requested_servers(request.input.server),
            request.input.all == "true",
        )
        found: list[DefinitionView] = []
        number = 0
        for server in servers:
            for offer in self._tool_reviews.entries_of(server):
                number += 1
                # Yield to the event loop, since a list may be long.
                if number % TOOLS_PER_STEP == 0:
                    await asyncio.sleep(0)
                if number <= request.input.cursor:
                    continue
                if len(found) >= request.input.limit:
                    return {"tools": found, "more": True, "next": str(number - 1)}
                if (
                    everything
                    or self._tool_reviews.review_of(offer).state is not ReviewState.ACCEPTED
                ):
                    found.append(self._summarize_tool(offer))
        return {"tools": found, "more": False}

    def _summarize_tool(self, entry: CatalogEntry) -> DefinitionView:
        standing = self._tool_reviews.review_of(entry)
        accepted = self._tool_reviews.accepted_definitions.get(entry.server, entry.name)
        return {
            "server": entry.server,
            "tool": entry.name,
            "name": entry.key,
            "state": standing.state,
            "digest": standing.digest,
            "risk": standing.risk,
            "permissions": list(standing.permissions),
            "validators": list(standing.validators),
            "advised": list(standing.advisory_validators),
            "findings": [_finding_view(each) for each in standing.findings],
            "accepted": None
            if accepted is None
            else {"digest": accepted.digest, "by": accepted.by, "at": accepted.at},
            "title": _text_of(entry, "title"),
            "description": _text_of(entry, "description"),
        }

    async def _compare_tool(self, request: ApiRequest[EmptyQuery]) -> ComparedDefinition:
        """Return a tool, its differences from the accepted definition, and its findings."""
        server, tool = self._require_server(request.path["server"]), request.path["tool"]
        offer = next(
            (each for each in self._tool_reviews.entries_of(server) if each.name == tool), None
        )
        if offer is None:
            raise MalformedMessage(f"server {server!r} lists no tool {tool!r:.200}", NOTHING_HERE)
        after = self._tool_reviews.canonical_definition_of(offer)
        told = await self._tool_reviews.differences_of(offer)
        shadows = [_finding_view(each) for each in self._tool_reviews.find_shadowed(offer)]
        return {
            **self._summarize_tool(offer),
            "shown": reveal_hidden(after.decode()),
            "changes": [change_view(each) for each in told],
            "shadows": shadows,
        }

    def _requested_servers(self, server: str | None) -> list[str]:
        return list(self._servers.names()) if server is None else [self._require_server(server)]

    def _require_server(self, server: str) -> str:
        if server not in set(self._servers.names()):
            raise MalformedMessage(f"there is no server {server!r:.200}", NOTHING_HERE)
        return server


def _text_of(entry: CatalogEntry, member: str) -> str | None:
    try:
        said = jsonrpc.decode_text(jsonrpc.decode_members(entry.definition).get(member))
    except MalformedMessage:
        return None
    return None if said is None else said[:MAX_SHOWN_TEXT]


def change_view(difference: DefinitionDifference) -> DefinitionChange:
    return {
        "at": difference.pointer,
        "before": difference.before,
        "after": difference.after,
    }


def permission_views(service: PermissionService, server: str) -> list[PermissionView]:
    """Return the permissions that a server needs or has, with the decision on each."""
    declared = service.permissions_of(server).declared
    return [
        {
            "server": server,
            "permission": name,
            "risk": permission_risk(name),
            "decision": each.decision,
            "by": each.by,
            "reason": each.reason,
            "expires_at": each.expires_at,
            "reach": list(each.reach),
            "declared": name in declared,
        }
        for name, each in service.decisions_of(server).items()
    ]


def _finding_view(found: DefinitionSuspicion) -> FindingView:
    return {"look": str(found.kind), "where": found.location, "what": found.description}
