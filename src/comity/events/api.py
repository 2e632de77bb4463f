"""Operator API for outgoing webhooks: list queued and failed messages, retry and remove."""

from datetime import datetime
from typing import Final, Literal, NotRequired, TypedDict

from comity.errors import NOTHING_HERE, MalformedMessage
from comity.events.model import Severity
from comity.events.webhooks.model import PAGE, WebhookMessage, WebhookState, WebhookSubscription
from comity.events.webhooks.service import WebhookRegistry, WebhookSubscriptions
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import CursorQuery, EmptyBody, EmptyQuery

MAX_SHOWN: Final = 100


class WebhookView(TypedDict):
    """A webhook. A URL may contain secrets, so `place` is only its origin."""

    id: str
    principal: str
    place: str | None
    event: str
    min_severity: Severity
    state: WebhookState
    may_be_posted: bool
    created_at: datetime
    expires_at: datetime | None
    waiting: int
    failed: int
    dropped: int
    failures: int
    failing_since: datetime | None
    last_error: str | None
    delivered_at: datetime | None


class WebhookPage(TypedDict):
    """One page of webhooks."""

    webhooks: list[WebhookView]
    next: NotRequired[str]


class WebhookPostView(TypedDict):
    """A message that a webhook has not delivered."""

    event: str
    at: datetime
    state: Literal["failed", "waiting"]
    attempts: int
    due_at: datetime | None
    last_error: str | None
    bytes: int


class WebhookDetailView(WebhookView):
    """A webhook and its undelivered messages."""

    posts: list[WebhookPostView]


class RetriedWebhookView(WebhookView):
    """A webhook, and how many failed messages are sent again."""

    retried: int


class WebhooksApi:
    """Routes with which an operator manages webhook subscriptions."""

    def __init__(self, webhooks: WebhookRegistry, subscriptions: WebhookSubscriptions) -> None:
        self._webhooks = webhooks
        self._subscriptions = subscriptions

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.ADMIN_READ, Permission.ADMIN_WRITE
        one = "/api/webhooks/{id}"
        return (
            ApiRoute("GET", "/api/webhooks", read, self._list_webhooks, CursorQuery),
            ApiRoute("GET", one, read, self._show_webhook, EmptyQuery),
            ApiRoute("POST", f"{one}/retry", write, self._retry, EmptyBody),
            ApiRoute("POST", f"{one}/delete", write, self._remove, EmptyBody),
        )

    async def _list_webhooks(self, request: ApiRequest[CursorQuery]) -> WebhookPage:
        page = await self._webhooks.store.page(request.input.cursor)
        listed: WebhookPage = {"webhooks": [self._view(one) for one in page]}
        return listed if len(page) < PAGE else {**listed, "next": page[-1].id}

    async def _show_webhook(self, request: ApiRequest[EmptyQuery]) -> WebhookDetailView:
        one = await self._one(request.path["id"])
        posts = await self._webhooks.store.posts(one.id, 0, MAX_SHOWN)
        return {**self._view(one), "posts": [_post_view(post) for post in posts]}

    async def _retry(self, request: ApiRequest[EmptyBody]) -> RetriedWebhookView:
        id = (await self._one(request.path["id"])).id
        again = await self._webhooks.store.retry(id, self._webhooks.clock())
        await self._webhooks.reread(id)
        return {**self._view(await self._one(id)), "retried": again}

    async def _remove(self, request: ApiRequest[EmptyBody]) -> WebhookView:
        one = await self._one(request.path["id"])
        await self._subscriptions.remove(request.actor, one.id)
        return self._view(one)

    async def _one(self, id: str) -> WebhookSubscription:
        found = await self._webhooks.store.get(id)
        if found is None:
            raise MalformedMessage(f"there is no webhook {id!r:.80}", NOTHING_HERE)
        return found

    def _view(self, subscription: WebhookSubscription) -> WebhookView:
        """The public view of a webhook.

        A URL may contain secrets, so the view shows only the host.
        """
        where = self._webhooks.target_of(subscription)
        return {
            "id": subscription.id,
            "principal": subscription.party,
            "place": None if where is None else where.origin,
            "event": subscription.name,
            "min_severity": subscription.least,
            "state": subscription.state,
            "may_be_posted": self._webhooks.actor_of(subscription) is not None,
            "created_at": subscription.created_at,
            "expires_at": subscription.expires_at,
            "waiting": subscription.waiting,
            "failed": subscription.failed,
            "dropped": subscription.dropped,
            "failures": subscription.failures,
            "failing_since": subscription.failing_since,
            "last_error": subscription.last_error or None,
            "delivered_at": subscription.delivered_at,
        }


def _post_view(message: WebhookMessage) -> WebhookPostView:
    return {
        "event": message.event,
        "at": message.at,
        "state": "failed" if message.failed else "waiting",
        "attempts": message.attempts,
        "due_at": None if message.failed else message.due_at,
        "last_error": message.last_error or None,
        "bytes": len(message.body),
    }
