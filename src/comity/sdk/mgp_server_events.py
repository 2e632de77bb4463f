"""What a tool server tells of its own accord to whoever subscribed. (MGP §13.2, §13.3)

Rule 1: nobody hears of a channel without a subscription, which ends with its connection.
Rule 2: a channel is named before it is published on, so that a subscription can list it.
"""

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from comity.rules.events import answered, is_enough, severity_of, wants
from comity.sdk.mgp_server_peers import Peer, Request
from comity.wire import events, jsonrpc
from comity.wire.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage, Misconfigured
from comity.wire.events import Event, Severity

MOST_SUBSCRIPTIONS: Final = 64
"""Of one connection."""

MOST_CHANNELS: Final = 256


class Channels:
    """The channels of one server, and who listens to them."""

    def __init__(self, peers: set[Peer]) -> None:
        self._peers = peers
        self._known: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, *names: str) -> None:
        """Raises Misconfigured for what cannot be the name of a channel (`family.name`)."""
        for name in names:
            if not events.is_channel(name):
                raise Misconfigured(f"{name!r:.140} is no channel: a family, a dot and a name")
            self._known[name] = None
        if len(self._known) > MOST_CHANNELS:
            raise Misconfigured(f"a server has at most {MOST_CHANNELS} channels")

    async def publish(
        self, channel: str, data: Mapping[str, object], severity: Severity | str = Severity.INFO
    ) -> int:
        """Tell whoever wants to hear it; gives how many subscriptions there were."""
        severity = severity_of(severity)
        if channel not in self._known:
            raise Misconfigured(f"there is no channel {channel!r:.140}: name it with `add` first")
        event = Event(secrets.token_hex(16), channel, datetime.now(UTC), severity, data)
        if len(jsonrpc.to_json(data)) > events.MOST_BYTES // 2:
            raise Misconfigured(f"an event has at most {events.MOST_BYTES // 2} bytes of data")
        meant = [
            (peer, id)
            for peer in tuple(self._peers)
            for id, wanted in peer.subscriptions.items()
            if wants(wanted, channel) and is_enough(severity, wanted.min_severity)
        ]
        for peer, id in meant:
            await peer.tell(events.NOTICE, events.params_of(event, id))
        return len(meant)

    async def subscribe(self, request: Request) -> dict[str, object]:
        try:
            wanted = events.wanted_in(jsonrpc.to_raw(dict(request.params)))
        except MalformedMessage as problem:
            raise request.refused(problem.fault, str(problem)) from None
        mine = request.peer.subscriptions
        if len(mine) >= MOST_SUBSCRIPTIONS:
            raise request.refused(EXHAUSTED, f"at most {MOST_SUBSCRIPTIONS} subscriptions")
        found, missing, kept = answered(wanted, self._known)
        id = f"sub-{secrets.token_hex(8)}"
        mine[id] = kept
        return events.subscribed(id, found, missing)

    async def unsubscribe(self, request: Request) -> dict[str, object]:
        named = request.params.get("subscription_id")
        if not isinstance(named, str) or request.peer.subscriptions.pop(named, None) is None:
            raise request.refused(INVALID_PARAMS, "there is no such subscription")
        return {}
