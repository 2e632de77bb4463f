"""A whole sign-in and sign-out in a real Chromium, on http://127.0.0.1 and http://localhost."""

import re
import shutil
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, async_playwright

from comity.identity.login.rules import SESSION_COOKIE
from tests.identity.login.scene import (
    LoginScene,
    a_login_scene,
    an_issuer,
    write_client_secret,
)
from tests.support.openid_provider import Realm, openid_provider

CHROMIUM = shutil.which("chromium")
WAIT_MS = 60_000

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; scripts/setup installs it"),
    pytest.mark.timeout(180),
]


@pytest.fixture
def realm() -> Generator[Realm]:
    with openid_provider() as realm:
        yield realm


@pytest.fixture
async def scene(realm: Realm, tmp_path: Path) -> AsyncGenerator[LoginScene]:
    async with a_login_scene(realm, an_issuer(realm, write_client_secret(tmp_path))) as scene:
        yield scene


@pytest.fixture
async def context() -> AsyncGenerator[BrowserContext]:
    async with async_playwright() as playwright:
        assert CHROMIUM is not None
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield await browser.new_context()
        finally:
            await browser.close()


async def a_page(context: BrowserContext) -> tuple[Page, list[str]]:
    page, complaints = await context.new_page(), list[str]()
    page.set_default_timeout(WAIT_MS)
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return page, complaints


async def ask(page: Page, path: str, method: str = "GET") -> Any:
    """What a script of the gateway's own page is told."""
    return await page.evaluate(
        """async ([path, method]) => {
            const said = method === "POST" ? {"content-type": "application/json"} : {};
            const body = method === "POST" ? "{}" : undefined;
            const answer = await fetch(path, {method, headers: said, body});
            return [answer.status, await answer.json()];
        }""",
        [path, method],
    )


@pytest.fixture
async def blank_page(scene: LoginScene, context: BrowserContext) -> Page:
    """A page of this origin with no policy, from which a script may ask. The console is one."""
    page, _ = await a_page(context)
    await context.route(
        re.compile(r"^http://[^/]+/console/"),
        lambda route: route.fulfill(content_type="text/html", body="<title>Console</title>"),
    )
    return page


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_person_signs_in_and_out(
    scene: LoginScene, blank_page: Page, host: str, tmp_path: Path
) -> None:
    origin = scene.origin.replace("127.0.0.1", host)
    scene.realm.redirect_uris.append(f"{origin}/login/callback")
    page = blank_page
    await page.goto(f"{origin}/login?next=/console/approvals")
    await page.screenshot(path=tmp_path / f"sign-in-{host}.png", full_page=True)
    await page.click("text=Sign in with Example")
    await page.wait_for_url(f"{origin}/console/approvals")
    # The redirect itself reached the gateway, which has no console yet. A page stands in for it.
    await page.goto(f"{origin}/console/")
    status, who = await ask(page, "/api/session")
    assert (status, who["principal"], who["how"]) == (200, "person:ana", "session")
    (cookie,) = [
        each for each in await page.context.cookies() if each.get("name") == SESSION_COOKIE
    ]
    said = [cookie.get(name) for name in ("httpOnly", "secure", "sameSite")]
    assert said == [True, True, "Strict"]
    assert await page.evaluate("document.cookie") == ""
    # A write of the gateway's own page has its Origin, so it arrives.
    status, ended = await ask(page, "/api/sessions/0000000000000000/revoke", "POST")
    assert (status, "no session" in ended["error"]["message"]) == (404, True)
    # The sign-out leads to the provider and back to the sign-in page.
    await page.evaluate(
        """() => {
            const form = document.createElement("form");
            form.method = "post"; form.action = "/logout";
            document.body.append(form); form.submit();
        }"""
    )
    await page.wait_for_url(f"{origin}/login")
    (told,) = scene.realm.ended
    assert told["post_logout_redirect_uri"] == f"{origin}/login"
    assert told["id_token_hint"]
    await page.goto(f"{origin}/console/")
    status, _ = await ask(page, "/api/session")
    assert status == 401


async def test_a_page_of_another_port_cannot_write_with_the_cookie(
    scene: LoginScene, blank_page: Page, realm: Realm
) -> None:
    """Cookies do not know ports: a page of another program on 127.0.0.1 sends the cookie too."""
    page = blank_page
    await page.goto(f"{scene.origin}/login")
    await page.click("text=Sign in with Example")
    await page.wait_for_url(f"{scene.origin}/console/")
    await page.goto(f"{realm.url}/keys")
    session = f"{scene.origin}/api/principals"
    answer = await page.evaluate(
        """async (url) => {
            const said = {"content-type": "text/plain"};
            const sent = {method: "POST", mode: "no-cors", credentials: "include", headers: said};
            const answer = await fetch(url, {...sent, body: '{"id": "agent:evil"}'});
            return [answer.type, answer.status];
        }""",
        session,
    )
    assert answer == ["opaque", 0]
    assert await scene.principal("agent:evil") is None
    read = await page.evaluate(
        """async (url) => {
            try { await fetch(url, {credentials: "include"}); return "read"; }
            catch { return "refused"; }
        }""",
        session,
    )
    assert read == "refused"


async def test_a_key_signs_in_without_script(
    scene: LoginScene, context: BrowserContext, tmp_path: Path
) -> None:
    page, complaints = await a_page(context)
    await page.goto(f"{scene.origin}/login")
    await page.fill("#key", "cmty_live_wrong")
    await page.click("button")
    await page.wait_for_selector("text=truncated")
    await page.screenshot(path=tmp_path / "wrong-key.png", full_page=True)
    # Chromium reports the status of the page itself; nothing else complains.
    assert [each for each in complaints if "401" not in each] == []


async def test_a_sign_in_page_cannot_be_framed(
    scene: LoginScene, context: BrowserContext, realm: Realm
) -> None:
    page, _ = await a_page(context)
    await page.goto(f"{realm.url}/keys")
    shown = await page.evaluate(
        """(url) => new Promise((resolve) => {
            const frame = document.createElement("iframe");
            frame.onload = () => { try { resolve(frame.contentDocument !== null); }
                                   catch { resolve(false); } };
            frame.src = url; document.body.append(frame);
        })""",
        f"{scene.origin}/login",
    )
    frame = page.frames[-1]
    assert shown is False
    assert 'name="key"' not in await frame.content()
