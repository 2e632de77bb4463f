"""Webhooks, joined: who may have events posted where, what is posted, and what operators see."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from comity.adapters.names import Resolver
from comity.adapters.posting import Deadlines, Sender
from comity.adapters.sealing import Sealed, Unsealed
from comity.app.eventing import Eventing
from comity.app.journaling import Journaling
from comity.app.reaching import proxies_of
from comity.config import Settings
from comity.kernel.audit_recorder import kind_of
from comity.kernel.chores import Chores
from comity.kernel.identity import Identity
from comity.kernel.journal import Journal
from comity.kernel.mcp_events import McpEvents
from comity.kernel.snapshot import Snapshot
from comity.kernel.switchboard import AllServers
from comity.kernel.webhook_delivery import Delivery
from comity.kernel.webhook_intake import Intake
from comity.kernel.webhooks import HookOptions, Recognise, Subscribe, Webhooks
from comity.ports import Kept
from comity.ports.webhooks import Poster, Sealer
from comity.rules.backoff import Backoff
from comity.rules.webhooks import Places, Schedule
from comity.surfaces.asked import Room
from comity.surfaces.webhooks_api import WebhooksApi
from comity.wire.errors import Unavailable
from comity.wire.parties import LOCAL, LOCAL_OPERATOR, Actor
from comity.wire.webhooks import Subscription

_AGAIN_SECONDS = 1.0
_TENDED_EVERY_SECONDS = 30.0


class Joined(Protocol):
    """All that webhooks have to do with."""

    @property
    def identity(self) -> Identity: ...
    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def journaling(self) -> Journaling: ...
    @property
    def eventing(self) -> Eventing: ...
    @property
    def everything(self) -> AllServers: ...
    @property
    def rooms(self) -> dict[str, Room]: ...


@dataclass(frozen=True, slots=True)
class Webhooking:
    """All that has to do with webhooks at this node."""

    hooks: Webhooks
    intake: Intake
    delivery: Delivery
    methods: McpEvents
    rooms: dict[str, Room]
    journal: Journal

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Post what waits, until the way out; what then waits is kept, or for other nodes."""
        todo = (self._post(), self.intake.run(), self._tend())
        work = [asyncio.ensure_future(each) for each in todo]
        try:
            yield
        finally:
            for each in work:
                each.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            self.intake.stop()
            await self.delivery.stop()

    async def _post(self) -> None:
        # A chain is one process's alone, and so is its name.
        await self.journal.flush()
        if self.journal.head is not None:
            await self.delivery.run(self.journal.head.node)

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(_TENDED_EVERY_SECONDS)
            self.methods.look()


@asynccontextmanager
async def webhooked(settings: Settings, parts: Joined) -> AsyncGenerator[None]:
    """Have events posted to those who subscribed, and let clients subscribe, until the way out."""
    webhooking = make_webhooks(settings, parts)
    parts.rooms.update(webhooking.rooms)
    async with webhooking.running():
        yield


def make_webhooks(settings: Settings, parts: Joined) -> Webhooking:
    snapshot, plane = parts.snapshot, parts.eventing.events
    journal, records = parts.journaling.journal, snapshot.records.webhooks
    recognise, options = recognised_by(parts.identity), options_of(settings)
    hooks = Webhooks(records, plane, snapshot.grants, recognise, journal, options)
    sealer: Sealer = Sealed(parts.identity.pepper) if settings.store_url else Unsealed()
    poster = sender_of(settings)
    intake, delivery = Intake(hooks, journal), Delivery(hooks, poster, sealer)
    # What was written down is posted at once.
    intake.wrote = delivery.stirred
    parts.journaling.recorder.is_awaited = intake.is_awaited
    subscribing = Subscribe(hooks, poster, sealer)
    rereading = Chores("what is known of webhooks")

    async def reread(id: str) -> None:
        try:
            await hooks.reread(id)
            plane.post = intake.post
        except Unavailable:
            await asyncio.sleep(_AGAIN_SECONDS)
            rereading.start(reread(id))

    snapshot.watch(Kept.WEBHOOKS, lambda id: rereading.start(reread(id)))
    rereading.start(reread(""))
    at_the_door = McpEvents(plane, subscribing)
    at_the_door.join(parts.everything.methods)
    rooms = WebhooksApi(hooks, subscribing).rooms
    return Webhooking(hooks, intake, delivery, at_the_door, rooms, journal)


def sender_of(settings: Settings) -> Poster:
    seconds = settings.webhook_deadline.total_seconds()
    resolve, deadlines = Resolver(time.monotonic).resolve, Deadlines(seconds / 2, seconds)
    return Sender(resolve, deadlines, proxies=proxies_of(settings))


def options_of(settings: Settings) -> HookOptions:
    hosts = frozenset(host.strip("[]").casefold() for host in settings.webhook_hosts)
    again = Backoff(settings.webhook_first_retry, settings.webhook_longest_retry)
    return HookOptions(
        Places(hosts, frozenset(map(int, settings.webhook_ports))),
        settings.webhook_lasts,
        settings.most_webhooks,
        settings.most_webhooks_of_one,
        settings.webhook_waiting,
        Schedule(again, settings.webhook_retry_for, settings.webhook_disable_after),
        settings.webhook_at_once,
        settings.webhook_at_once_place,
        max(settings.webhook_deadline, timedelta(milliseconds=1)),
    )


def recognised_by(identity: Identity) -> Recognise:
    def recognise(one: Subscription) -> Actor | None:
        for local in (LOCAL, LOCAL_OPERATOR):
            if one.credential == local.credential:
                return local if identity.is_local else None
        kind, _, id = one.credential.partition(":")
        if kind == "key":
            return identity.named(one.party, id)
        # By a token, which has ended long ago: what it proved was who its party is.
        actor = Actor(one.party, kind_of(one.party), one.credential)
        return actor if identity.stands(actor) else None

    return recognise
