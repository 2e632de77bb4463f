"""The hosts of a live server: how each is asked and told something, in either era. (mcp-wire §4)

The one place that touches what the SDK calls provisional: requests of a server that are of no
method of MCP's, under ids of our own, and the long request on which a modern host listens.
Rule 1: a host that did not negotiate MCPL is no host, and is sent nothing. (MCPL §3.2)
Rule 2: every wait is bounded, and an answer that is lost is `Lost`, never silence.
"""

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

from comity.sdk.live_offers import Decided, Offered
from comity.sdk.mgp_terms import Context
from comity.wire import reverse
from comity.wire.errors import INTERNAL_ERROR
from comity.wire.features import Use

MOST_PENDING: Final = 1_000
_GONE: Final = (BrokenResourceError, ClosedResourceError, NoBackChannelError)


class Lost(ToolError):
    """No answer came, and whether it was heard is not known."""


class Refused(ToolError):
    """The host answered with an error; who calls a tool amid which it happens is told so."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class Absent(ToolError):
    """No host is here that takes this: none is connected, offers it, or has enabled it."""


class Way(Protocol):
    """How a host is reached."""

    async def ask(
        self, method: str, params: Mapping[str, Any], id: str, seconds: float
    ) -> Mapping[str, Any]:
        """Raises Lost, Refused."""
        ...

    async def tell(self, method: str, params: Mapping[str, Any]) -> None: ...


@dataclass(eq=False)
class Host:
    """One client that speaks MCPL, for as long as it is connected."""

    offered: Offered
    decided: Decided = field(default_factory=Decided)
    # The newest counts; in the modern era each node of a gateway may listen by itself.
    ways: list[Way] = field(default_factory=list[Way])
    # The feature sets that it was told of, as they stood on the wire.
    knows: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    # The channels that were registered with it; None before the first was.
    channels: dict[str, Mapping[str, Any]] | None = None
    hooks: set[object] = field(default_factory=set[object])
    quiet: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.quiet.set()

    @property
    def way(self) -> Way | None:
        return self.ways[-1] if self.ways else None

    async def ask(
        self, method: str, params: Mapping[str, Any], seconds: float, id: str | None = None
    ) -> Mapping[str, Any]:
        """Raises Lost, Refused."""
        if self.way is None:
            raise Lost(f"nobody listens for {method}")
        return await self.way.ask(method, params, id or new_id(), seconds)

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        if self.way is not None:
            await self.way.tell(method, params)

    @asynccontextmanager
    async def hooked(self) -> AsyncGenerator[None]:
        """While it waits for a hook, it takes no request for inference. (D-69)"""
        here = object()
        self.hooks.add(here)
        self.quiet.clear()
        try:
            yield
        finally:
            self.hooks.discard(here)
            if not self.hooks:
                self.quiet.set()


class Linked:
    """The way to a host of the handshake era: the connection itself, or the stream of a request."""

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
            raise Lost(f"{method} was not answered") from None
        except _GONE as error:
            raise Lost(f"{method} could not be asked") from error
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise Lost(f"the host left before {method} was answered") from None
            raise Refused(error.code, error.message, error.data) from None

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        await self._channel.notify(method, params)

    @property
    def _channel(self) -> Any:
        if self._amid is None:
            return self._connection.outbound
        return self._amid.session._request_outbound  # pyright: ignore[reportPrivateUsage]  # see above


class Heard:
    """The way to a host of the modern era: the long request on which it listens."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._pending: dict[str, asyncio.Future[Mapping[str, Any]]] = {}

    async def ask(
        self, method: str, params: Mapping[str, Any], id: str, seconds: float
    ) -> Mapping[str, Any]:
        if len(self._pending) >= MOST_PENDING:
            raise Lost("too much is asked of this host already")
        # Whoever answers must have heard the question: ids cannot be guessed.
        waiting = self._pending[id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._say(reverse.ASKED, {"id": id, "method": method, "params": {**params}})
                return await waiting
        except TimeoutError:
            raise Lost(f"{method} was not answered") from None
        except _GONE as error:
            raise Lost(f"{method} could not be asked") from error
        finally:
            self._pending.pop(id, None)

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        await self._say(reverse.TOLD, {"method": method, "params": {**params}})

    def answered(self, params: Mapping[str, Any]) -> bool:
        """Whether this is an answer to something that was asked here."""
        id = params.get("id")
        waiting = self._pending.get(id) if isinstance(id, str) else None
        if waiting is None or waiting.done():
            return False
        error = params.get("error")
        if isinstance(error, dict):
            said = cast("dict[str, Any]", error)
            code = said.get("code")
            number = code if isinstance(code, int) else INTERNAL_ERROR.code
            waiting.set_exception(Refused(number, str(said.get("message", "")), said.get("data")))
        else:
            result = params.get("result")
            found = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
            waiting.set_result(found)
        return True

    def end(self) -> None:
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(Lost("the host does not listen any more"))

    async def _say(self, method: str, params: Mapping[str, Any]) -> None:
        note = Notification[dict[str, Any], str](method=method, params=dict(params))
        await self._ctx.session.send_notification(cast("Any", note), self._ctx.request_id)


def new_id() -> str:
    """Unique on every connection and not to be guessed; no number, for those the SDK mints."""
    return f"live-{secrets.token_hex(12)}"


class Hosts:
    """All hosts of a server, and what is on its way from them."""

    def __init__(self) -> None:
        self.all: list[Host] = []
        self.news = asyncio.Condition()

    def taking(self, feature: str, use: Use) -> list[Host]:
        """Those that offer this and have enabled the feature set; the newest first."""
        here = [each for each in self.all if each.way is not None and each.offered.has(use)]
        return [each for each in reversed(here) if each.decided.allows(feature)]

    def leave(self, host: Host) -> None:
        if host in self.all:
            self.all.remove(host)

    async def changed(self) -> None:
        async with self.news:
            self.news.notify_all()
