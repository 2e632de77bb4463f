"""Webhooks, what waits to be posted to them, and how far each journal was looked through."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "comity_webhooks",
        sa.Column("id", sa.Text, primary_key=True),
        *(_text(name) for name in ("party", "credential", "url", "name", "least")),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT),
        _text("sealed"),
        sa.Column("rotated_until", _MOMENT),
        _text("state"),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("failing_since", _MOMENT),
        _text("last_error"),
        sa.Column("delivered_at", _MOMENT),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("waiting", "failed", "dropped")),
        sa.Column("due_at", _MOMENT),
        sa.Column("rest_until", _MOMENT),
        _text("claimed_by"),
        sa.Column("claimed_until", _MOMENT),
    )
    op.create_index("comity_webhooks_by_party", "comity_webhooks", ["party", "id"])
    op.create_index("comity_webhooks_due", "comity_webhooks", ["due_at"])
    op.create_index("comity_webhooks_ending", "comity_webhooks", ["expires_at"])
    _create_posts()
    op.create_table(
        "comity_event_marks",
        sa.Column("chain", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
    )


def _create_posts() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    owner = sa.ForeignKey("comity_webhooks.id", ondelete="CASCADE")
    op.create_table(
        "comity_posts",
        sa.Column("number", number, primary_key=True),
        sa.Column("webhook", sa.Text, owner, nullable=False),
        _text("event"),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("due_at", _MOMENT, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        _text("state"),
        _text("last_error"),
        sa.Column("done_at", _MOMENT),
        sa.UniqueConstraint("webhook", "event", name="comity_posts_once"),
    )
    op.create_index("comity_posts_due", "comity_posts", ["webhook", "state", "due_at"])
    op.create_index("comity_posts_done", "comity_posts", ["done_at"])


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def downgrade() -> None:
    for table in ("comity_event_marks", "comity_posts", "comity_webhooks"):
        op.drop_table(table)
