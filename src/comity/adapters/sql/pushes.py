"""Pushes in a table: each step is one short transaction, and none waits for those of the records.

Whoever claims takes only rows that nobody else has locked, so that many nodes claim at once.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select, update

from comity.adapters.sql.database import Database, Product, Row
from comity.adapters.sql.tables_pushes import IS_WAITING, PUSHES
from comity.ports.pushes import PAGE, Admitted, Claim, PushFigures
from comity.rules import keeping
from comity.wire.contents import Block
from comity.wire.pushes import KeptPush, Push, PushState, Route

_READ: Final = [
    *(PUSHES.c.server, PUSHES.c.event, PUSHES.c.at, PUSHES.c.body, PUSHES.c.feature),
    *(PUSHES.c.route, PUSHES.c.received_at, PUSHES.c.due_at, PUSHES.c.number, PUSHES.c.state),
    *(PUSHES.c.attempts, PUSHES.c.inference, PUSHES.c.last_error, PUSHES.c.done_at),
]


class _Body(msgspec.Struct):
    """What is in a push; as bytes, for a database takes no NUL in a text."""

    content: tuple[Block, ...] = ()
    origin: Mapping[str, Any] = {}


_body: Final = msgspec.json.Decoder(_Body)
_route: Final = msgspec.json.Decoder(Route)
_NOTHING: Final = b"{}"


class SqlPushes:
    def __init__(self, database: Database, product: Product) -> None:
        self._database = database
        self._product = product

    async def add(self, kept: KeptPush, claim: Claim, most: int) -> Admitted | None:
        new = keeping.push(kept)
        row = _row(new)
        if new.state is PushState.WAITING:
            row |= {"claimed_by": claim.holder, "claimed_until": keeping.certain(claim.until)}
        made = self._product.insert(PUSHES).values(row).on_conflict_do_nothing()
        of_server = and_(IS_WAITING, PUSHES.c.server == new.push.server)
        async with self._database.beside() as connection:
            waiting = await connection.execute(select(func.count()).where(of_server))
            if waiting.scalar_one() < most:
                done = await connection.execute(made.returning(*_READ))
                if (found := done.first()) is not None:
                    return Admitted(_kept(found), is_new=True)
        known = await self.get(new.push.server, new.push.id)
        return None if known is None else Admitted(known, is_new=False)

    async def get(self, server: str, id: str) -> KeptPush | None:
        if not keeping.is_name(server) or not keeping.is_name(id):
            return None
        named = (PUSHES.c.server == server, PUSHES.c.event == id)
        async with self._database.reading() as connection:
            found = (await connection.execute(select(*_READ).where(*named))).first()
        return None if found is None else _kept(found)

    async def claim(self, claim: Claim, now: datetime, limit: int) -> Sequence[KeptPush]:
        now, until = keeping.certain(now), keeping.certain(claim.until)
        is_free = or_(PUSHES.c.claimed_until.is_(None), PUSHES.c.claimed_until <= now)
        is_due = (IS_WAITING, PUSHES.c.due_at <= now, is_free)
        order = (PUSHES.c.due_at, PUSHES.c.number)
        first = select(PUSHES.c.number).where(*is_due).order_by(*order).limit(limit)
        async with self._database.reading() as connection:
            # This is asked all the time: no writer is kept waiting where nothing is due.
            if (await connection.execute(first.limit(1))).first() is None:
                return []
        async with self._database.beside() as connection:
            found = await connection.execute(first.with_for_update(skip_locked=True))
            taken = (
                update(PUSHES)
                .where(PUSHES.c.number.in_(found.scalars().all()))
                .values(claimed_by=claim.holder, claimed_until=until)
                .returning(*_READ)
            )
            claimed = [_kept(row) for row in await connection.execute(taken)]
        return sorted(claimed, key=lambda each: (each.due_at, each.number))

    async def settle(self, holder: str, kept: KeptPush) -> bool:
        new = keeping.push(kept)
        held = (PUSHES.c.number == new.number, PUSHES.c.claimed_by == holder)
        changed: Row = {
            "state": new.state,
            "attempts": new.attempts,
            "due_at": new.due_at,
            "inference": new.inference,
            "last_error": new.last_error,
            "done_at": new.done_at,
            "claimed_by": "",
            "claimed_until": None,
        }
        if new.state is PushState.DONE:
            # What was in it is needed no more; that it was there is.
            changed["body"] = _NOTHING
        async with self._database.beside() as connection:
            done = await connection.execute(update(PUSHES).where(*held).values(changed))
        return done.rowcount > 0

    async def abandon(self, holders: str) -> None:
        theirs = PUSHES.c.claimed_by.startswith(holders, autoescape=True)
        void = update(PUSHES).where(IS_WAITING, theirs).values(claimed_by="", claimed_until=None)
        async with self._database.beside() as connection:
            await connection.execute(void)

    async def page(
        self, before: int = 0, limit: int = PAGE, server: str = ""
    ) -> Sequence[KeptPush]:
        where: list[ColumnElement[bool]] = [PUSHES.c.number < before] if before else []
        if server:
            if not keeping.is_name(server):
                return []
            where.append(PUSHES.c.server == server)
        wanted = select(*_READ).where(*where).order_by(PUSHES.c.number.desc()).limit(limit)
        async with self._database.reading() as connection:
            return [_kept(row) for row in await connection.execute(wanted)]

    async def figures(self) -> PushFigures:
        counted = select(PUSHES.c.state, func.count()).group_by(PUSHES.c.state)
        async with self._database.reading() as connection:
            found = {row[0]: row[1] for row in await connection.execute(counted)}
        return PushFigures(*(found.get(state, 0) for state in PushState))

    async def retry(self, number: int, now: datetime) -> bool:
        failed = (PUSHES.c.number == number, PUSHES.c.state == PushState.FAILED)
        fresh: Row = {"state": PushState.WAITING, "due_at": keeping.certain(now), "done_at": None}
        async with self._database.beside() as connection:
            again = update(PUSHES).where(*failed).values({**fresh, "attempts": 0})
            return (await connection.execute(again)).rowcount > 0

    async def prune(self, remembered: datetime) -> int:
        old = PUSHES.c.done_at < keeping.certain(remembered)
        async with self._database.reading() as connection:
            if not (await connection.execute(select(exists().where(old)))).scalar():
                return 0
        async with self._database.beside() as connection:
            return (await connection.execute(delete(PUSHES).where(old))).rowcount


def _row(kept: KeptPush) -> Row:
    push = kept.push
    body = _Body(push.content, push.origin) if kept.state is not PushState.DONE else _Body()
    return {
        "server": push.server,
        "event": push.id,
        "feature": push.feature,
        "at": push.at,
        "body": msgspec.json.encode(body),
        "route": msgspec.json.encode(kept.route).decode(),
        "received_at": kept.received_at,
        "due_at": kept.due_at,
        "state": kept.state,
        "attempts": kept.attempts,
        "inference": kept.inference,
        "last_error": kept.last_error,
        "done_at": kept.done_at,
        "claimed_by": "",
        "claimed_until": None,
    }


def _kept(row: Sequence[Any]) -> KeptPush:
    server, event, at, body, feature, route, received_at, due_at, *rest = row
    found = _body.decode(bytes(body))
    push = Push(server, event, at, found.content, feature, found.origin)
    number, state, attempts, inference, last_error, done_at = rest
    return KeptPush(
        *(push, _route.decode(route), received_at, due_at, number, PushState(state)),
        *(attempts, inference, last_error, done_at),
    )
