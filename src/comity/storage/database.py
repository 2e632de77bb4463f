"""Database access for both engines, and the tables."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TextClause,
    TypeDecorator,
    UniqueConstraint,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from comity.errors import POLICY_UNKNOWN, Unavailable
from comity.storage import values
from comity.storage.changes import ChangeBatch, RecordChange, RecordKind
from comity.toolkit.background import wait_for_change


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC. SQLite does not store the zone, so the type restores it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value and value.tzinfo is None else value


METADATA = MetaData()
SCHEMA_TABLE = "comity_schema"
"""The table in which Alembic records the applied migrations."""

VERSION = Table(
    "comity_version",
    METADATA,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
    Column("forgotten", BigInteger, nullable=False),
)

CHANGES = Table(
    "comity_changes",
    METADATA,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("what", Text, primary_key=True),
    Column("whose", Text, primary_key=True),
)

GRANTS = Table(
    "comity_grants",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("subject", Text, nullable=False),
    Column("verb", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("effect", Text, nullable=False),
    Column("granted_by", Text, nullable=False),
    Column("justification", Text, nullable=False),
    Column("granted_at", UtcDateTime),
    Column("expires_at", UtcDateTime),
    Column("where", Text),
    Column("reach", Text, nullable=False),
    Index("comity_grants_by_subject", "subject", "id"),
)

LIMIT_COUNTS = Table(
    "comity_limit_counts",
    METADATA,
    # A digest of the limit and of the units for which it counts.
    Column("key", Text, primary_key=True),
    # The used part of a quota, in the window that ends at `ends_at`. Unused for a rate.
    Column("used", BigInteger, nullable=False),
    # Seconds since 1970: the time from which the row equals a missing one.
    Column("ends_at", Double, nullable=False),
    # The number of units that the last statement granted, which that statement returns.
    Column("granted", BigInteger, nullable=False),
    Index("comity_limit_counts_ending", "ends_at"),
)

PARTIES = Table(
    "comity_principals",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", UtcDateTime),
    Column("groups", Text, nullable=False),
)

KEYS = Table(
    "comity_api_keys",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("party", Text, nullable=False),
    Column("mac", LargeBinary, nullable=False),
    Column("label", Text, nullable=False),
    Column("permissions", Text, nullable=False),
    Column("requests_per_minute", BigInteger),
    Column("requests_per_hour", BigInteger),
    Column("created_by", Text, nullable=False),
    Column("created_at", UtcDateTime),
    Column("not_before", UtcDateTime),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Column("last_used", UtcDateTime),
    Index("comity_api_keys_by_party", "party"),
)

BROWSER_SESSIONS = Table(
    "comity_browser_sessions",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("party", Text, nullable=False),
    Column("method", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("previous", LargeBinary, nullable=False),
    Column("rotated_at", UtcDateTime, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("last_seen", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("key", Text, nullable=False),
    Column("issuer", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("sid", Text, nullable=False),
    Column("hint", LargeBinary, nullable=False),
    Index("comity_browser_sessions_by_party", "party"),
    Index("comity_browser_sessions_by_issuer", "issuer", "subject"),
    Index("comity_browser_sessions_ending", "expires_at"),
)

ACCOUNTS = Table(
    "comity_accounts",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("server", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("resource", Text, nullable=False),
    Column("issuer", Text, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("missing_scopes", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("connected_at", UtcDateTime, nullable=False),
    Column("connected_by", Text, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("is_refreshable", Boolean, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    # The node that refreshes the tokens now, and until when it alone may.
    Column("refresh_by", Text, nullable=False),
    Column("refresh_until", UtcDateTime),
    Index("comity_accounts_by_server", "server"),
)

ACCOUNT_CLIENTS = Table(
    "comity_account_clients",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("issuer", Text, nullable=False),
    Column("redirect_uri", Text, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
)

USED_TOKENS = Table(
    "comity_used_tokens",
    METADATA,
    Column("digest", Text, primary_key=True),
    Column("expires_at", UtcDateTime, nullable=False),
    Index("comity_used_tokens_ending", "expires_at"),
)

SCIM_USERS = Table(
    "comity_scim_users",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("principal", Text, nullable=False, unique=True),
    Column("user_name", Text, nullable=False),
    # The name in the form in which names are compared.
    Column("name_key", Text, nullable=False, unique=True),
    Column("external_id", Text, nullable=False),
    Column("active", Boolean, nullable=False),
    Column("attributes", Text, nullable=False),
    Column("created_at", UtcDateTime),
    Column("changed_at", UtcDateTime),
    Index("comity_scim_users_by_external_id", "external_id"),
)

SCIM_GROUPS = Table(
    "comity_scim_groups",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("name_key", Text, nullable=False, unique=True),
    Column("external_id", Text, nullable=False),
    Column("created_at", UtcDateTime),
    Column("changed_at", UtcDateTime),
)

SCIM_MEMBERS = Table(
    "comity_scim_members",
    METADATA,
    Column("group_id", Text, primary_key=True),
    Column("user_id", Text, primary_key=True),
    Index("comity_scim_members_by_user", "user_id"),
)

PINS = Table(
    "comity_tool_definitions",
    METADATA,
    Column("server", Text, primary_key=True),
    Column("tool", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("definition", LargeBinary, nullable=False),
    Column("accepted_by", Text, nullable=False),
    Column("accepted_at", UtcDateTime),
)

REGISTRATIONS = Table(
    "comity_registrations",
    METADATA,
    Column("server", Text, primary_key=True),
    Column("entry", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", UtcDateTime),
    Column("justification", Text, nullable=False),
)

ASK_IS_LIVE = text("state IN ('pending', 'deferred', 'approved')")
"""Has literal values, because a database uses a partial index only for literals."""

ASKS = Table(
    "comity_approvals",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("asker", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("about", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("state", Text, nullable=False),
    Column("quorum", Integer, nullable=False),
    Column("own", Boolean, nullable=False),
    Column("trace", Text, nullable=False),
    Column("options", Text, nullable=False),
    Column("schema", Text),
    Column("call", Text, nullable=False),
    Column("ended_at", UtcDateTime),
    CheckConstraint("quorum > 0", name="comity_approvals_quorum"),
    # An approval was used if, and only if, one call used it.
    CheckConstraint("(state = 'consumed') = (call <> '')", name="comity_approvals_consumed"),
    UniqueConstraint("id", "asker", "own", name="comity_approvals_askers"),
    Index("comity_approvals_by_state", "state", "id"),
    Index("comity_approvals_by_asker", "asker", "server", "tool", "id"),
    Index("comity_approvals_by_digest", "digest", "id"),
    Index(
        "comity_approvals_one_live",
        "digest",
        unique=True,
        sqlite_where=ASK_IS_LIVE,
        postgresql_where=ASK_IS_LIVE,
    ),
    Index(
        "comity_approvals_due", "expires_at", sqlite_where=ASK_IS_LIVE, postgresql_where=ASK_IS_LIVE
    ),
)

ASK_ANSWERS = Table(
    "comity_approval_answers",
    METADATA,
    Column("ask", Text, primary_key=True),
    Column("said_by", Text, primary_key=True),
    Column("number", Integer, nullable=False),
    Column("asker", Text, nullable=False),
    Column("own", Boolean, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("said_at", UtcDateTime, nullable=False),
    Column("reason", Text, nullable=False),
    Column("content", Text, nullable=False),
    # The asker and the right to answer one's own request are columns of the approval request. The
    # foreign key holds the answer to both: no program can answer its own request. (D-98)
    ForeignKeyConstraint(
        ["ask", "asker", "own"],
        ["comity_approvals.id", "comity_approvals.asker", "comity_approvals.own"],
        name="comity_approval_answers_ask",
    ),
    CheckConstraint("own OR said_by <> asker", name="comity_approval_answers_not_its_own"),
)

PUSH_SUBSCRIPTIONS = Table(
    "comity_push_subscriptions",
    METADATA,
    Column("party", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("endpoint", Text, nullable=False),
    Column("p256dh", LargeBinary, nullable=False),
    Column("auth", LargeBinary, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

WEBHOOKS = Table(
    "comity_webhooks",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("party", Text, nullable=False),
    Column("credential", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("least", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("sealed", Text, nullable=False),
    Column("rotated_until", UtcDateTime),
    Column("state", Text, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("failing_since", UtcDateTime),
    Column("last_error", Text, nullable=False),
    Column("delivered_at", UtcDateTime),
    Column("waiting", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("dropped", Integer, nullable=False),
    # The end of the pause of this target. Its job in the work queue has the due time.
    Column("rest_until", UtcDateTime),
    Index("comity_webhooks_by_party", "party", "id"),
    Index("comity_webhooks_ending", "expires_at"),
)

NUMBER = BigInteger().with_variant(Integer, "sqlite")
"""The type of an autoincrement column. SQLite increments only this type."""

POSTS = Table(
    "comity_webhook_deliveries",
    METADATA,
    Column("number", NUMBER, primary_key=True),
    Column("webhook", Text, ForeignKey("comity_webhooks.id", ondelete="CASCADE"), nullable=False),
    Column("event", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("due_at", UtcDateTime, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("last_error", Text, nullable=False),
    Column("done_at", UtcDateTime),
    UniqueConstraint("webhook", "event", name="comity_webhook_deliveries_once"),
    Index("comity_webhook_deliveries_due", "webhook", "state", "due_at"),
    Index("comity_webhook_deliveries_done", "done_at"),
)

EVENT_MARKS = Table(
    "comity_event_marks",
    METADATA,
    Column("chain", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
)

OF_A_CALL = text("call <> ''")

AUDIT_CONDITIONS: Final = {
    "server": text("server <> ''"),
    "type": text("type NOT IN ('TOOL_EXECUTED', 'dev.comity.call_intended')"),
    "result": text("result <> 'SUCCESS'"),
}
"""The conditions of the partial indexes. A query must repeat the condition to use the index.

