"""The authorization servers of `[[identity.issuers]]`, each read into one issuer."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from comity.config.kinds import TEXT, Kind, one_of, table_of, texts
from comity.ports.identity import Issuer
from comity.rules.documents import Written
from comity.wire.parties import PartyKind

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signatures by a key that only the issuer has; never `none`, and none by a shared secret."""

_CLAIM: Final = r"[A-Za-z0-9_.:/-]{1,200}"
# Encrypted, unless it stays on this machine; without a user, a query or a fragment.
_URL: Final = (
    r"^(https://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])|http://(localhost|127\.0\.0\.1|\[::1\]))"
    r"(:[0-9]{1,5})?(/[^?#\s]*)?$"
)


def _url(written: Written) -> str:
    text = written.text()
    if not re.search(_URL, text):
        raise written.wrong("must be as https://login.example.org; http:// only for localhost")
    return text


def _claim(written: Written) -> str:
    if not re.fullmatch(_CLAIM, written.text()):
        raise written.wrong("must be the name of a claim, as sub or email")
    return written.text()


def _audience(written: Written) -> str:
    if not re.fullmatch(r"\S{1,500}", written.text()):
        raise written.wrong("must name this gateway, as https://gateway.example.org")
    return written.text()


def _algorithms(written: Written) -> tuple[str, ...]:
    found = tuple(each.one_of(ALGORITHMS) for each in written.items())
    if not found:
        raise written.wrong("names no algorithm; leave it out, or name one")
    return found


PUBLIC_URL: Final = Kind(
    lambda written: "" if written.value == "" else _url(written).rstrip("/"),
    {"type": "string", "pattern": rf"^$|{_URL}"},
)
_WHOLE_URL: Final = Kind(_url, {"type": "string", "pattern": _URL})
_SCOPES: Final = texts(r"[\x21\x23-\x5b\x5d-\x7e]+", "a scope, as tools")

_MEMBERS: Final[Mapping[str, tuple[Kind, str]]] = {
    "issuer": (_WHOLE_URL, "what its tokens name as `iss`, exactly"),
    "audience": (Kind(_audience, TEXT.schema), "what they name as `aud`: this gateway's address"),
    "jwks_url": (_WHOLE_URL, "where its keys are; found by its metadata unless given"),
    "required_scopes": (_SCOPES, "scopes without which a token is not enough"),
    "party_claim": (Kind(_claim, TEXT.schema), "the claim that names the party; sub unless given"),
    "party_prefix": (TEXT, "what stands before that name in the party's id"),
    "algorithms": (
        Kind(_algorithms, {"type": "array", "items": {"enum": list(ALGORITHMS)}, "minItems": 1}),
        "by which its tokens may be signed",
    ),
    "kind": (one_of("agent", "person"), "what its parties are; person unless given"),
}


def _issuer(entry: Written) -> Issuer:
    table = entry.table()
    for stranger in entry.unknown(_MEMBERS):
        raise stranger
    for needed in ("issuer", "audience"):
        if needed not in table:
            raise entry.wrong(f"needs its {needed}: {_MEMBERS[needed][1]}")
    said: dict[str, Any] = {name: _MEMBERS[name][0].read(each) for name, each in table.items()}
    kind = PartyKind(said.pop("kind", PartyKind.PERSON))
    prefix = said.pop("party_prefix", f"{kind}:")
    return Issuer(**said, kind=kind, party_prefix=prefix)


def _issuers(written: Written) -> tuple[Issuer, ...]:
    entries = written.items()
    found = tuple(_issuer(entry) for entry in entries)
    names = [each.issuer for each in found]
    prefixes = [each.party_prefix for each in found]
    for issuer, entry in zip(found, entries, strict=True):
        if names.count(issuer.issuer) > 1:
            raise entry.wrong("this issuer stands here twice; keep one")
        if prefixes.count(issuer.party_prefix) > 1:
            # Either could otherwise issue tokens in the name of the other's parties.
            raise entry.wrong("two issuers need two party_prefixes, so that their parties differ")
    return found


_READ: Final[Callable[[Written], tuple[object, ...]]] = _issuers
ISSUERS: Final = Kind(
    _READ, {"type": "array", "items": table_of(_MEMBERS, required=["issuer", "audience"])}
)
