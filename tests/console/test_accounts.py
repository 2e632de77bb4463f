"""The screen Accounts: people connect and disconnect accounts at a server that demands OAuth."""

import asyncio
import re
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, expect

from tests.console.world import (
    ADMIN,
    AGENT,
    NEEDS_BROWSER,
    OAUTH_SERVER,
    PHONE,
    PLANNER,
    SECONDS,
    VIEWER,
    Visitor,
    World,
    finish_sign_in,
    new_word,
    sign_in,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    *NEEDS_BROWSER,
    pytest.mark.timeout(300),
]
expect.set_options(timeout=SECONDS * 1000)
WHOAMI = f"{OAUTH_SERVER}__whoami"


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def no_account(world: World) -> AsyncGenerator[None]:
    """Each test begins and ends without accounts."""
    yield
    for each in (await world.api("GET", "/api/accounts"))["accounts"]:
        await world.api("POST", f"/api/accounts/{each['id']}/disconnect", {})


def row_of(visitor: Visitor, owner: str) -> Locator:
    return visitor.page.get_by_role("row", name=re.compile(f"{OAUTH_SERVER}.*{owner}"))


async def follow(visitor: Visitor, link: Locator) -> None:
    """Open a link to a sign-in, which is a page of its own, and sign in there."""
    async with visitor.context.expect_page() as opened:
        await link.click()
    await finish_sign_in(await opened.value)


async def test_a_person_connects_an_account_and_disconnects_it(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    await ana.open("/accounts")
    await follow(ana, ana.page.get_by_role("link", name=f"Connect {OAUTH_SERVER}"))
    # The row appears by itself: nothing is loaded again by hand.
    row = row_of(ana, ADMIN)
    await expect(row).to_contain_text("connected")
    await expect(row).to_contain_text("renewed when needed")
    await expect(row).to_contain_text("tools")
    await expect(ana.page.get_by_role("link", name="Connect")).to_have_count(0)
    await row.click()
    dialog = ana.page.get_by_role("dialog")
    await expect(dialog).to_contain_text(world.realm.url)
    await expect(dialog).to_contain_text("in 4 min., and is renewed when a call needs it")
    await expect(dialog.get_by_role("link", name="Sign in again")).to_be_visible()
    await dialog.get_by_role("button", name="Disconnect").click()
    await expect(dialog).to_contain_text("Calls that need it wait for another sign-in.")
    await dialog.get_by_role("button", name="Cancel").click()
    await expect(row).to_have_count(1)
    await row.click()
    await dialog.get_by_role("button", name="Disconnect").click()
    world.realm.revoked.clear()
    await dialog.get_by_role("button", name="Disconnect").click()
    await expect(row).to_have_count(0)
    await expect(ana.page.get_by_role("link", name=f"Connect {OAUTH_SERVER}")).to_be_visible()
    assert len(world.realm.revoked) == 2
    assert ana.complaints == []


async def test_a_waiting_call_is_shown_to_its_owner_and_goes_on_after_the_sign_in(
    world: World, browser: Browser
) -> None:
    ana, ben = await sign_in(browser, world), await sign_in(browser, world, VIEWER, node=1)
    await ana.connect_account()
    await ben.open("/accounts")
    await ana.open("/accounts")
    await world.wait_until_connected(OAUTH_SERVER)
    calling = asyncio.create_task(world.call(WHOAMI, key=PLANNER))
    waiting = re.compile(f"{PLANNER} needs the account of {VIEWER}")
    shown = ben.page.get_by_role("listitem").filter(has_text=waiting)
    # Another person sees the call, and cannot sign in for its owner.
    other = ana.page.get_by_role("listitem").filter(has_text=waiting)
    await expect(other).to_contain_text("waits for its owner")
    await expect(other.get_by_role("link")).to_have_count(0)
    world.realm.person = "ben"
    await follow(ben, shown.get_by_role("link", name=f"Sign in to {OAUTH_SERVER}"))
    assert await calling == "ben"
    await expect(shown).to_have_count(0)
    await expect(other).to_have_count(0)
    await expect(row_of(ana, VIEWER)).to_be_visible()
    assert ana.complaints == ben.complaints == []


async def test_a_reader_sees_the_accounts_of_others_and_cannot_end_them(
    world: World, browser: Browser
) -> None:
    ana, ben = await sign_in(browser, world), await sign_in(browser, world, VIEWER, size=PHONE)
    await ana.connect_account()
    await ben.open("/accounts")
    await row_of(ben, ADMIN).click()
    dialog = ben.page.get_by_role("dialog")
    await expect(dialog).to_contain_text(ADMIN)
    await expect(dialog.get_by_role("button", name="Disconnect")).to_have_count(0)
    await expect(dialog.get_by_role("link")).to_have_count(0)
    assert ben.complaints == []


async def test_a_person_without_other_grants_sees_its_own_account_alone(
    world: World, browser: Browser
) -> None:
    who = f"person:{new_word()}"
    await world.api("POST", "/api/principals", {"id": who, "kind": "person"})
    await world.api("POST", "/api/grants", {"subject": who, "target": f"{OAUTH_SERVER}/*"})
    world.keys[who] = (await world.api("POST", "/api/keys", {"principal": who}))["key"]
    ana, eva = await sign_in(browser, world), await sign_in(browser, world, who, node=1)
    await ana.connect_account()
    await eva.open("/accounts")
    await follow(eva, eva.page.get_by_role("link", name=f"Connect {OAUTH_SERVER}"))
    await expect(row_of(eva, who)).to_be_visible()
    await expect(row_of(eva, ADMIN)).to_have_count(0)


async def test_an_open_request_for_a_sign_in_leads_to_the_accounts(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    await ana.connect_account()
    await world.wait_until_connected(OAUTH_SERVER)
    (account,) = (await world.api("GET", "/api/accounts"))["accounts"]
    await world.api("POST", f"/api/accounts/{account['id']}/disconnect", {})
    calling = asyncio.create_task(world.call(WHOAMI, key=AGENT))
    await ana.open(f"/approvals/{await world.wait_for_request('whoami')}")
    await expect(ana.page.get_by_role("button", name="Deny")).to_be_visible()
    await expect(ana.page.get_by_role("button", name="Approve")).to_have_count(0)
    await ana.page.get_by_role("link", name="Open the accounts").click()
    world.realm.person = "ana"
    await follow(ana, ana.page.get_by_role("link", name=f"Sign in to {OAUTH_SERVER}"))
    assert await calling == "ana"
    assert ana.complaints == []
