"""Verification of OAuth access tokens with the public keys of their issuers."""

import asyncio
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, Final, cast
from urllib.parse import urlsplit

import jwt
from jwt import PyJWK
from jwt.exceptions import ExpiredSignatureError, PyJWTError

from comity.errors import (
    CREDENTIAL_EXPIRED,
    POLICY_UNKNOWN,
    SCOPE_MISSING,
    UNAUTHENTICATED,
    MalformedMessage,
    Unavailable,
)
from comity.http.client.client import fetch_json
from comity.http.client.proxies import ProxySettings
from comity.identity.authentication import (
    TokenClaims,
    TokenIssuer,
    TokenVerifier,
    claimed_groups,
    paths_for,
)
from comity.identity.keys import UNKNOWN
from comity.mcp.actors import GATEWAY, GROUP_PREFIX, LOCAL, Actor
from comity.toolkit.text import has_hidden

log = logging.getLogger(__name__)

type Fetch = Callable[[str], Awaitable[dict[str, Any]]]

FRESH_SECONDS: Final = 300.0
STALE_SECONDS: Final = 3600.0
LOOK_EVERY_SECONDS: Final = 2.0
MAX_KEYS: Final = 64
MIN_RSA_BITS: Final = 2048
_FAMILIES: Final[Mapping[str, str]] = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


class KeySet:
    """The signing keys of one issuer."""

    def __init__(
        self, issuer: TokenIssuer, now: Callable[[], float], fetch: Fetch | None = None
    ) -> None:
        self._issuer = issuer
        self._now = now
        self._fetch = fetch or fetch_json
        self._jwks: list[dict[str, Any]] = []
        self._keys: dict[tuple[str | None, str], PyJWK] = {}
        self._fetched_at = self._attempted_at = -math.inf
        self._fetch_task: asyncio.Task[None] | None = None

    async def find(self, kid: str | None, algorithm: str) -> PyJWK | None:
        """Return the key with this id and algorithm, or None.

        Raises Unavailable if no keys are known.
        """
        age = self._now() - self._fetched_at
        if age > STALE_SECONDS:
            await self._look()
        elif age > FRESH_SECONDS:
            self._start_fetch()
        found = self._held(kid, algorithm)
        if found is None and self._now() - self._attempted_at > LOOK_EVERY_SECONDS:
            await self._look()
            found = self._held(kid, algorithm)
        if self._now() - self._fetched_at > STALE_SECONDS:
            raise Unavailable(
                f"the keys of {self._issuer.issuer} cannot be had at present", POLICY_UNKNOWN
            )
        return found

    def _held(self, kid: str | None, algorithm: str) -> PyJWK | None:
        held = self._keys.get((kid, algorithm))
        if held is None:
            held = self._build_key(kid, algorithm)
            if held is not None:
                self._keys[kid, algorithm] = held
        return held

    def _build_key(self, kid: str | None, algorithm: str) -> PyJWK | None:
        fitting = [jwk for jwk in self._jwks if _fits(jwk, kid, algorithm)]
        # A token without a key id is accepted only if exactly one key fits. Comity does not try
        # several.
        if len(fitting) != 1:
            return None
        try:
            made = PyJWK(fitting[0], algorithm)
        except (PyJWTError, ValueError, TypeError, KeyError):
            return None
        bits = getattr(made.key, "key_size", 0)
        return None if fitting[0]["kty"] == "RSA" and bits < MIN_RSA_BITS else made

    async def _look(self) -> None:
        """Fetch the keys, or wait for a fetch that is in progress. A very recent attempt counts."""
        if self._fetch_task is not None or self._now() - self._attempted_at > LOOK_EVERY_SECONDS:
            await asyncio.wait([self._start_fetch()])

    def _start_fetch(self) -> asyncio.Task[None]:
        if self._fetch_task is None:
            self._fetch_task = asyncio.ensure_future(self._refresh())
            self._fetch_task.add_done_callback(self._on_fetch_done)
        return self._fetch_task

    def _on_fetch_done(self, _: asyncio.Task[None]) -> None:
        self._fetch_task = None

    async def _refresh(self) -> None:
        self._attempted_at = self._now()
        try:
            found = await self.read()
        except Unavailable as error:
            log.warning("issuer %s: %s", self._issuer.issuer, error)
        except Exception:
            log.exception("Fetching the keys of %s failed", self._issuer.issuer)
        else:
            self._jwks, self._keys, self._fetched_at = found, {}, self._now()

    async def read(self) -> list[dict[str, Any]]:
        """Fetch the keys now. Raises Unavailable."""
        document = await self._fetch(self._issuer.jwks_url or await self._discover_jwks_url())
        listed: object = document.get("keys")
        if not isinstance(listed, list):
            raise Unavailable("its key set holds no keys")
        keys = cast("list[object]", listed)[:MAX_KEYS]
        return [cast("dict[str, Any]", each) for each in keys if isinstance(each, dict)]

    async def _discover_jwks_url(self) -> str:
        """Find the URL of the keys in the issuer's OAuth or OpenID Connect metadata. (RFC 8414)"""
        issuer = self._issuer.issuer
        parts = urlsplit(issuer)
        path = parts.path.rstrip("/")
        origin = f"{parts.scheme}://{parts.netloc}"
        refused: Unavailable | None = None
        for place in (
            f"{origin}/.well-known/oauth-authorization-server{path}",
            f"{issuer.rstrip('/')}/.well-known/openid-configuration",
        ):
            try:
                return _keys_url(await self._fetch(place), issuer)
            except Unavailable as error:
                refused = error
        raise Unavailable(f"{refused}; name its keys with jwks_url")


