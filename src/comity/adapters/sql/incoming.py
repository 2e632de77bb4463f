"""What came in from channels, in a table: a key that stands there twice is refused by the database.

Keys are written in their order, so that two who take the same ones never wait for each other.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select, update

from comity.adapters.sql.database import Database, Product
from comity.adapters.sql.tables_channels import DEEDS
from comity.ports.incoming import Deed, Standing
from comity.rules import keeping


class SqlIncoming:
    def __init__(self, database: Database, product: Product) -> None:
        self._database = database
        self._product = product

    async def take(
        self, keys: Sequence[str], holder: str, now: datetime, until: datetime | None
    ) -> Sequence[Deed]:
        if not keys:
            return []
        at, end = keeping.certain(now), keeping.moment(until)
        rows = [
            {"key": keeping.name(key, "a deed"), "holder": holder, "at": at, "until": end}
            for key in sorted(keys)
        ]
        new = self._product.insert(DEEDS).values(rows).on_conflict_do_nothing()
        lapsed = update(DEEDS).where(
            DEEDS.c.key.in_(keys), DEEDS.c.note.is_(None), DEEDS.c.until <= at
        )
        async with self._database.beside() as connection:
            ours = set((await connection.execute(new.returning(DEEDS.c.key))).scalars())
            again = lapsed.where(DEEDS.c.key.not_in(ours)).values(holder=holder, at=at, until=end)
            ours |= set((await connection.execute(again.returning(DEEDS.c.key))).scalars())
            rest = select(DEEDS.c.key, DEEDS.c.note).where(DEEDS.c.key.in_(keys))
            rows_there = (await connection.execute(rest)).all()
            notes: dict[str, Any] = {row[0]: row[1] for row in rows_there}
        return [_deed(key, ours, notes) for key in keys]

    async def settle(self, holder: str, done: Mapping[str, str], now: datetime) -> None:
        if not done:
            return
        at = keeping.certain(now)
        rows = [
            {
                "key": keeping.name(key, "a deed"),
                "holder": holder,
                "at": at,
                "until": None,
                "note": keeping.words(done[key]),
            }
            for key in sorted(done)
        ]
        new = self._product.insert(DEEDS).values(rows)
        own = new.on_conflict_do_update(
            index_elements=["key"],
            set_={"note": new.excluded.note},
            where=(DEEDS.c.holder == holder) & DEEDS.c.note.is_(None),
        )
        async with self._database.beside() as connection:
            await connection.execute(own)

    async def release(self, holder: str, keys: Sequence[str]) -> None:
        if not keys:
            return
        own = delete(DEEDS).where(
            DEEDS.c.key.in_(keys), DEEDS.c.holder == holder, DEEDS.c.note.is_(None)
        )
        async with self._database.beside() as connection:
            await connection.execute(own)

    async def prune(self, before: datetime) -> int:
        async with self._database.beside() as connection:
            gone = await connection.execute(
                delete(DEEDS).where(DEEDS.c.at < keeping.certain(before))
            )
        return gone.rowcount


def _deed(key: str, ours: set[str], notes: Mapping[str, Any]) -> Deed:
    if key in ours:
        return Deed(key, Standing.OURS)
    note = notes.get(key)
    return Deed(key, Standing.BUSY) if note is None else Deed(key, Standing.DONE, note)
