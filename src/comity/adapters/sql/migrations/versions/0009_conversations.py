"""Conversations with models, turn by turn."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "comity_conversations",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("turns", sa.Integer, nullable=False),
    )
    op.create_table(
        "comity_turns",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("cause_id", sa.Text, nullable=False, unique=True),
        *(_text(name) for name in ("cause", "conversation")),
        sa.Column("place", sa.Integer, nullable=False),
        *(_text(name) for name in ("errand", "content")),
        sa.Column("at", _MOMENT, nullable=False),
        _text("state"),
        sa.Column("attempts", sa.Integer, nullable=False),
        *(_text(name) for name in ("steps", "said", "thinking", "facts")),
        sa.Column("ended_at", _MOMENT),
        sa.Column("due_at", _MOMENT),
        _text("claimed_by"),
        sa.Column("claimed_until", _MOMENT),
        sa.UniqueConstraint("conversation", "place", name="comity_turns_in_order"),
    )
    op.create_index("comity_turns_due", "comity_turns", ["due_at"])
    op.create_index("comity_turns_ended", "comity_turns", ["ended_at"])


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def downgrade() -> None:
    op.drop_table("comity_turns")
    op.drop_table("comity_conversations")
