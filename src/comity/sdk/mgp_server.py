"""A tool server of the official SDK that speaks MGP: risk labels and permissions."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, cast

from mcp.server import Server
from mcp.server.connection import Connection
from mcp.server.context import CallNext
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

from comity.approvals import answers
from comity.audit import events as audit
from comity.errors import INVALID_PARAMS, PERMISSION_DENIED, SERVER_NOT_READY, Misconfigured
from comity.events import model
from comity.mcp import mgp, protocol
from comity.mcp.mgp import MgpExtension
from comity.policy.risk import (
    DECISION_METHODS,
    MAX_NAME_LENGTH,
    MAX_NAMES,
    SECURITY_META_KEY,
    WAIT_METHODS,
    PermissionOutcome,
    TrustLevel,
)
from comity.sdk.mgp_negotiation import (
    CURRENT,
    Answer,
    Context,
    MgpClientConnection,
    MgpRequest,
    connection_of,
    terms_of,
)
from comity.sdk.mgp_server_events import MgpCallbackClient, MgpEventChannels
from comity.sdk.mgp_server_lifecycle import (
    MOST_CHECKS,
    Check,
    MgpServerLifecycle,
    Resource,
    serve_pipes,
    serve_port,
)
from comity.toolkit import text

type RiskLevel = Literal["safe", "moderate", "dangerous"]
type SideEffect = Literal["filesystem", "network", "process", "database", "notification"]
type CodeLevel = Literal["unrestricted", "standard", "strict", "readonly"]

_RISKS: Final = ("safe", "moderate", "dangerous")
_EFFECTS: Final = ("filesystem", "network", "process", "database", "notification")
_LEVELS: Final = ("unrestricted", "standard", "strict", "readonly")


@dataclass(frozen=True, slots=True)
class CodeSafety:
    """The code that a tool accepts, for a gateway that checks code arguments. (MGP §7.3)"""

    level: CodeLevel = "strict"
    language: str = "python"
    max_code_size_bytes: int = 10_000
    blocked_imports: tuple[str, ...] = ()
    blocked_patterns: tuple[str, ...] = ()
    allowed_imports: tuple[str, ...] = ()

    def said(self) -> dict[str, object]:
        if self.level not in _LEVELS or self.max_code_size_bytes < 1:
            raise Misconfigured(f"code_safety is of a level ({', '.join(_LEVELS)}) and of a size")
        return {
            "level": self.level,
            "language": self.language,
            "max_code_size_bytes": self.max_code_size_bytes,
            "blocked_imports": list(self.blocked_imports),
            "blocked_patterns": list(self.blocked_patterns),
            **({"allowed_imports": list(self.allowed_imports)} if self.allowed_imports else {}),
        }


@dataclass(frozen=True, slots=True)
class Security:
    """The label of one tool; None leaves a member out. (MGP §4.3)"""

    risk: RiskLevel
    permissions: tuple[str, ...] = ()
    side_effects: tuple[SideEffect, ...] = ()
    validator: str | None = None
    reversible: bool | None = None
    confirmation: bool = False
    code: CodeSafety | None = None

    def said(self) -> dict[str, object]:
        """Return the wire form. Raises Misconfigured for an invalid label."""
        self._check()
        return {
            "risk_level": self.risk,
            "permissions_required": list(self.permissions),
            "side_effects": list(self.side_effects),
            "confirmation_required": self.confirmation,
            **({} if self.validator is None else {"validator": self.validator}),
            **({} if self.reversible is None else {"reversible": self.reversible}),
            **({} if self.code is None else {"code_safety": self.code.said()}),
        }

    def _check(self) -> None:
        if self.risk not in _RISKS:
            raise Misconfigured(f"risk is one of {', '.join(_RISKS)}, not {self.risk!r:.40}")
        if strange := [each for each in self.side_effects if each not in _EFFECTS]:
            raise Misconfigured(f"no side effect is called {strange[0]!r:.40}")
        names = (*self.permissions, *self.side_effects, self.validator or "")
        if len(names) > MAX_NAMES or any(len(name) > MAX_NAME_LENGTH for name in names):
            raise Misconfigured("a label has few names, and short ones")


class ToolSecurityRegistry:
    """The labels of a server's tools, by name."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, object]] = {}
        self._needs: dict[str, tuple[str, ...]] = {}

    def put(self, tool: str, security: Security) -> None:
        self._said[tool] = security.said()
        self._needs[tool] = security.permissions

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._said)

    def needs(self, tool: object) -> tuple[str, ...]:
        return self._needs.get(tool, ()) if isinstance(tool, str) else ()

    @property
    def permissions(self) -> tuple[str, ...]:
        """All permissions that any tool needs."""
        return tuple(dict.fromkeys(each for needs in self._needs.values() for each in needs))

    def labelled(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """A list of tools with their labels, in `security` and in `_meta`."""
        return {**result, "tools": [self._labelled(tool) for tool in result.get("tools", ())]}

    def _labelled(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        said = self._said.get(tool.get("name", ""))
        if said is None:
            return {**tool}
        return {
            **tool,
            "security": said,
            "_meta": {**(tool.get("_meta") or {}), SECURITY_META_KEY: said},
        }


PATIENCE: Final = timedelta(seconds=10)


class MgpPermissionDecisions:
    """The decisions of the gateway about the permissions of this server."""

    def __init__(self, patience: timedelta = PATIENCE) -> None:
        self.patience = patience
        self._decided: dict[str, PermissionOutcome] = {}
        self._news = asyncio.Condition()

    def __getitem__(self, permission: str) -> PermissionOutcome | None:
        """The decision about a permission; None if the gateway sent none."""
        return self._decided.get(permission)

    def allow(self, needs: Iterable[str]) -> bool:
        """Whether none of these permissions is pending or denied."""
        return all(self._decided.get(name) in (None, PermissionOutcome.APPROVED) for name in needs)

    async def wait(self, request: MgpRequest) -> dict[str, object]:
        """Note the permissions that wait for a decision."""
        names = request.params.get("permissions")
        if not isinstance(names, list) or len(cast("list[object]", names)) > MAX_NAMES:
            raise request.refused(INVALID_PARAMS, "permissions is a list of names")
        found = cast("list[object]", names)
        await self._take(
            {str(name)[:MAX_NAME_LENGTH]: PermissionOutcome.DEFERRED for name in found}
        )
        return {}

    async def decided(self, request: MgpRequest) -> dict[str, object]:
        grants = request.params.get("grants")
        if not isinstance(grants, dict) or len(cast("dict[str, object]", grants)) > MAX_NAMES:
            raise request.refused(INVALID_PARAMS, "grants names what was decided")
        found = cast("dict[str, object]", grants)
        if any(value not in PermissionOutcome for value in found.values()):
            raise request.refused(
                INVALID_PARAMS, f"a grant is one of {', '.join(PermissionOutcome)}"
            )
        await self._take(
            {name[:MAX_NAME_LENGTH]: PermissionOutcome(str(d)) for name, d in found.items()}
        )
        return {}

    async def hold(self, request: MgpRequest, needs: Iterable[str]) -> None:
        """Wait for the permissions of a call. Raises the refusal if one is denied or pending."""
        wanted = tuple(needs)
        try:
            async with asyncio.timeout(self.patience.total_seconds()), self._news:
                await self._news.wait_for(
                    lambda: not self._which(wanted, PermissionOutcome.DEFERRED)
                )
        except TimeoutError:
            waiting = ", ".join(self._which(wanted, PermissionOutcome.DEFERRED))
            reason = f"it is not decided yet whether this server may {waiting}"
            raise request.refused(SERVER_NOT_READY, reason) from None
        if denied := self._which(wanted, PermissionOutcome.DENIED):
            reason = f"this server was not given {', '.join(denied)}"
            raise request.refused(PERMISSION_DENIED, reason)

    def _which(self, names: Iterable[str], decision: PermissionOutcome) -> list[str]:
        return [name for name in names if self._decided.get(name) is decision]

    async def _take(self, decided: Mapping[str, PermissionOutcome]) -> None:
        free = MAX_NAMES - len(self._decided)
        new = [name for name in decided if name not in self._decided]
        async with self._news:
            left_out = set(new[max(free, 0) :])
            self._decided |= {name: d for name, d in decided.items() if name not in left_out}
            self._news.notify_all()


_PEER: Final = "dev.comity/mgp_server"
_FREE: Final = frozenset({protocol.INITIALIZE, protocol.DISCOVER, protocol.PING})
"""Methods that a server also answers while it shuts down."""

_EXTENSIONS: Final = frozenset(
    {MgpExtension.SECURITY, MgpExtension.LIFECYCLE, MgpExtension.BIDIRECTIONAL, MgpExtension.AUDIT}
)

type _Answer = Callable[[MgpRequest], Awaitable[dict[str, object]]]


class MgpServer:
    """Adds MGP to a `Server` or an `MCPServer`; create it before the first client connects.

    The server needs `permissions` in addition to those of its tools' labels. `trust` is the trust
    level that it asks for. Its tools use `asks`, `channels`, `life` and `permits`.
    """

    def __init__(
        self,
        server: Server[Any] | MCPServer[Any],
        server_id: str,
        *,
        permissions: Iterable[str] = (),
        trust: TrustLevel | str | None = None,
        extensions: Iterable[MgpExtension] = _EXTENSIONS,
    ) -> None:
        self.server = server
        self.id = server_id
        self.labels = ToolSecurityRegistry()
        self.life = MgpServerLifecycle(server_id)
        self.channels = MgpEventChannels(self.life.peers)
        self.asks = MgpCallbackClient()
        self.permits = MgpPermissionDecisions()
        self._permissions = tuple(permissions)
        self._terms = terms_of(server)
        self._terms.more["server_id"] = server_id
        if trust is not None:
            self._terms.more["trust_level"] = _trust(trust)
        self._join(frozenset(extensions))
        server.middleware.append(self._around)

    def tool(self, security: Security, **options: Any) -> Callable[[Any], Any]:
        """Add a tool as `MCPServer.tool` does, with a label."""
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
        """Add a check that runs at each health request."""
        if len(self.life.checks) >= MOST_CHECKS:
            raise Misconfigured(f"a server has at most {MOST_CHECKS} checks")
        self.life.checks[name] = check

    def resource(self, name: str, read: Resource) -> None:
        """Add a number that each health status reports."""
        self.life.resources[name] = read

    def set_unhealthy(self, reason: str) -> None:
        """Report the server as `unhealthy` from now on. An empty reason ends it."""
        self.life.unhealthy_reason = reason

    async def audit(self, event_type: str, result: str = "SUCCESS", **details: object) -> None:
        """Send an audit event in the trace of the current call. (MGP §6.5)"""
        request = CURRENT.get()
        if request is None or MgpExtension.AUDIT not in request.extensions:
            return
        told: dict[str, object] = {
            "timestamp": text.format_timestamp(datetime.now(UTC)),
            "event_type": event_type,
            "actor": {"type": "server", "id": self.id},
            "target": {"server_id": self.id, "tool_name": str(request.params.get("name", ""))},
            "result": result,
            "details": details,
        }
        if request.trace:
            told["trace_id"] = text.as_uuid(request.trace)
        await request.tell(audit.NOTICE, told)

    def run(self, port: int | None = None, host: str = "127.0.0.1") -> None:
        """Serve over stdio, or over HTTP if a port is given, until the server is closed."""
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
            if ctx.method == protocol.CALL_TOOL:
                await self.permits.hold(request, self.labels.needs(request.params.get("name")))
            here = CURRENT.set(request)
            try:
                result = await call_next(ctx)
            finally:
                CURRENT.reset(here)
        if ctx.method == protocol.LIST_TOOLS and MgpExtension.SECURITY in request.extensions:
            return self.labels.labelled(_plain(result))
        return result

    def _join(self, extensions: frozenset[MgpExtension]) -> None:
        life, bidirectional = MgpExtension.LIFECYCLE, MgpExtension.BIDIRECTIONAL
        methods: dict[str, tuple[MgpExtension, _Answer]] = {
            mgp.HEALTH_PING: (life, self.life.ping),
            mgp.HEALTH_STATUS: (life, self._status),
            mgp.SHUTDOWN: (life, self.life.shut_down),
            model.SUBSCRIBE: (bidirectional, self.channels.subscribe),
            model.UNSUBSCRIBE: (bidirectional, self.channels.unsubscribe),
            answers.RESPOND_METHOD: (bidirectional, self.asks.answered),
            **dict.fromkeys(WAIT_METHODS, (MgpExtension.SECURITY, self.permits.wait)),
            **dict.fromkeys(DECISION_METHODS, (MgpExtension.SECURITY, self.permits.decided)),
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

    async def _status(self, _: MgpRequest) -> dict[str, object]:
        """The health status. Of a low-level server only the labelled tools are counted."""
        if isinstance(self.server, MCPServer):
            names = tuple(tool.name for tool in await self.server.list_tools())
        else:
            names = self.labels.names
        usable = sum(self.permits.allow(self.labels.needs(name)) for name in names)
        return await self.life.status((usable, len(names)))

    def _request(self, context: Context) -> MgpRequest:
        connection = cast("Connection", connection_of(context))
        peer: MgpClientConnection | None = connection.state.get(_PEER)
        if peer is None:
            peer = connection.state[_PEER] = MgpClientConnection(context.session)
            self.life.peers.add(peer)
            connection.exit_stack.callback(self.life.peers.discard, peer)
        peer.session = context.session
        peer.extensions = self._terms.agreed(context)
        return MgpRequest(peer, context, peer.extensions)


def _trust(said: str) -> TrustLevel:
    if said not in TrustLevel:
        raise Misconfigured(f"trust is one of {', '.join(TrustLevel)}, not {said!r:.40}")
    return TrustLevel(said)


def _plain(result: object) -> Mapping[str, Any]:
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return cast("Mapping[str, Any]", result or {})
