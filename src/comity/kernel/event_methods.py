"""`mgp/events/subscribe|unsubscribe` at the door of all servers, and who is told. (MGP §13.2-13.3)

Rule 1: a session hears on its standing stream, and only of its own subscriptions, each by its id. A
        client of the modern era has no session: it asks for events where it listens, and hears them
        on that stream for as long as it is open.
Rule 2: whoever reads too slowly loses events; the next thing it hears is how many.
Rule 3: a subscription is in force when it was answered, and over with its session or stream.
"""

import secrets
from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.events import Events, Following
from comity.kernel.outbox import Outbox
from comity.kernel.own_methods import Asked, OwnMethods
from comity.kernel.sessions import Session
from comity.rules.negotiation import of_request
from comity.rules.standard_channels import LOST, STANDARD
from comity.wire import events, jsonrpc, mcp
from comity.wire.errors import (
    EXHAUSTED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.wire.events import LISTENED, NOTICE, Event, Wanted
from comity.wire.jsonrpc import Frame
from comity.wire.negotiation import Extension
from comity.wire.parties import Actor

MOST_OF_SESSION: Final = 32
MOST_WAITING: Final = 256
MOST_BYTES: Final = 1024 * 1024
"""What may wait for one reader; beyond it events are lost, and nothing else of its stream."""

_LISTEN_INSTEAD: Final = (
    f"in this era there is no stream beside a request: name the channels in {mcp.LISTEN}, "
    f'as {{"notifications": {{"{LISTENED}": {{"channels": [...]}}}}}}'
)


class Reader:
    """One subscription as it is told to a session, or on the stream of a call that listens."""

    def __init__(self, who: Session | Call, plane: Events) -> None:
        self.id = f"sub-{secrets.token_hex(8)}"
        self.following: Following | None = None
        self._who = who
        self._plane = plane
        self._is_in_force = False
        self._lost = 0

    async def begin(self, wanted: Wanted, actor: Actor) -> dict[str, object]:
        """Follow, and give what is to be answered. Raises Unavailable."""
        self.following = self._plane.follow(wanted, actor, self.hear)
        found = await self.following.settled()
        self._is_in_force = True
        return events.subscribed(self.id, found.subscribed, found.unsupported)

    def end(self) -> None:
        self._is_in_force = False
        if self.following is not None:
            self.following.close()

    def hear(self, event: Event) -> None:
        if not self._is_in_force:
            return
        outbox = self._outbox
        if len(outbox.frames) >= MOST_WAITING or outbox.size >= MOST_BYTES:
            self._lost += 1
            return
        if self._lost:
            self._tell_lost(outbox)
        if not self._put(outbox, event):
            self._lost += 1

    def _tell_lost(self, outbox: Outbox) -> None:
        severity, at = STANDARD[LOST].severity, self._plane.clock()
        if self._put(outbox, Event(self._plane.mint(), LOST, at, severity, {"lost": self._lost})):
            self._lost = 0

    def _put(self, outbox: Outbox, event: Event) -> bool:
        params = events.params_of(event, self.id)
        if isinstance(self._who, Call):
            # Each notice names the stream that it belongs to.
            params["_meta"] = {mcp.SUBSCRIPTION_ID: self._who.asker_id}
        return outbox.put(jsonrpc.encode(jsonrpc.notification(NOTICE, params)))

    @property
    def _outbox(self) -> Outbox:
        return self._who.standalone if isinstance(self._who, Session) else self._who.outbox


class EventMethods:
    """The subscriptions of clients that negotiated `bidirectional` with the gateway."""

    def __init__(self, plane: Events) -> None:
        self._plane = plane
        self._of_session: dict[Session, dict[str, Reader]] = {}
        self._listening: dict[Call, Reader] = {}

    def __len__(self) -> int:
        return sum(len(readers) for readers in self._of_session.values()) + len(self._listening)

    def join(self, methods: OwnMethods) -> None:
        methods.add(events.SUBSCRIBE, Extension.BIDIRECTIONAL, self._subscribe)
        methods.add(events.UNSUBSCRIBE, Extension.BIDIRECTIONAL, self._unsubscribe)

    async def _subscribe(self, asked: Asked) -> Mapping[str, object]:
        session = asked.session
        if session is None:
            raise MalformedMessage(_LISTEN_INSTEAD, METHOD_NOT_FOUND)
        wanted = events.wanted_in(asked.frame.params)
        if session.closed:
            raise Unavailable("the session has ended")
        held = self._of_session.setdefault(session, {})
        session.farewells[self] = lambda: self._farewell(session)
        if len(held) >= MOST_OF_SESSION:
            because = f"a session has at most {MOST_OF_SESSION} subscriptions; end one first"
            raise MalformedMessage(because, EXHAUSTED)
        reader = Reader(session, self._plane)
        held[reader.id] = reader
        try:
            return await reader.begin(wanted, asked.actor)
        except BaseException:
            self._end(held, reader.id)
            raise

    async def _unsubscribe(self, asked: Asked) -> Mapping[str, object]:
        named = events.named_in(asked.frame.params)
        held = {} if asked.session is None else self._of_session.get(asked.session, {})
        if named not in held:
            raise MalformedMessage("there is no such subscription in this session", INVALID_PARAMS)
        self._end(held, named)
        return {"unsubscribed": True, "subscription_id": named}

    async def listen(self, call: Call, frame: Frame, wanted: Raw | None) -> dict[str, object]:
        """Tell a stream of the modern era what it asks for; gives what was agreed. Raises."""
        terms = of_request(frame.params)
        if wanted is None or terms is None or Extension.BIDIRECTIONAL not in terms.extensions:
            return {}
        reader = self._listening[call] = Reader(call, self._plane)
        try:
            return {LISTENED: await reader.begin(events.wanted_in(wanted), call.outbox.actor)}
        except BaseException:
            self.forget(call)
            raise

    def forget(self, call: Call) -> None:
        """A stream was closed."""
        reader = self._listening.pop(call, None)
        if reader is not None:
            reader.end()

    def _farewell(self, session: Session) -> None:
        for reader in self._of_session.pop(session, {}).values():
            reader.end()

    def _end(self, held: dict[str, Reader], name: str) -> None:
        reader = held.pop(name, None)
        if reader is not None:
            reader.end()