Most entries are of calls that succeeded. They are in no index by type or result: each index of all
entries costs every call as much as writing its entry does.
"""

JOURNAL = Table(
    "comity_audit_entries",
    METADATA,
    Column("node", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", UtcDateTime, nullable=False),
    Column("trace", Text, nullable=False),
    Column("call", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Index("comity_audit_entries_by_time", "at"),
    Index("comity_audit_entries_by_actor", "actor", "at"),
    *(
        Index(
            f"comity_audit_entries_by_{name}",
            name,
            "at",
            sqlite_where=where,
            postgresql_where=where,
        )
        for name, where in AUDIT_CONDITIONS.items()
    ),
    Index("comity_audit_entries_by_trace", "trace"),
    Index(
        "comity_audit_entries_by_call", "call", sqlite_where=OF_A_CALL, postgresql_where=OF_A_CALL
    ),
    # Entries are stored in the order of their chain, so a batch is written to one B-tree, not two.
    sqlite_with_rowid=False,
)

CHECKPOINTS = Table(
    "comity_audit_checkpoints",
    METADATA,
    Column("node", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("key", Text, nullable=False),
    Column("signature", LargeBinary, nullable=False),
)

SEGMENTS = Table(
    "comity_audit_segments",
    METADATA,
    Column("node", Text, primary_key=True),
    Column("first", BigInteger, primary_key=True, autoincrement=False),
    Column("last", BigInteger, nullable=False),
    Column("before", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("sealed_at", UtcDateTime, nullable=False),
)


CHANNEL: Final = "comity_changes"
REMEMBERED: Final = 2_000
"""How many versions back the store reports single changes."""

PRUNED_EVERY: Final = 100
WRITES: Final = "comity_writes"
"""The execution option that marks a connection as a writer, where the engine needs to know."""

_ROWS_AT_ONCE: Final = 1_000
CLOSE_SECONDS: Final = 5.0
"""How long closing a database waits for the tasks that use it."""

AGAIN: Final = timedelta(seconds=1)

type Row = dict[str, Any]


class DatabaseBackend(Protocol):
    """The differences between the database engines."""

    @property
    def engine(self) -> AsyncEngine: ...

    @property
    def tells(self) -> bool:
        """Whether the database itself notifies other processes of a change."""
        ...

    def insert(self, table: Table) -> Any:
        """Return an insert of the dialect that can replace a row with the same key."""
        ...

    def prepare(self) -> None:
        """Create the place of a missing store, as far as Comity is responsible for it."""
        ...

    def clock(self) -> ColumnElement[float]:
        """Return the time of the store in seconds since 1970, which is one time in a statement."""
        ...

    async def read_change_mark(self, job_kinds: Sequence[str]) -> object:
        """Return a value that differs from the value before if a process has changed the store.

        The value covers the records and the due times of these jobs. None if it is unknown. This
        runs several times a second on an idle node, so it costs much less than a query.
        """
        ...

    async def open(self) -> None: ...
    async def close(self) -> None: ...


class SqlDatabase:
    """Transactions of one database. It notifies this process after each change."""

    def __init__(self, backend: DatabaseBackend, wake: Callable[[], None]) -> None:
        self._backend = backend
        self._engine = backend.engine
        self._wake = wake
        self._autocommit = {"isolation_level": "AUTOCOMMIT"} if backend.tells else {}
        self._change_mark: object = None
        self._change_count = 0
        self._job_kinds: list[str] = []
        # One look at a time, because all looks share a connection.
        self._look_lock = asyncio.Lock()
        self._last_begun_look = self._last_ended_look = 0
        self._users: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Close the database after the tasks that use it. They were cancelled before, or end soon.

        The driver's thread ends with the database. A task that waits for it would wait for ever.
        """
        users = self._users - {asyncio.current_task()}
        if users:
            await asyncio.wait(users, timeout=CLOSE_SECONDS)
        await self._backend.close()

    def watch_jobs(self, kind: str) -> None:
        """Count changes of the jobs of this kind too."""
        if kind not in self._job_kinds:
            self._job_kinds.append(kind)

    async def count_changes(self) -> int:
        """Return how many changes this process has noticed, after a look for more. Never raises."""
        last_begun = self._last_begun_look
        async with self._look_lock:
            # One look serves all callers that waited for the lock when it began.
            if self._last_ended_look <= last_begun:
                if self._backend.tells:
                    # A look at a server is a round trip. Those who wake up now too share it.
                    await asyncio.sleep(0)
                self._last_begun_look += 1
                mark = await self._backend.read_change_mark(self._job_kinds)
                if mark is None or mark != self._change_mark:
                    self._change_mark = mark
                    self._change_count += 1
                self._last_ended_look = self._last_begun_look
        return self._change_count

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        async with self._connection() as connection:
            yield await connection.execution_options(**self._autocommit)

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator["WriteTransaction"]:
        """Begin a transaction with a version. All processes have one writer at a time.

        The row lock keeps the versions in the order of the changes.
        """
        async with self._connection() as connection:
            await connection.execution_options(**{WRITES: True})
            async with connection.begin():
                await connection.execute(select(VERSION.c.version).with_for_update())
                writing = WriteTransaction(connection, self._backend)
                yield writing
        if writing.has_changed:
            self._wake()

    @asynccontextmanager
    async def beside(self) -> AsyncGenerator[AsyncConnection]:
        """Begin a transaction without a version, which does not wait for the writer lock."""
        async with self._connection() as connection:
            await connection.execution_options(**{WRITES: True})
            async with connection.begin():
                yield connection

    @asynccontextmanager
    async def single(self) -> AsyncGenerator[AsyncConnection]:
        """Begin a transaction of one statement, for which a server needs no BEGIN and COMMIT."""
        async with self.reading() if self._autocommit else self.beside() as connection:
            yield connection

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[AsyncConnection]:
        task = asyncio.current_task()
        # A task that is a user already stays one until its outer transaction ends.
        is_new = task is not None and task not in self._users
        if task is not None:
            self._users.add(task)
        try:
            async with map_database_errors(), self._engine.connect() as connection:
                yield connection
        finally:
            if task is not None and is_new:
                self._users.discard(task)


