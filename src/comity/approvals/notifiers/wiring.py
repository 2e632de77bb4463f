"""Builds the notifiers from the settings, with their queue, API routes and endpoint."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from comity.app.records import GatewaySnapshot
from comity.app.settings import Settings
from comity.approvals.notifiers.api import NotifiersApi, PushSubscriptionsApi
from comity.approvals.notifiers.email import EmailChannel
from comity.approvals.notifiers.model import (
    LinkMode,
    NotifierChannel,
    NotifierKind,
    NotifierSettings,
    OutgoingPosts,
    PushSubscriptionStore,
)
from comity.approvals.notifiers.recipients import ApproverDirectory
from comity.approvals.notifiers.service import ApprovalNotifier, NotifierService
from comity.approvals.notifiers.slack import SlackChannel
from comity.approvals.notifiers.slack_clicks import SlackClicks
from comity.approvals.notifiers.teams import TeamsChannel
from comity.approvals.notifiers.web_push import VapidKey, WebPushChannel
from comity.approvals.notifiers.webhook import WebhookChannel
from comity.approvals.service import ApprovalInbox
from comity.audit.log import AuditLog
from comity.config.secret_files import read_secret
from comity.errors import Misconfigured
from comity.events.webhooks.notifier_posts import NotifierPosts, url_parts
from comity.events.wiring import sender_of
from comity.http.api import ApiRoutes

STOP_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class NotifierComponents:
    """The notifiers of this node, their API routes, and the endpoint of clicks."""

    service: NotifierService
    clicks: SlackClicks
    routes: ApiRoutes
    audit_log: AuditLog

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Send messages until the context ends. Remaining messages stay in the store."""
        work = asyncio.ensure_future(self._run())
        try:
            yield
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            with suppress(TimeoutError):
                # Most jobs end soon. The others are released to another node, or to a later run.
                async with asyncio.timeout(STOP_SECONDS):
                    await self.service.runner.finish()
            await self.service.runner.stop()
            self.service.close()

    def stop(self) -> None:
        self.clicks.stop()

    async def _run(self) -> None:
        if not self.service.notifiers:
            return
        # The name of the audit chain is unique to this process.
        await self.audit_log.flush()
        if self.audit_log.head is not None:
            await self.service.runner.run(self.audit_log.head.node)


@dataclass(frozen=True, slots=True)
class ChannelParts:
    """The dependencies of all channels."""

    inbox: ApprovalInbox
    posts: OutgoingPosts
    subscriptions: PushSubscriptionStore
    vapid_key: VapidKey

    @property
    def clock(self) -> Callable[[], datetime]:
        return self.inbox.approvals.clock


def build_notifiers(
    settings: Settings,
    inbox: ApprovalInbox,
    directory: ApproverDirectory,
    snapshot: GatewaySnapshot,
    audit_log: AuditLog,
    pepper: bytes,
) -> NotifierComponents:
    """Build all notifiers. Raises Misconfigured if a secret cannot be read."""
    records, approvals = snapshot.records, inbox.approvals
    posts = NotifierPosts(sender_of(settings), settings.webhooks.places)
    parts = ChannelParts(inbox, posts, records.push_subscriptions, VapidKey(pepper))
    notifiers = [
        ApprovalNotifier(each, make_channel(each, parts)) for each in settings.approvals.notifiers
    ]
    service = NotifierService(
        notifiers,
        records.approval_requests.notices,
        approvals,
        directory,
        audit_log,
        records.notice_clicks,
    )
    slack = [each.channel for each in notifiers if isinstance(each.channel, SlackChannel)]
    push_api = PushSubscriptionsApi(
        service, records.push_subscriptions, posts, parts.vapid_key, approvals.clock
    )
    return NotifierComponents(
        service,
        SlackClicks(slack, service, inbox, records.notice_clicks, audit_log),
        (*NotifiersApi(service).routes, *push_api.routes),
        audit_log,
    )


def make_channel(settings: NotifierSettings, parts: ChannelParts) -> NotifierChannel:
    """Return the channel of a notifier. Raises Misconfigured if a secret cannot be read."""
    page_url = parts.inbox.sign_in_url
    match settings.kind:
        case NotifierKind.WEBHOOK:
            is_answering = settings.links is LinkMode.ANSWER
            return WebhookChannel(
                parts.posts,
                _url_of(settings),
                _secret(settings, "secret_file"),
                parts.inbox.page_url if is_answering else page_url,
                links=settings.links,
                clock=parts.clock,
            )
        case NotifierKind.SLACK:
            return SlackChannel(
                settings,
                parts.posts,
                page_url,
                token=_secret(settings, "token_file").decode(),
                url="" if settings.token_file else _url_of(settings),
                signing_secret=_secret(settings, "signing_secret_file"),
            )
        case NotifierKind.TEAMS:
            return TeamsChannel(parts.posts, _url_of(settings), page_url)
        case NotifierKind.EMAIL:
            password = _secret(settings, "password_file").decode()
            return EmailChannel(settings, password, page_url)
        case NotifierKind.WEB_PUSH:
            return WebPushChannel(
                parts.posts,
                parts.subscriptions,
                parts.vapid_key,
                page_url,
                contact=settings.contact,
                clock=parts.clock,
            )


def _url_of(settings: NotifierSettings) -> str:
    url = settings.url or _secret(settings, "url_file").decode("ascii", "replace")
    url_parts(url)
    return url


def _secret(settings: NotifierSettings, name: str) -> bytes:
    """Return the content of a file that a setting names; empty without the setting."""
    path: str = getattr(settings, name)
    if not path:
        return b""
    found = read_secret(path, f"{name} of the notifier {settings.name}")
    if not found or not found.isascii():
        raise Misconfigured(f"{name} of the notifier {settings.name}: {path} holds no secret")
    return found
