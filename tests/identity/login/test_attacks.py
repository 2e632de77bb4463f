"""Named attacks on the sign-in of people and on browser sessions. None may succeed."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from comity.http.api import ApiRoute
from comity.identity.login.rules import LOGIN_COOKIE, SESSION_COOKIE, own_path
from comity.identity.login.service import LoginKeys, LoginService
from comity.identity.principals import Principal
from comity.mcp.actors import PrincipalKind
from tests.identity.login.scene import (
    ANA,
    Browser,
    LoginScene,
    Response,
    a_login_scene,
    an_issuer,
    query_of,
    write_client_secret,
)
from tests.support.issuing import SigningKey
from tests.support.openid_provider import CLIENT, Forge, Realm, openid_provider
from tests.support.visitor import OPERATOR_TOKEN

pytestmark = pytest.mark.integration

type Claims = dict[str, Any]
type Attack = Callable[[LoginScene], Awaitable[None]]


@pytest.fixture
def realm() -> Generator[Realm]:
    with openid_provider() as realm:
        yield realm


@pytest.fixture
async def scene(realm: Realm, tmp_path: Path) -> AsyncGenerator[LoginScene]:
    async with a_login_scene(realm, an_issuer(realm, write_client_secret(tmp_path))) as scene:
        yield scene


@pytest.fixture
async def local(realm: Realm) -> AsyncGenerator[LoginScene]:
    async with a_login_scene(realm, mode="local") as scene:
        yield scene


async def is_signed_in(browser: Browser) -> bool:
    return (await browser.api()).status_code == 200


def refused(answer: Response, browser: Browser) -> None:
    """The answer is a refusal, and the browser has no session."""
    assert answer.status_code >= 400, answer.headers
    assert not browser.session


# Forged ID tokens: the provider's answer is not what the provider would sign.


def changed(**claims: Any) -> Forge:
    def forge(realm: Realm, said: Claims) -> str:
        found = {**said, **claims}
        return realm.sign({name: each for name, each in found.items() if each is not None})

    return forge


def unsigned(realm: Realm, claims: Claims) -> str:
    return ".".join((encoded({"alg": "none", "typ": "JWT"}), encoded(claims), ""))


def none_with_a_signature(realm: Realm, claims: Claims) -> str:
    return f"{unsigned(realm, claims)}c2lnbmF0dXJl"


def hmac_with_the_public_key(realm: Realm, claims: Claims) -> str:
    key = realm.keys[0]
    head = encoded({"alg": "HS256", "typ": "JWT", "kid": key.kid})
    signed = f"{head}.{encoded(claims)}".encode()
    mac = hmac.digest(json.dumps(key.jwk).encode(), signed, hashlib.sha256)
    return f"{signed.decode()}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def key_of_nobody(realm: Realm, claims: Claims) -> str:
    return realm.sign(claims, SigningKey("unknown"))


def own_key_under_a_known_name(realm: Realm, claims: Claims) -> str:
    return realm.sign(claims, SigningKey(realm.keys[0].kid))


def key_in_the_header(realm: Realm, claims: Claims) -> str:
    key = SigningKey(realm.keys[0].kid)
    return realm.sign(claims, key, jwk=key.jwk)


def another_type(realm: Realm, claims: Claims) -> str:
    return realm.sign(claims, typ="at+jwt")


def critical_header(realm: Realm, claims: Claims) -> str:
    return realm.sign(claims, crit=["b64"], b64=True)


def changed_after_the_signature(realm: Realm, claims: Claims) -> str:
    head, _, signature = realm.sign(claims).split(".")
    return f"{head}.{encoded({**claims, 'sub': 'mallory'})}.{signature}"


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def soon(seconds: float) -> int:
    return int(time.time() + seconds)


FORGERIES: dict[str, Forge] = {
    "token of another audience": changed(aud="another-client"),
    "token of several audiences without azp": changed(aud=[CLIENT, "another-client"]),
    "token whose azp is another client": changed(azp="another-client"),
    "algorithm none": unsigned,
    "algorithm none with a signature": none_with_a_signature,
    "HMAC with the public key": hmac_with_the_public_key,
    "unknown key": key_of_nobody,
    "own key under the name of a known one": own_key_under_a_known_name,
    "key in the header of the token": key_in_the_header,
    "access token as an ID token": another_type,
    "critical header that nobody knows": critical_header,
    "claims changed after the signature": changed_after_the_signature,
    "expired token": changed(exp=soon(-120)),
    "token issued in the future": changed(iat=soon(7200)),
    "token without a time of issue": changed(iat=None),
    "token without an expiry": changed(exp=None),
    "token without a nonce": changed(nonce=None),
    "nonce of another sign-in": changed(nonce="n" * 43),
    "nonce that is no text": changed(nonce=["n"]),
    "token of another issuer": changed(iss="https://accounts.example.net"),
    "hash of another access token": changed(at_hash="AAAAAAAAAAAAAAAAAAAAAA"),
    "token without a subject": changed(sub=None),
    "subject with a control character": changed(sub="ana\u0000mallory"),
    "subject of the local operator": changed(sub="local"),
    "very long subject": changed(sub="a" * 300),
    "token that is no token": lambda realm, claims: "a.b.c",
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_forged_id_token_signs_nobody_in(scene: LoginScene, name: str) -> None:
    browser = scene.browser()
    scene.realm.forge = FORGERIES[name]
    refused(await browser.sign_in(scene.realm), browser)
    assert await scene.principal() is None
    # The same provider without the forgery: the refusal came from the forgery alone.
    scene.realm.forge = None
    assert (await browser.sign_in(scene.realm)).status_code == 303


# The way through the browser.


async def _no_state(scene: LoginScene) -> None:
    browser = scene.browser()
    callback = await browser.authorize(scene.realm)
    refused(await browser.get(f"/login/callback?code={query_of(callback)['code']}"), browser)


async def _wrong_state(scene: LoginScene) -> None:
    browser = scene.browser()
    said = query_of(await browser.authorize(scene.realm))
    refused(await browser.get(f"/login/callback?{urlencode({**said, 'state': 's' * 43})}"), browser)


async def _replayed_state(scene: LoginScene) -> None:
    browser = scene.browser()
    callback = await browser.authorize(scene.realm)
    thief = browser.copy()
    assert (await browser.get(callback)).status_code == 303
    # With the code that was used, and with a new code of the same sign-in.
    refused(await thief.copy().get(callback), thief)
    code = query_of(await scene.browser().authorize(scene.realm))["code"]
    answer = await thief.get(f"/login/callback?{urlencode({**query_of(callback), 'code': code})}")
    refused(answer, thief)
    assert "completed before" in answer.text


async def _other_browser(scene: LoginScene) -> None:
    callback = await scene.browser().authorize(scene.realm)
    victim = scene.browser()
    refused(await victim.get(callback), victim)


async def _state_of_another_sign_in(scene: LoginScene) -> None:
    """The browser of the victim has begun a sign-in, and gets the answer to that of the thief."""
    victim = scene.browser()
    await victim.authorize(scene.realm)
    refused(await victim.get(await scene.browser().authorize(scene.realm)), victim)


async def _code_injection(scene: LoginScene) -> None:
    """The thief puts the stolen code of the victim into its own sign-in."""
    stolen = query_of(await scene.browser().authorize(scene.realm))["code"]
    thief = scene.browser()
    scene.realm.person = "mallory"
    said = query_of(await thief.authorize(scene.realm))
    refused(await thief.get(f"/login/callback?{urlencode({**said, 'code': stolen})}"), thief)


async def _code_injection_at_a_lax_provider(scene: LoginScene) -> None:
    """The same at a provider that does not check PKCE: the nonce of the victim betrays it."""
    victims = query_of(await scene.browser().authorize(scene.realm))["code"]
    thief = scene.browser()
    said = query_of(await thief.authorize(scene.realm))
    mine, theirs = scene.realm.codes[said["code"]], scene.realm.codes[victims]
    theirs.code_challenge = mine.code_challenge
    answer = await thief.get(f"/login/callback?{urlencode({**said, 'code': victims})}")
    refused(answer, thief)
    assert "another sign-in" in answer.text


async def _used_code(scene: LoginScene) -> None:
    browser = scene.browser()
    code = query_of(await browser.authorize(scene.realm))["code"]
    scene.realm.codes.clear()
    refused(await browser.get(f"/login/callback?code={code}"), browser)


async def _forged_transaction(scene: LoginScene) -> None:
    browser = scene.browser()
    callback = await browser.authorize(scene.realm)
    sealed = bytearray(base64.urlsafe_b64decode(browser.transaction))
    sealed[-3] ^= 1
    browser.jar[LOGIN_COOKIE] = base64.urlsafe_b64encode(bytes(sealed)).decode()
    refused(await browser.get(callback), browser)


async def _late_answer(scene: LoginScene) -> None:
    browser = scene.browser()
    callback = await browser.authorize(scene.realm)
    sessions = scene.parts.login.sessions
    sessions.clock = lambda: datetime.now(UTC) + timedelta(minutes=11)
    refused(await browser.get(callback), browser)


async def _link_as_a_transaction(scene: LoginScene) -> None:
    """A token that another part of the gateway sealed is no transaction."""
    browser = scene.browser()
    callback = await browser.authorize(scene.realm)
    browser.jar[LOGIN_COOKIE] = scene.parts.login.make_link()[0]
    refused(await browser.get(callback), browser)


async def _missing_issuer(scene: LoginScene) -> None:
    """The provider promises `iss`, so an answer without it is not its own. (RFC 9207)"""
    browser = scene.browser()
    said = query_of(await browser.authorize(scene.realm))
    del said["iss"]
    refused(await browser.get(f"/login/callback?{urlencode(said)}"), browser)


async def _issuer_of_another_provider(scene: LoginScene) -> None:
    browser = scene.browser()
    said = query_of(await browser.authorize(scene.realm))
    answer = {**said, "iss": "https://evil.example.net"}
    refused(await browser.get(f"/login/callback?{urlencode(answer)}"), browser)
    assert scene.realm.token_requests == []


async def _pkce_downgrade(scene: LoginScene) -> None:
    scene.realm.metadata = {"code_challenge_methods_supported": ["plain"]}
    browser = scene.browser()
    refused(await browser.start(scene.realm), browser)


async def _metadata_of_another_issuer(scene: LoginScene) -> None:
    scene.realm.metadata = {"issuer": "https://accounts.example.net"}
    browser = scene.browser()
    refused(await browser.start(scene.realm), browser)


async def _script_as_an_endpoint(scene: LoginScene) -> None:
    scene.realm.metadata = {"authorization_endpoint": "javascript:alert(1)"}
    browser = scene.browser()
    refused(await browser.start(scene.realm), browser)


async def _unknown_provider(scene: LoginScene) -> None:
    browser = scene.browser()
    issuer = quote("http://127.0.0.1:1/evil", safe="")
    refused(await browser.get(f"/login/start?issuer={issuer}"), browser)


async def _html_in_the_error(scene: LoginScene) -> None:
    browser = scene.browser()
    said = query_of(await browser.authorize(scene.realm))
    del said["code"]
    evil = '<script>alert(1)</script><img src=x onerror="alert(2)">'
    answer = await browser.get(
        f"/login/callback?{urlencode({**said, 'error': evil, 'error_description': evil})}"
    )
    refused(answer, browser)
    assert "<script" not in answer.text
    assert "onerror" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


async def _html_in_the_next_address(scene: LoginScene) -> None:
    evil = '"><script>alert(1)</script>'
    page = await scene.browser().get(f"/login?next={quote('/console/' + evil)}")
    assert "<script" not in page.text


async def _userinfo_of_another_person(scene: LoginScene) -> None:
    scene.realm.userinfo = {"sub": "mallory", "groups": ["admins"]}
    browser = scene.browser()
    refused(await browser.sign_in(scene.realm), browser)
    assert await scene.principal() is None


async def _groups_of_every_size(scene: LoginScene) -> None:
    scene.realm.claims = {"groups": [f"group-{number}" for number in range(201)]}
    browser = scene.browser()
    refused(await browser.sign_in(scene.realm), browser)


async def _groups_that_are_elsewhere(scene: LoginScene) -> None:
    """A person with many groups hides the one that a deny names."""
    scene.realm.claims = {"_claim_names": {"groups": "src1"}}
    browser = scene.browser()
    refused(await browser.sign_in(scene.realm), browser)


async def _groups_that_are_subjects(scene: LoginScene) -> None:
    """A claim names groups only. It cannot name another principal, or everybody."""
    scene.realm.claims = {"groups": ["person:ben"]}
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    who = await browser.who()
    assert set(who["groups"]) <= {"person:ben"}
    assert who["principal"] == ANA
    # A claim that is malformed signs nobody in: a lost group could be one that a grant denies.
    for malformed in (["sre", {"admins": True}, 7, "a\u0000b"], ["sre", "*"], ["sr\u200be"]):
        scene.realm.claims = {"groups": malformed}
        other = scene.browser()
        await other.sign_in(scene.realm)
        with pytest.raises(AssertionError, match="authentication required"):
            await other.who()


async def _disabled_principal(scene: LoginScene) -> None:
    await scene.put(ANA, disabled=True)
    browser = scene.browser()
    answer = await browser.sign_in(scene.realm)
    refused(answer, browser)
    assert "disabled" in answer.text
    stored = await scene.principal()
    assert stored is not None
    assert stored.disabled


async def _agent_by_its_name(scene: LoginScene) -> None:
    """The provider names a principal that is an agent here."""
    await scene.parts.snapshot.records.parties.put(Principal(ANA, PrincipalKind.AGENT))
    browser = scene.browser()
    refused(await browser.sign_in(scene.realm), browser)


# Sessions.


async def _fixation(scene: LoginScene) -> None:
    """The thief plants a cookie, and hopes that the sign-in of the victim makes it valid."""
    planted = f"{'a' * 16}.{'b' * 43}"
    victim, thief = scene.browser(), scene.browser()
    victim.jar[SESSION_COOKIE] = thief.jar[SESSION_COOKIE] = planted
    await victim.sign_in(scene.realm)
    assert victim.session != planted
    assert not await is_signed_in(thief)


async def _fixation_with_a_real_session(scene: LoginScene) -> None:
    scene.realm.person = "mallory"
    thief = scene.browser()
    await thief.sign_in(scene.realm)
    victim = scene.browser()
    victim.jar[SESSION_COOKIE] = thief.session
    scene.realm.person = "ana"
    await victim.sign_in(scene.realm)
    assert (await victim.who())["principal"] == ANA
    assert (await thief.who())["principal"] == "person:mallory"


async def _cookie_without_its_prefix(scene: LoginScene) -> None:
    """A sibling site can set a cookie without the prefix."""
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    for name in ("comity-session", "__Secure-comity-session", "__host-comity-session"):
        other = scene.browser()
        other.jar[name] = browser.session
        assert not await is_signed_in(other), name


async def _guessed_secret(scene: LoginScene) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    id, _, secret = browser.session.partition(".")
    for guess in (f"{id}.{'a' * 43}", f"{id}.", id, f"{id}.{secret}=", f"{id}.{secret[:-1]}"):
        other = scene.browser()
        other.jar[SESSION_COOKIE] = guess
        assert not await is_signed_in(other), guess


async def _many_guesses(scene: LoginScene) -> None:
    browser, answers = scene.browser(), set[int]()
    for number in range(40):
        browser.jar[SESSION_COOKIE] = f"{number:016x}.{'a' * 43}"
        answers.add((await browser.api()).status_code)
    assert answers == {401, 429}


async def _secret_of_another_session(scene: LoginScene) -> None:
    first, second = scene.browser(), scene.browser()
    await first.sign_in(scene.realm)
    scene.realm.person = "ben"
    await second.sign_in(scene.realm)
    mixed = f"{first.session.partition('.')[0]}.{second.session.partition('.')[2]}"
    first.jar[SESSION_COOKIE] = mixed
    assert not await is_signed_in(first)


async def _cookie_at_other_endpoints(scene: LoginScene) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    call: Claims = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for path in ("/mcp", "/servers/up/mcp", "/tools", "/tools/up__read/call", "/openapi.json"):
        for method in ("GET", "POST"):
            said: Any = call if method == "POST" else None
            answer = await browser.send(method, path, json=said, accept="application/json")
            assert answer.status_code == 401, (method, path, answer.text)
    for path in ("/metrics", "/admin/participants/person:ana/capabilities", "/apiary", "/api"):
        assert (await browser.api(path)).status_code == 401, path


async def _two_cookies_in_one_header(scene: LoginScene) -> None:
    """A proxy could read the first of them, and Comity the second."""
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    value = browser.session
    for cookies in (
        f"{SESSION_COOKIE}={value}; {SESSION_COOKIE}={value}",
        f"{SESSION_COOKIE}=x;{SESSION_COOKIE}={value}",
        f"{SESSION_COOKIE}={value};\t{SESSION_COOKIE}=",
    ):
        assert (await scene.browser().api(cookie=cookies)).status_code == 400


async def _two_cookie_headers(scene: LoginScene) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    pairs = [("cookie", "a=b"), ("cookie", f"{SESSION_COOKIE}={browser.session}")]
    reply = await scene.visitor.send("GET", pairs, path="/api/session")
    assert reply.status == 400


async def _oversized_cookies(scene: LoginScene) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    long = f"a={'x' * 9000}; {SESSION_COOKIE}={browser.session}"
    assert (await scene.browser().api(cookie=long)).status_code in (400, 431)
    huge = f"{SESSION_COOKIE}={'x' * 5000}"
    assert (await scene.browser().api(cookie=huge)).status_code == 401
    answer = await scene.browser().get("/login/callback?code=a&state=b", cookie="x" * 9000)
    assert answer.status_code in (400, 431)


async def _cookie_after_the_sign_out(scene: LoginScene) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    thief = browser.copy()
    await browser.send("POST", "/logout")
    assert not await is_signed_in(thief)


async def _session_of_a_disabled_principal(scene: LoginScene) -> None:
    browser, admin = scene.browser(), scene.browser()
    await browser.sign_in(scene.realm)
    scene.realm.person = "ben"
    await admin.sign_in(scene.realm)
    done = await admin.send("POST", f"/api/principals/{ANA}/disable", json={})
    assert done.status_code == 200
    assert not await is_signed_in(browser)
    # A cookie that was stolen before does not work again.
    done = await admin.send("POST", f"/api/principals/{ANA}/enable", json={})
    assert done.status_code == 200
    assert not await is_signed_in(browser)
    assert await is_signed_in(admin)


async def _session_of_a_deleted_principal(scene: LoginScene) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    assert await scene.parts.snapshot.records.parties.remove(ANA)
    await scene.parts.snapshot.refresh()
    assert not await is_signed_in(browser)
    # A new record of the same name does not bring the session back.
    await scene.put(ANA)
    assert not await is_signed_in(browser)


async def _clickjacking(scene: LoginScene) -> None:
    browser = scene.browser()
    for path in ("/login", "/login/start?issuer=x", "/login/callback", "/login/link?token=x"):
        answer = await browser.get(path)
        assert answer.headers["x-frame-options"] == "DENY", path
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"], path
    signed_out = await browser.send("POST", "/logout")
    assert "frame-ancestors 'none'" in signed_out.headers["content-security-policy"]


async def _token_in_the_referrer(scene: LoginScene) -> None:
    """The address of the callback has the code. No page of it may tell the address to others."""
    browser = scene.browser()
    answer = await browser.sign_in(scene.realm)
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"


async def _forged_sign_in_with_a_key(scene: LoginScene) -> None:
    """A page of another site signs the victim in as the thief."""
    for origin in ("https://evil.example.net", "null", None, "http://127.0.0.1:1"):
        browser = scene.browser()
        answer = await browser.send("POST", "/login", {"key": "cmty_live_x"}, origin=origin)
        assert answer.status_code == 403, origin


async def _forged_sign_out(scene: LoginScene) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    for origin in ("https://evil.example.net", "null", None):
        assert (await browser.copy().send("POST", "/logout", origin=origin)).status_code == 403
    assert (await browser.get("/logout")).status_code == 405
    assert await is_signed_in(browser)


async def _read_by_another_site(scene: LoginScene) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    for headers in (
        {"origin": "https://evil.example.net"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        answer = await browser.api(**headers)
        assert answer.status_code == 403, headers
        assert "access-control-allow-origin" not in answer.headers


async def _host_of_another_site(scene: LoginScene) -> None:
    """DNS rebinding: the name of another site leads here."""
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    answer = await browser.api(host="evil.example.net")
    assert answer.status_code in (400, 403, 421)
    start = await browser.get(f"/login/start?issuer={quote(scene.realm.url)}", host="evil.net")
    assert start.status_code in (400, 403, 421)


async def _forwarded_host(scene: LoginScene) -> None:
    """The address for the provider's answer comes from no header that a client can invent."""
    answer = await scene.browser().get(
        f"/login/start?issuer={quote(scene.realm.url, safe='')}",
        x_forwarded_host="evil.example.net",
        forwarded="host=evil.example.net;proto=https",
    )
    sent = query_of(answer.headers["location"])
    assert sent["redirect_uri"] == f"{scene.origin}/login/callback"


