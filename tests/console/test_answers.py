"""What a person sees of a request before and after its answer, in a real browser."""

import asyncio
import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.console.world import NEEDS_BROWSER, SECONDS, VIEWER, Visitor, World, new_word, sign_in

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    *NEEDS_BROWSER,
    pytest.mark.timeout(300),
]
expect.set_options(timeout=SECONDS * 1000)

DENIAL: dict[str, Any] = {
    "verdict": "decline",
    "reason": "",
    "content": {},
    "remember": False,
    "rule": None,
}
THROWING_NOTIFICATION = """
localStorage.setItem("comity.notify", "on");
window.Notification = class {
  static permission = "granted";
  constructor() { throw new TypeError("Illegal constructor"); }
};
Object.defineProperty(document, "hidden", { get: () => true });
window.notified = [];
ServiceWorkerRegistration.prototype.showNotification = async (title, options) => {
  window.notified.push(options.body);
};
"""
"""A browser of a phone, whose page is in the background."""


def new_arguments() -> dict[str, str]:
    """Arguments of their own: for a while, a denial also answers calls that are the same."""
    return {"disk": new_word()}


def dialog_of(visitor: Visitor) -> Locator:
    return visitor.page.get_by_role("dialog")


async def begin_approval(page: Page, tool: str) -> None:
    """Type the name of a dangerous tool in the dialog that approves it."""
    await page.get_by_role("button", name="Approve").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label(f"Type {tool} to confirm").fill(tool)


async def deny_all(world: World) -> None:
    for each in (await world.api("GET", "/api/approvals"))["approvals"]:
        await world.api("POST", f"/api/approvals/{each['id']}/answer", DENIAL)


