"""Webhooks in tables: each step is one short transaction, and none waits for those of the records.

Whoever claims takes only rows that nobody else has locked, so that many nodes claim at once.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import msgspec
from sqlalchemy import Select, and_, case, delete, exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from comity.adapters.sql.database import Database, Product, Row
from comity.adapters.sql.tables import EVENT_MARKS, JOURNAL, POSTS, WEBHOOKS
from comity.ports import Kept
from comity.ports.webhooks import PAGE, Mark, Settlement
from comity.rules import keeping
from comity.wire.events import Severity
from comity.wire.webhooks import Post, State, Subscription

_KEPT: Final = [WEBHOOKS.c[name] for name in Subscription.__dataclass_fields__]
_POST: Final = [
    *(POSTS.c.webhook, POSTS.c.event, POSTS.c.body, POSTS.c.at, POSTS.c.due_at),
    *(POSTS.c.number, POSTS.c.attempts, POSTS.c.state, POSTS.c.last_error),
]
_RENEWED: Final = ("credential", "expires_at", "sealed", "rotated_until", "state")
_SETTLED: Final = ("state", "failures", "failing_since", "last_error", "delivered_at")
WAITING: Final = "waiting"
FAILED: Final = "failed"
DONE: Final = "done"
_sealed: Final = msgspec.json.Decoder(tuple[bytes, ...])


class SqlWebhooks:
    def __init__(self, database: Database, product: Product) -> None:
        self._database = database
        self._product = product

    async def put(self, subscription: Subscription) -> None:
        new = keeping.webhook(subscription)
        row = _row(new)
        made = self._product.insert(WEBHOOKS).values({**row, "claimed_by": ""})
        renewed = {name: made.excluded[name] for name in _RENEWED}
        fresh: Row = {"failures": 0, "failing_since": None, "rest_until": None}
        async with self._database.writing() as writing:
            await writing.connection.execute(
                made.on_conflict_do_update(index_elements=["id"], set_={**renewed, **fresh})
            )
            await writing.note(Kept.WEBHOOKS, [new.id])

    async def get(self, id: str) -> Subscription | None:
        found = await self._several(select(*_KEPT).where(WEBHOOKS.c.id == id), id)
        return found[0] if found else None

    async def of(self, party: str) -> Sequence[Subscription]:
        wanted = select(*_KEPT).where(WEBHOOKS.c.party == party).order_by(WEBHOOKS.c.id)
        return await self._several(wanted, party)

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[Subscription]:
        wanted = select(*_KEPT).where(WEBHOOKS.c.id > after).order_by(WEBHOOKS.c.id).limit(limit)
        return await self._several(wanted, after or "any")

    async def remove(self, id: str) -> bool:
        if not keeping.is_name(id):
            return False
        async with self._database.writing() as writing:
            gone = await writing.connection.execute(delete(WEBHOOKS).where(WEBHOOKS.c.id == id))
            await writing.note(Kept.WEBHOOKS, [id] * gone.rowcount)
        return gone.rowcount > 0

    async def begin(self) -> None:
        heads = select(JOURNAL.c.node, func.max(JOURNAL.c.seq)).group_by(JOURNAL.c.node)
        # As whoever subscribes does: so nobody subscribes between the look and the marks.
        async with self._database.writing() as writing:
            connection = writing.connection
            if (await connection.execute(select(WEBHOOKS.c.id).limit(1))).first() is not None:
                return
            found = [{"chain": chain, "seq": seq} for chain, seq in await connection.execute(heads)]
            await connection.execute(delete(EVENT_MARKS))
            if found:
                await connection.execute(insert(EVENT_MARKS), found)

    async def marks(self) -> Mapping[str, int]:
        async with self._database.reading() as connection:
            rows = await connection.execute(select(EVENT_MARKS))
            return {row.chain: row.seq for row in rows}

    async def add(self, posts: Sequence[Post], most: int, mark: Mark | None = None) -> bool:
        kept = sorted(map(keeping.post, posts), key=lambda post: post.subscription)
        async with self._database.beside() as connection:
            if mark is not None and not await self._moved(connection, mark):
                return False
            # Always in the same order, so that no two of these wait for each other.
            for id, some in groupby(kept, key=lambda post: post.subscription):
                await self._add(connection, id, list(some), most)
        return True

    async def _moved(self, connection: AsyncConnection, mark: Mark) -> bool:
        begun = self._product.insert(EVENT_MARKS).values(chain=mark.chain, seq=0)
        await connection.execute(begun.on_conflict_do_nothing())
        at_it = (EVENT_MARKS.c.chain == mark.chain, EVENT_MARKS.c.seq == mark.seen)
        moved = await connection.execute(update(EVENT_MARKS).where(*at_it).values(seq=mark.upto))
        return moved.rowcount > 0

    async def _add(
        self, connection: AsyncConnection, id: str, posts: list[Post], most: int
    ) -> None:
        locked = select(WEBHOOKS.c.waiting).where(WEBHOOKS.c.id == id).with_for_update()
        waiting = (await connection.execute(locked)).scalar()
        if waiting is None:
            return
        room = posts[: max(most - waiting, 0)]
        added = 0
        if room:
            new = self._product.insert(POSTS).values([_post_row(post) for post in room])
            done = await connection.execute(new.on_conflict_do_nothing().returning(POSTS.c.number))
            added = len(done.all())
        earliest = min(post.due_at for post in posts)
        is_sooner = or_(WEBHOOKS.c.due_at.is_(None), WEBHOOKS.c.due_at > earliest)
        changed: Row = {
            "waiting": WEBHOOKS.c.waiting + added,
            "dropped": WEBHOOKS.c.dropped + len(posts) - len(room),
        }
        if added:
            changed["due_at"] = case((is_sooner, earliest), else_=WEBHOOKS.c.due_at)
        await connection.execute(update(WEBHOOKS).where(WEBHOOKS.c.id == id).values(changed))

    async def claim(
        self, holder: str, now: datetime, until: datetime, limit: int
    ) -> Sequence[Subscription]:
        now, until = keeping.certain(now), keeping.certain(until)
        free = (
            or_(WEBHOOKS.c[name].is_(None), WEBHOOKS.c[name] <= now)
            for name in ("claimed_until", "rest_until")
        )
        is_due = [WEBHOOKS.c.state == State.ACTIVE, WEBHOOKS.c.due_at <= now, *free]
        first = select(WEBHOOKS.c.id).where(*is_due).order_by(WEBHOOKS.c.due_at).limit(limit)
        async with self._database.reading() as connection:
            # This is asked all the time: no writer is kept waiting where nothing is due.
            if (await connection.execute(first.limit(1))).first() is None:
                return []
        async with self._database.beside() as connection:
            ids = (await connection.execute(first.with_for_update(skip_locked=True))).scalars()
            taken = (
                update(WEBHOOKS)
                .where(WEBHOOKS.c.id.in_(ids.all()))
                .values(claimed_by=holder, claimed_until=until)
                .returning(*_KEPT)
            )
            return [_subscription(row) for row in await connection.execute(taken)]

    async def due(self, id: str, now: datetime, limit: int) -> Sequence[Post]:
        of_it = (POSTS.c.webhook == id, POSTS.c.state == WAITING)
        wanted = select(*_POST).where(*of_it, POSTS.c.due_at <= keeping.certain(now))
        return await self._posts(wanted.order_by(POSTS.c.number).limit(limit))

    async def settle(self, holder: str, settlement: Settlement) -> bool:
        said = settlement.subscription
        held = (WEBHOOKS.c.id == said.id, WEBHOOKS.c.claimed_by == holder)
        row = _row(said)
        async with self._settling(said) as connection:
            locked = select(WEBHOOKS.c.id).where(*held).with_for_update()
            if (await connection.execute(locked)).first() is None:
                return False
            await _write_posts(connection, settlement)
            changed: Row = {
                **{name: row[name] for name in _SETTLED},
                **_counted(said.id),
                "claimed_by": "",
                "claimed_until": None,
                "rest_until": keeping.moment(settlement.rest_until),
            }
            await connection.execute(update(WEBHOOKS).where(*held).values(changed))
        return True

    @asynccontextmanager
    async def _settling(self, said: Subscription) -> AsyncGenerator[AsyncConnection]:
        """That one is active no more is for every node to hear; all else for nobody."""
        if said.state is State.ACTIVE:
            async with self._database.beside() as connection:
                yield connection
            return
        async with self._database.writing() as writing:
            yield writing.connection
            await writing.note(Kept.WEBHOOKS, [said.id])

    async def abandon(self, holders: str) -> None:
        theirs = WEBHOOKS.c.claimed_by.startswith(holders, autoescape=True)
        void = update(WEBHOOKS).where(theirs).values(claimed_by="", claimed_until=None)
        async with self._database.beside() as connection:
            await connection.execute(void)

    async def posts(self, id: str, after: int = 0, limit: int = PAGE) -> Sequence[Post]:
        of_it = (POSTS.c.webhook == id, POSTS.c.state != DONE, POSTS.c.number > after)
        wanted = select(*_POST).where(*of_it).order_by(POSTS.c.number).limit(limit)
        return await self._posts(wanted) if keeping.is_name(id) else []

    async def retry(self, id: str, now: datetime) -> int:
        if not keeping.is_name(id):
            return 0
        now = keeping.certain(now)
        of_it = and_(POSTS.c.webhook == id, POSTS.c.state == FAILED)
        fresh: Row = {"state": State.ACTIVE, "failures": 0, "failing_since": None}
        async with self._database.writing() as writing:
            execute = writing.connection.execute
            await execute(select(WEBHOOKS.c.id).where(WEBHOOKS.c.id == id).with_for_update())
            waits = update(POSTS).where(of_it).values(state=WAITING, due_at=now, at=now)
            again = (await execute(waits)).rowcount
            fresh |= {**_counted(id), "rest_until": None}
            there = await execute(update(WEBHOOKS).where(WEBHOOKS.c.id == id).values(fresh))
            await writing.note(Kept.WEBHOOKS, [id] * there.rowcount)
        return again

    async def prune(self, now: datetime, remembered: datetime) -> Sequence[Subscription]:
        ended = WEBHOOKS.c.expires_at <= keeping.certain(now)
        old = and_(POSTS.c.state == DONE, POSTS.c.done_at < keeping.certain(remembered))
        async with self._database.reading() as connection:
            any_old = (await connection.execute(select(exists().where(old)))).scalar()
            any_ended = (await connection.execute(select(exists().where(ended)))).scalar()
        if any_old:
            async with self._database.beside() as connection:
                await connection.execute(delete(POSTS).where(old))
        if not any_ended:
            return []
        async with self._database.writing() as writing:
            gone = delete(WEBHOOKS).where(ended).returning(*_KEPT)
            removed = [_subscription(row) for row in await writing.connection.execute(gone)]
            await writing.note(Kept.WEBHOOKS, [each.id for each in removed])
        return removed

    async def _several(self, wanted: Select[Any], named: str) -> list[Subscription]:
        if not keeping.is_name(named):
            return []
        async with self._database.reading() as connection:
            return [_subscription(row) for row in await connection.execute(wanted)]

    async def _posts(self, wanted: Select[Any]) -> list[Post]:
        async with self._database.reading() as connection:
            return [_post(row) for row in await connection.execute(wanted)]


async def _write_posts(connection: AsyncConnection, settlement: Settlement) -> None:
    if settlement.delivered:
        done = update(POSTS).where(POSTS.c.number.in_(settlement.delivered))
        # What was in it is needed no more; that it was there is, so that it is not posted again.
        emptied: Row = {"state": DONE, "done_at": keeping.certain(settlement.at), "body": b""}
        await connection.execute(done.values(emptied))
    for post in map(keeping.post, settlement.tried):
        changed: Row = {
            "attempts": post.attempts,
            "due_at": post.due_at,
            "state": FAILED if post.failed else WAITING,
            "last_error": post.last_error,
        }
        await connection.execute(update(POSTS).where(POSTS.c.number == post.number).values(changed))


def _counted(id: str) -> Row:
    """How many wait and have failed, and when the next is due, as it is by then."""

    def of(state: str) -> Any:
        return and_(POSTS.c.webhook == id, POSTS.c.state == state)

    number = select(func.count()).select_from(POSTS)
    return {
        "waiting": number.where(of(WAITING)).scalar_subquery(),
        "failed": number.where(of(FAILED)).scalar_subquery(),
        "due_at": select(func.min(POSTS.c.due_at)).where(of(WAITING)).scalar_subquery(),
    }


def _row(subscription: Subscription) -> Row:
    row: Row = {name: getattr(subscription, name) for name in Subscription.__dataclass_fields__}
    return {**row, "sealed": msgspec.json.encode(subscription.sealed).decode()}


def _subscription(row: Sequence[Any]) -> Subscription:
    found: Row = dict(zip(Subscription.__dataclass_fields__, row, strict=True))
    found["sealed"] = _sealed.decode(found["sealed"])
    found["least"], found["state"] = Severity(found["least"]), State(found["state"])
    return Subscription(**found)


def _post_row(post: Post) -> Row:
    return {
        "webhook": post.subscription,
        "event": post.event,
        "body": post.body,
        "at": post.at,
        "due_at": post.due_at,
        "attempts": post.attempts,
        "state": WAITING,
        "last_error": "",
    }


def _post(row: Sequence[Any]) -> Post:
    webhook, event, body, at, due_at, number, attempts, state, last_error = row
    failed = state == FAILED
    return Post(webhook, event, bytes(body), at, due_at, number, attempts, failed, last_error)
