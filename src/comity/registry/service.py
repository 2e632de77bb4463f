"""The service behind the registry paths: tool calls with timeouts, a read cache and errors."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple, Self, cast

import msgspec
from msgspec import Raw

from comity.approvals.pending_calls import GoOn
from comity.catalog import catalog
from comity.errors import (
    EXHAUSTED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    TIMEOUT,
    TOOL_DISABLED,
    UPSTREAM_FAILED,
    MalformedMessage,
    Unavailable,
)
from comity.gateway.all_servers import AllServersEndpoint
from comity.gateway.pipeline import CallGate, CallPlan, Outcome, may_be_sent
from comity.mcp import jsonrpc, protocol, refusals
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.jsonrpc import Frame
from comity.mcp.refusals import Refusal, RefusedRequest, RegistryContext
from comity.registry.export import CatalogExport, ToolQuery, to_reader
from comity.sessions.calls import ActiveCalls, Call
from comity.sessions.client_streams import ClientStream

MOST_READS: Final = 1000
MOST_BYTES: Final = 32 * 1024 * 1024
MAX_MS_LENGTH: Final = 3_600_000
FOR_EVERYBODY: Final = ""
"""The reader of cached results that are the same for all principals; none has an empty name."""

type Key = tuple[str, str, str]
"""The server, the URI, and the principal that may see the result."""


@dataclass(frozen=True, slots=True)
class CachedRead:
    """A cached result, and the time at which it expires."""

    result: Raw
    until: float


class ResourceCache:
    """The newest results of resource reads, limited in number and size."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._reads: OrderedDict[Key, CachedRead] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._reads)

    def find(self, server: str, uri: str, party: str) -> Raw | None:
        """Return the cached result for this principal or for all, or None if there is none."""
        for who in (party, FOR_EVERYBODY):
            key = (server, uri, who)
            read = self._reads.get(key)
            if read is not None and read.until > self._now():
                return read.result
            if read is not None:
                self._drop(key)
        return None

    def keep(self, key: Key, result: Raw, fields: Mapping[str, Any]) -> None:
        """Cache a result for the time and the scope that its `ttlMs` and `cacheScope` state."""
        lasting = fields.get("ttlMs")
        if isinstance(lasting, bool) or not isinstance(lasting, int) or lasting <= 0:
            return
        # One result must not fill more than an eighth of the cache.
        if len(memoryview(result)) * 8 > MOST_BYTES:
            return
        server, uri, party = key
        reader = FOR_EVERYBODY if fields.get("cacheScope") == "public" else party
        if not reader and fields.get("cacheScope") != "public":
            return
        self._drop((server, uri, reader))
        self._reads[server, uri, reader] = CachedRead(
            result, self._now() + min(lasting, MAX_MS_LENGTH) / 1000
        )
        self._size += len(memoryview(result))
        while len(self._reads) > MOST_READS or self._size > MOST_BYTES:
            self._drop(next(iter(self._reads)))

    def forget(self, server: str, kind: EntryKind) -> None:
        """Drop all results of a server whose resources have changed."""
        if kind in (EntryKind.RESOURCE, EntryKind.TEMPLATE):
            for key in [key for key in self._reads if key[0] == server]:
                self._drop(key)

    def _drop(self, key: Key) -> None:
        read = self._reads.pop(key, None)
        if read is not None:
            self._size -= len(memoryview(read.result))


@dataclass(slots=True)
class ConcurrencyLimit:
    """Limits the concurrent calls at each server. Unused servers take no memory."""

    each: int
    timeout: float
    _held: dict[str, asyncio.Semaphore] = field(default_factory=dict[str, asyncio.Semaphore])
    _users: dict[str, int] = field(default_factory=dict[str, int])

    def __len__(self) -> int:
        return len(self._held)

    @asynccontextmanager
    async def acquire(self, server: str) -> AsyncGenerator[None]:
        """Hold one place at a server. Raises Unavailable if none becomes free in time."""
        places = self._held.setdefault(server, asyncio.Semaphore(self.each))
        self._users[server] = self._users.get(server, 0) + 1
        try:
            await self._wait_for(places, server)
            try:
                yield
            finally:
                places.release()
        finally:
            self._users[server] -= 1
            if not self._users[server]:
                del self._held[server], self._users[server]

    async def _wait_for(self, places: asyncio.Semaphore, server: str) -> None:
        try:
            async with asyncio.timeout(self.timeout):
                await places.acquire()
        except TimeoutError:
            raise Unavailable(
                f"all {self.each} places at server {server!r} are taken", EXHAUSTED
            ) from None


