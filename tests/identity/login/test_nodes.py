"""Browser sessions on two nodes with one PostgreSQL: the end of one reaches the other soon."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from comity.identity.login.rules import SESSION_COOKIE
from tests.contracts.stores import a_database
from tests.identity.login.scene import (
    ANA,
    Browser,
    LoginScene,
    a_login_scene,
    an_issuer,
    write_client_secret,
)
from tests.identity.login.test_sign_in import Clock
from tests.support.opened_stores import a_store
from tests.support.openid_provider import openid_provider

pytestmark = pytest.mark.integration

MAX_DELAY_SECONDS = 1.0


@asynccontextmanager
async def two_nodes(
    folder: Path, patched: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[LoginScene, LoginScene]]:
    with openid_provider() as realm:
        issuer = an_issuer(realm, write_client_secret(folder))
        async with a_database() as url, a_store(url):
            patched.setenv("COMITY_PEPPER", "pepper-" * 8)
            async with (
                a_login_scene(realm, issuer, store_url=url) as first,
                a_login_scene(realm, issuer, store_url=url) as second,
            ):
                yield first, second
            patched.undo()


def elsewhere(browser: Browser, node: LoginScene) -> Browser:
    """The same browser at another node."""
    return Browser(node.origin, browser.jar)


async def seconds_until_refused(browser: Browser) -> float:
    began = time.monotonic()
    async with asyncio.timeout(60):
        while (await browser.api()).status_code == 200:
            await asyncio.sleep(0.01)
    return time.monotonic() - began


async def test_a_session_counts_on_every_node_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_nodes(tmp_path, monkeypatch) as (first, second):
        for _ in range(5):
            browser = first.browser()
            await browser.sign_in(first.realm)
            assert (await elsewhere(browser, second).who())["principal"] == ANA


async def test_a_sign_in_that_began_on_one_node_ends_on_another_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_nodes(tmp_path, monkeypatch) as (first, second):
        browser = first.browser()
        callback = await browser.authorize(first.realm)
        thief = elsewhere(browser.copy(), second)
        assert (await browser.get(callback)).status_code == 303
        replayed = await thief.get(callback.replace(first.origin, second.origin))
        assert replayed.status_code == 401
        assert "completed before" in replayed.text
        assert not thief.session


async def test_a_new_secret_counts_on_every_node_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_nodes(tmp_path, monkeypatch) as (first, second):
        now = Clock()
        first.parts.login.sessions.clock = second.parts.login.sessions.clock = now
        browser = first.browser()
        await browser.sign_in(first.realm)
        old = browser.session
        now.pass_by(minutes=16)
        await browser.who()
        assert browser.session != old
        assert (await elsewhere(browser, second).who())["principal"] == ANA


@pytest.mark.parametrize("way", ["signed out", "revoked", "disabled", "removed", "by the provider"])
async def test_a_person_loses_access_on_another_node_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    async with two_nodes(tmp_path, monkeypatch) as (first, second):
        browser, admin = first.browser(), first.browser()
        await browser.sign_in(first.realm)
        first.realm.person, first.realm.sid = "ben", "idp-session-2"
        await admin.sign_in(first.realm)
        there = elsewhere(browser, second)
        session = (await there.who())["session"]
        headers = [("cookie", f"{SESSION_COOKIE}={browser.session}")]
        stream = await second.visitor.send("GET", headers, path="/api/approvals/stream")
        assert stream.status == 200
        if way == "signed out":
            await browser.copy().send("POST", "/logout")
        elif way == "revoked":
            await admin.send("POST", f"/api/sessions/{session}/revoke", json={})
        elif way == "disabled":
            await admin.send("POST", f"/api/principals/{ANA}/disable", json={})
        elif way == "removed":
            await first.parts.snapshot.records.parties.remove(ANA)
        else:
            token = first.realm.logout_token(sub="ana", sid="idp-session-1")
            order = {"logout_token": token}
            await browser.copy().send("POST", "/login/backchannel", order, origin=None)
        assert await seconds_until_refused(there) < MAX_DELAY_SECONDS
        # The stream ends too, and the other person is still signed in.
        assert b"revoked" in [event.data for event in await stream.events()][-1]
        assert (await elsewhere(admin, second).who())["principal"] == "person:ben"
