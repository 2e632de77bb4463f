"""Calls of tools that belong to feature sets: what they bring of state and scope. (MCPL §7.7, §8.4)

Rule 1: a set that its host disabled has no tools for it.
Rule 2: a client that knows nothing of MCPL calls the same tools, and hears of none of this.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from mcp import MCPError
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult
from pydantic import BaseModel

from comity.sdk.live_features import CALL, Called, Feature
from comity.sdk.live_hosts import Host, Linked
from comity.sdk.mgp_terms import Context, connection_of, is_modern
from comity.wire.errors import FEATURE_NOT_ENABLED
from comity.wire.features import Scope

_KEPT: Final = "dev.comity/live_state"
_CARRIED: Final = frozenset({"state", "checkpoint", "scope"})


def named(result: HandlerResult, sets: Mapping[str, Feature]) -> dict[str, Any]:
    """Say of each tool which set it is of. (D-65)"""
    of = {tool: each.name for each in sets.values() for tool in each.tool_names}
    plain = _plain(result)

    def with_set(tool: Mapping[str, Any]) -> Mapping[str, Any]:
        feature = of.get(str(tool.get("name")))
        if feature is None:
            return tool
        return {**tool, "_meta": {**(tool.get("_meta") or {}), "featureSet": feature}}

    return {**plain, "tools": [with_set(each) for each in plain.get("tools", ())]}


async def called(
    ctx: Context, call_next: CallNext, sets: Mapping[str, Feature], host: Host | None
) -> HandlerResult:
    tool = str((ctx.params or {}).get("name"))
    feature = next((each for each in sets.values() if tool in each.tool_names), None)
    if feature is None:
        return await call_next(ctx)
    if host is not None and host.decided.is_told and not host.decided.allows(feature.name):
        data = {"featureSet": feature.name, "canEnable": True}
        raise MCPError(FEATURE_NOT_ENABLED.code, "Feature set not enabled", data)
    # Who sends state has something to do with it, also where its greeting was not heard here.
    is_live = host is not None or bool(_CARRIED & (ctx.params or {}).keys())
    call = _opened(ctx, feature, host, is_live=is_live)
    before = CALL.set(call)
    try:
        result = await call_next(ctx)
    finally:
        CALL.reset(before)
    plain = _plain(result)
    if call.state is None or plain.get("isError"):
        return result
    if not is_live:
        _kept(ctx)[feature.name] = call.state.data
        return result
    told = feature.keeper.closed(call.state)
    return result if told is None else {**plain, "state": told}


def _opened(ctx: Context, feature: Feature, host: Host | None, *, is_live: bool) -> Called:
    params = ctx.params or {}
    way = None
    if host is not None and not is_modern(ctx):
        way = Linked(cast("Connection", connection_of(ctx)), ctx)
    state = None
    if feature.has_rollback:
        keeper = feature.keeper
        state = keeper.opened(params) if is_live else keeper.held(_kept(ctx).get(feature.name))
    return Called(feature.name, host, way, state, _scope(params.get("scope")))


def _kept(ctx: Context) -> dict[str, Any]:
    """What lasts as long as the connection, for clients that keep nothing themselves."""
    return cast("Connection", connection_of(ctx)).state.setdefault(_KEPT, {})


def _scope(said: object) -> Scope | None:
    found = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    label, payload = found.get("label"), found.get("payload")
    if not isinstance(label, str):
        return None
    return Scope(label, cast("dict[str, Any]", payload) if isinstance(payload, dict) else {})


def _plain(result: HandlerResult) -> Mapping[str, Any]:
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return result or {}
