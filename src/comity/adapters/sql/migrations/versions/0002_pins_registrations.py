"""What was accepted of a server: its tools as they were, and servers registered at a door."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "comity_pins",
        sa.Column("server", sa.Text, primary_key=True),
        sa.Column("tool", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("definition", sa.LargeBinary, nullable=False),
        sa.Column("accepted_by", sa.Text, nullable=False),
        sa.Column("accepted_at", sa.DateTime(timezone=True)),
    )
    op.create_table(
        "comity_registrations",
        sa.Column("server", sa.Text, primary_key=True),
        sa.Column("entry", sa.Text, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True)),
        sa.Column("justification", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("comity_registrations")
    op.drop_table("comity_pins")
