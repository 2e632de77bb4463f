"""Access tokens as JWTs, proved by their issuer's keys: an OAuth 2.1 resource server. (RFC 9068)

Rule 1: the issuer is one that an operator wrote down; its keys, algorithms and audience count, and
        nothing that the token's own header points to.
Rule 2: signatures by a secret that two hold, and no signature, are no proof, whatever is written.
Rule 3: a token for somebody else is no token here. (RFC 8707)
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, Final, cast

import jwt
from jwt.exceptions import ExpiredSignatureError, PyJWTError

from comity.adapters.fetching import fetch
from comity.adapters.jwks import Fetch, KeySet
from comity.ports.identity import Issuer, Proof, Tokens
from comity.rules.keys import UNKNOWN
from comity.rules.proxies import Proxies
from comity.rules.resources import paths_for
from comity.wire.errors import (
    CREDENTIAL_EXPIRED,
    SCOPE_MISSING,
    UNAUTHENTICATED,
    MalformedMessage,
)
from comity.wire.parties import GATEWAY, LOCAL, Actor

_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_NAME: Final = re.compile(r"[^\s*\x00-\x1f\x7f]{1,200}")
_NOT_BY_TOKEN: Final = frozenset({LOCAL.party, GATEWAY})
_FAR_AWAY: Final = 4_102_444_800  # the year 2100; beyond the year 9999 there are no dates
_TOLD: Final = ("iss", "sub", "client_id", "azp", "scope", "scp")
_SEGMENTS: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


def open_tokens(issuers: Sequence[Issuer], skew: timedelta, proxies: Proxies) -> Tokens:
    return OAuthTokens(issuers, skew, fetching=partial(fetch, proxies=proxies))


class OAuthTokens:
    """Proves the tokens of some issuers."""

    def __init__(
        self,
        issuers: Sequence[Issuer],
        skew: timedelta,
        now: Callable[[], float] = time.monotonic,
        fetching: Fetch | None = None,
    ) -> None:
        self._issuers = {each.issuer: (each, KeySet(each, now, fetching)) for each in issuers}
        self._skew = skew

    async def prove(self, token: str) -> Proof:
        header, named = _unproven(token)
        known = self._issuers.get(named)
        if known is None:
            raise MalformedMessage(UNKNOWN, UNAUTHENTICATED)
        issuer, keys = known
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in issuer.algorithms or not isinstance(kid, str | None):
            raise MalformedMessage(UNKNOWN, UNAUTHENTICATED)
        key = await keys.find(kid, str(algorithm))
        if key is None:
            raise MalformedMessage(UNKNOWN, UNAUTHENTICATED)
        return _proof(issuer, self._claims(token, key, issuer))

    def _claims(self, token: str, key: jwt.PyJWK, issuer: Issuer) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=issuer.issuer,
                leeway=self._skew,
                # Who it is for is judged by our own rule, which knows parts of an address.
                options={"require": ["exp", "iss", "aud"], "verify_aud": False},
            )
        except ExpiredSignatureError:
            raise MalformedMessage(
                "this token has expired; get another", CREDENTIAL_EXPIRED
            ) from None
        except (PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            # Why is nobody's business who cannot make one.
            raise MalformedMessage(UNKNOWN, UNAUTHENTICATED) from None


def _unproven(token: str) -> tuple[Mapping[str, Any], str]:
    """What a token says of itself, good only to find out what would prove it."""
    try:
        if not _SEGMENTS.fullmatch(token):
            raise MalformedMessage(UNKNOWN, UNAUTHENTICATED)
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except (PyJWTError, ValueError, TypeError, RecursionError):
        raise MalformedMessage(UNKNOWN, UNAUTHENTICATED) from None
    kind: object = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in _TYPES or "crit" in header:
        raise MalformedMessage(UNKNOWN, UNAUTHENTICATED)
    issuer: object = claims.get("iss")
    return header, issuer if isinstance(issuer, str) else ""


def _proof(issuer: Issuer, claims: Mapping[str, Any]) -> Proof:
    paths = paths_for(_texts(claims["aud"]), issuer.audience)
    if not paths:
        raise MalformedMessage("this token is for another audience", UNAUTHENTICATED)
    held = _scopes(claims)
    lacking = [scope for scope in issuer.required_scopes if scope not in held]
    if lacking:
        raise MalformedMessage(f"this token lacks the scope {lacking[0]}", SCOPE_MISSING)
    told = {name: claims[name] for name in _TOLD if name in claims}
    ends = datetime.fromtimestamp(min(int(claims["exp"]), _FAR_AWAY), UTC)
    actor = Actor(
        _party(issuer, claims),
        issuer.kind,
        f"token:{issuer.issuer}",
        claims=MappingProxyType(told),
        expires_at=ends,
    )
    return Proof(actor, ends, paths)


def _party(issuer: Issuer, claims: Mapping[str, Any]) -> str:
    named: object = claims.get(issuer.party_claim)
    is_doubtful = issuer.party_claim == "email" and claims.get("email_verified") is False
    if not isinstance(named, str) or not _NAME.fullmatch(named) or is_doubtful:
        raise MalformedMessage(
            f"this token names no party: see its claim {issuer.party_claim}", UNAUTHENTICATED
        )
    party = f"{issuer.party_prefix}{named}"
    if party in _NOT_BY_TOKEN or party.startswith("system:"):
        raise MalformedMessage("this token names one whom no token can prove", UNAUTHENTICATED)
    return party


def _scopes(claims: Mapping[str, Any]) -> set[str]:
    """Of `scope`, one text, or of `scp`, which some issuers write instead."""
    said = [*_texts(claims.get("scope")), *_texts(claims.get("scp"))]
    return {scope for each in said for scope in each.split()}


def _texts(said: object) -> list[str]:
    several = cast("list[object]", said) if isinstance(said, list) else [said]
    return [each for each in several if isinstance(each, str)]