class Visit:
    """The place of one call at its server, and its time limit there."""

    def __init__(self, places: ConcurrencyLimit, server: str) -> None:
        self._places = places
        self._server = server
        self._held = AsyncExitStack()
        self._timer: asyncio.TimerHandle | None = None
        self._leaving: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def begin(self) -> None:
        """Take a place, after the one from before is given back. Raises Unavailable."""
        await self.end()
        await self._held.enter_async_context(self._places.acquire(self._server))

    def expect_answer(self, until: float, on_late: Callable[[], None]) -> None:
        """Call `on_late` at a moment of the loop, unless the visit is over then."""
        self._timer = asyncio.get_running_loop().call_at(until, on_late)

    def leave(self) -> None:
        """End the visit, from where nothing can be awaited."""
        self._leaving = asyncio.ensure_future(self.end())

    async def end(self) -> None:
        """Give the place back, and lift the time limit."""
        if self._timer is not None:
            self._timer.cancel()
        await self._held.aclose()


VALIDATE: Final = "tools/validate"
CATALOGUE: Final = "registry/catalogue"
EXPORT: Final = "registry/export"
OPENAPI: Final = "registry/openapi"
SPOKEN: Final = frozenset(
    {
        protocol.LIST_TOOLS,
        protocol.CALL_TOOL,
        VALIDATE,
        protocol.LIST_RESOURCES,
        protocol.READ_RESOURCE,
    }
)
"""The methods that clients may use in JSON-RPC. The others exist only as paths."""

MAX_REASON_LENGTH: Final = 4000
_ABOUT: Final = {"name": "comity-registry", "version": catalog.CATALOGUE_VERSION}
_ENVELOPE: Final[dict[str, object]] = {
    protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
    # At the registry no client can answer a question during a call.
    protocol.CLIENT_CAPABILITIES: {},
    protocol.CLIENT_INFO: _ABOUT,
}
_FAILED: Final = ("The reason is the tool's own words.", "Change the arguments, or ask its server.")
_NO_INPUT: Final = "the tool needs input during the call, which is not possible over REST"


@dataclass(frozen=True, slots=True)
class RegistryTimeouts:
    """The time limits in seconds (REG, timeout configuration), and the limit of concurrent calls.

    `lock` limits the wait for a place at a server. No other lock makes a call wait here.
    `documentation` is the URL of the operator's copy of these docs.
    """

    tool: float = 30.0
    validation: float = 5.0
    discovery: float = 2.0
    lock: float = 0.5
    calls_per_server: int = 64
    documentation: str = ""


class RegistryResponse(NamedTuple):
    """A complete answer: its HTTP status, and either a result or an error."""

    status: int
    result: Raw | None
    error: Raw | None


