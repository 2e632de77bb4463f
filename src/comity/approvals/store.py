"""The store of approval requests: each step is one statement or one short transaction.

`Database.writing` admits one writer at a time, so what a step reads is still true when it writes.
The condition of the statement and the constraints of the table guard against the opposite.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Select, exists, func, insert, or_, select, text, union_all, update
from sqlalchemy.ext.asyncio import AsyncConnection

from comity.approvals import model
from comity.approvals.model import (
    EVENT_BY_END_STATE,
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalEvent,
    ApprovalFilter,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
    add_answer,
    next_state,
    states_before,
)
from comity.approvals.notifiers.model import change_job
from comity.errors import MalformedMessage
from comity.storage import values
from comity.storage.changes import PAGE, RecordKind
from comity.storage.database import (
    ASK_ANSWERS,
    ASK_IS_LIVE,
    ASKS,
    EarliestTime,
    Row,
    SqlDatabase,
    WriteTransaction,
)
from comity.storage.work_queue import SqlWorkQueue

_COLUMN_NAMES: Final = [column.name for column in ASKS.columns]
_ANSWER_COLUMNS: Final = [
    ASK_ANSWERS.c[name] for name in ("said_by", "verdict", "said_at", "reason", "content")
]


NOTICE_JOBS: Final = "notice"


class SqlAsks:
    """Stores approval requests.

    A method with `with_notice` adds the job of the notifiers in the transaction of the change.
    """

    def __init__(self, database: SqlDatabase, notices: SqlWorkQueue) -> None:
        self.notices = notices
        self._database = database
        self._next_expiry = EarliestTime(database, ASKS.c.expires_at, ASK_IS_LIVE)

    async def open(self, request: ApprovalRequest, *, with_notice: bool = False) -> ApprovalRequest:
        new = model.checked_request(request)
        async with self._database.writing() as writing:
            same = [ASKS.c.digest == new.digest, ASK_IS_LIVE]
            late = [*same, ASKS.c.expires_at <= new.created_at]
            await _apply_event(writing, ApprovalEvent.EXPIRED, late, ended_at=new.created_at)
            present = await _read_requests(writing.connection, select(ASKS).where(*same))
            if present:
                return present[0]
            if await _read_requests(writing.connection, select(ASKS).where(ASKS.c.id == new.id)):
                raise MalformedMessage("an approval request with this id exists already")
            await writing.connection.execute(insert(ASKS), [_row_of_request(new)])
            await self._add_notices(writing, [new] if with_notice else (), new.created_at)
            await writing.record_change(RecordKind.ASKS, [new.id])
        return new

    async def get(self, id: str) -> ApprovalRequest | None:
        return await self._find_one(select(ASKS).where(ASKS.c.id == id), id)

    async def find_latest(self, digest: str) -> ApprovalRequest | None:
        wanted = select(ASKS).where(ASKS.c.digest == digest)
        return await self._find_one(wanted.order_by(ASKS.c.id.desc()).limit(1), digest)

    async def page(
        self, states: Collection[ApprovalState] = (), after: str = "", limit: int = PAGE
    ) -> Sequence[ApprovalRequest]:
        if after and not values.is_name(after):
            return []
        later = select(ASKS).where(ASKS.c.id > after).order_by(ASKS.c.id).limit(limit)
        # One query per state walks along an index and ends where the page is full.
        each = [select(later.where(ASKS.c.state == state).subquery()) for state in set(states)]
        if not each:
            return await self._find_all(later)
        all_of_them = union_all(*each).subquery()
        return await self._find_all(select(all_of_them).order_by(all_of_them.c.id).limit(limit))

    async def find(self, criteria: ApprovalFilter, limit: int = PAGE) -> Sequence[ApprovalRequest]:
        if criteria.after and not values.is_name(criteria.after):
            return []
        wanted = matching_requests(criteria).limit(limit)
        if criteria.after:
            after = criteria.after
            wanted = wanted.where(ASKS.c.id < after if criteria.newest_first else ASKS.c.id > after)
        newest = criteria.newest_first
        found = await self._find_all(wanted.order_by(ASKS.c.id.desc() if newest else ASKS.c.id))
        return found[::-1] if newest else found

    async def count_matches(self, criteria: ApprovalFilter) -> int:
        wanted = select(func.count()).select_from(matching_requests(criteria).subquery())
        async with self._database.reading() as connection:
            return (await connection.execute(wanted)).scalar_one()

    async def count(self, states: Collection[ApprovalState]) -> int:
        wanted = select(func.count()).select_from(ASKS).where(ASKS.c.state.in_(set(states)))
        async with self._database.reading() as connection:
            return (await connection.execute(wanted)).scalar_one()

    async def answer(
        self, id: str, answer: ApprovalAnswer, until: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        if not values.is_name(id):
            return None
        until = values.to_utc(until)
        async with self._database.writing() as writing:
            found = await _read_requests(writing.connection, select(ASKS).where(ASKS.c.id == id))
            if not found:
                return None
            (ask,) = found
            said = model.checked_answer(answer, ask)
            heard = add_answer(ask, said, until)
            if heard is None:
                return None
            await _put_answer(writing, ask, said)
            changed = {"state": heard.state, "expires_at": heard.expires_at}
            step = update(ASKS).where(ASKS.c.id == id, ASKS.c.state == ask.state)
            await writing.connection.execute(step.values(**changed, ended_at=heard.ended_at))
            await self._add_notices(writing, [heard] if with_notice else (), said.at)
            await writing.record_change(RecordKind.ASKS, [id])
        return heard

    async def consume(
        self, id: str, call: str, at: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        values.check_name(call, "a call's name")
        now = values.to_utc(at)
        in_time = [ASKS.c.id == id, ASKS.c.expires_at > now]
        return await self._apply_event_to_one(
            id,
            ApprovalEvent.CONSUMED,
            in_time,
            now if with_notice else None,
            call=call,
            ended_at=now,
        )

    async def release(self, id: str, call: str) -> ApprovalRequest | None:
        if not values.is_name(call):
            return None
        other = ASKS.alias("other")
        is_live = text(f"other.{ASK_IS_LIVE.text}")
        replaced = exists().where(other.c.digest == ASKS.c.digest, is_live)
        by_it = [ASKS.c.id == id, ASKS.c.call == call, ~replaced]
        return await self._apply_event_to_one(
            id, ApprovalEvent.RELEASED, by_it, None, call="", ended_at=None
        )

    async def end(
        self, id: str, state: ApprovalState, at: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        if state not in EVENT_BY_END_STATE:
            return None
        now = values.to_utc(at)
        return await self._apply_event_to_one(
            id,
            EVENT_BY_END_STATE[state],
            [ASKS.c.id == id],
            now if with_notice else None,
            ended_at=now,
        )

    async def expire(
        self, at: datetime, limit: int = PAGE, *, with_notice: bool = False
    ) -> Sequence[ApprovalRequest]:
        now = values.to_utc(at)
        # This runs every second. While nothing is due, it sends no query.
        if not await self._next_expiry.is_reached(now):
            return []
        due = select(ASKS.c.id).where(ASK_IS_LIVE, ASKS.c.expires_at <= now)
        first = due.order_by(ASKS.c.expires_at).limit(limit)
        async with self._database.writing() as writing:
            late = [ASKS.c.id.in_(first)]
            ended = await _apply_event(writing, ApprovalEvent.EXPIRED, late, ended_at=now)
            await self._add_notices(writing, ended if with_notice else (), now)
            return ended

    async def erase_content(self, id: str) -> None:
        if not values.is_name(id):
            return
        async with self._database.writing() as writing:
            of_it = update(ASK_ANSWERS).where(ASK_ANSWERS.c.ask == id)
            await writing.connection.execute(of_it.values(content=values.encode_document({})))

    async def _apply_event_to_one(
        self,
        id: str,
        event: ApprovalEvent,
        where: list[Any],
        notified_at: datetime | None,
        **changed: object,
    ) -> ApprovalRequest | None:
        if not values.is_name(id):
            return None
        async with self._database.writing() as writing:
            found = await _apply_event(writing, event, where, **changed)
            if notified_at is not None:
                await self._add_notices(writing, found, notified_at)
            return next(iter(found), None)

    async def _add_notices(
        self, transaction: WriteTransaction, requests: Iterable[ApprovalRequest], at: datetime
    ) -> None:
        for each in requests:
            await self.notices.add_in(transaction.connection, change_job(each, at))

    async def _find_one(self, query: Select[Any], named: str) -> ApprovalRequest | None:
        # No row has such a name, and a database would reject it.
        found = await self._find_all(query) if values.is_name(named) else []
        return found[0] if found else None

    async def _find_all(self, query: Select[Any]) -> list[ApprovalRequest]:
        async with self._database.reading() as connection:
            return await _read_requests(connection, query)


def matching_requests(criteria: ApprovalFilter) -> Select[Any]:
    """Return the query for a filter. The state or the asker has an index."""
    wanted = select(ASKS)
    if criteria.states:
        wanted = wanted.where(ASKS.c.state.in_(criteria.states))
    if criteria.kind is not None:
        wanted = wanted.where(ASKS.c.kind == criteria.kind)
    for name in ("asker", "server", "tool"):
        word = getattr(criteria, name)
        if word:
            wanted = wanted.where(ASKS.c[name] == values.clean_words(word))
    if criteria.text:
        text = values.clean_words(criteria.text)
        columns = (ASKS.c.message, ASKS.c.asker, ASKS.c.server, ASKS.c.tool)
        wanted = wanted.where(or_(*(each.icontains(text, autoescape=True) for each in columns)))
    return wanted


async def _apply_event(
    transaction: WriteTransaction, event: ApprovalEvent, where: list[Any], **changed: object
) -> list[ApprovalRequest]:
    """Apply an event to all requests in a fitting state, and return them after it."""
    before = states_before(event)
    state = next_state(next(iter(before)), event)
    step = update(ASKS).where(ASKS.c.state.in_(before), *where).values(state=state, **changed)
    ids = (await transaction.connection.execute(step.returning(ASKS.c.id))).scalars().all()
    if not ids:
        return []
    await transaction.record_change(RecordKind.ASKS, ids)
    return await _read_requests(transaction.connection, select(ASKS).where(ASKS.c.id.in_(ids)))


async def _put_answer(
    transaction: WriteTransaction, request: ApprovalRequest, answer: ApprovalAnswer
) -> None:
    last = select(func.max(ASK_ANSWERS.c.number)).where(ASK_ANSWERS.c.ask == request.id)
    row: Row = {
        "ask": request.id,
        "said_by": answer.by,
        "number": ((await transaction.connection.execute(last)).scalar() or 0) + 1,
        "asker": request.asker,
        "own": request.own,
        "verdict": answer.verdict,
        "said_at": answer.at,
        "reason": answer.reason,
        "content": values.encode_document(answer.content),
    }
    await transaction.put(ASK_ANSWERS, [row])


async def _read_requests(connection: AsyncConnection, query: Select[Any]) -> list[ApprovalRequest]:
    """Return requests with their answers, read in one statement."""
    asks = query.subquery("asks")
    joined = asks.outerjoin(ASK_ANSWERS, ASK_ANSWERS.c.ask == asks.c.id)
    both = select(asks, *_ANSWER_COLUMNS).select_from(joined)
    rows = await connection.execute(both.order_by(asks.c.id, ASK_ANSWERS.c.number))
    return [_request_of_rows(list(group)) for _, group in groupby(rows, key=lambda row: row[0])]


def _request_of_rows(rows: list[Sequence[Any]]) -> ApprovalRequest:
    fields: Row = dict(zip(_COLUMN_NAMES, rows[0], strict=False))
    written = fields["schema"]
    fields.update(
        kind=ApprovalKind(fields["kind"]),
        state=ApprovalState(fields["state"]),
        about=values.decode_document(fields["about"]),
        options=values.read_list(fields["options"]),
        schema=None if written is None else values.decode_document(written),
        answers=tuple(_answer_of_row(row) for row in rows if row[len(_COLUMN_NAMES)] is not None),
    )
    return ApprovalRequest(**fields)


def _answer_of_row(row: Sequence[Any]) -> ApprovalAnswer:
    by, verdict, at, reason, content = row[len(_COLUMN_NAMES) :]
    return ApprovalAnswer(
        by, ApprovalDecision(verdict), at, reason, values.decode_document(content)
    )


def _row_of_request(request: ApprovalRequest) -> Row:
    """Return the row of a request. Some columns are JSON."""
    plain = {name: getattr(request, name) for name in _COLUMN_NAMES}
    return {
        **plain,
        "about": values.encode_document(request.about),
        "schema": None if request.schema is None else values.encode_document(request.schema),
        "options": values.encode_names(request.options),
    }
