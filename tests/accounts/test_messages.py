"""Wire forms of OAuth from hostile servers: each named row is one deceit."""

import time
from typing import Any

import pytest

from comity.accounts import messages
from comity.accounts.messages import Challenge, IssuerMetadata, ResourceMetadata
from comity.errors import Unavailable
from tests.support.cases import loop_over

SERVER = "https://mcp.example/team/mcp"
SERVER_WELL_KNOWN = "https://mcp.example/.well-known/oauth-protected-resource/team/mcp"
ISSUER = "https://login.example/realm"
MEGABYTE = 1_000_000
CALLBACK = "https://comity.example/accounts/callback"

ISSUER_DOCUMENT: dict[str, Any] = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/authorize",
    "token_endpoint": f"{ISSUER}/token",
    "registration_endpoint": f"{ISSUER}/register",
    "revocation_endpoint": f"{ISSUER}/revoke",
    "code_challenge_methods_supported": ["S256"],
}


# Challenges.

CHALLENGES: tuple[tuple[str, str, Challenge | None], ...] = (
    ("an empty header", "", None),
    ("another scheme", 'Basic realm="x"', None),
    ("a scheme that only begins with bearer", "BearerX realm=x", None),
    ("a scheme that only ends with bearer", "XBearer realm=x", None),
    ("a bare challenge", "Bearer", Challenge()),
    ("a challenge in capitals", "BEARER ERROR=invalid_token", Challenge(error="invalid_token")),
    ("a second challenge", 'Basic realm="x", Bearer scope="a"', Challenge(scopes=("a",))),
    ("a repeated parameter", 'Bearer scope="a", scope="b"', Challenge(scopes=("a",))),
    ("a repeated scope", 'Bearer scope="a a b"', Challenge(scopes=("a", "b"))),
    ("a quote that does not end", 'Bearer scope="a', Challenge()),
    ("an escaped quote", r'Bearer error="a\"b"', Challenge(error='a"b')),
    ("a scope with a control character", 'Bearer scope="a\tb c"', Challenge(scopes=("c",))),
    ("a scope beyond ASCII", 'Bearer scope="\xfcber c"', Challenge(scopes=("c",))),
    ("a scope with a backslash", r'Bearer scope="a\\b c"', Challenge(scopes=("c",))),
    ("a very long scope", f'Bearer scope="{"a" * 500} c"', Challenge(scopes=("c",))),
    ("a parameter without a value", "Bearer scope=, error=x", Challenge()),
    ("a megabyte of one word", "Bearer " + "a" * MEGABYTE, Challenge()),
    ("a megabyte of blanks", "Bearer" + " " * MEGABYTE + "scope=a", Challenge()),
    ("a megabyte of blanks and a wrong sign", "Bearer " + " " * 8_000 + "\x7f", Challenge()),
    ("a megabyte of commas", "Bearer " + ", " * (MEGABYTE // 2), Challenge()),
    ("a megabyte of quotes", "Bearer " + '"' * MEGABYTE, Challenge()),
    ("a megabyte before the scheme", "," + " " * MEGABYTE + "Bearer", None),
)


@loop_over("name, header, expected", CHALLENGES)
def test_a_hostile_challenge_is_read_in_one_way_and_at_once(
    name: str, header: str, expected: Challenge | None
) -> None:
    began = time.process_time()
    assert messages.read_challenge(header) == expected
    # A quadratic pattern takes a third of a second for 8 KB.
    assert time.process_time() - began < 0.1, name


def test_a_challenge_demands_a_bounded_number_of_scopes() -> None:
    found = messages.read_challenge(f'Bearer scope="{" ".join(map(str, range(1_000)))}"')
    assert found is not None
    assert len(found.scopes) == messages.MAX_SCOPES


# Metadata of the server.

FOREIGN_METADATA = (
    ("metadata at another host", "https://evil.example/x"),
    ("metadata at another port", "https://mcp.example:444/x"),
    ("metadata without TLS", "http://mcp.example/x"),
    ("metadata at a subdomain", "https://a.mcp.example/x"),
    ("metadata at a longer host", "https://mcp.example.evil.example/x"),
    ("metadata with the host as user", "https://mcp.example@evil.example/x"),
    ("metadata with a password", "https://mcp.example:x@evil.example/x"),
    ("metadata with an empty user", "https://@mcp.example/x"),
    ("metadata with a backslash", "https://mcp.example\\@evil.example/x"),
    ("metadata with a fragment", "https://mcp.example/x#y"),
    ("metadata with an empty fragment", "https://mcp.example/x#"),
    ("metadata with steps upwards", "https://mcp.example/a/../x"),
    ("metadata with encoded steps upwards", "https://mcp.example/a/%2e%2e/x"),
    ("metadata with doubly encoded steps", "https://mcp.example/a/%252e%252e/x"),
    ("metadata with an encoded backslash", "https://mcp.example/a%5c..%5cx"),
    ("metadata in a file", "file:///etc/passwd"),
    ("metadata in a script", "javascript:alert(1)"),
    ("metadata in the address itself", "data:application/json,{}"),
    ("metadata without a scheme", "//mcp.example/x"),
    ("metadata without a host", "https:///x"),
    ("metadata at a relative path", "/x"),
    ("metadata at a host beyond ASCII", "https://mcp.\u0435xample/x"),
    ("metadata at a full-width host", "https://mcp\uff0eexample/x"),
    ("metadata with a blank", "https://mcp.example/x y"),
    ("metadata with a line break", "https://mcp.example/x\r\nhost: y"),
    ("metadata at an impossible port", "https://mcp.example:99999/x"),
    ("metadata at a port in words", "https://mcp.example:x/x"),
    ("metadata in an open bracket", "https://[::1/x"),
    ("metadata at an endless address", "https://mcp.example/" + "x" * 3_000),
)


@loop_over("name, url", FOREIGN_METADATA)
def test_a_challenge_cannot_name_metadata_elsewhere(name: str, url: str) -> None:
    with pytest.raises(Unavailable, match="another origin"):
        messages.resource_metadata_urls(SERVER, Challenge(url))


FOREIGN_RESOURCES: tuple[tuple[str, object], ...] = (
    ("no resource", None),
    ("a resource that is a list", [SERVER]),
    ("a resource that is a number", 1),
    ("an empty resource", ""),
    ("the resource of another host", "https://evil.example/team/mcp"),
    ("the resource of another port", "https://mcp.example:8443/team/mcp"),
    ("the resource without TLS", "http://mcp.example/team/mcp"),
    ("the resource of a sibling", "https://mcp.example/other/mcp"),
    ("a resource below the server", "https://mcp.example/team/mcp/more"),
    ("a resource whose path only begins alike", "https://mcp.example/te"),
    ("a resource with steps upwards", "https://mcp.example/other/../team/mcp"),
    ("a resource with encoded steps", "https://mcp.example/other/%2e%2e/team/mcp"),
    ("a resource with a step in place", "https://mcp.example/./team/mcp"),
    ("a resource with a query", "https://mcp.example/team/mcp?x"),
    ("a resource with a fragment", "https://mcp.example/team/mcp#x"),
    ("a resource with a user", "https://x@mcp.example/team/mcp"),
    ("a resource with a backslash", "https://mcp.example\\team\\mcp"),
    ("a resource beyond ASCII", "https://mcp.example/te\u0430m/mcp"),
    ("a resource with a line break", "https://mcp.example/team/mcp\n"),
    ("a resource in other letters", "https://mcp.example/TEAM/mcp"),
    ("a resource that is a name", "urn:mcp"),
)


@loop_over("name, resource", FOREIGN_RESOURCES)
def test_the_metadata_of_another_resource_is_refused(name: str, resource: object) -> None:
    document = {"resource": resource, "authorization_servers": [ISSUER]}
    with pytest.raises(Unavailable, match="another resource"):
        messages.read_resource_metadata(document, SERVER, SERVER)


WRONG_ISSUERS: tuple[tuple[str, object], ...] = (
    ("no list of issuers", None),
    ("an empty list of issuers", []),
    ("a text in place of the list", ISSUER),
    ("an object in place of the list", {ISSUER: ISSUER}),
    ("issuers that are numbers", [1, None, True, {"a": 1}]),
    ("an issuer with a query", [f"{ISSUER}?x"]),
    ("an issuer with a fragment", [f"{ISSUER}#x"]),
    ("an issuer with a user", ["https://a@login.example"]),
    ("an issuer with a backslash", ["https://login.example\\x"]),
    ("an issuer beyond ASCII", ["https://login.\u0435xample"]),
    ("an issuer with a line break", [f"{ISSUER}\r\nx: y"]),
    ("an issuer in a file", ["file:///etc/passwd"]),
    ("an issuer in a script", ["javascript:alert(1)"]),
    ("an issuer that begins with a blank", [f" {ISSUER}"]),
    ("an issuer after the tenth", ["x"] * 10 + [ISSUER]),
)


@loop_over("name, issuers", WRONG_ISSUERS)
def test_a_malformed_issuer_is_not_used(name: str, issuers: object) -> None:
    document = {"resource": SERVER, "authorization_servers": issuers}
    with pytest.raises(Unavailable, match="no usable authorization server"):
        messages.read_resource_metadata(document, SERVER, SERVER)


@loop_over("resource", [SERVER, f"{SERVER}/", "https://MCP.example:443/team/mcp"])
def test_the_resource_of_the_server_and_of_a_path_above_it_is_accepted(resource: str) -> None:
    for each in (
        resource,
        "https://mcp.example/team",
        "https://mcp.example",
        "https://mcp.example/",
    ):
        document = {"resource": each, "authorization_servers": [ISSUER], "scopes_supported": ["a"]}
        found = messages.read_resource_metadata(document, SERVER, SERVER_WELL_KNOWN)
        assert found == ResourceMetadata(each, (ISSUER,), ("a",))


# Metadata of the issuer.

DECEITFUL_ISSUERS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("the metadata of another issuer", {"issuer": "https://evil.example"}, "another issuer"),
    ("the metadata of the host alone", {"issuer": "https://login.example"}, "another issuer"),
    ("the issuer with a slash", {"issuer": f"{ISSUER}/"}, "another issuer"),
    ("the issuer in other letters", {"issuer": ISSUER.upper()}, "another issuer"),
    ("the issuer with its default port", {"issuer": "https://login.example:443/realm"}, "another"),
    ("the issuer without TLS", {"issuer": "http://login.example/realm"}, "another issuer"),
    ("the issuer twice", {"issuer": [ISSUER, ISSUER]}, "another issuer"),
    ("no issuer", {"issuer": None}, "another issuer"),
    ("no methods of PKCE", {"code_challenge_methods_supported": None}, "PKCE"),
    ("no method of PKCE", {"code_challenge_methods_supported": []}, "PKCE"),
    ("only the plain method of PKCE", {"code_challenge_methods_supported": ["plain"]}, "PKCE"),
    ("PKCE in small letters", {"code_challenge_methods_supported": ["s256"]}, "PKCE"),
    ("PKCE as a text", {"code_challenge_methods_supported": "S256"}, "PKCE"),
    ("PKCE as an object", {"code_challenge_methods_supported": {"S256": True}}, "PKCE"),
    ("no token endpoint", {"token_endpoint": None}, "token_endpoint"),
    (
        "a token endpoint without TLS",
        {"token_endpoint": "http://login.example/t"},
        "token_endpoint",
    ),
    ("a token endpoint with a user", {"token_endpoint": "https://a@b.example/t"}, "token_endpoint"),
    ("a token endpoint with a fragment", {"token_endpoint": f"{ISSUER}#x"}, "token_endpoint"),
    ("a token endpoint in a file", {"token_endpoint": "file:///t"}, "token_endpoint"),
    ("a token endpoint with a line break", {"token_endpoint": f"{ISSUER}/t\r\nx:y"}, "token_endp"),
    ("a token endpoint that is a list", {"token_endpoint": [f"{ISSUER}/t"]}, "token_endpoint"),
)


@loop_over("name, changed, why", DECEITFUL_ISSUERS)
def test_deceitful_metadata_of_an_issuer_is_refused(
    name: str, changed: dict[str, Any], why: str
) -> None:
    with pytest.raises(Unavailable, match=why):
        messages.read_issuer_metadata({**ISSUER_DOCUMENT, **changed}, ISSUER)


UNSAFE_ENDPOINTS = (
    ("an endpoint in a script", "javascript:alert(document.cookie)"),
    ("an endpoint in a script with slashes", "javascript://login.example/%0aalert(1)"),
    ("an endpoint in the address itself", "data:text/html,<script>alert(1)</script>"),
    ("an endpoint without TLS", "http://login.example/authorize"),
    ("an endpoint without a scheme", "//evil.example/authorize"),
    ("an endpoint with a user", "https://login.example@evil.example/authorize"),
    ("an endpoint with a backslash", "https://evil.example\\@login.example/authorize"),
    ("an endpoint with a fragment", "https://login.example/authorize#x"),
    ("an endpoint with a line break", "https://login.example/authorize\r\nset-cookie: a=b"),
    ("an endpoint with a blank", "https://login.example/ authorize"),
    ("an endpoint beyond ASCII", "https://login.example/\u202eezirohtua"),
    ("an endpoint without a host", "https:authorize"),
    ("an endpoint that is endless", "https://login.example/" + "a" * 4_000),
)


@loop_over("name, url", UNSAFE_ENDPOINTS)
def test_an_unsafe_endpoint_is_no_endpoint(name: str, url: str) -> None:
    names = ("authorization_endpoint", "registration_endpoint", "revocation_endpoint")
    found = messages.read_issuer_metadata({**ISSUER_DOCUMENT, **dict.fromkeys(names, url)}, ISSUER)
    assert [getattr(found, each) for each in names] == ["", "", ""]


def test_odd_members_of_the_metadata_promise_nothing() -> None:
    odd = {
        "scopes_supported": "a b",
        "grant_types_supported": {"x": 1},
        "token_endpoint_auth_methods_supported": 5,
        "client_id_metadata_document_supported": "true",
        "authorization_response_iss_parameter_supported": 1,
    }
    found = messages.read_issuer_metadata({**ISSUER_DOCUMENT, **odd}, ISSUER)
    assert (found.grants, found.client_auth_methods) == ((), ())
    assert not found.takes_client_documents
    assert not found.sends_issuer


# Registration.

WRONG_REGISTRATIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("a registration without an id", {}),
    ("a registration with an empty id", {"client_id": ""}),
    ("a registration with a number as id", {"client_id": 5}),
    ("an id with a line break", {"client_id": "a\r\nb"}),
    ("an id beyond ASCII", {"client_id": "\xe9"}),
    ("an endless id", {"client_id": "a" * 2_000}),
    ("a secret that is null", {"client_id": "a", "client_secret": None}),
    ("a secret with a line break", {"client_id": "a", "client_secret": "b\n"}),
    ("a secret that is a list", {"client_id": "a", "client_secret": ["b"]}),
    ("another redirect address", {"client_id": "a", "redirect_uris": ["https://evil.example/"]}),
    ("no redirect address", {"client_id": "a", "redirect_uris": []}),
    ("a redirect address as text", {"client_id": "a", "redirect_uris": CALLBACK}),
    ("a longer redirect address", {"client_id": "a", "redirect_uris": [f"{CALLBACK}/x"]}),
)


