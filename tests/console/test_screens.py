"""The main task of each screen, by a person in a real browser against a gateway of two nodes."""

import asyncio
import re
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Route, expect

from comity.audit.events import AuditResult
from tests.console.world import (
    NEEDS_BROWSER,
    PHONE,
    SECONDS,
    VIEWER,
    Visitor,
    World,
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


async def approve_by_typing(page: Page, tool: str) -> None:
    """Approve the open request of a dangerous tool: the name of the tool must be typed."""
    await page.get_by_role("button", name="Approve").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("button", name="Approve")).to_be_disabled()
    await dialog.get_by_label(f"Type {tool} to confirm").fill(tool)
    await dialog.get_by_role("button", name="Approve").click()


def assert_no_complaints(*visitors: Visitor) -> None:
    for visitor in visitors:
        assert visitor.complaints == []


async def test_a_call_of_a_real_client_is_approved_in_the_browser_and_completes(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    await ana.open("/approvals")
    before = world.runs("wipe")
    calling = asyncio.create_task(world.call("disks__wipe"))
    # The row appears by itself: nothing is loaded again by hand.
    await ana.page.get_by_role("row", name="disks/wipe").first.click()
    await ana.sees("Wipes one disk.")
    assert world.runs("wipe") == before
    await approve_by_typing(ana.page, "wipe")
    assert await calling == "done"
    assert world.runs("wipe") == before + 1
    assert_no_complaints(ana)


async def test_two_browsers_on_two_nodes_see_the_same_answer(
    world: World, browser: Browser
) -> None:
    ana, ben = await sign_in(browser, world), await sign_in(browser, world, VIEWER, node=1)
    calling = asyncio.create_task(world.call("disks__erase", node=1))
    request = await world.wait_for_request("erase")
    await ana.open(f"/approvals/{request}")
    await ben.open(f"/approvals/{request}")
    # Before the request is in the page, there is no button either.
    await expect(ben.page.locator(".decide h1")).to_contain_text("erase")
    await expect(ben.page.get_by_role("button", name="Approve")).to_have_count(0)
    await approve_by_typing(ana.page, "erase")
    assert await calling == "done"
    await expect(ben.page.locator(".decide .chip").last).to_have_text(
        re.compile("approved|consumed")
    )
    assert_no_complaints(ana, ben)


async def test_a_person_denies_on_a_phone_and_the_agent_reads_the_reason(
    world: World, browser: Browser
) -> None:
    ana, word = await sign_in(browser, world, size=PHONE), new_word()
    calling = asyncio.create_task(world.call("disks__format"))
    request = await world.wait_for_request("format")
    await ana.open(f"/approvals/{request}")
    deny = ana.page.get_by_role("button", name="Deny")
    box = await deny.bounding_box()
    # The buttons are in the first view, above everything that must be read by scrolling.
    assert box is not None
    assert box["y"] + box["height"] < PHONE[1]
    await deny.click()
    dialog = ana.page.get_by_role("dialog")
    await dialog.get_by_label(re.compile("Reason")).fill(word)
    await dialog.get_by_role("button", name="Deny").click()
    assert word in await calling
    assert world.runs("format") == 0
    assert_no_complaints(ana)


async def test_the_overview_shows_servers_nodes_and_traffic(world: World, browser: Browser) -> None:
    ana = await sign_in(browser, world)
    await world.call("example__echo", {"message": "hello"})
    await expect(ana.page.get_by_label("Nodes").get_by_text("node-2")).to_be_visible()
    states = ana.page.get_by_label("Servers").get_by_role("link")
    await expect(states.filter(has_text="example: connected")).to_have_count(1)
    await expect(states.filter(has_text="broken: error")).to_have_count(1)
    await expect(ana.page.locator("figure canvas")).to_have_count(4)
    assert_no_complaints(ana)


async def test_a_server_is_restarted_and_its_output_is_read(world: World, browser: Browser) -> None:
    ana = await sign_in(browser, world)
    await ana.open("/servers")
    await ana.page.get_by_role("row", name=re.compile("example")).click()
    await ana.page.get_by_role("button", name="Restart").click()
    await ana.page.get_by_role("dialog").get_by_role("button", name="Restart").click()
    await expect(ana.page.get_by_role("dialog")).to_have_count(0)
    history = ana.page.get_by_label("History")
    await expect(history.get_by_text("restarting").first).to_be_visible()
    await expect(ana.page.locator(".head .chip").first).to_have_text(re.compile("connected"))
    await ana.open("/servers/broken?tab=output")
    await ana.sees("Last lines on stderr")
    assert_no_complaints(ana)


async def test_a_tool_is_found_and_called_with_progress_and_cancelled(
    world: World, browser: Browser
) -> None:
    ana, word = await sign_in(browser, world), new_word()
    await ana.open("/tools?tab=search")
    await ana.page.get_by_label("What should a tool do?").fill("return a message")
    await ana.page.get_by_role("link", name="example__echo").click()
    await ana.page.get_by_label("message").fill(word)
    await ana.page.get_by_role("button", name="Call", exact=True).click()
    await expect(ana.page.get_by_label("Result of the call")).to_contain_text(word)
    await ana.open("/tools/example__countdown")
    await ana.page.get_by_role("spinbutton").first.fill("60")
    await ana.page.get_by_role("button", name="Call", exact=True).click()
    await ana.page.get_by_role("button", name="Cancel the call").click()
    await expect(ana.page.get_by_label("Result", exact=True).locator(".chip")).to_contain_text(
        "cancelled"
    )
    assert_no_complaints(ana)


async def test_a_grant_is_previewed_made_explained_and_revoked(
    world: World, browser: Browser
) -> None:
    ana, who = await sign_in(browser, world), f"agent:{new_word()}"
    await world.api("POST", "/api/principals", {"id": who, "kind": "agent"})
    page = ana.page
    await ana.open("/access?tab=grants")
    await page.get_by_role("button", name="New grant").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Who").fill(who)
    await dialog.get_by_label("On", exact=True).fill("example/echo")
    await dialog.get_by_role("button", name="Show what changes").click()
    await expect(dialog.get_by_role("status")).to_contain_text(who)
    await dialog.get_by_role("button", name="Create the grant").click()
    await expect(dialog).to_have_count(0)
    await ana.open(f"/access?tab=explain&principal={who}&tool=example/echo")
    await expect(page.get_by_text("decides")).to_be_visible()
    await ana.open("/access?tab=grants")
    await page.get_by_label("Filter grants").fill(who)
    revoke = page.get_by_role("button", name="Revoke")
    await expect(revoke).to_have_count(1)
    await revoke.click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await expect(page.get_by_text("No grants fit.")).to_be_visible()
    assert_no_complaints(ana)


async def test_a_key_is_shown_once_and_works(world: World, browser: Browser) -> None:
    ana, who = await sign_in(browser, world), f"agent:{new_word()}"
    await world.api("POST", "/api/principals", {"id": who, "kind": "agent"})
    await ana.open("/access?tab=keys")
    await ana.page.get_by_role("button", name="New key").click()
    await ana.page.get_by_label("Principal").fill(who)
    await ana.page.get_by_role("button", name="Create the key").click()
    key = await ana.page.get_by_label("API key").inner_text()
    await ana.page.get_by_role("button", name="Done").click()
    await expect(ana.page.get_by_text(key)).to_have_count(0)
    world.keys[who] = key
    assert (await world.api("GET", "/api/session", key=who))["principal"] == who
    assert_no_complaints(ana)


async def test_a_call_is_found_in_the_audit_log_and_the_chain_is_verified(
    world: World, browser: Browser
) -> None:
    ana, word = await sign_in(browser, world), new_word()
    assert word in await world.call("example__echo", {"message": word})
    page = ana.page
    await ana.open("/audit?tool=echo&actor=agent:ci")
    await page.get_by_role("row", name=re.compile("echo")).nth(0).click()
    await page.get_by_role("button", name="Show the whole call").click()
    await expect(page.get_by_role("heading", name="What happened")).to_be_visible()
    await ana.open("/audit")
    await page.get_by_role("button", name="Verify now").click()
    await expect(page.get_by_text("Chain: intact")).to_be_visible()
    assert_no_complaints(ana)


async def test_settings_show_values_with_their_source_and_the_health_of_the_store(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    await ana.open("/settings")
    health = ana.page.get_by_label("Health")
    await expect(health.get_by_text("store", exact=True)).to_be_visible()
    await ana.page.get_by_label("Filter settings").fill("cluster.node")
    row = ana.page.get_by_role("row", name=re.compile("cluster.node"))
    await expect(row).to_contain_text("node-1")
    await expect(row).to_contain_text("node-1.toml")
    assert_no_complaints(ana)


@pytest.mark.parametrize("screen", ["topics", "live"])
async def test_an_empty_screen_says_how_it_fills(
    world: World, browser: Browser, screen: str
) -> None:
    ana = await sign_in(browser, world)
    await ana.open(f"/{screen}")
    await expect(ana.page.locator(".empty").first).to_be_visible()
    assert_no_complaints(ana)


async def test_a_viewer_is_offered_no_change(world: World, browser: Browser) -> None:
    ben = await sign_in(browser, world, VIEWER)
    await ben.open("/servers/example")
    await expect(ben.page.get_by_role("tab", name="State")).to_be_visible()
    await expect(ben.page.get_by_role("button", name="Restart")).to_have_count(0)
    await ben.open("/access?tab=grants")
    await expect(ben.page.get_by_role("table")).to_be_visible()
    await expect(ben.page.get_by_role("button", name="New grant")).to_have_count(0)
    assert_no_complaints(ben)


async def test_a_person_signs_out_and_the_session_is_over(world: World, browser: Browser) -> None:
    ben = await sign_in(browser, world, VIEWER)
    await ben.page.get_by_role("button", name="Sign out").first.click()
    await ben.page.wait_for_url(re.compile("/login"))
    await ben.open("/servers")
    await ben.page.wait_for_url(re.compile("/login"))


async def test_a_list_is_current_again_after_the_stream_was_refused_once(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    refused = asyncio.Event()

    async def refuse(route: Route) -> None:
        refused.set()
        await route.fulfill(status=503)

    await ana.page.route("**/api/stream", refuse, times=1)
    await ana.open("/approvals")
    await asyncio.wait_for(refused.wait(), SECONDS)
    await ana.page.get_by_text("connection lost").first.wait_for()
    # No hint of this request reaches the page: it is made before the stream is open again.
    calling = asyncio.create_task(world.call("disks__wipe"))
    request = await world.wait_for_request("wipe")
    row = ana.page.get_by_role("row", name="disks/wipe")
    await row.first.wait_for()
    await expect(ana.page.get_by_text("live", exact=True).first).to_be_visible()
    answer: dict[str, Any] = {"verdict": "decline", "reason": "", "content": {}}
    answer |= {"remember": False, "rule": None}
    await world.api("POST", f"/api/approvals/{request}/answer", answer)
    await calling
    # A hint of the new stream removes it.
    await expect(row).to_have_count(0)


async def test_the_results_to_filter_by_are_those_of_the_audit_log(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    await ana.open("/audit")
    options = ana.page.get_by_label("Result", exact=True).locator("option[value]:not([value=''])")
    await expect(options).to_have_count(len(AuditResult))
    values = [await each.get_attribute("value") for each in await options.all()]
    assert values == [result.lower() for result in AuditResult]
    await world.call("example__echo", {"message": "hello"})
    rows = ana.page.locator("[role=row][data-index]")
    call = rows.filter(has_text="example/echo").first
    await ana.page.get_by_label("Result", exact=True).select_option("success")
    await expect(call).to_contain_text("done")
    await ana.page.get_by_label("Result", exact=True).select_option("unknown")
    await expect(call).to_have_count(0)
    assert_no_complaints(ana)
