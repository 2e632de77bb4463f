"""MCPL for a server of the official SDK: negotiation, feature sets and calls."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from mcp import MCPError
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

from comity.errors import (
    FEATURE_NOT_ENABLED,
    FEATURE_UNKNOWN,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Misconfigured,
)
from comity.inference import messages
from comity.inference.messages import ModelInfo
from comity.live.channels import model as channels
from comity.live.hooks import model as hooks
from comity.live.state import model as checkpoints
from comity.mcp import mcpl, protocol
from comity.mcp.mcpl import FeatureUse, ScopeClaim
from comity.sdk.live_channels import LiveChannels
from comity.sdk.live_features import (
    CALL,
    Feature,
    FeatureCallContext,
    FeatureDependencies,
    FeatureHookRunner,
    FeatureOptions,
    MissingCheckpointError,
    ToolDecorator,
)
from comity.sdk.live_hosts import (
    HostCapabilities,
    HostRefusal,
    HostRequestFailure,
    HostUnavailable,
    LegacyHostConnection,
    McplHost,
    McplHostRegistry,
    ModernHostConnection,
    offered_in,
)
from comity.sdk.live_inference import HostInferenceClient
from comity.sdk.live_types import model_in
from comity.sdk.mgp_negotiation import Context, connection_of, is_modern

_KEPT: Final = "dev.comity/live_state"
_CARRIED: Final = frozenset({"state", "checkpoint", "scope"})


def add_feature_names(result: HandlerResult, sets: Mapping[str, Feature]) -> dict[str, Any]:
    """Say of each tool which set it is of. (D-65)"""
    of = {tool: each.name for each in sets.values() for tool in each.tool_names}
    plain = _plain(result)

    def with_set(tool: Mapping[str, Any]) -> Mapping[str, Any]:
        feature = of.get(str(tool.get("name")))
        if feature is None:
            return tool
        return {**tool, "_meta": {**(tool.get("_meta") or {}), "featureSet": feature}}

    return {**plain, "tools": [with_set(each) for each in plain.get("tools", ())]}


async def call_feature_tool(
    ctx: Context, call_next: CallNext, sets: Mapping[str, Feature], host: McplHost | None
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


def _opened(
    ctx: Context, feature: Feature, host: McplHost | None, *, is_live: bool
) -> FeatureCallContext:
    params = ctx.params or {}
    way = None
    if host is not None and not is_modern(ctx):
        way = LegacyHostConnection(cast("Connection", connection_of(ctx)), ctx)
    state = None
    if feature.has_rollback:
        keeper = feature.keeper
        state = keeper.opened(params) if is_live else keeper.held(_kept(ctx).get(feature.name))
    return FeatureCallContext(feature.name, host, way, state, _scope(params.get("scope")))


def _kept(ctx: Context) -> dict[str, Any]:
    """The state that a connection keeps for a client without MCPL, by feature set."""
    return cast("Connection", connection_of(ctx)).state.setdefault(_KEPT, {})


def _scope(value: object) -> ScopeClaim | None:
    found = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    label, payload = found.get("label"), found.get("payload")
    if not isinstance(label, str):
        return None
    return ScopeClaim(label, cast("dict[str, Any]", payload) if isinstance(payload, dict) else {})


def _plain(result: HandlerResult) -> Mapping[str, Any]:
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return result or {}


log = logging.getLogger(__name__)

MODEL_SECONDS: Final = 30.0
MOST_MODERN: Final = 1_000
_HOST: Final = "dev.comity/live_host"
_NOTHING: Final[dict[str, Any]] = {}

type _Answer = Callable[[McplHost, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class LiveMiddleware:
    """The middleware of a live server, and what its author uses of it."""

    def __init__(self, server: MCPServer[Any], name: str, tools: ToolDecorator) -> None:
        self.name = name
        self.hosts = McplHostRegistry()
        self.sets: dict[str, Feature] = {}
        self.channels = LiveChannels(self.hosts, self.sets)
        self.closed = asyncio.Event()
        self.hooks = FeatureHookRunner(name, self.sets, self._start)
        self._inferring = HostInferenceClient()
        self._joint = FeatureDependencies(self.hosts, self._inferring, tools)
        self._modern: dict[object, McplHost] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._methods: dict[str, _Answer] = {
            mcpl.UPDATE: self._update,
            hooks.BEFORE: self.hooks.before,
            messages.CHUNK: self._chunk,
            checkpoints.ROLLBACK: self._roll_back,
            channels.LIST: self.channels.listing,
            channels.OPEN: self.channels.open,
            channels.CLOSE: self.channels.close,
            channels.PUBLISH: self.channels.publish,
            channels.OUTGOING_CHUNK: self.channels.chunk,
            channels.OUTGOING_COMPLETE: self.channels.complete,
        }
        server.middleware.append(self)

    # For the author of the server.

    def feature(self, name: str, description: str, traits: FeatureOptions) -> Feature:
        if name in self.sets:
            raise Misconfigured(f"there is a feature set {name!r} already")
        if len(self.sets) >= mcpl.MAX_SETS:
            raise Misconfigured(f"a server has at most {mcpl.MAX_SETS} feature sets")
        made = self.sets[name] = Feature(self._joint, name, description, traits)
        return made

    async def announce(self) -> None:
        """Tell hosts which feature sets were added and removed. (§6.7)"""
        now = {name: each.declared() for name, each in self.sets.items()}
        for host in self.hosts.all:
            added = {name: each for name, each in now.items() if host.knows.get(name) != each}
            removed = [name for name in host.knows if name not in now]
            if added or removed:
                await host.tell(mcpl.CHANGED, {"added": added, "removed": removed})
                host.knows = dict(now)

    async def model(self) -> ModelInfo:
        """The host's model. Raises HostUnavailable, HostRefusal, HostRequestFailure. (§12)"""
        here = [each for each in self.hosts.all if each.way is not None and each.offered.models]
        if not here:
            raise HostUnavailable("no connected host describes its model")
        found = model_in(await here[-1].ask(messages.MODEL, {}, MODEL_SECONDS))
        if found is None:
            raise HostRequestFailure("the host did not describe its model")
        return found

    def renew(self) -> None:
        """Reset the hosts, so that the server can run in another event loop."""
        self.closed = asyncio.Event()
        self.hosts.news = asyncio.Condition()
        self.hosts.all.clear()
        self._modern.clear()

    def stop(self) -> None:
        """Cancel the background tasks; no host is connected any more."""
        self.closed.set()
        for task in self._tasks:
            task.cancel()

    def check(self) -> None:
        """Raises Misconfigured for an invalid feature set or channel handler."""
        for each in self.sets.values():
            each.declared()
        self.channels.check()

    def declared(self) -> dict[str, Any]:
        """The MCPL capabilities of the server, for clients that speak MCPL. (§5.1)"""
        uses = {use for each in self.sets.values() for use in each.uses}
        told: dict[str, Any] = {"version": mcpl.VERSION, "modelInfo": True}
        told["pushEvents"] = FeatureUse.PUSH in uses
        hooked: dict[str, Any] = {}
        if FeatureUse.BEFORE in uses:
            hooked["beforeInference"] = True
        if FeatureUse.AFTER in uses:
            hooked["afterInference"] = {"blocking": self.hooks.is_waited_for}
        if hooked:
            told["contextHooks"] = hooked
        if FeatureUse.INFERENCE in uses:
            told["inferenceRequest"] = {"streaming": True}
        if (places := self.channels.declared()) is not None:
            told["channels"] = places
        told["featureSets"] = {name: each.declared() for name, each in self.sets.items()}
        return told

    # Requests of clients.

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.method in (protocol.INITIALIZE, protocol.DISCOVER):
            return self._introduced(ctx, await call_next(ctx))
        if ctx.method == protocol.CALL_TOOL:
            return await call_feature_tool(ctx, call_next, self.sets, self._host(ctx))
        host = self._host(ctx)
        if host is None:
            return await call_next(ctx)
        if ctx.method == protocol.LIST_TOOLS:
            return add_feature_names(await call_next(ctx), self.sets)
        answer = self._answering(ctx, host)
        if answer is None:
            return await call_next(ctx)
        told = await _told(answer, ctx.method)
        return {**told, "resultType": protocol.COMPLETE_RESULT} if is_modern(ctx) else told

    def _answering(self, ctx: Context, host: McplHost) -> Awaitable[dict[str, Any]] | None:
        params = ctx.params or _NOTHING
        if ctx.method == hooks.AFTER:
            return self.hooks.after(host, params, waited_for=ctx.request_id is not None)
        if ctx.method == mcpl.LISTEN and is_modern(ctx):
            return self._listen(ctx, host)
        if ctx.method == mcpl.RESPOND and is_modern(ctx):
            return self._respond(host, params)
        answer = self._methods.get(ctx.method)
        return None if answer is None else answer(host, params)

    def _introduced(self, ctx: Context, result: HandlerResult) -> HandlerResult:
        modern = is_modern(ctx)
        said = _envelope(ctx) if modern else (ctx.params or {}).get("capabilities")
        offered = offered_in(said)
        if offered is None or not isinstance(result, dict):
            return result
        host = self._known(ctx, offered) if modern else self._met(ctx, offered)
        told = self.declared()
        host.knows = dict(told["featureSets"])
        capabilities = cast("dict[str, Any]", result.get("capabilities") or {})
        place, key = ("extensions", mcpl.EXTENSION_KEY) if modern else _HANDSHAKE
        inside = {**cast("dict[str, Any]", capabilities.get(place) or {}), key: told}
        return {**result, "capabilities": {**capabilities, place: inside}}

    def _met(self, ctx: Context, offered: HostCapabilities) -> McplHost:
        connection = cast("Connection", connection_of(ctx))
        host = connection.state[_HOST] = McplHost(offered, ways=[LegacyHostConnection(connection)])
        self.hosts.all.append(host)
        connection.exit_stack.callback(self.hosts.leave, host)
        return host

    def _host(self, ctx: Context) -> McplHost | None:
        """The host that sent this message; None for a client without MCPL."""
        if not is_modern(ctx):
            return cast("Connection", connection_of(ctx)).state.get(_HOST)
        offered = offered_in(_envelope(ctx))
        return None if offered is None else self._known(ctx, offered)

    def _known(self, ctx: Context, offered: HostCapabilities) -> McplHost:
        """The host of a modern request, by its token, client info and capabilities."""
        token = get_access_token()
        meta = cast("Mapping[str, Any]", (ctx.params or {}).get("_meta") or {})
        said = meta.get(protocol.CLIENT_INFO)
        # Capabilities are part of the key: a gateway also makes calls for its clients.
        key = (None if token is None else token.client_id, str(said)[:200], offered)
        host = self._modern.get(key)
        if host is None:
            if len(self._modern) >= MOST_MODERN:
                self._forget()
            host = self._modern[key] = McplHost(offered)
            self.hosts.all.append(host)
        return host

    def _forget(self) -> None:
        """Forget the oldest modern host that does not listen. Raises MCPError if all listen."""
        for key, host in self._modern.items():
            if not host.ways:
                del self._modern[key]
                self.hosts.leave(host)
                return
        raise MCPError(METHOD_NOT_FOUND.code, "too many hosts listen here")

    # Requests of hosts.

    async def _listen(self, ctx: Context, host: McplHost) -> dict[str, Any]:
        way = ModernHostConnection(ctx)
        host.ways.append(way)
        self._decided(host)
        try:
            await self.closed.wait()
        finally:
            host.ways.remove(way)
            way.end()
        return {}

    async def _respond(self, host: McplHost, params: Mapping[str, Any]) -> dict[str, Any]:
        for way in host.ways:
            if isinstance(way, ModernHostConnection) and way.answered(params):
                return {}
        raise MCPError(INVALID_PARAMS.code, "nothing of this id was asked")

    async def _update(self, host: McplHost, params: Mapping[str, Any]) -> dict[str, Any]:
        host.decided.take(params)
        self._decided(host)
        return {}

    def _decided(self, host: McplHost) -> None:
        self._start(self.channels.introduce(host))
        self._start(self.hosts.changed())

    async def _chunk(self, host: McplHost, params: Mapping[str, Any]) -> dict[str, Any]:
        await self._inferring.chunk(params)
        return {}

    async def _roll_back(self, host: McplHost, params: Mapping[str, Any]) -> dict[str, Any]:
        feature = self.sets.get(str(params.get("featureSet")))
        named = params.get("checkpoint")
        if feature is None or not feature.has_rollback:
            raise MCPError(FEATURE_UNKNOWN.code, "Unknown feature set")
        if not host.decided.allows(feature.name):
            raise MCPError(FEATURE_NOT_ENABLED.code, "Feature set not enabled")
        if not isinstance(named, str):
            raise MCPError(INVALID_PARAMS.code, "checkpoint is missing")
        reason = await _rolled_back(feature, named)
        if reason is None:
            feature.keeper.lineage.returned(named)
            return {"checkpoint": named, "success": True}
        return {"checkpoint": named, "success": False, "reason": reason}

    # Background tasks.

    def _start(self, doing: Any) -> None:
        task = asyncio.ensure_future(_guarded(doing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_HANDSHAKE: Final = ("experimental", mcpl.KEY)


async def _told(answer: Awaitable[dict[str, Any]], method: str) -> dict[str, Any]:
    """The answer of a handler. An internal error is logged, and the client sees no details."""
    try:
        return await answer
    except MCPError:
        raise
    except Misconfigured as problem:
        raise MCPError(INVALID_PARAMS.code, str(problem)) from None
    except Exception:
        log.exception("answering %s failed", method)
        raise MCPError(INTERNAL_ERROR.code, "the server failed") from None


async def _guarded(doing: Awaitable[object]) -> None:
    try:
        await doing
    except (HostRequestFailure, HostRefusal, HostUnavailable) as problem:
        log.info("%s", problem)
    except Exception:
        log.exception("A background task failed")


async def _rolled_back(feature: Feature, checkpoint: str) -> str | None:
    """Roll back; return the reason of a failure. Raises MissingCheckpointError."""
    if feature.roll_back is None:
        return (
            "this server cannot undo the state that it keeps" if feature.keeper.is_opaque else None
        )
    try:
        said = await feature.roll_back(checkpoint)
    except MissingCheckpointError:
        raise
    except Exception:
        log.exception("rolling %r back failed", feature.name)
        return "rolling back failed"
    if isinstance(said, str):
        return said
    return "rolling back failed" if said is False else None


def _envelope(ctx: Context) -> object:
    meta = cast("Mapping[str, Any]", (ctx.params or {}).get("_meta") or {})
    return meta.get(protocol.CLIENT_CAPABILITIES)
