"""A live server in a page: tools, and all that MGP and MCPL add to them; needs `comity[sdk]`.

    server = Server("memory")
    retrieval = server.feature("memory.retrieval", "Recalls what was said before")

    @retrieval.before_inference
    async def recall(turn: Turn) -> str | None:
        return look_up(turn.user)

    server.run()

Rule 1: a plain MCP client sees the plain MCP server: the rest degrades silently. (MCPL §3.2)
Rule 2: what could never work is refused when it is declared, or before the first client comes.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from mcp.server.mcpserver import MCPServer

from comity.errors import Misconfigured
from comity.inference.messages import ContentBlock, ModelInfo
from comity.live.channels.model import ChannelDescriptor, ChannelDirection
from comity.live.hooks.model import InjectionPosition
from comity.mcp.mcpl import FeatureUse, ScopeBounds, ScopeClaim
from comity.policy.risk import TrustLevel
from comity.sdk.live_channels import (
    ChannelMessageReceipt,
    ChannelOutput,
    LiveChannels,
    Message,
    Post,
)
from comity.sdk.live_features import (
    Feature,
    FeatureOptions,
    FeatureState,
    MissingCheckpointError,
    ServerCheckpointStore,
)
from comity.sdk.live_hosts import HostRefusal, HostRequestFailure, HostUnavailable
from comity.sdk.live_server import LiveMiddleware
from comity.sdk.live_types import (
    HostElevationResult,
    HostPushResult,
    Injection,
    Reply,
    Rewrite,
    Turn,
)
from comity.sdk.mgp_server import CodeSafety, MgpServer, Security
from comity.sdk.mgp_server_lifecycle import Check, Resource
from comity.sdk.streaming import StreamingTools

__all__ = [
    "ChannelDescriptor",
    "ChannelDirection",
    "ChannelMessageReceipt",
    "ChannelOutput",
    "CodeSafety",
    "ContentBlock",
    "Feature",
    "FeatureState",
    "FeatureUse",
    "HostElevationResult",
    "HostPushResult",
    "HostRefusal",
    "HostRequestFailure",
    "HostUnavailable",
    "Injection",
    "InjectionPosition",
    "Message",
    "Misconfigured",
    "MissingCheckpointError",
    "ModelInfo",
    "Post",
    "Reply",
    "Rewrite",
    "ScopeBounds",
    "ScopeClaim",
    "Security",
    "Server",
    "ServerCheckpointStore",
    "Turn",
]

log = logging.getLogger(__name__)

type Background = Callable[[], Awaitable[object]]


class Server:
    """A server of the official SDK with everything around it.

    `mcp` is the SDK's own server, for resources and prompts; `events`, `asks`, `permits` and `life`
    are what MGP adds, `channels` the places outside of MCPL.
    """

    def __init__(
        self,
        name: str,
        *,
        id: str | None = None,
        permissions: Iterable[str] = (),
        trust: TrustLevel | str | None = None,
        **options: Any,
    ) -> None:
        """`options` are those of `MCPServer`: version, instructions, auth and the like."""
        self.name = name
        self.mcp: MCPServer[Any] = MCPServer(name, **options)
        self.live = LiveMiddleware(self.mcp, name, self.tool)
        self.mgp = MgpServer(self.mcp, id or name, permissions=permissions, trust=trust)
        self.streaming = StreamingTools(self.mcp)
        self.channels: LiveChannels = self.live.channels
        self.events = self.mgp.channels
        self.asks = self.mgp.asks
        self.permits = self.mgp.permits
        self.life = self.mgp.life
        self.audit = self.mgp.audit
        self._background: list[Background] = []
        # How many transports it has just now.
        self.runs = 0

    # Tools and health.

    def tool(self, security: Security | None = None, **options: Any) -> Callable[[Any], Any]:
        """Make a function a tool; an async generator is one that streams."""

        def join(function: Any) -> Any:
            if security is not None:
                self.mgp.secure(options.get("name") or function.__name__, security)
            streams = inspect.isasyncgenfunction(function)
            return (self.streaming if streams else self.mcp).tool(**options)(function)

        return join

    def check(self, name: str, check: Check) -> None:
        """Add a check that runs at each health request."""
        self.mgp.check(name, check)

    def figure(self, name: str, read: Resource) -> None:
        """Add a number that each health status reports."""
        self.mgp.resource(name, read)

    # Feature sets.

    def feature(
        self,
        name: str,
        description: str,
        *,
        uses: Iterable[str] = (),
        scoped: bool = False,
        rollback: bool = False,
        initial: object = None,
    ) -> Feature:
        """A set of behaviours that a host can enable; hooks and tools add to what it uses.

        `initial` is the state that its tools begin with, where a host keeps it.
        """
        traits = FeatureOptions(tuple(uses), scoped, rollback, initial)
        return self.live.feature(name, description, traits)

    def drop(self, name: str) -> None:
        """Remove a feature set; `announce` tells hosts so."""
        self.live.sets.pop(name, None)

    async def announce(self) -> None:
        """Tell hosts which feature sets were added and removed since they connected."""
        await self.live.announce()

    async def model(self) -> ModelInfo:
        """The model of the host. Raises HostUnavailable, HostRefusal, HostRequestFailure."""
        return await self.live.model()

    def afterwards(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run a function after the current hook has ended, when it may ask a model."""
        self.live.hooks.afterwards(function, *args)

    def background[F: Background](self, function: F) -> F:
        """Run a function as long as the server runs."""
        self._background.append(function)
        return function

    # Lifecycle.

    def run(self, port: int | None = None, host: str = "127.0.0.1") -> None:
        """Serve over stdio, or over HTTP if a port is given, until the server is closed."""
        asyncio.run(self.serve(port, host))

    async def serve(self, port: int | None = None, host: str = "127.0.0.1") -> None:
        async with self.running():
            await self.mgp.serve(port, host)

    def running(self) -> "ServerBackgroundTasks":
        """The background tasks, for servers with a transport of their own."""
        self.live.check()
        return ServerBackgroundTasks(self, self._background)


class ServerBackgroundTasks:
    """Runs the background tasks of a server until the context ends."""

    def __init__(self, server: Server, background: Iterable[Background]) -> None:
        self._server = server
        self._background = tuple(background)
        self._tasks: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> None:
        self._server.runs += 1
        if self._server.runs > 1:
            return
        # A server object outlives an event loop, as in tests.
        self._server.live.renew()
        self._server.life.closed = asyncio.Event()
        self._tasks = [asyncio.ensure_future(_run(each)) for each in self._background]
        self._tasks.append(asyncio.ensure_future(self._until_closed()))

    async def __aexit__(self, *_: object) -> None:
        self._server.runs -= 1
        if self._server.runs == 0:
            self._server.live.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _until_closed(self) -> None:
        await self._server.life.closed.wait()
        self._server.live.closed.set()


async def _run(function: Background) -> None:
    try:
        await function()
    except Exception:
        # The server goes on without it: its tools work as before.
        log.exception("A background task failed")
