"""Signing in with an OpenID provider, an API key or a one-time link, and out again."""

import asyncio
import html
import re
from collections.abc import AsyncGenerator, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import pytest

from comity.identity.keys import KeyAdmin
from comity.identity.login.rules import LOGIN_COOKIE, SESSION_COOKIE
from comity.identity.principals import ApiKey
from tests.identity.login.scene import (
    ANA,
    LoginScene,
    a_login_scene,
    an_issuer,
    query_of,
    write_client_secret,
)
from tests.support.openid_provider import Realm, openid_provider

pytestmark = pytest.mark.integration


@pytest.fixture
def realm() -> Generator[Realm]:
    with openid_provider() as realm:
        yield realm


@pytest.fixture
async def scene(realm: Realm, tmp_path: Path) -> AsyncGenerator[LoginScene]:
    issuer = an_issuer(realm, write_client_secret(tmp_path))
    async with a_login_scene(realm, issuer) as scene:
        yield scene


async def test_a_person_signs_in_and_is_known_by_the_provider(scene: LoginScene) -> None:
    scene.realm.claims = {"name": "Ana Example", "groups": ["sre", "oncall"]}
    browser = scene.browser()
    answer = await browser.sign_in(scene.realm, "/console/approvals")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/approvals")
    who = await browser.who()
    assert who["principal"] == ANA
    assert who["label"] == "Ana Example"
    assert who["groups"] == ["oncall", "sre"]
    assert who["how"] == "session"
    assert who["may_read"]
    assert browser.attributes[SESSION_COOKIE].endswith(
        "Path=/; Max-Age=43200; Secure; HttpOnly; SameSite=Strict"
    )
    assert LOGIN_COOKIE not in browser.jar


async def test_the_provider_sees_pkce_a_nonce_and_the_exact_redirect_uri(
    scene: LoginScene,
) -> None:
    browser = scene.browser()
    sent = query_of((await browser.start(scene.realm)).headers["location"])
    assert sent["redirect_uri"] == f"{scene.origin}/login/callback"
    assert sent["code_challenge_method"] == "S256"
    assert len(sent["state"]) == len(sent["nonce"]) == len(sent["code_challenge"]) == 43
    assert sent["scope"] == "openid profile email"
    # The cookie has only the seed of these words.
    assert all(sent[word] not in browser.transaction for word in ("state", "nonce"))


async def test_groups_of_the_next_sign_in_replace_those_of_the_record(scene: LoginScene) -> None:
    scene.realm.claims = {"groups": ["sre"]}
    first, second = scene.browser(), scene.browser()
    await first.sign_in(scene.realm)
    scene.realm.claims = {"groups": ["sales"]}
    await second.sign_in(scene.realm)
    # Also for the session that is open already.
    assert (await first.who())["groups"] == (await second.who())["groups"] == ["sales"]


async def test_groups_come_from_userinfo_if_the_id_token_has_none(scene: LoginScene) -> None:
    scene.realm.userinfo = {"sub": "ana", "groups": ["from-userinfo"]}
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    assert (await browser.who())["groups"] == ["from-userinfo"]


async def test_without_a_claim_the_groups_of_the_record_remain(realm: Realm) -> None:
    async with a_login_scene(realm, an_issuer(realm, groups_claim="")) as scene:
        realm.methods = ["none"]
        realm.claims = {"groups": ["admins"]}
        await scene.put(ANA, groups=("sre",))
        browser = scene.browser()
        await browser.sign_in(realm)
        assert (await browser.who())["groups"] == ["sre"]


@pytest.mark.parametrize("method", ["none", "client_secret_post", "client_secret_basic"])
async def test_comity_authenticates_as_the_provider_supports(
    realm: Realm, method: str, tmp_path: Path
) -> None:
    realm.methods = [method]
    file = "" if method == "none" else write_client_secret(tmp_path)
    async with a_login_scene(realm, an_issuer(realm, file)) as scene:
        browser = scene.browser()
        assert (await browser.sign_in(realm)).status_code == 303
        assert (await browser.who())["principal"] == ANA
        assert ("client_secret" in realm.token_requests[0]) is (method == "client_secret_post")


