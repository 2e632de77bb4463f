"""Tools that stream their result: async generators. (MGP §12)"""

import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from itertools import groupby
from typing import Any, Final, cast

import anyio
from mcp.server import Server
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import MCPServer
from mcp.types import ContentBlock, Notification, TextContent

from comity.errors import Misconfigured
from comity.mcp import jsonrpc, mgp_streaming, protocol
from comity.mcp.jsonrpc import UNSET, Frame, Id
from comity.mcp.mgp import MgpExtension
from comity.sdk.mgp_negotiation import Context, connection_of, is_modern, terms_of

type Piece = str | ContentBlock
type StreamingFunction = Callable[..., AsyncIterator[Piece]]


class _StreamingCall:
    """One call of a tool, as long as it runs."""

    def __init__(self, ctx: Context, *, streams: bool, hears: bool) -> None:
        self.scope = anyio.CancelScope()
        self.pieces: list[Piece] = []
        self.is_cancelled = False
        self._ctx = ctx
        self._streams = streams
        self._hears = hears
        self._began = time.monotonic()
        self._sent = 0

    async def tell(self, piece: Piece) -> None:
        self.pieces.append(piece)
        if self._streams:
            index, self._sent = self._sent, self._sent + 1
            await self._notify(mgp_streaming.chunk_notification(self._id, index, _block(piece)))

    async def report(self, share: float, message: str | None, remaining_ms: int | None) -> None:
        if self._hears:
            more = {} if remaining_ms is None else {"estimated_remaining_ms": remaining_ms}
            await self._notify(
                mgp_streaming.progress_notification(self._id, share, message, **more)
            )
        else:
            await self._ctx.session.report_progress(share, 1.0, message)

    def closing(self, result: dict[str, Any]) -> dict[str, Any]:
        """The result with the members of a streamed one. (MGP §12.5, D-25)"""
        if not self._streams and not self.is_cancelled:
            return result
        lasted = round((time.monotonic() - self._began) * 1000)
        said: dict[str, object] = {"streamed": self._sent > 0, "chunks_sent": self._sent}
        said["duration_ms"] = lasted
        if self.is_cancelled:
            said["cancelled"] = True
        meta = {**cast("dict[str, Any]", result.get("_meta") or {}), mgp_streaming.MIRROR: said}
        return {**result, mgp_streaming.MEMBER: said, "_meta": meta}

    @property
    def _id(self) -> Id:
        assert self._ctx.request_id is not None
        return self._ctx.request_id

    async def _notify(self, frame: Frame) -> None:
        params = cast("dict[str, Any]", jsonrpc.decode_value(cast("Any", frame.params)))
        note = Notification[dict[str, Any], str](method=str(frame.method), params=params)
        await self._ctx.session.send_notification(cast("Any", note), self._ctx.request_id)


_running: Final[ContextVar[_StreamingCall | None]] = ContextVar(
    "comity_streaming_tools", default=None
)


async def send_chunk(piece: Piece) -> None:
    """Send a chunk of the result from a tool. It is only kept if the client does not stream."""
    running = _running.get()
    if running is not None:
        await running.tell(piece)


async def report_progress(
    share: float, message: str | None = None, remaining_ms: int | None = None
) -> None:
    """Report the progress of a tool, from 0 to 1: in MGP, or in MCP to clients without MGP."""
    running = _running.get()
    if running is not None:
        await running.report(share, message, remaining_ms)


