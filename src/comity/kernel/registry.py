"""The registry's desk: each request stands alone, and passes the one gate. (REG, D-100)

What is asked here is asked of the same servers, over the same links, as at every other door; only
the words are the registry's: four timeouts, outputs in two forms, errors with its numbers.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast

import msgspec
from msgspec import Raw

from comity.kernel.admission import Outcome
from comity.kernel.call import Call
from comity.kernel.call_hold import Hold
from comity.kernel.catalog import Kind, Offer
from comity.kernel.exports import Exports, Wanted, reader
from comity.kernel.gate import Gate
from comity.kernel.kept_reads import KeptReads
from comity.kernel.outbox import Outbox
from comity.kernel.places import Places
from comity.kernel.switchboard import AllServers
from comity.kernel.underway import Underway
from comity.rules import catalogue, refusals
from comity.rules.refusals import Asked, AtRegistry, Refusal
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    TIMEOUT,
    TOOL_DISABLED,
    UPSTREAM_FAILED,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import Frame

VALIDATE: Final = "tools/validate"
CATALOGUE: Final = "registry/catalogue"
EXPORT: Final = "registry/export"
OPENAPI: Final = "registry/openapi"
SPOKEN: Final = frozenset(
    {mcp.LIST_TOOLS, mcp.CALL_TOOL, VALIDATE, mcp.LIST_RESOURCES, mcp.READ_RESOURCE}
)
"""What may be said in JSON-RPC; the rest only its own paths say."""

LONGEST_REASON: Final = 4000
_ABOUT: Final = {"name": "comity-registry", "version": catalogue.CATALOGUE_VERSION}
_ENVELOPE: Final[dict[str, object]] = {
    mcp.PROTOCOL_VERSION: mcp.LATEST_MODERN,
    # Nobody at this face can be asked anything amid a call.
    mcp.CLIENT_CAPABILITIES: {},
    mcp.CLIENT_INFO: _ABOUT,
}
_FAILED: Final = ("The reason is the tool's own words.", "Change the arguments, or ask its server.")
_NO_INPUT: Final = "the tool asks for input amid the call, which nobody can give at this door"


@dataclass(frozen=True, slots=True)
class Options:
    """How long each thing may take, in seconds (REG, timeout configuration), and how much at once.

    `lock` bounds the wait for one of the places at a server: no lock is held here that a call could
    wait for longer. `documentation` is where the operator has these docs.
    """

    tool: float = 30.0
    validation: float = 5.0
    discovery: float = 2.0
    lock: float = 0.5
    calls_per_server: int = 64
    documentation: str = ""


class Answer(NamedTuple):
    """A whole answer: its HTTP status, and either a result or an error."""

    status: int
    result: Raw | None
    error: Raw | None


class Registry:
    """The desk of `/tools`, `/resources` and `/openapi.json`."""

    def __init__(
        self,
        desk: AllServers,
        gate: Gate,
        underway: Underway,
        exports: Exports,
        options: Options,
    ) -> None:
        self._desk = desk
        self._gate = gate
        self._underway = underway
        self._exports = exports
        self._options = options
        self._told = AtRegistry(options.documentation)
        self._places = Places(options.calls_per_server, options.lock)
        self._kept = KeptReads(underway.now)
        gate.catalog.watch(self._kept.forget)
        self._methods: dict[str, Callable[[Call, Frame, AsyncExitStack], Awaitable[None]]] = {
            mcp.LIST_TOOLS: self._list,
            mcp.LIST_RESOURCES: self._list,
            mcp.CALL_TOOL: self._call,
            mcp.READ_RESOURCE: self._read,
            VALIDATE: self._validate,
            CATALOGUE: self._discover,
            EXPORT: self._discover,
            OPENAPI: self._discover,
        }

    @asynccontextmanager
    async def asking(self, frame: Frame, outbox: Outbox) -> AsyncGenerator[Call]:
        """One request from its beginning to its end; then all that was taken for it is free."""
        outbox.registry = self._told
        call = self._underway.begin(frame, outbox, None)
        call.is_for_all_servers = True
        async with AsyncExitStack() as held:
            try:
                await self._begin(call, frame, held)
                yield call
            finally:
                if not outbox.final:
                    call.withdraw(None)

    def concluded(self, call: Call, answer: bytes) -> Answer:
        """What is told in the end: a tool's output in both forms, or an error."""
        said = jsonrpc.members(answer)
        if "error" in said:
            return Answer(call.outbox.status, None, said["error"])
        result = said["result"]
        if call.method == mcp.CALL_TOOL:
            return self._output(call, result)
        if call.method == mcp.READ_RESOURCE:
            self._keep(call, result)
        return Answer(200, result, None)

    async def _begin(self, call: Call, frame: Frame, held: AsyncExitStack) -> None:
        if self._gate.turns_away(call):
            return
        try:
            await self._methods.get(call.method, _not_said)(call, frame, held)
        except (Unavailable, MalformedMessage) as error:
            call.failed(error)

    async def _list(self, call: Call, frame: Frame, held: AsyncExitStack) -> None:
        kind = Kind.TOOL if call.method == mcp.LIST_TOOLS else Kind.RESOURCE
        definitions, following = self._exports.page(kind, _wanted(call, frame))
        listed: dict[str, object] = {kind: [Raw(definition) for definition in definitions]}
        if following is not None:
            listed["nextCursor"] = following
        call.answered(jsonrpc.result(call.asker_id, listed))

    async def _discover(self, call: Call, frame: Frame, held: AsyncExitStack) -> None:
        wanted, named = _wanted(call, frame), _text(jsonrpc.params_of(frame), "name")
        call.outbox.actor = wanted.actor
        try:
            async with asyncio.timeout(self._options.discovery):
                if call.method == CATALOGUE:
                    told = await self._exports.catalogue(wanted)
                elif call.method == OPENAPI:
                    told = await self._exports.openapi(wanted)
                else:
                    told = await self._exports.export(self._readable(call, named))
        except TimeoutError:
            call.turn_down(_too_slow("telling of the tools took too long", self._options.discovery))
        else:
            call.answered(jsonrpc.result(call.asker_id, told))

    async def _validate(self, call: Call, frame: Frame, held: AsyncExitStack) -> None:
        """Whether arguments would pass; that they do not is an answer, and no failure."""
        offer = self._shown(call, _text(jsonrpc.params_of(frame), "name"))
        refusal = await self._within(self._gate.check(call, offer, frame))
        if refusal is not None and refusal.fault.reg_type != "ValidationError":
            call.turn_down(refusal)
            return
        errors = [] if refusal is None else [_told(refusal)]
        call.answered(jsonrpc.result(call.asker_id, {"valid": not errors, "errors": errors}))

    async def _call(self, call: Call, frame: Frame, held: AsyncExitStack) -> None:
        params = jsonrpc.params_of(frame)
        offer = self._gate.find(call, Kind.TOOL, _text(params, "name"))
        asked = _plain(frame, {**params, "name": offer.name}, ("name", "arguments"))
        await self._send(call, offer, asked, held)

    async def _read(self, call: Call, frame: Frame, held: AsyncExitStack) -> None:
        params = jsonrpc.params_of(frame)
        uri = _text(params, "uri")
        offer = self._gate.find_resource(call, uri)
        kept = self._kept.find(offer.server, uri or "", call.outbox.actor.party)
        if kept is not None:
            call.counted = self._underway.tallies.at(offer.server)
            call.answered(jsonrpc.result(call.asker_id, kept))
            return
        await self._send(call, offer, _plain(frame, params, ("uri",)), held)

    async def _send(self, call: Call, offer: Offer, frame: Frame, held: AsyncExitStack) -> None:
        """All that a call waits for before it is sent, and the answer, within one time."""
        reached = self._desk.server_of(call, offer).reached
        loop = asyncio.get_running_loop()
        until = loop.time() + self._options.tool
        place = await held.enter_async_context(AsyncExitStack())
        try:
            async with asyncio.timeout_at(until):
                await place.enter_async_context(self._places.taken(offer.server))
                if call.method == mcp.CALL_TOOL:
                    outcome = await self._within(self._gate.examine(call, offer, frame))
                    if isinstance(outcome, Refusal):
                        call.turn_down(outcome)
                        return
                    if outcome is not None:
                        await self._wait(outcome, call, offer, frame, place)
                        return
                    self._desk.attend(call, offer, frame, ())
                await self._desk.pass_on(call, reached, frame, ())
        except TimeoutError:
            self._expire(call)
            return
        held.callback(loop.call_at(until, self._late, call).cancel)

    async def _wait(
        self, hold: Hold, call: Call, offer: Offer, frame: Frame, place: AsyncExitStack
    ) -> None:
        """Have a person asked; when there is an answer, the call has its whole time.

        Whoever waits for a person takes nobody's place at the server meanwhile.
        """
        await place.aclose()

        async def go_on() -> None:
            await place.enter_async_context(self._places.taken(offer.server))
            if call.outbox.final or call.is_concluded:
                # Whoever asked has gone, and nobody else would give the place back.
                await place.aclose()
                return
            asyncio.get_running_loop().call_later(self._options.tool, self._late, call)
            self._desk.attend(call, offer, frame, ())
            await self._desk.pass_on(call, self._desk.server_of(call, offer).reached, frame, ())

        hold.begin(go_on, timedelta(seconds=self._options.tool))

    def _late(self, call: Call) -> None:
        if call.outbox.final:
            return
        if call.held is not None:
            # Somebody is being asked: until there is an answer, no deadline runs. (D-94)
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

    def _shown(self, call: Call, name: str | None) -> Offer:
        """A tool that this actor may call, and that can be called just now."""
        offer = self._gate.find(call, Kind.TOOL, name)
        if not self._gate.shows(call.outbox.actor, Kind.TOOL, offer):
            raise MalformedMessage("this tool cannot be called just now", TOOL_DISABLED)
        return offer

    def _readable(self, call: Call, name: str | None) -> Offer:
        """A tool whose definition this actor may read, whether or not it may call it."""
        offer = self._gate.find_readable(call, name)
        if call.judged is None or self._gate.shows(call.outbox.actor, Kind.TOOL, offer):
            return offer
        raise MalformedMessage("this tool cannot be called just now", TOOL_DISABLED)

    def _output(self, call: Call, raw: Raw) -> Answer:
        result = cast("dict[str, Any]", jsonrpc.value(raw))
        if result.get("resultType", mcp.COMPLETE_RESULT) != mcp.COMPLETE_RESULT:
            return self._failed(call, Refusal(UPSTREAM_FAILED, _NO_INPUT))
        if result.get("isError") is True:
            because = catalogue.words_in(result)[:LONGEST_REASON] or "the tool failed"
            details = {"outcome": "failed"}
            return self._failed(
                call, Refusal(UPSTREAM_FAILED, because, suggestions=_FAILED, details=details)
            )
        return Answer(200, jsonrpc.to_raw(catalogue.wrapped(result)), None)

    def _failed(self, call: Call, refusal: Refusal) -> Answer:
        asked = Asked(call.asker_id, call.method, modern=True, sent=True, registry=self._told)
        worded = refusals.word(asked, refusal, call.traced())
        assert not isinstance(worded.error, msgspec.UnsetType)
        return Answer(refusal.fault.reg_status, None, worded.error)

    def _keep(self, call: Call, result: Raw) -> None:
        """Keep what a server has just said; what was kept already grows no younger."""
        uri = _text(jsonrpc.params_of(Frame("2.0", params=call.params)), "uri")
        if uri is not None and call.link is not None and call.counted is not None:
            said = cast("dict[str, Any]", jsonrpc.value(result))
            key = (call.counted.server, uri, call.outbox.actor.party)
            self._kept.keep(key, result, said)


