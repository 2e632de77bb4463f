"""The main task of each screen by keyboard alone: no mouse, and no address after the sign-in."""

import asyncio
import re
from dataclasses import replace

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.console.world import (
    ADMIN,
    AGENT,
    NEEDS_BROWSER,
    OAUTH_SERVER,
    SECONDS,
    TOPIC,
    VIEWER,
    Visitor,
    World,
    new_word,
    propose,
    sign_in,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    *NEEDS_BROWSER,
    pytest.mark.timeout(300),
]
expect.set_options(timeout=SECONDS * 1000)
MAX_STEPS = 150
"""More steps than the longest way through a screen. A trap for the focus ends the test."""

_NEXT_FRAME = "new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
_IS_FOCUSED = "it => it === document.activeElement"


class Hands:
    """A person who has only a keyboard."""

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self.page: Page = visitor.page

    async def press(self, key: str) -> None:
        await self.page.keyboard.press(key)

    async def type(self, text: str) -> None:
        await self.page.keyboard.type(text)

    async def go(self, screen: str) -> None:
        """Open a screen with the palette."""
        await self.choose(screen, screen)
        await self.page.get_by_role("heading", level=1, name=re.compile(screen)).wait_for()

    async def choose(self, text: str, option: str) -> None:
        """Type into the palette until the option is its first, and open it."""
        await self.press("Control+k")
        await expect(self.page.get_by_role("combobox", name="Go to")).to_be_focused()
        await self.type(text)
        first = self.page.get_by_role("dialog", name="Go to").get_by_role("option").first
        await expect(first).to_have_text(option)
        await expect(first).to_have_attribute("aria-selected", "true")
        await self.press("Enter")

    async def reach(self, goal: Locator, key: str = "Tab") -> None:
        """Press a key until the goal has the focus."""
        await goal.wait_for()
        for _ in range(MAX_STEPS):
            if await goal.evaluate(_IS_FOCUSED):
                return
            await self.press(key)
            if key != "Tab":
                # A list moves the focus when the page is drawn.
                await self.page.evaluate(_NEXT_FRAME)
        raise AssertionError(f"the focus does not reach {goal}")

    async def push(self, name: str, within: Locator | None = None) -> None:
        """Use a button."""
        where = self.page if within is None else within
        await self.reach(where.get_by_role("button", name=name, exact=True).first)
        await self.press("Enter")

    async def fill(self, goal: Locator, text: str) -> None:
        await self.reach(goal)
        await self.press("Control+a")
        await self.type(text)

    async def open_tab(self, name: str) -> None:
        """Move to a tab of the screen with the arrows."""
        await self.reach(self.page.get_by_role("tab", selected=True))
        await self.reach(self.page.get_by_role("tab", name=name), "ArrowRight")
        await expect(self.page.get_by_role("tab", name=name, selected=True)).to_be_visible()

    async def open_row(self, name: str) -> None:
        goal = self.page.get_by_role("row", name=re.compile(name)).first
        await goal.wait_for()
        await self.reach(self.page.locator('[role="row"][tabindex="0"]'))
        await self.reach(goal, "ArrowDown")
        await self.press("Enter")

    async def filter(self, text: str) -> None:
        """Filter the list of the screen."""
        await self.press("/")
        await self.type(text)

    @property
    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog")

    async def confirm(self, action: str) -> None:
        """Confirm the open dialog, whose action has the focus already."""
        button = self.dialog.get_by_role("button", name=action, exact=True)
        await expect(button).to_be_focused()
        await self.press("Enter")
        await expect(self.dialog).to_have_count(0)

    def assert_no_complaints(self) -> None:
        assert self._visitor.complaints == []


async def hands_of(browser: Browser, world: World, who: str = ADMIN) -> Hands:
    return Hands(await sign_in(browser, world, who))


async def test_a_waiting_request_is_opened_from_the_overview_and_denied(
    world: World, browser: Browser
) -> None:
    ana, word = await hands_of(browser, world), new_word()
    calling = asyncio.create_task(world.call("disks__format"))
    await world.wait_for_request("format")
    await ana.reach(
        ana.page.get_by_label("Needs you").get_by_role("link", name=re.compile("format"))
    )
    await ana.press("Enter")
    await ana.page.get_by_role("button", name="Deny").wait_for()
    await ana.press("x")
    await ana.dialog.wait_for()
    await ana.fill(ana.dialog.get_by_label(re.compile("Reason")), word)
    await ana.press("Enter")
    assert word in await calling
    assert world.runs("format") == 0
    ana.assert_no_complaints()