@loop_over("name, answer", WRONG_REGISTRATIONS)
def test_a_wrong_registration_is_refused(name: str, answer: dict[str, Any]) -> None:
    with pytest.raises(Unavailable, match=r"wrong form|another redirect address"):
        messages.read_registration(answer, CALLBACK)


def test_a_registration_never_asks_for_an_implicit_or_password_grant() -> None:
    metadata = IssuerMetadata(ISSUER, "", "", client_auth_methods=("private_key_jwt",))
    request = messages.registration_request("https://comity.example", CALLBACK, metadata, ("a",))
    assert request["redirect_uris"] == [CALLBACK]
    assert request["grant_types"] == ["authorization_code", "refresh_token"]
    assert request["response_types"] == ["code"]
    assert request["token_endpoint_auth_method"] == "client_secret_basic"


# Tokens.

BEARER = {"token_type": "Bearer", "access_token": "a"}
WRONG_TOKENS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("no type of token", {"token_type": None}),
    ("a token bound to a proof", {"token_type": "DPoP"}),
    ("a MAC token", {"token_type": "mac"}),
    ("a type that only begins alike", {"token_type": "bearer2"}),
    ("a type with a blank", {"token_type": "bearer "}),
    ("a type in a list", {"token_type": ["bearer"]}),
    ("no token", {"access_token": None}),
    ("an empty token", {"access_token": ""}),
    ("a token with a line break", {"access_token": "a\r\nx-admin: 1"}),
    ("a token that ends with a line break", {"access_token": "a\n"}),
    ("a token with a blank", {"access_token": "a b"}),
    ("a token with a null character", {"access_token": "a\0"}),
    ("a token beyond ASCII", {"access_token": "\xe9"}),
    ("a token that is a number", {"access_token": 5}),
    ("a token that is an object", {"access_token": {"a": 1}}),
    ("an endless token", {"access_token": "a" * 20_000}),
    ("a refresh token with a line break", {"refresh_token": "a\r\nb"}),
    ("a refresh token that is an object", {"refresh_token": {"a": 1}}),
    ("an endless refresh token", {"refresh_token": "a" * 20_000}),
)


