"""What came in from outside channels, so that it is taken once."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "comity_channel_deeds",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("until", _MOMENT),
        sa.Column("note", sa.Text),
    )
    op.create_index("comity_channel_deeds_by_time", "comity_channel_deeds", ["at"])


def downgrade() -> None:
    op.drop_table("comity_channel_deeds")
