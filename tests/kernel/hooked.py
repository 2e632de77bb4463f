"""Webhooks over memory, a clock that stands still, and places that answer as they are told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from comity.adapters.memory.records import MemoryRecords
from comity.adapters.sealing import Unsealed
from comity.kernel.events import Events
from comity.kernel.grants import Grants
from comity.kernel.journal import Journal
from comity.kernel.webhook_delivery import Delivery
from comity.kernel.webhook_intake import Intake
from comity.kernel.webhooks import HookOptions, Subscribe, Webhooks
from comity.ports.webhooks import Answered
from comity.rules.access import Access
from comity.rules.backoff import Backoff
from comity.rules.webhooks import Places, Schedule
from comity.wire.grants import Effect, Grant
from comity.wire.mcp_events import Named, Subscribing
from comity.wire.parties import Actor, PartyKind
from comity.wire.webhooks import Place, Post, Problem, Subscription

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ANA = Actor("person:ana", PartyKind.PERSON, "key:a")
BEA = Actor("agent:bea", PartyKind.AGENT, "key:b")
URL = "https://hooks.example.org/ana"
SECRET = b"s" * 32
OPTIONS = HookOptions(
    places=Places(frozenset({"near.internal"})),
    schedule=Schedule(Backoff(SECOND, 8 * SECOND), 60 * SECOND, 100 * SECOND),
    most_of_party=3,
)
MAY = (
    Grant(ANA.party, "events/subscribe", "webhooks/*", Effect.ALLOW),
    Grant(ANA.party, "tools/*", "*", Effect.ALLOW),
)

type Reply = Answered | Problem


@dataclass
class Poster:
    """Answers what is told for a host, and yes for all else."""

    replies: dict[str, list[Reply]] = field(default_factory=dict[str, list[Reply]])
    posted: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    headings: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])
    before: Callable[[], Any] | None = None

    async def post(
        self, where: Place, heading: Mapping[str, str], body: bytes, most: int = 0
    ) -> Reply:
        self.headings.append(heading)
        if self.before is not None:
            await self.before()
        said = msgspec.json.decode(body, type=dict[str, Any])
        if said.get("type") == "verification":
            echoed = msgspec.json.encode({"challenge": said["challenge"]})
            told = self.replies.get(f"verify {where.host}")
            return told.pop(0) if told else Answered(200, body=echoed)
        self.posted.append((where.host, heading["webhook-id"]))
        told = self.replies.get(where.host)
        return told.pop(0) if told else Answered(200)

    @property
    def ids(self) -> list[str]:
        return [id for _, id in self.posted]


@dataclass
class Known:
    """Who would be let in now."""

    actors: dict[str, Actor] = field(
        default_factory=lambda: {each.party: each for each in (ANA, BEA)}
    )

    def __call__(self, one: Subscription) -> Actor | None:
        return self.actors.get(one.party)


class Hooked:
    """All parts of webhooks, joined as the gateway does."""

    def __init__(self, options: HookOptions = OPTIONS) -> None:
        self.now = NOW
        self.records = MemoryRecords()
        self.grants = Grants(Access.of(MAY), lambda: self.now)
        self.journal = Journal(self.records.journal, "n1", clock=lambda: self.now)
        self.plane = Events(self.grants, clock=lambda: self.now)
        self.poster, self.known = Poster(), Known()
        self.hooks = Webhooks(
            *(self.records.webhooks, self.plane, self.grants, self.known, self.journal, options)
        )
        self.intake = Intake(self.hooks, self.journal)
        self.delivery = Delivery(self.hooks, self.poster, Unsealed(), lambda: 0.0)
        self.subscribing = Subscribe(self.hooks, self.poster, Unsealed())

    def grant(self, *grants: Grant) -> None:
        self.grants.replace(Access.of(grants))

    async def subscribe(
        self, url: str = URL, name: str = "tool.*", actor: Actor = ANA
    ) -> Subscription:
        return (await self.subscribing.subscribe(actor, wanted(url, name))).subscription

    async def wait(self, one: Subscription, *events: str) -> None:
        posts = [Post(one.id, event, b"{}", self.now, self.now) for event in events]
        assert await self.records.webhooks.add(posts, 1000)

    async def kept(self, one: Subscription) -> Subscription:
        found = await self.records.webhooks.get(one.id)
        assert found is not None
        return found

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    async def round(self) -> None:
        """One look at what is due, and all that follows from it."""
        self.delivery.node = "n1"
        await self.delivery.look()
        await self.delivery.finish()


def wanted(url: str = URL, name: str = "tool.*", **more: Any) -> Subscribing:
    plain = Subscribing(Named(name), url, "whsec_" + "c3Nz" * 11, None)
    return replace(plain, **more)