class RegistryService:
    """Answers requests at `/tools`, `/resources` and `/openapi.json`."""

    def __init__(
        self,
        endpoint: AllServersEndpoint,
        gate: CallGate,
        active_calls: ActiveCalls,
        exports: CatalogExport,
        options: RegistryTimeouts,
    ) -> None:
        self._endpoint = endpoint
        self._gate = gate
        self._active_calls = active_calls
        self._exports = exports
        self._options = options
        self._context = RegistryContext(options.documentation)
        self._concurrency = ConcurrencyLimit(options.calls_per_server, options.lock)
        self._resource_cache = ResourceCache(active_calls.now)
        gate.catalog.watch(self._resource_cache.forget)
        self._methods: dict[str, Callable[[Call, Frame, AsyncExitStack], Awaitable[None]]] = {
            protocol.LIST_TOOLS: self._list,
            protocol.LIST_RESOURCES: self._list,
            protocol.CALL_TOOL: self._call,
            protocol.READ_RESOURCE: self._read,
            VALIDATE: self._validate,
            CATALOGUE: self._discover,
            EXPORT: self._discover,
            OPENAPI: self._discover,
        }

    @asynccontextmanager
    async def run_request(self, frame: Frame, client_stream: ClientStream) -> AsyncGenerator[Call]:
        """Run one request, and release everything it holds at the end.

        If the caller leaves before the answer, the call is withdrawn.
        """
        client_stream.registry = self._context
        call = self._active_calls.begin(frame, client_stream, None)
        call.is_for_all_servers = True
        async with AsyncExitStack() as held:
            try:
                await self._start_call(call, frame, held)
                yield call
            finally:
                if not client_stream.is_final:
                    call.withdraw(None)

    def final_answer(self, call: Call, answer: bytes) -> RegistryResponse:
        """Return the final answer: the result, with a tool's output in both forms, or an error."""
        said = jsonrpc.decode_members(answer)
        if "error" in said:
            return RegistryResponse(call.client_stream.status, None, said["error"])
        result = said["result"]
        if call.method == protocol.CALL_TOOL:
            return self._output(call, result)
        if call.method == protocol.READ_RESOURCE:
            self._cache_result(call, result)
        return RegistryResponse(200, result, None)

    async def _start_call(self, call: Call, frame: Frame, stack: AsyncExitStack) -> None:
        if await self._gate.is_over_limit(call):
            return
        try:
            await self._methods.get(call.method, _refuse_method)(call, frame, stack)
        except (Unavailable, MalformedMessage) as error:
            call.fail(error)

    async def _list(self, call: Call, frame: Frame, stack: AsyncExitStack) -> None:
        kind = EntryKind.TOOL if call.method == protocol.LIST_TOOLS else EntryKind.RESOURCE
        definitions, following = self._exports.page(kind, _tool_query(call, frame))
        listed: dict[str, object] = {kind: [Raw(definition) for definition in definitions]}
        if following is not None:
            listed["nextCursor"] = following
        call.deliver_answer(jsonrpc.make_result(call.client_request_id, listed))

    async def _discover(self, call: Call, frame: Frame, stack: AsyncExitStack) -> None:
        wanted, named = _tool_query(call, frame), _text(frame.parameters, "name")
        call.client_stream.actor = wanted.actor
        try:
            async with asyncio.timeout(self._options.discovery):
                if call.method == CATALOGUE:
                    told = await self._exports.catalogue(wanted)
                elif call.method == OPENAPI:
                    told = await self._exports.openapi(wanted)
                else:
                    told = await self._exports.export(self._readable(call, named))
        except TimeoutError:
            call.refuse_with(
                _too_slow("telling of the tools took too long", self._options.discovery)
            )
        else:
            call.deliver_answer(jsonrpc.make_result(call.client_request_id, told))

    async def _validate(self, call: Call, frame: Frame, stack: AsyncExitStack) -> None:
        """Answer whether arguments would pass. Invalid arguments are a result, not an error."""
        offer = self._require_tool(call, _text(frame.parameters, "name"))
        refusal = await self._within(self._gate.check(call, offer, frame))
        if refusal is not None and refusal.fault.reg_type != "ValidationError":
            call.refuse_with(refusal)
            return
        errors = [] if refusal is None else [_error_data(refusal)]
        call.deliver_answer(
            jsonrpc.make_result(call.client_request_id, {"valid": not errors, "errors": errors})
        )

    async def _call(self, call: Call, frame: Frame, stack: AsyncExitStack) -> None:
        params = frame.parameters
        plan = self._gate.plan_for(call, "", _text(params, "name"))
        asked = _plain(frame, {**params, "name": plan.entry.name}, ("name", "arguments"))
        await self._send(call, plan.entry, asked, stack, plan)

    async def _read(self, call: Call, frame: Frame, stack: AsyncExitStack) -> None:
        params = frame.parameters
        uri = _text(params, "uri")
        offer = self._gate.find_resource(call, uri)
        kept = self._resource_cache.find(offer.server, uri or "", call.client_stream.actor.party)
        if kept is not None:
            call.counters = self._active_calls.metrics.at(offer.server)
            call.deliver_answer(jsonrpc.make_result(call.client_request_id, kept))
            return
        await self._send(call, offer, _plain(frame, params, ("uri",)), stack)

    async def _send(
        self,
        call: Call,
        entry: CatalogEntry,
        frame: Frame,
        stack: AsyncExitStack,
        plan: CallPlan | None = None,
    ) -> None:
        """Send a call. One time limit covers the place, the checks and the answer.

        A call of a tool has a plan.
        """
        reached = self._endpoint.server_of(call, entry).connections
        until = asyncio.get_running_loop().time() + self._options.tool
        visit = await stack.enter_async_context(Visit(self._concurrency, entry.server))
        try:
            async with asyncio.timeout_at(until):
                await visit.begin()
                # The wait for the place may have been long, so access is decided again.
                if plan is None:
                    uri = _text(frame.parameters, "uri")
                    self._gate.require_entry(call, EntryKind.RESOURCE, entry.server, uri)
                else:
                    plan = self._gate.renew(call, plan)
                    outcome = await self._within(self._gate.pipeline.run(call, plan, frame))
                    go_on = partial(self._go_on, call, plan, frame, visit)
                    if isinstance(outcome, Refusal):
                        call.refuse_with(outcome)
                        return
                    if outcome is not None:
                        await visit.end()
                        outcome.start(go_on, timedelta(seconds=self._options.tool))
                        return
                    self._prepare_sign_in(call, visit, go_on)
                    self._endpoint.register_retries(call, plan, frame, ())
                visit.expect_answer(until, partial(self._late, call))
                await self._endpoint.forward_modern(call, reached, frame, ())
        except TimeoutError:
            if not call.client_stream.is_final:
                self._expire(call)

    def _prepare_sign_in(self, call: Call, visit: Visit, go_on: GoOn) -> None:
        """Let a call wait for a person if its server demands a sign-in when it gets the call."""
        if call.sign_in is not None:
            call.sign_in.go_on = go_on
            call.sign_in.on_hold = visit.leave
            call.sign_in.client_wait = timedelta(seconds=self._options.tool)

    async def _go_on(self, call: Call, plan: CallPlan, frame: Frame, visit: Visit) -> None:
        """Send a call that waited for a person. It has its whole time again.

        While it waited it had no place at the server.
        """
        go_on = partial(self._go_on, call, plan, frame, visit)
        await visit.begin()
        if call.client_stream.is_final or call.is_recorded:
            # The client has gone, so nothing else would give the place back.
            await visit.end()
            return
        outcome = await self._gate.pipeline.check_again(call, plan, frame)
        if outcome is not None:
            await visit.end()
        if not may_be_sent(call, outcome, go_on):
            return
        self._prepare_sign_in(call, visit, go_on)
        until = asyncio.get_running_loop().time() + self._options.tool
        visit.expect_answer(until, partial(self._late, call))
        self._endpoint.register_retries(call, plan, frame, ())
        await self._endpoint.forward_modern(
            call, self._endpoint.server_of(call, plan.entry).connections, frame, ()
        )

    def _late(self, call: Call) -> None:
        if call.client_stream.is_final:
            return
        if call.held_since is not None:
            # While a person or a client is asked, no deadline runs. (D-94)
            loop = asyncio.get_running_loop()
            loop.call_later(self._options.tool, self._late, call)
            return
        self._expire(call)

    def _expire(self, call: Call) -> None:
        call.expire(self._options.tool)

    async def _within[T: Outcome](self, outcome: T | Awaitable[T]) -> T | Refusal:
        if not isinstance(outcome, Awaitable):
            return outcome
        try:
            async with asyncio.timeout(self._options.validation):
                return await outcome
        except TimeoutError:
            return _too_slow("looking at the arguments took too long", self._options.validation)

    def _require_tool(self, call: Call, name: str | None) -> CatalogEntry:
        """Return a tool that the actor may call and that is enabled. Raises MalformedMessage."""
        offer = self._gate.find(call, EntryKind.TOOL, name)
        if not self._gate.is_listed(call.client_stream.actor, EntryKind.TOOL, offer):
            raise MalformedMessage("this tool is unavailable", TOOL_DISABLED)
        return offer

    def _readable(self, call: Call, name: str | None) -> CatalogEntry:
        """Return a tool whose definition the actor may read, even if it may not call it.

        Raises MalformedMessage if the tool is disabled.
        """
        offer = self._gate.find_readable(call, name)
        if call.decision is None or self._gate.is_listed(
            call.client_stream.actor, EntryKind.TOOL, offer
        ):
            return offer
        raise MalformedMessage("this tool is unavailable", TOOL_DISABLED)

    def _output(self, call: Call, raw: Raw) -> RegistryResponse:
        result = cast("dict[str, Any]", jsonrpc.decode_value(raw))
        if result.get("resultType", protocol.COMPLETE_RESULT) != protocol.COMPLETE_RESULT:
            return self._failure_answer(call, Refusal(UPSTREAM_FAILED, _NO_INPUT))
        if result.get("isError") is True:
            reason = catalog.result_text(result)[:MAX_REASON_LENGTH] or "the tool failed"
            details = {"outcome": "failed"}
            return self._failure_answer(
                call, Refusal(UPSTREAM_FAILED, reason, suggestions=_FAILED, details=details)
            )
        return RegistryResponse(200, jsonrpc.to_raw(catalog.wrap_result(result)), None)

    def _failure_answer(self, call: Call, refusal: Refusal) -> RegistryResponse:
        asked = RefusedRequest(
            call.client_request_id, call.method, modern=True, sent=True, registry=self._context
        )
        worded = refusals.refusal_response(asked, refusal, call.ensure_trace_id())
        assert not isinstance(worded.error, msgspec.UnsetType)
        return RegistryResponse(refusal.fault.reg_status, None, worded.error)

    def _cache_result(self, call: Call, result: Raw) -> None:
        """Cache a result that a server has just sent. A cached result keeps its expiry."""
        uri = _text(Frame("2.0", params=call.params).parameters, "uri")
        if uri is not None and call.connection is not None and call.counters is not None:
            said = cast("dict[str, Any]", jsonrpc.decode_value(result))
            key = (call.counters.server, uri, call.client_stream.actor.party)
            self._resource_cache.keep(key, result, said)


