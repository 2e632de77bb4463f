"""Wire forms of OpenID Connect: provider metadata, requests, and the claims of ID tokens."""

import base64
import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import quote, urlencode, urlsplit

from comity.errors import UNAUTHENTICATED, MalformedMessage, Unavailable
from comity.mcp import jsonrpc

WELL_KNOWN: Final = "/.well-known/openid-configuration"
LOGOUT_EVENT: Final = "http://schemas.openid.net/event/backchannel-logout"
MAX_WORD_LENGTH: Final = 255
"""The limit of `sub` and `sid`. OpenID Connect sets it for `sub`."""

_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_HASHES: Final = {"256": "sha256", "384": "sha384", "512": "sha512", "EdDSA": "sha512"}


@dataclass(frozen=True, slots=True)
class ProviderMetadata:
    """The published metadata of a provider, as far as a sign-in needs it."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    end_session_endpoint: str = ""
    sends_issuer: bool = False
    client_auth_methods: tuple[str, ...] = ("client_secret_basic",)


def read_metadata(document: Mapping[str, object], issuer: str) -> ProviderMetadata:
    """Read the published metadata of a provider. Raises Unavailable if it is unusable.

    The endpoints may be on other hosts, as those of Google are. They must have the scheme of the
    issuer, so that an issuer of the Internet names no plain service of our network.
    """
    if document.get("issuer") != issuer:
        raise Unavailable("its metadata is that of another issuer")
    endpoints = {name: _endpoint(document, name, issuer) for name in _ENDPOINTS}
    if missing := [name for name, url in endpoints.items() if not url]:
        raise Unavailable(f"its metadata has no usable {missing[0]}")
    if "code" not in _texts(document.get("response_types_supported", ["code"])):
        raise Unavailable("it supports no authorization code")
    if "S256" not in _texts(document.get("code_challenge_methods_supported", ["S256"])):
        # Without PKCE, a stolen code would sign in the thief. Comity never falls back.
        raise Unavailable("it supports PKCE without S256 only")
    methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    return ProviderMetadata(
        issuer,
        **endpoints,
        userinfo_endpoint=_endpoint(document, "userinfo_endpoint", issuer),
        end_session_endpoint=_endpoint(document, "end_session_endpoint", issuer),
        sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
        client_auth_methods=_texts(methods),
    )


def authorization_url(metadata: ProviderMetadata, fields: Mapping[str, str]) -> str:
    return _with_query(metadata.authorization_endpoint, fields)


def end_session_url(metadata: ProviderMetadata, fields: Mapping[str, str]) -> str:
    """Return where the browser signs out at the provider, or an empty text."""
    place = metadata.end_session_endpoint
    return _with_query(place, fields) if place else ""


def challenge_of(verifier: str) -> str:
    """Return the S256 challenge of a PKCE verifier. (RFC 7636)"""
    return encode_base64url(hashlib.sha256(verifier.encode("ascii")).digest())


def header_in(token: str) -> dict[str, Any]:
    """Return the header of a token, or an empty one if the token has no form."""
    return _segment(token, 0)


def claims_in(token: str) -> dict[str, Any]:
    """Return the claims of a token without a check of its signature, or none if it has no form."""
    return _segment(token, 1)


def _segment(token: str, place: int) -> dict[str, Any]:
    try:
        text = token.split(".")[place]
        found = jsonrpc.decode_value(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (IndexError, ValueError, MalformedMessage):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def basic_authorization(client_id: str, secret: str) -> str:
    """Return the Authorization header of a client. Both words are form-encoded. (RFC 6749)"""
    pair = f"{quote(client_id, safe='')}:{quote(secret, safe='')}"
    return f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"


def check_id_token(claims: Mapping[str, Any], client_id: str, nonce: str) -> None:
    """Check the claims that tie an ID token to this client and this sign-in.

    The signature, the issuer and the times were checked before. Raises MalformedMessage.
    """
    _check_audience(claims, client_id)
    if not isinstance(claims.get("iat"), int | float):
        raise _wrong("it has no time of issue")
    said: object = claims.get("nonce")
    if not isinstance(said, str) or not hmac.compare_digest(said.encode(), nonce.encode()):
        raise _wrong("it was made for another sign-in")
    word_in(claims, "sub")


def check_access_token_hash(claims: Mapping[str, Any], algorithm: str, access_token: str) -> None:
    """Check that the access token came with this ID token, if the ID token names its hash."""
    said: object = claims.get("at_hash")
    if said is None:
        return
    name = _HASHES.get(algorithm if algorithm == "EdDSA" else algorithm[2:], "")
    whole = hashlib.new(name, access_token.encode("utf-8", "replace")).digest() if name else b""
    expected = encode_base64url(whole[: len(whole) // 2])
    if not expected or not isinstance(said, str) or said != expected:
        raise _wrong("its access token is another")


def check_logout_token(claims: Mapping[str, Any], client_id: str) -> tuple[str, str, str]:
    """Return subject, session and id of a logout token. Raises MalformedMessage.

    (OpenID Connect Back-Channel Logout 1.0, section 2.6)
    """
    _check_audience(claims, client_id)
    events: object = claims.get("events")
    if not isinstance(events, dict) or not isinstance(
        cast("dict[object, object]", events).get(LOGOUT_EVENT), dict
    ):
        raise _wrong("it is no logout token")
    if "nonce" in claims:
        # An ID token must never count as a logout token.
        raise _wrong("a logout token has no nonce")
    if not isinstance(claims.get("iat"), int | float):
        raise _wrong("it has no time of issue")
    subject = word_in(claims, "sub") if "sub" in claims else ""
    sid = word_in(claims, "sid") if "sid" in claims else ""
    if not subject and not sid:
        raise _wrong("it names nobody")
    return subject, sid, word_in(claims, "jti")


def word_in(claims: Mapping[str, Any], name: str) -> str:
    """Return a claim that is a short text. Raises MalformedMessage."""
    said: object = claims.get(name)
    if not isinstance(said, str) or not 0 < len(said) <= MAX_WORD_LENGTH or not said.isprintable():
        raise _wrong(f"its claim {name} cannot be used")
    return said


def label_in(claims: Mapping[str, Any]) -> str:
    """Return the name of a person for other people, or an empty text."""
    for name in ("name", "preferred_username", "email"):
        said: object = claims.get(name)
        if isinstance(said, str) and said.strip():
            return " ".join(said.split())[:200]
    return ""


def _check_audience(claims: Mapping[str, Any], client_id: str) -> None:
    audiences, party = _texts(claims.get("aud")), claims.get("azp")
    if client_id not in audiences or (party is not None and party != client_id):
        raise _wrong("it was made for another client")
    if len(audiences) > 1 and party is None:
        raise _wrong("it has several audiences and no azp")


def _endpoint(document: Mapping[str, object], name: str, issuer: str) -> str:
    url: object = document.get(name)
    if not isinstance(url, str) or not url.isascii() or any(each <= " " for each in url):
        return ""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    is_usable = parts.hostname and parts.username is None and not parts.fragment
    return url if is_usable and parts.scheme == urlsplit(issuer).scheme else ""


def _texts(value: object) -> tuple[str, ...]:
    several = cast("Collection[object]", value) if isinstance(value, list) else (value,)
    return tuple(each for each in several if isinstance(each, str))


def _with_query(url: str, fields: Mapping[str, str]) -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(fields)}"


def _wrong(reason: str) -> MalformedMessage:
    return MalformedMessage(
        f"the provider sent a token that Comity refuses: {reason}", UNAUTHENTICATED
    )
