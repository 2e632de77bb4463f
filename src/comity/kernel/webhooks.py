"""Who has events posted where: subscribed, renewed and ended; and which of them an event is for.

Rule 1: nobody has anything posted to a host without a grant of `events/subscribe` on it. The grant,
        its party and its credential are looked at again with every event.
Rule 2: nothing is posted to a place before it has said that it wants to be: it gives back a word
        that it was sent. That holds for one party and one URL.
Rule 3: a secret is told once, to the order that made it, and is kept sealed.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from comity.kernel.audit_recorder import Bound
from comity.kernel.events import Events
from comity.kernel.grants import Judge
from comity.kernel.journal import Journal
from comity.ports.webhooks import PAGE, Poster, Sealer, WebhookRecords
from comity.rules import events as wanting
from comity.rules import webhooks as rules
from comity.rules.phrases import count_noun
from comity.rules.webhooks import Places, Schedule
from comity.wire import audit
from comity.wire.audit import Type
from comity.wire.errors import (
    CALLBACK_FAILED,
    EVENTS_FORBIDDEN,
    EXHAUSTED,
    MalformedMessage,
    Unavailable,
)
from comity.wire.events import Event
from comity.wire.grants import Effect
from comity.wire.mcp_events import Named, Subscribing
from comity.wire.parties import NOBODY, Actor, PartyKind
from comity.wire.webhooks import PLACES, SUBSCRIBE, Place, Problem, State, Subscription

log = logging.getLogger(__name__)

SECRET_BYTES: Final = 32
ROTATION: Final = timedelta(hours=1)
"""How long posts are signed with the secret before the newest as well."""

MOST_ECHO: Final = 4096
MOST_CHALLENGES: Final = 20
CHALLENGES_WITHIN: Final = timedelta(minutes=1)
MOST_INDEXED: Final = 4096

type Recognise = Callable[[Subscription], Actor | None]
"""Who subscribed, as somebody who would be let in now; or None."""


@dataclass(frozen=True, slots=True)
class HookOptions:
    """What an operator decides of webhooks."""

    places: Places = field(default_factory=Places)
    lasts: timedelta = timedelta(days=30)
    most: int = 10_000
    most_of_party: int = 20
    most_waiting: int = 10_000
    schedule: Schedule = field(default_factory=Schedule)
    at_once: int = 64
    at_once_place: int = 4
    deadline: timedelta = timedelta(seconds=10)


class Subscribed(NamedTuple):
    """How a subscription stands now; `secret` where it was drawn for it, `before` where it is not
    new."""

    subscription: Subscription
    secret: str | None
    before: Subscription | None


class Webhooks:
    """The subscriptions of all nodes, as this one knows them."""

    def __init__(
        self,
        records: WebhookRecords,
        plane: Events,
        judge: Judge,
        recognise: Recognise,
        journal: Journal,
        options: HookOptions,
    ) -> None:
        self.records = records
        self.plane = plane
        self.options = options
        self.known: dict[str, Subscription] = {}
        # Told when another is known, or one no more.
        self.watchers: list[Callable[[], None]] = []
        self._judge = judge
        self._recognise = recognise
        self._journal = journal
        self._by_channel: dict[str, tuple[Subscription, ...]] = {}

    @property
    def clock(self) -> Callable[[], datetime]:
        return self._journal.clock

    async def refresh(self) -> None:
        """Read all that are kept. Raises Unavailable."""
        found: dict[str, Subscription] = {}
        after = ""
        while page := await self.records.page(after):
            found |= {each.id: each for each in page}
            after = page[-1].id
            if len(page) < PAGE:
                break
        self._take(found)

    async def reread(self, id: str) -> None:
        """One may be other than it was; an empty name stands for all. Raises Unavailable."""
        if not id:
            await self.refresh()
            return
        found = await self.records.get(id)
        others = {each: kept for each, kept in self.known.items() if each != id}
        self._take(others if found is None else {**others, id: found})

    def _take(self, known: dict[str, Subscription]) -> None:
        self.known = known
        self._by_channel = {}
        for watcher in self.watchers:
            watcher()

    def may(self, actor: Actor, host: str) -> bool:
        """Whether somebody may have events posted to a host; no server may."""
        if actor.kind is PartyKind.SERVER:
            return False
        try:
            judged = self._judge.judge(actor, SUBSCRIBE, PLACES, host)
        except Unavailable:
            return False
        return judged.effect is Effect.ALLOW

    def certain(self) -> None:
        """Raise Unavailable while it cannot be known what anybody may."""
        self._judge.knows(NOBODY, "")

    def of(self, channel: str) -> tuple[Subscription, ...]:
        """Those that listen for a channel."""
        found = self._by_channel.get(channel)
        if found is None:
            active = (each for each in self.known.values() if each.state is State.ACTIVE)
            found = tuple(each for each in active if wanting.covers(each.name, channel))
            if len(self._by_channel) >= MOST_INDEXED:
                self._by_channel.clear()
            self._by_channel[channel] = found
        return found

    def hearing(self, event: Event) -> list[Subscription]:
        """For whom an event is: who wants it, and may hear it and have it posted there now."""
        return [each for each in self.of(event.channel) if self._hears(each, event)]

    def is_heard(self, event: Event) -> bool:
        """Whether it is for anybody."""
        return any(self._hears(each, event) for each in self.of(event.channel))

    def _hears(self, one: Subscription, event: Event) -> bool:
        is_wanted = event.at >= one.created_at and wanting.is_enough(event.severity, one.least)
        actor = self.actor_of(one) if is_wanted else None
        return actor is not None and self.plane.may_hear(actor, event)

    def actor_of(self, one: Subscription) -> Actor | None:
        """Who hears by a subscription; None while nothing may be posted by it."""
        where = self.place_of(one)
        actor = None if where is None else self._recognise(one)
        return actor if actor is not None and where and self.may(actor, where.host) else None

    def place_of(self, one: Subscription) -> Place | None:
        """Where to; None where an operator has taken back that it may be there."""
        try:
            return rules.place(one.url, self.options.places)
        except MalformedMessage:
            return None

    def wrote(self, type: Type, actor: Actor, one: Subscription, **more: object) -> None:
        """Have it written down; of the URL only the host, for the rest may be a secret."""
        where = self.place_of(one)
        host = "" if where is None else where.host
        said = {"webhook": one.id, "party": one.party, "event": one.name, "host": host, **more}
        now = self.clock()
        event = audit.Event(type, actor.party, now, actor.kind, details=said)
        self._journal.note(event)


class Subscribe:
    """How somebody comes to have events posted, and to have none posted any more."""

    def __init__(self, hooks: Webhooks, poster: Poster, sealer: Sealer) -> None:
        self._hooks = hooks
        self._poster = poster
        self._sealer = sealer
        self._challenges = Bound(hooks.clock, MOST_CHALLENGES, CHALLENGES_WITHIN)

    async def subscribe(self, actor: Actor, wanted: Subscribing) -> Subscribed:
        """Make one, or renew it. Raises MalformedMessage, Unavailable."""
        hooks, records = self._hooks, self._hooks.records
        where = rules.place(wanted.url, hooks.options.places)
        if not hooks.may(actor, where.host):
            raise MalformedMessage(
                f"{actor.party or 'nobody'} has no grant of {SUBSCRIBE} on {PLACES}/{where.host}",
                EVENTS_FORBIDDEN,
            )
        drawn = None if wanted.secret is not None else secrets.token_bytes(SECRET_BYTES)
        given = None if wanted.secret is None else rules.secret_of(wanted.secret)
        id = rules.subscription_id(actor.party, wanted.url, wanted.named)
        own = await records.of(actor.party)
        before = next((each for each in own if each.id == id), None)
        self._refuse_too_many(own, before)
        one = self._made(actor, wanted, id) if before is None else self._renewed(before, wanted)
        one = replace(one, credential=actor.credential)
        if before is None:
            one = replace(one, sealed=(self._sealer.seal(given or drawn or b""),))
        elif given is not None:
            one = self._rotated(one, given)
        is_verified = any(each.url == one.url and each.state is State.ACTIVE for each in own)
        if not is_verified:
            await self._challenge(one, where)
        if before is None:
            await records.begin()
        await records.put(one)
        await hooks.reread(id)
        if before is None:
            hooks.wrote(Type.WEBHOOK_SUBSCRIBED, actor, one)
        told = rules.secret_text(drawn) if before is None and drawn is not None else None
        return Subscribed(one, told, before)

    def _refuse_too_many(self, own: Sequence[Subscription], before: Subscription | None) -> None:
        options = self._hooks.options
        is_full = len(own) >= options.most_of_party or len(self._hooks.known) >= options.most
        if before is None and is_full:
            most = count_noun(options.most_of_party, "webhook")
            raise MalformedMessage(f"one party has at most {most}; end one first", EXHAUSTED)

    def _made(self, actor: Actor, wanted: Subscribing, id: str) -> Subscription:
        now, named = self._hooks.clock(), wanted.named
        until = rules.until(wanted.lasts, now, self._hooks.options.lasts)
        return Subscription(
            *(id, actor.party, actor.credential, wanted.url, named.name, named.least, now, until)
        )

    def _renewed(self, before: Subscription, wanted: Subscribing) -> Subscription:
        until = rules.until(wanted.lasts, self._hooks.clock(), self._hooks.options.lasts)
        return replace(before, expires_at=until, state=State.ACTIVE)

    def _rotated(self, one: Subscription, secret: bytes) -> Subscription:
        if self._sealer.unseal(one.sealed[0]) == secret:
            return one
        sealed = (self._sealer.seal(secret), one.sealed[0])
        return replace(one, sealed=sealed, rotated_until=self._hooks.clock() + ROTATION)

    async def _challenge(self, one: Subscription, where: Place) -> None:
        """Ask the place whether it wants to be posted to."""
        for name in (f"party {one.party}", f"host {where.host}"):
            if self._challenges.take(name) is None:
                raise Unavailable(
                    "too many places were asked just now", EXHAUSTED, CHALLENGES_WITHIN
                )
        challenge = secrets.token_urlsafe(32)
        body = msgspec.json.encode({"type": "verification", "challenge": challenge})
        id = f"msg_verification_{secrets.token_hex(8)}"
        key = self._sealer.unseal(one.sealed[0]) or b""
        heading = rules.heading([key], one.id, id, self._hooks.clock(), body)
        answered = await self._poster.post(where, heading, body, MOST_ECHO)
        if isinstance(answered, Problem):
            problem = answered
        elif not 200 <= answered.status < 300:
            problem = rules.problem_of(answered.status)
        else:
            problem = None if rules.echoes(answered.body, challenge) else Problem.CHALLENGE
        if problem is not None:
            because = f"the place did not show that it wants events: {problem}"
            raise MalformedMessage(because, CALLBACK_FAILED)

    async def unsubscribe(self, actor: Actor, named: Named, url: str) -> bool:
        """Whether there was one. Raises Unavailable."""
        return await self.remove(actor, rules.subscription_id(actor.party, url, named))

    async def remove(self, actor: Actor, id: str) -> bool:
        """End one by its id, which is for operators, with all that waits for it."""
        one = await self._hooks.records.get(id)
        if one is None or not await self._hooks.records.remove(id):
            return False
        await self._hooks.reread(id)
        self._hooks.wrote(Type.WEBHOOK_REMOVED, actor, one, lost=one.waiting)
        return True


def secrets_of(one: Subscription, sealer: Sealer, now: datetime) -> list[bytes]:
    """What its posts are signed with just now; none where that cannot be read any more."""
    is_rotating = one.rotated_until is not None and one.rotated_until > now
    sealed = one.sealed if is_rotating else one.sealed[:1]
    return [secret for each in sealed if (secret := sealer.unseal(each)) is not None]
