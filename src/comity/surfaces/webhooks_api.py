"""Webhooks at /api/webhooks: what waits, what failed and why; tried again, or taken away."""

from typing import Final

from comity.kernel.webhooks import Subscribe, Webhooks
from comity.ports.webhooks import PAGE
from comity.surfaces.asked import Asked, Room, View
from comity.wire.errors import NOTHING_HERE, MalformedMessage
from comity.wire.webhooks import Post, Subscription

MOST_SHOWN: Final = 100


class WebhooksApi:
    """What is posted elsewhere, for those who may administer the gateway."""

    def __init__(self, hooks: Webhooks, subscribing: Subscribe) -> None:
        self._hooks = hooks
        self._subscribing = subscribing

    @property
    def rooms(self) -> dict[str, Room]:
        return {"webhooks": self.webhooks}

    async def webhooks(self, asked: Asked) -> View:
        match asked.method, asked.place:
            case "GET", ():
                return await self._list(asked.query.get("cursor", ""))
            case "GET", (id,):
                one = await self._one(id)
                posts = await self._hooks.records.posts(id, 0, MOST_SHOWN)
                return {**self._view(one), "posts": [_post_view(post) for post in posts]}
            case "POST", (id, "retry"):
                await self._one(id)
                again = await self._hooks.records.retry(id, self._hooks.clock())
                await self._hooks.reread(id)
                return {**self._view(await self._one(id)), "retried": again}
            case "POST", (id, "remove"):
                one = await self._one(id)
                await self._subscribing.remove(asked.actor, id)
                return self._view(one)
            case _:
                raise MalformedMessage("there is no such address under /api/webhooks", NOTHING_HERE)

    async def _list(self, after: str) -> View:
        page = await self._hooks.records.page(after)
        listed: dict[str, object] = {"webhooks": [self._view(one) for one in page]}
        return listed if len(page) < PAGE else {**listed, "next": page[-1].id}

    async def _one(self, id: str) -> Subscription:
        found = await self._hooks.records.get(id)
        if found is None:
            raise MalformedMessage(f"there is no webhook {id!r:.80}", NOTHING_HERE)
        return found

    def _view(self, one: Subscription) -> dict[str, object]:
        """All that anybody is told of one; of its URL no more than the host, for people put secrets
        there."""
        where = self._hooks.place_of(one)
        return {
            "id": one.id,
            "party": one.party,
            "place": None if where is None else where.origin,
            "event": one.name,
            "min_severity": one.least,
            "state": one.state,
            "may_be_posted": self._hooks.actor_of(one) is not None,
            "created_at": one.created_at,
            "expires_at": one.expires_at,
            "waiting": one.waiting,
            "failed": one.failed,
            "dropped": one.dropped,
            "failures": one.failures,
            "failing_since": one.failing_since,
            "last_error": one.last_error or None,
            "delivered_at": one.delivered_at,
        }


def _post_view(post: Post) -> dict[str, object]:
    return {
        "event": post.event,
        "at": post.at,
        "state": "failed" if post.failed else "waiting",
        "attempts": post.attempts,
        "due_at": None if post.failed else post.due_at,
        "last_error": post.last_error or None,
        "bytes": len(post.body),
    }
