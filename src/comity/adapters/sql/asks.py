"""Asks in tables: each step is one statement or one short transaction, and one who tries succeeds.

Whoever writes waits for the one before (`Database.writing`), so what a step reads is still so when
it writes; and where that were not so, the statement and the table's own rules would refuse it.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Select, exists, func, insert, select, text, union_all, update
from sqlalchemy.ext.asyncio import AsyncConnection

from comity.adapters.sql.database import Database, Row, Writing
from comity.adapters.sql.tables import ASK_ANSWERS, ASK_IS_LIVE, ASKS
from comity.ports import PAGE, Kept
from comity.rules import keeping
from comity.rules.asks import ENDINGS, Happened, after, answered, states_before
from comity.wire.asks import Answer, Ask, Kind, State, Verdict
from comity.wire.errors import MalformedMessage

_FIELDS: Final = [column.name for column in ASKS.columns]
_SAID: Final = [
    ASK_ANSWERS.c[name] for name in ("said_by", "verdict", "said_at", "reason", "content")
]


class SqlAsks:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, ask: Ask) -> Ask:
        new = keeping.ask(ask)
        async with self._database.writing() as writing:
            same = [ASKS.c.digest == new.digest, ASK_IS_LIVE]
            late = [*same, ASKS.c.expires_at <= new.created_at]
            await _step(writing, Happened.EXPIRED, late, ended_at=new.created_at)
            present = await _found(writing.connection, select(ASKS).where(*same))
            if present:
                return present[0]
            if await _found(writing.connection, select(ASKS).where(ASKS.c.id == new.id)):
                raise MalformedMessage("an ask with this id is kept already")
            await writing.connection.execute(insert(ASKS), [_row(new)])
            await writing.note(Kept.ASKS, [new.id])
        return new

    async def get(self, id: str) -> Ask | None:
        return await self._one(select(ASKS).where(ASKS.c.id == id), id)

    async def latest(self, digest: str) -> Ask | None:
        wanted = select(ASKS).where(ASKS.c.digest == digest)
        return await self._one(wanted.order_by(ASKS.c.id.desc()).limit(1), digest)

    async def page(
        self, states: Collection[State] = (), after: str = "", limit: int = PAGE
    ) -> Sequence[Ask]:
        if after and not keeping.is_name(after):
            return []
        later = select(ASKS).where(ASKS.c.id > after).order_by(ASKS.c.id).limit(limit)
        # Each state by itself is a walk along an index, which ends where the page is full.
        each = [select(later.where(ASKS.c.state == state).subquery()) for state in set(states)]
        if not each:
            return await self._several(later)
        all_of_them = union_all(*each).subquery()
        return await self._several(select(all_of_them).order_by(all_of_them.c.id).limit(limit))

    async def count(self, states: Collection[State]) -> int:
        wanted = select(func.count()).select_from(ASKS).where(ASKS.c.state.in_(set(states)))
        async with self._database.reading() as connection:
            return (await connection.execute(wanted)).scalar_one()

    async def answer(self, id: str, answer: Answer, until: datetime) -> Ask | None:
        if not keeping.is_name(id):
            return None
        until = keeping.certain(until)
        async with self._database.writing() as writing:
            found = await _found(writing.connection, select(ASKS).where(ASKS.c.id == id))
            if not found:
                return None
            (ask,) = found
            said = keeping.answer(answer, ask)
            heard = answered(ask, said, until)
            if heard is None:
                return None
            await _put_answer(writing, ask, said)
            changed = {"state": heard.state, "expires_at": heard.expires_at}
            step = update(ASKS).where(ASKS.c.id == id, ASKS.c.state == ask.state)
            await writing.connection.execute(step.values(**changed, ended_at=heard.ended_at))
            await writing.note(Kept.ASKS, [id])
        return heard

    async def use(self, id: str, call: str, at: datetime) -> Ask | None:
        keeping.name(call, "a call's name")
        now = keeping.certain(at)
        in_time = [ASKS.c.id == id, ASKS.c.expires_at > now]
        return await self._stepped(id, Happened.USED, in_time, call=call, ended_at=now)

    async def restore(self, id: str, call: str) -> Ask | None:
        if not keeping.is_name(call):
            return None
        other = ASKS.alias("other")
        is_live = text(f"other.{ASK_IS_LIVE.text}")
        replaced = exists().where(other.c.digest == ASKS.c.digest, is_live)
        by_it = [ASKS.c.id == id, ASKS.c.call == call, ~replaced]
        return await self._stepped(id, Happened.RESTORED, by_it, call="", ended_at=None)

    async def end(self, id: str, state: State, at: datetime) -> Ask | None:
        if state not in ENDINGS:
            return None
        now = keeping.certain(at)
        return await self._stepped(id, ENDINGS[state], [ASKS.c.id == id], ended_at=now)

    async def expire(self, at: datetime, limit: int = PAGE) -> Sequence[Ask]:
        now = keeping.certain(at)
        due = select(ASKS.c.id).where(ASK_IS_LIVE, ASKS.c.expires_at <= now)
        first = due.order_by(ASKS.c.expires_at).limit(limit)
        async with self._database.reading() as connection:
            # This is asked every second: no other writer is kept waiting where nothing is due.
            if (await connection.execute(due.limit(1))).first() is None:
                return []
        async with self._database.writing() as writing:
            late = [ASKS.c.id.in_(first)]
            return await _step(writing, Happened.EXPIRED, late, ended_at=now)

    async def erase(self, id: str) -> None:
        if not keeping.is_name(id):
            return
        async with self._database.writing() as writing:
            of_it = update(ASK_ANSWERS).where(ASK_ANSWERS.c.ask == id)
            await writing.connection.execute(of_it.values(content=keeping.document({})))

    async def _stepped(
        self, id: str, happened: Happened, where: list[Any], **changed: object
    ) -> Ask | None:
        if not keeping.is_name(id):
            return None
        async with self._database.writing() as writing:
            return next(iter(await _step(writing, happened, where, **changed)), None)

    async def _one(self, wanted: Select[Any], named: str) -> Ask | None:
        # Nothing kept has such a name, and a database would refuse to look for it.
        found = await self._several(wanted) if keeping.is_name(named) else []
        return found[0] if found else None

    async def _several(self, wanted: Select[Any]) -> list[Ask]:
        async with self._database.reading() as connection:
            return await _found(connection, wanted)


async def _step(
    writing: Writing, happened: Happened, where: list[Any], **changed: object
) -> list[Ask]:
    """Have this happen to all of these to which it can; gives them as they are after it."""
    before = states_before(happened)
    state = after(next(iter(before)), happened)
    step = update(ASKS).where(ASKS.c.state.in_(before), *where).values(state=state, **changed)
    ids = (await writing.connection.execute(step.returning(ASKS.c.id))).scalars().all()
    if not ids:
        return []
    await writing.note(Kept.ASKS, ids)
    return await _found(writing.connection, select(ASKS).where(ASKS.c.id.in_(ids)))


async def _put_answer(writing: Writing, ask: Ask, answer: Answer) -> None:
    last = select(func.max(ASK_ANSWERS.c.number)).where(ASK_ANSWERS.c.ask == ask.id)
    row: Row = {
        "ask": ask.id,
        "said_by": answer.by,
        "number": ((await writing.connection.execute(last)).scalar() or 0) + 1,
        "asker": ask.asker,
        "own": ask.own,
        "verdict": answer.verdict,
        "said_at": answer.at,
        "reason": answer.reason,
        "content": keeping.document(answer.content),
    }
    await writing.put(ASK_ANSWERS, [row])


async def _found(connection: AsyncConnection, wanted: Select[Any]) -> list[Ask]:
    """Asks with their answers, in one statement and so as they were at one moment."""
    asks = wanted.subquery("asks")
    joined = asks.outerjoin(ASK_ANSWERS, ASK_ANSWERS.c.ask == asks.c.id)
    both = select(asks, *_SAID).select_from(joined)
    rows = await connection.execute(both.order_by(asks.c.id, ASK_ANSWERS.c.number))
    return [_ask(list(group)) for _, group in groupby(rows, key=lambda row: row[0])]


def _ask(rows: list[Sequence[Any]]) -> Ask:
    fields: Row = dict(zip(_FIELDS, rows[0], strict=False))
    written = fields["schema"]
    fields.update(
        kind=Kind(fields["kind"]),
        state=State(fields["state"]),
        about=keeping.read(fields["about"]),
        options=keeping.read_list(fields["options"]),
        schema=None if written is None else keeping.read(written),
        answers=tuple(_answer(row) for row in rows if row[len(_FIELDS)] is not None),
    )
    return Ask(**fields)


def _answer(row: Sequence[Any]) -> Answer:
    by, verdict, at, reason, content = row[len(_FIELDS) :]
    return Answer(by, Verdict(verdict), at, reason, keeping.read(content))


def _row(ask: Ask) -> Row:
    """Its fields are the columns of its table, but for those that are written as JSON."""
    plain = {name: getattr(ask, name) for name in _FIELDS}
    return {
        **plain,
        "about": keeping.document(ask.about),
        "schema": None if ask.schema is None else keeping.document(ask.schema),
        "options": keeping.listed(ask.options),
    }
