"""Grants, parties and keys, and the version that each change of them makes."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    version = op.create_table(
        "comity_version",
        sa.Column(
            "id", sa.Integer, sa.CheckConstraint("id = 1"), primary_key=True, autoincrement=False
        ),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("forgotten", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(version, [{"id": 1, "version": 1, "forgotten": 0}])
    op.create_table(
        "comity_changes",
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("what", sa.Text, primary_key=True),
        sa.Column("whose", sa.Text, primary_key=True),
    )
    op.create_table(
        "comity_grants",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("verb", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("effect", sa.Text, nullable=False),
        sa.Column("granted_by", sa.Text, nullable=False),
        sa.Column("justification", sa.Text, nullable=False),
        sa.Column("granted_at", _MOMENT),
        sa.Column("expires_at", _MOMENT),
    )
    op.create_index("comity_grants_by_subject", "comity_grants", ["subject", "id"])
    op.create_table(
        "comity_parties",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_at", _MOMENT),
    )
    _create_keys()


def _create_keys() -> None:
    op.create_table(
        "comity_keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("party", sa.Text, nullable=False),
        sa.Column("mac", sa.LargeBinary, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("permissions", sa.Text, nullable=False),
        sa.Column("requests_per_minute", sa.BigInteger),
        sa.Column("requests_per_hour", sa.BigInteger),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_at", _MOMENT),
        sa.Column("not_before", _MOMENT),
        sa.Column("expires_at", _MOMENT),
        sa.Column("revoked_at", _MOMENT),
        sa.Column("last_used", _MOMENT),
    )
    op.create_index("comity_keys_by_party", "comity_keys", ["party"])


def downgrade() -> None:
    for table in ("keys", "parties", "grants", "changes", "version"):
        op.drop_table(f"comity_{table}")