class WriteTransaction:
    """One write transaction: all of its changes apply, or none."""

    def __init__(self, connection: AsyncConnection, backend: DatabaseBackend) -> None:
        self.connection = connection
        self.has_changed = False
        self._backend = backend

    async def put(self, table: Table, rows: list[Row]) -> None:
        """Write rows, and replace those with the same key."""
        new = self._backend.insert(table)
        rest = [column.name for column in table.columns if not column.primary_key]
        statement = new.on_conflict_do_update(
            index_elements=table.primary_key, set_={name: new.excluded[name] for name in rest}
        )
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            await self.connection.execute(statement, rows[first : first + _ROWS_AT_ONCE])

    async def record_change(self, what: RecordKind, whose: Iterable[str]) -> None:
        """Record which records changed. Without names there is no change."""
        changed = values.names_of_change(whose)
        if not changed:
            return
        self.has_changed = True
        bumped = update(VERSION).values(version=VERSION.c.version + 1).returning(VERSION.c.version)
        version: int = (await self.connection.execute(bumped)).scalar_one()
        rows = [{"version": version, "what": what, "whose": each} for each in changed]
        await self.connection.execute(insert(CHANGES), rows)
        if version % PRUNED_EVERY == 0:
            await self._forget(version - REMEMBERED)
        if self._backend.tells:
            # Only a hint with the version. The receivers then read the changes that they do not
            # know.
            told = {"channel": CHANNEL, "version": str(version)}
            await self.connection.execute(text("SELECT pg_notify(:channel, :version)"), told)

    async def _forget(self, up_to: int) -> None:
        if up_to > 0:
            await self.connection.execute(delete(CHANGES).where(CHANGES.c.version <= up_to))
            await self.connection.execute(update(VERSION).values(forgotten=up_to))


