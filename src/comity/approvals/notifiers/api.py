"""Operator API of notifiers, and the push subscriptions of people."""

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Final, TypedDict
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from comity.approvals.notifiers.model import (
    NotifierKind,
    OutgoingPosts,
    PushSubscription,
    PushSubscriptionStore,
)
from comity.approvals.notifiers.service import ApprovalNotifier, NotifierService
from comity.approvals.notifiers.web_push import VapidKey, decode_base64, key_problem
from comity.config.fields import to_config_value
from comity.errors import ACCESS_DENIED, INVALID_PARAMS, MalformedMessage
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyQuery, RequestBody, ShortText
from comity.mcp.actors import PrincipalKind

MAX_SUBSCRIPTIONS: Final = 10
"""How many browsers of a person get messages. A new one replaces the oldest."""

type EndpointUrl = Annotated[str, Meta(min_length=1, max_length=2048)]
type KeyText = Annotated[str, Meta(min_length=1, max_length=200)]


class NotifierTestBody(RequestBody, frozen=True):
    """The person who gets the test message. The default is the sender."""

    principal: ShortText | None = None


class PushKeys(Struct, frozen=True):
    """The keys that a browser gives with its subscription. (RFC 8291)"""

    p256dh: KeyText
    auth: KeyText


class PushSubscriptionBody(RequestBody, frozen=True):
    """The subscription of a browser: two members of `PushSubscription.toJSON()`."""

    endpoint: EndpointUrl
    keys: PushKeys


class PushDeleteBody(RequestBody, frozen=True):
    """The subscription to delete."""

    id: ShortText


class NotifierView(TypedDict):
    """A notifier, and how many messages it sent on this node."""

    name: str
    kind: NotifierKind
    min_risk: str | None
    servers: Sequence[str]
    kinds: Sequence[str]
    to: Sequence[str]
    quiet_hours: str | None
    digest_every: object
    escalate_after: object
    escalate_to: str | None
    sent: int
    failed: int
    escalated: int
    last_error: str | None


class NotifierListView(TypedDict):
    """All notifiers."""

    notifiers: list[NotifierView]


class NotifierTestView(TypedDict):
    """A test message that was sent."""

    name: str
    principal: str
    sent: bool


class PushSubscriptionView(TypedDict):
    """The subscription of a browser, without its endpoint."""

    id: str
    host: str | None
    created_at: datetime


class PushSubscriptionList(TypedDict):
    """The subscriptions of a person. `public_key` is null if there is no notifier for them."""

    public_key: str | None
    subscriptions: list[PushSubscriptionView]


class DeletedSubscriptionView(TypedDict):
    """Whether a subscription was deleted."""

    id: str
    deleted: bool


class NotifiersApi:
    """Routes that list and test notifiers."""

    def __init__(self, service: NotifierService) -> None:
        self._service = service

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.ADMIN_READ, Permission.ADMIN_WRITE
        return (
            ApiRoute("GET", "/api/notifiers", read, self._list_notifiers, EmptyQuery),
            ApiRoute("POST", "/api/notifiers/{name}/test", write, self._test, NotifierTestBody),
        )

    async def _list_notifiers(self, request: ApiRequest[EmptyQuery]) -> NotifierListView:
        return {"notifiers": [self._view(each) for each in self._service.notifiers.values()]}

    def _view(self, notifier: ApprovalNotifier) -> NotifierView:
        settings, metrics = notifier.settings, self._service.metrics
        quiet, digest = settings.quiet_hours, settings.digest
        return {
            "name": settings.name,
            "kind": settings.kind,
            "min_risk": settings.min_risk,
            "servers": settings.servers,
            "kinds": settings.kinds,
            "to": settings.to,
            "quiet_hours": None if quiet is None else f"{quiet.start:%H:%M}-{quiet.end:%H:%M}",
            "digest_every": None if digest is None else to_config_value(digest.every),
            "escalate_after": None
            if settings.escalate_after is None
            else to_config_value(settings.escalate_after),
            "escalate_to": settings.escalate_to or None,
            "sent": metrics.sent[settings.name],
            "failed": metrics.failed[settings.name],
            "escalated": metrics.escalated[settings.name],
            "last_error": self._service.last_error(settings.name) or None,
        }

    async def _test(self, request: ApiRequest[NotifierTestBody]) -> NotifierTestView:
        name, person = request.path["name"], request.input.principal or request.actor.party
        await self._service.send_test(name, person)
        return {"name": name, "principal": person, "sent": True}


class PushSubscriptionsApi:
    """Routes by which the browser of a person subscribes to push messages."""

    def __init__(
        self,
        service: NotifierService,
        store: PushSubscriptionStore,
        posts: OutgoingPosts,
        key: VapidKey,
        clock: Callable[[], datetime],
    ) -> None:
        kinds = {each.settings.kind for each in service.notifiers.values()}
        self._is_enabled = NotifierKind.WEB_PUSH in kinds
        self._store = store
        self._posts = posts
        self._key = key
        self._clock = clock

    @property
    def routes(self) -> ApiRoutes:
        own, path = Permission.OWN_RECORDS, "/api/push-subscriptions"
        return (
            ApiRoute("GET", path, own, self._list_subscriptions, EmptyQuery),
            ApiRoute("POST", path, own, self._subscribe, PushSubscriptionBody),
            ApiRoute("POST", f"{path}/delete", own, self._delete, PushDeleteBody),
        )

    async def _list_subscriptions(self, request: ApiRequest[EmptyQuery]) -> PushSubscriptionList:
        found = await self._store.list_of_party(request.actor.party)
        return {
            "public_key": self._key.public_text if self._is_enabled else None,
            "subscriptions": [_subscription_view(each) for each in found],
        }

    async def _subscribe(self, request: ApiRequest[PushSubscriptionBody]) -> PushSubscriptionView:
        actor, said = request.actor, request.input
        if actor.kind is not PrincipalKind.PERSON:
            raise MalformedMessage("only people get push messages", ACCESS_DENIED)
        if not self._is_enabled:
            raise MalformedMessage("no notifier of kind web_push is configured", INVALID_PARAMS)
        self._posts.check_public(said.endpoint)
        try:
            p256dh, auth = decode_base64(said.keys.p256dh), decode_base64(said.keys.auth)
        except ValueError:
            raise MalformedMessage("keys must be base64url", INVALID_PARAMS) from None
        if problem := key_problem(p256dh, auth):
            raise MalformedMessage(problem, INVALID_PARAMS)
        id = hashlib.sha256(said.endpoint.encode()).hexdigest()[:32]
        new = PushSubscription(id, actor.party, said.endpoint, p256dh, auth, self._clock())
        await self._store.put(new)
        for old in (await self._store.list_of_party(actor.party))[MAX_SUBSCRIPTIONS:]:
            await self._store.remove(actor.party, old.id)
        return _subscription_view(new)

    async def _delete(self, request: ApiRequest[PushDeleteBody]) -> DeletedSubscriptionView:
        id = request.input.id
        return {"id": id, "deleted": await self._store.remove(request.actor.party, id)}


def _subscription_view(subscription: PushSubscription) -> PushSubscriptionView:
    """Return a subscription without its endpoint, which lets its holder send messages."""
    host = urlsplit(subscription.endpoint).hostname
    return {"id": subscription.id, "host": host, "created_at": subscription.created_at}
