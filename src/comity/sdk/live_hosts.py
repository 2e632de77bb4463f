"""The hosts of a live server, and what each enables, in both protocol versions."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from anyio import BrokenResourceError, ClosedResourceError
from mcp import MCPError
from mcp.server.connection import Connection
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import NoBackChannelError
from mcp.types import CONNECTION_CLOSED, Notification

from comity.errors import INTERNAL_ERROR
from comity.mcp import mcpl
from comity.mcp.mcpl import FeatureUse, ScopeBounds
from comity.sdk.mgp_negotiation import Context
from comity.toolkit.patterns import covers_feature

MOST_WORDS: Final = 1_000
"""The limit of names and patterns that are kept of one host."""


@dataclass(frozen=True, slots=True)
class HostCapabilities:
    """The MCPL capabilities that a host declares."""

    pushes: bool = False
    hooks: bool = False
    infers: bool = False
    streams: bool = False
    models: bool = False
    channels: bool = False

    def has(self, use: FeatureUse) -> bool:
        """Whether the host accepts requests of this use."""
        if use is FeatureUse.PUSH:
            return self.pushes
        if use is FeatureUse.INFERENCE:
            return self.infers
        if use in (FeatureUse.PUBLISH, FeatureUse.OBSERVE):
            return self.channels
        return True


def offered_in(capabilities: object) -> HostCapabilities | None:
    """The capabilities that a client declares; None for a client without MCPL."""
    said = _said(_table(capabilities))
    version = said.get("version")
    if not isinstance(version, str) or version.partition(".")[0] != _MAJOR:
        return None
    inference: object = said.get("inferenceRequest")
    details = _table(inference)
    infers = inference is True or inference == details
    hooks = isinstance(said.get("contextHooks"), dict)
    return HostCapabilities(
        pushes=said.get("pushEvents") is True,
        hooks=hooks,
        infers=infers,
        streams=details.get("streaming") is True,
        # The document's own hosts say nothing of it, though they answer. (D-74)
        models=said.get("modelInfo") is True or infers or hooks,
        channels=isinstance(said.get("channels"), dict),
    )


@dataclass(slots=True)
class HostFeatureDecisions:
    """The decisions of one host about feature sets; the last one about a name counts."""

    words: dict[str, bool] = field(default_factory=dict[str, bool])
    scopes: dict[str, ScopeBounds] = field(default_factory=dict[str, ScopeBounds])
    is_told: bool = False

    def allows(self, name: str) -> bool:
        """Whether the set is enabled now."""
        return next(
            (on for word, on in reversed(self.words.items()) if covers_feature(word, name)), False
        )

    def take(self, params: Mapping[str, Any]) -> None:
        """Apply the decisions of a `featureSets/update`. (§6.7)"""
        self.is_told = True
        for member, on in (("enabled", True), ("disabled", False)):
            for word in _texts(params.get(member)):
                # The newest is last.
                self.words.pop(word, None)
                if len(self.words) < MOST_WORDS:
                    self.words[word] = on
        for name, said in list(_table(params.get("scopes")).items())[:MOST_WORDS]:
            bounds = _table(said)
            white, black = _texts(bounds.get("whitelist")), _texts(bounds.get("blacklist"))
            self.scopes[name] = ScopeBounds(white, black)


_MAJOR: Final = mcpl.VERSION.partition(".")[0]


def _said(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    for place, key in (("experimental", mcpl.KEY), ("extensions", mcpl.EXTENSION_KEY)):
        inside = _table(capabilities.get(place))
        if key in inside:
            return _table(inside[key])
    return {}


def _table(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _texts(value: object) -> tuple[str, ...]:
    found = cast("list[object]", value) if isinstance(value, list) else []
    return tuple(each for each in found[:MOST_WORDS] if isinstance(each, str))


MOST_PENDING: Final = 1_000
_GONE: Final = (BrokenResourceError, ClosedResourceError, NoBackChannelError)


class HostRequestFailure(ToolError):
    """No answer arrived; the host may have received the request."""


class HostRefusal(ToolError):
    """The host answered with an error. Within a tool call the caller gets it."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class HostUnavailable(ToolError):
    """No host takes this request: no connected host declares it and has enabled it."""


class HostConnection(Protocol):
    """Sends requests and notifications to a host."""

    async def ask(
        self, method: str, params: Mapping[str, Any], id: str, seconds: float
    ) -> Mapping[str, Any]:
        """Raises HostRequestFailure, HostRefusal."""
        ...

    async def tell(self, method: str, params: Mapping[str, Any]) -> None: ...


