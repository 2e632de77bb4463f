"""Whoever is connected to a tool server, what was agreed with it, and how it is told something."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from mcp import MCPError
from mcp.types import Notification

from comity.rules.negotiation import Terms
from comity.rules.refusals import Asked, Refusal, trace_of, word
from comity.sdk.mgp_terms import Context
from comity.wire import jsonrpc
from comity.wire.errors import Fault
from comity.wire.events import Wanted
from comity.wire.negotiation import VERSION

_NO_TRACE: Final = "0" * 32


@dataclass(eq=False)
class Peer:
    """One connection. `session` is of its latest request, for what is told amid none."""

    session: Any
    extensions: frozenset[str] = frozenset()
    subscriptions: dict[str, Wanted] = field(default_factory=dict[str, Wanted])

    async def tell(self, method: str, params: Mapping[str, object]) -> None:
        await self.session.send_notification(_note(method, params))


@dataclass(frozen=True, eq=False)
class Request:
    """One request, and whose it is. `extensions` are those that its client agreed on."""

    peer: Peer
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
        """Amid this request, on its own stream."""
        told = _note(method, params)
        await self.context.session.send_notification(told, self.context.request_id)

    def refused(self, fault: Fault, because: str) -> MCPError:
        """The error that says this, in MGP's words where it was agreed on."""
        terms = Terms(VERSION, self.extensions) if self.extensions else None
        asked = Asked(self.context.request_id or 0, self.context.method, terms)
        found = jsonrpc.error_of(word(asked, Refusal(fault, because), self.trace or _NO_TRACE))
        if found is None:
            return MCPError(fault.code, because)
        return MCPError(found.code, found.message, found.data)


CURRENT: ContextVar[Request | None] = ContextVar("comity_mgp_server", default=None)
"""The request amid which a tool runs."""


def _note(method: str, params: Mapping[str, object]) -> Any:
    return Notification[dict[str, Any], str](method=method, params=dict(params))
