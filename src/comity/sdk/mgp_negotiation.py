"""MGP negotiation of a server with each of its clients."""

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, cast

from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import MCPServer
from mcp.types import Notification

from comity.errors import METHOD_NOT_FOUND, Fault, MalformedMessage
from comity.events.model import EventFilter
from comity.mcp import jsonrpc, protocol
from comity.mcp.mgp import (
    METHOD_PREFIX,
    VERSION,
    NegotiatedTerms,
    declare_mgp,
    decode_statement,
    negotiate_terms,
    offer_extensions,
)
from comity.mcp.refusals import Refusal, RefusedRequest, refusal_response, trace_of

type Context = ServerRequestContext[Any, Any]
type Answer = Callable[[Context], Awaitable[Mapping[str, object]]]
type Around = Callable[[Context, CallNext], Awaitable[HandlerResult]]

_STATE: Final = "dev.comity/mgp"


class MgpTerms:
    """The middleware of a server that speaks MGP."""

    def __init__(self) -> None:
        self._offered: set[str] = set()
        self._methods: dict[str, tuple[str, Answer]] = {}
        self._around: dict[str, Around] = {}
        # What is said of the server beside version and extensions: its id, what it needs.
        self.more: dict[str, object] = {}

    def offer(self, extension: str) -> None:
        self._offered.add(extension)

    def add(self, method: str, extension: str, answer: Answer) -> None:
        """Have a method of MGP answered, for clients that agreed on its extension."""
        self.offer(extension)
        self._methods[method] = (extension, answer)

    def surround(self, method: str, around: Around) -> None:
        """Have something done before and after a method of MCP."""
        self._around[method] = around

    def agreed(self, ctx: Context) -> frozenset[str]:
        """The extensions that the client of this request may use."""
        said = _envelope(ctx)
        if said is None:
            terms = cast("NegotiatedTerms | None", _state(ctx).get(_STATE))
        else:
            terms = negotiate_terms(
                decode_statement(jsonrpc.to_raw(said)), frozenset(self._offered)
            )
        return frozenset() if terms is None else terms.extensions

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.method in (protocol.INITIALIZE, protocol.DISCOVER):
            return self._introduced(ctx, await call_next(ctx))
        if ctx.method.startswith(METHOD_PREFIX) and ctx.request_id is not None:
            return await self._answer(ctx)
        around = self._around.get(ctx.method)
        return await (call_next(ctx) if around is None else around(ctx, call_next))

    def _introduced(self, ctx: Context, result: HandlerResult) -> HandlerResult:
        """Answer a client that declared MGP with the negotiated extensions. (MGP §2.4)"""
        said = _envelope(ctx)
        if said is None and ctx.method == protocol.INITIALIZE:
            said = cast("dict[str, object]", (ctx.params or {}).get("capabilities") or {})
        asked = jsonrpc.to_raw(said or {})
        terms = negotiate_terms(decode_statement(asked), frozenset(self._offered))
        _state(ctx)[_STATE] = terms
        if terms is None or not isinstance(result, dict):
            return result
        capabilities = cast("dict[str, Any]", result.get("capabilities") or {})
        told = declare_mgp(capabilities, offer_extensions(terms.extensions, self.more), asked)
        return {**result, "capabilities": told}

    async def _answer(self, ctx: Context) -> HandlerResult:
        extension, answer = self._methods.get(ctx.method, ("", None))
        if answer is None or extension not in self.agreed(ctx):
            reason = f"there is no {ctx.method:.200} here for this client"
            raise MCPError(METHOD_NOT_FOUND.code, reason)
        try:
            answered = dict(await answer(ctx))
        except MalformedMessage as error:
            raise MCPError(error.fault.code, str(error)) from None
        if _envelope(ctx) is not None:
            answered.setdefault("resultType", protocol.COMPLETE_RESULT)
        return answered


def terms_of(server: Server[Any] | MCPServer[Any]) -> MgpTerms:
    """The terms of a server object; made where it has none yet."""
    found = [each for each in server.middleware if isinstance(each, MgpTerms)]
    if not found:
        found = [MgpTerms()]
        server.middleware.append(found[0])
    return found[0]


def connection_of(ctx: Context) -> object:
    """The connection of a request; in the modern protocol each request has its own."""
    return ctx.session._connection  # pyright: ignore[reportPrivateUsage]  # the SDK has no other way


def is_modern(ctx: Context) -> bool:
    """Whether the request declares the capabilities of its client. (2026-07-28)"""
    return _envelope(ctx) is not None


def _state(ctx: Context) -> dict[str, Any]:
    state: dict[str, Any] = ctx.session._connection.state  # pyright: ignore[reportPrivateUsage]  # same
    return state


def _envelope(ctx: Context) -> dict[str, object] | None:
    meta = (ctx.params or {}).get("_meta")
    said = cast("dict[str, Any]", meta).get(protocol.CLIENT_CAPABILITIES) if meta else None
    return cast("dict[str, object]", said) if isinstance(said, dict) else None


_NO_TRACE: Final = "0" * 32


@dataclass(eq=False)
class MgpClientConnection:
    """One connection. `session` is the latest one, for notifications outside of a request."""

    session: Any
    extensions: frozenset[str] = frozenset()
    subscriptions: dict[str, EventFilter] = field(default_factory=dict[str, EventFilter])

    async def tell(self, method: str, params: Mapping[str, object]) -> None:
        await self.session.send_notification(_note(method, params))


@dataclass(frozen=True, eq=False)
class MgpRequest:
    """One request, and whose it is. `extensions` are those that its client agreed on."""

    peer: MgpClientConnection
    context: Context
    extensions: frozenset[str]

    @property
    def params(self) -> Mapping[str, Any]:
        return self.context.params or {}

    @property
    def trace(self) -> str:
        """The trace that it is part of, in 32 digits; empty for none. (MGP §6.5)"""
        return trace_of(jsonrpc.to_raw(dict(self.params))) or ""

    async def tell(self, method: str, params: Mapping[str, object]) -> None:
        """Send a notification on the stream of this request."""
        told = _note(method, params)
        await self.context.session.send_notification(told, self.context.request_id)

    def refused(self, fault: Fault, because: str) -> MCPError:
        """The error that says this, in MGP's words where it was agreed on."""
        terms = NegotiatedTerms(VERSION, self.extensions) if self.extensions else None
        asked = RefusedRequest(self.context.request_id or 0, self.context.method, terms)
        found = jsonrpc.error_of(
            refusal_response(asked, Refusal(fault, because), self.trace or _NO_TRACE)
        )
        if found is None:
            return MCPError(fault.code, because)
        return MCPError(found.code, found.message, found.data)


CURRENT: ContextVar[MgpRequest | None] = ContextVar("comity_mgp_server", default=None)
"""The request in which a tool runs."""


def _note(method: str, params: Mapping[str, object]) -> Any:
    return Notification[dict[str, Any], str](method=method, params=dict(params))