async def test_a_server_is_restarted_and_its_output_is_read(world: World, browser: Browser) -> None:
    ana = await hands_of(browser, world)
    await ana.go("Servers")
    await ana.filter("example")
    await ana.page.wait_for_url(re.compile("search=example"))
    await ana.open_row("example")
    await ana.push("Restart")
    await ana.confirm("Restart")
    await expect(ana.page.get_by_label("History").get_by_text("restarting").first).to_be_visible()
    await ana.open_tab("Output")
    await ana.page.get_by_role("heading", name="Last lines on stderr").wait_for()
    ana.assert_no_complaints()


async def test_a_changed_definition_is_accepted(world: World, browser: Browser) -> None:
    ana = await hands_of(browser, world)
    (world.folder / "erase.drift").touch()
    await ana.go("Servers")
    await ana.open_row("disks")
    await ana.open_tab("Quarantine")
    definition = ana.page.get_by_label("Definition of erase")
    await expect(definition).to_contain_text("Wipes everything.")
    await ana.push("Accept this definition", definition)
    await ana.confirm("Accept")
    await expect(definition).to_have_count(0)
    ana.assert_no_complaints()


async def test_a_tool_is_found_called_and_cancelled(world: World, browser: Browser) -> None:
    ana, word = await hands_of(browser, world), new_word()
    await ana.go("Tools")
    await ana.open_tab("Search")
    await ana.fill(ana.page.get_by_label("What should a tool do?"), "return a message")
    await ana.reach(ana.page.get_by_role("link", name="example__echo"))
    await ana.press("Enter")
    await ana.fill(ana.page.get_by_label("message"), word)
    await ana.push("Call")
    await expect(ana.page.get_by_label("Result of the call")).to_contain_text(word)
    await ana.choose("example__countdown", "example__countdown")
    await ana.fill(ana.page.get_by_role("spinbutton").first, "60")
    await ana.press("Enter")
    await ana.push("Cancel the call")
    chip = ana.page.get_by_label("Result", exact=True).locator(".chip")
    await expect(chip).to_contain_text("cancelled")
    ana.assert_no_complaints()


async def test_a_view_shows_its_tools_its_changes_and_its_problems(
    world: World, browser: Browser
) -> None:
    ana = await hands_of(browser, world)
    await ana.go("Views")
    await ana.open_row("Greeting")
    await expect(ana.page.get_by_label("Problems", exact=True)).to_contain_text(
        "example/missing: its server lists no such tool now"
    )
    await ana.filter("say_hello")
    row = ana.page.get_by_role("row", name=re.compile("say_hello"))
    await expect(row).to_contain_text("example/echo")
    await expect(row).to_contain_text('message = "hello"')
    await expect(row).to_contain_text("served")
    ana.assert_no_complaints()


async def test_an_account_is_connected_and_disconnected(world: World, browser: Browser) -> None:
    visitor = await sign_in(browser, world)
    ana = Hands(visitor)
    await ana.go("Accounts")
    await ana.reach(ana.page.get_by_role("link", name=f"Connect {OAUTH_SERVER}"))
    async with visitor.context.expect_page() as opened:
        await ana.press("Enter")
    connecting = Hands(replace(visitor, page=await opened.value))
    await connecting.push(f"Sign in to {OAUTH_SERVER}")
    await connecting.page.get_by_text("You can close this page.").wait_for()
    await connecting.page.close()
    await ana.filter(OAUTH_SERVER)
    await ana.page.wait_for_url(re.compile(f"search={OAUTH_SERVER}"))
    await ana.open_row(OAUTH_SERVER)
    await ana.push("Disconnect", ana.dialog)
    await ana.confirm("Disconnect")
    await expect(ana.page.get_by_text("No account fits this filter.")).to_be_visible()
    ana.assert_no_complaints()


