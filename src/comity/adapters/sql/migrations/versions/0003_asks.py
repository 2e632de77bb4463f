"""Asks, and what authorities said to them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "comity_asks",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("asker", sa.Text, nullable=False),
        sa.Column("server", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("about", sa.Text, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("quorum", sa.Integer, nullable=False),
        sa.Column("own", sa.Boolean, nullable=False),
        sa.Column("trace", sa.Text, nullable=False),
        sa.Column("options", sa.Text, nullable=False),
        sa.Column("schema", sa.Text),
        sa.Column("call", sa.Text, nullable=False),
        sa.Column("ended_at", _MOMENT),
        sa.CheckConstraint("quorum > 0", name="comity_asks_quorum"),
        sa.CheckConstraint("(state = 'used') = (call <> '')", name="comity_asks_used"),
        sa.UniqueConstraint("id", "asker", "own", name="comity_asks_askers"),
    )
    _create_indices()
    op.create_table(
        "comity_ask_answers",
        sa.Column("ask", sa.Text, primary_key=True),
        sa.Column("said_by", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("asker", sa.Text, nullable=False),
        sa.Column("own", sa.Boolean, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("said_at", _MOMENT, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(
            ["ask", "asker", "own"],
            ["comity_asks.id", "comity_asks.asker", "comity_asks.own"],
            name="comity_ask_answers_ask",
        ),
        sa.CheckConstraint("own OR said_by <> asker", name="comity_ask_answers_not_its_own"),
    )


def _create_indices() -> None:
    live = sa.text("state IN ('pending', 'deferred', 'accepted')")
    op.create_index("comity_asks_by_state", "comity_asks", ["state", "id"])
    op.create_index("comity_asks_by_digest", "comity_asks", ["digest", "id"])
    for name, column, unique in (
        ("comity_asks_one_live", "digest", True),
        ("comity_asks_due", "expires_at", False),
    ):
        op.create_index(
            name,
            "comity_asks",
            [column],
            unique=unique,
            sqlite_where=live,
            postgresql_where=live,
        )


def downgrade() -> None:
    op.drop_table("comity_ask_answers")
    op.drop_table("comity_asks")
