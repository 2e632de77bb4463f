"""Grants with a condition on arguments."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("comity_grants", sa.Column("where", sa.Text))


def downgrade() -> None:
    # Without its condition a grant would allow everything.
    grants = sa.table("comity_grants", sa.column("where"))
    op.execute(sa.delete(grants).where(grants.c.where.is_not(None)))
    op.drop_column("comity_grants", "where")
