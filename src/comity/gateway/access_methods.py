"""The MGP methods that query, grant and revoke access. (MGP §5.4, D-15)"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import msgspec
from msgspec import Raw, Struct

from comity.errors import ACCESS_DENIED, INVALID_PARAMS, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.actors import CALL, Actor, PrincipalKind
from comity.mcp.mgp import MgpExtension, format_timestamp
from comity.policy.administration import GrantAdmin
from comity.policy.grants import Effect, Grant
from comity.sessions.methods import MethodRequest, method


class EntryType(StrEnum):
    """The scope of an entry: a whole server or one tool. (MGP §5.3)"""

    SERVER_GRANT = "server_grant"
    TOOL_GRANT = "tool_grant"


class _AccessQueryParams(Struct):
    server_id: str
    agent_id: str | None = None
    tool_name: str | None = None


class _AccessEntryParams(Struct):
    entry_type: EntryType
    agent_id: str
    server_id: str
    tool_name: str | None = None


class _AccessGrantParams(_AccessEntryParams, kw_only=True):
    permission: Effect
    granted_by: str | None = None
    justification: str | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class AccessQuery:
    """The subject and target of an access query. `agent` is None for the caller itself."""

    agent: str | None
    server: str
    tool: str


def decode_access_query(params: Mapping[str, Raw]) -> AccessQuery:
    """Decode the parameters of `mgp/access/query`. Raises MalformedMessage."""
    asked = _decode_params(params, _AccessQueryParams)
    return AccessQuery(
        asked.agent_id, _checked_name(asked.server_id, "server_id"), asked.tool_name or ""
    )


def decode_grant(params: Mapping[str, Raw]) -> Grant:
    """Return the grant that `mgp/access/grant` creates. Raises MalformedMessage."""
    said = _decode_params(params, _AccessGrantParams)
    if said.expires_at is not None and said.expires_at.tzinfo is None:
        raise MalformedMessage("expires_at needs a time zone", INVALID_PARAMS)
    return Grant(
        _checked_name(said.agent_id, "agent_id"),
        CALL,
        _entry_target(said),
        said.permission,
        granted_by=said.granted_by or "",
        justification=said.justification or "",
        expires_at=said.expires_at,
    )


def decode_revocation(params: Mapping[str, Raw]) -> tuple[str, str]:
    """Return the subject and target of the entry to revoke. Raises MalformedMessage."""
    said = _decode_params(params, _AccessEntryParams)
    return _checked_name(said.agent_id, "agent_id"), _entry_target(said)


def describe_access(effect: Effect, source: str, grant: Grant | None) -> dict[str, object]:
    """Return the answer to an access query. (MGP §5.4)"""
    return {
        "permission": effect,
        "source": source,
        "granted_by": None if grant is None else grant.granted_by or None,
        "granted_at": _format_time(None if grant is None else grant.granted_at),
        "expires_at": _format_time(None if grant is None else grant.expires_at),
    }


def entry_type(target: str) -> EntryType:
    is_whole = target.endswith("*")
    return EntryType.SERVER_GRANT if is_whole else EntryType.TOOL_GRANT


def _format_time(at: datetime | None) -> str | None:
    return None if at is None else format_timestamp(at.astimezone(UTC))


def _entry_target(params: _AccessEntryParams) -> str:
    server = _checked_name(params.server_id, "server_id")
    if params.entry_type is EntryType.TOOL_GRANT:
        if not params.tool_name:
            raise MalformedMessage("a tool_grant needs its tool_name", INVALID_PARAMS)
        return f"{server}/{_checked_name(params.tool_name, 'tool_name')}"
    if params.tool_name is not None:
        raise MalformedMessage("a server_grant has no tool_name", INVALID_PARAMS)
    return f"{server}/*"


def _checked_name(name: str, member: str) -> str:
    """Return a name without wildcards. Only operators may write patterns.

    Raises MalformedMessage for a pattern or an empty name.
    """
    if not name or "*" in name or (member == "server_id" and "/" in name):
        raise MalformedMessage(f"{member} must name one, without * in it", INVALID_PARAMS)
    return name


def _decode_params[T](params: Mapping[str, Raw], kind: type[T]) -> T:
    try:
        return msgspec.convert(
            {name: jsonrpc.decode_value(raw) for name, raw in params.items()}, kind
        )
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"{error}"[:300], INVALID_PARAMS) from None


type Answer = Callable[[Actor, Mapping[str, Raw], str], Awaitable[dict[str, object]]]


class AccessControlMethods:
    """Answers the MGP methods about grants, for agents and operators."""

    def __init__(self, administration: GrantAdmin) -> None:
        self._administration = administration

    @method("mgp/access/query", MgpExtension.ACCESS_CONTROL)
    async def query(self, request: MethodRequest) -> dict[str, object]:
        actor, asked = _require_client(request), decode_access_query(request.params)
        named = self._administration.actor_named
        about = actor if asked.agent in (None, actor.party) else named(asked.agent or "")
        place = (asked.server, asked.tool)
        judged = self._administration.explain(actor, about, CALL, place).decision
        return describe_access(judged.effect, judged.source, judged.grant)

    @method("mgp/access/grant", MgpExtension.ACCESS_CONTROL)
    async def grant(self, request: MethodRequest) -> dict[str, object]:
        actor, trace = _require_client(request), request.call.ensure_trace_id()
        entry = await self._administration.put(actor, decode_grant(request.params), trace)
        kind = entry_type(entry.target)
        return {**describe_access(entry.effect, kind, entry), "entry_type": kind}

    @method("mgp/access/revoke", MgpExtension.ACCESS_CONTROL)
    async def revoke(self, request: MethodRequest) -> dict[str, object]:
        actor, trace = _require_client(request), request.call.ensure_trace_id()
        subject, target = decode_revocation(request.params)
        revoke = self._administration.revoke
        return {"revoked": await revoke(actor, subject, CALL, target, trace=trace)}


def _require_client(request: MethodRequest) -> Actor:
    """Return the actor of a request. Raises MalformedMessage if the actor is a server."""
    if request.actor.kind is PrincipalKind.SERVER:
        raise MalformedMessage("servers cannot change grants", ACCESS_DENIED)
    return request.actor
