"""The state that servers leave with the gateway: trees of checkpoints, each with its head."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)
_PLACE = ("server", "feature")


def upgrade() -> None:
    op.create_table(
        "comity_states",
        *(sa.Column(name, sa.Text, primary_key=True) for name in _PLACE),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("head", sa.BigInteger),
        sa.Column("data", sa.LargeBinary),
        sa.Column("moved_at", _MOMENT, nullable=False),
    )
    op.create_table(
        "comity_state_checkpoints",
        *(sa.Column(name, sa.Text, primary_key=True) for name in _PLACE),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("parent", sa.Text),
        sa.Column("base", sa.BigInteger),
        sa.Column("form", sa.Text, nullable=False),
        sa.Column("line", sa.Integer, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("is_lost", sa.Boolean, nullable=False),
        sa.Column("content", sa.LargeBinary),
        sa.UniqueConstraint(*_PLACE, "name", name="comity_state_checkpoints_names"),
        sa.ForeignKeyConstraint(
            [*_PLACE, "base"],
            [f"comity_state_checkpoints.{name}" for name in (*_PLACE, "number")],
            name="comity_state_checkpoints_base",
        ),
        sa.CheckConstraint("base < number", name="comity_state_checkpoints_no_circle"),
        sa.CheckConstraint(
            "(form = 'opaque') = (content IS NULL)", name="comity_state_checkpoints_content"
        ),
        sa.CheckConstraint(
            "form <> 'patch' OR base IS NOT NULL", name="comity_state_checkpoints_patch"
        ),
    )


def downgrade() -> None:
    for table in ("comity_state_checkpoints", "comity_states"):
        op.drop_table(table)
