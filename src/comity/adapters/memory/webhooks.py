"""Webhooks in memory: for tests, and for one node that keeps nothing beyond its end."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from comity.adapters.memory.shelves import Shelf
from comity.ports.records import Kept
from comity.ports.webhooks import PAGE, Mark, Settlement
from comity.rules import keeping
from comity.wire.webhooks import Post, State, Subscription

type Note = Callable[[Kept, Iterable[str]], None]
type Heads = Callable[[], Mapping[str, int]]


@dataclass(slots=True)
class _Queue:
    """What waits for one subscription, by number, and the events of which one was delivered."""

    posts: dict[int, Post] = field(default_factory=dict[int, Post])
    events: set[str] = field(default_factory=set[str])
    done: dict[str, datetime] = field(default_factory=dict[str, datetime])
    holder: str = ""
    held_until: datetime | None = None
    rest_until: datetime | None = None

    def is_free(self, now: datetime) -> bool:
        times = (self.held_until, self.rest_until)
        return all(each is None or each <= now for each in times)

    def due(self, now: datetime) -> list[Post]:
        return [each for each in self.posts.values() if not each.failed and each.due_at <= now]


class MemoryWebhooks:
    def __init__(self, note: Note, heads: Heads) -> None:
        self._note = note
        self._heads = heads
        self._shelf = Shelf[Subscription]()
        self._queues: dict[str, _Queue] = {}
        self._marks: dict[str, int] = {}
        self._number = 0

    async def put(self, subscription: Subscription) -> None:
        new = keeping.webhook(subscription)
        present = self._shelf.get(new.id)
        if present is not None:
            new = replace(
                present,
                credential=new.credential,
                expires_at=new.expires_at,
                sealed=new.sealed,
                rotated_until=new.rotated_until,
                state=new.state,
                failures=0,
                failing_since=None,
            )
        self._shelf.put(new.id, new)
        self._queues.setdefault(new.id, _Queue()).rest_until = None
        self._note(Kept.WEBHOOKS, [new.id])

    async def get(self, id: str) -> Subscription | None:
        return self._shelf.get(id)

    async def of(self, party: str) -> Sequence[Subscription]:
        return [each for each in self._shelf.all() if each.party == party]

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[Subscription]:
        return self._shelf.page(after, limit)

    async def remove(self, id: str) -> bool:
        if not self._shelf.take(id):
            return False
        del self._queues[id]
        self._note(Kept.WEBHOOKS, [id])
        return True

    async def begin(self) -> None:
        if not self._queues:
            self._marks = dict(self._heads())

    async def marks(self) -> Mapping[str, int]:
        return dict(self._marks)

    async def add(self, posts: Sequence[Post], most: int, mark: Mark | None = None) -> bool:
        if mark is not None:
            if self._marks.get(mark.chain, 0) != mark.seen:
                return False
            self._marks[mark.chain] = mark.upto
        for post in posts:
            self._add(keeping.post(post), most)
        return True

    def _add(self, post: Post, most: int) -> None:
        found, queue = self._shelf.get(post.subscription), self._queues.get(post.subscription)
        if found is None or queue is None or post.event in (queue.events | queue.done.keys()):
            return
        if found.waiting >= most:
            self._shelf.put(found.id, replace(found, dropped=found.dropped + 1))
            return
        self._number += 1
        queue.posts[self._number] = replace(post, number=self._number)
        queue.events.add(post.event)
        self._shelf.put(found.id, replace(found, waiting=found.waiting + 1))

    async def claim(
        self, holder: str, now: datetime, until: datetime, limit: int
    ) -> Sequence[Subscription]:
        claimed: list[Subscription] = []
        for each in self._shelf.all():
            queue = self._queues[each.id]
            if each.state is State.ACTIVE and queue.is_free(now) and queue.due(now):
                queue.holder, queue.held_until = holder, until
                claimed.append(each)
            if len(claimed) == limit:
                break
        return claimed

    async def due(self, id: str, now: datetime, limit: int) -> Sequence[Post]:
        return self._queues[id].due(now)[:limit] if id in self._queues else []

    async def settle(self, holder: str, settlement: Settlement) -> bool:
        said = settlement.subscription
        present, queue = self._shelf.get(said.id), self._queues.get(said.id)
        if present is None or queue is None or queue.holder != holder:
            return False
        for number in settlement.delivered:
            queue.done[queue.posts.pop(number).event] = settlement.at
        queue.posts |= {each.number: keeping.post(each) for each in settlement.tried}
        queue.holder, queue.held_until = "", None
        queue.rest_until = settlement.rest_until
        queue.events = {each.event for each in queue.posts.values()}
        changed = replace(
            present,
            state=said.state,
            failures=said.failures,
            failing_since=said.failing_since,
            last_error=said.last_error,
            delivered_at=said.delivered_at,
            **_counted(queue),
        )
        self._shelf.put(said.id, changed)
        if said.state is not present.state:
            self._note(Kept.WEBHOOKS, [said.id])
        return True

    async def abandon(self, holders: str) -> None:
        for queue in self._queues.values():
            if queue.holder.startswith(holders):
                queue.holder, queue.held_until = "", None

    async def posts(self, id: str, after: int = 0, limit: int = PAGE) -> Sequence[Post]:
        kept = self._queues[id].posts if id in self._queues else {}
        return [post for number, post in kept.items() if number > after][:limit]

    async def retry(self, id: str, now: datetime) -> int:
        found, queue = self._shelf.get(id), self._queues.get(id)
        if found is None or queue is None:
            return 0
        again = {
            number: replace(post, failed=False, due_at=now, at=now)
            for number, post in queue.posts.items()
            if post.failed
        }
        queue.posts |= again
        queue.rest_until = None
        active = replace(found, state=State.ACTIVE, failures=0, failing_since=None)
        self._shelf.put(id, replace(active, **_counted(queue)))
        self._note(Kept.WEBHOOKS, [id])
        return len(again)

    async def prune(self, now: datetime, remembered: datetime) -> Sequence[Subscription]:
        for queue in self._queues.values():
            queue.done = {event: at for event, at in queue.done.items() if at >= remembered}
        ended = [each for each in self._shelf.all() if _has_ended(each, now)]
        for each in ended:
            await self.remove(each.id)
        return ended


def _has_ended(subscription: Subscription, now: datetime) -> bool:
    return subscription.expires_at is not None and subscription.expires_at <= now


def _counted(queue: _Queue) -> dict[str, int]:
    failed = sum(each.failed for each in queue.posts.values())
    return {"waiting": len(queue.posts) - failed, "failed": failed}
