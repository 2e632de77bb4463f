"""Accounts that the sign-in to Comity gives, from end to end: real issuer, gateway and servers."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx2
import pytest

from tests.accounts.scene import (
    AGENT,
    ANA,
    BEN,
    IDLER,
    SERVER,
    AccountScene,
    an_account_scene,
)
from tests.identity.login.scene import Browser, write_client_secret
from tests.support.openid_provider import CLIENT as COMPANY_CLIENT
from tests.support.openid_provider import Realm, openid_provider

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

ERAS = ("legacy", "auto")
CLIENT, SECRET = "comity-at-notes", "secret of comity at notes"
SETTINGS = {
    "id_jag": (
        f'oauth = {{ grant = "id_jag", issuer = "ORIGIN", client_id = "{CLIENT}", '
        f'client_secret = "{SECRET}" }}'
    ),
    "token_exchange": 'oauth = { grant = "token_exchange" }',
}


@dataclass
class IdentityScene:
    """A gateway at which people sign in with their company, before a server that trusts it."""

    scene: AccountScene
    company: Realm

    async def sign_in(self, person: str, to: str = "/console/") -> Browser:
        """Sign in to Comity at the company, as a browser does."""
        browser = Browser(self.scene.origins[0])
        self.company.person = person.partition(":")[2]
        done = await browser.sign_in(self.company, to)
        assert done.status_code in (200, 303), done.text
        return browser

    async def expire(self) -> None:
        """Let the server accept none of its tokens any more."""
        async with httpx2.AsyncClient() as http:
            assert (await http.post(f"{self.scene.server}/expire")).status_code == 200

    async def seen(self) -> str:
        """All that the server and its authorization server received."""
        async with httpx2.AsyncClient() as http:
            return unquote("\n".join((await http.get(f"{self.scene.server}/seen")).json()))

    @property
    def id_tokens(self) -> set[str]:
        return {each["subject_token"] for each in self.company.exchanges}

    async def state(self, owner: str = ANA) -> str:
        found = (await self.scene.api("GET", "/api/accounts"))["accounts"]
        return next((each["state"] for each in found if each["owner"] == owner), "")


@contextmanager
def an_identity_scene(grant: str, folder: Path, settings: str = "") -> Generator[IdentityScene]:
    with contextlib.ExitStack() as stack:
        company = stack.enter_context(openid_provider())
        tables = f"""
[[identity.issuers]]
issuer = "{company.url}"
client_id = "{COMPANY_CLIENT}"
client_secret_file = "{write_client_secret(folder)}"
"""
        command = (sys.executable, "-m", "tests.accounts.identity_server", grant, company.url)
        command = (*command, CLIENT, SECRET)
        scene = stack.enter_context(
            an_account_scene(
                folder,
                tables=tables,
                command=command,
                server_settings=settings or SETTINGS[grant],
            )
        )
        company.redirect_uris.append(f"{scene.origins[0]}/login/callback")
        company.clients[f"{scene.server}/"] = CLIENT
        yield IdentityScene(scene, company)
        # The company gave all secrets of this scene.
        scene.realm.spent.update(company.issued)
        scene.show_no_token(SECRET)


@pytest.fixture(params=SETTINGS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[IdentityScene]:
    with an_identity_scene(request.param, tmp_path) as made:
        yield made


async def test_people_and_an_agent_call_without_a_page_and_tokens_are_renewed(
    world: IdentityScene,
) -> None:
    scene = world.scene
    await world.sign_in(ANA)
    # The lists are read with the account of the first person, who did nothing for it.
    scene.wait_for_server()
    for mode in ERAS:
        assert await scene.call(ANA, mode=mode) == "ana"
        assert await scene.call(AGENT, mode=mode) == "ana"
        assert "may use no account" in await scene.call(IDLER, mode=mode)
    assert len(world.company.exchanges) == 1
    await world.sign_in(BEN)
    assert [await scene.call(each) for each in (BEN, ANA)] == ["ben", "ana"]
    before = len(world.company.exchanges)
    await world.expire()
    assert await asyncio.gather(*(scene.call(ANA) for _ in range(4))) == ["ana"] * 4
    assert await scene.call(BEN) == "ben"
    assert len(world.company.exchanges) <= before + 3
    # Another scope needs no page either.
    assert await scene.call(ANA, "write", {"text": "one"}) == "ana wrote one"
    named = {each["resource"] for each in world.company.exchanges}
    assert named == {f"{scene.server}/mcp"}
    # The token of the person reached the company only.
    seen = await world.seen()
    assert "authorization" in seen
    assert world.id_tokens
    assert not [each for each in world.id_tokens if each in seen]


async def test_a_refused_id_token_holds_the_call_until_the_person_signs_in_again(
    world: IdentityScene,
) -> None:
    scene, company = world.scene, world.company
    await world.sign_in(ANA)
    scene.wait_for_server()
    assert await scene.call(ANA) == "ana"
    company.refuses_tokens = True
    await world.expire()
    waiting = asyncio.create_task(scene.call(ANA))
    request = await scene.sign_in_request(ANA)
    assert await world.state() == "sign_in_needed"
    asked = len(company.exchanges)
    # The page names the issuer. A token that was refused is not sent there again.
    page = f"/accounts/connect/{request}"
    shown = await (await scene.browser(ANA)).get(page)
    assert "Sign in to Comity again" in shown.text
    assert "/login/start?issuer=" in shown.text
    assert len(company.exchanges) == asked
    company.refuses_tokens = False
    await world.sign_in(ANA, page)
    assert await waiting == "ana"
    assert await world.state() == "connected"


async def test_an_expired_id_token_is_not_sent_and_the_page_leads_to_the_sign_in(
    world: IdentityScene,
) -> None:
    scene, company = world.scene, world.company

    def sign_late(realm: Realm, claims: dict[str, Any]) -> str:
        # A sign-in allows for clocks that differ, and an exchange does not.
        return realm.sign({**claims, "exp": int(time.time()) - 5})

    company.forge = sign_late
    browser = await world.sign_in(ANA)
    shown = await browser.get(f"/accounts/connect/{SERVER}")
    assert "Sign in to Comity again" in shown.text
    assert not company.exchanges
    assert await world.state() == ""
    company.forge = None
    browser = await world.sign_in(ANA)
    shown = await browser.get(f"/accounts/connect/{SERVER}")
    assert f"Your account at {SERVER} is connected" in shown.text
    scene.wait_for_server()
    assert await scene.call(ANA) == "ana"


async def test_a_person_who_signs_out_gives_no_more_tokens(world: IdentityScene) -> None:
    scene = world.scene
    browser = await world.sign_in(ANA)
    scene.wait_for_server()
    assert await scene.call(AGENT) == "ana"
    assert (await browser.send("POST", "/logout")).status_code in (200, 303)
    await world.expire()
    asked = len(world.company.exchanges)
    told = await scene.call(AGENT, mode="legacy")
    assert "waits for a sign-in" in told
    assert len(world.company.exchanges) == asked
