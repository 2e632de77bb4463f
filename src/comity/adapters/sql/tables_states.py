"""The tables of state that servers leave with the gateway."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
)

from comity.adapters.sql.tables import METADATA, Moment

STATES = Table(
    "comity_states",
    METADATA,
    Column("server", Text, primary_key=True),
    Column("feature", Text, primary_key=True),
    # Another after each change, and never the same again: it is what numbers checkpoints.
    Column("revision", BigInteger, nullable=False),
    Column("head", BigInteger),
    # The state at the head, whole: every call needs it.
    Column("data", LargeBinary),
    Column("moved_at", Moment, nullable=False),
)

STATE_CHECKPOINTS = Table(
    "comity_state_checkpoints",
    METADATA,
    Column("server", Text, primary_key=True),
    Column("feature", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("parent", Text),
    Column("base", BigInteger),
    Column("form", Text, nullable=False),
    Column("line", Integer, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("why", Text, nullable=False),
    Column("is_lost", Boolean, nullable=False),
    Column("content", LargeBinary),
    UniqueConstraint("server", "feature", "name", name="comity_state_checkpoints_names"),
    # What a patch is of stays as long as the patch does, whatever a program does.
    ForeignKeyConstraint(
        ["server", "feature", "base"],
        [f"comity_state_checkpoints.{name}" for name in ("server", "feature", "number")],
        name="comity_state_checkpoints_base",
    ),
    CheckConstraint("base < number", name="comity_state_checkpoints_no_circle"),
    CheckConstraint(
        "(form = 'opaque') = (content IS NULL)", name="comity_state_checkpoints_content"
    ),
    CheckConstraint("form <> 'patch' OR base IS NOT NULL", name="comity_state_checkpoints_patch"),
)
