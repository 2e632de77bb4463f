"""Webhook subscriptions, and the messages that are made from audit events."""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from comity.audit import events
from comity.audit.chain import AuditRecord
from comity.audit.events import AuditType
from comity.audit.log import AuditLog
from comity.errors import (
    CALLBACK_FAILED,
    EVENTS_FORBIDDEN,
    EXHAUSTED,
    MalformedMessage,
    Misconfigured,
    Unavailable,
)
from comity.events import model as wanting
from comity.events.bus import EventBus, EventSubscriber
from comity.events.model import EventFilter, GatewayEvent, is_pattern
from comity.events.standard_channels import STANDARD, UNWRITTEN, channels_of, to_channel_event
from comity.events.webhooks import model as rules
from comity.events.webhooks.model import (
    MAX_BODY,
    PAGE,
    PLACES,
    SUBSCRIBE,
    DeliveryProblem,
    EventSelector,
    JournalCursor,
    SubscribeParams,
    WebhookMessage,
    WebhookSender,
    WebhookState,
    WebhookStore,
    WebhookSubscription,
    WebhookTarget,
    to_occurrence,
)
from comity.events.webhooks.settings import WebhookSettings
from comity.mcp.actors import ANONYMOUS, Actor, PrincipalKind
from comity.policy.grants import Effect
from comity.policy.snapshot import PolicyEngine
from comity.secrets.model import Sealer
from comity.toolkit.resilience import RateLimit, RateLimiter
from comity.toolkit.text import count_noun

log = logging.getLogger(__name__)

SECRET_BYTES: Final = 32
ROTATION: Final = timedelta(hours=1)
"""How long messages are also signed with the previous secret."""

MAX_ECHO: Final = 4096
CHALLENGES: Final = RateLimit.per_minute(20)
CHALLENGE_AGAIN_AFTER: Final = timedelta(minutes=1)
MAX_INDEXED: Final = 4096

type Recognise = Callable[[WebhookSubscription], Actor | None]
"""Returns the subscriber as an actor, or None if its credentials are no longer valid."""


class WebhookSubscribeResult(NamedTuple):
    """The subscription after a request.

    `secret` is set if the gateway chose it. `before` is the earlier subscription, if it is a
    renewal.
    """

    subscription: WebhookSubscription
    secret: str | None
    before: WebhookSubscription | None


