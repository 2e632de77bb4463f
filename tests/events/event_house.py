"""The plane of events for one test: who may know which server, and what is heard."""

from dataclasses import dataclass, field
from datetime import datetime

from comity.errors import POLICY_UNKNOWN, Unavailable
from comity.events.bus import EventBus, EventSubscriber
from comity.events.model import EventFilter, GatewayEvent, Severity
from comity.mcp.actors import Actor
from comity.policy.grants import Decision, Effect
from comity.policy.snapshot import AllowAll
from tests.support.noted import NOON

CI, ANA = Actor("agent:ci"), Actor("person:ana")
_DENIED = Decision(Effect.DENY, "nobody said so")


@dataclass
class Sights(AllowAll):
    """Each party knows some servers, and reads everything of some; or nobody can know."""

    known: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    read: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    is_away: bool = False

    def may_know_server(self, actor: Actor, server: str) -> bool:
        self._demand()
        return server in self.known.get(actor.party, ())

    def authorize(
        self, actor: Actor, verb: str, server: str, name: str, view: str = ""
    ) -> Decision:
        self._demand()
        if server in self.read.get(actor.party, ()):
            return super().authorize(actor, verb, server, name)
        return _DENIED

    def _demand(self) -> None:
        if self.is_away:
            raise Unavailable("not known", POLICY_UNKNOWN)


class Ear:
    """What one follower hears."""

    def __init__(self) -> None:
        self.heard: list[GatewayEvent] = []

    @property
    def ids(self) -> list[str]:
        return [event.id for event in self.heard]

    def follow(self, events: EventBus, *channels: str, actor: Actor = CI) -> EventSubscriber:
        return events.subscribe(EventFilter(channels), actor, self.heard.append)


def event(name: str = "1", channel: str = "tool.started", **about: str) -> GatewayEvent:
    return GatewayEvent(name, channel, NOON, Severity.INFO, {}, **about)


def at_noon() -> datetime:
    return NOON


def a_plane(sights: Sights | None = None) -> EventBus:
    """By itself the agent knows the server `files`, and the person may read everything."""
    usual = Sights({CI.party: {"files"}, ANA.party: {"files", "mail"}}, {ANA.party: {"", "files"}})
    return EventBus(sights or usual, clock=at_noon)
