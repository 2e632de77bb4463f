"""Every screen passes axe-core in both themes and sizes, and each main task works by keyboard."""

import asyncio
import json
import re
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.console.world import (
    ADMIN,
    DESK,
    NEEDS_BROWSER,
    OAUTH_SERVER,
    PHONE,
    PLANNER,
    SECONDS,
    TOPIC,
    VIEWER,
    World,
    filled,
    sign_in,
)
from tests.interop.peers import ROOT

AXE = ROOT / "console/node_modules/axe-core/axe.min.js"
SCREENS = {
    "overview": "/",
    "approvals": "/approvals?state=all",
    "servers": "/servers",
    "server": "/servers/example",
    "server-tools": "/servers/example?tab=tools",
    "server-quarantine": "/servers/hostile?tab=review",
    "server-output": "/servers/example?tab=output",
    "tools": "/tools",
    "search": "/tools?tab=search",
    "tool": "/tools/example__echo",
    "views": "/views",
    "view": "/views/greeting",
    "principals": "/access",
    "groups": "/access?tab=groups",
    "grants": "/access?tab=grants",
    "explain": "/access?tab=explain&principal=agent:ci&tool=example/echo",
    "keys": "/access?tab=keys",
    "sessions": "/access?tab=sessions",
    "accounts": "/accounts",
    "audit": "/audit",
    "topics": "/topics",
    "topic": f"/topics/{TOPIC}",
    "turns": "/live",
    "pushes": "/live?tab=pushes",
    "channels": "/live?tab=channels",
    "state": "/live?tab=state",
    "features": "/live?tab=features",
    "models": "/live?tab=models",
    "settings": "/settings",
    "more": "/more",
}
FILLED = {"accounts", "topic", "turns", "pushes", "channels", "state", "features"}

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    *NEEDS_BROWSER,
    pytest.mark.timeout(600),
]
expect.set_options(timeout=SECONDS * 1000)


async def findings(page: Page) -> list[str]:
    """The serious and critical findings of axe-core on a page."""
    await page.evaluate(AXE.read_text())
    found: dict[str, Any] = await page.evaluate(
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})"
    )
    return [
        f"{each['id']}: {json.dumps([node['target'] for node in each['nodes'][:3]])}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


async def settled(page: Page) -> None:
    await page.get_by_role("heading", level=1).first.wait_for()
    await expect(page.get_by_text(re.compile("^Loading"))).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_no_screen_has_a_serious_finding(
    world: World, browser: Browser, size: tuple[int, int], scheme: str
) -> None:
    ana = await sign_in(browser, world, size=size, scheme=scheme)
    told: dict[str, list[str]] = {}
    await ana.connect_account()
    async with filled(world):
        for name, path in SCREENS.items():
            await ana.open(path)
            await settled(ana.page)
            # A screen with nothing to show proves nothing.
            if name in FILLED:
                await expect(ana.page.locator("main .card").first).to_be_visible()
            told[name] = await findings(ana.page)
            width = await ana.page.evaluate("document.documentElement.scrollWidth")
            if width > size[0]:
                told[name].append(f"the page is {width} wide")
    assert {name: found for name, found in told.items() if found} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_waiting_sign_ins_and_the_dialogs_of_an_account_have_no_serious_finding(
    world: World, browser: Browser, size: tuple[int, int], scheme: str
) -> None:
    ana = await sign_in(browser, world, size=size, scheme=scheme)
    ben = await sign_in(browser, world, VIEWER, size=size, scheme=scheme)
    await ana.connect_account()
    await world.wait_until_connected(OAUTH_SERVER)
    calling = asyncio.create_task(world.call(f"{OAUTH_SERVER}__whoami", key=PLANNER))
    for visitor in (ana, ben):
        await visitor.open("/accounts")
        await visitor.sees(f"{PLANNER} needs the account of {VIEWER}")
        assert await findings(visitor.page) == []
        assert await visitor.page.evaluate("document.documentElement.scrollWidth") <= size[0]
    for button in ("Disconnect", "Cancel"):
        if button == "Disconnect":
            await ana.page.get_by_role("row", name=re.compile(ADMIN)).click()
        await ana.page.get_by_role("button", name=button).wait_for()
        assert await findings(ana.page) == []
        await ana.page.get_by_role("button", name=button).click()
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)


# Each theme has a tool of its own, because a denied call is not asked again at once.
@pytest.mark.parametrize(("scheme", "tool"), [("light", "wipe"), ("dark", "format")])
async def test_an_open_request_and_its_dialog_have_no_serious_finding(
    world: World, browser: Browser, scheme: str, tool: str
) -> None:
    ana = await sign_in(browser, world, scheme=scheme)
    calling = asyncio.create_task(world.call(f"disks__{tool}"))
    request = await world.wait_for_request(tool)
    await ana.open(f"/approvals/{request}")
    await ana.page.get_by_role("button", name="Approve").wait_for()
    assert await findings(ana.page) == []
    await ana.page.keyboard.press("x")
    await ana.page.get_by_role("dialog").wait_for()
    assert await findings(ana.page) == []
    await ana.page.get_by_role("dialog").get_by_role("button", name="Deny").click()
    await calling


async def test_a_request_is_found_and_answered_by_keyboard_alone(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    calling = asyncio.create_task(world.call("disks__erase"))
    await world.wait_for_request("erase")
    keyboard = ana.page.keyboard
    await keyboard.press("Control+k")
    await keyboard.type("approvals")
    await keyboard.press("Enter")
    await ana.page.get_by_role("row", name="disks/erase").first.wait_for()
    await keyboard.press("/")
    await keyboard.type("erase")
    await ana.page.wait_for_url(re.compile("search=erase"))
    row = ana.page.get_by_role("row", name="disks/erase").first
    await row.wait_for()
    for _ in range(12):
        if await row.evaluate("it => it === document.activeElement"):
            break
        await keyboard.press("Tab")
    await keyboard.press("Enter")
    await ana.page.get_by_role("button", name="Approve").wait_for()
    await keyboard.press("a")
    await ana.page.get_by_role("dialog").wait_for()
    # Enter alone approves nothing that is dangerous.
    await keyboard.press("Enter")
    assert world.runs("erase") == 0
    await keyboard.type("erase")
    await keyboard.press("Enter")
    assert await calling == "done"


@pytest.mark.parametrize("path", ["/servers", "/tools", "/audit", "/access?tab=keys"])
async def test_a_list_is_moved_through_by_keyboard(
    world: World, browser: Browser, path: str
) -> None:
    ana = await sign_in(browser, world)
    await ana.open(path)
    first = ana.page.get_by_role("row").nth(1)
    await first.focus()
    await ana.page.keyboard.press("j")
    await expect(ana.page.locator('[aria-rowindex="3"]')).to_be_focused()
    await ana.page.keyboard.press("k")
    await expect(ana.page.locator('[aria-rowindex="2"]')).to_be_focused()


async def test_a_dialog_keeps_the_focus_and_gives_it_back(world: World, browser: Browser) -> None:
    ana = await sign_in(browser, world)
    await ana.open("/servers/example")
    restart = ana.page.get_by_role("button", name="Restart")
    await restart.focus()
    await ana.page.keyboard.press("Enter")
    await ana.page.get_by_role("dialog").wait_for()
    for _ in range(6):
        await ana.page.keyboard.press("Tab")
        inside = (
            "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )
        assert await ana.page.evaluate(inside)
    await ana.page.keyboard.press("Escape")
    await expect(ana.page.get_by_role("dialog")).to_have_count(0)
    await expect(restart).to_be_focused()
