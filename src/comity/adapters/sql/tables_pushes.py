"""The table of pushes: each with its route, who does what follows, and what came of it."""

from sqlalchemy import Column, Index, Integer, LargeBinary, Table, Text, UniqueConstraint, text

from comity.adapters.sql.tables import METADATA, NUMBER, Moment

IS_WAITING = text("state = 'waiting'")
"""Said with its value in it: only so is a question seen to be one for a part of an index."""

PUSHES = Table(
    "comity_pushes",
    METADATA,
    Column("number", NUMBER, primary_key=True),
    Column("server", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("feature", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("route", Text, nullable=False),
    Column("received_at", Moment, nullable=False),
    Column("due_at", Moment, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("inference", Text, nullable=False),
    Column("last_error", Text, nullable=False),
    Column("done_at", Moment),
    Column("claimed_by", Text, nullable=False),
    Column("claimed_until", Moment),
    UniqueConstraint("server", "event", name="comity_pushes_once"),
    Index("comity_pushes_due", "due_at", sqlite_where=IS_WAITING, postgresql_where=IS_WAITING),
    Index("comity_pushes_waiting", "server", sqlite_where=IS_WAITING, postgresql_where=IS_WAITING),
    Index("comity_pushes_done", "done_at"),
)
