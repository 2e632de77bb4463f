"""The journal, which is only ever added to: entries, checkpoints, and what was sealed and is gone.

Whatever a program does, no entry is altered, and none goes before a segment is on record for it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)
_SEALED = (
    "EXISTS (SELECT 1 FROM comity_segments AS sealed WHERE sealed.node = OLD.node "
    "AND OLD.seq BETWEEN sealed.first AND sealed.last)"
)
_REFUSED = "the journal is only ever added to"

_IN_SQLITE = (
    (
        "CREATE TRIGGER comity_journal_unaltered BEFORE UPDATE ON comity_journal "
        f"BEGIN SELECT RAISE(ABORT, '{_REFUSED}'); END"
    ),
    (
        "CREATE TRIGGER comity_journal_whole BEFORE DELETE ON comity_journal "
        f"WHEN NOT {_SEALED} BEGIN SELECT RAISE(ABORT, '{_REFUSED}'); END"
    ),
)
_IN_POSTGRES = (
    (
        "CREATE FUNCTION comity_journal_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF TG_OP = 'DELETE' THEN IF {_SEALED} THEN RETURN OLD; END IF; END IF; "
        f"RAISE EXCEPTION '{_REFUSED}'; END $$"
    ),
    (
        "CREATE TRIGGER comity_journal_unaltered BEFORE UPDATE OR DELETE ON comity_journal "
        "FOR EACH ROW EXECUTE FUNCTION comity_journal_refuse()"
    ),
    (
        "CREATE TRIGGER comity_journal_whole BEFORE TRUNCATE ON comity_journal "
        "FOR EACH STATEMENT EXECUTE FUNCTION comity_journal_refuse()"
    ),
)


def upgrade() -> None:
    op.create_table(
        "comity_journal",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("trace", sa.Text, nullable=False),
        sa.Column("call", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("server", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("result", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    of_a_call = sa.text("call <> ''")
    op.create_index("comity_journal_by_time", "comity_journal", ["at"])
    op.create_index("comity_journal_by_trace", "comity_journal", ["trace"])
    op.create_index(
        "comity_journal_by_call",
        "comity_journal",
        ["call"],
        sqlite_where=of_a_call,
        postgresql_where=of_a_call,
    )
    _create_what_speaks_of_entries()
    is_sqlite = op.get_context().dialect.name == "sqlite"
    for statement in _IN_SQLITE if is_sqlite else _IN_POSTGRES:
        op.execute(statement)


def _create_what_speaks_of_entries() -> None:
    op.create_table(
        "comity_checkpoints",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("signature", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "comity_segments",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.Column("before", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("sealed_at", _MOMENT, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("comity_journal")
    op.drop_table("comity_segments")
    op.drop_table("comity_checkpoints")
    if op.get_context().dialect.name != "sqlite":
        op.execute("DROP FUNCTION comity_journal_refuse()")
