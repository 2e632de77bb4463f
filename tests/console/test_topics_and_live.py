"""The main tasks of the screens Topics and Live: real members, a live server and a model."""

import asyncio
import re

import pytest
from playwright.async_api import Browser, Page, expect

from tests.console.live_server import SECRET
from tests.console.world import (
    AGENT,
    DESK,
    NEEDS_BROWSER,
    PHONE,
    PLANNER,
    SECONDS,
    TOPIC,
    TOPIC_SERVER,
    VIEWER,
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


async def approve(page: Page, tool: str) -> None:
    card = page.get_by_role("group", name=f"Proposal of {AGENT}: {tool}").first
    await card.get_by_role("button", name="Approve").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label(f"Type {tool} to confirm").fill(tool)
    await dialog.get_by_role("button", name="Approve").click()
    await expect(card.locator(".chip").first).to_have_text(re.compile("approved"))


async def test_a_topic_shows_threads_and_members_and_a_proposal_is_answered_on_its_card(
    world: World, browser: Browser
) -> None:
    ana, word = await sign_in(browser, world), new_word()
    async with world.member(AGENT) as agent, world.member(PLANNER, node=1) as planner:
        first = await planner.chat(f"Which disk is old? {word}")
        await ana.open("/topics")
        await ana.page.get_by_role("link", name=re.compile(f"{TOPIC}.* members")).click()
        timeline = ana.page.get_by_label("Timeline")
        await expect(timeline.get_by_text(word)).to_be_visible()
        # A message that arrives later is in the thread of what it answers, without a reload.
        await agent.chat(f"The first one. {word}", reply_to=first)
        thread = timeline.locator("li.card").filter(has_text=f"Which disk is old? {word}")
        await expect(thread.locator("li.reply")).to_contain_text(f"The first one. {word}")
        members = ana.page.get_by_label("Members")
        for member in (AGENT, PLANNER, TOPIC_SERVER):
            await expect(members.get_by_text(member)).to_be_visible()
        await expect(members.locator("li").filter(has_text=AGENT)).to_contain_text("mcp/proposal:*")
        before = world.runs("wipe")
        outcome = propose(agent, "wipe")
        await approve(ana.page, "wipe")
        assert "done" in await outcome
        assert world.runs("wipe") == before + 1
        # The proposal, its fulfilment and the result are one thread.
        thread = timeline.locator("li.card").filter(has_text="proposal")
        await expect(thread.first.locator("li.reply").filter(has_text="response")).to_have_count(1)
    assert ana.complaints == []


async def test_a_topic_is_shown_and_a_proposal_is_denied_on_a_node_without_members_of_it(
    world: World, browser: Browser
) -> None:
    ana, ben = await sign_in(browser, world, node=1), await sign_in(browser, world, VIEWER, node=1)
    word = new_word()
    async with world.member(AGENT) as agent:
        await ana.open("/topics")
        await ana.page.get_by_role("link", name=re.compile(f"{TOPIC}.* member")).click()
        await expect(ana.page.get_by_label("Members").get_by_text(AGENT)).to_be_visible()
        await agent.chat(word)
        await expect(ana.page.get_by_label("Timeline").get_by_text(word)).to_be_visible()
        before = world.runs("format")
        outcome = propose(agent, "format")
        card = ana.page.get_by_role("group", name=f"Proposal of {AGENT}: format")
        await ben.open(f"/topics/{TOPIC}")
        of_ben = ben.page.get_by_role("group", name=f"Proposal of {AGENT}: format")
        await expect(of_ben.locator(".chip").first).to_have_text(re.compile("waits for a person"))
        await expect(of_ben.get_by_role("button", name="Deny")).to_have_count(0)
        await card.get_by_role("button", name="Deny").click()
        dialog = ana.page.get_by_role("dialog")
        await dialog.get_by_label(re.compile("Reason")).fill(word)
        await dialog.get_by_role("button", name="Deny").click()
        await expect(card.locator(".chip").first).to_have_text(re.compile("denied"))
        await expect(of_ben.locator(".chip").first).to_have_text(re.compile("denied"))
        outcome.cancel()
        await asyncio.gather(outcome, return_exceptions=True)
        assert world.runs("format") == before
    assert ana.complaints == ben.complaints == []


async def test_a_turn_shows_what_servers_added_and_rewrote_side_by_side(
    world: World, browser: Browser
) -> None:
    ana, word = await sign_in(browser, world), new_word()
    await ana.open("/live")
    await world.call("helper__remember", {"text": f"They live at the lake. {word}"})
    turn = await world.turn("What is the code of the door?", word)
    assert turn["reply"] == "The code of the door is [removed] today."
    # The turn appears by itself.
    shown = ana.page.get_by_label(f"Turn 1 of {word}")
    await expect(shown.get_by_label("Text of helper")).to_have_text(
        f"They live at the lake. {word}"
    )
    wrote, said = await shown.locator(".pair").nth(1).locator("> div").all_inner_texts()
    assert "The code of the door is 4 characters removed today." in wrote
    assert "The code of the door is [removed] today." in said
    assert "rewritten by helper" in said
    await expect(shown.get_by_text(SECRET)).to_have_count(0)
    left, right = [await each.bounding_box() for each in await shown.locator("h3").all()][:2]
    assert left is not None
    assert right is not None
    assert (left["y"], left["x"] < right["x"]) == (right["y"], True)
    assert ana.complaints == []


async def test_a_push_a_channel_and_the_spend_are_shown(world: World, browser: Browser) -> None:
    ana, word = await sign_in(browser, world), new_word()
    await ana.open("/live?tab=pushes")
    await world.call("helper__push", {"events": {word: f"Build {word} failed."}})
    row = ana.page.get_by_label("Pushes").get_by_role("listitem").filter(has_text=word)
    await expect(row).to_contain_text("done")
    await expect(row).to_contain_text("builds")
    await ana.page.get_by_role("tab", name="Turns").click()
    await expect(ana.page.get_by_text(f"Build {word} failed.").first).to_be_visible()
    await world.call("helper__open", {"rooms": {word: f"Room {word}"}})
    await ana.page.get_by_role("tab", name="Channels").click()
    await expect(ana.page.get_by_label(f"Room {word}")).to_contain_text("helper")
    await ana.page.get_by_role("tab", name="Models and spend").click()
    await expect(ana.page.get_by_label("Models", exact=True)).to_contain_text("main")
    spend = ana.page.get_by_label("Spend").get_by_role("listitem").filter(has_text=AGENT)
    await expect(spend.first).to_contain_text(re.compile(r"[1-9]\d* tokens, \$0\.0"))
    await ana.page.get_by_role("tab", name="Features").click()
    await expect(ana.page.get_by_label("helper")).to_contain_text("memory")
    assert ana.complaints == []


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_a_state_is_rolled_back_and_then_branches(
    world: World, browser: Browser, size: tuple[int, int]
) -> None:
    ana = await sign_in(browser, world, size=size)
    for text in ("one", "two"):
        await world.call("helper__add_note", {"text": text})
    tree = await world.api("GET", "/api/state/helper/notes")
    first = tree["checkpoints"][-2]["checkpoint"]
    await ana.open("/live?tab=state&server=helper&feature=notes")
    shown = ana.page.get_by_label("State tree")
    await shown.get_by_role("button", name=f"Roll back to {first}", exact=True).click()
    dialog = ana.page.get_by_role("dialog")
    await expect(dialog.get_by_label("State at this checkpoint")).to_contain_text("one")
    await dialog.get_by_role("button", name="Roll back").click()
    await expect(dialog).to_have_count(0)
    row = shown.get_by_role("listitem").filter(has=ana.page.get_by_text(first, exact=True))
    await expect(row.first).to_contain_text("current")
    assert (await world.api("GET", "/api/state/helper/notes"))["head"] == first
    await expect(shown.get_by_text("branch").last).to_be_visible()
    # What follows now is another branch, which appears by itself.
    await world.call("helper__add_note", {"text": "three"})
    await expect(row.first).not_to_contain_text("current")
    assert ana.complaints == []
