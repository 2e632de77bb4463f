"""The authorization servers of remote servers, and this gateway's registrations there."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from comity.accounts import messages
from comity.accounts.messages import (
    Challenge,
    IssuerMetadata,
    OAuthClientCredentials,
    ResourceMetadata,
)
from comity.accounts.model import AccountPolicy, AccountStore, client_context
from comity.accounts.oauth_client import OAuthHttpClient
from comity.errors import SIGN_IN_REQUIRED, UPSTREAM_DOWN, Fault, Unavailable
from comity.secrets.model import Sealer

FRESH_SECONDS: Final = 600.0
"""How long the metadata of a server and of its issuer is used before it is read again."""

CALLBACK_PATH: Final = "/accounts/callback/"
CLIENT_DOCUMENT_PATH: Final = "/accounts/client/"
MAX_REMEMBERED: Final = 1_000


def redirect_uri_for(origin: str, server: str) -> str:
    """Return the address to which people come back from the sign-in of a server.

    Each server has its own, and so its own client at an issuer. A hostile issuer that sends people
    to an honest one gets no code, because the honest one knows another address. (RFC 9700, 4.4)
    """
    return f"{origin}{CALLBACK_PATH}{server}"


def client_document_url(origin: str, server: str) -> str:
    """Return the address of the client ID metadata document for the issuer of a server."""
    return f"{origin}{CLIENT_DOCUMENT_PATH}{server}"


@dataclass(frozen=True, slots=True)
class ServerAuthorization:
    """Where people sign in for a server."""

    resource: ResourceMetadata
    issuer: IssuerMetadata


class AuthorizationServers:
    """Finds the authorization server of each server, and this gateway's client there."""

    def __init__(
        self,
        oauth: OAuthHttpClient,
        store: AccountStore,
        sealer: Sealer,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.oauth = oauth
        self._store = store
        self._sealer = sealer
        self._now = now
        self._found: dict[tuple[str, str, str], tuple[float, ServerAuthorization]] = {}

    async def find(
        self, policy: AccountPolicy, challenge: Challenge | None, issuer: str = ""
    ) -> ServerAuthorization:
        """Return where to sign in for a server. Raises Unavailable.

        `issuer` demands one of several, because an earlier step used it. The operator may have
        chosen another one since, whose client that issuer must not get.
        """
        if issuer and policy.issuer and not messages.is_same_issuer(issuer, policy.issuer):
            raise _issuer_left_error(policy, issuer, SIGN_IN_REQUIRED)
        named = issuer or policy.issuer
        # A discovery for an earlier address may end after the server has moved.
        key = (policy.server, policy.url, named)
        kept = self._found.get(key)
        if kept is not None and self._now() - kept[0] < FRESH_SECONDS:
            return kept[1]
        resource = await self.resource_of(policy, challenge)
        chosen = next(
            (
                each
                for each in resource.issuers
                if not named or messages.is_same_issuer(named, each)
            ),
            "",
        )
        if not chosen:
            # An account of an issuer that the server has left is of no use any more.
            raise _issuer_left_error(policy, named, SIGN_IN_REQUIRED if issuer else UPSTREAM_DOWN)
        metadata = await self.oauth.issuer_metadata(chosen, policy.trusted_urls)
        found = ServerAuthorization(resource, metadata)
        if len(self._found) >= MAX_REMEMBERED:
            self._found.clear()
        self._found[key] = self._now(), found
        return found

    async def resource_of(
        self, policy: AccountPolicy, challenge: Challenge | None
    ) -> ResourceMetadata:
        """Return the metadata of a server, read now. Raises Unavailable if it cannot be used."""
        try:
            found = await self.oauth.discover(policy.url, challenge)
        except Unavailable:
            if not policy.issuer:
                raise
            found = None
        if found is not None:
            return found
        # A server without metadata is its own issuer, as in MCP 2025-03-26, unless the operator
        # names another one.
        return ResourceMetadata(policy.url, (policy.issuer or messages.base_url(policy.url),))

    def forget(self, server: str) -> None:
        """Read the metadata of a server again when it is needed, because it may have changed."""
        self._found = {key: kept for key, kept in self._found.items() if key[0] != server}

    async def client_for(
        self, policy: AccountPolicy, found: ServerAuthorization, origin: str
    ) -> OAuthClientCredentials:
        """Return this gateway's client at an issuer, registered now if need be.

        A configured client comes first, then a client ID metadata document, then a dynamic
        registration, as MCP prescribes. Raises Unavailable.
        """
        if policy.client is not None:
            return policy.client
        metadata, redirect_uri = found.issuer, redirect_uri_for(origin, policy.server)
        if metadata.takes_client_documents and origin.startswith("https:"):
            return OAuthClientCredentials(client_document_url(origin, policy.server))
        kept = await self._store.get_client(metadata.issuer, redirect_uri)
        known = None if kept is None else await self._unseal(kept, metadata.issuer, redirect_uri)
        if known is not None:
            return known
        if not metadata.registration_endpoint:
            raise Unavailable(
                f"{metadata.issuer:.200} registers no clients by itself; register Comity there "
                f"with the redirect address {redirect_uri} and set issuer and client_id in "
                f"[servers.oauth] of server {policy.server!r}",
                UPSTREAM_DOWN,
            )
        request = messages.registration_request(
            origin, redirect_uri, metadata, policy.scopes or found.resource.scopes
        )
        new = await self.oauth.register(metadata, request, policy.trusted_urls)
        sealed = await self._sealer.seal(
            msgspec.json.encode(_fields(new)), client_context(metadata.issuer, redirect_uri)
        )
        if kept is not None:
            await self._store.remove_client(metadata.issuer, redirect_uri)
        stored = await self._store.put_client(metadata.issuer, redirect_uri, sealed)
        # Another node may have registered at the same time. All use the one that is kept.
        return await self._unseal(stored, metadata.issuer, redirect_uri) or new

    async def forget_client(self, issuer: str, redirect_uri: str) -> None:
        """Forget a registration that the issuer no longer knows."""
        await self._store.remove_client(issuer, redirect_uri)

    async def _unseal(
        self, sealed: bytes, issuer: str, redirect_uri: str
    ) -> OAuthClientCredentials | None:
        plain = await self._sealer.unseal(sealed, client_context(issuer, redirect_uri))
        if plain is None:
            return None
        return OAuthClientCredentials(*msgspec.json.decode(plain, type=tuple[str, str, str]))


def _issuer_left_error(policy: AccountPolicy, issuer: str, fault: Fault) -> Unavailable:
    return Unavailable(f"server {policy.server!r} does not name the issuer {issuer:.200}", fault)


def _fields(client: OAuthClientCredentials) -> tuple[str, str, str]:
    return client.client_id, client.secret, client.auth_method
