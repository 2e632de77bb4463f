"""Registers, lists, opens and closes the channels of live servers."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from comity.audit.events import AuditResult, AuditType
from comity.errors import (
    CHANNEL_NOT_OPENED,
    CHANNEL_UNKNOWN,
    EXHAUSTED,
    INVALID_PARAMS,
    RATE_LIMITED,
    SCOPE_NOT_PERMITTED,
    MalformedMessage,
    Unavailable,
)
from comity.live.audit import LiveAuditEntry, record_entry
from comity.live.channels import model as rules
from comity.live.channels import model as wire
from comity.live.channels.model import CHANNEL_USES, MAX_CHANNELS, ChannelDescriptor, OutputTarget
from comity.live.host import LiveHost, LiveMessage, LiveServer
from comity.mcp.mcpl import FeatureSet, FeatureUse
from comity.toolkit.background import BackgroundTasks
from comity.toolkit.resilience import RateLimit, RateLimiter

log = logging.getLogger(__name__)

LIST_TIMEOUT: Final = timedelta(seconds=10)
OPEN_TIMEOUT: Final = timedelta(seconds=30)
_CHANGE_RATE_LIMIT: Final = RateLimit.per_minute(120)


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """A channel as operators see it. `state` is open, closed, away or forbidden."""

    server: str
    descriptor: ChannelDescriptor
    state: str


class ChannelService:
    """Keeps the channels of the live servers of this node."""

    def __init__(self, live_host: LiveHost) -> None:
        self.live_host = live_host
        self._channels_by_server: dict[str, dict[str, ChannelDescriptor]] = {}
        self._live_servers: dict[str, LiveServer] = {}
        self._closed_channels: set[tuple[str, str]] = set()
        self._limiter = RateLimiter(time.monotonic)
        # The patterns that covered no channel when a server first named its channels.
        self._unused_patterns: dict[str, tuple[str, ...]] = {}
        self._background_tasks = BackgroundTasks("channels")
        live_host.add_request_handler(wire.REGISTER, self._register)
        live_host.add_request_handler(wire.LIST, self._list)
        live_host.add_notification_handler(wire.CHANGED, self._on_changed)
        live_host.handlers.watchers.append(self._on_server_changed)

    def stop(self) -> None:
        self._background_tasks.cancel()

    # Lookup.

    def get(self, server: str, id: str) -> ChannelDescriptor | None:
        return self._channels_by_server.get(server, {}).get(id)

    def names_of(self, target: OutputTarget) -> tuple[str, ...]:
        """Return the names by which patterns cover a channel: only its id if it is unknown."""
        found = self.get(target.server, target.id)
        return (target.id,) if found is None else rules.channel_names(found)

    def is_closed(self, server: str, id: str) -> bool:
        return (server, id) in self._closed_channels

    def list_of_server(self, server: str) -> list[ChannelDescriptor]:
        return list(self._channels_by_server.get(server, {}).values())

    def find_by_label(self, server: str, label: str) -> str | None:
        """Return the id of the server's channel with this label.

        None unless exactly one matches.
        """
        found = [each.id for each in self.list_of_server(server) if each.label == label]
        return found[0] if len(found) == 1 else None

    def list_statuses(self) -> list[ChannelStatus]:
        """Return the status of all channels, ordered by server and id."""
        return [
            ChannelStatus(server, each, self._state(server, each))
            for server in sorted(self._channels_by_server)
            for _, each in sorted(self._channels_by_server[server].items())
        ]

    def open_targets(self) -> list[OutputTarget]:
        """Return the targets that can receive output now."""
        return [
            OutputTarget(each.descriptor.id, each.server)
            for each in self.list_statuses()
            if each.state == "open" and each.descriptor.direction is not wire.ChannelDirection.IN
        ]

    def _state(self, server: str, descriptor: ChannelDescriptor) -> str:
        hosted = self.live_host.get(server)
        if hosted is None:
            return "away"
        if self.is_closed(server, descriptor.id):
            return "closed"
        return "forbidden" if _use_refusal(hosted, descriptor, *CHANNEL_USES) else "open"

    def resolve_target(self, target: OutputTarget) -> tuple[LiveServer, ChannelDescriptor]:
        """Return the server and channel of a target.

        Raises MalformedMessage if output may not go there, and Unavailable if the server is
        disconnected.
        """
        hosted = self.live_host.get(target.server)
        if target.id == wire.THINKING:
            raise MalformedMessage(
                "a server cannot publish during a context hook", SCOPE_NOT_PERMITTED
            )
        if hosted is None:
            raise Unavailable(f"server {target.server!r:.80} is not connected")
        sets = rules.require_feature_sets(enabled_sets(hosted), FeatureUse.PUBLISH)
        found = self.get(target.server, target.id)
        closed = self.is_closed(target.server, target.id)
        why = rules.direction_refusal(found, is_out=True, is_closed=closed)
        why = why or rules.channel_refusal(self.names_of(target), sets, hosted.policy.scopes)
        if why is not None or found is None:
            fault, reason = why or (CHANNEL_UNKNOWN, "")
            raise MalformedMessage(f"{target.display_name!r:.200}: {reason}", fault)
        return hosted, found

    # Messages of servers.

    async def _register(self, message: LiveMessage) -> Mapping[str, object]:
        rules.require_feature_sets(enabled_sets(message.live_server), *CHANNEL_USES)
        self._check_rate(message.live_server.server)
        found = wire.registered_in(message.params)
        self._on_server_changed(message.live_server)
        results = self._add_channels(message.live_server, found)
        return {"results": results}

    async def _list(self, message: LiveMessage) -> Mapping[str, object]:
        rules.require_feature_sets(enabled_sets(message.live_server), *CHANNEL_USES)
        return wire.build_channel_list(self.list_of_server(message.live_server.server))

    async def _on_changed(self, message: LiveMessage) -> None:
        rules.require_feature_sets(enabled_sets(message.live_server), *CHANNEL_USES)
        self._check_rate(message.live_server.server)
        changes = wire.changes_in(message.params)
        self._on_server_changed(message.live_server)
        for id in changes.removed:
            self._channels_by_server.get(message.live_server.server, {}).pop(id, None)
        self._add_channels(message.live_server, (*changes.added, *changes.updated))

    def _check_rate(self, server: str) -> None:
        if wait := self._limiter.take({server: _CHANGE_RATE_LIMIT}):
            raise Unavailable("channels change too often", RATE_LIMITED, timedelta(seconds=wait))

    def _add_channels(
        self, live_server: LiveServer, found: Sequence[ChannelDescriptor]
    ) -> list[dict[str, object]]:
        """Add the permitted channels and return the result for each."""
        results: list[dict[str, object]] = []
        seen: set[str] = set()
        for each in found:
            why = self._add_refusal(live_server, each, seen)
            seen.add(each.id)
            if why is None:
                self._channels_by_server.setdefault(live_server.server, {})[each.id] = each
                results.append(wire.registration_of(each.id))
            else:
                # A refused channel is removed even if it was accepted before.
                self._channels_by_server.get(live_server.server, {}).pop(each.id, None)
                fault, reason = why
                results.append(wire.registration_of(each.id, reason, fault.code))
        self._warn_of_unused_patterns(live_server, found)
        refused = sum(not each["accepted"] for each in results)
        if refused:
            details = {"refused": refused, "of": len(results)}
            deed = LiveAuditEntry(
                live_server.server, wire.REGISTER, outcome="refused", details=details
            )
            record_entry(
                self.live_host.audit,
                AuditType.FEATURE_REFUSED,
                deed,
                AuditResult.BLOCKED,
                is_limited=True,
            )
        return results

    def _warn_of_unused_patterns(
        self, live_server: LiveServer, offered: Sequence[ChannelDescriptor]
    ) -> None:
        """Tell the operator once for each connection: a misspelt pattern refuses every channel."""
        sets = [
            each
            for each in enabled_sets(live_server)
            if any(use in each.uses for use in CHANNEL_USES)
        ]
        known = (*self.list_of_server(live_server.server), *offered)
        unused = rules.unused_patterns(known, sets, live_server.policy.scopes)
        told = self._unused_patterns.get(live_server.server)
        self._unused_patterns[live_server.server] = tuple(unused)
        if unused and told is None:
            log.warning(
                "no channel of server %r is covered by %s",
                live_server.server,
                ", ".join(map(repr, unused[:10])),
            )

    def _add_refusal(
        self, live_server: LiveServer, descriptor: ChannelDescriptor, seen: set[str]
    ) -> tuple[Any, str] | None:
        if descriptor.id in seen:
            return INVALID_PARAMS, "the id appears twice"
        own = self._channels_by_server.get(live_server.server, {})
        if descriptor.id not in own and len(own) >= MAX_CHANNELS:
            return EXHAUSTED, f"there are {MAX_CHANNELS} channels already"
        return _use_refusal(live_server, descriptor, *CHANNEL_USES)

    # Requests to servers.

    def _on_server_changed(self, live_server: LiveServer) -> None:
        """Handle a server that connected or whose enabled sets changed.

        Channels of an earlier connection are dropped.
        """
        is_new = self._live_servers.get(live_server.server) is not live_server
        if is_new:
            self._live_servers[live_server.server] = live_server
            self._channels_by_server.pop(live_server.server, None)
            self._unused_patterns.pop(live_server.server, None)
        may = any(use in each.uses for each in enabled_sets(live_server) for use in CHANNEL_USES)
        if (
            may
            and not self._channels_by_server.get(live_server.server)
            and live_server.declared.channels
        ):
            self._background_tasks.start(self._try_relist(live_server))

    async def _try_relist(self, live_server: LiveServer) -> None:
        try:
            await self.relist(live_server)
        except (MalformedMessage, Unavailable) as error:
            # A server that registers its channels need not answer `channels/list`.
            log.info("server %r does not list its channels: %s", live_server.server, error)

    async def relist(self, live_server: LiveServer) -> None:
        """Ask a server for its channels. Raises Unavailable and MalformedMessage."""
        found = wire.listed_in(await live_server.request(wire.LIST, {}, LIST_TIMEOUT))
        if self._live_servers.get(live_server.server) is live_server:
            self._add_channels(live_server, found)

    async def open(
        self, server: str, type: str, address: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> ChannelDescriptor:
        """Ask a server to open a channel. Raises MalformedMessage and Unavailable. (§14.3)"""
        hosted = self._require_server(server)
        rules.require_feature_sets(enabled_sets(hosted), *CHANNEL_USES)
        asked = wire.build_open_params(type, address, metadata)
        try:
            found = wire.opened_in(await hosted.request(wire.OPEN, asked, OPEN_TIMEOUT))
        except (MalformedMessage, Unavailable) as error:
            reason = f"server {server!r} could not open it: {error}"
            raise MalformedMessage(reason[:500], CHANNEL_NOT_OPENED) from None
        self._closed_channels.discard((server, found.id))
        (result,) = self._add_channels(hosted, [found])
        if not result["accepted"]:
            raise MalformedMessage(str(result["reason"]), SCOPE_NOT_PERMITTED)
        return found

    async def reopen(self, server: str, id: str) -> ChannelDescriptor:
        """Open a known channel again with the address that its server described."""
        found = self._require_channel(server, id)
        return await self.open(server, found.type, found.address, found.metadata)

    async def close(self, server: str, id: str) -> bool:
        """Close a channel for both directions. Return whether its server closed it, too."""
        hosted, found = self._require_server(server), self._require_channel(server, id)
        rules.require_feature_sets(enabled_sets(hosted), *CHANNEL_USES)
        self._closed_channels.add((server, id))
        return wire.closed_in(
            await hosted.request(wire.CLOSE, {"channelId": found.id}, OPEN_TIMEOUT)
        )

    def _require_server(self, server: str) -> LiveServer:
        hosted = self.live_host.get(server)
        if hosted is None:
            raise Unavailable(f"live server {server!r:.80} is not connected")
        return hosted

    def _require_channel(self, server: str, id: str) -> ChannelDescriptor:
        found = self.get(server, id)
        if found is None:
            raise MalformedMessage(f"there is no channel {id!r:.80} of {server!r}", CHANNEL_UNKNOWN)
        return found


def enabled_sets(live_server: LiveServer) -> list[FeatureSet]:
    return [each for name, each in live_server.declared.sets.items() if name in live_server.enabled]


def _use_refusal(
    live_server: LiveServer, channel: ChannelDescriptor, *uses: FeatureUse
) -> tuple[Any, str] | None:
    sets = [each for each in enabled_sets(live_server) if any(use in each.uses for use in uses)]
    names = rules.channel_names(channel)
    return rules.channel_refusal(names, sets, live_server.policy.scopes)