async def _refuse_method(call: Call, frame: Frame, stack: AsyncExitStack) -> None:
    raise MalformedMessage(f"{call.method:.80} is not supported here", METHOD_NOT_FOUND)


def _tool_query(call: Call, frame: Frame) -> ToolQuery:
    params = frame.parameters
    return ToolQuery(
        to_reader(call.client_stream.actor), _text(params, "server"), _text(params, "cursor")
    )


def _plain(frame: Frame, params: dict[str, Any], kept: tuple[str, ...]) -> Frame:
    """Return a modern request that holds only the client's parameters with a meaning here."""
    meta = jsonrpc.decode_members(params["_meta"]) if "_meta" in params else {}
    said = {key: meta[key] for key in ("progressToken", "traceparent", "tracestate") if key in meta}
    plain = {key: params[key] for key in kept if key in params}
    return jsonrpc.with_params(frame, jsonrpc.to_raw({**plain, "_meta": {**said, **_ENVELOPE}}))


def _text(params: dict[str, Raw], name: str) -> str | None:
    if name not in params:
        return None
    found = jsonrpc.decode_text(params[name])
    if found is None:
        raise MalformedMessage(f"{name} must be text", INVALID_PARAMS)
    return found


def _too_slow(reason: str, seconds: float) -> Refusal:
    return Refusal(TIMEOUT, reason, details={"timeout_ms": round(seconds * 1000)})


def _error_data(refusal: Refusal) -> dict[str, object]:
    told: dict[str, object] = {
        "error_type": refusal.fault.reg_type,
        "field": refusal.field,
        "reason": refusal.reason,
        "suggestions": list(refusal.suggestions),
    }
    return {**told, **({"details": dict(refusal.details)} if refusal.details else {})}
