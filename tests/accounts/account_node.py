"""The accounts of a node in this process: real stores, real seals, and real requests."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast
from urllib.parse import urlsplit

import httpx2

from comity.accounts.identity_grants import IdentityGrants, IdTokens
from comity.accounts.issuers import AuthorizationServers
from comity.accounts.model import Account, AccountKey, AccountPolicy
from comity.accounts.oauth_client import OAuthHttpClient, Resolve
from comity.accounts.service import AccountService
from comity.accounts.tokens import AccountTokenSource
from comity.app.records import RecordStores
from comity.http.client.client import default_tls
from comity.http.client.pool import HttpConnectionPool
from comity.secrets.envelope import EnvelopeSealer
from comity.secrets.model import KeyService
from comity.secrets.providers.local import LocalKeyService
from tests.identity.login.scene import query_of

ANA, BEN = "person:ana", "person:ben"
ORIGIN = "https://comity.example.org"
KEY = LocalKeyService("first", b"k" * 32)


@dataclass
class UsedOnce:
    """Remembers the sign-ins that were completed."""

    used: set[str] = field(default_factory=set[str])

    async def use_once(self, token: str, until: datetime) -> bool:
        is_new = token not in self.used
        self.used.add(token)
        return is_new


@dataclass
class AccountNode:
    """One node, and a person with a browser."""

    records: RecordStores
    sealer: EnvelopeSealer
    servers: AuthorizationServers
    tokens: AccountTokenSource
    service: AccountService

    def configure(self, *policies: AccountPolicy) -> None:
        for policy in policies:
            self.service.set_policy(policy)

    async def callback(self, server: str, person: str = ANA) -> tuple[str, dict[str, str]]:
        """Begin a sign-in and approve it. Return the cookie and the answer of the issuer."""
        begun = await self.service.begin_sign_in(server, person, person, ORIGIN)
        async with httpx2.AsyncClient() as browser:
            granted = await browser.get(begun.url)
        assert granted.status_code == 302, granted.text
        place = granted.headers["location"]
        assert urlsplit(place).path == f"/accounts/callback/{server}"
        return begun.cookie, query_of(place)

    async def connect(self, server: str, person: str = ANA) -> Account:
        cookie, answer = await self.callback(server, person)
        account, _ = await self.service.finish_sign_in(person, cookie, answer, ORIGIN, server)
        return account

    async def renew(self, server: str, person: str = ANA) -> str | None:
        """Return a token after the server has refused the present one."""
        key = AccountKey(server, person)
        refused = await self.tokens.token_for(key)
        return await self.tokens.token_for(key, refused or "")


async def resolve_nothing(name: str) -> Sequence[str]:
    return ()


@asynccontextmanager
async def an_account_node(
    records: RecordStores,
    *keys: KeyService,
    resolve: Resolve = resolve_nothing,
    id_tokens: IdTokens | None = None,
    name: str = "node",
) -> AsyncGenerator[AccountNode]:
    sealer = EnvelopeSealer(keys or (KEY,))
    async with HttpConnectionPool(default_tls()) as pool, asyncio.timeout(60):
        oauth = OAuthHttpClient(pool, resolve)
        servers = AuthorizationServers(oauth, records.accounts, sealer)
        grants = IdentityGrants(servers, cast("IdTokens", id_tokens))
        tokens = AccountTokenSource(records.accounts, sealer, servers, name, identity_grants=grants)
        service = AccountService(tokens, servers, UsedOnce(), b"key", identity_grants=grants)
        try:
            yield AccountNode(records, sealer, servers, tokens, service)
        finally:
            await tokens.close()
            await oauth.close()
