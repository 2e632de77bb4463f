"""The first schema.

No program alters an audit entry, and none removes one before a segment is on record for it: the
database itself refuses.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True)
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")

_SEALED = (
    "EXISTS (SELECT 1 FROM comity_audit_segments AS sealed WHERE sealed.node = OLD.node "
    "AND OLD.seq BETWEEN sealed.first AND sealed.last)"
)
_REFUSED = "the audit log is append-only"

_SQLITE_TRIGGERS = (
    (
        "CREATE TRIGGER comity_audit_entries_unaltered BEFORE UPDATE ON comity_audit_entries "
        f"BEGIN SELECT RAISE(ABORT, '{_REFUSED}'); END"
    ),
    (
        "CREATE TRIGGER comity_audit_entries_whole BEFORE DELETE ON comity_audit_entries "
        f"WHEN NOT {_SEALED} BEGIN SELECT RAISE(ABORT, '{_REFUSED}'); END"
    ),
)
_POSTGRES_TRIGGERS = (
    (
        "CREATE FUNCTION comity_audit_entries_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ "
        f"BEGIN IF TG_OP = 'DELETE' THEN IF {_SEALED} THEN RETURN OLD; END IF; END IF; "
        f"RAISE EXCEPTION '{_REFUSED}'; END $$"
    ),
    (
        "CREATE TRIGGER comity_audit_entries_unaltered BEFORE UPDATE OR DELETE "
        "ON comity_audit_entries FOR EACH ROW EXECUTE FUNCTION comity_audit_entries_refuse()"
    ),
    (
        "CREATE TRIGGER comity_audit_entries_whole BEFORE TRUNCATE ON comity_audit_entries "
        "FOR EACH STATEMENT EXECUTE FUNCTION comity_audit_entries_refuse()"
    ),
)


def upgrade() -> None:
    _create_change_feed()
    _create_grants()
    _create_identities()
    _create_provisioned()
    _create_servers()
    _create_approvals()
    _create_push_subscriptions()
    _create_audit_log()
    _create_webhooks()
    _create_states()
    _create_jobs()
    _create_turns()
    _create_budgets()
    _create_limit_counts()


def _create_change_feed() -> None:
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


def _create_grants() -> None:
    op.create_table(
        "comity_grants",
        sa.Column("id", sa.Text, primary_key=True),
        *map(_text, ("subject", "verb", "target", "effect", "granted_by", "justification")),
        sa.Column("granted_at", _MOMENT),
        sa.Column("expires_at", _MOMENT),
        sa.Column("where", sa.Text),
        _text("reach"),
    )
    op.create_index("comity_grants_by_subject", "comity_grants", ["subject", "id"])


def _create_identities() -> None:
    op.create_table(
        "comity_principals",
        sa.Column("id", sa.Text, primary_key=True),
        *map(_text, ("kind", "label")),
        sa.Column("disabled", sa.Boolean, nullable=False),
        _text("created_by"),
        sa.Column("created_at", _MOMENT),
        _text("groups"),
    )
    op.create_table(
        "comity_api_keys",
        sa.Column("id", sa.Text, primary_key=True),
        _text("party"),
        sa.Column("mac", sa.LargeBinary, nullable=False),
        *map(_text, ("label", "permissions")),
        sa.Column("requests_per_minute", sa.BigInteger),
        sa.Column("requests_per_hour", sa.BigInteger),
        _text("created_by"),
        sa.Column("created_at", _MOMENT),
        sa.Column("not_before", _MOMENT),
        sa.Column("expires_at", _MOMENT),
        sa.Column("revoked_at", _MOMENT),
        sa.Column("last_used", _MOMENT),
    )
    op.create_index("comity_api_keys_by_party", "comity_api_keys", ["party"])
    op.create_table(
        "comity_browser_sessions",
        sa.Column("id", sa.Text, primary_key=True),
        *map(_text, ("party", "method")),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("previous", sa.LargeBinary, nullable=False),
        sa.Column("rotated_at", _MOMENT, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("last_seen", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        *map(_text, ("key", "issuer", "subject", "sid")),
        sa.Column("hint", sa.LargeBinary, nullable=False),
    )
    sessions = "comity_browser_sessions"
    op.create_index("comity_browser_sessions_by_party", sessions, ["party"])
    op.create_index("comity_browser_sessions_by_issuer", sessions, ["issuer", "subject"])
    op.create_index("comity_browser_sessions_ending", sessions, ["expires_at"])
    op.create_table(
        "comity_accounts",
        sa.Column("id", sa.Text, primary_key=True),
        *map(_text, ("server", "owner", "resource", "issuer", "client_id")),
        *map(_text, ("scopes", "missing_scopes", "state")),
        sa.Column("connected_at", _MOMENT, nullable=False),
        _text("connected_by"),
        sa.Column("expires_at", _MOMENT),
        sa.Column("is_refreshable", sa.Boolean, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        _text("refresh_by"),
        sa.Column("refresh_until", _MOMENT),
    )
    op.create_index("comity_accounts_by_server", "comity_accounts", ["server"])
    op.create_table(
        "comity_account_clients",
        sa.Column("id", sa.Text, primary_key=True),
        *map(_text, ("issuer", "redirect_uri")),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "comity_used_tokens",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("expires_at", _MOMENT, nullable=False),
    )
    op.create_index("comity_used_tokens_ending", "comity_used_tokens", ["expires_at"])


def _create_provisioned() -> None:
    op.create_table(
        "comity_scim_users",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("principal", sa.Text, nullable=False, unique=True),
        _text("user_name"),
        sa.Column("name_key", sa.Text, nullable=False, unique=True),
        _text("external_id"),
        sa.Column("active", sa.Boolean, nullable=False),
        _text("attributes"),
        *(sa.Column(name, _MOMENT) for name in ("created_at", "changed_at")),
    )
    op.create_index("comity_scim_users_by_external_id", "comity_scim_users", ["external_id"])
    op.create_table(
        "comity_scim_groups",
        sa.Column("id", sa.Text, primary_key=True),
        _text("name"),
        sa.Column("name_key", sa.Text, nullable=False, unique=True),
        _text("external_id"),
        *(sa.Column(name, _MOMENT) for name in ("created_at", "changed_at")),
    )
    op.create_table(
        "comity_scim_members",
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("group_id", "user_id")),
    )
    op.create_index("comity_scim_members_by_user", "comity_scim_members", ["user_id"])


def _create_servers() -> None:
    op.create_table(
        "comity_tool_definitions",
        sa.Column("server", sa.Text, primary_key=True),
        sa.Column("tool", sa.Text, primary_key=True),
        _text("digest"),
        sa.Column("definition", sa.LargeBinary, nullable=False),
        _text("accepted_by"),
        sa.Column("accepted_at", _MOMENT),
    )
    op.create_table(
        "comity_registrations",
        sa.Column("server", sa.Text, primary_key=True),
        *map(_text, ("entry", "created_by")),
        sa.Column("created_at", _MOMENT),
        _text("justification"),
    )


def _create_approvals() -> None:
    op.create_table(
        "comity_approvals",
        sa.Column("id", sa.Text, primary_key=True),
        *map(_text, ("kind", "asker", "server", "tool", "digest", "message", "about")),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        _text("state"),
        sa.Column("quorum", sa.Integer, nullable=False),
        sa.Column("own", sa.Boolean, nullable=False),
        *map(_text, ("trace", "options")),
        sa.Column("schema", sa.Text),
        _text("call"),
        sa.Column("ended_at", _MOMENT),
        sa.CheckConstraint("quorum > 0", name="comity_approvals_quorum"),
        sa.CheckConstraint("(state = 'consumed') = (call <> '')", name="comity_approvals_consumed"),
        sa.UniqueConstraint("id", "asker", "own", name="comity_approvals_askers"),
    )
    live = sa.text("state IN ('pending', 'deferred', 'approved')")
    op.create_index("comity_approvals_by_state", "comity_approvals", ["state", "id"])
    op.create_index(
        "comity_approvals_by_asker", "comity_approvals", ["asker", "server", "tool", "id"]
    )
    op.create_index("comity_approvals_by_digest", "comity_approvals", ["digest", "id"])
    _create_partial_index("comity_approvals", "one_live", ["digest"], live, unique=True)
    _create_partial_index("comity_approvals", "due", ["expires_at"], live)
    op.create_table(
        "comity_approval_answers",
        sa.Column("ask", sa.Text, primary_key=True),
        sa.Column("said_by", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
        _text("asker"),
        sa.Column("own", sa.Boolean, nullable=False),
        _text("verdict"),
        sa.Column("said_at", _MOMENT, nullable=False),
        *map(_text, ("reason", "content")),
        sa.ForeignKeyConstraint(
            ["ask", "asker", "own"],
            ["comity_approvals.id", "comity_approvals.asker", "comity_approvals.own"],
            name="comity_approval_answers_ask",
        ),
        sa.CheckConstraint("own OR said_by <> asker", name="comity_approval_answers_not_its_own"),
    )


def _create_audit_log() -> None:
    op.create_table(
        "comity_audit_entries",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", _MOMENT, nullable=False),
        *map(_text, ("trace", "call", "type", "actor", "server", "tool", "result")),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("comity_audit_entries_by_time", "comity_audit_entries", ["at"])
    op.create_index("comity_audit_entries_by_actor", "comity_audit_entries", ["actor", "at"])
    for name, where in (
        ("server", "server <> ''"),
        ("type", "type NOT IN ('TOOL_EXECUTED', 'dev.comity.call_intended')"),
        ("result", "result <> 'SUCCESS'"),
    ):
        _create_partial_index("comity_audit_entries", f"by_{name}", [name, "at"], sa.text(where))
    op.create_index("comity_audit_entries_by_trace", "comity_audit_entries", ["trace"])
    _create_partial_index("comity_audit_entries", "by_call", ["call"], sa.text("call <> ''"))
    op.create_table(
        "comity_audit_checkpoints",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        _text("key"),
        sa.Column("signature", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "comity_audit_segments",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.Column("before", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("sealed_at", _MOMENT, nullable=False),
    )
    is_sqlite = op.get_context().dialect.name == "sqlite"
    for statement in _SQLITE_TRIGGERS if is_sqlite else _POSTGRES_TRIGGERS:
        op.execute(statement)


def _create_push_subscriptions() -> None:
    op.create_table(
        "comity_push_subscriptions",
        sa.Column("party", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        _text("endpoint"),
        sa.Column("p256dh", sa.LargeBinary, nullable=False),
        sa.Column("auth", sa.LargeBinary, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
    )


def _create_webhooks() -> None:
    op.create_table(
        "comity_webhooks",
        sa.Column("id", sa.Text, primary_key=True),
        *map(_text, ("party", "credential", "url", "name", "least")),
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
        sa.Column("rest_until", _MOMENT),
    )
    op.create_index("comity_webhooks_by_party", "comity_webhooks", ["party", "id"])
    op.create_index("comity_webhooks_ending", "comity_webhooks", ["expires_at"])
    _create_webhook_deliveries()
    op.create_table(
        "comity_event_marks",
        sa.Column("chain", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
    )


def _create_webhook_deliveries() -> None:
    table = "comity_webhook_deliveries"
    op.create_table(
        table,
        sa.Column("number", _NUMBER, primary_key=True),
        sa.Column(
            "webhook",
            sa.Text,
            sa.ForeignKey("comity_webhooks.id", ondelete="CASCADE"),
            nullable=False,
        ),
        _text("event"),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("due_at", _MOMENT, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        *map(_text, ("state", "last_error")),
        sa.Column("done_at", _MOMENT),
        sa.UniqueConstraint("webhook", "event", name=f"{table}_once"),
    )
    op.create_index(f"{table}_due", table, ["webhook", "state", "due_at"])
    op.create_index(f"{table}_done", table, ["done_at"])


def _create_states() -> None:
    place = ("server", "feature")
    op.create_table(
        "comity_states",
        *(sa.Column(name, sa.Text, primary_key=True) for name in place),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("head", sa.BigInteger),
        sa.Column("data", sa.LargeBinary),
        sa.Column("moved_at", _MOMENT, nullable=False),
    )
    table = "comity_state_checkpoints"
    op.create_table(
        table,
        *(sa.Column(name, sa.Text, primary_key=True) for name in place),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        _text("name"),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("parent", sa.Text),
        sa.Column("base", sa.BigInteger),
        _text("form"),
        sa.Column("line", sa.Integer, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        _text("why"),
        sa.Column("is_lost", sa.Boolean, nullable=False),
        sa.Column("content", sa.LargeBinary),
        sa.UniqueConstraint(*place, "name", name=f"{table}_names"),
        sa.ForeignKeyConstraint(
            [*place, "base"],
            [f"{table}.{name}" for name in (*place, "number")],
            name=f"{table}_base",
        ),
        sa.CheckConstraint("base < number", name=f"{table}_no_circle"),
        sa.CheckConstraint("(form = 'opaque') = (content IS NULL)", name=f"{table}_content"),
        sa.CheckConstraint("form <> 'patch' OR base IS NOT NULL", name=f"{table}_patch"),
    )


def _create_jobs() -> None:
    table, waiting = "comity_jobs", sa.text("state = 'waiting'")
    op.create_table(
        table,
        sa.Column("number", _NUMBER, primary_key=True),
        *map(_text, ("kind", "key", "group_key")),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        _text("state"),
        sa.Column("due_at", _MOMENT, nullable=False),
        _text("claimed_by"),
        sa.Column("claimed_until", _MOMENT),
        sa.Column("attempts", sa.Integer, nullable=False),
        *map(_text, ("last_error", "result")),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("ended_at", _MOMENT),
        sa.UniqueConstraint("kind", "key", name="comity_jobs_once"),
    )
    op.create_index("comity_jobs_by_kind", table, ["kind", "number"])
    _create_partial_index(table, "due", ["kind", "due_at"], waiting)
    _create_partial_index(table, "waiting", ["kind", "group_key", "number"], waiting)
    op.create_index("comity_jobs_ended", table, ["kind", "ended_at"])


def _create_turns() -> None:
    op.create_table(
        "comity_conversations",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("turns", sa.Integer, nullable=False),
    )
    op.create_table(
        "comity_turns",
        sa.Column(
            "number",
            _NUMBER,
            sa.ForeignKey("comity_jobs.number"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        *map(_text, ("cause", "conversation")),
        sa.Column("place", sa.Integer, nullable=False),
        *map(_text, ("errand", "content")),
        sa.Column("at", _MOMENT, nullable=False),
        *map(_text, ("state", "steps", "said", "thinking", "facts", "hook_texts")),
        sa.Column("ended_at", _MOMENT),
        sa.UniqueConstraint("conversation", "place", name="comity_turns_in_order"),
    )
    op.create_index("comity_turns_ended", "comity_turns", ["ended_at"])


def _create_budgets() -> None:
    op.create_table(
        "comity_budget_accounts",
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("account", sa.Text, primary_key=True),
        *(
            _count(f"{name}_{of}")
            for name in ("spent", "held", "raised")
            for of in ("tokens", "money")
        ),
    )
    op.create_table(
        "comity_spending",
        sa.Column("day", sa.Date, primary_key=True),
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("party", "feature", "model")),
        *map(_count, ("input_tokens", "output_tokens", "money", "requests")),
    )


def _create_limit_counts() -> None:
    op.create_table(
        "comity_limit_counts",
        sa.Column("key", sa.Text, primary_key=True),
        _count("used"),
        sa.Column("ends_at", sa.Double, nullable=False),
        _count("granted"),
    )
    op.create_index("comity_limit_counts_ending", "comity_limit_counts", ["ends_at"])


def _create_partial_index(
    table: str, name: str, columns: list[str], where: sa.TextClause, *, unique: bool = False
) -> None:
    op.create_index(
        f"{table}_{name}",
        table,
        columns,
        unique=unique,
        sqlite_where=where,
        postgresql_where=where,
    )


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)