@asynccontextmanager
async def map_database_errors() -> AsyncGenerator[None]:
    """Map failures of the database to Unavailable. A value that it cannot store is a bug."""
    try:
        yield
    except (IntegrityError, DataError):
        raise
    except (DBAPIError, NoConnectionFree, OSError, TimeoutError) as error:
        raise to_unavailable(error) from None


def to_unavailable(error: BaseException) -> Unavailable:
    """Return Unavailable with the database's message, without the SQL statement."""
    original = error.orig if isinstance(error, DBAPIError) else error
    otherwise = "it stays silent" if isinstance(error, TimeoutError) else type(original).__name__
    reason = next(iter(str(original).splitlines()), "") or otherwise
    return Unavailable(f"the store does not answer: {reason[:300]}", POLICY_UNKNOWN, AGAIN)


def record_row(table: Table, record: object) -> Row:
    """Return the row of a record, whose fields are the columns of its table."""
    return {column.name: getattr(record, column.name) for column in table.columns}


async def select_rows(database: SqlDatabase, table: Table, **where: str) -> Sequence[Sequence[Any]]:
    # No record has such a name, and a database would refuse the query.
    if any(not values.is_name(value) for value in where.values()):
        return []
    wanted = select(table).where(*(table.c[name] == value for name, value in where.items()))
    wanted = wanted.order_by(*table.primary_key.columns)
    async with database.reading() as connection:
        return (await connection.execute(wanted)).all()