async def _link_with_a_session(scene: LoginScene) -> None:
    """A session makes no links, whoever it is of."""
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    answer = await browser.send("POST", "/api/login-links", json={})
    assert answer.status_code == 403


async def _link_where_credentials_are_required(scene: LoginScene) -> None:
    browser = scene.browser()
    token, _ = scene.parts.login.make_link()
    refused(await browser.get(f"/login/link?token={token}"), browser)


# Orders of the provider to end sessions.


async def _bad_logout_tokens(scene: LoginScene) -> None:
    browser, realm = scene.browser(), scene.realm
    await browser.sign_in(realm)
    mine = SigningKey("mine")
    now = soon(0)
    as_id_token = {"iss": realm.url, "aud": CLIENT, "sub": "ana", "iat": now, "exp": now + 60}
    for name, token in {
        "nothing": "",
        "no token": "a.b.c",
        "an ID token": realm.sign({**as_id_token, "nonce": "n", "sid": realm.sid}),
        "a nonce": realm.logout_token(nonce="n"),
        "no event": realm.logout_token(events=None),
        "another event": realm.logout_token(events={"http://example.net": {}}),
        "an event that is no object": realm.logout_token(events=["x"]),
        "another audience": realm.logout_token(aud="another-client"),
        "another issuer": realm.logout_token(iss="https://accounts.example.net"),
        "nobody": realm.logout_token(sub=None, sid=None),
        "no id": realm.logout_token(jti=None),
        "expired": realm.logout_token(exp=now - 120),
        "of the future": realm.logout_token(iat=now + 7200),
        "another key": realm.sign({**as_id_token, "events": {}}, mine),
        "no signature": unsigned(realm, as_id_token),
    }.items():
        answer = await scene.browser().send(
            "POST", "/login/backchannel", {"logout_token": token}, origin=None
        )
        assert answer.status_code == 400, name
        assert await is_signed_in(browser), name


