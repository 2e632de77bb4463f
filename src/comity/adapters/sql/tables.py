"""The tables of the records, the same in SQLite and PostgreSQL.

How they came to be so is told in `migrations`, which a test holds to these. All names begin with
`comity_`, so that they can stand in a database beside others.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)


class Moment(TypeDecorator[datetime]):
    """A time in UTC; SQLite forgets the zone, so it is said again on the way out."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value and value.tzinfo is None else value


METADATA = MetaData()
SCHEMA_TABLE = "comity_schema"
"""Where Alembic keeps how far its steps have gone."""

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
    Column("granted_at", Moment),
    Column("expires_at", Moment),
    Column("where", Text),
    Index("comity_grants_by_subject", "subject", "id"),
)

PARTIES = Table(
    "comity_parties",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", Moment),
)

KEYS = Table(
    "comity_keys",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("party", Text, nullable=False),
    Column("mac", LargeBinary, nullable=False),
    Column("label", Text, nullable=False),
    Column("permissions", Text, nullable=False),
    Column("requests_per_minute", BigInteger),
    Column("requests_per_hour", BigInteger),
    Column("created_by", Text, nullable=False),
    Column("created_at", Moment),
    Column("not_before", Moment),
    Column("expires_at", Moment),
    Column("revoked_at", Moment),
    Column("last_used", Moment),
    Index("comity_keys_by_party", "party"),
)

PINS = Table(
    "comity_pins",
    METADATA,
    Column("server", Text, primary_key=True),
    Column("tool", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("definition", LargeBinary, nullable=False),
    Column("accepted_by", Text, nullable=False),
    Column("accepted_at", Moment),
)

REGISTRATIONS = Table(
    "comity_registrations",
    METADATA,
    Column("server", Text, primary_key=True),
    Column("entry", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", Moment),
    Column("justification", Text, nullable=False),
)

ASK_IS_LIVE = text("state IN ('pending', 'deferred', 'accepted')")
"""Said with its values in it: only so is a question seen to be one for a part of an index."""

ASKS = Table(
    "comity_asks",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("asker", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("about", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Column("state", Text, nullable=False),
    Column("quorum", Integer, nullable=False),
    Column("own", Boolean, nullable=False),
    Column("trace", Text, nullable=False),
    Column("options", Text, nullable=False),
    Column("schema", Text),
    Column("call", Text, nullable=False),
    Column("ended_at", Moment),
    CheckConstraint("quorum > 0", name="comity_asks_quorum"),
    # One that was used was so by a call, and by one only.
    CheckConstraint("(state = 'used') = (call <> '')", name="comity_asks_used"),
    UniqueConstraint("id", "asker", "own", name="comity_asks_askers"),
    Index("comity_asks_by_state", "state", "id"),
    Index("comity_asks_by_digest", "digest", "id"),
    Index(
        "comity_asks_one_live",
        "digest",
        unique=True,
        sqlite_where=ASK_IS_LIVE,
        postgresql_where=ASK_IS_LIVE,
    ),
    Index("comity_asks_due", "expires_at", sqlite_where=ASK_IS_LIVE, postgresql_where=ASK_IS_LIVE),
)

ASK_ANSWERS = Table(
    "comity_ask_answers",
    METADATA,
    Column("ask", Text, primary_key=True),
    Column("said_by", Text, primary_key=True),
    Column("number", Integer, nullable=False),
    Column("asker", Text, nullable=False),
    Column("own", Boolean, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("said_at", Moment, nullable=False),
    Column("reason", Text, nullable=False),
    Column("content", Text, nullable=False),
    # Who asks and whether it may answer is the ask's own word, and the database holds both to it:
    # nobody answers for itself, whatever a program does. (D-98)
    ForeignKeyConstraint(
        ["ask", "asker", "own"],
        ["comity_asks.id", "comity_asks.asker", "comity_asks.own"],
        name="comity_ask_answers_ask",
    ),
    CheckConstraint("own OR said_by <> asker", name="comity_ask_answers_not_its_own"),
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
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Column("sealed", Text, nullable=False),
    Column("rotated_until", Moment),
    Column("state", Text, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("failing_since", Moment),
    Column("last_error", Text, nullable=False),
    Column("delivered_at", Moment),
    Column("waiting", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("dropped", Integer, nullable=False),
    # When the next post is due, until when the place is left alone, and who posts just now.
    Column("due_at", Moment),
    Column("rest_until", Moment),
    Column("claimed_by", Text, nullable=False),
    Column("claimed_until", Moment),
    Index("comity_webhooks_by_party", "party", "id"),
    Index("comity_webhooks_due", "due_at"),
    Index("comity_webhooks_ending", "expires_at"),
)

NUMBER = BigInteger().with_variant(Integer, "sqlite")
"""What counts itself; in SQLite only this kind does."""

POSTS = Table(
    "comity_posts",
    METADATA,
    Column("number", NUMBER, primary_key=True),
    Column("webhook", Text, ForeignKey("comity_webhooks.id", ondelete="CASCADE"), nullable=False),
    Column("event", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("at", Moment, nullable=False),
    Column("due_at", Moment, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("last_error", Text, nullable=False),
    Column("done_at", Moment),
    UniqueConstraint("webhook", "event", name="comity_posts_once"),
    Index("comity_posts_due", "webhook", "state", "due_at"),
    Index("comity_posts_done", "done_at"),
)

EVENT_MARKS = Table(
    "comity_event_marks",
    METADATA,
    Column("chain", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
)

OF_A_CALL = text("call <> ''")

JOURNAL = Table(
    "comity_journal",
    METADATA,
    Column("node", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Moment, nullable=False),
    Column("trace", Text, nullable=False),
    Column("call", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Index("comity_journal_by_time", "at"),
    Index("comity_journal_by_trace", "trace"),
    Index("comity_journal_by_call", "call", sqlite_where=OF_A_CALL, postgresql_where=OF_A_CALL),
    # Entries stand in their chain's order, so a batch is written to one place and not to two.
    sqlite_with_rowid=False,
)

CHECKPOINTS = Table(
    "comity_checkpoints",
    METADATA,
    Column("node", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, nullable=False),
    Column("at", Moment, nullable=False),
    Column("key", Text, nullable=False),
    Column("signature", LargeBinary, nullable=False),
)

SEGMENTS = Table(
    "comity_segments",
    METADATA,
    Column("node", Text, primary_key=True),
    Column("first", BigInteger, primary_key=True, autoincrement=False),
    Column("last", BigInteger, nullable=False),
    Column("before", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("sealed_at", Moment, nullable=False),
)