@loop_over("name, changed", WRONG_TOKENS)
def test_a_wrong_token_answer_is_refused(name: str, changed: dict[str, Any]) -> None:
    with pytest.raises(Unavailable, match=r"malformed token|no bearer token"):
        messages.read_token_answer({**BEARER, **changed})


LIFETIMES: tuple[tuple[str, object, int | None], ...] = (
    ("a lifetime", 60, 60),
    ("a lifetime as text", "60", 60),
    ("a lifetime with a fraction", 60.9, 60),
    ("no lifetime", None, None),
    ("a lifetime that is no number", float("nan"), None),
    ("an infinite lifetime", float("inf"), messages.MAX_LIFETIME_SECONDS),
    ("a lifetime before the beginning", float("-inf"), 0),
    ("a negative lifetime", -5, 0),
    ("a negative lifetime as text", "-5", None),
    ("a lifetime of years", 10**12, messages.MAX_LIFETIME_SECONDS),
    ("a lifetime of four thousand digits", 10**4_000, messages.MAX_LIFETIME_SECONDS),
    ("a negative lifetime of as many", -(10**4_000), 0),
    ("a lifetime of four thousand digits as text", "9" * 4_000, None),
    ("a lifetime that is true", True, None),
    ("a lifetime that is a list", [60], None),
    ("a lifetime in words", "sixty", None),
    ("a lifetime in other digits", "\u0666\u0660", None),
    ("a lifetime with an exponent", "1e9", None),
)


