"""What can follow from a push: an event, an envelope in a topic, posts to webhooks, or a turn.

Rule 1: each is the same however often it is brought about: events and posts by the server and its
        event's id, envelopes by an id that follows from these, turns by their cause.
Rule 2: what is told are the server's words, and it is named as who says them.
"""

import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from comity.kernel.events import Events
from comity.kernel.live.parts import Cause, Errand, Origin, Turns
from comity.kernel.live.push_doing import Effect
from comity.kernel.seats import Said
from comity.kernel.topics import Topics
from comity.rules.permissions import SUBJECT
from comity.rules.standard_channels import PUSHED
from comity.wire import envelope as wire
from comity.wire.audit import stamp
from comity.wire.contents import text_of, to_wire
from comity.wire.envelope import Heading
from comity.wire.errors import INVALID_PARAMS, UPSTREAM_DOWN, MalformedMessage, Unavailable
from comity.wire.events import Event, Severity
from comity.wire.parties import PartyKind
from comity.wire.pushes import OF_HOOKS, Goal, KeptPush, Push

log = logging.getLogger(__name__)

_NAMES: Final = uuid.UUID("6f1f6f0e-6f43-4f0a-9a38-0d0b8a2c5a11")
"""Within which the ids of envelopes follow from what they tell of."""

type Engine = Callable[[], Turns | None]


def effects(
    events: Events, topics: Topics, turns: Engine, party: str = ""
) -> Mapping[Goal, Effect]:
    """All that can follow, brought about by these; turns in the name of this party, usually."""

    async def nothing(_: KeptPush) -> str:
        return ""

    return {
        Goal.NOTHING: nothing,
        Goal.EVENTS: Telling(events).tell,
        Goal.WEBHOOKS: Telling(events).post,
        Goal.TOPIC: Speaking(topics).say,
        Goal.TURN: Beginning(turns, party).begin,
    }


class Telling:
    """Has pushes told on the plane of events, and posted to those who subscribed to that."""

    def __init__(self, events: Events) -> None:
        self._events = events

    async def tell(self, kept: KeptPush) -> str:
        """To those who follow just now, which nobody repeats; and to webhooks, which is kept."""
        event = event_of(kept)
        await self._post(event)
        self._events.publish(event)
        return ""

    async def post(self, kept: KeptPush) -> str:
        await self._post(event_of(kept))
        return ""

    async def _post(self, event: Event) -> None:
        if self._events.post is None:
            raise Unavailable("which webhooks there are is not known yet", UPSTREAM_DOWN)
        await self._events.post(event)


def event_of(kept: KeptPush) -> Event:
    """A push on the plane: with its server and id it is the fact that the server told. (D-99)"""
    push = kept.push
    data: dict[str, object] = {"server_id": push.server, "event_id": push.id}
    data |= {"feature_set": push.feature} if push.feature else {}
    data |= {"timestamp": stamp(push.at), "origin": dict(push.origin)}
    data["content"] = to_wire(push.content)
    about = (push.server, "", "", push.server)
    return Event(push.id, PUSHED, kept.received_at, Severity.INFO, data, *about)


def author_of(push: Push) -> str:
    """Whose words they are, as a party."""
    if push.server.startswith(OF_HOOKS):
        return f"{PartyKind.SYSTEM}:{push.server}"
    return f"{SUBJECT}{push.server}"


class Speaking:
    """Says in topics what was pushed, at every node where somebody is in them."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def say(self, kept: KeptPush) -> str:
        push, topic = kept.push, kept.route.place
        room = await self._topics.opened(topic)
        id = str(uuid.uuid5(_NAMES, push.key))
        if id in room.trail:
            # Somebody who died before it was settled has said it.
            return ""
        payload: dict[str, Any] = {
            "text": text_of(push.content),
            "format": "plain",
            "source": {"server": push.server, "event": push.id, "feature_set": push.feature},
        }
        heading = Heading(id, stamp(kept.received_at), (), "")
        envelope = wire.written(heading, author_of(push), wire.CHAT, payload)
        data = wire.encode(envelope)
        wire.decode(data, room.terms.limits)
        said = Said(data, envelope)
        if room.span is not None:
            # First to the others: where they cannot be reached it is tried again, for all.
            room.span.say(topic, said)
        room.deliver(said)
        return ""


class Beginning:
    """Has turns taken about what was pushed."""

    def __init__(self, turns: Engine, party: str) -> None:
        self._turns = turns
        self._party = party

    async def begin(self, kept: KeptPush) -> str:
        turns = self._turns()
        if turns is None:
            raise Unavailable("nobody takes turns here; name a model in [[models]]", UPSTREAM_DOWN)
        push, route = kept.push, kept.route
        if not push.content:
            raise MalformedMessage("a push without content begins no turn", INVALID_PARAMS)
        server = "" if push.server.startswith(OF_HOOKS) else push.server
        cause = Cause(Origin.PUSH, push.key, route.party or self._party, server, push.feature)
        errand = Errand(cause, route.conversation, push.content, author_of(push), route.say_in)
        return (await turns.begin(errand)).inference
