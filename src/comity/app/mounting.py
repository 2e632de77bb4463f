"""Servers and the inbox in topics, joined from the settings."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from comity.app.asking import Asking
from comity.app.journaling import Journaling
from comity.app.residents import Residents
from comity.config import Settings
from comity.kernel.furnished import Furnishing, Furniture
from comity.kernel.identity import Identity
from comity.kernel.mounted import Mounted
from comity.kernel.proposal_asks import Known
from comity.kernel.proposed import Proposals
from comity.kernel.topic_asks import TopicAsks
from comity.kernel.topic_outbox import HeldInTopic, InTopics
from comity.kernel.topics import Topics
from comity.ports import Kept
from comity.wire.asks import Kind
from comity.wire.parties import LOCAL, LOCAL_OPERATOR, Actor, PartyKind


@dataclass(frozen=True, slots=True)
class Mounting:
    """The gateway's own members of topics, and what they do there."""

    topics: Topics
    furnishing: Furnishing
    mounted: Mounted
    proposals: Proposals
    asks: TopicAsks

    def look(self, patience: float) -> None:
        del patience
        self.furnishing.look(self.topics.rooms)
        self.proposals.look()

    def stop(self) -> None:
        for each in (self.mounted, self.proposals, self.asks):
            each.stop()


def mount(
    settings: Settings,
    topics: Topics,
    asking: Asking,
    residents: Residents,
    journaling: Journaling,
    identity: Identity,
) -> Mounting:
    """Have topics furnished, and what is asked and proposed there seen to."""
    snapshot, holding, approvals = asking.snapshot, asking.holding, asking.approvals
    furnishing = Furnishing(
        *(_written(settings), snapshot.grants, residents.servers.names),
        *(asyncio.get_running_loop().time, approvals.clock),
    )
    known = Known(
        *(holding.judge, holding.catalog, asking.admission.tools),
        *(journaling.redact, holding.key),
    )
    proposals = Proposals(approvals, known, _actor_of(identity), journaling.journal)
    hide = (journaling.redactor.hide, journaling.redactor.mark)
    mounted = Mounted(residents.desk_of, proposals, hide, journaling.journal)
    asks = TopicAsks(approvals, lambda: list(furnishing.places.values()))
    furnishing.attendants += (mounted, proposals, asks)
    furnishing.closed.append(proposals.closed)
    topics.furnish.append(furnishing.furnish)
    snapshot.watch(Kept.GRANTS, furnishing.regranted)
    approvals.watchers += (proposals.heard, asks.heard)
    approvals.scruples[Kind.CONFIRM] = known.why_not
    asking.admission.asking = InTopics(holding, holding.key)
    holding.forms.insert(0, HeldInTopic())
    return Mounting(topics, furnishing, mounted, proposals, asks)


def _written(settings: Settings) -> Callable[[str], Furniture]:
    named = {room.name: Furniture(room.mounts, room.asks) for room in settings.rooms}
    nothing = Furniture()
    return lambda topic: named.get(topic, nothing)


def _actor_of(identity: Identity) -> Callable[[str], Actor]:
    """Who has answered, as grants know it; a token's holder may be in no record."""

    def actor_of(party: str) -> Actor:
        if party == LOCAL.party:
            # Nobody answers without the token.
            return LOCAL_OPERATOR
        return identity.named(party) or Actor(party, PartyKind.PERSON)

    return actor_of
