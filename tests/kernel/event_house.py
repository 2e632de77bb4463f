"""The plane of events for one test: who may know which server, and what is heard."""

from dataclasses import dataclass, field
from datetime import datetime

from comity.kernel.events import Events, Following
from comity.kernel.grants import AllowAll
from comity.rules.access import Judgement
from comity.wire.errors import POLICY_UNKNOWN, Unavailable
from comity.wire.events import Event, Severity, Wanted
from comity.wire.grants import Effect
from comity.wire.parties import Actor
from tests.kernel.noted import NOON

CI, ANA = Actor("agent:ci"), Actor("person:ana")
_DENIED = Judgement(Effect.DENY, "nobody said so")


@dataclass
class Sights(AllowAll):
    """Each party knows some servers, and reads everything of some; or nobody can know."""

    known: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    read: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    is_away: bool = False

    def knows(self, actor: Actor, server: str) -> bool:
        self._demand()
        return server in self.known.get(actor.party, ())

    def judge(self, actor: Actor, verb: str, server: str, name: str) -> Judgement:
        self._demand()
        if server in self.read.get(actor.party, ()):
            return super().judge(actor, verb, server, name)
        return _DENIED

    def _demand(self) -> None:
        if self.is_away:
            raise Unavailable("not known", POLICY_UNKNOWN)


class Ear:
    """What one follower hears."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    @property
    def ids(self) -> list[str]:
        return [event.id for event in self.heard]

    def follow(self, events: Events, *channels: str, actor: Actor = CI) -> Following:
        return events.follow(Wanted(channels), actor, self.heard.append)


def event(name: str = "1", channel: str = "tool.started", **about: str) -> Event:
    return Event(name, channel, NOON, Severity.INFO, {}, **about)


def at_noon() -> datetime:
    return NOON


def a_plane(sights: Sights | None = None) -> Events:
    """By itself the agent knows the server `files`, and the person may read everything."""
    usual = Sights({CI.party: {"files"}, ANA.party: {"files", "mail"}}, {ANA.party: {"", "files"}})
    return Events(sights or usual, clock=at_noon)
