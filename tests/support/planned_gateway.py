"""A gateway with keys, grants and scripted servers, and callers that repeat one request."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from comity.app.reload import follow_settings
from comity.app.settings import ServerSettings, Settings
from comity.app.settings_reader import ConfigSource, LoadedConfig
from comity.gateway.pipeline import CallPlan, PlanCache
from comity.identity.keys import mint_key
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, PrincipalKind
from comity.policy.grants import Effect, Grant
from tests.support.credentials import bearer
from tests.support.listening import Peer
from tests.support.upstream import Exchange, Upstream, scripted
from tests.support.visitor import BOTH, ENVELOPE, MODERN, Frame, Visitor, at, read_head, visiting
from tests.support.visitor import request as frame_of

SECONDS = 20.0
OPERATOR = "person:operator"
CALLER = "agent:caller"
OPERATOR_GRANTS = tuple(
    Grant(OPERATOR, verb, "*", Effect.ALLOW) for verb in (ADMIN_READ, ADMIN_WRITE)
)
USUAL: dict[str, Any] = {
    "identity_mode": "required",
    "policy_require_approval": "never",
    "policy_fallback_validators": "off",
    "policy_on_suspicious_definition": "show",
    "approvals_client_wait": timedelta(0),
    "grants": OPERATOR_GRANTS,
}
PLAIN_SCHEMA: Frame = {"type": "object"}


def refusal_in(answer: Frame) -> str:
    """The type of the error that an answer holds; empty if the call passed."""
    if "error" in answer:
        return answer["error"]["data"]["error_type"]
    result = answer["result"]
    if result.get("resultType") == "input_required":
        return "input_required"
    return result["_meta"]["dev.comity/refusal"]["error_type"] if result.get("isError") else ""


@dataclass
class ToolServer:
    """A modern server whose tools a test changes, and which tells the gateway so."""

    upstream: Upstream
    name: str
    tools: dict[str, Frame] = field(default_factory=dict[str, Frame])
    listeners: list[Exchange] = field(default_factory=list[Exchange])
    capabilities: Frame = field(default_factory=lambda: {"tools": {"listChanged": True}})

    @property
    def settings(self) -> ServerSettings:
        return at(self.upstream.url, self.name)

    @property
    def calls(self) -> int:
        return len(self.upstream.of("tools/call"))

    def play(self) -> None:
        @self.upstream.act("server/discover")
        async def discover(exchange: Exchange) -> None:
            told = {"supportedVersions": [MODERN], "capabilities": self.capabilities}
            await exchange.result({**told, "resultType": "complete"})

        @self.upstream.act("tools/list")
        async def list_tools(exchange: Exchange) -> None:
            listed = [{"name": name, **each} for name, each in self.tools.items()]
            told = {"tools": listed, "ttlMs": 3_600_000, "cacheScope": "public"}
            await exchange.result({**told, "resultType": "complete"})

        @self.upstream.act("subscriptions/listen")
        async def listen(exchange: Exchange) -> None:
            await exchange.stream()
            await self._say(exchange, "notifications/subscriptions/acknowledged")
            self.listeners.append(exchange)
            await exchange.left()

    async def tell_list_changed(self) -> None:
        async with asyncio.timeout(SECONDS):
            while not self.listeners:
                await asyncio.sleep(0.01)
        for exchange in self.listeners:
            await self._say(exchange, "notifications/tools/list_changed")

    async def _say(self, exchange: Exchange, method: str) -> None:
        stamp = {"io.modelcontextprotocol/subscriptionId": exchange.id}
        params: Frame = {"_meta": stamp}
        if method.endswith("acknowledged"):
            params["notifications"] = {"toolsListChanged": True}
        await exchange.event({"method": method, "params": params})


@dataclass
class Caller:
    """Repeats one tool call on one connection, with the same head each time."""

    gateway: "PlannedGateway"
    key: str
    path: str
    tool: str
    arguments: Frame
    _peer: Peer | None = None

    async def call(self) -> str:
        """Call the tool, and return the type of the refusal; empty if the call passed."""
        if self._peer is None:
            self._peer = await self.gateway.visitor.place.connect()
        params = {"name": self.tool, "arguments": self.arguments, "_meta": ENVELOPE}
        body = json.dumps(frame_of(1, "tools/call", params)).encode()
        headers = {
            "host": self.gateway.visitor.place.address.removeprefix("http://"),
            "content-type": "application/json",
            "accept": BOTH,
            "mcp-protocol-version": MODERN,
            "mcp-method": "tools/call",
            "mcp-name": self.tool,
            **bearer(self.key),
            "content-length": str(len(body)),
        }
        lines = [f"POST {self.path} HTTP/1.1", *(f"{n}: {v}" for n, v in headers.items())]
        self._peer.say("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        reply = await read_head(self._peer)
        return refusal_in((await reply.frames())[-1])

    async def pass_with_plan(self) -> CallPlan:
        """Call until the gateway has a plan that the next call would use, and return it.

        The gateway may advance the generation once more while it settles.
        """
        async with asyncio.timeout(SECONDS):
            while True:
                assert not await self.call()
                plan = self.gateway.plan_of(self.tool.rpartition("__")[2])
                if plan is not None:
                    break
        seen = len(self.gateway.cache.plans)
        assert not await self.call()
        assert len(self.gateway.cache.plans) == seen
        return plan

    async def is_refused_soon(self, seconds: float = 5.0) -> str:
        """Call until the gateway refuses, and return the type of the refusal."""
        async with asyncio.timeout(seconds):
            while not (refusal := await self.call()):
                await asyncio.sleep(0.02)
        return refusal

    async def refusal_at(self, end: datetime) -> str:
        """Call until the gateway refuses: every call after `end`, and none before it."""
        async with asyncio.timeout(SECONDS):
            while True:
                begun = datetime.now(UTC)
                refusal = await self.call()
                if refusal:
                    assert datetime.now(UTC) >= end, refusal
                    return refusal
                assert begun < end
                await asyncio.sleep(0.02)


@dataclass
class PlannedGateway:
    """A gateway, its servers, and the operator who changes what it allows."""

    visitor: Visitor
    servers: dict[str, ToolServer]
    settings: Settings
    operator_key: str = ""

    @property
    def cache(self) -> PlanCache:
        cache = self.visitor.parts.all_servers_endpoint.call_gate.plan_cache
        assert cache is not None
        return cache

    def plan_of(self, tool: str) -> CallPlan | None:
        """Return a plan for a tool that the next call would use, if there is one."""
        now = self.cache.generation.number
        plans = self.cache.plans.values()
        return next((p for p in plans if p.entry.name == tool and p.generation == now), None)

    async def begin(self) -> None:
        """Create the operator and its key in the store, if they do not exist there."""
        snapshot = self.visitor.parts.snapshot
        await snapshot.records.parties.put(Principal(OPERATOR, PrincipalKind.PERSON))
        pepper = self.visitor.parts.authenticator.pepper
        self.operator_key, key = mint_key(pepper, ApiKey("", OPERATOR, b""))
        await snapshot.records.keys.put(key, datetime.now(UTC))
        await snapshot.refresh()

    async def order(self, path: str, **body: object) -> Frame:
        """Send a request to the operator API, and return its answer."""
        headers = {"content-type": "application/json", **bearer(self.operator_key)}
        reply = await self.visitor.send("POST", headers.items(), json.dumps(body).encode(), path)
        answer = await reply.json()
        assert reply.status == 200, answer
        return answer

    async def read(self, path: str) -> Frame:
        reply = await self.visitor.send("GET", bearer(self.operator_key).items(), path=path)
        assert reply.status == 200, await reply.body()
        return await reply.json()

    async def grant(self, target: str, effect: str = "allow", **more: object) -> None:
        said = {"subject": CALLER, "target": target, "effect": effect, **more}
        await self.order("/api/grants", **said)

    async def new_key(self, **wanted: object) -> Frame:
        return await self.order("/api/keys", principal=CALLER, **wanted)

    async def caller(
        self,
        path: str = "/servers/up/mcp",
        tool: str = "read",
        arguments: Frame | None = None,
        key: str = "",
    ) -> Caller:
        key = key or (await self.new_key())["key"]
        return Caller(self, key, path, tool, arguments or {})

    async def apply(self, **chosen: Any) -> None:
        """Apply changed settings to the policy, as a reload of the file does."""
        self.settings = replace(self.settings, **chosen)
        await self.visitor.parts.policy_components.apply_settings(self.settings)

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while not is_so():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def tool_servers(
    names: tuple[str, ...] = ("up",), tools: Mapping[str, Frame] | None = None
) -> AsyncGenerator[dict[str, ToolServer]]:
    """Run scripted servers that each offer the tools `read` and `write`, or these."""
    async with AsyncExitStack() as stack:
        servers: dict[str, ToolServer] = {}
        for name in names:
            upstream = await stack.enter_async_context(scripted(modern=True))
            offered = tools or {each: {"inputSchema": PLAIN_SCHEMA} for each in ("read", "write")}
            servers[name] = ToolServer(upstream, name, dict(offered))
            servers[name].play()
        yield servers


@asynccontextmanager
async def gateway_before(
    servers: dict[str, ToolServer], *given: ServerSettings, **chosen: Any
) -> AsyncGenerator[PlannedGateway]:
    """Run a gateway before these servers."""
    told = given or tuple(each.settings for each in servers.values())
    async with visiting(*told, **{**USUAL, **chosen}) as visitor:
        settings = visitor.parts.upstream_registry.settings
        gateway = PlannedGateway(visitor, servers, settings)
        await gateway.begin()
        yield gateway


@asynccontextmanager
async def planning(**chosen: Any) -> AsyncGenerator[PlannedGateway]:
    """Run a gateway before one server named `up`."""
    async with tool_servers() as servers, gateway_before(servers, **chosen) as gateway:
        yield gateway


@dataclass
class SettingsFile:
    """The settings as a file would hold them. A write changes them for the gateway that follows."""

    path: Path
    settings: Settings

    @property
    def watched_paths(self) -> tuple[Path, ...]:
        return (self.path,)

    def load(self) -> LoadedConfig:
        return LoadedConfig(self.settings, ())

    def write(self, settings: Settings) -> None:
        self.settings = settings
        self.path.write_text(f"{self.path.stat().st_size * 2}" if self.path.exists() else "0")


@asynccontextmanager
async def reloading(gateway: PlannedGateway, folder: Path) -> AsyncGenerator[SettingsFile]:
    """Let a gateway follow its settings file."""
    file, parts = SettingsFile(folder / "comity.toml", gateway.settings), gateway.visitor.parts
    source = cast("ConfigSource", file)
    apply_policy = parts.policy_components.apply_settings
    async with follow_settings(
        source, file.load(), parts.config_state, parts.upstream_registry, _ignore, apply_policy
    ):
        yield file


def _ignore(_: str) -> None:
    pass