@loop_over("name, written, expected", LIFETIMES)
def test_a_hostile_lifetime_is_bounded(name: str, written: object, expected: int | None) -> None:
    found = messages.read_token_answer({**BEARER, "expires_in": written})
    assert found.lifetime_seconds == expected


@loop_over(
    "name, code, expected",
    (
        ("a plain error", "invalid_grant", "invalid_grant"),
        ("an error with a line break", "invalid_grant\nINFO forged line", ""),
        ("an error with markup", "<script>", ""),
        ("an endless error", "a" * 1_000, ""),
        ("an error that is an object", {"a": 1}, ""),
        ("no error", None, ""),
    ),
)
def test_only_a_plain_error_code_is_told(name: str, code: object, expected: str) -> None:
    assert messages.error_code_in({"error": code, "error_description": "secret"}) == expected


def test_no_secret_is_in_the_text_form_of_a_message() -> None:
    answer = messages.read_token_answer(
        {**BEARER, "access_token": "hidden-1", "refresh_token": "hidden-2"}
    )
    client = messages.read_registration({"client_id": "a", "client_secret": "hidden-3"}, CALLBACK)
    assert "hidden" not in f"{answer!r}{answer}{client!r}{client}"


WIRE_ATTACKS: tuple[str, ...] = tuple(
    row[0]
    for table in (
        FOREIGN_METADATA,
        FOREIGN_RESOURCES,
        WRONG_ISSUERS,
        DECEITFUL_ISSUERS,
        UNSAFE_ENDPOINTS,
        WRONG_REGISTRATIONS,
        WRONG_TOKENS,
    )
    for row in table
)


def test_every_attack_on_the_wire_has_a_name_of_its_own() -> None:
    assert len(set(WIRE_ATTACKS)) == len(WIRE_ATTACKS) > 100