@dataclass(eq=False)
class McplHost:
    """One client that speaks MCPL, for as long as it is connected."""

    offered: HostCapabilities
    decided: HostFeatureDecisions = field(default_factory=HostFeatureDecisions)
    # The newest counts; with the modern protocol each node of a gateway may listen by itself.
    ways: list[HostConnection] = field(default_factory=list[HostConnection])
    # The feature sets that were announced to it, in their wire form.
    knows: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    # The channels that were registered with it; None before the first was.
    channels: dict[str, Mapping[str, Any]] | None = None
    hooks: set[object] = field(default_factory=set[object])
    quiet: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.quiet.set()

    @property
    def way(self) -> HostConnection | None:
        return self.ways[-1] if self.ways else None

    async def ask(
        self, method: str, params: Mapping[str, Any], seconds: float, id: str | None = None
    ) -> Mapping[str, Any]:
        """Raises HostRequestFailure, HostRefusal."""
        if self.way is None:
            raise HostRequestFailure(f"the host does not listen for {method}")
        return await self.way.ask(method, params, id or new_id(), seconds)

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        if self.way is not None:
            await self.way.tell(method, params)

    @asynccontextmanager
    async def hooked(self) -> AsyncGenerator[None]:
        """Mark a running hook: the host takes no inference request until it ends. (D-69)"""
        here = object()
        self.hooks.add(here)
        self.quiet.clear()
        try:
            yield
        finally:
            self.hooks.discard(here)
            if not self.hooks:
                self.quiet.set()


class LegacyHostConnection:
    """Reaches a legacy host over its connection, or over the stream of a request."""

    def __init__(self, connection: Connection, amid: Context | None = None) -> None:
        self._connection = connection
        self._amid = amid

    async def ask(
        self, method: str, params: Mapping[str, Any], id: str, seconds: float
    ) -> Mapping[str, Any]:
        try:
            # The SDK's own timeout has the number of a disabled feature set.
            async with asyncio.timeout(seconds):
                return await self._channel.send_raw_request(method, params, {"request_id": id})
        except TimeoutError:
            raise HostRequestFailure(f"{method} was not answered") from None
        except _GONE as error:
            raise HostRequestFailure(f"{method} could not be asked") from error
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise HostRequestFailure(f"the host left before {method} was answered") from None
            raise HostRefusal(error.code, error.message, error.data) from None

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        await self._channel.notify(method, params)

    @property
    def _channel(self) -> Any:
        if self._amid is None:
            return self._connection.outbound
        return self._amid.session._request_outbound  # pyright: ignore[reportPrivateUsage]  # see above


class ModernHostConnection:
    """Reaches a modern host over the long request on which it listens."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._pending: dict[str, asyncio.Future[Mapping[str, Any]]] = {}

    async def ask(
        self, method: str, params: Mapping[str, Any], id: str, seconds: float
    ) -> Mapping[str, Any]:
        if len(self._pending) >= MOST_PENDING:
            raise HostRequestFailure("too much is asked of this host already")
        # Ids cannot be guessed: only a host that received the request can answer it.
        waiting = self._pending[id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._say(
                    mcpl.REVERSE_REQUEST, {"id": id, "method": method, "params": {**params}}
                )
                return await waiting
        except TimeoutError:
            raise HostRequestFailure(f"{method} was not answered") from None
        except _GONE as error:
            raise HostRequestFailure(f"{method} could not be asked") from error
        finally:
            self._pending.pop(id, None)

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        await self._say(mcpl.REVERSE_NOTIFICATION, {"method": method, "params": {**params}})

    def answered(self, params: Mapping[str, Any]) -> bool:
        """Take an answer; return whether it belongs to a request of this connection."""
        id = params.get("id")
        waiting = self._pending.get(id) if isinstance(id, str) else None
        if waiting is None or waiting.done():
            return False
        error = params.get("error")
        if isinstance(error, dict):
            said = cast("dict[str, Any]", error)
            code = said.get("code")
            number = code if isinstance(code, int) else INTERNAL_ERROR.code
            waiting.set_exception(
                HostRefusal(number, str(said.get("message", "")), said.get("data"))
            )
        else:
            result = params.get("result")
            found = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
            waiting.set_result(found)
        return True

    def end(self) -> None:
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(HostRequestFailure("the host does not listen any more"))

    async def _say(self, method: str, params: Mapping[str, Any]) -> None:
        note = Notification[dict[str, Any], str](method=method, params=dict(params))
        await self._ctx.session.send_notification(cast("Any", note), self._ctx.request_id)


def new_id() -> str:
    """A random id. It is no number, because the SDK assigns numbers."""
    return f"live-{secrets.token_hex(12)}"


class McplHostRegistry:
    """All hosts of a server, and a condition that signals their changes."""

    def __init__(self) -> None:
        self.all: list[McplHost] = []
        self.news = asyncio.Condition()

    def taking(self, feature: str, use: FeatureUse) -> list[McplHost]:
        """The hosts that take this use and have enabled the feature set; the newest first."""
        here = [each for each in self.all if each.way is not None and each.offered.has(use)]
        return [each for each in reversed(here) if each.decided.allows(feature)]

    def leave(self, host: McplHost) -> None:
        if host in self.all:
            self.all.remove(host)

    async def changed(self) -> None:
        async with self.news:
            self.news.notify_all()
