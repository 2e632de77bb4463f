"""The settings `[identity]` and the authorization servers of `[[identity.issuers]]`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from comity.config.document import ConfigValue
from comity.config.fields import (
    TEXT,
    TRUTH,
    FieldType,
    Members,
    members_of,
    one_of,
    pattern_type,
    setting,
    table_of,
    text_list_type,
)
from comity.identity.authentication import TokenIssuer
from comity.mcp.actors import GROUP_PREFIX, PrincipalKind

type IdentityMode = Literal["local", "required"]

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Asymmetric algorithms only: never `none`, and none with a shared secret."""

_CLAIM: Final = r"[A-Za-z0-9_.:/-]{1,200}"
# HTTPS, or HTTP on this machine. No user information, query or fragment.
_URL: Final = (
    r"^(https://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])|http://(localhost|127\.0\.0\.1|\[::1\]))"
    r"(:[0-9]{1,5})?(/[^?#\s]*)?$"
)


def _url(value: ConfigValue) -> str:
    text = value.text()
    if not re.search(_URL, text):
        raise value.wrong("must be as https://login.example.org; http:// only for localhost")
    return text


def _claim(value: ConfigValue) -> str:
    if not re.fullmatch(_CLAIM, value.text()):
        raise value.wrong("must be the name of a claim, as sub or email")
    return value.text()


def _prefix(value: ConfigValue) -> str:
    if value.text().startswith(GROUP_PREFIX):
        raise value.wrong(f"must not begin with {GROUP_PREFIX}, which names groups in grants")
    return value.text()


def _audience(value: ConfigValue) -> str:
    if not re.fullmatch(r"\S{1,500}", value.text()):
        raise value.wrong("must name this gateway, as https://gateway.example.org")
    return value.text()


def _client(value: ConfigValue) -> str:
    if not re.fullmatch(r"[\x21-\x7e]{1,500}", value.text()):
        raise value.wrong("must be the client id that the provider shows")
    return value.text()


def _algorithms(value: ConfigValue) -> tuple[str, ...]:
    found = tuple(each.one_of(ALGORITHMS) for each in value.items())
    if not found:
        raise value.wrong("names no algorithm; leave it out, or name one")
    return found


PUBLIC_URL: Final = FieldType(
    lambda written: "" if written.value == "" else _url(written).rstrip("/"),
    {"type": "string", "pattern": rf"^$|{_URL}"},
)
_WHOLE_URL: Final = FieldType(_url, {"type": "string", "pattern": _URL})
_VARIABLE: Final = pattern_type(r"[A-Za-z_][A-Za-z0-9_]*", "OIDC_SECRET")
_SCOPES: Final = text_list_type(r"[\x21\x23-\x5b\x5d-\x7e]+", "a scope, as tools")

_MEMBERS: Final[Members] = {
    "issuer": (_WHOLE_URL, "the exact value of `iss` in its tokens"),
    "audience": (
        FieldType(_audience, TEXT.schema),
        "the value of `aud` in its tokens: the address of this gateway",
    ),
    "jwks_url": (_WHOLE_URL, "the URL of its keys; default: from its metadata"),
    "required_scopes": (_SCOPES, "scopes without which a token is not enough"),
    "principal_claim": (
        FieldType(_claim, TEXT.schema),
        "the claim with the name of the principal; default: sub",
    ),
    "principal_prefix": (
        FieldType(_prefix, TEXT.schema),
        "the prefix of that name in the name of the principal",
    ),
    "email_is_verified": (
        TRUTH,
        "whether each `email` is verified, for an issuer without the claim `email_verified`",
    ),
    "groups_claim": (
        FieldType(_claim, TEXT.schema),
        "the claim with the groups of the principal; default: the groups of its record",
    ),
    "algorithms": (
        FieldType(
            _algorithms, {"type": "array", "items": {"enum": list(ALGORITHMS)}, "minItems": 1}
        ),
        "the algorithms that may sign its tokens",
    ),
    "kind": (one_of("agent", "person"), "the kind of its principals; default: person"),
    "client_id": (
        FieldType(_client, TEXT.schema),
        "the id of Comity there; with it, people sign in to the console there",
    ),
    "client_secret_file": (TEXT, "the file of the secret of Comity there"),
    "client_secret_env": (_VARIABLE, "the environment variable of the secret of Comity there"),
    "scopes": (_SCOPES, "the scopes of a sign-in; default: openid, profile, email"),
    "name": (TEXT, "its name on the sign-in page; default: its host"),
}


def _issuer(entry: ConfigValue) -> TokenIssuer:
    said: dict[str, Any] = members_of(entry, _MEMBERS, ("issuer",))
    kind = PrincipalKind(said.pop("kind", PrincipalKind.PERSON))
    prefix = said.pop("principal_prefix", f"{kind}:")
    found = TokenIssuer(**said, kind=kind, principal_prefix=prefix)
    if reason := _conflict_in(found):
        raise entry.wrong(reason)
    return found


