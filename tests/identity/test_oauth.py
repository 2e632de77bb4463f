"""Which access tokens are proof of anybody, and which are not."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Generator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from comity.errors import (
    CREDENTIAL_EXPIRED,
    SCOPE_MISSING,
    UNAUTHENTICATED,
    Fault,
    MalformedMessage,
)
from comity.identity.authentication import TokenIssuer
from comity.identity.oauth import OAuthTokens
from comity.mcp.actors import PrincipalKind
from tests.support.issuing import AUDIENCE, IssuerServer, SigningKey, issuing
from tests.support.principals import INVISIBLE_NAMES

SKEW = timedelta(seconds=30)
NOW = int(time.time())
# The same in every process that collects these tests.
LATER = 4_000_000_000
KEYS = {each: SigningKey(each, each) for each in ("RS256", "PS256", "ES256", "EdDSA")}
RSA = KEYS["RS256"]


@pytest.fixture
def server() -> Generator[IssuerServer]:
    with issuing(*KEYS.values()) as server:
        yield server


def tokens_of(server: IssuerServer, **chosen: Any) -> OAuthTokens:
    issuer = replace(TokenIssuer(server.url, AUDIENCE, principal_prefix="p:"), **chosen)
    return OAuthTokens([issuer], SKEW)


async def refused(tokens: OAuthTokens, token: str) -> Fault:
    with pytest.raises(MalformedMessage) as problem:
        await tokens.prove(token)
    assert token[:40] not in str(problem.value)
    return problem.value.fault


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
async def test_a_token_of_the_issuer_proves_its_party(
    server: IssuerServer, key: SigningKey
) -> None:
    proof = await tokens_of(server).prove(server.token(key))
    assert (proof.actor.party, proof.actor.kind) == ("p:ana", PrincipalKind.PERSON)
    assert proof.paths == ("",)
    assert proof.expires.timestamp() > NOW
    assert proof.actor.expires_at == proof.expires


@pytest.mark.parametrize(
    "changed",
    [
        {"iss": "https://elsewhere.org"},
        {"iss": None},
        {"iss": 7},
        {"aud": "https://elsewhere.org"},
        {"aud": f"{AUDIENCE}.evil.org"},
        {"aud": None},
        {"aud": []},
        {"aud": 7},
        {"exp": None},
        {"exp": "soon"},
        {"nbf": LATER},
        {"iat": LATER},
        {"sub": None},
        {"sub": ""},
        {"sub": "a b"},
        {"sub": "*"},
        {"sub": "a\nb"},
        {"sub": "x" * 201},
        {"sub": ["ana"]},
        *({"sub": name} for name in INVISIBLE_NAMES),
        {"exp": str(LATER)},
        {"exp": f" {LATER} "},
        {"nbf": "0"},
        {"iat": "0"},
        {"iat": False},
    ],
    ids=str,
)
async def test_a_token_that_says_the_wrong_thing_is_no_proof(
    server: IssuerServer, changed: dict[str, Any]
) -> None:
    key = RSA
    payload = server.claims(**changed)
    signed = jwt.PyJWS().encode(
        json.dumps(payload).encode(), key.private, "RS256", {"kid": key.kid}
    )
    assert await refused(tokens_of(server), signed) is UNAUTHENTICATED


async def test_a_token_that_has_expired_says_so_and_clocks_may_differ(server: IssuerServer) -> None:
    tokens = tokens_of(server)
    now = int(time.time())
    assert await refused(tokens, server.token(exp=now - 60)) is CREDENTIAL_EXPIRED
    for name, at in (("exp", now - 10), ("nbf", now + 10), ("iat", now + 10)):
        assert (await tokens.prove(server.token(None, **{name: at}))).actor.party == "p:ana"


def _public_pem(key: SigningKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.private.public_key().public_bytes(serialization.Encoding.PEM, form)


def _encoded(part: bytes | dict[str, Any]) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _signed_by_hand(header: dict[str, Any], claims: dict[str, Any], secret: bytes | None) -> str:
    said = f"{_encoded(header)}.{_encoded(claims)}"
    signature = b"" if secret is None else hmac.digest(secret, said.encode(), hashlib.sha256)
    return f"{said}.{_encoded(signature)}"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", ""])
async def test_a_token_without_a_signature_is_no_proof(
    server: IssuerServer, algorithm: str
) -> None:
    header = {"alg": algorithm, "typ": "JWT", "kid": RSA.kid}
    for secret in (None, b""):
        token = _signed_by_hand(header, server.claims(), secret)
        assert await refused(tokens_of(server), token) is UNAUTHENTICATED


async def test_a_public_key_is_no_secret_to_sign_with(server: IssuerServer) -> None:
    for secret in (_public_pem(RSA), json.dumps(RSA.jwk).encode(), b""):
        header = {"alg": "HS256", "typ": "JWT", "kid": RSA.kid}
        token = _signed_by_hand(header, server.claims(), secret)
        assert await refused(tokens_of(server), token) is UNAUTHENTICATED


async def test_a_key_counts_for_its_own_algorithm_alone(server: IssuerServer) -> None:
    claims = server.claims()
    as_ps = jwt.encode(claims, RSA.private, "PS256", {"kid": RSA.kid})
    as_512 = jwt.encode(claims, RSA.private, "RS512", {"kid": RSA.kid})
    other = jwt.encode(claims, KEYS["PS256"].private, "RS256", {"kid": RSA.kid})
    for token in (as_ps, as_512, other):
        assert await refused(tokens_of(server), token) is UNAUTHENTICATED


async def test_an_algorithm_that_the_operator_did_not_name_does_not_count(
    server: IssuerServer,
) -> None:
    only = tokens_of(server, algorithms=("ES256",))
    assert await refused(only, server.token(RSA)) is UNAUTHENTICATED
    assert await only.prove(server.token(KEYS["ES256"]))


@pytest.mark.parametrize(
    "header",
    [
        {"kid": "nobody"},
        {"kid": 7},
        {"crit": ["exp"]},
        {"typ": "dpop+jwt"},
        {"kid": None, "jwk": RSA.jwk},
        {"kid": "../keys", "jku": "http://127.0.0.1:9/keys"},
    ],
    ids="-".join,
)
async def test_a_header_leads_to_no_key_but_the_issuers(
    server: IssuerServer, header: dict[str, Any]
) -> None:
    kid = header.get("kid", RSA.kid)
    said = {"alg": "RS256", "typ": "JWT", "kid": kid, **header}
    said = {name: value for name, value in said.items() if value is not None}
    stranger = SigningKey("stranger")
    body = f"{_encoded(said)}.{_encoded(server.claims())}"
    algorithm = jwt.get_algorithm_by_name("RS256")
    signature = algorithm.sign(body.encode(), stranger.private)
    assert await refused(tokens_of(server), f"{body}.{_encoded(signature)}") is UNAUTHENTICATED


async def test_a_token_that_was_changed_is_no_proof(server: IssuerServer) -> None:
    head, _, signature = server.token().split(".")
    other = _encoded(server.claims(sub="root"))
    assert await refused(tokens_of(server), f"{head}.{other}.{signature}") is UNAUTHENTICATED


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "a.b", "a.b.c", "a.b.c.d", "🔑", "{}" * 100, "A" * 16_000, "e30.e30.e30"],
)
async def test_what_is_no_token_is_refused(server: IssuerServer, token: str) -> None:
    with pytest.raises(MalformedMessage) as problem:
        await tokens_of(server).prove(token)
    assert problem.value.fault is UNAUTHENTICATED
    assert server.asked == []


async def test_deep_claims_bring_nothing_down(server: IssuerServer) -> None:
    deep = b'{"iss":' + b"[" * 5000 + b"]" * 5000 + b"}"
    token = f"{_encoded({'alg': 'RS256'})}.{_encoded(deep)}.{_encoded(b'x')}"
    assert await refused(tokens_of(server), token) is UNAUTHENTICATED


@pytest.mark.parametrize(
    ("claims", "fault"),
    [
        ({"scope": "tools read"}, None),
        ({"scp": ["read", "tools"]}, None),
        ({"scp": "tools read"}, None),
        ({"scope": "tools"}, SCOPE_MISSING),
        ({"scope": "toolsread"}, SCOPE_MISSING),
        ({}, SCOPE_MISSING),
    ],
    ids=str,
)
async def test_scopes_that_are_required_must_be_there(
    server: IssuerServer, claims: dict[str, Any], fault: Fault | None
) -> None:
    tokens = tokens_of(server, required_scopes=("tools", "read"))
    if fault is None:
        assert await tokens.prove(server.token(**claims))
    else:
        assert await refused(tokens, server.token(**claims)) is fault


@pytest.mark.parametrize(
    ("aud", "paths"),
    [
        ([AUDIENCE, "https://other.org"], ("",)),
        (f"{AUDIENCE}/mcp", ("/mcp",)),
        ([f"{AUDIENCE}/servers/a/mcp", f"{AUDIENCE}/mcp"], ("/servers/a/mcp", "/mcp")),
    ],
)
async def test_a_token_may_be_for_a_part_of_the_gateway(
    server: IssuerServer, aud: Any, paths: tuple[str, ...]
) -> None:
    assert (await tokens_of(server).prove(server.token(aud=aud))).paths == paths


@pytest.mark.parametrize(
    ("prefix", "sub"), [("person:", "local"), ("system:", "gateway"), ("", "system:x")]
)
async def test_no_token_speaks_for_the_gateway_or_its_local_user(
    server: IssuerServer, prefix: str, sub: str
) -> None:
    tokens = tokens_of(server, principal_prefix=prefix)
    assert await refused(tokens, server.token(sub=sub)) is UNAUTHENTICATED


async def test_another_claim_may_name_the_party(server: IssuerServer) -> None:
    tokens = tokens_of(server, principal_claim="email", kind=PrincipalKind.AGENT)
    proof = await tokens.prove(server.token(email="ana@example.org", email_verified=True))
    assert (proof.actor.party, proof.actor.kind) == ("p:ana@example.org", PrincipalKind.AGENT)


@pytest.mark.parametrize(
    ("claims", "is_accepted", "is_accepted_by_setting"),
    [
        ({"email_verified": True}, True, True),
        ({"email_verified": "true"}, True, True),
        ({}, False, True),
        *(
            ({"email_verified": value}, False, False)
            for value in (False, "false", 0, 1, "", "yes", [True])
        ),
    ],
    ids=str,
)
async def test_an_email_names_the_party_only_if_it_is_verified(
    server: IssuerServer,
    claims: dict[str, Any],
    is_accepted: bool,
    is_accepted_by_setting: bool,
) -> None:
    token = server.token(email="ana@example.org", **claims)
    for said, expected in ((False, is_accepted), (True, is_accepted_by_setting)):
        tokens = tokens_of(server, principal_claim="email", email_is_verified=said)
        if expected:
            assert (await tokens.prove(token)).actor.party == "p:ana@example.org"
        else:
            assert await refused(tokens, token) is UNAUTHENTICATED


async def test_a_token_that_never_ends_is_one_all_the_same(server: IssuerServer) -> None:
    assert (await tokens_of(server).prove(server.token(exp=10**15))).expires.year == 2100


@pytest.mark.parametrize(
    ("claim", "claims", "groups"),
    [
        ("groups", {"groups": ["sre", "qa", "sre"]}, ("qa", "sre")),
        ("groups", {"groups": "sre"}, ("sre",)),
        ("groups", {"groups": []}, ()),
        ("groups", {"groups": None}, ()),
        ("groups", {}, ()),
        ("groups", {"groups": ["group:x", "person:ana"]}, ("group:x", "person:ana")),
        ("groups", {"groups": ["sre\u0301"]}, ("sr\u00e9",)),
        ("realm_access.roles", {"realm_access": {"roles": ["sre"]}}, ("sre",)),
        ("realm_access.roles", {"realm_access": {}}, ()),
        ("realm_access.roles", {}, ()),
        ("a.b", {"a.b": ["plain"], "a": {"b": ["nested"]}}, ("plain",)),
        ("https://a.org/groups", {"https://a.org/groups": ["sre"]}, ("sre",)),
    ],
    ids=str,
)
async def test_a_token_names_the_groups_of_its_party(
    server: IssuerServer, claim: str, claims: dict[str, Any], groups: tuple[str, ...]
) -> None:
    proof = await tokens_of(server, groups_claim=claim).prove(server.token(**claims))
    assert (proof.actor.groups, proof.actor.has_claimed_groups) == (groups, True)
    assert not {"group:sre", "*", "person:ana"} & set(proof.actor.subjects) - {"group:sre"}


@pytest.mark.parametrize(
    ("claim", "claims"),
    [
        ("groups", {"groups": {"sre": True}}),
        ("groups", {"groups": 7}),
        ("groups", {"groups": True}),
        ("groups", {"groups": ""}),
        ("groups", {"groups": ["sre", 7]}),
        ("groups", {"groups": ["sre", ["qa"]]}),
        ("groups", {"groups": ["sre", None]}),
        ("groups", {"groups": [" sre"]}),
        ("groups", {"groups": ["a\u2028b"]}),
        ("groups", {"groups": ["*"]}),
        ("groups", {"groups": ["sre", "s*"]}),
        *(("groups", {"groups": [name]}) for name in INVISIBLE_NAMES),
        ("groups", {"groups": ["g" * 201]}),
        ("groups", {"groups": [f"g{number}" for number in range(201)]}),
        ("groups", {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {}}}),
        ("a.b", {"a": ["b"]}),
        ("a.b", {"a": "b"}),
    ],
    ids=str,
)
async def test_a_token_with_malformed_groups_is_no_proof(
    server: IssuerServer, claim: str, claims: dict[str, Any]
) -> None:
    tokens = tokens_of(server, groups_claim=claim)
    assert await refused(tokens, server.token(**claims)) is UNAUTHENTICATED


async def test_an_issuer_without_a_claim_for_groups_names_none(server: IssuerServer) -> None:
    proof = await tokens_of(server).prove(server.token(groups=["sre"]))
    assert (proof.actor.groups, proof.actor.has_claimed_groups) == ((), False)


async def test_no_token_proves_a_group(server: IssuerServer) -> None:
    for prefix in ("", "group:"):
        tokens = tokens_of(server, principal_prefix=prefix)
        assert await refused(tokens, server.token(sub="group:sre")) is UNAUTHENTICATED
