"""Topics, joined from the settings: the rooms, their door, and who is told of another grant."""

import asyncio
import contextlib
from dataclasses import dataclass

from comity.config import Settings
from comity.config.rooms import RoomSettings
from comity.kernel.administration import Administration
from comity.kernel.chronicle import Kept as Written
from comity.kernel.chronicle import TopicChronicle
from comity.kernel.identity import Identity
from comity.kernel.journal import Journal
from comity.kernel.promotion import Promotion
from comity.kernel.rooms import Terms
from comity.kernel.seats import Pace
from comity.kernel.snapshot import Snapshot
from comity.kernel.topics import Bounds, TermsOf, Topics
from comity.ports import Kept
from comity.rules.rates import Rate
from comity.rules.topics import Access
from comity.surfaces import topic_socket
from comity.surfaces.asked import Room
from comity.surfaces.gateway import PARTICIPANTS, Door
from comity.surfaces.participants_api import ParticipantsApi
from comity.surfaces.topic_socket import TopicSocket
from comity.surfaces.websocket import Limits, Sockets
from comity.wire.envelope import Limits as EnvelopeLimits
from comity.wire.errors import Unavailable
from comity.wire.parties import Key


@dataclass(frozen=True, slots=True)
class Conversing:
    """The topics of a gateway, and where they are met."""

    topics: Topics
    sockets: Sockets
    doors: dict[str, Door]
    rooms: dict[str, Room]

    def look(self, patience: float) -> None:
        del patience
        self.topics.look()
        self.sockets.look()


def converse(
    settings: Settings,
    snapshot: Snapshot,
    identity: Identity,
    journal: Journal,
    administration: Administration,
) -> Conversing:
    now = asyncio.get_running_loop().time
    pace = Pace(_rate(settings.topic_messages), _rate(settings.topic_chats))
    bounds = Bounds(settings.most_topics, pace, settings.topic_grace.total_seconds())
    topics = Topics(snapshot.grants, _terms_of(settings), bounds, now)
    topics.chronicle = TopicChronicle(journal, Written(settings.topic_journal))
    topics.recognises = identity.stands
    sockets = Sockets(Limits(settings.envelope_bytes, settings.queue_bytes), now)

    def rekeyed(key: str) -> None:
        found: Key | None = None
        with contextlib.suppress(Unavailable):
            found = snapshot.keys.get(key)
        # Whose key it was cannot be known of one that is gone: then all are looked at.
        topics.regranted("" if found is None else found.party)

    snapshot.watch(Kept.GRANTS, topics.regranted)
    snapshot.watch(Kept.PARTIES, topics.regranted)
    snapshot.watch(Kept.KEYS, rekeyed)
    participants = ParticipantsApi(topics, Promotion(administration, topics))
    doors: dict[str, Door] = {
        topic_socket.PATH: TopicSocket(topics, sockets),
        PARTICIPANTS: participants,
    }
    return Conversing(topics, sockets, doors, participants.rooms)


def _rate(in_a_minute: int) -> Rate | None:
    return Rate(in_a_minute, 60.0, in_a_minute) if in_a_minute else None


def _terms_of(settings: Settings) -> TermsOf:
    usual = Terms(
        Access(settings.topic_access),
        settings.topic_capabilities,
        settings.topic_members,
        limits=EnvelopeLimits(settings.envelope_bytes, settings.depth),
    )
    named = {room.name: _terms(room, usual) for room in settings.rooms}
    return lambda topic: named.get(topic, usual)


def _terms(room: RoomSettings, usual: Terms) -> Terms:
    return Terms(
        usual.entrance if room.access is None else Access(room.access),
        usual.usual if room.capabilities is None else room.capabilities,
        room.members or usual.members,
        room.history or 0,
        is_strict=room.kinds != "later",
        limits=usual.limits,
    )
