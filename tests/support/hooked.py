"""Webhooks over memory, a clock that stands still, and places that answer as they are told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from comity.audit.log import AuditLog
from comity.events.bus import EventBus
from comity.events.webhooks.delivery import WebhookDelivery
from comity.events.webhooks.model import (
    DeliveryProblem,
    EventSelector,
    HttpReply,
    SubscribeParams,
    WebhookMessage,
    WebhookSubscription,
    WebhookTarget,
)
from comity.events.webhooks.service import (
    WebhookOutbox,
    WebhookRegistry,
    WebhookSubscriptions,
)
from comity.events.webhooks.settings import WebhookSettings
from comity.mcp.actors import Actor, PrincipalKind
from comity.policy.grants import Effect, Grant, GrantSet
from comity.policy.snapshot import GrantSnapshot
from comity.secrets.envelope import EnvelopeSealer
from comity.secrets.providers.local import LocalKeyService
from tests.support.inline_store import inline_records

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ANA = Actor("person:ana", PrincipalKind.PERSON, "key:a")
BEA = Actor("agent:bea", PrincipalKind.AGENT, "key:b")
URL = "https://hooks.example.org/ana"
SECRET = b"s" * 32
SEALER = EnvelopeSealer([LocalKeyService("pepper", b"p" * 32)])
OPTIONS = WebhookSettings(
    allow_hosts=("near.internal",),
    ports=("443",),
    retry_delay=SECOND,
    max_retry_delay=8 * SECOND,
    retry_for=60 * SECOND,
    disable_after=100 * SECOND,
    max_subscriptions_per_principal=3,
)
MAY = (
    Grant(ANA.party, "events/subscribe", "webhooks/*", Effect.ALLOW),
    Grant(ANA.party, "tools/*", "*", Effect.ALLOW),
)

type Reply = HttpReply | DeliveryProblem


@dataclass
class Poster:
    """Answers what is told for a host, and yes for all else."""

    replies: dict[str, list[Reply]] = field(default_factory=dict[str, list[Reply]])
    posted: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    headings: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])
    before: Callable[[], Any] | None = None

    async def post(
        self, target: WebhookTarget, heading: Mapping[str, str], body: bytes, maximum: int = 0
    ) -> Reply:
        self.headings.append(heading)
        if self.before is not None:
            await self.before()
        said = msgspec.json.decode(body, type=dict[str, Any])
        if said.get("type") == "verification":
            echoed = msgspec.json.encode({"challenge": said["challenge"]})
            told = self.replies.get(f"verify {target.host}")
            return told.pop(0) if told else HttpReply(200, body=echoed)
        self.posted.append((target.host, heading["webhook-id"]))
        told = self.replies.get(target.host)
        return told.pop(0) if told else HttpReply(200)

    @property
    def ids(self) -> list[str]:
        return [id for _, id in self.posted]


@dataclass
class Known:
    """Who would be let in now."""

    actors: dict[str, Actor] = field(
        default_factory=lambda: {each.party: each for each in (ANA, BEA)}
    )

    def __call__(self, one: WebhookSubscription) -> Actor | None:
        return self.actors.get(one.party)


class Hooked:
    """All parts of webhooks, joined as the gateway does."""

    def __init__(self, options: WebhookSettings = OPTIONS) -> None:
        self.now = NOW
        self.records = inline_records()
        self.grants = GrantSnapshot(GrantSet.from_grants(MAY), lambda: self.now)
        self.journal = AuditLog(self.records.audit_log, "n1", clock=lambda: self.now)
        self.plane = EventBus(self.grants, clock=lambda: self.now)
        self.poster, self.known = Poster(), Known()
        self.hooks = WebhookRegistry(
            *(self.records.webhooks, self.plane, self.grants, self.known, self.journal, options)
        )
        self.intake = WebhookOutbox(self.hooks, self.journal)
        self.delivery = WebhookDelivery(self.hooks, self.poster, SEALER, lambda: 0.0)
        self.subscribing = WebhookSubscriptions(self.hooks, self.poster, SEALER)

    def grant(self, *grants: Grant) -> None:
        self.grants.replace(GrantSet.from_grants(grants))

    async def subscribe(
        self, url: str = URL, name: str = "tool.*", actor: Actor = ANA
    ) -> WebhookSubscription:
        return (await self.subscribing.subscribe(actor, wanted(url, name))).subscription

    async def wait(self, one: WebhookSubscription, *events: str) -> None:
        posts = [WebhookMessage(one.id, event, b"{}", self.now, self.now) for event in events]
        assert await self.records.webhooks.add(posts, 1000)

    async def kept(self, one: WebhookSubscription) -> WebhookSubscription:
        found = await self.records.webhooks.get(one.id)
        assert found is not None
        return found

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    async def round(self) -> None:
        """One look at what is due, and all that follows from it."""
        await self.delivery.runner.start_due_jobs()
        await self.delivery.runner.finish()


def wanted(url: str = URL, name: str = "tool.*", **more: Any) -> SubscribeParams:
    plain = SubscribeParams(EventSelector(name), url, "whsec_" + "c3Nz" * 11, None)
    return replace(plain, **more)
