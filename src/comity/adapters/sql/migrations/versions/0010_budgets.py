"""What was spent on models, by whom and on what day."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "comity_budget_accounts",
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("account", sa.Text, primary_key=True),
        *(_count(f"{name}_tokens") for name in ("spent", "held", "raised")),
        *(_count(f"{name}_money") for name in ("spent", "held", "raised")),
    )
    op.create_table(
        "comity_spending",
        sa.Column("day", sa.Date, primary_key=True),
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("party", "feature", "model")),
        *(_count(name) for name in ("input_tokens", "output_tokens", "money", "requests")),
    )


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def downgrade() -> None:
    for table in ("comity_spending", "comity_budget_accounts"):
        op.drop_table(table)
