"""What was pushed, so that it has its effect once."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)
_WAITING = sa.text("state = 'waiting'")


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "comity_pushes",
        sa.Column("number", number, primary_key=True),
        *(_text(name) for name in ("server", "event", "feature")),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        _text("route"),
        sa.Column("received_at", _MOMENT, nullable=False),
        sa.Column("due_at", _MOMENT, nullable=False),
        _text("state"),
        sa.Column("attempts", sa.Integer, nullable=False),
        _text("inference"),
        _text("last_error"),
        sa.Column("done_at", _MOMENT),
        _text("claimed_by"),
        sa.Column("claimed_until", _MOMENT),
        sa.UniqueConstraint("server", "event", name="comity_pushes_once"),
    )
    for name, column in (("due", "due_at"), ("waiting", "server")):
        op.create_index(
            f"comity_pushes_{name}",
            "comity_pushes",
            [column],
            sqlite_where=_WAITING,
            postgresql_where=_WAITING,
        )
    op.create_index("comity_pushes_done", "comity_pushes", ["done_at"])


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def downgrade() -> None:
    op.drop_table("comity_pushes")
