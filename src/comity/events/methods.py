"""The methods `mgp/events/*` and the methods of the MCP Events draft."""

import secrets
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Raw

from comity.errors import (
    EVENT_NOT_FOUND,
    EVENTS_FORBIDDEN,
    EXHAUSTED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.events import model
from comity.events import model as wanting
from comity.events.bus import EventBus, EventSubscriber
from comity.events.model import LISTENED, NOTICE, EventFilter, GatewayEvent, is_pattern
from comity.events.standard_channels import LOST, STANDARD
from comity.events.webhooks import model as event_messages
from comity.events.webhooks.model import (
    EventSelector,
    PollParams,
    WebhookState,
    WebhookSubscription,
)
from comity.events.webhooks.service import WebhookSubscriptions
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import Actor
from comity.mcp.jsonrpc import Frame
from comity.mcp.mgp import MgpExtension, of_request
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.methods import MethodRequest, method
from comity.sessions.sessions import Session
from comity.toolkit.text import format_timestamp

MAX_PER_SESSION: Final = 32
MOST_WAITING: Final = 256
MOST_BYTES: Final = 1024 * 1024
"""The limit of waiting events for one client. Further events are lost, but no other messages."""

_LISTEN_HINT: Final = (
    f"this MCP version has no separate stream: name the channels in {protocol.LISTEN}, "
    f'as {{"notifications": {{"{LISTENED}": {{"channels": [...]}}}}}}'
)


class ClientSubscription:
    """One subscription of a session, or of a call that holds a stream open."""

    def __init__(self, who: Session | Call, event_bus: EventBus) -> None:
        self.id = f"sub-{secrets.token_hex(8)}"
        self.subscriber: EventSubscriber | None = None
        self._owner = who
        self._event_bus = event_bus
        self._is_active = False
        self._lost_count = 0

    async def start(self, event_filter: EventFilter, actor: Actor) -> dict[str, object]:
        """Subscribe, and return the result of the request. Raises Unavailable."""
        self.subscriber = self._event_bus.subscribe(event_filter, actor, self.on_event)
        found = await self.subscriber.settled()
        self._is_active = True
        return model.build_subscribe_result(self.id, found.subscribed, found.unsupported)

    def stop(self) -> None:
        self._is_active = False
        if self.subscriber is not None:
            self.subscriber.close()

    def on_event(self, event: GatewayEvent) -> None:
        if not self._is_active:
            return
        client_stream = self._client_stream
        if len(client_stream.frames) >= MOST_WAITING or client_stream.size >= MOST_BYTES:
            self._lost_count += 1
            return
        if self._lost_count:
            self._send_lost_notice(client_stream)
        if not self._put(client_stream, event):
            self._lost_count += 1

    def _send_lost_notice(self, client_stream: ClientStream) -> None:
        severity, at = STANDARD[LOST].severity, self._event_bus.clock()
        if self._put(
            client_stream,
            GatewayEvent(self._event_bus.mint(), LOST, at, severity, {"lost": self._lost_count}),
        ):
            self._lost_count = 0

    def _put(self, client_stream: ClientStream, event: GatewayEvent) -> bool:
        params = model.params_of(event, self.id)
        if isinstance(self._owner, Call):
            # In the modern protocol, each notice names its stream.
            params["_meta"] = {protocol.SUBSCRIPTION_ID: self._owner.client_request_id}
        return client_stream.put(jsonrpc.encode_frame(jsonrpc.make_notification(NOTICE, params)))

    @property
    def _client_stream(self) -> ClientStream:
        return (
            self._owner.standalone
            if isinstance(self._owner, Session)
            else self._owner.client_stream
        )


class EventMethods:
    """The subscriptions of clients that negotiated `bidirectional`."""

    def __init__(self, event_bus: EventBus) -> None:
        self._event_bus = event_bus
        self._by_session: dict[Session, dict[str, ClientSubscription]] = {}
        self._by_call: dict[Call, ClientSubscription] = {}

    def __len__(self) -> int:
        return sum(len(readers) for readers in self._by_session.values()) + len(self._by_call)

    @method("mgp/events/subscribe", MgpExtension.BIDIRECTIONAL)
    async def _subscribe(self, request: MethodRequest) -> Mapping[str, object]:
        session = request.session
        if session is None:
            raise MalformedMessage(_LISTEN_HINT, METHOD_NOT_FOUND)
        wanted = model.filter_in(request.frame.params)
        if session.is_closed:
            raise Unavailable("the session has ended")
        held = self._by_session.setdefault(session, {})
        session.on_close[self] = lambda: self._on_session_ended(session)
        if len(held) >= MAX_PER_SESSION:
            reason = f"a session has at most {MAX_PER_SESSION} subscriptions; end one first"
            raise MalformedMessage(reason, EXHAUSTED)
        reader = ClientSubscription(session, self._event_bus)
        held[reader.id] = reader
        try:
            return await reader.start(wanted, request.actor)
        except BaseException:
            self._end(held, reader.id)
            raise

    @method("mgp/events/unsubscribe", MgpExtension.BIDIRECTIONAL)
    async def _unsubscribe(self, request: MethodRequest) -> Mapping[str, object]:
        named = model.named_in(request.frame.params)
        held = {} if request.session is None else self._by_session.get(request.session, {})
        if named not in held:
            raise MalformedMessage("there is no such subscription in this session", INVALID_PARAMS)
        self._end(held, named)
        return {"unsubscribed": True, "subscription_id": named}

    async def listen(self, call: Call, frame: Frame, wanted: Raw | None) -> dict[str, object]:
        """Send events to a stream of the modern protocol, and return the acknowledged filter.

        Raises MalformedMessage or Unavailable.
        """
        terms = of_request(frame.params)
        if wanted is None or terms is None or MgpExtension.BIDIRECTIONAL not in terms.extensions:
            return {}
        reader = self._by_call[call] = ClientSubscription(call, self._event_bus)
        try:
            return {LISTENED: await reader.start(model.filter_in(wanted), call.client_stream.actor)}
        except BaseException:
            self.forget(call)
            raise

    def forget(self, call: Call) -> None:
        """End the subscription of a closed stream."""
        reader = self._by_call.pop(call, None)
        if reader is not None:
            reader.stop()

    def _on_session_ended(self, session: Session) -> None:
        for reader in self._by_session.pop(session, {}).values():
            reader.stop()

    def _end(self, held: dict[str, ClientSubscription], name: str) -> None:
        reader = held.pop(name, None)
        if reader is not None:
            reader.stop()


MAX_BUFFERED_EVENTS: Final = 500
"""How many events wait for one polling client."""

POLL_BUFFER_LIFETIME: Final = timedelta(minutes=5)

type Poller = tuple[str, str, EventSelector]


class PollBuffer:
    """The numbered events that wait for one polling client."""

    def __init__(self, now: datetime) -> None:
        self.last = 0
        self.polled_at = now
        self.subscriber: EventSubscriber | None = None
        self._events: deque[tuple[int, GatewayEvent]] = deque(maxlen=MAX_BUFFERED_EVENTS)

    def on_event(self, event: GatewayEvent) -> None:
        self.last += 1
        self._events.append((self.last, event))

    def after(self, number: int) -> tuple[list[tuple[int, GatewayEvent]], bool]:
        """Return the events after a number, and whether some of them are lost."""
        oldest = self._events[0][0] if self._events else self.last + 1
        return [each for each in self._events if each[0] > number], number + 1 < oldest


class McpEventMethods:
    """Implements the MCP Events draft for all clients."""

    def __init__(self, event_bus: EventBus, subscriptions: WebhookSubscriptions) -> None:
        self._event_bus = event_bus
        self._subscriptions = subscriptions
        self._run = secrets.token_hex(8)
        self._buffers: dict[Poller, PollBuffer] = {}

    def drop_idle_buffers(self) -> None:
        """Drop the buffers of clients that have stopped polling."""
        old = self._event_bus.clock() - POLL_BUFFER_LIFETIME
        for poller, waiting in list(self._buffers.items()):
            if waiting.polled_at < old:
                self._forget(poller)

    @method("events/list")
    async def _list(self, request: MethodRequest) -> Mapping[str, object]:
        self._require_principal(request.actor)
        found = self._event_bus.channels(request.actor)
        return {"events": [event_messages.describe_channel(channel) for channel in found]}

    @method("events/subscribe")
    async def _subscribe(self, request: MethodRequest) -> Mapping[str, object]:
        wanted = event_messages.decode_subscribe_params(request.params)
        self._refuse_unknown(request.actor, wanted.named)
        made = await self._subscriptions.subscribe(request.actor, wanted)
        status = {} if made.before is None else _status(made.before)
        answer = event_messages.build_subscribe_result(
            made.subscription.id, made.subscription.expires_at, status
        )
        # In the draft, the client chooses the secret. Otherwise Comity makes one and returns it
        # only here.
        return answer if made.secret is None else {**answer, "secret": made.secret}

    @method("events/unsubscribe")
    async def _unsubscribe(self, request: MethodRequest) -> Mapping[str, object]:
        named, url = event_messages.decode_unsubscribe_params(request.params)
        if not await self._subscriptions.unsubscribe(request.actor, named, url):
            raise MalformedMessage("you have no such subscription", EVENT_NOT_FOUND)
        return {}

    @method("events/poll")
    async def _poll(self, request: MethodRequest) -> Mapping[str, object]:
        wanted = event_messages.decode_poll_params(request.params)
        self._refuse_unknown(request.actor, wanted.named)
        poller = (request.actor.party, request.actor.credential, wanted.named)
        waiting = self._buffers.get(poller) or self._start_buffer(poller, request.actor)
        waiting.polled_at = self._event_bus.clock()
        since, is_ours = self._position(wanted, waiting)
        found, is_gone = waiting.after(since)
        shown = found[: wanted.most]
        last = shown[-1][0] if shown else since
        return event_messages.build_poll_result(
            [event_messages.to_occurrence(event) for _, event in shown],
            f"{self._run}.{last}",
            is_truncated=is_gone or not is_ours,
            has_more=len(found) > len(shown),
        )

    def _position(self, wanted: PollParams, buffer: PollBuffer) -> tuple[int, bool]:
        """Return the number to continue from, and whether the cursor is valid."""
        if wanted.cursor is None:
            return buffer.last, True
        run, _, number = wanted.cursor.partition(".")
        is_ours = run == self._run and number.isdigit() and len(number) < 16
        is_ours = is_ours and int(number) <= buffer.last
        return (int(number), True) if is_ours else (buffer.last, False)

    def _start_buffer(self, poller: Poller, actor: Actor) -> PollBuffer:
        """Subscribe a polling client. Raises Unavailable if there are too many subscriptions."""
        waiting = PollBuffer(self._event_bus.clock())
        wanted = EventFilter((poller[2].name,), poller[2].least)
        waiting.subscriber = self._event_bus.subscribe(wanted, actor, waiting.on_event)
        self._buffers[poller] = waiting
        return waiting

    def _forget(self, poller: Poller) -> None:
        following = self._buffers.pop(poller).subscriber
        if following is not None:
            following.close()

    def _refuse_unknown(self, actor: Actor, named: EventSelector) -> None:
        self._require_principal(actor)
        known = (channel.name for channel in self._event_bus.channels(actor))
        if not is_pattern(named.name) and not any(
            wanting.is_channel_match(named.name, each) for each in known
        ):
            raise MalformedMessage(f"there is no event {named.name}", EVENT_NOT_FOUND)

    def _require_principal(self, actor: Actor) -> None:
        if not actor.party:
            raise MalformedMessage("events need an authenticated client", EVENTS_FORBIDDEN)


def _status(subscription: WebhookSubscription) -> dict[str, object]:
    """The delivery status of a subscription."""
    return {
        "active": subscription.state is WebhookState.ACTIVE,
        "lastDeliveryAt": None
        if subscription.delivered_at is None
        else format_timestamp(subscription.delivered_at),
        "lastError": subscription.last_error or None,
        **(
            {}
            if subscription.failing_since is None
            else {"failedSince": format_timestamp(subscription.failing_since)}
        ),
    }