async def test_an_approval_shows_the_result_and_leaves_the_request_in_view(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    # The call arrives at the other node, so its result comes from there.
    first = asyncio.create_task(world.call("disks__wipe", new_arguments(), node=1))
    request = await world.wait_for_request("wipe")
    second = asyncio.create_task(world.call("disks__shred", new_arguments()))
    await world.wait_for_request("shred")
    await ana.open(f"/approvals/{request}")
    await ana.page.get_by_role("row", name="disks/shred").first.wait_for()
    await begin_approval(ana.page, "wipe")
    await dialog_of(ana).get_by_role("button", name="Approve").click()
    status = ana.page.get_by_role("status", name="Answers")
    await expect(status).to_contain_text(re.compile("ana@example.org approved this"))
    await expect(status.get_by_label("Result of the call")).to_have_text("done")
    await expect(status).to_contain_text("after")
    assert await first == "done"
    assert request in ana.page.url
    await expect(status.get_by_role("link", name="Show the whole call")).to_be_visible()
    await status.get_by_role("button", name="Next request").click()
    await expect(ana.page.locator(".decide h1")).to_contain_text("disks__shred")
    await deny_all(world)
    await second
    assert ana.complaints == []


async def test_a_second_click_at_once_answers_and_opens_nothing(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    callings = [
        asyncio.create_task(world.call(f"disks__{tool}", new_arguments()))
        for tool in ("wipe", "erase")
    ]
    request = await world.wait_for_request("wipe")
    await world.wait_for_request("erase")
    posted: list[str] = []
    ana.page.on("request", lambda each: posted.append(each.url) if each.method == "POST" else None)
    await ana.open(f"/approvals/{request}")
    await begin_approval(ana.page, "wipe")
    box = await dialog_of(ana).get_by_role("button", name="Approve").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    await ana.page.mouse.dblclick(x, y)
    await ana.page.get_by_role("button", name="Next request").wait_for()
    assert request in ana.page.url
    # The buttons of the next request cannot be pressed in the first moment.
    await ana.page.evaluate(
        """() => {
            const seen = window.seen = [];
            new MutationObserver(() => {
              const button = document.querySelector(".decide .button.good");
              if (button && seen.length === 0) seen.push(button.disabled);
            }).observe(document.body, { childList: true, subtree: true });
        }"""
    )
    await ana.page.get_by_role("button", name="Next request").click()
    await expect(ana.page.get_by_role("button", name="Approve")).to_be_enabled()
    assert await ana.page.evaluate("window.seen") == [True]
    assert len([url for url in posted if url.endswith("/answer")]) == 1
    await deny_all(world)
    await asyncio.gather(*callings)
    assert ana.complaints == []


async def test_a_request_that_somebody_else_answers_locks_the_dialog(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world, VIEWER)
    answers = {"subject": VIEWER, "verb": "approval/answer", "target": "disks/*"}
    await world.api("POST", "/api/grants", {**answers, "effect": "allow"})
    calling = asyncio.create_task(world.call("disks__format", new_arguments()))
    request = await world.wait_for_request("format")
    await ana.open(f"/approvals/{request}")
    await begin_approval(ana.page, "format")
    await world.api("POST", f"/api/approvals/{request}/answer", DENIAL)
    await calling
    dialog = dialog_of(ana)
    await expect(dialog.get_by_role("alert")).to_contain_text(
        re.compile(r"person:ana@example\.org denied this .*(now|sec\. ago)")
    )
    await expect(dialog.get_by_role("button", name="Approve")).to_have_count(0)
    await dialog.get_by_role("button", name="Close").click()
    answered = ana.page.get_by_label("Answers")
    await expect(answered).to_contain_text("denied this")
    # The answers come before everything else, and nothing says that nobody has decided.
    decided = await answered.bounding_box()
    facts = await ana.page.get_by_label("What it does").bounding_box()
    assert decided is not None
    assert facts is not None
    assert decided["y"] < facts["y"]
    await expect(ana.page.get_by_text("Nobody decided")).to_have_count(0)
    await world.api("POST", "/api/grants/delete", answers)
    assert ana.complaints == []


async def test_a_notification_that_the_browser_refuses_stops_nothing(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    await ana.page.add_init_script(THROWING_NOTIFICATION)
    await ana.open("/approvals")
    await ana.page.get_by_text("live", exact=True).first.wait_for()
    calling = asyncio.create_task(world.call("disks__wipe", new_arguments()))
    await world.wait_for_request("wipe")
    await ana.page.get_by_role("row", name="disks/wipe").first.wait_for()
    async with asyncio.timeout(SECONDS):
        while not await ana.page.evaluate("window.notified.length"):
            await asyncio.sleep(0.05)
    await deny_all(world)
    await calling
    assert ana.complaints == []


async def test_a_request_keeps_its_facts_while_its_server_is_away(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    calling = asyncio.create_task(world.call("disks__wipe", new_arguments()))
    request = await world.wait_for_request("wipe")
    await ana.open(f"/approvals/{request}")
    facts = ana.page.get_by_label("What it does")
    await expect(facts).to_contain_text("Wipes one disk.")
    await world.api("POST", "/api/servers/disks/stop", {})
    try:
        await ana.page.reload()
        await expect(facts).to_contain_text("The server is not ready.")
        await expect(facts).to_contain_text("Wipes one disk.")
        await expect(facts).to_contain_text("Why dangerous")
        await expect(facts).not_to_contain_text("gives no description")
        await expect(ana.page.get_by_label("Who asks")).to_contain_text("Client")
    finally:
        await world.api("POST", "/api/servers/disks/start", {})
        await world.wait_until_connected("disks")
    await deny_all(world)
    await calling
    assert ana.complaints == []


async def test_the_time_that_is_left_is_said_in_whole_minutes(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    calling = asyncio.create_task(world.call("disks__wipe", new_arguments()))
    request = await world.wait_for_request("wipe")
    found = await world.api("GET", f"/api/approvals/{request}")
    await ana.page.clock.install()
    # A little less than a whole number of hours before its end.
    await ana.page.clock.set_fixed_time(_before(found["expires_at"], hours=6, less_seconds=5))
    await ana.open(f"/approvals/{request}")
    await expect(ana.page.locator(".decide .chip").last).to_have_text(re.compile("6 h 0 min left"))
    await deny_all(world)
    await calling


async def test_the_plain_page_asks_for_the_same_word_as_the_console(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    calling = asyncio.create_task(world.call("disks__erase", new_arguments()))
    request = await world.wait_for_request("erase")
    await ana.page.goto(f"{world.origin}/approvals/{request}")
    if await ana.page.get_by_role("link", name="go on").count():
        # A browser sends the cookie only from a page of the same site.
        await ana.page.get_by_role("link", name="go on").click()
    await ana.page.get_by_role("button", name="Approve").click()
    await ana.page.get_by_text("Nothing is approved yet. Type erase to approve.").wait_for()
    await ana.page.get_by_label("To approve, type erase").fill("erase")
    # The Enter key in this field approves, and does not deny.
    await ana.page.keyboard.press("Enter")
    await ana.page.get_by_text("You approved it").wait_for()
    assert await calling == "done"


def _before(moment: str, *, hours: int, less_seconds: int) -> Any:
    at = datetime.fromisoformat(moment)
    return at - timedelta(hours=hours) + timedelta(seconds=less_seconds)
