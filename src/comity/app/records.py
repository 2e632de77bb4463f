"""The record stores of a gateway, in the database of a URL.

Rule 1: every change of a record that nodes cache increases `version`, in the order of the
changes. A reader that knows a version can request the later changes.
Rule 2: a store refuses an unusable write before it tries it. It raises MalformedMessage for
values that it cannot encode, and Misconfigured for values that are not allowed.
Rule 3: a store that does not answer raises Unavailable.
"""

import asyncio
from typing import Final

from comity.accounts.model import account_context, client_context
from comity.accounts.store import SqlAccounts
from comity.approvals.notifiers.store import CLICK_KEYS, SqlPushSubscriptions
from comity.approvals.store import NOTICE_JOBS, SqlAsks
from comity.audit.chain import ChainWriter
from comity.audit.chain_writer import SqliteChain
from comity.audit.store import SqlAuditLog
from comity.catalog.store import SqlDefinitionStore, SqlRegistrationStore
from comity.events.webhooks.store import WEBHOOK_JOBS, SqlWebhooks
from comity.identity.login.model import hint_context
from comity.identity.login.store import SqlBrowserSessions
from comity.identity.scim.store import SqlScimStore
from comity.identity.store import SqlKeyStore, SqlPrincipalStore
from comity.inference.store import SqlBudgets
from comity.live.channels.model import MESSAGE_KEYS
from comity.live.pushes.store import PUSH_JOBS, SqlPushes
from comity.live.state.store import SqlStates
from comity.live.turns.store import TURN_JOBS, SqlConversations
from comity.policy.snapshot import PolicySnapshot
from comity.policy.store import SqlGrantStore, SqlLimitCounts
from comity.secrets.model import SealedStore
from comity.secrets.store import SqlSealedColumn
from comity.storage import sqlite
from comity.storage.changes import RecordKind
from comity.storage.database import (
    ACCOUNT_CLIENTS,
    ACCOUNTS,
    BROWSER_SESSIONS,
    DatabaseBackend,
    SqlChangeLog,
    SqlDatabase,
)
from comity.storage.schema import refuse_another_schema
from comity.storage.stores import file_of, needed_extra
from comity.storage.work_queue import SqlWorkQueue

TEMPORARY_AUDIT_ENTRIES: Final = 200
"""The minimum number of audit entries that a gateway without a store keeps."""


class RecordStores:
    """All record stores of one database."""

    def __init__(
        self, backend: DatabaseBackend, chain: ChainWriter, on_change: asyncio.Event
    ) -> None:
        database = self._database = SqlDatabase(backend, on_change.set)
        self._backend = backend
        self.changes = SqlChangeLog(database, on_change)
        self.grants = SqlGrantStore(database)
        self.limit_counts = SqlLimitCounts(database, backend)
        self.parties = SqlPrincipalStore(database)
        self.keys = SqlKeyStore(database)
        self.sessions = SqlBrowserSessions(database)
        self.accounts = SqlAccounts(database)
        self.scim = SqlScimStore(database)
        self.accepted_tools = SqlDefinitionStore(database)
        self.registrations = SqlRegistrationStore(database)
        notices = SqlWorkQueue(database, backend, NOTICE_JOBS)
        self.approval_requests = SqlAsks(database, notices)
        self.push_subscriptions = SqlPushSubscriptions(database)
        self.notice_clicks = SqlWorkQueue(database, backend, CLICK_KEYS)
        self.pushes = SqlPushes(SqlWorkQueue(database, backend, PUSH_JOBS))
        turns = SqlWorkQueue(database, backend, TURN_JOBS, is_serial=True)
        self.topic_messages = SqlConversations(database, backend, turns)
        posts = SqlWorkQueue(database, backend, WEBHOOK_JOBS)
        self.webhooks = SqlWebhooks(database, backend, posts)
        self.budgets = SqlBudgets(database, backend)
        self.states = SqlStates(database, backend)
        self.incoming = SqlWorkQueue(database, backend, MESSAGE_KEYS)
        self.audit_log = SqlAuditLog(database, chain)

    @property
    def sealed_stores(self) -> tuple[SealedStore, ...]:
        """The stores that hold sealed values."""
        return (
            self.webhooks,
            SqlSealedColumn(
                self._database,
                "sessions",
                BROWSER_SESSIONS.c.hint,
                ("party", "issuer", "subject"),
                hint_context,
                kind=RecordKind.SESSIONS,
            ),
            # The tokens stay the same, so other nodes need not read the accounts again.
            SqlSealedColumn(
                self._database,
                "accounts",
                ACCOUNTS.c.sealed,
                ("server", "owner", "resource", "issuer"),
                account_context,
            ),
            SqlSealedColumn(
                self._database,
                "account clients",
                ACCOUNT_CLIENTS.c.sealed,
                ("issuer", "redirect_uri"),
                client_context,
            ),
        )

    async def open(self) -> None:
        """Check that the store is usable. Raises Unavailable, or Misconfigured with a remedy."""
        await self._backend.open()
        await refuse_another_schema(self._backend.engine)

    async def close(self) -> None:
        await self.audit_log.close()
        await self._database.close()


type GatewaySnapshot = PolicySnapshot[RecordStores]


def open_store(url: str) -> RecordStores:
    """Return the store at this URL, or a temporary file without one. Opens no connection yet.

    Raises Misconfigured if the required extra is not installed.
    """
    stir = asyncio.Event()
    if not url:
        temporary = sqlite.TemporarySqliteBackend()
        chain = SqliteChain(
            temporary.path,
            sqlite.BUSY_SECONDS,
            is_durable=False,
            remembered=TEMPORARY_AUDIT_ENTRIES,
        )
        return RecordStores(temporary, chain, stir)
    if file_of(url) is not None:
        file = sqlite.product(url)
        return RecordStores(file, SqliteChain(file.path, sqlite.BUSY_SECONDS), stir)
    with needed_extra():
        # Imported here because asyncpg is an extra.
        from comity.audit.postgres_chain_writer import PostgresChain

        # Imported here because asyncpg is an extra.
        from comity.storage import postgres

    server = postgres.PostgresBackend(url, stir.set, postgres.PATIENCE_SECONDS)
    return RecordStores(server, PostgresChain(server.connect), stir)
