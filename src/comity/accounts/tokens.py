"""The tokens of accounts: kept in memory while they are valid, refreshed by one node at a time."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

import msgspec

from comity.accounts.identity_grants import IdentityGrants, IssuedToken
from comity.accounts.issuers import AuthorizationServers
from comity.accounts.messages import (
    MAX_SCOPES,
    Challenge,
    IssuerMetadata,
    OAuthClientCredentials,
    TokenAnswer,
    covers,
    is_same_issuer,
)
from comity.accounts.model import (
    EXPIRY_MARGIN,
    SHARED,
    Account,
    AccountKey,
    AccountPolicy,
    AccountState,
    AccountStore,
    AccountTokens,
    account_context,
)
from comity.accounts.oauth_client import UNKNOWN_CLIENT_ERRORS
from comity.errors import SIGN_IN_REQUIRED, UPSTREAM_DOWN, UPSTREAM_FAILED, Unavailable
from comity.mcp.actors import GATEWAY
from comity.secrets.model import Sealer
from comity.toolkit.background import BackgroundTasks, SharedOpening, draw_delay
from comity.toolkit.resilience import RetrySchedule

log = logging.getLogger(__name__)

LEASE: Final = timedelta(seconds=50)
"""How long one node alone may refresh a token."""

LEASE_MARGIN: Final = timedelta(seconds=35)
"""How long before the end of its lease a node gives up a refresh.

