"""Wire forms of OAuth as MCP uses it: challenges, metadata, registration and token answers."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isnan
from typing import Final, cast
from urllib.parse import SplitResult, unquote, urlsplit

from comity.errors import Unavailable
from comity.identity.login.messages import claims_in, header_in

RESOURCE_WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
ISSUER_WELL_KNOWN: Final = "/.well-known/oauth-authorization-server"
OPENID_WELL_KNOWN: Final = "/.well-known/openid-configuration"
OFFLINE_ACCESS: Final = "offline_access"
JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"
ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105  # a name
_ASSERTION_TYPE: Final = "oauth-id-jag+jwt"

# The body comes before the header: OAuth 2.1 demands that of every issuer, and the official SDK
# revokes no token for a client that sends its secret in a header.
_CLIENT_AUTH_METHODS: Final = ("none", "client_secret_post", "client_secret_basic")

MAX_URL_LENGTH: Final = 2_048
MAX_SCOPES: Final = 100
MAX_SCOPE_LENGTH: Final = 200
MAX_TOKEN_LENGTH: Final = 16 * 1024
MAX_ID_LENGTH: Final = 1_024
MAX_LIFETIME_SECONDS: Final = 366 * 24 * 3600
MAX_ISSUERS: Final = 10

_ERROR: Final = re.compile(r"[a-z_]{1,60}")
# The separators are one possessive class: two runs of blanks would take quadratic time to fail.
_PARAMETER: Final = re.compile(
    r"""[\s,]*+([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s,"]+)"""
)
_ESCAPE: Final = re.compile(r"\\(.)")
_SCOPE: Final = re.compile(r"[!#-\[\]-~]+")
_VISIBLE: Final = re.compile(r"[!-~]+")
_PRINTABLE: Final = re.compile(r"[ -~]+")


@dataclass(frozen=True, slots=True)
class Challenge:
    """The `WWW-Authenticate: Bearer` challenge of a server. (RFC 6750, RFC 9728)"""

    resource_metadata: str = ""
    scopes: tuple[str, ...] = ()
    error: str = ""

    @property
    def needs_scopes(self) -> bool:
        return self.error == "insufficient_scope"


@dataclass(frozen=True, slots=True)
class ResourceMetadata:
    """The metadata of a protected server. (RFC 9728)"""

    resource: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IssuerMetadata:
    """The metadata of an authorization server. (RFC 8414, OpenID Connect Discovery)"""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    scopes: tuple[str, ...] = ()
    grants: tuple[str, ...] = ("authorization_code",)
    client_auth_methods: tuple[str, ...] = ("client_secret_basic",)
    takes_client_documents: bool = False
    sends_issuer: bool = False


@dataclass(frozen=True, slots=True)
class OAuthClientCredentials:
    """The id of this gateway at an authorization server, and its secret if it has one."""

    client_id: str
    secret: str = field(default="", repr=False)
    auth_method: str = ""
    """How the secret is sent. An empty text follows the metadata of the issuer."""


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """The tokens of a successful answer."""

    access_token: str = field(repr=False)
    refresh_token: str = field(default="", repr=False)
    lifetime_seconds: int | None = None
    scopes: tuple[str, ...] | None = None
    """The granted scopes, or None if they are those that were requested."""


# Challenges.


def read_challenge(header: str) -> Challenge | None:
    """Read the Bearer challenge of a `WWW-Authenticate` header, or return None without one."""
    found = re.search(r"(?:^|,)\s*bearer(?=\s|,|$)", header[:8_192], re.IGNORECASE)
    if found is None:
        return None
    fields = _parameters(header[found.end() : 8_192])
    return Challenge(
        fields.get("resource_metadata", "")[:MAX_URL_LENGTH],
        read_scopes(fields.get("scope", "")),
        fields.get("error", "")[:100],
    )


def _parameters(text: str) -> dict[str, str]:
    """Return the parameters of one challenge. The first occurrence of each name counts."""
    found: dict[str, str] = {}
    place = 0
    while (each := _PARAMETER.match(text, place)) is not None:
        place = each.end()
        value = each[2]
        if value.startswith('"'):
            value = _ESCAPE.sub(r"\1", value[1:-1])
        found.setdefault(each[1].lower(), value)
    return found


def read_scopes(text: object) -> tuple[str, ...]:
    """Return the distinct well-formed scopes of a space-separated text, or of a list."""
    words = text.split(" ") if isinstance(text, str) else _texts(text)
    known = dict.fromkeys(
        each for each in words[:1_000] if len(each) <= MAX_SCOPE_LENGTH and _SCOPE.fullmatch(each)
    )
    return tuple(known)[:MAX_SCOPES]


def choose_scopes(
    configured: Sequence[str],
    challenge: Sequence[str],
    resource: ResourceMetadata,
    issuer: IssuerMetadata,
) -> tuple[str, ...]:
    """Return the scopes to request: of the operator, else the challenge, else the resource.

    `offline_access` is added where the issuer has it, because it gives a refresh token.
    """
    chosen = tuple(configured) or tuple(challenge) or resource.scopes
    if OFFLINE_ACCESS in issuer.scopes and OFFLINE_ACCESS not in chosen:
        chosen = (*chosen, OFFLINE_ACCESS)
    return chosen


# Metadata of the server.


def resource_metadata_urls(server_url: str, challenge: Challenge | None) -> list[str]:
    """Return where the metadata of a server may be, in the order in which to look.

    A place that the challenge names counts only at the origin of the server.
    """
    parts = urlsplit(server_url)
    named = "" if challenge is None else challenge.resource_metadata
    if named:
        where = parse_url(named)
        if where is None or _origin(where) != _origin(parts):
            raise Unavailable("its challenge names metadata at another origin")
        return [named]
    base, path = f"{base_url(server_url)}{RESOURCE_WELL_KNOWN}", parts.path.rstrip("/")
    return [f"{base}{path}", base] if path else [base]


def read_resource_metadata(
    document: Mapping[str, object], server_url: str, url: str
) -> ResourceMetadata:
    """Read the metadata of a server. Raises Unavailable if it is that of another resource."""
    resource = document.get("resource")
    # A challenge can name any file of the origin, and whoever serves one path of it can write one.
    # So only a well-known file, which belongs to the whole origin, can name a path above.
    is_well_known = urlsplit(url).path.startswith(RESOURCE_WELL_KNOWN)
    if (
        not isinstance(resource, str)
        or not covers(resource, server_url)
        or not (is_well_known or covers(server_url, resource))
    ):
        raise Unavailable(f"the metadata at {url:.200} is that of another resource")
    named = _texts(document.get("authorization_servers"))[:MAX_ISSUERS]
    issuers = tuple(each for each in named if is_issuer(each))
    if not issuers:
        raise Unavailable(f"the metadata at {url:.200} names no usable authorization server")
    return ResourceMetadata(resource, issuers, read_scopes(document.get("scopes_supported")))


def base_url(server_url: str) -> str:
    """Return the authorization base URL of a server: its address without the path."""
    parts = urlsplit(server_url)
    return f"{parts.scheme}://{parts.netloc}"


@lru_cache(maxsize=1_000)
def covers(resource: str, server_url: str) -> bool:
    """Return whether a resource is the server, or a path above it at the same origin."""
    parts, server = parse_url(resource), urlsplit(server_url)
    if parts is None or parts.query or _origin(parts) != _origin(server):
        return False
    above, own = parts.path.rstrip("/"), server.path.rstrip("/")
    return own == above or own.startswith(f"{above}/")


# Metadata of the issuer.


def is_issuer(text: str) -> bool:
    """Return whether a text can be the identifier of an authorization server. (RFC 8414)"""
    parts = parse_url(text)
    return parts is not None and not parts.query


def issuer_metadata_urls(issuer: str) -> list[str]:
    """Return where the metadata of an issuer may be, in the order that MCP prescribes."""
    parts = urlsplit(issuer)
    base, path = base_url(issuer), parts.path.rstrip("/")
    if not path:
        return [f"{base}{ISSUER_WELL_KNOWN}", f"{base}{OPENID_WELL_KNOWN}"]
    return [
        f"{base}{ISSUER_WELL_KNOWN}{path}",
        f"{base}{OPENID_WELL_KNOWN}{path}",
        f"{base}{path}{OPENID_WELL_KNOWN}",
    ]


def read_issuer_metadata(document: Mapping[str, object], issuer: str) -> IssuerMetadata:
    """Read the metadata of an issuer. Raises Unavailable if Comity cannot use it safely."""
    named = document.get("issuer")
    if not isinstance(named, str) or not is_same_issuer(named, issuer):
        raise Unavailable("its metadata is that of another issuer")
    token_endpoint = _endpoint(document, "token_endpoint", issuer)
    if not token_endpoint:
        raise Unavailable("its metadata has no usable token_endpoint")
    grants = _texts(document.get("grant_types_supported", ["authorization_code"]))
    methods = _texts(document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"]))
    place = _endpoint(document, "authorization_endpoint", issuer)
    if place and "S256" not in _texts(document.get("code_challenge_methods_supported")):
        # Without PKCE a stolen code would give the thief the account. MCP forbids a fallback.
        raise Unavailable("it does not offer PKCE with S256")
    return IssuerMetadata(
        named,
        place,
        token_endpoint,
        registration_endpoint=_endpoint(document, "registration_endpoint", issuer),
        revocation_endpoint=_endpoint(document, "revocation_endpoint", issuer),
        scopes=read_scopes(document.get("scopes_supported")),
        grants=grants[:50],
        client_auth_methods=methods[:50],
        takes_client_documents=document.get("client_id_metadata_document_supported") is True,
        sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
    )


def is_same_issuer(named: str, issuer: str) -> bool:
    """Return whether two identifiers are the same text. An empty path may be a slash."""
    if named == issuer:
        return True
    bare = issuer.rstrip("/")
    return bare == named.rstrip("/") and not urlsplit(bare).path


def _endpoint(document: Mapping[str, object], name: str, issuer: str) -> str:
    url = document.get(name)
    parts = parse_url(url) if isinstance(url, str) else None
    if parts is None or parts.scheme != urlsplit(issuer).scheme:
        return ""
    return cast("str", url)


# Registration of this gateway.


def client_document(origin: str, redirect_uri: str, document_url: str = "") -> dict[str, object]:
    """Return what this gateway says of itself as an OAuth client.

    With `document_url` it is a client ID metadata document, whose address is the client's id.
    """
    is_web = redirect_uri.startswith("https:")
    about: dict[str, object] = {
        "client_name": "Comity",
        # Issuers refuse plain HTTP, even on this machine, to a client of the web.
        "application_type": "web" if is_web else "native",
        "client_uri": origin,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }
    return {"client_id": document_url, **about} if document_url else about


def registration_request(
    origin: str, redirect_uri: str, metadata: IssuerMetadata, scopes: Sequence[str]
) -> dict[str, object]:
    """Return the request of a dynamic registration. (RFC 7591)"""
    offered = metadata.client_auth_methods
    method = next((each for each in _CLIENT_AUTH_METHODS if each in offered), "client_secret_basic")
    request = {**client_document(origin, redirect_uri), "token_endpoint_auth_method": method}
    return {**request, "scope": " ".join(scopes)} if scopes else request


def read_registration(answer: Mapping[str, object], redirect_uri: str) -> OAuthClientCredentials:
    """Read the answer to a registration. Raises Unavailable if it cannot be used."""
    client_id, secret = answer.get("client_id"), answer.get("client_secret", "")
    if not is_credential(client_id) or not (secret == "" or is_credential(secret)):
        raise Unavailable("the authorization server registered this gateway in a wrong form")
    if answer.get("redirect_uris", [redirect_uri]) not in (None, [redirect_uri]):
        raise Unavailable("the authorization server registered another redirect address")
    method = answer.get("token_endpoint_auth_method") or ""
    if method not in ("", *_CLIENT_AUTH_METHODS):
        raise Unavailable("the authorization server registered another way to authenticate")
    if method == "none":
        secret = ""
    return OAuthClientCredentials(cast("str", client_id), cast("str", secret), cast("str", method))


# Tokens.


def read_token_answer(answer: Mapping[str, object]) -> TokenAnswer:
    """Read a successful answer of the token endpoint. Raises Unavailable if it is malformed."""
    kind = answer.get("token_type")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise Unavailable("the authorization server gave a token that is no bearer token")
    access, refresh = answer.get("access_token"), answer.get("refresh_token") or ""
    if not is_token(access) or not (refresh == "" or is_token(refresh)):
        raise Unavailable("the authorization server gave a malformed token")
    scopes = answer.get("scope")
    return TokenAnswer(
        cast("str", access),
        cast("str", refresh),
        _lifetime(answer.get("expires_in")),
        read_scopes(scopes) if isinstance(scopes, str) and scopes else None,
    )


def _lifetime(value: object) -> int | None:
    """Return the lifetime in seconds. A token without a usable one lives until it is refused."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Only a float may be asked: an integer of many digits does not fit into one.
    if isinstance(value, float) and isnan(value):
        return None
    return int(min(max(value, 0), MAX_LIFETIME_SECONDS))


# Exchanged tokens.


def read_assertion(
    answer: Mapping[str, object], issuer: str, audience: str, resource: str, client_id: str
) -> str:
    """Return the identity assertion of an answer. Raises Unavailable if it is for another use.

    Only the authorization server can verify its signature. These checks keep an assertion for one
    server away from every other.
    """
    _check_issued_type(answer, ID_JAG, "n_a")
    assertion = cast("str", answer["access_token"])
    claims = claims_in(assertion)
    if header_in(assertion).get("typ") != _ASSERTION_TYPE:
        raise Unavailable("the issuer gave a token that is no identity assertion")
    named = _audiences(claims)
    if len(named) != 1 or not is_same_issuer(named[0], audience):
        raise Unavailable("the issuer gave an assertion for another authorization server")
    if claims.get("iss") != issuer or claims.get("client_id") != client_id:
        raise Unavailable("the issuer gave an assertion for another client")
    if claims.get("resource") not in (resource, [resource]):
        raise Unavailable("the issuer gave an assertion for another server")
    return assertion


def read_exchanged_token(answer: Mapping[str, object], resource: str, audience: str) -> TokenAnswer:
    """Read an access token that was exchanged. Raises Unavailable if it is for another use.

    A token that does not show its audience is accepted, because the server checks it.
    """
    _check_issued_type(answer, ACCESS_TOKEN, "bearer")
    found = read_token_answer(answer)
    named = _audiences(claims_in(found.access_token))
    if named and resource not in named and audience not in named:
        raise Unavailable(
            "the issuer gave a token for another audience; set audience in [servers.oauth]"
        )
    return found


def _check_issued_type(answer: Mapping[str, object], kind: str, token_type: str) -> None:
    said = answer.get("token_type")
    if answer.get("issued_token_type") != kind or not is_token(answer.get("access_token")):
        raise Unavailable("the issuer gave a token of another type")
    if not isinstance(said, str) or said.lower() != token_type:
        raise Unavailable("the issuer gave a token for another use")


def _audiences(claims: Mapping[str, object]) -> tuple[str, ...]:
    named = claims.get("aud")
    return (named,) if isinstance(named, str) else _texts(named)


def error_code_in(answer: Mapping[str, object]) -> str:
    """Return the error code of an OAuth answer if it is a plain word, else an empty text.

    A word of small letters cannot repeat a token or an assertion.
    """
    code = answer.get("error")
    return code if isinstance(code, str) and _ERROR.fullmatch(code) else ""


def is_token(value: object) -> bool:
    """Return whether a value can stand in an Authorization header."""
    return (
        isinstance(value, str)
        and len(value) <= MAX_TOKEN_LENGTH
        and _VISIBLE.fullmatch(value) is not None
    )


def is_credential(value: object) -> bool:
    return (
        isinstance(value, str)
        and len(value) <= MAX_ID_LENGTH
        and _PRINTABLE.fullmatch(value) is not None
    )


# Common parts.


def parse_url(url: str) -> SplitResult | None:
    """Return the parts of a plain HTTP address, or None.

    A user, a fragment, a blank, a step upwards or a character beyond ASCII is refused.
    """
    if len(url) > MAX_URL_LENGTH or not _VISIBLE.fullmatch(url) or "\\" in url:
        return None
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    is_plain = parts.scheme in ("http", "https") and parts.hostname and parts.username is None
    if not is_plain or "@" in parts.netloc or "#" in url:
        return None
    steps = unquote(unquote(parts.path)).replace("\\", "/").split("/")
    return None if ".." in steps or "." in steps else parts


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, parts.hostname or "", port


def _texts(value: object) -> tuple[str, ...]:
    several = cast("Collection[object]", value) if isinstance(value, list) else ()
    return tuple(each for each in several if isinstance(each, str))
