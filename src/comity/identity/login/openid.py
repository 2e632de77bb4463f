"""Sign-in with an OpenID provider: discovery, authorization code with PKCE, and its tokens."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from comity.errors import UNAUTHENTICATED, UPSTREAM_DOWN, MalformedMessage, Unavailable
from comity.http.client.client import fetch_json, post_form
from comity.http.client.proxies import ProxySettings
from comity.identity.authentication import TokenIssuer, claimed_groups, paths_for
from comity.identity.login import messages
from comity.identity.login.messages import ProviderMetadata
from comity.identity.login.service import LogoutOrder, ProviderSecrets, SignedInPerson
from comity.identity.oauth import KeySet, party_of, unverified_claims, verify_token

log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 3600.0
STALE_SECONDS: Final = 24 * 3600.0
RETRY_SECONDS: Final = 2.0
MAX_CODE_LENGTH: Final = 4_096
MAX_TOKEN_LENGTH: Final = 64 * 1024

_ID_TYPES: Final = frozenset({"jwt"})
_LOGOUT_TYPES: Final = frozenset({"jwt", "logout+jwt", "application/logout+jwt"})


class OpenIdProvider:
    """One provider at which people sign in."""

    def __init__(
        self,
        issuer: TokenIssuer,
        secret: str,
        skew: timedelta,
        proxies: ProxySettings,
        *,
        needs_issuer: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.issuer = issuer
        self._secret = secret
        self._skew = skew
        self._proxies = proxies
        # With several providers, an answer that names no issuer could be of another one.
        self._needs_issuer = needs_issuer
        self._now = now
        self._metadata: ProviderMetadata | None = None
        self._keys: KeySet | None = None
        self._keys_url = ""
        self._fetched_at = self._attempted_at = -math.inf
        self._lock = asyncio.Lock()

    @property
    def id(self) -> str:
        return self.issuer.issuer

    @property
    def name(self) -> str:
        return self.issuer.name or urlsplit(self.issuer.issuer).netloc

    def is_own_audience(self, audiences: Sequence[str]) -> bool:
        own = self.issuer
        is_path = bool(own.audience and paths_for(audiences, own.audience))
        return is_path or own.client_id in audiences

    async def request_token(self, fields: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        return await self._post_token_request(await self.metadata(), fields)

    async def metadata(self) -> ProviderMetadata:
        """Return the metadata of the provider. Raises Unavailable."""
        if self._now() - self._fetched_at > FRESH_SECONDS:
            async with self._lock:
                if self._now() - self._attempted_at > RETRY_SECONDS:
                    await self._discover()
        if self._metadata is None or self._now() - self._fetched_at > STALE_SECONDS:
            raise Unavailable(
                f"{self.issuer.issuer} cannot be reached at present; try again soon", UPSTREAM_DOWN
            )
        return self._metadata

    async def authorization_url(self, chosen: ProviderSecrets, redirect_uri: str) -> str:
        """Return where the browser goes for a sign-in. Raises Unavailable."""
        metadata = await self.metadata()
        if self._needs_issuer and not metadata.sends_issuer:
            raise Unavailable(
                f"{self.issuer.issuer} sends no `iss` with its answers; it cannot be used beside "
                "another provider",
                UPSTREAM_DOWN,
            )
        fields = {
            "response_type": "code",
            "client_id": self.issuer.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self.issuer.scopes),
            "state": chosen.state,
            "nonce": chosen.nonce,
            "code_challenge": messages.challenge_of(chosen.verifier),
            "code_challenge_method": "S256",
        }
        return messages.authorization_url(metadata, fields)

    async def check_issuer(self, named: str | None) -> None:
        """Check the `iss` of an answer, which stops a mix-up of providers. (RFC 9207)

        Raises MalformedMessage.
        """
        metadata = await self.metadata()
        is_needed = metadata.sends_issuer or self._needs_issuer
        if named != self.issuer.issuer and (named is not None or is_needed):
            raise MalformedMessage("the answer came from another provider", UNAUTHENTICATED)

    async def redeem(self, code: str, chosen: ProviderSecrets, redirect_uri: str) -> SignedInPerson:
        """Exchange a code for the person who signed in. Raises MalformedMessage or Unavailable."""
        if not 0 < len(code) <= MAX_CODE_LENGTH:
            raise MalformedMessage("the answer holds no code", UNAUTHENTICATED)
        metadata = await self.metadata()
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": chosen.verifier,
        }
        status, answer = await self._post_token_request(metadata, fields)
        id_token: object = answer.get("id_token")
        if status != 200 or not isinstance(id_token, str):
            log.warning(
                "issuer %s: refused a code with status %d, %r",
                self.issuer.issuer,
                status,
                str(answer.get("error", ""))[:60],
            )
            raise MalformedMessage(
                "the provider did not accept the sign-in; start again", UNAUTHENTICATED
            )
        access: object = answer.get("access_token")
        access_token = access if isinstance(access, str) else ""
        claims = await self._verify_id_token(id_token, chosen.nonce, access_token)
        return await self._person(metadata, claims, id_token, access_token)

    async def read_logout_token(self, token: str) -> LogoutOrder:
        """Verify an order to end sessions. Raises MalformedMessage or Unavailable."""
        _, claims = await self._verify(token, _LOGOUT_TYPES)
        return LogoutOrder(*messages.check_logout_token(claims, self.issuer.client_id))

    async def end_session_url(self, id_token: str, back: str) -> str:
        """Return where the browser signs out at the provider, or an empty text."""
        try:
            metadata = await self.metadata()
        except Unavailable:
            return ""
        fields = {"client_id": self.issuer.client_id, "post_logout_redirect_uri": back}
        if id_token:
            fields["id_token_hint"] = id_token
        return messages.end_session_url(metadata, fields)

    async def _discover(self) -> None:
        self._attempted_at = self._now()
        try:
            found = await discover(self.issuer.issuer, self._proxies)
        except Unavailable as error:
            log.warning("issuer %s: %s", self.issuer.issuer, error)
            return
        place = self.issuer.jwks_url or found.jwks_uri
        if self._keys is None or place != self._keys_url:
            self._keys_url = place
            self._keys = KeySet(replace(self.issuer, jwks_url=place), self._now, self._fetch)
        self._metadata, self._fetched_at = found, self._now()

    async def _fetch(self, url: str) -> dict[str, Any]:
        return await fetch_json(url, self._proxies)

    async def _post_token_request(
        self, metadata: ProviderMetadata, fields: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        client, headers = {"client_id": self.issuer.client_id}, dict[str, str]()
        if self._secret and "client_secret_basic" in metadata.client_auth_methods:
            basic = messages.basic_authorization(self.issuer.client_id, self._secret)
            client, headers = {}, {"authorization": basic}
        elif self._secret:
            client["client_secret"] = self._secret
        return await post_form(
            metadata.token_endpoint, {**fields, **client}, headers, self._proxies
        )

    async def _verify_id_token(self, token: str, nonce: str, access_token: str) -> dict[str, Any]:
        algorithm, claims = await self._verify(token, _ID_TYPES)
        messages.check_id_token(claims, self.issuer.client_id, nonce)
        messages.check_access_token_hash(claims, algorithm, access_token)
        return claims

    async def _verify(self, token: str, types: frozenset[str]) -> tuple[str, dict[str, Any]]:
        await self.metadata()
        if self._keys is None or not 0 < len(token) <= MAX_TOKEN_LENGTH:
            raise MalformedMessage("the token is too long", UNAUTHENTICATED)
        header, named = unverified_claims(token, types)
        if named != self.issuer.issuer:
            raise MalformedMessage("the token is of another issuer", UNAUTHENTICATED)
        claims = await verify_token(token, header, self.issuer, self._keys, self._skew)
        return str(header["alg"]), claims

    async def _person(
        self,
        metadata: ProviderMetadata,
        claims: Mapping[str, Any],
        id_token: str,
        access_token: str,
    ) -> SignedInPerson:
        subject, groups = messages.word_in(claims, "sub"), None
        if self.issuer.groups_claim:
            groups = claimed_groups(self.issuer, claims)
            if groups is None:
                about = await self._userinfo(metadata, subject, access_token)
                groups = claimed_groups(self.issuer, about) or ()
        return SignedInPerson(
            party_of(self.issuer, claims),
            subject,
            messages.word_in(claims, "sid") if "sid" in claims else "",
            messages.label_in(claims),
            groups,
            id_token,
        )

    async def _userinfo(
        self, metadata: ProviderMetadata, subject: str, access_token: str
    ) -> Mapping[str, Any]:
        """Return the claims of the userinfo endpoint, for groups that the ID token lacks.

        Raises MalformedMessage if they are those of another person, and Unavailable.
        """
        if not metadata.userinfo_endpoint or not access_token.isprintable() or not access_token:
            return {}
        headers = {"authorization": f"Bearer {access_token}"}
        about = await fetch_json(metadata.userinfo_endpoint, self._proxies, headers=headers)
        if about.get("sub") != subject:
            raise MalformedMessage("the provider described another person", UNAUTHENTICATED)
        return about


async def discover(issuer: str, proxies: ProxySettings) -> ProviderMetadata:
    """Read the published metadata of a provider. Raises Unavailable."""
    document = await fetch_json(f"{issuer.rstrip('/')}{messages.WELL_KNOWN}", proxies)
    return messages.read_metadata(document, issuer)
