"""The settings `[identity]` and the authorization servers of `[[identity.issuers]]`."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from comity.config.document import ConfigValue
from comity.config.fields import (
    TEXT,
    FieldType,
    Members,
    members_of,
    one_of,
    setting,
    table_of,
    text_list_type,
)
from comity.identity.authentication import TokenIssuer
from comity.mcp.actors import PrincipalKind

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


def _audience(value: ConfigValue) -> str:
    if not re.fullmatch(r"\S{1,500}", value.text()):
        raise value.wrong("must name this gateway, as https://gateway.example.org")
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
    "principal_prefix": (TEXT, "the prefix of that name in the name of the principal"),
    "algorithms": (
        FieldType(
            _algorithms, {"type": "array", "items": {"enum": list(ALGORITHMS)}, "minItems": 1}
        ),
        "the algorithms that may sign its tokens",
    ),
    "kind": (one_of("agent", "person"), "the kind of its principals; default: person"),
}


def _issuer(entry: ConfigValue) -> TokenIssuer:
    said: dict[str, Any] = members_of(entry, _MEMBERS, ("issuer", "audience"))
    kind = PrincipalKind(said.pop("kind", PrincipalKind.PERSON))
    prefix = said.pop("principal_prefix", f"{kind}:")
    return TokenIssuer(**said, kind=kind, principal_prefix=prefix)


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
    _issuers, {"type": "array", "items": table_of(_MEMBERS, required=["issuer", "audience"])}
)


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
    issuers: tuple[TokenIssuer, ...] = setting(
        (), "The authorization servers whose access tokens Comity accepts.", ISSUERS
    )