async def _replayed_logout_token(scene: LoginScene) -> None:
    browser, token = scene.browser(), scene.realm.logout_token()
    await browser.sign_in(scene.realm)
    good = await scene.browser().send(
        "POST", "/login/backchannel", {"logout_token": token}, origin=None
    )
    assert good.status_code == 200
    assert not await is_signed_in(browser)
    await browser.sign_in(scene.realm)
    again = await scene.browser().send(
        "POST", "/login/backchannel", {"logout_token": token}, origin=None
    )
    assert again.status_code == 400
    assert await is_signed_in(browser)


async def _logout_token_of_another_session(scene: LoginScene) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    for changed_claims in ({"sub": "ben"}, {"sid": "other"}, {"sub": None, "sid": "other"}):
        token = scene.realm.logout_token(**changed_claims)
        await scene.browser().send(
            "POST", "/login/backchannel", {"logout_token": token}, origin=None
        )
        assert await is_signed_in(browser), changed_claims


ATTACKS: dict[str, Attack] = {
    "answer without state": _no_state,
    "answer with a wrong state": _wrong_state,
    "replayed state": _replayed_state,
    "answer in another browser": _other_browser,
    "answer to the sign-in of another browser": _state_of_another_sign_in,
    "code injection": _code_injection,
    "code injection at a provider without PKCE": _code_injection_at_a_lax_provider,
    "code that was used": _used_code,
    "forged transaction cookie": _forged_transaction,
    "answer after ten minutes": _late_answer,
    "one-time link as a transaction": _link_as_a_transaction,
    "answer without the promised issuer": _missing_issuer,
    "mix-up by the issuer of another provider": _issuer_of_another_provider,
    "PKCE downgrade": _pkce_downgrade,
    "metadata of another issuer": _metadata_of_another_issuer,
    "script as an endpoint of the provider": _script_as_an_endpoint,
    "sign-in at an unknown provider": _unknown_provider,
    "HTML in the error of the provider": _html_in_the_error,
    "HTML in the address to return to": _html_in_the_next_address,
    "userinfo of another person": _userinfo_of_another_person,
    "too many groups": _groups_of_every_size,
    "groups that are elsewhere": _groups_that_are_elsewhere,
    "groups that look like subjects": _groups_that_are_subjects,
    "sign-in of a disabled principal": _disabled_principal,
    "sign-in as an agent": _agent_by_its_name,
    "session fixation": _fixation,
    "session fixation with a real session": _fixation_with_a_real_session,
    "cookie without its prefix": _cookie_without_its_prefix,
    "guessed session": _guessed_secret,
    "many guessed sessions": _many_guesses,
    "secret of another session": _secret_of_another_session,
    "session cookie at other endpoints": _cookie_at_other_endpoints,
    "two session cookies in one header": _two_cookies_in_one_header,
    "two cookie headers": _two_cookie_headers,
    "oversized cookies": _oversized_cookies,
    "cookie after the sign-out": _cookie_after_the_sign_out,
    "session of a disabled principal": _session_of_a_disabled_principal,
    "session of a deleted principal": _session_of_a_deleted_principal,
    "clickjacking": _clickjacking,
    "code in the referrer": _token_in_the_referrer,
    "forged sign-in with a key": _forged_sign_in_with_a_key,
    "forged sign-out": _forged_sign_out,
    "read by another site": _read_by_another_site,
    "host of another site": _host_of_another_site,
    "forwarded host": _forwarded_host,
    "one-time link made by a session": _link_with_a_session,
    "one-time link where credentials are required": _link_where_credentials_are_required,
    "bad logout tokens": _bad_logout_tokens,
    "replayed logout token": _replayed_logout_token,
    "logout token of another session": _logout_token_of_another_session,
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_on_the_sign_in_fails(scene: LoginScene, name: str) -> None:
    await ATTACKS[name](scene)


# Addresses to return to.

OPEN_REDIRECTS = {
    "another site": "https://evil.example.net/",
    "two slashes": "//evil.example.net/",
    "three slashes": "///evil.example.net/",
    "slash and backslash": "/\\evil.example.net/",
    "backslashes": "\\\\evil.example.net/",
    "encoded slash": "/%2fevil.example.net/",
    "encoded backslash": "/%5cevil.example.net/",
    "twice encoded slash": "/%252fevil.example.net/",
    "tab between slashes": "/\t/evil.example.net/",
    "line break": "/\n/evil.example.net/",
    "encoded tab": "/%09/evil.example.net/",
    "header injection": "/console/\r\nset-cookie: a=b",
    "encoded header injection": "/console/%0d%0aset-cookie:%20a=b",
    "dots before slashes": "/.//evil.example.net/",
    "parent folder": "/..//evil.example.net/",
    "slashes inside": "/console//evil.example.net",
    "script": "javascript:alert(1)",
    "data": "data:text/html,<script>alert(1)</script>",
    "user and host": "@evil.example.net/",
    "host without a slash": "evil.example.net",
    "letters beyond ASCII": "/\u2215evil.example.net/",
    "too long": "/" + "a" * 2000,
    "blank before": " /console/",
    "nothing": "",
}


@pytest.mark.parametrize("name", OPEN_REDIRECTS)
def test_an_open_redirect_leads_to_the_console(name: str) -> None:
    assert own_path(OPEN_REDIRECTS[name]) == "/console/"


@pytest.mark.parametrize(
    "path", ["/", "/console/", "/console/audit?trace=a//b&u=http://x", "/approvals/06gu#top"]
)
def test_a_path_of_ours_is_kept(path: str) -> None:
    assert own_path(path) == path


@pytest.mark.parametrize("name", ["another site", "two slashes", "encoded slash", "line break"])
async def test_a_sign_in_returns_to_this_gateway_only(scene: LoginScene, name: str) -> None:
    answer = await scene.browser().sign_in(scene.realm, OPEN_REDIRECTS[name])
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/")


# Writes that a page of another site sends with the cookie of the victim.

FORGED: dict[str, dict[str, str | None]] = {
    "another site": {"origin": "https://evil.example.net"},
    "no origin": {"origin": None},
    "null origin": {"origin": "null"},
    "another port of this machine": {"origin": "http://127.0.0.1:1"},
    "another name of this machine": {"origin": "http://localhost"},
    "fetch metadata of another site": {"sec-fetch-site": "cross-site"},
    "fetch metadata of the same site": {"sec-fetch-site": "same-site"},
}


@pytest.mark.parametrize("name", FORGED)
async def test_no_write_of_the_api_can_be_forged(scene: LoginScene, name: str) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    writes = [route for route in scene.parts.api.routes if route.method != "GET"]
    assert len(writes) > 25
    for route in writes:
        answer = await browser.send("POST", address_of(route), None, json={}, **FORGED[name])
        expected = 403 if route.path.startswith("/api/") else 401
        # Outside /api/ the cookie does not count at all, or the origin was refused before.
        assert answer.status_code in (expected, 403), (route.path, answer.text)
    # The same request from a page of ours arrives: only the forgery was refused.
    arrived = await browser.send("POST", "/api/principals", json={"id": "agent:new"})
    assert arrived.status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_no_write_takes_the_form_of_a_page(scene: LoginScene, kind: str) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    answer = await browser.send("POST", "/api/principals", {"id": "x"}, content_type=kind)
    assert answer.status_code == 415


def address_of(route: ApiRoute[Any]) -> str:
    return route.path.replace(":path", "").replace("{", "").replace("}", "")


# One-time links of a gateway in local mode.


async def a_link(scene: LoginScene) -> str:
    answer = await scene.browser().send(
        "POST",
        "/api/login-links",
        json={},
        authorization=f"Bearer {OPERATOR_TOKEN}",
        origin=None,
        accept="application/json",
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["path"]


async def test_a_link_signs_the_local_operator_in_once(local: LoginScene) -> None:
    link, browser, thief = await a_link(local), local.browser(), local.browser()
    # A program that only looks at the link does not use it up.
    assert (await browser.send("HEAD", link)).status_code == 405
    answer = await browser.get(link)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/")
    who = await browser.who()
    assert who["principal"] == "person:local"
    assert [who["may_read"], who["may_write"], who["may_answer"]] == [True] * 3
    refused(await thief.get(link), thief)
    await browser.send("POST", "/logout")
    refused(await thief.get(link), thief)


@pytest.mark.parametrize(
    "headers",
    [
        {"x_forwarded_for": "203.0.113.7"},
        {"forwarded": "for=203.0.113.7"},
        {"x_real_ip": "203.0.113.7"},
        {"via": "1.1 proxy"},
        {"host": "gateway.example.org"},
    ],
    ids=["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "Host"],
)
async def test_a_link_from_another_machine_is_refused(
    local: LoginScene, headers: dict[str, str]
) -> None:
    link, browser = await a_link(local), local.browser()
    refused(await browser.get(link, **headers), browser)
    assert (await browser.get(link)).status_code == 303
    # Nor does the session count for requests that came through a proxy.
    assert (await browser.api(**headers)).status_code >= 400


async def test_a_changed_link_or_another_spelling_of_it_is_refused(local: LoginScene) -> None:
    link, browser = await a_link(local), local.browser()
    token = link.rpartition("=")[2]
    for place in (0, 20, len(token) - 1):
        for letter in "AB-_":
            changed = token[:place] + letter + token[place + 1 :]
            if changed != token:
                refused(await browser.get(link.replace(token, changed)), browser)
    for spelling in (f"{token}%3D", f"{token}AAAA", f"%20{token}", token.swapcase(), token[:-1]):
        refused(await browser.get(link.replace(token, spelling)), browser)
    assert (await browser.get(link)).status_code == 303


async def test_a_link_leads_to_the_page_that_it_was_made_for(local: LoginScene) -> None:
    for target, place in (("/console/tools", "/console/tools"), ("//evil.example", "/console/")):
        token, _ = local.parts.login.make_link(target)
        answer = await local.browser().get(f"/login/link?token={token}")
        assert (answer.status_code, answer.headers["location"]) == (303, place)


async def test_a_link_ends_after_ten_minutes(local: LoginScene) -> None:
    link, browser = await a_link(local), local.browser()
    local.parts.login.sessions.clock = lambda: datetime.now(UTC) + timedelta(minutes=11)
    refused(await browser.get(link), browser)


async def test_a_process_without_the_operator_token_gets_no_link(local: LoginScene) -> None:
    for authorization in (None, "Bearer nonsense", "Bearer "):
        answer = await local.browser().send(
            "POST", "/api/login-links", json={}, authorization=authorization, origin=None
        )
        assert answer.status_code == 401
    for token in ("", "x", "x" * 5000, "%00"):
        browser = local.browser()
        refused(await browser.get(f"/login/link?token={token}"), browser)


async def test_a_link_of_the_process_before_is_refused(local: LoginScene) -> None:
    parts = local.parts
    before = LoginService(
        parts.login.sessions,
        parts.snapshot.records.parties,
        parts.snapshot.refresh,
        LoginKeys(parts.authenticator.pepper, "token of the process before"),
    )
    browser = local.browser()
    refused(await browser.get(f"/login/link?token={before.make_link()[0]}"), browser)


# Two providers.


async def test_the_code_of_one_provider_reaches_no_other(realm: Realm) -> None:
    """Mix-up: the hostile provider sends the browser on to the honest one."""
    realm.methods = ["none"]
    with openid_provider(methods=["none"]) as hostile:
        issuers = (an_issuer(realm), an_issuer(hostile, principal_prefix="person:hostile/"))
        async with a_login_scene(realm, *issuers) as scene:
            hostile.redirect_uris = realm.redirect_uris
            hostile.metadata = {"authorization_endpoint": f"{realm.url}/authorize"}
            victim = scene.browser()
            refused(await victim.sign_in(hostile), victim)
            assert hostile.token_requests == []


async def test_a_provider_that_names_no_issuer_stands_alone(realm: Realm) -> None:
    realm.sends_issuer = False
    with openid_provider() as other:
        issuers = (an_issuer(realm), an_issuer(other, principal_prefix="person:other/"))
        async with a_login_scene(realm, *issuers) as scene:
            browser = scene.browser()
            answer = await browser.start(realm)
            refused(answer, browser)
            assert "beside another provider" in answer.text


async def test_a_provider_cannot_speak_for_the_people_of_another(realm: Realm) -> None:
    """The token is signed with the key of one provider, and names the other as its issuer."""
    realm.methods = ["none"]
    with openid_provider(methods=["none"]) as hostile:
        issuers = (
            an_issuer(realm),
            an_issuer(hostile, principal_prefix="person:hostile/", groups_claim=""),
        )
        async with a_login_scene(realm, *issuers) as scene:
            hostile.redirect_uris = realm.redirect_uris
            hostile.forge = lambda its, claims: its.sign({**claims, "iss": realm.url})
            browser = scene.browser()
            refused(await browser.sign_in(hostile), browser)
            # Group spoofing: this provider may name no groups, and has its own principals.
            hostile.forge = None
            hostile.claims = {"groups": ["sre"]}
            await browser.sign_in(hostile)
            who = await browser.who()
            assert (who["principal"], who["groups"]) == ("person:hostile/ana", [])
            assert await scene.principal() is None
            # Nor can it end the sessions of the other.
            victim = scene.browser()
            await victim.sign_in(realm)
            token = hostile.logout_token(iss=realm.url)
            await scene.browser().send(
                "POST", "/login/backchannel", {"logout_token": token}, origin=None
            )
            assert await is_signed_in(victim)


def test_there_are_more_than_thirty_named_attacks() -> None:
    names = [*ATTACKS, *FORGERIES, *FORGED, *OPEN_REDIRECTS]
    assert len(names) > 100
