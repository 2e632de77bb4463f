"""The tables of browser sessions and of tokens that were used once."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, delete, or_, select, update
from sqlalchemy.exc import IntegrityError

from comity.identity.login.model import (
    MAX_SESSIONS_PER_PRINCIPAL,
    BrowserSession,
    SignInMethod,
)
from comity.storage import values
from comity.storage.changes import PAGE, RecordKind
from comity.storage.database import (
    BROWSER_SESSIONS,
    USED_TOKENS,
    SqlDatabase,
    WriteTransaction,
    record_row,
    select_page,
    select_row,
    select_rows,
)

_TABLE = BROWSER_SESSIONS
_COLUMNS = BROWSER_SESSIONS.c


class SqlBrowserSessions:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def put(self, session: BrowserSession) -> None:
        values.check_name(session.party, "the principal of a session")
        async with self._database.writing() as writing:
            await _remove_old(writing, session)
            await writing.put(_TABLE, [record_row(_TABLE, session)])
            await writing.record_change(RecordKind.SESSIONS, [session.id])

    async def get(self, session: str) -> BrowserSession | None:
        row = await select_row(self._database, _TABLE, id=session)
        return None if row is None else _session(row)

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[BrowserSession]:
        return [_session(row) for row in await select_page(self._database, _TABLE, after, limit)]

    async def list_of_party(self, party: str) -> Sequence[BrowserSession]:
        return [_session(row) for row in await select_rows(self._database, _TABLE, party=party)]

    async def rotate(self, session: str, old: bytes, new: bytes, at: datetime) -> bool:
        # Only one of several requests at the same time rotates.
        changed = (
            update(_TABLE)
            .where(_COLUMNS.id == session, _COLUMNS.digest == old)
            .values(digest=new, previous=old, rotated_at=values.to_utc(at))
        )
        async with self._database.writing() as writing:
            done = await writing.connection.execute(changed)
            await writing.record_change(RecordKind.SESSIONS, [session] * done.rowcount)
        return done.rowcount > 0

    async def remove(self, session: str) -> bool:
        if not values.is_name(session):
            return False
        async with self._database.writing() as writing:
            return bool(await _remove(writing, _COLUMNS.id == session))

    async def remove_of_provider(self, issuer: str, subject: str, sid: str) -> Sequence[str]:
        wanted = [_COLUMNS.issuer == issuer]
        wanted += [_COLUMNS.subject == subject] if subject else []
        wanted += [_COLUMNS.sid == sid] if sid else []
        words = [issuer, *filter(None, (subject, sid))]
        if len(wanted) == 1 or not all(map(values.is_name, words)):
            return ()
        async with self._database.writing() as writing:
            return await _remove(writing, *wanted)

    async def touch(self, used: Mapping[str, datetime]) -> None:
        if not used:
            return
        touched = (
            update(_TABLE)
            .where(_COLUMNS.id == bindparam("session"), _COLUMNS.last_seen < bindparam("at"))
            .values(last_seen=bindparam("at"))
        )
        rows = [{"session": id, "at": values.to_utc(at)} for id, at in sorted(used.items())]
        async with self._database.writing() as writing:
            await writing.connection.execute(touched, rows)
            await writing.record_change(RecordKind.SESSIONS, used)

    async def use_once(self, token: str, until: datetime, now: datetime) -> bool:
        digest = hashlib.sha256(token.encode()).hexdigest()
        old = delete(USED_TOKENS).where(USED_TOKENS.c.expires_at <= values.to_utc(now))
        row = {"digest": digest, "expires_at": values.to_utc(until)}
        try:
            async with self._database.beside() as connection:
                await connection.execute(old)
                await connection.execute(USED_TOKENS.insert(), [row])
        except IntegrityError:
            return False
        return True


async def _remove_old(transaction: WriteTransaction, new: BrowserSession) -> None:
    """Remove expired sessions, and the oldest of this principal if it has too many."""
    newest = (
        select(_COLUMNS.id)
        .where(_COLUMNS.party == new.party)
        .order_by(_COLUMNS.created_at.desc(), _COLUMNS.id)
        .limit(MAX_SESSIONS_PER_PRINCIPAL - 1)
    )
    kept = (await transaction.connection.execute(newest)).scalars().all()
    is_surplus = (_COLUMNS.party == new.party) & _COLUMNS.id.not_in(kept)
    await _remove(transaction, or_(_COLUMNS.expires_at <= new.created_at, is_surplus))


async def _remove(transaction: WriteTransaction, *where: Any) -> Sequence[str]:
    gone = delete(_TABLE).where(*where).returning(_COLUMNS.id)
    ids = (await transaction.connection.execute(gone)).scalars().all()
    await transaction.record_change(RecordKind.SESSIONS, ids)
    return ids


def _session(row: Sequence[Any]) -> BrowserSession:
    id, party, method, digest, previous, *rest, hint = row
    secrets = (bytes(digest), bytes(previous))
    return BrowserSession(id, party, SignInMethod(method), *secrets, *rest, hint=bytes(hint))