async def _not_said(call: Call, frame: Frame, held: AsyncExitStack) -> None:
    raise MalformedMessage(f"{call.method:.80} is not said here", METHOD_NOT_FOUND)


def _wanted(call: Call, frame: Frame) -> Wanted:
    params = jsonrpc.params_of(frame)
    return Wanted(reader(call.outbox.actor), _text(params, "server"), _text(params, "cursor"))


def _plain(frame: Frame, params: dict[str, Any], kept: tuple[str, ...]) -> Frame:
    """A request as one of the modern era; of what the client sent only what has a meaning here."""
    meta = jsonrpc.members(params["_meta"]) if "_meta" in params else {}
    said = {key: meta[key] for key in ("progressToken", "traceparent", "tracestate") if key in meta}
    plain = {key: params[key] for key in kept if key in params}
    return jsonrpc.with_params(frame, jsonrpc.to_raw({**plain, "_meta": {**said, **_ENVELOPE}}))


def _text(params: dict[str, Raw], name: str) -> str | None:
    if name not in params:
        return None
    found = jsonrpc.text(params[name])
    if found is None:
        raise MalformedMessage(f"{name} must be text", INVALID_PARAMS)
    return found


def _too_slow(because: str, seconds: float) -> Refusal:
    return Refusal(TIMEOUT, because, details={"timeout_ms": round(seconds * 1000)})


def _told(refusal: Refusal) -> dict[str, object]:
    told: dict[str, object] = {
        "error_type": refusal.fault.reg_type,
        "field": refusal.field,
        "reason": refusal.because,
        "suggestions": list(refusal.suggestions),
    }
    return {**told, **({"details": dict(refusal.details)} if refusal.details else {})}