class WebhookRegistry:
    """The subscriptions of all nodes, as known on this node."""

    def __init__(
        self,
        store: WebhookStore,
        event_bus: EventBus,
        policy_engine: PolicyEngine,
        find_principal: Recognise,
        audit_log: AuditLog,
        options: WebhookSettings,
    ) -> None:
        self.store = store
        self.event_bus = event_bus
        self.options = options
        self.subscriptions: dict[str, WebhookSubscription] = {}
        # Called when a subscription is added, changed or removed.
        self.watchers: list[Callable[[], None]] = []
        self._policy_engine = policy_engine
        self._find_principal = find_principal
        self._audit_log = audit_log
        self._by_channel: dict[str, tuple[WebhookSubscription, ...]] = {}

    @property
    def clock(self) -> Callable[[], datetime]:
        return self._audit_log.clock

    async def refresh(self) -> None:
        """Load all subscriptions. Raises Unavailable."""
        found: dict[str, WebhookSubscription] = {}
        after = ""
        while page := await self.store.page(after):
            found |= {each.id: each for each in page}
            after = page[-1].id
            if len(page) < PAGE:
                break
        self._set_subscriptions(found)

    async def reread(self, id: str) -> None:
        """Load a changed subscription. An empty id means all. Raises Unavailable."""
        if not id:
            await self.refresh()
            return
        found = await self.store.get(id)
        others = {each: kept for each, kept in self.subscriptions.items() if each != id}
        self._set_subscriptions(others if found is None else {**others, id: found})

    def _set_subscriptions(self, known: dict[str, WebhookSubscription]) -> None:
        self.subscriptions = known
        self._by_channel = {}
        for watcher in self.watchers:
            watcher()

    def may_post_to(self, actor: Actor, host: str) -> bool:
        """Whether an actor may have events posted to a host. Servers never may."""
        if actor.kind is PrincipalKind.SERVER:
            return False
        try:
            judged = self._policy_engine.authorize(actor, SUBSCRIBE, PLACES, host)
        except Unavailable:
            return False
        return judged.effect is Effect.ALLOW

    def certain(self) -> None:
        """Raise Unavailable while the grants are not known."""
        self._policy_engine.may_know_server(ANONYMOUS, "")

    def matching(self, channel: str) -> tuple[WebhookSubscription, ...]:
        """Return the active subscriptions that match a channel."""
        found = self._by_channel.get(channel)
        if found is None:
            active = (
                each for each in self.subscriptions.values() if each.state is WebhookState.ACTIVE
            )
            found = tuple(each for each in active if wanting.is_channel_match(each.name, channel))
            if len(self._by_channel) >= MAX_INDEXED:
                self._by_channel.clear()
            self._by_channel[channel] = found
        return found

    def recipients_of(self, event: GatewayEvent) -> list[WebhookSubscription]:
        """Return the subscriptions that want an event and may receive it now."""
        return [each for each in self.matching(event.channel) if self._hears(each, event)]

    def has_recipient(self, event: GatewayEvent) -> bool:
        """Whether any subscription receives an event."""
        return any(self._hears(each, event) for each in self.matching(event.channel))

    def _hears(self, subscription: WebhookSubscription, event: GatewayEvent) -> bool:
        is_wanted = event.at >= subscription.created_at and wanting.is_enough(
            event.severity, subscription.least
        )
        actor = self.actor_of(subscription) if is_wanted else None
        return actor is not None and self.event_bus.may_see(actor, event)

    def actor_of(self, subscription: WebhookSubscription) -> Actor | None:
        """Return the subscriber as an actor, or None while nothing may be delivered to it."""
        where = self.target_of(subscription)
        actor = None if where is None else self._find_principal(subscription)
        return (
            actor if actor is not None and where and self.may_post_to(actor, where.host) else None
        )

    def target_of(self, subscription: WebhookSubscription) -> WebhookTarget | None:
        """Return the target, or None if the operator no longer permits it."""
        try:
            return rules.parse_target(subscription.url, self.options.places)
        except MalformedMessage:
            return None

    def record(
        self, type: AuditType, actor: Actor, subscription: WebhookSubscription, **more: object
    ) -> None:
        """Record a change of a subscription.

        The event names only the host, as the URL may hold secrets.
        """
        where = self.target_of(subscription)
        host = "" if where is None else where.host
        said = {
            "webhook": subscription.id,
            "principal": subscription.party,
            "event": subscription.name,
            "host": host,
            **more,
        }
        self._audit_log.record(type, actor, details=said)

    async def flush_audit_log(self) -> None:
        """Store the entries that the audit log holds in memory."""
        await self._audit_log.store.flush()


