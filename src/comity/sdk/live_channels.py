"""The channels of a live server. (MCPL §14)"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec
from mcp import MCPError

from comity.errors import (
    CHANNEL_NOT_OPENED,
    CHANNEL_UNKNOWN,
    SCOPE_NOT_PERMITTED,
    Fault,
    MalformedMessage,
    Misconfigured,
)
from comity.inference.messages import Content, text_of
from comity.live.channels import model
from comity.live.channels.model import THINKING, ChannelDescriptor
from comity.mcp import jsonrpc
from comity.mcp.mcpl import FeatureUse
from comity.sdk.live_features import Feature, format_event_time
from comity.sdk.live_hosts import (
    HostRefusal,
    HostRequestFailure,
    HostUnavailable,
    McplHost,
    McplHostRegistry,
)
from comity.sdk.live_types import Saying, blocks_of, content_of

log = logging.getLogger(__name__)

ASK_SECONDS: Final = 30.0
MOST_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Message:
    """One message from outside."""

    channel: str
    id: str
    content: Saying
    author: str = ""
    author_id: str = ""
    thread: str = ""
    at: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def told(self) -> dict[str, Any]:
        """Return the wire form of the message. (§14.3)"""
        told: dict[str, Any] = {
            "channelId": self.channel,
            "messageId": self.id,
            "author": {"id": self.author_id or self.author, "name": self.author},
            "timestamp": format_event_time(self.at or datetime.now(UTC)),
            "content": blocks_of(self.content),
            "metadata": dict(self.metadata),
        }
        return {**told, "threadId": self.thread} if self.thread else told


@dataclass(frozen=True, slots=True)
class ChannelMessageReceipt:
    """The outcome of an incoming message."""

    message: str
    accepted: bool
    conversation: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Post:
    """A message to deliver to a channel. `stream` is whether its chunks were sent before.

    `id` stays the same when a host repeats a delivery. It is empty if the host gives none.
    """

    channel: ChannelDescriptor
    content: Content
    conversation: str = ""
    stream: bool = False
    id: str = ""

    @property
    def text(self) -> str:
        return text_of(self.content)


@dataclass(frozen=True, slots=True)
class ChannelOutput:
    """Output of a model for a channel, to observe: a chunk, or the whole text at the end.

    The server does not deliver it: a `Post` orders a delivery. (D-71)
    """

    channel: str
    inference: str
    conversation: str
    index: int = 0
    delta: str = ""
    content: Content = ()
    is_complete: bool = False


type OnPublish = Callable[[Post], Awaitable[str | bool | None]]
type OnOpen = Callable[[str, Mapping[str, Any]], Awaitable[ChannelDescriptor | None]]
type OnClose = Callable[[str], Awaitable[bool | None]]
type OnOutgoing = Callable[[ChannelOutput], Awaitable[None]]


class LiveChannels:
    """The channels of one server."""

    def __init__(self, hosts: McplHostRegistry, sets: Mapping[str, Feature]) -> None:
        self.known: dict[str, ChannelDescriptor] = {}
        self._hosts = hosts
        self._sets = sets
        self._publish: OnPublish | None = None
        self._open: OnOpen | None = None
        self._close: OnClose | None = None
        self._outgoing: OnOutgoing | None = None
        self._telling = asyncio.Lock()

    # Handlers that the author registers.

    def on_publish[F: OnPublish](self, function: F) -> F:
        """Set the delivery handler. It returns the id of the delivered message, or False."""
        self._publish = function
        return function

    def on_open[F: OnOpen](self, function: F) -> F:
        """Set the handler that opens a channel of a type at an address."""
        self._open = function
        return function

    def on_close[F: OnClose](self, function: F) -> F:
        self._close = function
        return function

    def on_outgoing[F: OnOutgoing](self, function: F) -> F:
        self._outgoing = function
        return function

    def declared(self) -> dict[str, bool] | None:
        """The channel capabilities of the server; None if no feature set uses channels. (§14.1)"""
        uses = {use for each in self._sets.values() for use in each.uses}
        if not uses & {FeatureUse.PUBLISH, FeatureUse.OBSERVE}:
            return None
        return {
            "register": True,
            "publish": FeatureUse.PUBLISH in uses,
            "observe": FeatureUse.OBSERVE in uses,
            "lifecycle": self._open is not None or self._close is not None,
            "streaming": self._outgoing is not None,
        }

    def check(self) -> None:
        """Raises Misconfigured for a handler whose use no feature set declares."""
        uses = {use for each in self._sets.values() for use in each.uses}
        if self._publish is not None and FeatureUse.PUBLISH not in uses:
            raise Misconfigured("on_publish needs a feature set that uses channels.publish")
        if self._outgoing is not None and FeatureUse.OBSERVE not in uses:
            raise Misconfigured("on_outgoing needs a feature set that uses channels.observe")

    async def register(self, *described: ChannelDescriptor) -> None:
        """Add channels and register them with every host."""
        await self.change(added=described)

    async def change(
        self, *, added: Iterable[ChannelDescriptor] = (), removed: Iterable[str] = ()
    ) -> None:
        """Add or replace channels, and remove others."""
        for each in added:
            _checked(each)
            self.known[each.id] = each
        for id in removed:
            self.known.pop(id, None)
        if len(self.known) > model.MAX_CHANNELS:
            raise Misconfigured(f"a server has at most {model.MAX_CHANNELS} channels")
        for host in self._hosts.all:
            await self.introduce(host)

    async def incoming(self, *messages: Message) -> tuple[ChannelMessageReceipt, ...]:
        """Send incoming messages to the newest host; each message has its own receipt."""
        told = [each.told() for each in messages]
        for named, read in model.messages_in(jsonrpc.to_raw({"messages": told})):
            if isinstance(read, MalformedMessage):
                raise Misconfigured(f"message {named!r:.80} cannot be brought in: {read}")
        hosts = self._having(FeatureUse.OBSERVE)
        if not hosts:
            reason = "no host takes messages from channels"
            return tuple(
                ChannelMessageReceipt(each.id, accepted=False, reason=reason) for each in messages
            )
        # Only one host speaks for a channel: the newest.
        results = _results(await self._ask(hosts[0], model.INCOMING, {"messages": told}))
        return tuple(_arrived(each.id, results.get(each.id)) for each in messages)

    async def listed(self) -> tuple[ChannelDescriptor, ...]:
        """The channels of this server as its host knows them.

        Raises HostUnavailable, HostRefusal, HostRequestFailure.
        """
        hosts = self._having(FeatureUse.OBSERVE) or self._having(FeatureUse.PUBLISH)
        if not hosts:
            raise HostUnavailable("no host lets this server have channels")
        said = await self._ask(hosts[0], model.LIST, {})
        found = model.registered_in(jsonrpc.to_raw({"channels": said.get("channels") or []}))
        return tuple(found)

    # Decisions and requests of hosts.

    async def introduce(self, host: McplHost) -> None:
        """Register new channels with a host, if it enables channels of this server."""
        async with self._telling:
            if host.way is None or not self._lets(host, FeatureUse.PUBLISH, FeatureUse.OBSERVE):
                host.channels = None
                return
            now: dict[str, Mapping[str, Any]] = {id: _wire(each) for id, each in self.known.items()}
            try:
                await self._introduce(host, now)
            except (HostRequestFailure, HostRefusal) as problem:
                log.info("channels were not registered: %s", problem)

    async def _introduce(self, host: McplHost, now: dict[str, Mapping[str, Any]]) -> None:
        before = host.channels
        if before is None:
            if now:
                told = {"channels": list(now.values())}
                await host.ask(model.REGISTER, told, ASK_SECONDS)
                host.channels = now
            return
        told = {
            "added": [each for id, each in now.items() if id not in before],
            "removed": [id for id in before if id not in now],
            "updated": [each for id, each in now.items() if before.get(id, each) != each],
        }
        if any(told.values()):
            await host.tell(model.CHANGED, told)
            host.channels = now

    async def listing(self, host: McplHost, params: Mapping[str, Any]) -> dict[str, Any]:
        may = self._lets(host, FeatureUse.PUBLISH, FeatureUse.OBSERVE)
        return {"channels": [_wire(each) for each in self.known.values()] if may else []}

    async def open(self, host: McplHost, params: Mapping[str, Any]) -> dict[str, Any]:
        self._require(host, FeatureUse.PUBLISH, FeatureUse.OBSERVE)
        if self._open is None:
            raise _error(CHANNEL_NOT_OPENED, "Channel open failed")
        address = params.get("address")
        found = cast("dict[str, Any]", address) if isinstance(address, dict) else {}
        try:
            opened = await self._open(str(params.get("type", "")), found)
        except Exception:
            log.exception("a channel was not opened")
            opened = None
        if opened is None:
            raise _error(CHANNEL_NOT_OPENED, "Channel open failed")
        _checked(opened)
        self.known[opened.id] = opened
        if host.channels is not None:
            # Its host learns of it by the answer.
            host.channels[opened.id] = _wire(opened)
        return {"channel": _wire(opened)}

    async def close(self, host: McplHost, params: Mapping[str, Any]) -> dict[str, Any]:
        self._require(host, FeatureUse.PUBLISH, FeatureUse.OBSERVE)
        channel = self._named(params)
        closed = True if self._close is None else await self._close(channel.id)
        if closed is False:
            return {"closed": False}
        self.known.pop(channel.id, None)
        (host.channels or {}).pop(channel.id, None)
        return {"closed": True}

    async def publish(self, host: McplHost, params: Mapping[str, Any]) -> dict[str, Any]:
        if params.get("channelId") == THINKING:
            raise _error(SCOPE_NOT_PERMITTED, "Channel not permitted")
        self._require(host, FeatureUse.PUBLISH)
        channel = self._named(params)
        if self._publish is None or channel.direction is model.ChannelDirection.IN:
            raise _error(SCOPE_NOT_PERMITTED, "Channel not permitted")
        content = content_of(cast("Saying", params.get("content", "")))
        named = str(params.get("conversationId") or "")
        id = str(params.get("publishId") or "")
        post = Post(channel, content, named, params.get("stream") is True, id)
        said = await self._publish(post)
        if said is False:
            return {"delivered": False}
        return {"delivered": True, **({"messageId": said} if isinstance(said, str) else {})}

    async def chunk(self, host: McplHost, params: Mapping[str, Any]) -> dict[str, Any]:
        index, delta = params.get("index"), params.get("delta")
        if isinstance(index, int) and isinstance(delta, str):
            await self._observe(host, _outgoing(params, index=index, delta=delta))
        return {}

    async def complete(self, host: McplHost, params: Mapping[str, Any]) -> dict[str, Any]:
        content = content_of(cast("Saying", params.get("content", "")))
        await self._observe(host, _outgoing(params, content=content, is_complete=True))
        return {}

    async def _observe(self, host: McplHost, outgoing: ChannelOutput) -> None:
        if self._outgoing is not None and self._lets(host, FeatureUse.OBSERVE):
            await self._outgoing(outgoing)

    def _named(self, params: Mapping[str, Any]) -> ChannelDescriptor:
        named = params.get("channelId")
        found = self.known.get(named) if isinstance(named, str) else None
        if found is None:
            raise _error(CHANNEL_UNKNOWN, "Unknown channel")
        return found

    def _lets(self, host: McplHost, *uses: FeatureUse) -> bool:
        sets = [each for each in self._sets.values() if each.uses & set(uses)]
        return host.offered.channels and any(host.decided.allows(each.name) for each in sets)

    def _having(self, use: FeatureUse) -> list[McplHost]:
        here = [each for each in self._hosts.all if each.way is not None]
        return [each for each in reversed(here) if self._lets(each, use)]

    def _require(self, host: McplHost, *uses: FeatureUse) -> None:
        if not self._lets(host, *uses):
            raise _error(SCOPE_NOT_PERMITTED, "Channel not permitted")

    async def _ask(
        self, host: McplHost, method: str, params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Each of these can be asked again: what they carry has names."""
        for _ in range(MOST_TRIES - 1):
            try:
                return await host.ask(method, params, ASK_SECONDS)
            except HostRequestFailure:
                continue
        return await host.ask(method, params, ASK_SECONDS)