def _conflict_in(issuer: TokenIssuer) -> str:
    """Return why the members of an issuer do not fit together, or an empty text."""
    if not (issuer.audience or issuer.client_id):
        return "needs its audience for access tokens, or its client_id for the sign-in of people"
    if issuer.client_secret_file and issuer.client_secret_env:
        return "names a client_secret_file and a client_secret_env; keep one"
    if not issuer.client_id:
        has_secret = issuer.client_secret_file or issuer.client_secret_env
        return "has a secret, but no client_id" if has_secret else ""
    if issuer.audience == issuer.client_id:
        # An ID token has the client as its audience. It would count as an access token.
        return "needs different values of audience and client_id: register two clients there"
    if issuer.kind is not PrincipalKind.PERSON:
        return "has a client_id, but only people sign in; leave its kind out"
    return "" if "openid" in issuer.scopes else "needs the scope openid"


def _issuers(value: ConfigValue) -> tuple[TokenIssuer, ...]:
    entries = value.items()
    found = tuple(_issuer(entry) for entry in entries)
    names = [each.issuer for each in found]
    prefixes = [each.principal_prefix for each in found]
    for issuer, entry in zip(found, entries, strict=True):
        if names.count(issuer.issuer) > 1:
            raise entry.wrong("this issuer appears twice; keep one")
        if prefixes.count(issuer.principal_prefix) > 1:
            # Otherwise either issuer could issue tokens for the principals of the other.
            raise entry.wrong("two issuers need different values of principal_prefix")
    return found


ISSUERS: Final = FieldType(
    _issuers, {"type": "array", "items": table_of(_MEMBERS, required=["issuer"])}
)


_ROLE_MEMBERS: Final = text_list_type(
    r"[^\s*\x00-\x1f\x7f-\x9f][^*\x00-\x1f\x7f-\x9f\u2028\u2029]{0,255}(?<!\s)",
    "group:sre or person:ana@example.org; a role of all principals is not possible",
)
_ROLES: Final[Members] = {
    "viewer": (_ROLE_MEMBERS, "the subjects that may look at everything: admin/read"),
    "approver": (
        _ROLE_MEMBERS,
        "the subjects that may also answer approval requests: approval/answer",
    ),
    "admin": (
        _ROLE_MEMBERS,
        "the subjects that may also administer everything: all verbs of the gateway",
    ),
}
ROLES: Final = FieldType(lambda written: members_of(written, _ROLES), table_of(_ROLES))


def _scim_prefix(value: ConfigValue) -> str:
    others = (GROUP_PREFIX, *(f"{kind}:" for kind in PrincipalKind if kind != "person"))
    if not re.fullmatch(r"[a-z][A-Za-z0-9_./-]{0,62}:", value.text()) or value.text() in others:
        raise value.wrong("must be a prefix of people that ends with a colon, as person:")
    return value.text()


_SCIM: Final[Members] = {
    "principal_prefix": (
        FieldType(_scim_prefix, TEXT.schema),
        "the prefix of a userName in the id of its principal; default: person:",
    ),
}
SCIM: Final = FieldType(lambda written: members_of(written, _SCIM), table_of(_SCIM))
SCIM_PREFIX: Final = f"{PrincipalKind.PERSON}:"


@dataclass(frozen=True, slots=True)
class IdentitySettings:
    mode: IdentityMode = setting(
        "local",
        "`local`: requests from this machine need no credentials; `required`: all requests do.",
    )
    public_url: str = setting("", "The public URL of Comity, for OAuth.", PUBLIC_URL)
    accept_auth_member: bool = setting(
        False, "Whether a message may hold its credentials in the member `auth`."
    )
    pepper_file: str = setting("", "The file of the secret by which Comity recognises keys.")
    clock_skew: timedelta = setting(
        timedelta(seconds=30), "How far the clock of an issuer may be off."
    )
    session_lifetime: timedelta = setting(
        timedelta(hours=12), "How long a person stays signed in to the console at most."
    )
    session_idle_timeout: timedelta = setting(
        timedelta(hours=1), "How long a person stays signed in without a request."
    )
    issuers: tuple[TokenIssuer, ...] = setting(
        (),
        "The authorization servers whose access tokens Comity accepts, or where people sign in.",
        ISSUERS,
    )
    roles: Mapping[str, tuple[str, ...]] = setting(
        {},
        "The principals and groups with a role: `viewer`, `approver` or `admin`.",
        ROLES,
        is_live=True,
    )
    scim: Mapping[str, str] = setting(
        {}, "How users of an identity provider become principals: `principal_prefix`.", SCIM
    )
