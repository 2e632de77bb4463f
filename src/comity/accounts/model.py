"""Accounts at remote servers, and their store interface."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal, NamedTuple, Protocol

from comity.accounts.messages import OAuthClientCredentials
from comity.secrets.model import context_of

type AccountMode = Literal["auto", "shared", "each", "none"]
"""Whose account the calls of a server use.

`auto` is `each` once the server asks for a sign-in, and `none` before. `none` means that Comity
never signs in: the server gets only the headers of the operator.
"""

type GrantName = Literal["authorization_code", "client_credentials", "id_jag", "token_exchange"]
"""How Comity gets the tokens of an account."""

SHARED: Final = ""
"""The owner of the account that all callers of a server share."""

ACCOUNT_USE: Final = "account/use"
"""The verb by which an agent may use the account of a person, on `server/person:name`."""

EXPIRY_MARGIN: Final = timedelta(seconds=30)
"""How long before its expiry a token is replaced."""


class AccountState(StrEnum):
    """The state of an account. Without a valid token it needs a sign-in."""

    CONNECTED = "connected"
    SIGN_IN_NEEDED = "sign_in_needed"


class AccountKey(NamedTuple):
    """The server of an account, and its owner. The shared account has no owner."""

    server: str
    owner: str

    @property
    def id(self) -> str:
        """The id of the account, which is safe in a URL."""
        return hashlib.blake2b(f"{self.server}\0{self.owner}".encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Account:
    """One account at one server. `sealed` holds its tokens, which only the sealer can read."""

    server: str
    owner: str
    resource: str
    issuer: str
    client_id: str
    scopes: tuple[str, ...]
    state: AccountState
    connected_at: datetime
    connected_by: str
    missing_scopes: tuple[str, ...] = ()
    """Scopes that the server demanded and that the next sign-in requests."""
    expires_at: datetime | None = None
    """The expiry of the access token, which a refresh token outlives."""
    is_refreshable: bool = False
    version: int = 1
    sealed: bytes = field(default=b"", repr=False)

    @property
    def key(self) -> AccountKey:
        return AccountKey(self.server, self.owner)

    @property
    def id(self) -> str:
        return self.key.id

    def is_fresh(self, at: datetime) -> bool:
        """Return whether the access token is valid for a while."""
        is_connected = self.state is AccountState.CONNECTED
        return is_connected and (self.expires_at is None or self.expires_at - EXPIRY_MARGIN > at)


@dataclass(frozen=True, slots=True)
class AccountTokens:
    """The tokens of an account and the client that got them, as they are sealed."""

    access: str = field(repr=False)
    refresh: str = field(repr=False)
    client: OAuthClientCredentials


def account_context(server: str, owner: str, resource: str, issuer: str) -> str:
    """Return the context in which the tokens of an account are sealed.

    The resource and the issuer decide where the tokens go, so a change of them in the database
    makes the tokens unreadable.
    """
    return context_of("account", server, owner, resource, issuer)


def client_context(issuer: str, redirect_uri: str) -> str:
    """Return the context in which the registration at an issuer is sealed."""
    return context_of("account client", issuer, redirect_uri)


class AccountStore(Protocol):
    """Stores accounts, and the registrations of this gateway at authorization servers."""

    async def get(self, key: AccountKey) -> Account | None: ...
    async def list_all(self) -> Sequence[Account]: ...

    async def put(self, account: Account) -> Account:
        """Store an account in place of the earlier one, and return it with its new version."""
        ...

    async def replace(self, account: Account) -> Account | None:
        """Store an account if the stored one still has its version. Return the new version.

        Its missing scopes are those of the stored one that the account does not have.
        """
        ...

    async def set_missing_scopes(self, key: AccountKey, scopes: tuple[str, ...]) -> None:
        """Store the missing scopes alone, without effect on a refresh that runs."""
        ...

    async def remove(self, key: AccountKey) -> bool: ...

    async def lease_refresh(
        self, account: Account, node: str, now: datetime, until: datetime
    ) -> bool:
        """Return whether this node alone may refresh the tokens until then.

        Not if the stored account has another version: its refresh token may be spent.
        """
        ...

    async def end_lease(self, key: AccountKey, node: str) -> None: ...

    async def get_client(self, issuer: str, redirect_uri: str) -> bytes | None:
        """Return the sealed registration of this gateway at an issuer."""
        ...

    async def put_client(self, issuer: str, redirect_uri: str, sealed: bytes) -> bytes:
        """Keep a registration, unless another node was first. Return the one that is kept."""
        ...

    async def remove_client(self, issuer: str, redirect_uri: str) -> None: ...


class UsedTokens(Protocol):
    """Remembers tokens that are valid once."""

    async def use_once(self, token: str, until: datetime) -> bool: ...


@dataclass(frozen=True, slots=True)
class AccountPolicy:
    """The settings of the accounts of one server."""

    server: str
    url: str
    mode: AccountMode = "auto"
    issuer: str = ""
    """The only issuer to use, or an empty text for the first one that the server names."""
    client: OAuthClientCredentials | None = None
    scopes: tuple[str, ...] = ()
    grant: GrantName = "authorization_code"
    identity_issuer: str = ""
    """Where the owners sign in to Comity, or an empty text for the only such issuer."""
    audience: str = ""
    """The audience to request in an exchange, beside the server as the resource."""

    @property
    def uses_id_token(self) -> bool:
        """Whether the ID token of the owner gives the account, and no sign-in at the server."""
        return self.grant in ("id_jag", "token_exchange")

    @property
    def trusted_urls(self) -> tuple[str, ...]:
        """The addresses that the operator wrote, whose hosts may be private."""
        return tuple(filter(None, (self.url, self.issuer)))