async def test_a_grant_is_made_explained_and_revoked(world: World, browser: Browser) -> None:
    ana, who = await hands_of(browser, world), f"agent:{new_word()}"
    await world.api("POST", "/api/principals", {"id": who, "kind": "agent"})
    await ana.go("Access")
    await ana.open_tab("Grants")
    await ana.push("New grant")
    await ana.fill(ana.dialog.get_by_label("Who"), who)
    await ana.fill(ana.dialog.get_by_label("On", exact=True), "example/echo")
    await ana.press("Enter")
    await expect(ana.dialog.get_by_role("status")).to_contain_text(who)
    await ana.push("Create the grant", ana.dialog)
    await expect(ana.dialog).to_have_count(0)
    await ana.open_tab("Explain")
    await ana.fill(ana.page.get_by_label("May", exact=True), who)
    await ana.fill(ana.page.get_by_label("call", exact=True), "example/echo")
    await ana.press("Enter")
    await expect(ana.page.get_by_text("decides")).to_be_visible()
    await ana.open_tab("Grants")
    await ana.filter(who)
    await expect(ana.page.get_by_role("button", name="Revoke")).to_have_count(1)
    await ana.push("Revoke")
    await ana.confirm("Revoke")
    await expect(ana.page.get_by_text("No grants fit.")).to_be_visible()
    ana.assert_no_complaints()


async def test_a_key_is_created(world: World, browser: Browser) -> None:
    ana, who = await hands_of(browser, world), f"agent:{new_word()}"
    await world.api("POST", "/api/principals", {"id": who, "kind": "agent"})
    await ana.go("Access")
    await ana.open_tab("Keys")
    await ana.push("New key")
    await ana.fill(ana.dialog.get_by_label("Principal"), who)
    await ana.press("Enter")
    world.keys[who] = await ana.page.get_by_label("API key").inner_text()
    await ana.push("Done", ana.dialog)
    await expect(ana.dialog).to_have_count(0)
    assert (await world.api("GET", "/api/session", key=who))["principal"] == who
    ana.assert_no_complaints()


async def test_a_call_is_found_in_the_audit_log_and_the_chain_is_verified(
    world: World, browser: Browser
) -> None:
    ana = await hands_of(browser, world)
    await world.call("example__echo", {"message": new_word()})
    await ana.go("Audit")
    await ana.fill(ana.page.get_by_role("searchbox", name="Tool"), "echo")
    await ana.page.wait_for_url(re.compile("tool=echo"))
    await ana.open_row("echo")
    await ana.push("Show the whole call", ana.dialog)
    await ana.page.get_by_role("heading", name="What happened").wait_for()
    await ana.go("Audit")
    await ana.push("Verify now")
    await expect(ana.page.get_by_text("Chain: intact")).to_be_visible()
    ana.assert_no_complaints()


async def test_a_proposal_is_answered_in_its_topic(world: World, browser: Browser) -> None:
    ana = await hands_of(browser, world)
    async with world.member(AGENT) as agent:
        outcome = propose(agent, "wipe")
        await ana.go("Topics")
        await ana.reach(ana.page.get_by_role("link", name=re.compile(f"{TOPIC}.* member")))
        await ana.press("Enter")
        card = ana.page.get_by_role("group", name=f"Proposal of {AGENT}: wipe")
        await ana.push("Approve", card)
        # Enter alone approves nothing that is dangerous.
        await expect(ana.dialog.get_by_label("Type wipe to confirm")).to_be_focused()
        await ana.press("Enter")
        assert world.runs("wipe") == 0
        await ana.type("wipe")
        await ana.press("Enter")
        await expect(card.locator(".chip").first).to_have_text(re.compile("approved"))
        assert "done" in await outcome
        assert world.runs("wipe") == 1
    ana.assert_no_complaints()


async def test_a_state_is_rolled_back(world: World, browser: Browser) -> None:
    ana = await hands_of(browser, world)
    for text in ("one", "two"):
        await world.call("helper__add_note", {"text": text})
    await ana.go("Live")
    await ana.open_tab("State")
    await ana.push("Roll back to note-1")
    await ana.confirm("Roll back")
    row = ana.page.get_by_label("State tree").get_by_role("listitem").first
    await expect(row).to_contain_text("current")
    assert (await world.api("GET", "/api/state/helper/notes"))["head"] == "note-1"
    ana.assert_no_complaints()


async def test_a_setting_is_found(world: World, browser: Browser) -> None:
    ana = await hands_of(browser, world)
    await ana.go("Settings")
    await ana.page.get_by_label("Filter settings").wait_for()
    await ana.filter("cluster.node")
    await expect(ana.page.get_by_role("row", name=re.compile("cluster.node"))).to_contain_text(
        "node-1"
    )
    ana.assert_no_complaints()


async def test_a_person_signs_out(world: World, browser: Browser) -> None:
    ben = await hands_of(browser, world, VIEWER)
    await ben.push("Sign out")
    await ben.page.wait_for_url(re.compile("/login"))
