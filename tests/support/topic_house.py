"""Topics in memory, a clock that is moved by hand, and members who remember all they are given."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from comity.errors import Unavailable
from comity.mcp.actors import Actor
from comity.policy.grants import Effect, Grant, GrantSet, Guardrail, StaticRules
from comity.toolkit.resilience import RateLimit
from comity.topics.rules import SEND, DeliveryMode
from comity.topics.rules import TopicAccess as Entrance
from comity.topics.service import TopicLimits, TopicService
from comity.topics.topic import (
    NO_RATE_LIMIT,
    MemberRateLimit,
    TopicMember,
    TopicMessage,
    TopicSettings,
)

type Heard = dict[str, Any]

ANA = "person:ana@example.org"
BEA = "person:bea@example.org"
CI = "agent:ci"
USUAL = ("mcp/*", "chat")
A_MINUTE = MemberRateLimit(RateLimit(60, 60.0, 60), RateLimit(10, 60.0, 10))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Ear:
    """A member's connection: takes as much as it has room for, and remembers it."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.frames: list[TopicMessage] = []
        self.ended: list[tuple[int, str]] = []
        self.is_full = False

    def deliver(self, message: TopicMessage) -> bool:
        if self.is_full:
            return False
        self.texts.append(message.text)
        self.frames.append(message)
        return True

    def end(self, code: int, reason: str) -> None:
        self.ended.append((code, reason))

    @property
    def codes(self) -> list[int]:
        return [code for code, _ in self.ended]

    def heard(self, *kinds: str) -> list[Heard]:
        found = [json.loads(text) for text in self.texts]
        return [each for each in found if not kinds or each["kind"] in kinds]

    @property
    def said(self) -> list[str]:
        """The ids of what members said."""
        return [each["id"] for each in self.heard() if not each["kind"].startswith("system/")]

    @property
    def welcomes(self) -> list[Heard]:
        return [each["payload"] for each in self.heard("system/welcome")]

    @property
    def errors(self) -> list[Heard]:
        return [each["payload"] for each in self.heard("system/error")]

    @property
    def presence(self) -> list[tuple[str, str]]:
        found = [each["payload"] for each in self.heard("system/presence")]
        return [(each["event"], each["participant"]["id"]) for each in found]


def envelope(sender: str, id: str = "e-1", kind: str = "chat", **more: Any) -> bytes:
    said: Heard = {
        "protocol": "mcpx/v0.1",
        "id": id,
        "from": sender,
        "kind": kind,
        "payload": {"text": "hello"},
        **more,
    }
    return json.dumps(said).encode()


class Granted:
    """The grants in force; or none that could be known."""

    def __init__(self, grants: Iterable[Grant], forbids: Iterable[Guardrail] = ()) -> None:
        self.latest = GrantSet.from_grants((), StaticRules(tuple(grants), tuple(forbids)))
        self.is_away = False

    @property
    def access(self) -> GrantSet:
        if self.is_away:
            raise Unavailable("the store does not answer")
        return self.latest


def grant(party: str, target: str, effect: Effect = Effect.ALLOW, **more: Any) -> Grant:
    return Grant(party, SEND, target, effect, **more)


class AllKnown:
    """Records of all principals that a test names."""

    def has_principal(self, party: str) -> bool:
        return True


@dataclass
class House:
    """Topics, and who is in them."""

    terms: TopicSettings = field(default_factory=lambda: TopicSettings(Entrance.PUBLIC, USUAL))
    grants: Granted = field(default_factory=lambda: Granted(()))
    pace: MemberRateLimit = NO_RATE_LIMIT
    grace: float = 5.0
    most: int = 10_000
    time: float = 100.0

    def __post_init__(self) -> None:
        bounds = TopicLimits(self.most, self.pace, self.grace)
        self.topics = TopicService(
            self.grants, lambda _: self.terms, bounds, lambda: self.time, lambda: self.now
        )
        self.ears: dict[str, Ear] = {}
        self.seats: dict[str, TopicMember] = {}

    @property
    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.time - 100)

    def regrant(self, *grants: Grant, party: str = "") -> None:
        self.grants.latest = GrantSet.from_grants((), StaticRules(tuple(grants)))
        self.topics.on_grants_changed(party)

    async def joins(
        self, party: str, mode: DeliveryMode = DeliveryMode.ALL, topic: str = "ops", **known: Any
    ) -> Ear:
        ear = self.ears[party] = Ear()
        self.seats[party] = await self.topics.join(topic, Actor(party, **known), mode, ear)
        return ear

    def says(self, party: str, id: str = "e-1", kind: str = "chat", **more: Any) -> None:
        self.says_bytes(party, envelope(party, id, kind, **more))

    def says_bytes(self, party: str, data: bytes, topic: str = "ops") -> None:
        self.topics.receive(topic, self.seats[party], data)

    def goes(self, party: str, *, is_clean: bool = True) -> None:
        self.topics.on_disconnected("ops", self.seats[party], is_clean=is_clean)

    def pass_time(self, seconds: float) -> None:
        self.time += seconds
        self.topics.look()
