"""Makes the pictures of the console in the documentation from a running `comity demo`.

    python -m tests.console.pictures docs/assets/console

Each screen is drawn light and dark, for a desk and for a phone. The demo has no server that demands
a sign-in, so the accounts are those of a gateway of the tests.
"""

import asyncio
import io
import re
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.async_api import Browser, Page, expect

from comity.policy.grants import Effect, Grant
from tests.accounts.scene import ANA, BEN, SERVER, AccountScene, an_account_scene
from tests.console.world import DESK, PHONE, a_browser
from tests.interop.processes import free_port

WARM_UP_SECONDS = 100.0
EVA, PLANNER = "person:eva", "agent:planner"
GRANTS = (
    Grant(EVA, "*", "*", Effect.ALLOW),
    Grant(PLANNER, "tools/*", "*", Effect.ALLOW),
    Grant(PLANNER, "account/use", f"{SERVER}/{EVA}", Effect.ALLOW),
)
COLOURS = 160
"""A screen has few colours, so a palette keeps each picture small."""

SCREENS = {
    "overview": "/",
    "approvals": "/approvals",
    "servers": "/servers",
    "server": "/servers/flaky",
    "tools": "/tools?tab=search",
    "tool": "/tools/notes__search_notes",
    "views": "/views",
    "view": "/views/billing",
    "access": "/access?tab=grants",
    "explain": "/access?tab=explain&principal=agent:billing&tool=payments/refund",
    "audit": "/audit",
    "topics": "/topics",
    "topic": "/topics/refunds",
    "turns": "/live?tab=turns",
    "pushes": "/live?tab=pushes",
    "features": "/live?tab=features",
    "models": "/live?tab=models",
    "settings": "/settings",
}


# The folders of this machine say nothing to a reader.
_HIDE_FOLDERS = """
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walk.nextNode(); node; node = walk.nextNode())
    node.data = node.data.replace(
        /(?<![\\w*])(?!\\/views\\/)(\\/[\\w.@-]+){2,}/g,
        found => "/srv/comity/" + found.split("/").at(-1)
    );
"""


async def draw(page: Page, file: Path) -> None:
    await page.get_by_role("heading", level=1).first.wait_for()
    await expect(page.get_by_text(re.compile("^Loading"))).to_have_count(0, timeout=30_000)
    await page.wait_for_timeout(700)
    await page.evaluate(_HIDE_FOLDERS)
    picture = Image.open(io.BytesIO(await page.screenshot()))
    palette = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    palette.save(file, optimize=True)
    print(file.name)


async def open_state(page: Page, origin: str) -> None:
    await page.goto(f"{origin}/console/live?tab=state")
    await page.get_by_role("button", name=re.compile("orders.plan")).click()
    await page.get_by_role("heading", name=re.compile("Checkpoints")).wait_for()


async def roll_back(page: Page, origin: str) -> None:
    """Roll the live server back, so that its state has a branch."""
    await open_state(page, origin)
    await page.get_by_role("button", name=re.compile("^Roll back to")).first.click()
    await page.get_by_role("button", name="Roll back", exact=True).click()
    await page.get_by_text("branch", exact=True).first.wait_for()


async def pages(browser: Browser, first: Page) -> AsyncGenerator[tuple[Page, str]]:
    """Yield a page for each size and theme, in which the person of the first page is signed in."""
    signed_in = await first.context.storage_state()
    for width, height in (DESK, PHONE):
        for scheme in ("light", "dark"):
            context = await browser.new_context(
                storage_state=signed_in,
                viewport={"width": width, "height": height},
                color_scheme="dark" if scheme == "dark" else "light",
                device_scale_factor=1 if width > 500 else 1.5,
                reduced_motion="reduce",
            )
            page = await context.new_page()
            page.set_default_timeout(30_000)
            yield page, f"{'desk' if width > 500 else 'phone'}-{scheme}.png"
            await context.close()


async def draw_all(link: str, folder: Path) -> None:
    origin = link.partition("/login")[0]
    async with a_browser() as browser:
        first = await browser.new_page()
        await first.goto(link)
        await first.wait_for_url(re.compile("/console"))
        await roll_back(first, origin)
        async for page, kind in pages(browser, first):
            for name, path in SCREENS.items():
                await page.goto(f"{origin}/console{path}")
                if name == "tools":
                    await page.get_by_label("What should a tool do?").fill("find a note")
                    await page.locator("ol .card").first.wait_for()
                await draw(page, folder / f"{name}-{kind}")
            await open_state(page, origin)
            await draw(page, folder / f"state-{kind}")
            await page.goto(f"{origin}/console/")
            guided = re.compile("agent:billing wants to call payments__refund")
            await page.get_by_role("link", name=guided).click()
            await page.get_by_role("button", name="Approve").wait_for()
            await draw(page, folder / f"approval-{kind}")
            await page.goto(f"{origin}/console/audit?tool=monthly_report")
            await page.get_by_role("row").nth(1).click()
            await page.get_by_role("button", name="Show the whole call").click()
            await draw(page, folder / f"trace-{kind}")


async def draw_accounts(scene: AccountScene, folder: Path) -> None:
    """Draw two accounts, and the call of an agent that waits for a third."""
    origin = scene.origins[0]
    for person in (ANA, BEN):
        await scene.connect(person)
    scene.wait_for_server()
    calling = asyncio.create_task(scene.call(PLANNER, mode="legacy"))
    await scene.sign_in_request(PLANNER)
    async with a_browser() as browser:
        first = await browser.new_page()
        await first.goto(f"{origin}/login?next=/console/")
        await first.fill("input[name=key]", scene.keys[EVA])
        await first.click("button")
        await first.wait_for_url(re.compile("/console"))
        async for page, kind in pages(browser, first):
            await page.goto(f"{origin}/console/accounts")
            await page.get_by_role("link", name=f"Sign in to {SERVER}").wait_for()
            await draw(page, folder / f"accounts-{kind}")
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)


def draw_account_screens(folder: Path) -> None:
    with TemporaryDirectory() as home, an_account_scene(Path(home), grants=GRANTS) as scene:
        asyncio.run(draw_accounts(scene, folder))


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    comity = str(Path(sys.executable).with_name("comity"))
    demo = subprocess.Popen(
        [comity, "demo", "--port", str(free_port())], stdout=subprocess.PIPE, text=True
    )
    draw_account_screens(folder)
    try:
        assert demo.stdout is not None
        link = next(line.strip() for line in demo.stdout if "/login/link" in line)
        # The agents need some time to fill the plots.
        time.sleep(WARM_UP_SECONDS)
        asyncio.run(draw_all(link, folder))
    finally:
        demo.terminate()
        demo.wait(30)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
