"""Events and questions of a tool server. (MGP §13)"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from comity.approvals import answers
from comity.approvals.answers import CANCEL_OPTION, CONFIRM_OPTION, CallbackType
from comity.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage, Misconfigured
from comity.events import model
from comity.events.model import (
    GatewayEvent,
    Severity,
    is_channel_wanted,
    is_enough,
    resolve_channels,
    severity_of,
)
from comity.mcp import jsonrpc, mgp
from comity.mcp.mgp import MgpExtension
from comity.sdk.mgp_negotiation import CURRENT, MgpClientConnection, MgpRequest

A_MINUTE: Final = timedelta(minutes=1)
MOST_OPEN: Final = 1_000


class MgpCallbackClient:
    """The open questions of a server; ask them during a tool call."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Future[object]] = {}

    async def confirm(self, message: str, *, within: timedelta = A_MINUTE) -> bool:
        """Ask for a confirmation; return whether a person confirmed."""
        said = await self._ask(
            CallbackType.CONFIRMATION, message, (CONFIRM_OPTION, CANCEL_OPTION), within
        )
        return said == CONFIRM_OPTION

    async def input(self, message: str, *, within: timedelta = A_MINUTE) -> str | None:
        said = await self._ask(CallbackType.INPUT, message, (), within)
        return said if isinstance(said, str) else None

    async def select(
        self, message: str, options: Sequence[str], *, within: timedelta = A_MINUTE
    ) -> str | None:
        """Ask for one of the options. Returns None for any other answer."""
        said = await self._ask(CallbackType.SELECTION, message, options, within)
        return said if isinstance(said, str) and said in options else None

    async def notify(self, message: str) -> None:
        """Send a message to a person, without an answer."""
        request = CURRENT.get()
        if request is not None and MgpExtension.BIDIRECTIONAL in request.extensions:
            told = self._question(request, CallbackType.NOTIFICATION, message, (), A_MINUTE)
            await request.tell(mgp.CALLBACK_REQUEST, told)

    async def answered(self, request: MgpRequest) -> dict[str, object]:
        """Take an answer. A late answer to a closed question is ignored without an error."""
        named = request.params.get("callback_id")
        if not isinstance(named, str):
            raise request.refused(INVALID_PARAMS, "callback_id is missing")
        waiting = self._open.get(named)
        if waiting is not None and not waiting.done():
            waiting.set_result(request.params.get("response"))
        return {}

    async def _ask(
        self, type: CallbackType, message: str, options: Sequence[str], timeout: timedelta
    ) -> object:
        request = CURRENT.get()
        if request is None:
            raise Misconfigured("people can be asked while a tool runs, and at no other time")
        if MgpExtension.BIDIRECTIONAL not in request.extensions:
            return None
        if len(self._open) >= MOST_OPEN:
            raise request.refused(EXHAUSTED, "too many questions are open")
        told = self._question(request, type, message, options, timeout)
        named = str(told["callback_id"])
        waiting = self._open[named] = asyncio.get_running_loop().create_future()
        try:
            for _ in range(2):
                await request.tell(mgp.CALLBACK_REQUEST, told)
                done, _late = await asyncio.wait({waiting}, timeout=timeout.total_seconds() / 2)
                if done:
                    return waiting.result()
            return None
        finally:
            del self._open[named]

    def _question(
        self,
        request: MgpRequest,
        type: CallbackType,
        message: str,
        options: Sequence[str],
        timeout: timedelta,
    ) -> dict[str, object]:
        told: dict[str, object] = {
            "callback_id": f"cb-{secrets.token_hex(8)}",
            "request_id": request.context.request_id,
            "type": type,
            "message": message,
            "timeout_ms": timeout // timedelta(milliseconds=1),
            **({"options": list(options)} if options else {}),
        }
        try:
            answers.decode_callback(jsonrpc.to_raw(told))
        except MalformedMessage as problem:
            raise Misconfigured(f"this cannot be asked: {problem}") from None
        return told


MOST_SUBSCRIPTIONS: Final = 64
"""The limit of one connection."""

MOST_CHANNELS: Final = 256


class MgpEventChannels:
    """The event channels of one server, and their subscriptions."""

    def __init__(self, peers: set[MgpClientConnection]) -> None:
        self._peers = peers
        self._known: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, *names: str) -> None:
        """Add channels. Raises Misconfigured for an invalid name (not `family.name`)."""
        for name in names:
            if not model.is_channel(name):
                raise Misconfigured(f"{name!r:.140} is no channel: a family, a dot and a name")
            self._known[name] = None
        if len(self._known) > MOST_CHANNELS:
            raise Misconfigured(f"a server has at most {MOST_CHANNELS} channels")

    async def publish(
        self, channel: str, data: Mapping[str, object], severity: Severity | str = Severity.INFO
    ) -> int:
        """Send an event to its subscriptions, and return their number."""
        severity = severity_of(severity)
        if channel not in self._known:
            raise Misconfigured(f"there is no channel {channel!r:.140}: name it with `add` first")
        event = GatewayEvent(secrets.token_hex(16), channel, datetime.now(UTC), severity, data)
        if len(jsonrpc.to_json(data)) > model.MOST_BYTES // 2:
            raise Misconfigured(f"an event has at most {model.MOST_BYTES // 2} bytes of data")
        meant = [
            (peer, id)
            for peer in tuple(self._peers)
            for id, wanted in peer.subscriptions.items()
            if is_channel_wanted(wanted, channel) and is_enough(severity, wanted.min_severity)
        ]
        for peer, id in meant:
            await peer.tell(model.NOTICE, model.params_of(event, id))
        return len(meant)

    async def subscribe(self, request: MgpRequest) -> dict[str, object]:
        try:
            wanted = model.filter_in(jsonrpc.to_raw(dict(request.params)))
        except MalformedMessage as problem:
            raise request.refused(problem.fault, str(problem)) from None
        mine = request.peer.subscriptions
        if len(mine) >= MOST_SUBSCRIPTIONS:
            raise request.refused(EXHAUSTED, f"at most {MOST_SUBSCRIPTIONS} subscriptions")
        found, missing, kept = resolve_channels(wanted, self._known)
        id = f"sub-{secrets.token_hex(8)}"
        mine[id] = kept
        return model.build_subscribe_result(id, found, missing)

    async def unsubscribe(self, request: MgpRequest) -> dict[str, object]:
        named = request.params.get("subscription_id")
        if not isinstance(named, str) or request.peer.subscriptions.pop(named, None) is None:
            raise request.refused(INVALID_PARAMS, "there is no such subscription")
        return {}