The clocks of nodes may differ by 30 seconds. To a node whose clock is ahead, the lease ends sooner.
"""

MAX_MISSING_LENGTH: Final = 2_000
"""How long the list of missing scopes may be. A server can demand new ones with each answer."""

CLOSE_TIMEOUT: Final = timedelta(seconds=12)
"""How long the shutdown waits for refreshes. It is longer than one request may take."""

POLL_SECONDS: Final = 0.2
REFRESH_SECONDS: Final = 60.0
"""How long a call waits for a refresh, here or on another node."""

AUTHORIZATION_CODE: Final = "authorization_code"
CLIENT_CREDENTIALS: Final = "client_credentials"

type AccountListener = Callable[[AccountKey], None]


def utc_now() -> datetime:
    return datetime.now(UTC)


class HeldToken(NamedTuple):
    """A token in memory."""

    access: str
    account: Account

    def __repr__(self) -> str:
        return f"HeldToken({self.account.key!r})"


class AccountTokenSource:
    """Gives the access token of each account, and refreshes it when it expires."""

    def __init__(
        self,
        store: AccountStore,
        sealer: Sealer,
        servers: AuthorizationServers,
        node: str,
        *,
        identity_grants: IdentityGrants | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.clock = clock
        self.policies: dict[str, AccountPolicy] = {}
        self.challenges: dict[str, Challenge] = {}
        self.on_changed: list[AccountListener] = []
        # Told by the node that learns that an account has ended at its issuer.
        self.on_expired: Callable[[Account], None] | None = None
        # Told of an account that the sign-in of its owner to Comity gave.
        self.on_issued: Callable[[Account], None] | None = None
        self._store = store
        self._sealer = sealer
        self._servers = servers
        self._identity_grants = identity_grants
        self._node = node
        self._accounts: dict[AccountKey, Account] = {}
        self._held: dict[AccountKey, HeldToken] = {}
        self._locks: dict[AccountKey, asyncio.Lock] = {}
        # The issuer may have replaced a refresh token already. No caller ends such a request.
        self._refreshes: SharedOpening[AccountKey, str | None] = SharedOpening()
        self._background_tasks = BackgroundTasks("accounts")

    # The accounts that this node knows.

    async def load(self) -> None:
        """Read all accounts. Raises Unavailable."""
        self._accounts = {each.key: each for each in await self._store.list_all()}
        # A token of an account that changed is read again when it is needed.
        self._held = {
            key: held
            for key, held in self._held.items()
            if key in self._accounts and self._accounts[key].version == held.account.version
        }

    async def load_soon(self) -> None:
        """Read all accounts now, or keep trying until the store answers."""
        try:
            await self.load()
        except Unavailable as error:
            log.warning("The accounts cannot be read yet: %s", error)
            self._background_tasks.start(self._load_later())

    async def _load_later(self) -> None:
        tries = 0
        while not self._accounts:
            tries += 1
            await asyncio.sleep(draw_delay(RetrySchedule(), tries).total_seconds())
            try:
                await self._reload_all()
            except Unavailable:
                continue
            return

    def note_change(self, _: str) -> None:
        """Read the accounts again, because the store changed. Then tell the listeners."""
        self._background_tasks.start(self._reload())

    async def _reload(self) -> None:
        try:
            await self._reload_all()
        except Unavailable as error:
            log.warning("The accounts cannot be read again yet: %s", error)

    async def _reload_all(self) -> None:
        before = dict(self._accounts)
        await self.load()
        for key in before.keys() | self._accounts.keys():
            if before.get(key) != self._accounts.get(key):
                self._tell(key)

    async def close(self) -> None:
        """Let the refreshes that run store their tokens, and end everything else."""
        self._background_tasks.cancel()
        await self._refreshes.finish(CLOSE_TIMEOUT)

    @property
    def accounts(self) -> Mapping[AccountKey, Account]:
        return self._accounts

    def find(self, key: AccountKey) -> Account | None:
        return self._accounts.get(key)

    def held(self, key: AccountKey) -> str:
        """Return the token in memory, which may have expired, or an empty text."""
        held = self._held.get(key)
        return "" if held is None or not self._is_for_server(held.account) else held.access

    def held_if_fresh(self, key: AccountKey) -> str:
        """Return the token in memory if it is still valid, or an empty text."""
        held = self._held.get(key)
        is_fresh = held is not None and held.account.is_fresh(self.clock())
        return held.access if held and is_fresh and self._is_for_server(held.account) else ""

    async def keep(self, account: Account, tokens: AccountTokens) -> Account:
        """Store a connected account with its tokens, sealed, in place of an earlier one."""
        stored = await self._store.put(await self._sealed(account, tokens))
        self._remember(stored, tokens)
        self._tell(stored.key)
        return stored

    async def tokens_of(self, account: Account) -> AccountTokens | None:
        """Return the tokens of an account, or None if no key can unseal them."""
        plain = await self._sealer.unseal(account.sealed, _context(account))
        if plain is None:
            return None
        access, refresh, *client = msgspec.json.decode(plain, type=tuple[str, str, str, str, str])
        return AccountTokens(access, refresh, OAuthClientCredentials(*client))

    def lacks_scopes(self, key: AccountKey, scopes: tuple[str, ...]) -> bool:
        """Return whether some of these scopes were never requested for an account."""
        account = self._accounts.get(key)
        return account is not None and not set(scopes) <= {
            *account.scopes,
            *account.missing_scopes,
        }

    async def require_scopes(self, key: AccountKey, scopes: tuple[str, ...]) -> None:
        """Note scopes that the account lacks, so that its next sign-in requests them.

        Raises Unavailable if the server has demanded too many.
        """
        account = await self._store.get(key)
        if account is None or set(scopes) <= set(account.missing_scopes):
            return
        missing = tuple(dict.fromkeys((*account.missing_scopes, *scopes)))
        if len(missing) > MAX_SCOPES or len(" ".join(missing)) > MAX_MISSING_LENGTH:
            raise Unavailable(
                f"server {key.server!r} demands more scopes than a sign-in can request",
                UPSTREAM_FAILED,
            )
        await self._store.set_missing_scopes(key, missing)
        await self.load()

    async def remove(self, key: AccountKey) -> bool:
        self._accounts.pop(key, None)
        self._held.pop(key, None)
        was_there = await self._store.remove(key)
        self._tell(key)
        return was_there

    # Valid tokens.

    async def token_for(self, key: AccountKey, refused: str = "") -> str | None:
        """Return a valid token, or None if the owner must sign in. Raises Unavailable.

        `refused` is a token that the server did not accept, so that another one is needed.
        """
        held = self.held_if_fresh(key)
        if held and held != refused:
            return held
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            async with asyncio.timeout(REFRESH_SECONDS), lock:
                return await self._renewed(key, refused)
        except TimeoutError:
            raise Unavailable(
                f"the account at {key.server!r} could not be refreshed in time", UPSTREAM_DOWN
            ) from None

    async def _renewed(self, key: AccountKey, refused: str) -> str | None:
        while True:
            account = await self._store.get(key)
            if (
                account is None
                or account.state is not AccountState.CONNECTED
                or not self._is_for_server(account)
            ):
                return await self._first_of_client(key) or await self._issue(key, account)
            tokens = await self.tokens_of(account)
            if tokens is None:
                log.warning("The tokens of %s at %r cannot be unsealed", key.owner, key.server)
                return await self._first_of_client(key) or await self._issue(key, account)
            if account.is_fresh(self.clock()) and tokens.access != refused:
                self._remember(account, tokens)
                return tokens.access
            renewed = await self._refreshes.wait_for(
                key,
                partial(self._refresh_alone, account, tokens),
                lambda: Unavailable("this node is stopping", UPSTREAM_DOWN),
            )
            if renewed is not None:
                return renewed or None
            await asyncio.sleep(POLL_SECONDS)

    def _is_for_server(self, account: Account) -> bool:
        """Return whether the tokens of an account are for the present address of its server.

        A server of the same name may be at another address since, and of another operator.
        """
        policy = self.policies.get(account.server)
        return policy is not None and covers(account.resource, policy.url)

    async def _refresh_alone(self, account: Account, tokens: AccountTokens) -> str | None:
        """Refresh with the lease. Return the token, "" without one, None if to look again."""
        # Discovery takes several requests, so it is not part of the time of the lease.
        issuer = await self._issuer_of(account, tokens)
        now = self.clock()
        if not await self._store.lease_refresh(account, self._node, now, now + LEASE):
            return None
        try:
            async with asyncio.timeout((LEASE - LEASE_MARGIN).total_seconds()):
                return await self._refresh(account, tokens, issuer)
        except TimeoutError:
            await self._store.end_lease(account.key, self._node)
            raise Unavailable(
                f"the account at {account.server!r} could not be refreshed in time", UPSTREAM_DOWN
            ) from None
        except Unavailable:
            await self._store.end_lease(account.key, self._node)
            raise

    async def _issuer_of(self, account: Account, tokens: AccountTokens) -> IssuerMetadata | None:
        """Return the issuer that has the refresh token, or None without one."""
        policy = self.policies.get(account.server)
        if policy is None or policy.grant != AUTHORIZATION_CODE or not tokens.refresh:
            return None
        try:
            found = await self._servers.find(
                policy, self.challenges.get(account.server), account.issuer
            )
        except Unavailable as error:
            if error.fault is SIGN_IN_REQUIRED:
                return None
            raise
        return found.issuer

    async def _refresh(
        self, account: Account, tokens: AccountTokens, issuer: IssuerMetadata | None
    ) -> str | None:
        answer = await self._request(account, tokens, issuer)
        if isinstance(answer, str):
            expired = replace(account, state=AccountState.SIGN_IN_NEEDED, sealed=b"")
            stored = await self._store.replace(expired)
            if stored is None:
                return None
            self._remember(stored, None)
            if self.on_expired is not None:
                self.on_expired(expired)
            self._tell(account.key)
            return ""
        fresh = AccountTokens(
            answer.access_token, answer.refresh_token or tokens.refresh, tokens.client
        )
        changed = replace(
            account,
            expires_at=expiry_of(answer, self.clock()),
            is_refreshable=bool(fresh.refresh),
            scopes=account.scopes if answer.scopes is None else answer.scopes,
        )
        stored = await self._store.replace(await self._sealed(changed, fresh))
        if stored is None:
            return None
        self._remember(stored, fresh)
        return fresh.access

    async def _request(
        self, account: Account, tokens: AccountTokens, issuer: IssuerMetadata | None
    ) -> TokenAnswer | str:
        policy = self.policies.get(account.server)
        if policy is None:
            raise Unavailable(f"server {account.server!r} is not configured", UPSTREAM_DOWN)
        if policy.grant == CLIENT_CREDENTIALS:
            return await self._client_token(policy)
        if policy.uses_id_token:
            issued = await self._issued(account.key, account)
            return "invalid_grant" if issued is None else issued.answer
        if issuer is None:
            return "invalid_grant"
        client, configured = tokens.client, policy.client
        # The operator may have chosen another issuer while the metadata of this one was read.
        is_own = is_same_issuer(policy.issuer, issuer.issuer)
        if configured is not None and configured.client_id == client.client_id and is_own:
            # The operator may have changed the secret since.
            client = configured
        fields = {
            "grant_type": "refresh_token",
            "refresh_token": tokens.refresh,
            "resource": account.resource,
        }
        answer = await self._servers.oauth.request_token(
            issuer, client, fields, policy.trusted_urls
        )
        is_kept = client is configured or "://" in client.client_id
        if is_kept and answer in UNKNOWN_CLIENT_ERRORS:
            # The grant may be as good as before. Only a registered client is gone for good.
            raise _client_refused(account.server)
        return answer

    # Accounts that the sign-in of their owner to Comity gives.

    def uses_id_token(self, key: AccountKey) -> bool:
        """Return whether the sign-in of the owner to Comity gives this account."""
        policy = self.policies.get(key.server)
        return policy is not None and policy.uses_id_token and key.owner != SHARED

    async def _issued(self, key: AccountKey, known: Account | None) -> IssuedToken | None:
        """Get a token for an account, or return None if its owner must sign in to Comity."""
        if not self.uses_id_token(key) or self._identity_grants is None:
            return None
        earlier = () if known is None else (*known.scopes, *known.missing_scopes)
        policy, challenge = self.policies[key.server], self.challenges.get(key.server)
        return await self._identity_grants.request(policy, key.owner, challenge, earlier)

    async def _issue(self, key: AccountKey, known: Account | None) -> str | None:
        """Connect an account without a page. Return its token, or None."""
        issued = await self._issued(key, known)
        if issued is None:
            if known is not None:
                self._remember(known, None)
            return None
        answer, now = issued.answer, self.clock()
        account = Account(
            key.server,
            key.owner,
            issued.resource,
            issued.issuer,
            issued.client.client_id,
            answer.scopes or (),
            AccountState.CONNECTED,
            now,
            key.owner,
            expires_at=expiry_of(answer, now),
        )
        stored = await self.keep(account, AccountTokens(answer.access_token, "", issued.client))
        if self.on_issued is not None:
            self.on_issued(stored)
        return answer.access_token

    # The account of the gateway itself, with client credentials.

    async def _first_of_client(self, key: AccountKey) -> str | None:
        policy = self.policies.get(key.server)
        if policy is None or policy.grant != CLIENT_CREDENTIALS or key.owner != SHARED:
            return None
        answer = await self._client_token(policy)
        found = await self._servers.find(policy, self.challenges.get(key.server))
        assert policy.client is not None
        account = Account(
            key.server,
            key.owner,
            found.resource.resource,
            found.issuer.issuer,
            policy.client.client_id,
            policy.scopes if answer.scopes is None else answer.scopes,
            AccountState.CONNECTED,
            self.clock(),
            GATEWAY,
            expires_at=expiry_of(answer, self.clock()),
        )
        tokens = AccountTokens(answer.access_token, answer.refresh_token, policy.client)
        await self.keep(account, tokens)
        return answer.access_token

    async def _client_token(self, policy: AccountPolicy) -> TokenAnswer:
        found = await self._servers.find(policy, self.challenges.get(policy.server))
        if policy.client is None:
            raise Unavailable(
                f"client credentials of {policy.server!r} need client_id and client_secret",
                UPSTREAM_DOWN,
            )
        fields = {"grant_type": CLIENT_CREDENTIALS, "resource": found.resource.resource}
        if policy.scopes or found.resource.scopes:
            fields["scope"] = " ".join(policy.scopes or found.resource.scopes)
        answer = await self._servers.oauth.request_token(
            found.issuer, policy.client, fields, policy.trusted_urls
        )
        if isinstance(answer, str):
            raise _client_refused(policy.server)
        return answer

    async def _sealed(self, account: Account, tokens: AccountTokens) -> Account:
        client = tokens.client
        plain = msgspec.json.encode(
            (tokens.access, tokens.refresh, client.client_id, client.secret, client.auth_method)
        )
        return replace(account, sealed=await self._sealer.seal(plain, _context(account)))

    def _remember(self, account: Account, tokens: AccountTokens | None) -> None:
        self._accounts[account.key] = account
        if tokens is None:
            self._held.pop(account.key, None)
        else:
            self._held[account.key] = HeldToken(tokens.access, account)

    def _tell(self, key: AccountKey) -> None:
        for listener in self.on_changed:
            listener(key)


def _context(account: Account) -> str:
    return account_context(account.server, account.owner, account.resource, account.issuer)


def _client_refused(server: str) -> Unavailable:
    return Unavailable(
        f"the authorization server refused the client of {server!r}; check client_id and "
        "client_secret in [servers.oauth]",
        UPSTREAM_DOWN,
    )


def expiry_of(answer: TokenAnswer, at: datetime) -> datetime | None:
    """Return when a token expires. A short-lived token is used for at least a moment."""
    if answer.lifetime_seconds is None:
        return None
    return at + max(
        timedelta(seconds=answer.lifetime_seconds), EXPIRY_MARGIN + timedelta(seconds=1)
    )