async def count_keys(issuer: TokenIssuer, proxies: ProxySettings) -> int:
    """Return the number of keys that an issuer publishes now. Raises Unavailable."""
    return len(await KeySet(issuer, time.monotonic, partial(fetch_json, proxies=proxies)).read())


def _keys_url(metadata: dict[str, Any], issuer: str) -> str:
    """Return the URL of the keys. Raises Unavailable if it is not on the issuer's host and scheme.

    The operator has approved no other host.
    """
    url: object = metadata.get("jwks_uri")
    if metadata.get("issuer") != issuer:
        raise Unavailable("its metadata is that of another issuer")
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        raise Unavailable("its metadata names no keys")
    keys, own = urlsplit(url), urlsplit(issuer)
    if keys.netloc != own.netloc:
        raise Unavailable("its keys are on another host")
    if keys.scheme != own.scheme:
        raise Unavailable(f"its keys are not at {own.scheme}, as it is itself")
    return url


def _fits(jwk: dict[str, Any], kid: str | None, algorithm: str) -> bool:
    return (
        (kid is None or jwk.get("kid") == kid)
        and jwk.get("kty") == _FAMILIES[algorithm[:2]]
        and jwk.get("use", "sig") == "sig"
        and jwk.get("alg", algorithm) == algorithm
    )


_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_NAME: Final = re.compile(r"[^\s*\x00-\x1f\x7f]{1,200}")
_RESERVED_PARTIES: Final = frozenset({LOCAL.party, GATEWAY})
_FAR_AWAY: Final = 4_102_444_800  # the year 2100; beyond the year 9999 there are no dates
_TIMES: Final = ("exp", "nbf", "iat")
_LOGGED_CLAIMS: Final = ("iss", "sub", "client_id", "azp", "scope", "scp")
_SEGMENTS: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


def open_tokens(
    issuers: Sequence[TokenIssuer], skew: timedelta, proxies: ProxySettings
) -> TokenVerifier:
    return OAuthTokens(issuers, skew, fetch=partial(fetch_json, proxies=proxies))


class OAuthTokens:
    """Verifies the tokens of some issuers."""

    def __init__(
        self,
        issuers: Sequence[TokenIssuer],
        skew: timedelta,
        now: Callable[[], float] = time.monotonic,
        fetch: Fetch | None = None,
    ) -> None:
        self._issuers = {each.issuer: (each, KeySet(each, now, fetch)) for each in issuers}
        self._skew = skew

    async def prove(self, token: str) -> TokenClaims:
        header, named = unverified_claims(token, _TYPES)
        known = self._issuers.get(named)
        if known is None:
            raise MalformedMessage(UNKNOWN, UNAUTHENTICATED)
        issuer, keys = known
        claims = await verify_token(token, header, issuer, keys, self._skew)
        return _proof(issuer, claims)


