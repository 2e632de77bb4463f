"""A tool server of the official SDK that speaks MGP as well; needs `comity[sdk]`. (MGP §2, §8.1)

Rule 1: to a client that says nothing of MGP it is the plain MCP server that it was.
Rule 2: what is active is what both named; a method of anything else does not exist.
Rule 3: tools that stream join by themselves (`comity.sdk.streaming_tools`): the terms are shared.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from mcp.server import Server
from mcp.server.connection import Connection
from mcp.server.context import CallNext
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

from comity.sdk.mgp_server_asks import Asks
from comity.sdk.mgp_server_events import Channels
from comity.sdk.mgp_server_labels import Labels, Security
from comity.sdk.mgp_server_life import MOST_CHECKS, Check, Life, Resource
from comity.sdk.mgp_server_peers import CURRENT, Peer, Request
from comity.sdk.mgp_server_permits import Permits
from comity.sdk.mgp_server_running import serve_pipes, serve_port
from comity.sdk.mgp_terms import Answer, Context, connection_of, terms_of
from comity.wire import audit, callbacks, events, lifecycle, mcp
from comity.wire.errors import Misconfigured
from comity.wire.negotiation import Extension
from comity.wire.security import ASK_TO_WAIT, TELL_DECISION, Trust

_PEER: Final = "dev.comity/mgp_server"
_FREE: Final = frozenset({mcp.INITIALIZE, mcp.DISCOVER, mcp.PING})
"""What a server answers until its last moment."""

_EXTENSIONS: Final = frozenset(
    {Extension.SECURITY, Extension.LIFECYCLE, Extension.BIDIRECTIONAL, Extension.AUDIT}
)

type _Answer = Callable[[Request], Awaitable[dict[str, object]]]


class MgpServer:
    """MGP around a `Server` or an `MCPServer`; make it before the first client comes.

    `permissions` is what the server needs beside what its tools' labels name; `trust` is how far it
    asks to be trusted. `asks`, `channels`, `life` and `permits` are its parts, for its tools.
    """

    def __init__(
        self,
        server: Server[Any] | MCPServer[Any],
        server_id: str,
        *,
        permissions: Iterable[str] = (),
        trust: Trust | str | None = None,
        extensions: Iterable[Extension] = _EXTENSIONS,
    ) -> None:
        self.server = server
        self.id = server_id
        self.labels = Labels()
        self.life = Life(server_id)
        self.channels = Channels(self.life.peers)
        self.asks = Asks()
        self.permits = Permits()
        self._permissions = tuple(permissions)
        self._terms = terms_of(server)
        self._terms.more["server_id"] = server_id
        if trust is not None:
            self._terms.more["trust_level"] = _trust(trust)
        self._join(frozenset(extensions))
        server.middleware.append(self._around)

    def tool(self, security: Security, **options: Any) -> Callable[[Any], Any]:
        """As `MCPServer.tool`, with a label."""
        if not isinstance(self.server, MCPServer):
            raise Misconfigured("a low-level Server lists its own tools: label them with `secure`")
        own = self.server.tool(**options)

        def labelled(function: Any) -> Any:
            self.secure(options.get("name") or function.__name__, security)
            return own(function)

        return labelled

    def secure(self, tool: str, security: Security) -> None:
        """Label a tool by its name."""
        self.labels.put(tool, security)
        self._tell_needs()

    def check(self, name: str, check: Check) -> None:
        """Have something looked at whenever somebody asks how the server is."""
        if len(self.life.checks) >= MOST_CHECKS:
            raise Misconfigured(f"a server has at most {MOST_CHECKS} checks")
        self.life.checks[name] = check

    def resource(self, name: str, read: Resource) -> None:
        """Have a figure told whenever somebody asks how the server is."""
        self.life.resources[name] = read

    async def audit(self, event_type: str, result: str = "SUCCESS", **details: object) -> None:
        """Tell what a tool did, in the trace of the call amid which it does it. (MGP §6.5)"""
        request = CURRENT.get()
        if request is None or Extension.AUDIT not in request.extensions:
            return
        told: dict[str, object] = {
            "timestamp": audit.stamp(datetime.now(UTC)),
            "event_type": event_type,
            "actor": {"type": "server", "id": self.id},
            "target": {"server_id": self.id, "tool_name": str(request.params.get("name", ""))},
            "result": result,
            "details": details,
        }
        if request.trace:
            told["trace_id"] = audit.as_uuid(request.trace)
        await request.tell(audit.NOTICE, told)

    def run(self, port: int | None = None, host: str = "127.0.0.1") -> None:
        """Serve on the pipes, or over HTTP where a port is given, until the end."""
        asyncio.run(self.serve(port, host))

    async def serve(self, port: int | None = None, host: str = "127.0.0.1") -> None:
        if port is None:
            await serve_pipes(self.server, self.life.closed)
        else:
            await serve_port(self.server, self.life.closed, host, port)

    async def _around(self, ctx: Context, call_next: CallNext) -> Any:
        request = self._request(ctx)
        if ctx.request_id is None or ctx.method in _FREE:
            return await call_next(ctx)
        async with self.life.running(request):
            if ctx.method == mcp.CALL_TOOL:
                await self.permits.hold(request, self.labels.needs(request.params.get("name")))
            here = CURRENT.set(request)
            try:
                result = await call_next(ctx)
            finally:
                CURRENT.reset(here)
        if ctx.method == mcp.LIST_TOOLS and Extension.SECURITY in request.extensions:
            return self.labels.labelled(_plain(result))
        return result

    def _join(self, extensions: frozenset[Extension]) -> None:
        life, bidirectional = Extension.LIFECYCLE, Extension.BIDIRECTIONAL
        methods: dict[str, tuple[Extension, _Answer]] = {
            lifecycle.HEALTH_PING: (life, self.life.ping),
            lifecycle.HEALTH_STATUS: (life, self._status),
            lifecycle.SHUTDOWN: (life, self.life.shut_down),
            events.SUBSCRIBE: (bidirectional, self.channels.subscribe),
            events.UNSUBSCRIBE: (bidirectional, self.channels.unsubscribe),
            callbacks.RESPOND: (bidirectional, self.asks.answered),
            **dict.fromkeys(ASK_TO_WAIT, (Extension.SECURITY, self.permits.wait)),
            **dict.fromkeys(TELL_DECISION, (Extension.SECURITY, self.permits.decided)),
        }
        for extension in extensions:
            self._terms.offer(extension)
        for method, (extension, answer) in methods.items():
            if extension in extensions:
                self._terms.add(method, extension, self._answering(answer))
        self._tell_needs()

    def _answering(self, answer: _Answer) -> Answer:
        return lambda context: answer(self._request(context))

    def _tell_needs(self) -> None:
        needs = dict.fromkeys((*self._permissions, *self.labels.permissions))
        self._terms.more["permissions_required"] = [*needs]

    async def _status(self, _: Request) -> dict[str, object]:
        """Of a low-level server only the labelled tools are known."""
        if isinstance(self.server, MCPServer):
            names = tuple(tool.name for tool in await self.server.list_tools())
        else:
            names = self.labels.names
        usable = sum(self.permits.allow(self.labels.needs(name)) for name in names)
        return await self.life.status((usable, len(names)))

    def _request(self, context: Context) -> Request:
        connection = cast("Connection", connection_of(context))
        peer: Peer | None = connection.state.get(_PEER)
        if peer is None:
            peer = connection.state[_PEER] = Peer(context.session)
            self.life.peers.add(peer)
            connection.exit_stack.callback(self.life.peers.discard, peer)
        peer.session = context.session
        peer.extensions = self._terms.agreed(context)
        return Request(peer, context, peer.extensions)


def _trust(said: str) -> Trust:
    if said not in Trust:
        raise Misconfigured(f"trust is one of {', '.join(Trust)}, not {said!r:.40}")
    return Trust(said)


def _plain(result: object) -> Mapping[str, Any]:
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return cast("Mapping[str, Any]", result or {})