async def test_a_sign_in_follows_the_rotation_of_keys(scene: LoginScene) -> None:
    assert (await scene.browser().sign_in(scene.realm)).status_code == 303
    scene.realm.rotate()
    await wait_for_new_keys(scene)


async def wait_for_new_keys(scene: LoginScene) -> None:
    """Sign in until the provider's new key counts: Comity asks for keys every two seconds."""
    async with asyncio.timeout(60):
        while (await scene.browser().sign_in(scene.realm)).status_code != 303:
            await asyncio.sleep(0.2)


async def test_an_api_key_signs_in_and_the_session_ends_with_the_key(scene: LoginScene) -> None:
    admin = KeyAdmin(
        scene.parts.snapshot.records, scene.parts.authenticator.pepper, scene.parts.snapshot.refresh
    )
    made = await admin.create("person:root", ApiKey("", ANA, b"", permissions=("AdminRead",)))
    browser = scene.browser()
    wrong = await browser.send("POST", "/login", {"key": "cmty_live_wrong", "next": "/console/x"})
    assert wrong.status_code == 401
    assert "truncated" in wrong.text
    right = await browser.send("POST", "/login", {"key": made.whole, "next": "/console/x"})
    assert (right.status_code, right.headers["location"]) == (303, "/console/x")
    who = await browser.who()
    assert who["principal"] == ANA
    # The session has no more rights than the key.
    assert (who["may_read"], who["may_write"]) == (True, False)
    await admin.revoke("person:root", made.record.id)
    assert (await browser.api()).status_code == 401


async def test_a_second_sign_in_with_a_key_ends_the_session_before(scene: LoginScene) -> None:
    key = await a_key(scene)
    browser = scene.browser()
    await browser.send("POST", "/login", {"key": key})
    old = browser.copy()
    await browser.send("POST", "/login", {"key": key})
    assert old.session != browser.session
    assert (await old.api()).status_code == 401
    assert (await browser.who())["principal"] == ANA


async def a_key(scene: LoginScene) -> str:
    records, pepper = scene.parts.snapshot.records, scene.parts.authenticator.pepper
    admin = KeyAdmin(records, pepper, scene.parts.snapshot.refresh)
    return (await admin.create("person:root", ApiKey("", ANA, b""))).whole


async def test_a_sign_out_leads_to_the_provider(scene: LoginScene) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    answer = await browser.send("POST", "/logout")
    assert answer.status_code == 200
    (place,) = re.findall(r'href="([^"]+/end[^"]+)"', answer.text)
    sent = query_of(html.unescape(place))
    assert sent["client_id"] == "comity"
    assert sent["post_logout_redirect_uri"] == f"{scene.origin}/login"
    claims = jwt.decode(sent["id_token_hint"], options={"verify_signature": False})
    assert claims["sub"] == "ana"
    assert not browser.session


async def test_the_console_learns_where_to_go_after_a_sign_out(scene: LoginScene) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    answer = await browser.send("POST", "/logout", accept="application/json")
    assert answer.json()["location"].startswith(f"{scene.realm.url}/end?")
    again = await browser.send("POST", "/logout", accept="application/json")
    assert again.json() == {"location": "/login"}


async def test_the_sign_in_page_offers_the_providers_and_a_form(scene: LoginScene) -> None:
    page = (await scene.browser().get("/login?next=/console/audit")).text
    assert "Sign in with Example" in page
    assert "next=%2Fconsole%2Faudit" in page or "next=/console/audit" in page
    assert 'name="key"' in page
    assert "comity console" not in page
    assert "<script" not in page


async def test_operators_list_and_revoke_sessions(scene: LoginScene) -> None:
    browser, other = scene.browser(), scene.browser()
    await browser.sign_in(scene.realm)
    scene.realm.person = "ben"
    await other.sign_in(scene.realm)
    listed = (await browser.api("/api/sessions")).json()["sessions"]
    assert {each["principal"] for each in listed} == {ANA, "person:ben"}
    assert all("digest" not in each and "hint" not in each for each in listed)
    (of_ben,) = [each["id"] for each in listed if each["principal"] == "person:ben"]
    done = await browser.send("POST", f"/api/sessions/{of_ben}/revoke", json={})
    assert done.status_code == 200
    assert (await other.api()).status_code == 401
    again = await browser.send("POST", f"/api/sessions/{of_ben}/revoke", json={})
    assert again.status_code == 404


