"""Wiring of accounts: the service, the pages and the routes from the settings."""

import os
import platform
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from comity.accounts.access import AccountAccess
from comity.accounts.api import AccountsApi
from comity.accounts.identity_grants import IdentityGrants
from comity.accounts.issuers import AuthorizationServers
from comity.accounts.model import AccountKey
from comity.accounts.oauth_client import OAuthHttpClient
from comity.accounts.pages import AccountPages
from comity.accounts.service import AccountService
from comity.accounts.settings import account_policy
from comity.accounts.sign_in import (
    AccountSelector,
    ConnectionAccount,
    SessionAccounts,
    SignInGate,
)
from comity.accounts.tokens import AccountTokenSource
from comity.app.records import GatewaySnapshot
from comity.app.settings import ServerSettings, Settings
from comity.approvals.pending_calls import PendingCalls
from comity.approvals.service import ApprovalService
from comity.audit.log import AuditLog
from comity.http.api import ApiRoutes
from comity.http.asgi import HttpEndpoint
from comity.http.client.dial import Resolver
from comity.http.client.pool import HttpConnectionPool
from comity.identity.authentication import Authenticator
from comity.identity.login.wiring import LoginComponents
from comity.mcp.actors import PrincipalKind
from comity.mcp.mgp import ServerLifecycleState
from comity.servers.service import ServerService
from comity.servers.supervisor import ServerOptions, UpstreamServer
from comity.storage.changes import RecordKind
from comity.toolkit.background import BackgroundTasks


@dataclass(slots=True)
class AccountComponents:
    """The accounts of a gateway."""

    service: AccountService
    selector: AccountSelector
    access: AccountAccess
    oauth: OAuthHttpClient
    pages: AccountPages
    session_accounts: SessionAccounts

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Read the accounts before the first server starts, or as soon as the store answers."""
        await self.service.tokens.load_soon()
        try:
            yield
        finally:
            self.session_accounts.stop()
            await self.service.tokens.close()
            await self.oauth.close()

    def make_gate(self, pending_calls: PendingCalls) -> SignInGate:
        return SignInGate(self.selector, pending_calls)

    @property
    def routes(self) -> ApiRoutes:
        return AccountsApi(self.access).routes

    @property
    def endpoints(self) -> dict[str, HttpEndpoint]:
        return self.pages.endpoints

    # Servers, as they come and go.

    def options_for(self, server: ServerSettings, options: ServerOptions) -> ServerOptions:
        """Note the settings of a server, and return its options with the accounts included."""
        if server.transport != "http":
            return options
        self.service.set_policy(account_policy(server.id, server.url, server.account, server.oauth))
        if server.account == "none":
            return options
        account_for = partial(ConnectionAccount, self.selector, server.id)
        return replace(options, connections=replace(options.connections, account_for=account_for))

    def follow(self, servers: ServerService) -> None:
        """Let the connections of servers follow their accounts."""
        background_tasks = BackgroundTasks("servers with a new account")

        def on_mode_changed(name: str) -> None:
            server = servers.get(name)
            if server is not None:
                self.adjust(server)

        def on_connected(key: AccountKey) -> None:
            server = servers.get(key.server)
            if server is not None and server.state is not ServerLifecycleState.CONNECTED:
                # It could not be read without an account.
                background_tasks.start(servers.restart(key.server))

        self.service.mode_listeners.append(on_mode_changed)
        self.service.connection_listeners.append(on_connected)

    def adjust(self, server: UpstreamServer) -> None:
        has_own = self.service.mode_of(server.name) == "each"
        server.connections.set_own_accounts(has_own)


def build_accounts(
    settings: Settings,
    snapshot: GatewaySnapshot,
    authenticator: Authenticator,
    login: LoginComponents,
    audit_log: AuditLog,
    pool: HttpConnectionPool,
    approvals: ApprovalService,
) -> AccountComponents:
    """Build the accounts of a gateway."""
    node = settings.cluster.node or f"{platform.node()}-{os.getpid()}"
    store, sessions = snapshot.records.accounts, authenticator.sessions
    assert sessions is not None
    oauth = OAuthHttpClient(pool, Resolver(time.monotonic).resolve)
    servers = AuthorizationServers(oauth, store, login.sealer)
    identity_grants = IdentityGrants(servers, login.id_tokens)
    tokens = AccountTokenSource(store, login.sealer, servers, node, identity_grants=identity_grants)
    service = AccountService(
        tokens,
        servers,
        sessions,
        authenticator.pepper,
        identity_grants=identity_grants,
        audit=audit_log,
    )
    snapshot.watch(RecordKind.ACCOUNTS, tokens.note_change)
    grants = snapshot.grants
    service.mode_listeners.append(grants.generation.advance)

    def people() -> list[str]:
        return [each.id for each in snapshot.parties.values() if each.kind is PrincipalKind.PERSON]

    selector = AccountSelector(service, grants, people, grants.generation)
    access = AccountAccess(service, grants)
    pages = AccountPages(access, approvals, authenticator, settings.identity.public_url)
    connector = SessionAccounts(access, authenticator.find_actor)
    sessions.open_listeners.append(connector.on_session_opened)
    return AccountComponents(service, selector, access, oauth, pages, connector)
