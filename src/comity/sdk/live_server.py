"""MCPL around a server of the official SDK: what its hosts negotiate, decide and ask. (MCPL §3-§8)

Rule 1: to a client that says nothing of MCPL it is the plain server that it was. (§3.2)
Rule 2: what a modern host cannot notify it sends as a request, which is answered with `{}`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from mcp import MCPError
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import MCPServer

from comity.sdk.live_calls import called, named
from comity.sdk.live_channels import LiveChannels
from comity.sdk.live_features import Feature, Joint, Tools, Traits
from comity.sdk.live_hooks import Hooks
from comity.sdk.live_hosts import Absent, Heard, Host, Hosts, Linked, Lost, Refused
from comity.sdk.live_inference import Inferring
from comity.sdk.live_offers import Offered, offered_in
from comity.sdk.live_state import CheckpointNotFound
from comity.sdk.live_words import model_in
from comity.sdk.mgp_terms import Context, connection_of, is_modern
from comity.wire import channels, checkpoints, features, hooks, inference, mcp, reverse
from comity.wire.errors import (
    FEATURE_NOT_ENABLED,
    FEATURE_UNKNOWN,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Misconfigured,
)
from comity.wire.features import Use
from comity.wire.inference import ModelInfo

log = logging.getLogger(__name__)

MODEL_SECONDS: Final = 30.0
MOST_MODERN: Final = 1_000
_HOST: Final = "dev.comity/live_host"
_NOTHING: Final[dict[str, Any]] = {}

type _Answer = Callable[[Host, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Live:
    """The middleware of a live server, and what its author uses of it."""

    def __init__(self, server: MCPServer[Any], name: str, tools: Tools) -> None:
        self.name = name
        self.hosts = Hosts()
        self.sets: dict[str, Feature] = {}
        self.channels = LiveChannels(self.hosts, self.sets)
        self.closed = asyncio.Event()
        self.hooks = Hooks(name, self.sets, self._start)
        self._inferring = Inferring()
        self._joint = Joint(self.hosts, self._inferring, tools)
        self._modern: dict[object, Host] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._methods: dict[str, _Answer] = {
            features.UPDATE: self._update,
            hooks.BEFORE: self.hooks.before,
            inference.CHUNK: self._chunk,
            checkpoints.ROLLBACK: self._roll_back,
            channels.LIST: self.channels.listing,
            channels.OPEN: self.channels.open,
            channels.CLOSE: self.channels.close,
            channels.PUBLISH: self.channels.publish,
            channels.OUTGOING_CHUNK: self.channels.chunk,
            channels.OUTGOING_COMPLETE: self.channels.complete,
        }
        server.middleware.append(self)

    # What its author uses.

    def feature(self, name: str, description: str, traits: Traits) -> Feature:
        if name in self.sets:
            raise Misconfigured(f"there is a feature set {name!r} already")
        if len(self.sets) >= features.MOST_SETS:
            raise Misconfigured(f"a server has at most {features.MOST_SETS} feature sets")
        made = self.sets[name] = Feature(self._joint, name, description, traits)
        return made

    async def announce(self) -> None:
        """Tell hosts which feature sets have come and gone since they were told. (§6.7)"""
        now = {name: each.declared() for name, each in self.sets.items()}
        for host in self.hosts.all:
            added = {name: each for name, each in now.items() if host.knows.get(name) != each}
            removed = [name for name in host.knows if name not in now]
            if added or removed:
                await host.tell(features.CHANGED, {"added": added, "removed": removed})
                host.knows = dict(now)

    async def model(self) -> ModelInfo:
        """The host's model. Raises Absent, Refused, Lost. (§12)"""
        here = [each for each in self.hosts.all if each.way is not None and each.offered.models]
        if not here:
            raise Absent("no host has a model to tell of")
        found = model_in(await here[-1].ask(inference.MODEL, {}, MODEL_SECONDS))
        if found is None:
            raise Lost("the host said nothing of its model")
        return found

    def renew(self) -> None:
        """Begin anew, perhaps in another event loop."""
        self.closed = asyncio.Event()
        self.hosts.news = asyncio.Condition()
        self.hosts.all.clear()
        self._modern.clear()

    def stop(self) -> None:
        """End what was begun beside the requests; nobody is here any more to hear of it."""
        self.closed.set()
        for task in self._tasks:
            task.cancel()

    def check(self) -> None:
        """Raises Misconfigured for what could never work."""
        for each in self.sets.values():
            each.declared()
        self.channels.check()

    def declared(self) -> dict[str, Any]:
        """What is said of MCPL to who speaks of it. (§5.1)"""
        uses = {use for each in self.sets.values() for use in each.uses}
        told: dict[str, Any] = {"version": features.VERSION, "modelInfo": True}
        told["pushEvents"] = Use.PUSH in uses
        hooked: dict[str, Any] = {}
        if Use.BEFORE in uses:
            hooked["beforeInference"] = True
        if Use.AFTER in uses:
            hooked["afterInference"] = {"blocking": self.hooks.is_waited_for}
        if hooked:
            told["contextHooks"] = hooked
        if Use.INFERENCE in uses:
            told["inferenceRequest"] = {"streaming": True}
        if (places := self.channels.declared()) is not None:
            told["channels"] = places
        told["featureSets"] = {name: each.declared() for name, each in self.sets.items()}
        return told

    # What clients say.

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.method in (mcp.INITIALIZE, mcp.DISCOVER):
            return self._introduced(ctx, await call_next(ctx))
        if ctx.method == mcp.CALL_TOOL:
            return await called(ctx, call_next, self.sets, self._host(ctx))
        host = self._host(ctx)
        if host is None:
            return await call_next(ctx)
        if ctx.method == mcp.LIST_TOOLS:
            return named(await call_next(ctx), self.sets)
        answer = self._answering(ctx, host)
        if answer is None:
            return await call_next(ctx)
        told = await _told(answer, ctx.method)
        return {**told, "resultType": mcp.COMPLETE_RESULT} if is_modern(ctx) else told

    def _answering(self, ctx: Context, host: Host) -> Awaitable[dict[str, Any]] | None:
        params = ctx.params or _NOTHING
        if ctx.method == hooks.AFTER:
            return self.hooks.after(host, params, waited_for=ctx.request_id is not None)
        if ctx.method == reverse.LISTEN and is_modern(ctx):
            return self._listen(ctx, host)
        if ctx.method == reverse.RESPOND and is_modern(ctx):
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
        place, key = ("extensions", features.EXTENSION_KEY) if modern else _HANDSHAKE
        inside = {**cast("dict[str, Any]", capabilities.get(place) or {}), key: told}
        return {**result, "capabilities": {**capabilities, place: inside}}

    def _met(self, ctx: Context, offered: Offered) -> Host:
        connection = cast("Connection", connection_of(ctx))
        host = connection.state[_HOST] = Host(offered, ways=[Linked(connection)])
        self.hosts.all.append(host)
        connection.exit_stack.callback(self.hosts.leave, host)
        return host

    def _host(self, ctx: Context) -> Host | None:
        """The host whose message this is; None for a client that does not speak of MCPL."""
        if not is_modern(ctx):
            return cast("Connection", connection_of(ctx)).state.get(_HOST)
        offered = offered_in(_envelope(ctx))
        return None if offered is None else self._known(ctx, offered)

    def _known(self, ctx: Context, offered: Offered) -> Host:
        """In the modern era a host is who it says that it is, in each request."""
        token = get_access_token()
        meta = cast("Mapping[str, Any]", (ctx.params or {}).get("_meta") or {})
        said = meta.get(mcp.CLIENT_INFO)
        # Who offers less is another: a gateway makes calls for clients of its own name too.
        key = (None if token is None else token.client_id, str(said)[:200], offered)
        host = self._modern.get(key)
        if host is None:
            if len(self._modern) >= MOST_MODERN:
                self._forget()
            host = self._modern[key] = Host(offered)
            self.hosts.all.append(host)
        return host

    def _forget(self) -> None:
        """Somebody of the modern era who does not listen, the longest known first."""
        for key, host in self._modern.items():
            if not host.ways:
                del self._modern[key]
                self.hosts.leave(host)
                return
        raise MCPError(METHOD_NOT_FOUND.code, "too many hosts listen here")

    # What hosts ask and tell.

    async def _listen(self, ctx: Context, host: Host) -> dict[str, Any]:
        way = Heard(ctx)
        host.ways.append(way)
        self._decided(host)
        try:
            await self.closed.wait()
        finally:
            host.ways.remove(way)
            way.end()
        return {}

    async def _respond(self, host: Host, params: Mapping[str, Any]) -> dict[str, Any]:
        for way in host.ways:
            if isinstance(way, Heard) and way.answered(params):
                return {}
        raise MCPError(INVALID_PARAMS.code, "nothing of this id was asked")

    async def _update(self, host: Host, params: Mapping[str, Any]) -> dict[str, Any]:
        host.decided.take(params)
        self._decided(host)
        return {}

    def _decided(self, host: Host) -> None:
        self._start(self.channels.introduce(host))
        self._start(self.hosts.changed())

    async def _chunk(self, host: Host, params: Mapping[str, Any]) -> dict[str, Any]:
        await self._inferring.chunk(params)
        return {}

    async def _roll_back(self, host: Host, params: Mapping[str, Any]) -> dict[str, Any]:
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

    # What follows.

    def _start(self, doing: Any) -> None:
        task = asyncio.ensure_future(_guarded(doing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_HANDSHAKE: Final = ("experimental", features.KEY)


async def _told(answer: Awaitable[dict[str, Any]], method: str) -> dict[str, Any]:
    """What is answered. The SDK would tell a stranger what failed within, in its own words."""
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
    except (Lost, Refused, Absent) as problem:
        log.info("%s", problem)
    except Exception:
        log.exception("what was done beside the requests failed")


async def _rolled_back(feature: Feature, checkpoint: str) -> str | None:
    """Why it was not, or None. Raises the error for a checkpoint that is not there."""
    if feature.roll_back is None:
        return (
            "what this server keeps itself cannot be undone" if feature.keeper.is_opaque else None
        )
    try:
        said = await feature.roll_back(checkpoint)
    except CheckpointNotFound:
        raise
    except Exception:
        log.exception("rolling %r back failed", feature.name)
        return "rolling back failed"
    if isinstance(said, str):
        return said
    return "rolling back failed" if said is False else None


def _envelope(ctx: Context) -> object:
    meta = cast("Mapping[str, Any]", (ctx.params or {}).get("_meta") or {})
    return meta.get(mcp.CLIENT_CAPABILITIES)
