"""Accounts at remote servers: who needs one, how a person connects one, and how it ends."""

import base64
import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from comity.accounts import messages
from comity.accounts.identity_grants import IdentityGrants
from comity.accounts.issuers import (
    AuthorizationServers,
    ServerAuthorization,
    redirect_uri_for,
)
from comity.accounts.messages import Challenge, OAuthClientCredentials, TokenAnswer
from comity.accounts.model import (
    SHARED,
    Account,
    AccountKey,
    AccountMode,
    AccountPolicy,
    AccountState,
    AccountTokens,
    UsedTokens,
)
from comity.accounts.oauth_client import UNKNOWN_CLIENT_ERRORS
from comity.accounts.tokens import CLIENT_CREDENTIALS, AccountTokenSource, expiry_of
from comity.audit.events import AuditType
from comity.audit.log import AuditLog
from comity.errors import (
    INVALID_PARAMS,
    NOTHING_HERE,
    UNAUTHENTICATED,
    UPSTREAM_FAILED,
    MalformedMessage,
    Unavailable,
)
from comity.identity.login.messages import challenge_of
from comity.toolkit.sealed_tokens import seal_token, unseal_token

log = logging.getLogger(__name__)

FLOW_LIFETIME: Final = timedelta(minutes=10)
MAX_CODE_LENGTH: Final = 4_096
MAX_COOKIE_LENGTH: Final = 3_900
"""Browsers drop a cookie whose name and value have over 4,096 bytes together."""

_FLOW: Final = "account sign-in"
_FOREIGN: Final = (
    "this sign-in did not begin in this browser, or more than ten minutes ago; start again"
)
_USED: Final = "this sign-in was completed before; start again"
_DENIED: Final = "the server's sign-in was refused or cancelled; nothing was connected"


class SignInFlow(NamedTuple):
    """A sign-in that has begun, as the browser's cookie holds it."""

    server: str
    owner: str
    by: str
    issuer: str
    request: str
    scopes: str
    seed: str
    expires: str


class FlowSecrets(NamedTuple):
    """The random words of one sign-in. Both follow from the seed in its cookie."""

    state: str
    verifier: str

    def __repr__(self) -> str:
        return "FlowSecrets()"


class BegunSignIn(NamedTuple):
    """Where the browser goes, and the content of its cookie."""

    url: str
    cookie: str


