"""Operator API for the permissions of servers and the accepted definitions of tools."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Protocol

from msgspec import Meta, field

from comity.catalog.definitions import (
    DefinitionSuspicion,
    ReviewState,
    list_differences,
    reveal_hidden,
)
from comity.catalog.tool_reviews import ToolReviewService
from comity.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.http.api import ApiHandler, ApiRequest, ApiRoute, ApiRoutes, Permission, View
from comity.http.api_input import EmptyQuery, NonEmptyText, RequestBody, ServerQuery, ShortText
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry
from comity.policy.grants import PERMISSION_VERB, Effect, Grant
from comity.policy.risk import (
    SERVER_SUBJECT_PREFIX,
    expand_aliases,
    is_writable_name,
    permission_risk,
)
from comity.policy.server_permissions import ServerPermissions

MAX_LISTED_TOOLS: Final = 1000
TOOLS_PER_STEP: Final = 200


class PermissionDecisionBody(RequestBody, frozen=True):
    """The permission of a server that an operator decides on."""

    server: NonEmptyText
    permission: NonEmptyText
    justification: ShortText = ""
    expires_in_seconds: Annotated[int, Meta(ge=1, le=366 * 86_400)] | None = None

    @property
    def expires_at(self) -> datetime | None:
        """The time when the decision expires; None for never."""
        seconds = self.expires_in_seconds
        return None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds)


class DefinitionPageQuery(ServerQuery, frozen=True):
    """Whether to list also the tools whose definition is accepted."""

    all: str = ""


class DefinitionAcceptanceBody(RequestBody, frozen=True):
    """The tools of a server to accept, each with the digest of its definition."""

    server: NonEmptyText
    tools: dict[str, str] = field(default_factory=dict[str, str])


class ReviewGrantWriter(Protocol):
    """Writes and revokes grants on behalf of an operator."""

    async def put(self, actor: Actor, grant: Grant) -> Grant: ...
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

    async def _list_permissions(self, request: ApiRequest[ServerQuery]) -> View:
        permits = [
            self._tool_reviews.permission_service.permissions_of(server)
            for server in self._requested_servers(request.input.server)
        ]
        return {"permissions": [each for permit in permits for each in permission_views(permit)]}

    def _decision_handler(self, effect: Effect | None) -> ApiHandler[PermissionDecisionBody]:
        """Return the handler that sets this effect for a permission; None revokes the decision."""

        async def handle(request: ApiRequest[PermissionDecisionBody]) -> View:
            wanted = request.input
            server, names = self._require_server(wanted.server), expand_aliases([wanted.permission])
            for name in names:
                if not is_writable_name(name):
                    raise MalformedMessage(
                        f"no permission can be named {name!r:.200}", INVALID_PARAMS
                    )
                await self._write(request.actor, name, effect, wanted)
            permit = self._tool_reviews.permission_service.permissions_of(server)
            await self._tool_reviews.permission_service.wait_until_told()
            needs = [each for each in permission_views(permit) if each["permission"] in names]
            return {"permissions": needs}

        return handle

    async def _write(
        self, actor: Actor, name: str, effect: Effect | None, wanted: PermissionDecisionBody
    ) -> None:
        subject = SERVER_SUBJECT_PREFIX + wanted.server
        if effect is None:
            await self._grants.revoke(actor, subject, PERMISSION_VERB, name)
            return
        why, ends = wanted.justification, wanted.expires_at
        grant = Grant(subject, PERMISSION_VERB, name, effect, justification=why, expires_at=ends)
        await self._grants.put(actor, grant)

    async def _accept(self, request: ApiRequest[DefinitionAcceptanceBody]) -> View:
        server = self._require_server(request.input.server)
        accepted = await self._tool_reviews.accept(server, request.input.tools, request.actor.party)
        return {"server": server, "accepted": accepted}

    async def _list_tools(self, request: ApiRequest[DefinitionPageQuery]) -> View:
        """List the tools that are not accepted, or all tools, up to MOST_SHOWN."""
        servers, everything = (
            self._requested_servers(request.input.server),
            request.input.all == "true",
        )
        found: list[View] = []
        number = 0
        for server in servers:
            for offer in self._tool_reviews.entries_of(server):
                number += 1
                # Yield to the event loop, since a list may be long.
                if number % TOOLS_PER_STEP == 0:
                    await asyncio.sleep(0)
                if (
                    everything
                    or self._tool_reviews.review_of(offer).state is not ReviewState.ACCEPTED
                ):
                    found.append(self._summarize_tool(offer))
                if len(found) >= MAX_LISTED_TOOLS:
                    return {"tools": found, "more": True}
        return {"tools": found, "more": False}

    def _summarize_tool(self, entry: CatalogEntry) -> dict[str, object]:
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
        }

    async def _compare_tool(self, request: ApiRequest[EmptyQuery]) -> View:
        """Return a tool, its differences from the accepted definition, and its findings."""
        server, tool = self._require_server(request.path["server"]), request.path["tool"]
        offer = next(
            (each for each in self._tool_reviews.entries_of(server) if each.name == tool), None
        )
        if offer is None:
            raise MalformedMessage(f"server {server!r} lists no tool {tool!r:.200}", NOTHING_HERE)
        before = await self._tool_reviews.accepted_definitions.definition(server, tool)
        after = self._tool_reviews.canonical_definition_of(offer)
        told = [] if before is None or not after else list_differences(before, after)
        shadows = [_finding_view(each) for each in self._tool_reviews.find_shadowed(offer)]
        return {
            **self._summarize_tool(offer),
            "shown": reveal_hidden(after.decode()),
            "changes": [
                {"at": each.pointer, "before": each.before, "after": each.after} for each in told
            ],
            "shadows": shadows,
        }

    def _requested_servers(self, server: str | None) -> list[str]:
        return list(self._servers.names()) if server is None else [self._require_server(server)]

    def _require_server(self, server: str) -> str:
        if server not in set(self._servers.names()):
            raise MalformedMessage(f"there is no server {server!r:.200}", NOTHING_HERE)
        return server


def permission_views(permissions: ServerPermissions) -> list[dict[str, object]]:
    """Return the permissions that a server needs, with the decision on each."""
    return [
        {
            "server": permissions.server,
            "permission": name,
            "risk": permission_risk(name),
            "decision": each.decision,
            "by": each.by,
            "reason": each.reason,
            "expires_at": each.expires_at,
            "declared": name in permissions.declared,
        }
        for name, each in permissions.decision_by_name.items()
    ]


def _finding_view(found: DefinitionSuspicion) -> dict[str, str]:
    return {"look": str(found.kind), "where": found.location, "what": found.description}