class StreamingTools:
    """Lets the tools of a server stream, and lets clients cancel them."""

    def __init__(self, server: Server[Any] | MCPServer[Any]) -> None:
        self._server = server
        self._terms = terms_of(server)
        self._terms.surround(protocol.CALL_TOOL, self._call)
        self._terms.add(mgp_streaming.CANCEL, MgpExtension.STREAMING, self._cancel)
        self._open: dict[tuple[object, Id], _StreamingCall] = {}

    def tool(self, **options: Any) -> Callable[[StreamingFunction], StreamingFunction]:
        """Make a tool of an async generator; the options are those of `MCPServer.tool`."""
        server = self._server
        if not isinstance(server, MCPServer):
            raise Misconfigured("only an MCPServer makes tools of functions; use tell() instead")

        def register(function: StreamingFunction) -> StreamingFunction:
            wanted: dict[str, Any] = {"structured_output": False, **options}
            server.add_tool(_whole(function), **wanted)
            return function

        return register

    async def _call(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        hears = MgpExtension.STREAMING in self._terms.agreed(ctx)
        asked, name = _asked(ctx) if hears else (False, None)
        running = _StreamingCall(ctx, streams=asked, hears=hears)
        key = _key(ctx, name)
        self._open.setdefault(key, running)
        before = _running.set(running)
        try:
            with running.scope:
                return running.closing(dict(cast("dict[str, Any]", await call_next(ctx))))
        finally:
            _running.reset(before)
            if self._open.get(key) is running:
                del self._open[key]
        # Only its own scope can have ended it: it was cancelled by name.
        return running.closing(_partial(ctx, running))

    async def _cancel(self, ctx: Context) -> Mapping[str, object]:
        params = dict(ctx.params or {})
        named, _ = mgp_streaming.cancel_in(jsonrpc.to_raw(params))
        modern = is_modern(ctx)
        running = self._open.get((None if modern else connection_of(ctx), named))
        if running is None or running.is_cancelled:
            return mgp_streaming.too_late()
        running.is_cancelled = True
        running.scope.cancel()
        return mgp_streaming.cancellation_result(
            [_block(piece) for piece in _joined(running.pieces)]
        )


def _key(ctx: Context, name: str | None) -> tuple[object, Id]:
    """The key of a call: its id on its connection, or the name that a modern call gave."""
    assert ctx.request_id is not None
    if not is_modern(ctx):
        return connection_of(ctx), ctx.request_id
    return (connection_of(ctx), ctx.request_id) if name is None else (None, name)


def _asked(ctx: Context) -> tuple[bool, str | None]:
    params = UNSET if ctx.params is None else jsonrpc.to_raw(dict(ctx.params))
    return mgp_streaming.streaming_request_in(Frame("2.0", UNSET, ctx.method, params))


def _partial(ctx: Context, running: _StreamingCall) -> dict[str, Any]:
    content = [_block(piece) for piece in _joined(running.pieces)]
    plain: dict[str, Any] = {"content": content, "isError": False}
    return {**plain, "resultType": protocol.COMPLETE_RESULT} if is_modern(ctx) else plain


def _whole(function: StreamingFunction) -> Callable[..., Any]:
    """A function that sends each piece of the generator, and returns all of them at the end."""
    if not inspect.isasyncgenfunction(function):
        raise Misconfigured(f"{function!r:.80} must be an async generator: async def with a yield")

    @wraps(function)
    async def run(*args: Any, **kwargs: Any) -> list[ContentBlock]:
        pieces: list[Piece] = []
        generator = cast("AsyncGenerator[Piece]", function(*args, **kwargs))
        try:
            async for piece in generator:
                pieces.append(piece)
                await send_chunk(piece)
        finally:
            # Its own clean-up is done now, also where it was cancelled.
            with anyio.CancelScope(shield=True):
                await generator.aclose()
        return [_content(piece) for piece in _joined(pieces)]

    run.__annotations__ = {**function.__annotations__, "return": list[ContentBlock]}
    return run


def _joined(pieces: list[Piece]) -> list[Piece]:
    """The same pieces, with consecutive texts joined."""
    joined: list[Piece] = []
    for is_text, group in groupby(pieces, lambda piece: isinstance(piece, str)):
        found = list(group)
        joined.extend(["".join(map(str, found))] if is_text else found)
    return joined


def _content(piece: Piece) -> ContentBlock:
    return TextContent(type="text", text=piece) if isinstance(piece, str) else piece


def _block(piece: Piece) -> dict[str, Any]:
    return _content(piece).model_dump(by_alias=True, mode="json", exclude_none=True)