class WebhookSubscriptions:
    """Creates, renews and removes webhook subscriptions."""

    def __init__(self, webhooks: WebhookRegistry, sender: WebhookSender, sealer: Sealer) -> None:
        self._webhooks = webhooks
        self._sender = sender
        self._sealer = sealer
        self._limiter = RateLimiter(lambda: webhooks.clock().timestamp())

    async def subscribe(self, actor: Actor, params: SubscribeParams) -> WebhookSubscribeResult:
        """Create or renew a subscription. Raises MalformedMessage or Unavailable."""
        hooks, records = self._webhooks, self._webhooks.store
        where = rules.parse_target(params.url, hooks.options.places)
        if not hooks.may_post_to(actor, where.host):
            raise MalformedMessage(
                f"{actor.party or 'an unauthenticated client'} needs the grant {SUBSCRIBE} on "
                f"{PLACES}/{where.host}",
                EVENTS_FORBIDDEN,
            )
        drawn = None if params.secret is not None else secrets.token_bytes(SECRET_BYTES)
        given = None if params.secret is None else rules.secret_of(params.secret)
        id = rules.subscription_id(actor.party, params.url, params.named)
        own = await records.list_of_party(actor.party)
        before = next((each for each in own if each.id == id), None)
        self._refuse_too_many(own, before)
        one = self._create(actor, params, id) if before is None else self._renew(before, params)
        one = replace(one, credential=actor.credential)
        if before is None:
            sealed = await self._sealer.seal(given or drawn or b"", rules.secret_context(id))
            one = replace(one, sealed=(sealed,))
        elif given is not None:
            one = await self._rotate_secret(one, given)
        is_verified = any(each.url == one.url and each.state is WebhookState.ACTIVE for each in own)
        if not is_verified:
            await self._challenge(one, where)
        if before is None:
            # The marks are made from the stored entries.
            await hooks.flush_audit_log()
            await records.initialize_marks()
        await records.put(one)
        await hooks.reread(id)
        if before is None:
            hooks.record(AuditType.WEBHOOK_SUBSCRIBED, actor, one)
        told = rules.secret_text(drawn) if before is None and drawn is not None else None
        return WebhookSubscribeResult(one, told, before)

    def _refuse_too_many(
        self, own: Sequence[WebhookSubscription], before: WebhookSubscription | None
    ) -> None:
        options = self._webhooks.options
        is_full = (
            len(own) >= options.max_subscriptions_per_principal
            or len(self._webhooks.subscriptions) >= options.max_subscriptions
        )
        if before is None and is_full:
            most = count_noun(options.max_subscriptions_per_principal, "webhook")
            raise MalformedMessage(
                f"the limit is {most} for each principal; delete one first", EXHAUSTED
            )

    def _create(self, actor: Actor, params: SubscribeParams, id: str) -> WebhookSubscription:
        now, named = self._webhooks.clock(), params.named
        until = rules.subscription_expiry(
            params.lasts, now, self._webhooks.options.subscription_ttl
        )
        return WebhookSubscription(
            id, actor.party, actor.credential, params.url, named.name, named.least, now, until
        )

    def _renew(self, before: WebhookSubscription, params: SubscribeParams) -> WebhookSubscription:
        until = rules.subscription_expiry(
            params.lasts, self._webhooks.clock(), self._webhooks.options.subscription_ttl
        )
        return replace(before, expires_at=until, state=WebhookState.ACTIVE)

    async def _rotate_secret(
        self, subscription: WebhookSubscription, secret: bytes
    ) -> WebhookSubscription:
        context = rules.secret_context(subscription.id)
        if await self._sealer.unseal(subscription.sealed[0], context) == secret:
            return subscription
        sealed = (await self._sealer.seal(secret, context), subscription.sealed[0])
        return replace(subscription, sealed=sealed, rotated_until=self._webhooks.clock() + ROTATION)

    async def _challenge(self, subscription: WebhookSubscription, target: WebhookTarget) -> None:
        """Ask the receiver to confirm that it wants messages.

        Raises MalformedMessage if it does not, and Unavailable after too many challenges.
        """
        keys = ("party", subscription.party), ("host", target.host)
        if self._limiter.take(dict.fromkeys(keys, CHALLENGES)):
            raise Unavailable(
                "too many new webhook receivers; try again later", EXHAUSTED, CHALLENGE_AGAIN_AFTER
            )
        challenge = secrets.token_urlsafe(32)
        body = msgspec.json.encode({"type": "verification", "challenge": challenge})
        id = f"msg_verification_{secrets.token_hex(8)}"
        context = rules.secret_context(subscription.id)
        key = await self._sealer.unseal(subscription.sealed[0], context) or b""
        heading = rules.build_signature_headers(
            [key], subscription.id, id, self._webhooks.clock(), body
        )
        answered = await self._sender.post(target, heading, body, MAX_ECHO)
        if isinstance(answered, DeliveryProblem):
            problem = answered
        elif not 200 <= answered.status < 300:
            problem = rules.problem_of(answered.status)
        else:
            problem = (
                None
                if rules.is_challenge_echo(answered.body, challenge)
                else DeliveryProblem.CHALLENGE
            )
        if problem is not None:
            reason = f"the receiver did not confirm the subscription: {problem}"
            raise MalformedMessage(reason, CALLBACK_FAILED)

    async def unsubscribe(self, actor: Actor, named: EventSelector, url: str) -> bool:
        """Remove a subscription, and return whether it existed. Raises Unavailable."""
        return await self.remove(actor, rules.subscription_id(actor.party, url, named))

    async def remove(self, actor: Actor, id: str) -> bool:
        """Remove a subscription and its waiting messages by id, for operators.

        Returns whether it existed.
        """
        one = await self._webhooks.store.get(id)
        if one is None or not await self._webhooks.store.remove(id):
            return False
        await self._webhooks.reread(id)
        self._webhooks.record(AuditType.WEBHOOK_DELETED, actor, one, lost=one.waiting)
        return True


async def secrets_of(
    subscription: WebhookSubscription, sealer: Sealer, now: datetime
) -> list[bytes]:
    """Return the secrets that sign messages now. Empty if they can no longer be decrypted.

    Raises Unavailable if the key service does not answer.
    """
    is_rotating = subscription.rotated_until is not None and subscription.rotated_until > now
    sealed = subscription.sealed if is_rotating else subscription.sealed[:1]
    context = rules.secret_context(subscription.id)
    found = [await sealer.unseal(each, context) for each in sealed]
    return [secret for secret in found if secret is not None]