async def select_row(database: SqlDatabase, table: Table, **where: str) -> Sequence[Any] | None:
    return next(iter(await select_rows(database, table, **where)), None)


async def select_page(
    database: SqlDatabase, table: Table, after: str, limit: int, *where: ColumnElement[bool]
) -> Sequence[Sequence[Any]]:
    if after and not values.is_name(after):
        return []
    wanted = select(table).where(table.c.id > after, *where).order_by(table.c.id).limit(limit)
    async with database.reading() as connection:
        return (await connection.execute(wanted)).all()


class EarliestTime:
    """The earliest time in a column, which is read again only if the store has changed."""

    def __init__(
        self,
        database: SqlDatabase,
        column: Column[datetime],
        *where: ColumnElement[bool] | TextClause,
    ) -> None:
        self._database = database
        self._query = select(func.min(column)).where(*where)
        self._seen_count = 0
        self._earliest: datetime | None = None

    async def is_reached(self, now: datetime) -> bool:
        """Return whether a row has this time or an earlier one. Raises Unavailable."""
        count = await self._database.count_changes()
        if count != self._seen_count:
            async with self._database.reading() as connection:
                self._earliest = (await connection.execute(self._query)).scalar()
            # The count is from before the query, so a later change leads to another query.
            self._seen_count = count
        return self._earliest is not None and self._earliest <= now


MAX_CHANGES_READ: Final = 5_000


class SqlChangeLog:
    """Reads the changes after a version, and wakes this process after its own changes."""

    def __init__(self, database: SqlDatabase, wakeup: asyncio.Event) -> None:
        self._database = database
        self._wakeup = wakeup

    async def count_changes(self) -> int:
        return await self._database.count_changes()

    async def since(self, version: int) -> ChangeBatch:
        # One statement reads one snapshot, so no change can slip in between the version and its
        # list.
        joined = VERSION.outerjoin(CHANGES, CHANGES.c.version > version)
        columns = (VERSION.c.version, VERSION.c.forgotten, CHANGES.c.what, CHANGES.c.whose)
        wanted = select(*columns).select_from(joined).limit(MAX_CHANGES_READ + 1)
        async with self._database.reading() as connection:
            rows = (await connection.execute(wanted)).all()
        latest, forgotten = rows[0][0], rows[0][1]
        # A version ahead of the store comes from a database that was restored from a backup since.
        if version < forgotten or version > latest or len(rows) > MAX_CHANGES_READ:
            return ChangeBatch(latest, None)
        told = (
            RecordChange(RecordKind(what), whose) for _, _, what, whose in rows if what is not None
        )
        return ChangeBatch(latest, tuple(dict.fromkeys(told)))

    async def wait_for_change(self, timeout: timedelta) -> bool:
        return await wait_for_change(self._wakeup, timeout)