async def verify_token(
    token: str, header: Mapping[str, Any], issuer: TokenIssuer, keys: KeySet, skew: timedelta
) -> dict[str, Any]:
    """Return the claims of a token of this issuer. The caller checks its audience.

    Raises MalformedMessage if the signature, the issuer or a time is wrong.
    """
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in issuer.algorithms or not isinstance(kid, str | None):
        raise MalformedMessage(UNKNOWN, UNAUTHENTICATED)
    key = await keys.find(kid, str(algorithm))
    if key is None:
        raise MalformedMessage(UNKNOWN, UNAUTHENTICATED)
    try:
        claims = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            issuer=issuer.issuer,
            leeway=skew,
            # The audience is checked by `paths_for`, which also accepts parts of an address.
            options={"require": ["exp", "iss", "aud"], "verify_aud": False},
        )
    except ExpiredSignatureError:
        raise MalformedMessage("this token has expired; get another", CREDENTIAL_EXPIRED) from None
    except (PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
        # The reason is not disclosed, since it would only help an attacker.
        raise MalformedMessage(UNKNOWN, UNAUTHENTICATED) from None
    # The library takes a time that is a text for a number.
    if any(type(claims.get(name, 0)) not in (int, float) for name in _TIMES):
        raise MalformedMessage(UNKNOWN, UNAUTHENTICATED)
    return claims


def unverified_claims(token: str, types: Collection[str]) -> tuple[Mapping[str, Any], str]:
    """Return the header and the issuer of a token, only to select what verifies it.

    Raises MalformedMessage if it is of none of these types.
    """
    try:
        if not _SEGMENTS.fullmatch(token):
            raise MalformedMessage(UNKNOWN, UNAUTHENTICATED)
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except (PyJWTError, ValueError, TypeError, RecursionError):
        raise MalformedMessage(UNKNOWN, UNAUTHENTICATED) from None
    kind: object = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in types or "crit" in header:
        raise MalformedMessage(UNKNOWN, UNAUTHENTICATED)
    issuer: object = claims.get("iss")
    return header, issuer if isinstance(issuer, str) else ""


def _proof(issuer: TokenIssuer, claims: dict[str, Any]) -> TokenClaims:
    paths = paths_for(texts_in(claims["aud"]), issuer.audience)
    if not paths:
        raise MalformedMessage("this token is for another audience", UNAUTHENTICATED)
    held = _scopes(claims)
    lacking = [scope for scope in issuer.required_scopes if scope not in held]
    if lacking:
        raise MalformedMessage(f"this token lacks the scope {lacking[0]}", SCOPE_MISSING)
    told = {name: claims[name] for name in _LOGGED_CLAIMS if name in claims}
    ends = datetime.fromtimestamp(min(int(claims["exp"]), _FAR_AWAY), UTC)
    actor = Actor(
        party_of(issuer, claims),
        issuer.kind,
        f"token:{issuer.issuer}",
        claims=MappingProxyType(told),
        expires_at=ends,
        groups=(claimed_groups(issuer, claims) or ()) if issuer.groups_claim else (),
        has_claimed_groups=bool(issuer.groups_claim),
    )
    return TokenClaims(actor, ends, paths)


def party_of(issuer: TokenIssuer, claims: Mapping[str, Any]) -> str:
    """Return the principal that verified claims name. Raises MalformedMessage."""
    named: object = claims.get(issuer.principal_claim)
    if issuer.principal_claim == "email" and not _is_email_verified(issuer, claims):
        raise MalformedMessage(
            "this token does not say that its email is verified: see email_is_verified in "
            "[[identity.issuers]]",
            UNAUTHENTICATED,
        )
    if not isinstance(named, str) or not _NAME.fullmatch(named) or has_hidden(named):
        raise MalformedMessage(
            f"this token names no principal: see its claim {issuer.principal_claim}",
            UNAUTHENTICATED,
        )
    party = f"{issuer.principal_prefix}{named}"
    if party in _RESERVED_PARTIES or party.startswith(("system:", GROUP_PREFIX)):
        raise MalformedMessage("this token names one whom no token can prove", UNAUTHENTICATED)
    return party


def _is_email_verified(issuer: TokenIssuer, claims: Mapping[str, Any]) -> bool:
    """Return whether the issuer vouches for the email. Some send the claim as text, some none."""
    if issuer.email_is_verified and "email_verified" not in claims:
        return True
    verified: object = claims.get("email_verified")
    return verified is True or verified == "true"


def _scopes(claims: Mapping[str, Any]) -> set[str]:
    """Read the scopes of `scope`, or of `scp`, which some issuers use instead."""
    said = [*texts_in(claims.get("scope")), *texts_in(claims.get("scp"))]
    return {scope for each in said for scope in each.split()}


def texts_in(value: object) -> list[str]:
    """Return the texts of a claim that is one text or a list of them."""
    several = cast("list[object]", value) if isinstance(value, list) else [value]
    return [each for each in several if isinstance(each, str)]