class AccountService:
    """Knows the accounts of all servers, connects them and disconnects them."""

    def __init__(
        self,
        tokens: AccountTokenSource,
        servers: AuthorizationServers,
        used_tokens: UsedTokens,
        key: bytes,
        *,
        identity_grants: IdentityGrants,
        audit: AuditLog | None = None,
    ) -> None:
        self.tokens = tokens
        # Told when a server begins to demand sign-ins, so that plans of calls are made again.
        self.mode_listeners: list[Callable[[str], None]] = []
        # Told when an account was connected, here or on another node.
        self.connection_listeners: list[Callable[[AccountKey], None]] = []
        self._servers = servers
        self._identity_grants = identity_grants
        self._used_tokens = used_tokens
        self._key = hmac.digest(key, _FLOW.encode(), hashlib.sha256)
        self._audit = audit
        tokens.on_changed.append(self._on_account_changed)
        tokens.on_expired = self._on_account_expired
        tokens.on_issued = self._on_account_issued

    # Which servers need accounts, and whose.

    def set_policy(self, policy: AccountPolicy) -> None:
        """Take the settings of a server."""
        before = self.tokens.policies.get(policy.server)
        self.tokens.policies[policy.server] = policy
        if before is not None and before != policy:
            self._forget(policy.server)

    def remove_server(self, server: str) -> None:
        """Forget the settings of a server. Its accounts stay, because it may come back."""
        if self.tokens.policies.pop(server, None) is not None:
            self._forget(server)

    def _forget(self, server: str) -> None:
        self._servers.forget(server)
        self.tokens.challenges.pop(server, None)
        self._tell_mode(server)

    def mode_of(self, server: str) -> AccountMode:
        """Return `shared`, `each` or `none`."""
        policy = self.tokens.policies.get(server)
        if policy is None or policy.mode == "none":
            return "none"
        if policy.mode != "auto":
            return policy.mode
        if policy.uses_id_token:
            return "each"
        if server in self.tokens.challenges or any(
            key.server == server for key in self.tokens.accounts
        ):
            return "shared" if policy.grant == CLIENT_CREDENTIALS else "each"
        return "none"

    def is_shared(self, server: str) -> bool:
        return self.mode_of(server) == "shared"

    def on_challenge(self, server: str, challenge: Challenge) -> bool:
        """Note that a server demands a sign-in. Return whether Comity can sign in there."""
        policy = self.tokens.policies.get(server)
        if policy is None or policy.mode == "none":
            return False
        before = self.mode_of(server)
        self.tokens.challenges[server] = challenge
        if self.mode_of(server) != before:
            log.info("Server %r demands a sign-in", server)
            self._tell_mode(server)
        return True

    async def find_challenge(self, server: str) -> Challenge | None:
        """Return the challenge of a server that refused a request without one.

        The metadata at its well-known addresses shows whether people can sign in there.
        """
        policy = self.tokens.policies.get(server)
        if policy is None or policy.mode == "none":
            return None
        if (known := self.tokens.challenges.get(server)) is not None:
            return known
        if policy.grant == "authorization_code":
            try:
                await self._servers.find(policy, None)
            except Unavailable as error:
                log.info("Server %r answered HTTP 401 and tells no sign-in: %s", server, error)
                return None
        return Challenge()

    def accounts_of(self, server: str) -> list[Account]:
        """Return the accounts of a server, by owner."""
        found = [each for each in self.tokens.accounts.values() if each.server == server]
        return sorted(found, key=lambda each: each.owner)

    def catalog_key(self, server: str) -> AccountKey | None:
        """Return the account that reads the lists of a server: the shared, or any connected one."""
        if self.is_shared(server):
            return AccountKey(server, SHARED)
        connected = [
            each for each in self.accounts_of(server) if each.state is AccountState.CONNECTED
        ]
        newest = max(connected, key=lambda each: each.connected_at, default=None)
        return None if newest is None else newest.key

    # Accounts that the sign-in to Comity gives.

    def identity_issuer(self, key: AccountKey) -> str | None:
        """Return the issuer whose sign-in gives an account, or None if a page does.

        Raises Unavailable if the settings name none.
        """
        if not self.tokens.uses_id_token(key):
            return None
        return self._identity_grants.issuer_of(self.tokens.policies[key.server])

    def keys_awaiting(self, owner: str, issuer: str) -> list[AccountKey]:
        """Return the accounts to connect now that a person has signed in to Comity.

        These are the accounts that ended, and one at each server whose lists no account can read.
        """
        keys = [AccountKey(server, owner) for server in self.tokens.policies]
        return [
            key
            for key in keys
            if self.mode_of(key.server) == "each"
            and self._is_given_by(key, issuer)
            and (self.tokens.find(key) is not None or self.catalog_key(key.server) is None)
            and not self.tokens.held_if_fresh(key)
        ]

    def _is_given_by(self, key: AccountKey, issuer: str) -> bool:
        try:
            return self.identity_issuer(key) == issuer
        except Unavailable:
            return False

    # Sign-in.

    async def begin_sign_in(
        self, server: str, owner: str, by: str, origin: str, request: str = ""
    ) -> BegunSignIn:
        """Begin to connect an account. `by` is the person in the browser.

        `request` is the approval request that waits for the account. Raises Unavailable.
        """
        policy = self._policy(server)
        # The server may have moved to another issuer.
        self._servers.forget(server)
        found = await self._servers.find(policy, self.tokens.challenges.get(server))
        if not found.issuer.authorization_endpoint:
            raise MalformedMessage(
                f"the authorization server of {server!r} signs no people in", INVALID_PARAMS
            )
        client = await self._servers.client_for(policy, found, origin)
        scopes = self._scopes_for(AccountKey(server, owner), policy, found)
        expires = self.tokens.clock() + FLOW_LIFETIME
        flow = SignInFlow(
            server,
            owner,
            by,
            found.issuer.issuer,
            request,
            " ".join(scopes),
            secrets.token_urlsafe(32),
            str(int(expires.timestamp())),
        )
        cookie = seal_token(self._key, _FLOW, *flow)
        if len(cookie) > MAX_COOKIE_LENGTH:
            raise Unavailable(
                f"the sign-in at {server!r} has too many scopes ({len(flow.scopes)} characters); "
                "name fewer as scopes in [servers.oauth], or disconnect the account",
                UPSTREAM_FAILED,
            )
        chosen = self._derive(flow.seed)
        fields = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": redirect_uri_for(origin, server),
            "state": chosen.state,
            "code_challenge": challenge_of(chosen.verifier),
            "code_challenge_method": "S256",
            "resource": found.resource.resource,
        }
        if scopes:
            fields["scope"] = flow.scopes
        place = found.issuer.authorization_endpoint
        if not fields.keys().isdisjoint(parse_qs(urlsplit(place).query, keep_blank_values=True)):
            # An issuer that takes the first of two would answer another request.
            raise Unavailable(
                f"the sign-in page of {server!r} repeats a parameter of the request",
                UPSTREAM_FAILED,
            )
        url = f"{place}{'&' if urlsplit(place).query else '?'}{urlencode(fields)}"
        return BegunSignIn(url, cookie)

    async def finish_sign_in(
        self, by: str, cookie: str, answer: Mapping[str, str], origin: str, server: str
    ) -> tuple[Account, str]:
        """Connect an account with the answer that the browser brought.

        `server` is the one whose redirect address was opened. Return the account and the approval
        request that waits for it. Raises MalformedMessage and Unavailable.
        """
        flow = self._read_flow(cookie)
        if flow.by != by:
            raise MalformedMessage(
                "another person began this sign-in; start again", UNAUTHENTICATED
            )
        chosen = self._derive(flow.seed)
        is_own = hmac.compare_digest(answer.get("state", "").encode(), chosen.state.encode())
        if not is_own or flow.server != server:
            raise MalformedMessage(_FOREIGN, UNAUTHENTICATED)
        policy = self._policy(flow.server)
        challenge = self.tokens.challenges.get(flow.server)
        found = await self._servers.find(policy, challenge, flow.issuer)
        named = answer.get("iss")
        if named != found.issuer.issuer and (named is not None or found.issuer.sends_issuer):
            # The answer of another issuer would deliver this code to it. (RFC 9207)
            raise MalformedMessage("the answer came from another issuer", UNAUTHENTICATED)
        expires = datetime.fromtimestamp(int(flow.expires), UTC)
        if not await self._used_tokens.use_once(f"{_FLOW} {flow.seed}", expires):
            raise MalformedMessage(_USED, UNAUTHENTICATED)
        code = answer.get("code", "")
        if "error" in answer or not 0 < len(code) <= MAX_CODE_LENGTH:
            raise MalformedMessage(_DENIED, UNAUTHENTICATED)
        client = await self._servers.client_for(policy, found, origin)
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri_for(origin, server),
            "code_verifier": chosen.verifier,
            "resource": found.resource.resource,
        }
        tokens = await self._servers.oauth.request_token(
            found.issuer, client, fields, policy.trusted_urls
        )
        if isinstance(tokens, str):
            if tokens in UNKNOWN_CLIENT_ERRORS:
                # A wrong code is no reason: anybody could make the gateway register again.
                await self._servers.forget_client(
                    found.issuer.issuer, redirect_uri_for(origin, server)
                )
            raise MalformedMessage(
                "the authorization server did not accept the sign-in; start again",
                UNAUTHENTICATED,
            )
        return await self._connect(flow, found, client, tokens), flow.request

    async def _connect(
        self,
        flow: SignInFlow,
        found: ServerAuthorization,
        client: OAuthClientCredentials,
        answer: TokenAnswer,
    ) -> Account:
        now = self.tokens.clock()
        account = Account(
            flow.server,
            flow.owner,
            found.resource.resource,
            found.issuer.issuer,
            client.client_id,
            tuple(flow.scopes.split()) if answer.scopes is None else answer.scopes,
            AccountState.CONNECTED,
            now,
            flow.by,
            expires_at=expiry_of(answer, now),
            is_refreshable=bool(answer.refresh_token),
        )
        tokens = AccountTokens(answer.access_token, answer.refresh_token, client)
        stored = await self.tokens.keep(account, tokens)
        self._record(AuditType.ACCOUNT_CONNECTED, flow.by, stored)
        return stored

    def _scopes_for(
        self, key: AccountKey, policy: AccountPolicy, found: ServerAuthorization
    ) -> tuple[str, ...]:
        challenge = self.tokens.challenges.get(key.server)
        wanted = challenge.scopes if challenge is not None else ()
        chosen = messages.choose_scopes(policy.scopes, wanted, found.resource, found.issuer)
        known = self.tokens.find(key)
        earlier = () if known is None else (*known.scopes, *known.missing_scopes)
        return tuple(dict.fromkeys((*chosen, *earlier)))

    # The end of an account.

    async def disconnect(self, key: AccountKey, by: str) -> bool:
        """Delete an account, and revoke its tokens. Return whether the issuer confirmed that.

        Raises MalformedMessage if there is no such account.
        """
        account = self.tokens.find(key)
        if account is None:
            raise MalformedMessage(f"there is no account at {key.server!r:.80}", NOTHING_HERE)
        tokens = await self.tokens.tokens_of(account) if account.sealed else None
        # It ends here first, so that no call uses it while its issuer answers.
        await self.tokens.remove(key)
        self._record(AuditType.ACCOUNT_DISCONNECTED, by, account)
        return tokens is not None and await self._revoke(account, tokens)

    async def _revoke(self, account: Account, tokens: AccountTokens) -> bool:
        policy = self.tokens.policies.get(account.server)
        if policy is None or policy.grant == "token_exchange":
            # The client that got an exchanged token is that of the sign-in to Comity.
            return False
        try:
            found = await self._servers.find(
                policy, self.tokens.challenges.get(account.server), account.issuer
            )
        except Unavailable as error:
            log.warning("The tokens of %r were not revoked: %s", account.server, error)
            return False
        # A revoked refresh token ends its access tokens too, but not at every issuer.
        done = [
            await self._servers.oauth.revoke(found.issuer, tokens.client, each, policy.trusted_urls)
            for each in (tokens.refresh, tokens.access)
            if each
        ]
        return bool(done) and all(done)

    # Inner parts.

    def _on_account_changed(self, key: AccountKey) -> None:
        account = self.tokens.find(key)
        self._tell_mode(key.server)
        if account is not None and account.state is AccountState.CONNECTED:
            for listener in self.connection_listeners:
                listener(key)

    def _on_account_expired(self, account: Account) -> None:
        self._record(AuditType.ACCOUNT_EXPIRED, account.owner or account.connected_by, account)

    def _on_account_issued(self, account: Account) -> None:
        self._record(AuditType.ACCOUNT_CONNECTED, account.owner, account)

    def _tell_mode(self, server: str) -> None:
        for listener in self.mode_listeners:
            listener(server)

    def _policy(self, server: str) -> AccountPolicy:
        policy = self.tokens.policies.get(server)
        if policy is None or self.mode_of(server) == "none":
            raise MalformedMessage(f"server {server!r:.80} needs no sign-in", INVALID_PARAMS)
        return policy

    def _read_flow(self, cookie: str) -> SignInFlow:
        words = unseal_token(self._key, cookie)
        if words is None or len(words) != 1 + len(SignInFlow._fields) or words[0] != _FLOW:
            raise MalformedMessage(_FOREIGN, UNAUTHENTICATED)
        flow = SignInFlow(*words[1:])
        if datetime.fromtimestamp(int(flow.expires), UTC) <= self.tokens.clock():
            raise MalformedMessage(_FOREIGN, UNAUTHENTICATED)
        return flow

    def _derive(self, seed: str) -> FlowSecrets:
        """Return the words of a sign-in. The cookie has only the seed, so it reveals none."""
        made = (
            hmac.digest(self._key, f"{use} {seed}".encode(), hashlib.sha256)
            for use in FlowSecrets._fields
        )
        return FlowSecrets(*(base64.urlsafe_b64encode(each).rstrip(b"=").decode() for each in made))

    def _record(self, type: AuditType, by: str, account: Account) -> None:
        if self._audit is None:
            return
        details = {
            "server": account.server,
            "account": account.owner or "shared",
            "issuer": account.issuer,
            "scopes": list(account.scopes),
        }
        self._audit.record(type, by, details=details)
