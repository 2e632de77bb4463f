"""Accounts that the sign-in to Comity gives: by identity assertion, or by token exchange."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from comity.accounts import messages
from comity.accounts.issuers import AuthorizationServers, ServerAuthorization
from comity.accounts.messages import Challenge, OAuthClientCredentials, TokenAnswer
from comity.accounts.model import AccountPolicy
from comity.errors import Unavailable


class IdTokens(Protocol):
    """Exchanges the ID tokens of people, without showing them."""

    def issuer_named(self, named: str) -> str:
        """Return the issuer of a setting: that one, or else the only one. Raises Unavailable."""
        ...

    async def exchange(
        self, party: str, issuer: str, fields: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        """Return the issuer's answer, or None if the person must sign in. Raises Unavailable."""
        ...


class IssuedToken(NamedTuple):
    """An access token, and what it was issued for."""

    answer: TokenAnswer
    resource: str
    issuer: str
    client: OAuthClientCredentials


class IdentityGrants:
    """Gets access tokens with the ID tokens of the people who are signed in."""

    def __init__(self, servers: AuthorizationServers, id_tokens: IdTokens) -> None:
        self._servers = servers
        self._id_tokens = id_tokens

    def issuer_of(self, policy: AccountPolicy) -> str:
        """Return where the owners of accounts sign in to Comity. Raises Unavailable."""
        return self._id_tokens.issuer_named(policy.identity_issuer)

    async def request(
        self,
        policy: AccountPolicy,
        owner: str,
        challenge: Challenge | None,
        scopes: tuple[str, ...] = (),
    ) -> IssuedToken | None:
        """Get an access token, or return None if the owner must sign in to Comity again.

        `scopes` are those that an earlier token had or lacked. Raises Unavailable.
        """
        try:
            if policy.grant == "id_jag":
                return await self._request_by_assertion(policy, owner, challenge, scopes)
            return await self._request_by_exchange(policy, owner, challenge, scopes)
        except Unavailable as error:
            raise Unavailable(
                f"there is no account at {policy.server!r} for this call: {error}", error.fault
            ) from None

    async def _request_by_assertion(
        self,
        policy: AccountPolicy,
        owner: str,
        challenge: Challenge | None,
        earlier: tuple[str, ...],
    ) -> IssuedToken | None:
        """Exchange the ID token for an assertion, and that for a token. (RFC 8693, RFC 7523)"""
        assert policy.client is not None
        found = await self._servers.find(policy, challenge)
        issuer, resource = self.issuer_of(policy), found.resource.resource
        scopes = _scopes(policy, challenge, found.resource.scopes, earlier)
        answer = await self._id_tokens.exchange(
            owner,
            issuer,
            {
                "requested_token_type": messages.ID_JAG,
                "audience": found.issuer.issuer,
                "resource": resource,
                **_scope_field(scopes),
            },
        )
        if answer is None:
            return None
        assertion = messages.read_assertion(
            answer, issuer, found.issuer.issuer, resource, policy.client.client_id
        )
        issued = await self._present(policy, found, assertion, scopes)
        return IssuedToken(_settled(issued, scopes), resource, found.issuer.issuer, policy.client)

    async def _present(
        self,
        policy: AccountPolicy,
        found: ServerAuthorization,
        assertion: str,
        scopes: tuple[str, ...],
    ) -> TokenAnswer:
        assert policy.client is not None
        fields = {
            "grant_type": messages.JWT_BEARER,
            "assertion": assertion,
            "resource": found.resource.resource,
            **_scope_field(scopes),
        }
        issued = await self._servers.oauth.request_token(
            found.issuer, policy.client, fields, policy.trusted_urls
        )
        if isinstance(issued, str):
            # Another sign-in would not help: the issuer has vouched for the person.
            raise Unavailable(
                f"the authorization server {found.issuer.issuer:.200} refused the identity "
                f"assertion: {issued}"
            )
        return issued

    async def _request_by_exchange(
        self,
        policy: AccountPolicy,
        owner: str,
        challenge: Challenge | None,
        earlier: tuple[str, ...],
    ) -> IssuedToken | None:
        """Exchange the ID token for an access token of the same issuer. (RFC 8693)"""
        issuer, found = self.issuer_of(policy), await self._servers.resource_of(policy, challenge)
        scopes = _scopes(policy, challenge, found.scopes, earlier)
        fields = {
            "requested_token_type": messages.ACCESS_TOKEN,
            "resource": found.resource,
            **_scope_field(scopes),
        }
        if policy.audience:
            fields["audience"] = policy.audience
        answer = await self._id_tokens.exchange(owner, issuer, fields)
        if answer is None:
            return None
        issued = messages.read_exchanged_token(answer, found.resource, policy.audience)
        return IssuedToken(
            _settled(issued, scopes), found.resource, issuer, OAuthClientCredentials("")
        )


def _scopes(
    policy: AccountPolicy,
    challenge: Challenge | None,
    supported: tuple[str, ...],
    earlier: tuple[str, ...],
) -> tuple[str, ...]:
    demanded = () if challenge is None else challenge.scopes
    return tuple(dict.fromkeys((*(policy.scopes or demanded or supported), *earlier)))


def _scope_field(scopes: tuple[str, ...]) -> dict[str, str]:
    return {"scope": " ".join(scopes)} if scopes else {}


def _settled(answer: TokenAnswer, scopes: tuple[str, ...]) -> TokenAnswer:
    """Return an answer with its scopes, and without a refresh token.

    The issuer of the ID token decides each time anew, which a refresh token would outlive.
    """
    granted = scopes if answer.scopes is None else answer.scopes
    return replace(answer, refresh_token="", scopes=granted)
