"""What the console says of calls that did not run, and of what needs a person."""

import asyncio
import re
from typing import Any

import httpx2
import pytest
from playwright.async_api import Browser, expect

from tests.console.world import AGENT, NEEDS_BROWSER, PLANNER, SECONDS, World, new_word, sign_in
from tests.support.visitor import BOTH, ENVELOPE, MODERN

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    *NEEDS_BROWSER,
    pytest.mark.timeout(300),
]
expect.set_options(timeout=SECONDS * 1000)


async def last_entry(world: World, tool: str, actor: str = PLANNER) -> dict[str, Any]:
    """The newest entry of how a call of this actor ended, as soon as there is one."""
    async with asyncio.timeout(SECONDS):
        while True:
            page = await world.api("GET", f"/api/audit?actor={actor}&limit=20")
            for each in page["entries"]:
                if each["outcome"] is not None and tool in each["tool"]:
                    return each
            await asyncio.sleep(0.05)


async def test_a_denial_leads_to_the_grant_and_to_its_explanation(
    world: World, browser: Browser
) -> None:
    ana, why = await sign_in(browser, world), f"planners only plan {new_word()}"
    denial = {"subject": PLANNER, "verb": "tools/call", "target": "example/echo"}
    await world.api("POST", "/api/grants", {**denial, "effect": "deny", "justification": why})
    assert why not in await world.call("example__echo", {"message": "a"}, key=PLANNER)
    await last_entry(world, "echo")
    page = ana.page
    await ana.open(f"/audit?actor={PLANNER}&tool=example__echo")
    row = page.locator("[role=row][data-index]").first
    await expect(row).to_be_visible()
    outcome = page.get_by_label("Outcome", exact=True)
    await outcome.select_option("waiting")
    await expect(page.get_by_text("No entry fits these filters.")).to_be_visible()
    await outcome.select_option("denied by rule")
    await expect(page).to_have_url(re.compile("outcome=denied"))
    await expect(row).to_contain_text("denied by rule")
    await row.click()
    decided = page.get_by_label("Decided by")
    await expect(decided).to_contain_text(why)
    await expect(decided).to_contain_text(f"deny {PLANNER} tools/call example/echo")
    await page.get_by_role("button", name="Show the whole call").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("denied")
    await page.get_by_label("Decided by").get_by_role("link", name=re.compile("Explain")).click()
    await expect(page.get_by_text("decides")).to_be_visible()
    await expect(page.get_by_role("status").first).to_contain_text(why)
    await expect(page.get_by_label("May")).to_have_value(PLANNER)
    await world.api("POST", "/api/grants/delete", denial)
    assert ana.complaints == []


async def test_a_call_that_waits_is_not_told_as_denied(world: World, browser: Browser) -> None:
    ana = await sign_in(browser, world)
    before = await _waiting_calls(world)
    await post_call(world, "no_such_tool", AGENT)
    assert (await last_entry(world, "no_such_tool", AGENT))["outcome"] == "unknown"
    assert "input_required" in await post_call(world, "disks__shred", AGENT)
    request = await world.wait_for_request("shred")
    entry = await last_entry(world, "shred", AGENT)
    assert (entry["result"], entry["outcome"]) == ("BLOCKED", "waiting")
    async with asyncio.timeout(SECONDS):
        while await _waiting_calls(world) == before:
            await asyncio.sleep(0.2)
    await ana.open(f"/audit?actor={AGENT}&tool=shred")
    await expect(ana.page.locator("[role=row][data-index]").first).to_contain_text("waiting")
    answer: dict[str, Any] = {
        "verdict": "decline",
        "reason": "",
        "content": {},
        "remember": False,
        "rule": None,
    }
    await world.api("POST", f"/api/approvals/{request}/answer", answer)
    assert ana.complaints == []


async def _waiting_calls(world: World) -> int:
    """How many calls of the last hour waited for a person, as the overview counts them."""
    series = (await world.api("GET", "/api/overview"))["series"]
    return sum(each["outcomes"]["waiting"] for each in series)


async def post_call(world: World, tool: str, key: str) -> str:
    """Call a tool with a client that opens pages itself, so that no answer waits for a person."""
    pages: dict[str, Any] = {"elicitation": {"url": {}}}
    meta: dict[str, Any] = {**ENVELOPE, "io.modelcontextprotocol/clientCapabilities": pages}
    params: dict[str, Any] = {"name": tool, "arguments": {}, "_meta": meta}
    headers = {
        "authorization": f"Bearer {world.keys[key]}",
        "accept": BOTH,
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with httpx2.AsyncClient(headers=headers, timeout=SECONDS) as http:
        return (await http.post(f"{world.origin}/mcp", json=body)).text


async def test_a_changed_definition_is_shown_wherever_somebody_looks(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    before = (await world.api("GET", "/api/overview"))["quarantined"]
    await expect(ana.page.get_by_label("Needs you")).to_be_visible()
    drift = world.folder / "wipe.drift"
    drift.touch()
    # The overview shows it by itself.
    needs = ana.page.locator("[data-kind=definition]").filter(has_text="disks")
    await expect(needs).to_contain_text("Review 1 definition of disks")
    counts = await world.api("GET", "/api/overview")
    assert counts["quarantined"] == before + 1
    await ana.open("/servers")
    await expect(ana.page.get_by_role("row", name=re.compile("disks"))).to_contain_text(
        "1 to review"
    )
    detail = await world.api("GET", "/api/servers/disks")
    assert "changed" in detail["quarantined"]["wipe"]
    await ana.open("/")
    await needs.get_by_role("link").click()
    await expect(ana.page.get_by_role("tab", name="Quarantine")).to_contain_text("1")
    await ana.page.get_by_role("button", name="Accept this definition").click()
    await ana.page.get_by_role("dialog").get_by_role("button", name="Accept").click()
    await expect(ana.page.get_by_label("Definition of wipe")).to_have_count(0)
    await ana.open("/")
    await expect(needs).to_have_count(0)
    assert ana.complaints == []


async def test_a_refused_change_of_the_configuration_is_told(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world)
    config = world.folder / "node-1.toml"
    whole = config.read_text()
    needs = ana.page.locator("[data-kind=configuration]")
    try:
        # Only the first half: a program may still be writing it.
        config.write_text(whole[: whole.index("[[servers]]", len(whole) // 3)])
        await expect(needs).to_contain_text("A change of the configuration file was refused")
        await needs.get_by_role("link").click()
        refused = ana.page.get_by_label("Configuration file")
        await expect(refused).to_contain_text("comity config trust")
        await expect(refused).to_contain_text("The configuration from before is in force.")
    finally:
        config.write_text(whole)
    await expect(ana.page.get_by_label("Configuration file")).to_contain_text("in force")
    await ana.open("/")
    await expect(ana.page.get_by_label("Needs you")).to_be_visible()
    await expect(needs).to_have_count(0)
    assert ana.complaints == []