POLL_INTERVAL: Final = timedelta(seconds=2)
"""The interval of searches in chains of other nodes. Newer entries are left to their own node."""

MAX_FRESH: Final = 10_000
UNMARKED: Final = 500
"""After this many entries without a subscriber, the mark is moved anyway."""


class WebhookOutbox:
    """Stores the messages to deliver. `WebhookDelivery` delivers them."""

    def __init__(
        self, webhooks: WebhookRegistry, audit_log: AuditLog, wrote: asyncio.Event | None = None
    ) -> None:
        self.wakeup = asyncio.Event()
        # Set when new messages are stored.
        self.wrote = asyncio.Event() if wrote is None else wrote
        self._webhooks = webhooks
        self._audit_log = audit_log
        self._cursors: dict[str, int] = {}
        self._positions: dict[str, int] = {}
        self._new_records: list[AuditRecord] = []
        self._unstored_messages: list[WebhookMessage] = []
        self._followings: dict[str, EventSubscriber] = {}
        webhooks.watchers.append(self._on_webhooks_changed)
        audit_log.commit_listeners.append(self._on_committed)

    def is_awaited(self, event: events.AuditEvent) -> bool:
        """Whether an audit event that is about to be stored has a subscriber."""
        if not self._webhooks.subscriptions:
            return False
        return any(
            self._webhooks.matching(channel)
            and self._webhooks.has_recipient(to_channel_event(event, channel, "soon"))
            for channel in channels_of(event)
        )

    async def post(self, event: GatewayEvent) -> None:
        """Store the messages for an event of a server. They are stored when the method returns.

        Each subscription receives each event of a server once. Raises Unavailable if the store does
        not answer or the grants are not known.
        """
        self._webhooks.certain()
        named = replace(event, id=_event_id_header(event))
        posts = self._posts(named, self._webhooks.recipients_of(event))
        if posts:
            await self._webhooks.store.add(posts, self._webhooks.options.max_queued_events)
            self.wrote.set()

    def _on_committed(self, records: Sequence[AuditRecord]) -> None:
        if self._webhooks.subscriptions and records:
            if len(self._new_records) + len(records) > MAX_FRESH:
                # The entries are in the audit log and are read again from there.
                self._new_records.clear()
            self._new_records += records
            self.wakeup.set()

    async def run(self) -> None:
        """Run until cancelled. An unavailable store is tried again."""
        while True:
            is_late = False
            try:
                async with asyncio.timeout(POLL_INTERVAL.total_seconds()):
                    await self.wakeup.wait()
            except TimeoutError:
                is_late = True
            self.wakeup.clear()
            try:
                await self._look(everywhere=is_late)
            except (Unavailable, Misconfigured) as problem:
                log.warning("Events could not be queued for webhooks: %s", problem)
                await asyncio.sleep(POLL_INTERVAL.total_seconds())
                self.wakeup.set()
            except Exception:
                log.exception("Reading the audit log for webhooks failed")
                await asyncio.sleep(POLL_INTERVAL.total_seconds())

    async def _look(self, *, everywhere: bool) -> None:
        if not self._webhooks.subscriptions:
            self._new_records.clear()
            self._positions.clear()
            return
        await self._store_messages()
        head = self._audit_log.head
        if not self._positions or everywhere:
            self._cursors = dict(await self._webhooks.store.marks())
            self._positions = {chain: self._positions.get(chain, 0) for chain in self._cursors}
        if head is not None:
            await self._through(head.node)
        if everywhere:
            self._subscribe_to_bus()
            for chain in await self._audit_log.store.nodes():
                if head is None or chain != head.node:
                    await self._through(chain, is_own=False)

    async def _through(self, chain: str, *, is_own: bool = True) -> None:
        """Search the rest of a chain. Of another node's chain, only entries that are old enough."""
        while True:
            after = max(self._cursors.get(chain, 0), self._positions.get(chain, 0))
            lines = self._at_hand(after) if is_own else []
            lines = lines or await self._audit_log.store.page(chain, after)
            if not is_own:
                old = self._webhooks.clock() - POLL_INTERVAL
                lines = [line for line in lines if line.at <= old]
            if not lines:
                return
            await self._enqueue_records(chain, lines)

    def _at_hand(self, after: int) -> list[AuditRecord]:
        """Return the latest committed entries, if none before them is missing."""
        fresh, self._new_records = self._new_records, []
        head = self._audit_log.head
        if not fresh or head is None or fresh[0].node != head.node or fresh[0].seq > after + 1:
            return []
        return [line for line in fresh if line.seq > after]

    async def _enqueue_records(self, chain: str, records: Sequence[AuditRecord]) -> None:
        posts = [post for line in records for post in self._messages_of(line)]
        seen, upto = self._cursors.get(chain, 0), records[-1].seq
        if not posts and upto - seen < UNMARKED:
            self._positions[chain] = upto
            return
        if await self._webhooks.store.add(
            posts, self._webhooks.options.max_queued_events, JournalCursor(chain, seen, upto)
        ):
            self._cursors[chain] = self._positions[chain] = upto
            self.wrote.set()
            return
        # Another node has searched this part and stored its messages.
        self._cursors = dict(await self._webhooks.store.marks())
        self._positions[chain] = 0

    def _messages_of(self, record: AuditRecord) -> list[WebhookMessage]:
        try:
            entry = events.event_of(record.body)
        except MalformedMessage:
            return []
        name = f"evt_{record.hash.hex()[:32]}"
        found: list[WebhookMessage] = []
        for place, channel in enumerate(channels_of(entry)):
            if self._webhooks.matching(channel):
                event = to_channel_event(entry, channel, f"{name}{place or ''}")
                found += self._posts(event, self._webhooks.recipients_of(event))
        return found

    def _posts(
        self, event: GatewayEvent, hearers: Iterable[WebhookSubscription]
    ) -> list[WebhookMessage]:
        body, now = _body(event), self._webhooks.clock()
        return [WebhookMessage(each.id, event.id, body, now, now) for each in hearers]

    async def _store_messages(self) -> None:
        posts, self._unstored_messages = self._unstored_messages, []
        if posts:
            try:
                await self._webhooks.store.add(posts, self._webhooks.options.max_queued_events)
            except Unavailable:
                self._unstored_messages[:0] = posts
                raise
            self.wrote.set()

    def _on_webhooks_changed(self) -> None:
        self._subscribe_to_bus()
        self.wakeup.set()

    def _subscribe_to_bus(self) -> None:
        """Subscribe on the event bus to the events that the audit log does not hold."""
        known = self._webhooks.subscriptions
        wanted = {
            id: one
            for id, one in known.items()
            if one.state is WebhookState.ACTIVE
            and (is_pattern(one.name) or _is_unwritten(one.name))
        }
        for id in self._followings.keys() - wanted.keys():
            self._followings.pop(id).close()
        for id in wanted.keys() - self._followings.keys():
            self._follow(wanted[id])

    def _follow(self, subscription: WebhookSubscription) -> None:
        actor = self._webhooks.actor_of(subscription)
        if actor is None:
            return

        def hear(event: GatewayEvent) -> None:
            if event.source or event.channel in UNWRITTEN:
                named = replace(event, id=_event_id_header(event))
                self._unstored_messages += self._posts(named, self._still(subscription.id))
                if len(self._unstored_messages) > MAX_FRESH:
                    log.error("Too many events of servers for webhooks; some are lost")
                    self._unstored_messages.clear()
                self.wakeup.set()

        with suppress(Unavailable):
            self._followings[subscription.id] = self._webhooks.event_bus.subscribe(
                EventFilter((subscription.name,), subscription.least), actor, hear
            )

    def _still(self, id: str) -> list[WebhookSubscription]:
        one = self._webhooks.subscriptions.get(id)
        return [] if one is None or self._webhooks.actor_of(one) is None else [one]

    def stop(self) -> None:
        for following in self._followings.values():
            following.close()
        self._followings.clear()


def _event_id_header(event: GatewayEvent) -> str:
    """Return the event id for a header. The ids of servers are arbitrary and may collide."""
    if not event.source:
        return event.id
    whole = f"{event.source}\0{event.id}".encode(errors="surrogatepass")
    return f"evt_{hashlib.sha256(whole).hexdigest()[:32]}"


def _is_unwritten(name: str) -> bool:
    return name not in STANDARD or name in UNWRITTEN


def _body(event: GatewayEvent) -> bytes:
    """Return the body of a message. Data that would make it too long is left out."""
    body = msgspec.json.encode(to_occurrence(event))
    if len(body) <= MAX_BODY:
        return body
    return msgspec.json.encode({**to_occurrence(event), "data": {"is_shortened": True}})