async def test_the_audit_log_has_the_beginning_and_the_end_of_sessions(scene: LoginScene) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    await browser.send("POST", "/logout")
    async with asyncio.timeout(60):
        while True:
            found = [entry async for entry in entries_of(scene)]
            if {"dev.comity.session_started", "dev.comity.session_ended"} <= set(found):
                break
            await asyncio.sleep(0.05)


async def entries_of(scene: LoginScene) -> AsyncGenerator[str]:
    operator = scene.browser()
    await operator.sign_in(scene.realm)
    for entry in (await operator.api("/api/audit")).json()["entries"]:
        yield entry["type"]


async def test_a_bearer_beside_a_cookie_decides(scene: LoginScene) -> None:
    browser = scene.browser()
    await browser.sign_in(scene.realm)
    wrong = await browser.api(authorization="Bearer cmty_live_nonsense")
    assert wrong.status_code == 401
    key = await a_key(scene)
    right = await browser.api(authorization=f"Bearer {key}")
    assert right.json()["how"] == "key"


async def test_a_session_gets_a_new_secret_and_the_old_one_ends(scene: LoginScene) -> None:
    browser, now = scene.browser(), Clock()
    scene.parts.login.sessions.clock = now
    await browser.sign_in(scene.realm)
    old = browser.copy()
    now.pass_by(minutes=16)
    await browser.who()
    assert browser.session != old.session
    assert browser.session.partition(".")[0] == old.session.partition(".")[0]
    # A request that was on its way with the old secret still counts.
    assert (await old.who())["principal"] == ANA
    assert old.session != browser.session
    now.pass_by(seconds=61)
    assert (await old.api()).status_code == 401
    assert (await browser.who())["principal"] == ANA


@pytest.mark.parametrize(
    ("steps", "minutes"), [(1, 61), (30, 25)], ids=["without a request", "with requests"]
)
async def test_a_session_ends_by_itself(scene: LoginScene, steps: int, minutes: int) -> None:
    browser, now = scene.browser(), Clock()
    scene.parts.login.sessions.clock = now
    await browser.sign_in(scene.realm)
    for _ in range(steps - 1):
        now.pass_by(minutes=minutes)
        await browser.api()
    now.pass_by(minutes=minutes)
    answer = await browser.api()
    assert answer.status_code == 401
    assert "sign in again" in answer.text


async def test_requests_keep_a_session_from_ending_early(scene: LoginScene) -> None:
    browser, now = scene.browser(), Clock()
    scene.parts.login.sessions.clock = now
    await browser.sign_in(scene.realm)
    for _ in range(11):
        now.pass_by(minutes=59)
        await browser.who()
    # What was noted in memory reaches the store.
    await scene.parts.login.sessions.flush()
    (stored,) = await scene.parts.snapshot.records.sessions.page()
    assert stored.last_seen == now()


async def test_an_open_stream_ends_with_its_session_and_survives_a_new_secret(
    scene: LoginScene,
) -> None:
    browser, now = scene.browser(), Clock()
    scene.parts.login.sessions.clock = now
    await browser.sign_in(scene.realm)
    headers = [("cookie", f"{SESSION_COOKIE}={browser.session}")]
    stream = await scene.visitor.send("GET", headers, path="/api/approvals/stream")
    assert stream.status == 200
    while b"open" not in (await stream.event()).data:
        pass
    now.pass_by(minutes=16)
    await browser.who()
    now.pass_by(minutes=2)
    # Two looks of the stream, a second apart, that its old secret did not end.
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.5):
            await stream.event()
    await browser.send("POST", "/logout")
    ended = [event.data for event in await stream.events()]
    assert b"revoked" in ended[-1]


class Clock:
    """A clock that passes when the test says so."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, **length: float) -> None:
        self.now += timedelta(**length)
