"""The tables of conversations and their turns, the same in SQLite and PostgreSQL."""

from sqlalchemy import Column, Index, Integer, Table, Text, UniqueConstraint

from comity.adapters.sql.tables import METADATA, NUMBER, Moment

CONVERSATIONS = Table(
    "comity_conversations",
    METADATA,
    Column("id", Text, primary_key=True),
    # How many turns it has: the place of the next one.
    Column("turns", Integer, nullable=False),
)

TURNS = Table(
    "comity_turns",
    METADATA,
    Column("number", NUMBER, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    # A digest of what brought it about, since an index cannot hold any text.
    Column("cause_id", Text, nullable=False, unique=True),
    Column("cause", Text, nullable=False),
    Column("conversation", Text, nullable=False),
    Column("place", Integer, nullable=False),
    Column("errand", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("steps", Text, nullable=False),
    Column("said", Text, nullable=False),
    Column("thinking", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Column("ended_at", Moment),
    # When it is to be taken, as long as it is open; and who has it just now.
    Column("due_at", Moment),
    Column("claimed_by", Text, nullable=False),
    Column("claimed_until", Moment),
    UniqueConstraint("conversation", "place", name="comity_turns_in_order"),
    Index("comity_turns_due", "due_at"),
    Index("comity_turns_ended", "ended_at"),
)
