"""Places outside that words come from and go to, as the settings say."""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from comity.app.live_parts import LiveParts
from comity.config.channels import ChannelSettings, channels_of
from comity.kernel.live.channel_incoming import Arrivals
from comity.kernel.live.channel_observing import Observing
from comity.kernel.live.channel_places import LivePlaces, Once, Ways
from comity.kernel.live.channel_publishing import Publishing
from comity.kernel.live.channel_talk import Talking
from comity.kernel.live.channel_topics import TopicPlaces
from comity.kernel.live.channels import Channels
from comity.kernel.live.mirroring import Mirroring
from comity.kernel.live.parts import Turns
from comity.ports.incoming import IncomingRecords
from comity.rules.channels import HOST
from comity.surfaces.channels_api import ChannelsApi
from comity.wire.errors import Unavailable

log = logging.getLogger(__name__)

REMEMBERED: Final = timedelta(days=30)
"""How long it is known that a message was taken, or words were said."""

_FORGET_EVERY_SECONDS: Final = 3_600.0


@asynccontextmanager
async def join_channels(live: LiveParts) -> AsyncGenerator[None]:
    """Until the way out."""
    places, parts = make_places(live), live.parts

    def turns() -> Turns | None:
        return live.turns

    mirroring = Mirroring(places)
    talking = Talking(places, mirroring, _rows(live).talks, turns)
    Arrivals(places, mirroring, turns)
    live.places = places
    live.channels = places.ways.channels
    parts.rooms.update(ChannelsApi(places).rooms)
    forgetting = asyncio.ensure_future(_forget(places.once.records, places.once))
    try:
        yield
    finally:
        forgetting.cancel()
        for each in (talking, mirroring, *_stopped(places)):
            each.stop()


def make_places(live: LiveParts) -> LivePlaces:
    parts, rows = live.parts, _rows(live)
    hide = parts.journaling.redactor.hide

    channels = Channels(live.hosting)
    topics = TopicPlaces(parts.conversing.topics, _speakers(rows), asyncio.get_running_loop().time)
    observing = Observing(live.hosting, hide)
    ways = Ways(channels, Publishing(channels, hide), observing, topics)
    once = Once(parts.snapshot.records.incoming, secrets.token_hex(8))
    return LivePlaces(ways, once, rows.routes)


def _rows(live: LiveParts) -> ChannelSettings:
    return channels_of(live.settings.channel_rows)


def _stopped(places: LivePlaces) -> Iterable[Channels | Observing | TopicPlaces]:
    return places.ways.channels, places.ways.observing, places.ways.topics


def _speakers(rows: ChannelSettings) -> Callable[[str], Iterable[str]]:
    """Who of the gateway's own is in a topic before anything is said there."""
    found: dict[str, set[str]] = {}
    for talk in rows.talks:
        found.setdefault(talk.topic, set()).add(talk.party)
    for route in rows.routes:
        named = [route.mirror, route.to.removeprefix("topic:") if ":" in route.to else ""]
        for topic in filter(None, named):
            found.setdefault(topic, set()).add(HOST)
    return lambda topic: sorted(found.get(topic, ()))


async def _forget(records: IncomingRecords, once: Once) -> None:
    """Forget what is long over, now and then."""
    while True:
        try:
            await records.prune(once.clock() - REMEMBERED)
        except Unavailable as error:
            log.info("what is over is remembered for longer: %s", error)
        await asyncio.sleep(_FORGET_EVERY_SECONDS)
