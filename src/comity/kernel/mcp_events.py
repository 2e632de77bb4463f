"""`events/list|subscribe|unsubscribe|poll` at the door of all servers: MCP Events. (0042)

Whoever polls is followed for while it does: what it may hear waits for its next poll, up to a
bound. The position that it is told holds at this node, in this run; from elsewhere it begins anew,
and is told that it may have missed something.
"""

import secrets
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from comity.kernel.events import Events, Following
from comity.kernel.own_methods import Asked, OwnMethods
from comity.kernel.webhooks import Subscribe
from comity.rules import events as wanting
from comity.wire import mcp_events as event_messages
from comity.wire.audit import stamp
from comity.wire.errors import EVENT_NOT_FOUND, EVENTS_FORBIDDEN, MalformedMessage
from comity.wire.events import Event, Wanted, is_pattern
from comity.wire.mcp_events import Named, Polling
from comity.wire.parties import Actor
from comity.wire.webhooks import State, Subscription

KEPT: Final = 500
"""How many events wait for one who polls."""

FORGOTTEN_AFTER: Final = timedelta(minutes=5)

type Poller = tuple[str, str, Named]


class Waiting:
    """What one who polls has yet to hear, each with its number."""

    def __init__(self, now: datetime) -> None:
        self.last = 0
        self.asked_at = now
        self.following: Following | None = None
        self._events: deque[tuple[int, Event]] = deque(maxlen=KEPT)

    def hear(self, event: Event) -> None:
        self.last += 1
        self._events.append((self.last, event))

    def after(self, number: int) -> tuple[list[tuple[int, Event]], bool]:
        """What came after, and whether some of it is gone."""
        oldest = self._events[0][0] if self._events else self.last + 1
        return [each for each in self._events if each[0] > number], number + 1 < oldest


class McpEvents:
    """Answers clients that know MCP Events, whatever else they speak."""

    def __init__(self, plane: Events, subscribing: Subscribe) -> None:
        self._plane = plane
        self._subscribing = subscribing
        self._run = secrets.token_hex(8)
        self._waiting: dict[Poller, Waiting] = {}

    def join(self, methods: OwnMethods) -> None:
        methods.add(event_messages.LIST, None, self._list)
        methods.add(event_messages.SUBSCRIBE, None, self._subscribe)
        methods.add(event_messages.UNSUBSCRIBE, None, self._unsubscribe)
        methods.add(event_messages.POLL, None, self._poll)

    def look(self) -> None:
        """Forget who has stopped polling."""
        old = self._plane.clock() - FORGOTTEN_AFTER
        for poller, waiting in list(self._waiting.items()):
            if waiting.asked_at < old:
                self._forget(poller)

    async def _list(self, asked: Asked) -> Mapping[str, object]:
        self._refuse_nobody(asked.actor)
        found = self._plane.channels(asked.actor)
        return {"events": [event_messages.listed(channel) for channel in found]}

    async def _subscribe(self, asked: Asked) -> Mapping[str, object]:
        wanted = event_messages.subscribing(asked.params)
        self._refuse_unknown(asked.actor, wanted.named)
        made = await self._subscribing.subscribe(asked.actor, wanted)
        status = {} if made.before is None else _status(made.before)
        answer = event_messages.subscribed(
            made.subscription.id, made.subscription.expires_at, status
        )
        # The draft has the client draw it; who does not is told one, and only now.
        return answer if made.secret is None else {**answer, "secret": made.secret}

    async def _unsubscribe(self, asked: Asked) -> Mapping[str, object]:
        named, url = event_messages.unsubscribing(asked.params)
        if not await self._subscribing.unsubscribe(asked.actor, named, url):
            raise MalformedMessage("there is no such subscription of yours", EVENT_NOT_FOUND)
        return {}

    async def _poll(self, asked: Asked) -> Mapping[str, object]:
        wanted = event_messages.polling(asked.params)
        self._refuse_unknown(asked.actor, wanted.named)
        poller = (asked.actor.party, asked.actor.credential, wanted.named)
        waiting = self._waiting.get(poller) or self._begun(poller, asked.actor)
        waiting.asked_at = self._plane.clock()
        since, is_ours = self._position(wanted, waiting)
        found, is_gone = waiting.after(since)
        shown = found[: wanted.most]
        last = shown[-1][0] if shown else since
        return event_messages.polled(
            [event_messages.occurrence(event) for _, event in shown],
            f"{self._run}.{last}",
            is_truncated=is_gone or not is_ours,
            has_more=len(found) > len(shown),
        )

    def _position(self, wanted: Polling, waiting: Waiting) -> tuple[int, bool]:
        """From which number on, and whether the position was one that we know."""
        if wanted.cursor is None:
            return waiting.last, True
        run, _, number = wanted.cursor.partition(".")
        is_ours = run == self._run and number.isdigit() and len(number) < 16
        is_ours = is_ours and int(number) <= waiting.last
        return (int(number), True) if is_ours else (waiting.last, False)

    def _begun(self, poller: Poller, actor: Actor) -> Waiting:
        """Raises Unavailable where too much is followed already."""
        waiting = Waiting(self._plane.clock())
        wanted = Wanted((poller[2].name,), poller[2].least)
        waiting.following = self._plane.follow(wanted, actor, waiting.hear)
        self._waiting[poller] = waiting
        return waiting

    def _forget(self, poller: Poller) -> None:
        following = self._waiting.pop(poller).following
        if following is not None:
            following.close()

    def _refuse_unknown(self, actor: Actor, named: Named) -> None:
        self._refuse_nobody(actor)
        known = (channel.name for channel in self._plane.channels(actor))
        if not is_pattern(named.name) and not any(
            wanting.covers(named.name, each) for each in known
        ):
            raise MalformedMessage(f"there is no event {named.name}", EVENT_NOT_FOUND)

    def _refuse_nobody(self, actor: Actor) -> None:
        if not actor.party:
            raise MalformedMessage("who hears events shows who it is", EVENTS_FORBIDDEN)


def _status(one: Subscription) -> dict[str, object]:
    """How posting went until now."""
    return {
        "active": one.state is State.ACTIVE,
        "lastDeliveryAt": None if one.delivered_at is None else stamp(one.delivered_at),
        "lastError": one.last_error or None,
        **({} if one.failing_since is None else {"failedSince": stamp(one.failing_since)}),
    }