def _outgoing(params: Mapping[str, Any], **more: Any) -> ChannelOutput:
    names = ("channelId", "inferenceId", "conversationId")
    channel, inference, conversation = (str(params.get(name) or "") for name in names)
    return ChannelOutput(channel, inference, conversation, **more)


def _wire(described: ChannelDescriptor) -> dict[str, Any]:
    return {"direction": str(described.direction), **msgspec.to_builtins(described)}


def _checked(described: ChannelDescriptor) -> None:
    try:
        model.descriptor_in(jsonrpc.to_raw(_wire(described)))
    except MalformedMessage as problem:
        raise Misconfigured(str(problem)) from None
    if described.id == THINKING:
        raise Misconfigured(f"no server has a channel {THINKING!r}: the host has it")


def _results(fields: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    results = fields.get("results")
    found = cast("list[object]", results) if isinstance(results, list) else []
    tables = [cast("dict[str, Any]", each) for each in found if isinstance(each, dict)]
    return {str(each.get("messageId")): each for each in tables}


def _arrived(id: str, fields: Mapping[str, Any] | None) -> ChannelMessageReceipt:
    if fields is None:
        return ChannelMessageReceipt(id, accepted=False, reason="the host said nothing of it")
    conversation, reason = str(fields.get("conversationId") or ""), str(fields.get("reason") or "")
    return ChannelMessageReceipt(id, fields.get("accepted") is True, conversation, reason)


def _error(fault: Fault, message: str) -> MCPError:
    return MCPError(fault.code, message)
