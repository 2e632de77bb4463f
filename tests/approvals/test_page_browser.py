"""The page of an ask in a real browser, on a phone and on a desk: seen, pressed, and no script."""

import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, async_playwright

from comity.approvals.model import ApprovalRequest, ApprovalState
from tests.support.inbox_scene import ANA, Scene, an_inbox

CHROMIUM = shutil.which("chromium")
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 900}
LONG = {
    "path": "/srv/reports/2026/november/quarterly-figures-of-everything.csv",
    "content": "date,amount\n" + "2026-11-15,1024\n" * 40,
    "mode": "overwrite",
}

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; scripts/setup installs it"),
    pytest.mark.timeout(180),
]


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with an_inbox() as scene:
        scene.person()
        yield scene


@pytest.fixture
async def browser() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        assert CHROMIUM is not None
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            await browser.close()


async def a_page(browser: Browser, size: dict[str, int], scheme: str = "light") -> Page:
    dark = scheme == "dark"
    context = await browser.new_context(
        viewport={"width": size["width"], "height": size["height"]},
        color_scheme="dark" if dark else "light",
        java_script_enabled=False,
    )
    page = await context.new_page()
    page.set_default_timeout(60_000)
    return page


async def an_ask(scene: Scene) -> ApprovalRequest:
    ask = scene.new()
    return await scene.approvals.open(
        scene.new(about={**ask.about, "arguments": LONG}, trace="4bf92f3577b34da6a3ce929d0e0e4736")
    )


def at(scene: Scene, ask: ApprovalRequest, token: str = "") -> str:
    place = f"{scene.governed.visitor.place.address}/approvals/{ask.id}"
    return f"{place}?t={token}" if token else place


async def state(scene: Scene, ask: ApprovalRequest) -> ApprovalState:
    found = await scene.approvals.store.get(ask.id)
    assert found is not None
    return found.state


async def is_within_its_width(page: Page, size: dict[str, int]) -> bool:
    box = await page.locator("article").bounding_box()
    assert box is not None
    return box["x"] >= 0 and box["x"] + box["width"] <= size["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
async def test_a_person_reads_and_approves(
    scene: Scene, browser: Browser, size: dict[str, int], scheme: str, tmp_path: Path
) -> None:
    ask = await an_ask(scene)
    page = await a_page(browser, size, scheme)
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(at(scene, ask, scene.token(ask)))
    assert "agent:ci wants to call files__write" in await page.inner_text("h1")
    assert "quarterly-figures" in await page.inner_text("pre")
    assert await is_within_its_width(page, size)
    # The style has passed the page's own policy, also in this scheme.
    colour = await page.locator("button.yes").evaluate("it => getComputedStyle(it).color")
    assert colour == "rgb(255, 255, 255)"
    await page.screenshot(path=tmp_path / f"asked-{size['width']}-{scheme}.png", full_page=True)
    assert await state(scene, ask) is ApprovalState.PENDING
    await page.fill("#reason", "checked with the team")
    await page.click("button.yes")
    await page.wait_for_selector("text=Nothing is approved yet")
    assert await state(scene, ask) is ApprovalState.PENDING
    assert await page.input_value("#reason") == "checked with the team"
    # The browser notes the status of the refusal, which is the only complaint.
    assert [each for each in complaints if "400" not in each] == []
    complaints.clear()
    await page.fill("#word", "write")
    await page.screenshot(path=tmp_path / f"typed-{size['width']}-{scheme}.png", full_page=True)
    await page.click("button.yes")
    await page.wait_for_selector("text=You approved it")
    await page.screenshot(path=tmp_path / f"done-{size['width']}-{scheme}.png", full_page=True)
    assert await state(scene, ask) is ApprovalState.APPROVED
    assert complaints == []
    assert {url.partition("?")[0] for url in asked} == {at(scene, ask)}


async def test_a_person_shows_a_key_first_and_denies(
    scene: Scene, browser: Browser, tmp_path: Path
) -> None:
    ask, ana = await an_ask(scene), scene.person(ANA)
    page = await a_page(browser, PHONE)
    await page.goto(at(scene, ask))
    assert "agent:ci" not in await page.content()
    await page.screenshot(path=tmp_path / "who.png", full_page=True)
    await page.fill("#key", "wrong")
    await page.click("button")
    await page.wait_for_selector("text=This is no API key")
    await page.fill("#key", ana.key)
    await page.click("button")
    await page.wait_for_selector("text=wants to call")
    assert ana.key not in page.url
    assert ana.key not in await page.content()
    await page.click("text=Deny")
    await page.wait_for_selector("text=You denied it")
    assert await state(scene, ask) is ApprovalState.DENIED
