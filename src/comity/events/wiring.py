"""Wiring of the events package: the event bus, its sources and webhooks."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from comity.app.records import GatewaySnapshot
from comity.app.settings import Settings
from comity.audit.log import AuditLog
from comity.errors import Unavailable
from comity.events.api import WebhooksApi
from comity.events.bus import EventBus
from comity.events.methods import EventMethods, McpEventMethods
from comity.events.server_events import ServerEventSources
from comity.events.webhooks.delivery import WebhookDelivery
from comity.events.webhooks.model import (
    WebhookSender,
    WebhookSubscription,
)
from comity.events.webhooks.sender import HttpWebhookSender, WebhookTimeouts
from comity.events.webhooks.service import (
    Recognise,
    WebhookOutbox,
    WebhookRegistry,
    WebhookSubscriptions,
)
from comity.gateway.call_audit import CallAudit
from comity.gateway.event_source import GatewayEventSource
from comity.http.api import ApiRoutes
from comity.http.client.dial import Resolver
from comity.identity.authentication import Authenticator
from comity.mcp.actors import LOCAL, LOCAL_OPERATOR, Actor, kind_of
from comity.secrets.model import Sealer
from comity.servers.service import ServerService
from comity.servers.wiring import proxies_of
from comity.storage.changes import RecordKind
from comity.toolkit.background import BackgroundTasks


@dataclass(frozen=True, slots=True)
class EventComponents:
    """The event bus, its sources and the methods of clients."""

    events: EventBus
    sources: GatewayEventSource
    servers: ServerEventSources
    methods: EventMethods

    async def stop(self) -> None:
        """End every subscription, because the gateway is about to stop."""
        self.events.stop()
        await self.servers.stop()


def build_events(
    events: EventBus,
    audit_log: AuditLog,
    recorder: CallAudit,
    servers: ServerService,
    is_only_here: Callable[[str], bool],
) -> EventComponents:
    """Connect the event bus with the gateway and its servers."""
    sources = GatewayEventSource(events, audit_log, recorder)
    servers.watch(sources.on_transition)
    told = ServerEventSources(events, servers, is_only_here=is_only_here)
    return EventComponents(events, sources, told, EventMethods(events))


_RETRY_SECONDS = 1.0
_TENDED_EVERY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class WebhookComponents:
    """The webhook services of this node."""

    webhooks: WebhookRegistry
    intake: WebhookOutbox
    delivery: WebhookDelivery
    methods: McpEventMethods
    routes: ApiRoutes
    audit_log: AuditLog
    # The tasks that read subscriptions anew. They begin before the gateway runs.
    rereading: BackgroundTasks

    async def close(self) -> None:
        self.rereading.cancel()
        await self.rereading.finish()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Deliver messages until the context ends. Remaining messages stay in the store."""
        todo = (self._post(), self.intake.run(), self._tend())
        work = [asyncio.ensure_future(each) for each in todo]
        try:
            yield
        finally:
            for each in work:
                each.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            self.intake.stop()
            await self.delivery.runner.stop()

    async def _post(self) -> None:
        # The name of the audit chain is unique to this process.
        await self.audit_log.flush()
        if self.audit_log.head is not None:
            await self.delivery.runner.run(self.audit_log.head.node)

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(_TENDED_EVERY_SECONDS)
            self.methods.drop_idle_buffers()


def build_webhooks(
    settings: Settings,
    identity: Authenticator,
    snapshot: GatewaySnapshot,
    audit_log: AuditLog,
    events: EventBus,
    sealer: Sealer,
) -> WebhookComponents:
    """Build the webhook services."""
    hooks = WebhookRegistry(
        snapshot.records.webhooks,
        events,
        snapshot.grants,
        actor_finder(identity),
        audit_log,
        settings.webhooks,
    )
    poster = sender_of(settings)
    delivery = WebhookDelivery(hooks, poster, sealer)
    # Delivery starts as soon as a message is stored.
    intake = WebhookOutbox(hooks, audit_log, delivery.runner.wakeup)
    subscribing = WebhookSubscriptions(hooks, poster, sealer)
    rereading = BackgroundTasks("webhook subscriptions")

    async def reread(id: str) -> None:
        try:
            await hooks.reread(id)
            events.set_webhook_outbox(intake.post)
        except Unavailable:
            await asyncio.sleep(_RETRY_SECONDS)
            rereading.start(reread(id))

    snapshot.watch(RecordKind.WEBHOOKS, lambda id: rereading.start(reread(id)))
    rereading.start(reread(""))
    methods, routes = McpEventMethods(events, subscribing), WebhooksApi(hooks, subscribing).routes
    return WebhookComponents(hooks, intake, delivery, methods, routes, audit_log, rereading)


def sender_of(settings: Settings) -> WebhookSender:
    seconds = settings.webhooks.timeout.total_seconds()
    resolve, deadlines = Resolver(time.monotonic).resolve, WebhookTimeouts(seconds / 2, seconds)
    return HttpWebhookSender(resolve, deadlines, proxies=proxies_of(settings))


def actor_finder(identity: Authenticator) -> Recognise:
    def recognise(one: WebhookSubscription) -> Actor | None:
        for local in (LOCAL, LOCAL_OPERATOR):
            if one.credential == local.credential:
                return local if identity.is_local else None
        kind, _, id = one.credential.partition(":")
        if kind == "key":
            return identity.find_actor(one.party, id)
        # The token of this subscription expired long ago, but it has proved the identity.
        actor = Actor(one.party, kind_of(one.party), one.credential)
        return identity.refresh_actor(actor)

    return recognise
