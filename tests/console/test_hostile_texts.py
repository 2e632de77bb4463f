"""A hundred hostile texts on every screen are shown as text, and no policy is violated."""

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncGenerator
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Page, expect

from tests.console.hostile_texts import TEXTS
from tests.console.live_server import SECRET
from tests.console.world import ADMIN, AGENT, NEEDS_BROWSER, OAUTH_SERVER, SECONDS, World, sign_in

SCREENS = (
    "/",
    "/approvals",
    "/approvals?state=all",
    "/servers",
    "/servers/hostile",
    "/servers/hostile?tab=tools",
    "/servers/hostile?tab=review",
    "/servers/hostile?tab=output",
    "/servers/hostile?tab=permissions",
    "/tools",
    "/tools?tab=search",
    *(f"/tools/hostile__tool_{place:03}" for place in range(0, 100, 7)),
    "/access",
    "/access?tab=grants",
    "/access?tab=keys",
    "/accounts",
    "/accounts?search=<script>fail()</script>",
    "/audit",
    "/audit?actor=<script>fail()</script>",
    "/topics",
    "/topics/<img src=x onerror=fail()>",
    "/live",
    "/settings",
    "/no/such/<svg onload=fail()>",
)
CHATS, PROPOSALS = "chats", "proposals"
TALKING = {
    f"/topics/{CHATS}": True,
    f"/topics/{PROPOSALS}": True,
    "/live": True,
    "/live?tab=channels": True,
    # The id of an event has no room for whole texts.
    "/live?tab=pushes": False,
}
"""Screens with the texts of members and live servers, and whether all texts are on them."""

_MARKS = """
window.failures = [];
window.fail = (...words) => window.failures.push(words.join(' ') || 'ran');
for (const name of ['alert', 'confirm', 'prompt', 'print']) window[name] = window.fail;
const seen = e => window.failures.push(e.violatedDirective);
document.addEventListener('securitypolicyviolation', seen);
"""

_RECORD_POLICIES = """
window.policies = [];
const create = TrustedTypePolicyFactory.prototype.createPolicy;
TrustedTypePolicyFactory.prototype.createPolicy = function (name, rules) {
  const policy = create.call(this, name, rules);
  const address = String(policy.createScriptURL("https://evil.example/x.js"));
  window.policies.push([name, Object.keys(rules).join(), address]);
  return policy;
};
"""
_ATTEMPTS = """async () => {
  const same = (text) => text;
  const rules = { createHTML: same, createScript: same, createScriptURL: same };
  const attempts = {
    "same policy": () => trustedTypes.createPolicy("comity-worker", rules),
    "other policy": () => trustedTypes.createPolicy("other", rules),
    "default policy": () => trustedTypes.createPolicy("default", rules),
    "service worker": () => navigator.serviceWorker.register("/console/worker.js"),
    "worker": () => new Worker("/console/worker.js"),
    "script": () => { document.createElement("script").src = "/console/worker.js"; },
    "html": () => { document.createElement("p").innerHTML = "<b>text</b>"; },
  };
  const outcomes = {};
  for (const [name, attempt] of Object.entries(attempts)) {
    try {
      await attempt();
      outcomes[name] = "done";
    } catch (error) {
      outcomes[name] = error.name;
    }
  }
  return outcomes;
}"""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    *NEEDS_BROWSER,
    pytest.mark.timeout(600),
]
expect.set_options(timeout=SECONDS * 1000)


async def write_texts(world: World) -> None:
    """Put the texts where agents and people can write: labels, reasons, grants and arguments."""
    for place, text in enumerate(TEXTS):
        clean = text.replace("\x00", "")[:200]
        who = {"id": f"agent:hostile-{place}", "kind": "agent", "label": clean}
        await world.api("POST", "/api/principals", who)
        grant = {
            "subject": f"agent:hostile-{place}",
            "target": "example/echo",
            "justification": clean,
        }
        await world.api("POST", "/api/grants", grant)


def clean_name(text: str) -> str:
    """The part of a text that can be the name of a principal or of an event."""
    return "".join(each for each in text if each.isprintable() and each != "*").strip()[:200]


@contextlib.asynccontextmanager
async def hostile_members(world: World) -> AsyncGenerator[None]:
    """Members with hostile names and capabilities say and propose all texts in two topics."""
    names = [f"agent:{clean_name(text)}" for text in TEXTS[:8]]
    capability = "<img/src=x/onerror=fail()>"
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            await world.api("POST", "/api/principals", {"id": name, "kind": "agent"})
            world.keys[name] = (await world.api("POST", "/api/keys", {"principal": name}))["key"]
            path = f"/admin/participants/{quote(name, safe='')}/capabilities"
            change = {"add": ["chat", "mcp/proposal:*", capability], "topic": CHATS}
            await world.api("POST", path, change)
        members = [
            await stack.enter_async_context(world.member(name, topic=CHATS)) for name in names
        ]
        proposer = await stack.enter_async_context(world.member(names[0], topic=PROPOSALS))
        for place, text in enumerate(TEXTS):
            await members[place % len(members)].chat(text)
            params = {"name": text, "arguments": {text: text}}
            await proposer.propose("tools/call", params, to=names[1])
        yield


async def fill_live_server(world: World) -> None:
    """The live server and the model say all texts."""
    pairs = list(itertools.batched(TEXTS, 2))
    events = {
        clean_name(" ".join(pair)[:200]) + f" {n}": "\n".join(pair) for n, pair in enumerate(pairs)
    }
    await world.call("helper__push", {"events": events})
    await world.call("helper__open", {"rooms": {f"room-{n}": text for n, text in enumerate(TEXTS)}})
    everything = "\n".join(text[:100] for text in TEXTS)
    await world.call("helper__remember", {"text": everything})
    # The model repeats what it was asked, and the server rewrites that.
    await world.turn(f"{everything}\n{SECRET}", "hostile")
    await world.call("helper__add_note", {"text": everything})
    async with asyncio.timeout(SECONDS):
        while (await world.api("GET", "/api/pushes"))["waiting"]:
            await asyncio.sleep(0.1)


async def is_clean(page: Page) -> None:
    assert await page.evaluate("window.failures") == []
    strange = "main script, main iframe, main object, main embed, main base, main img, main style"
    assert await page.locator(strange).count() == 0
    assert await page.evaluate("({}).polluted") is None


async def test_a_hundred_hostile_texts_are_shown_as_text(world: World, browser: Browser) -> None:
    await write_texts(world)
    calls = [
        asyncio.create_task(world.call("disks__wipe", {"text": text.replace("\x00", "")}))
        for text in TEXTS[:10]
    ]
    request = await world.wait_for_request("wipe")
    ana = await sign_in(browser, world, ADMIN)
    await ana.context.add_init_script(_MARKS)
    hosts: set[str] = set()
    ana.page.on("request", lambda asked: hosts.add(asked.url.split("/")[2]))
    for path in (*SCREENS, f"/approvals/{request}"):
        await ana.open(path)
        await ana.page.locator("h1, .empty, .note").first.wait_for()
        await expect(ana.page.get_by_text(re.compile("^Loading"))).to_have_count(
            0, timeout=SECONDS * 1000
        )
        await is_clean(ana.page)
    assert hosts == {world.origin.removeprefix("http://")}
    assert [each for each in ana.complaints if "Failed to load" not in each] == []
    for each in calls:
        each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_hostile_members_and_live_servers_are_shown_as_text(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world, ADMIN)
    await ana.context.add_init_script(_MARKS)
    await fill_live_server(world)
    async with hostile_members(world):
        for path, is_complete in TALKING.items():
            await ana.open(path)
            await ana.page.locator("main .card").first.wait_for()
            await expect(ana.page.get_by_text(re.compile("^Loading"))).to_have_count(0)
            await is_clean(ana.page)
            shown = await ana.page.locator("main").inner_text()
            for hidden in "\u202e\u200b\u2066\ufeff\x1b":
                assert hidden not in shown
            words = {word for text in TEXTS for word in re.findall(r"[A-Za-z]{4,}", text[:90])[:3]}
            missing = {word for word in words if word not in shown}
            assert not (is_complete and missing), (path, missing)
            for word in ("script", "onerror"):
                assert word in shown, (path, word)
    assert ana.complaints == []


async def test_hostile_owners_and_scopes_of_accounts_are_shown_as_text(
    world: World, browser: Browser
) -> None:
    ana = await sign_in(browser, world, ADMIN)
    await ana.context.add_init_script(_MARKS)
    world.realm.more_scopes = " ".join(text.replace("\x00", "") for text in TEXTS)
    for text in TEXTS[:3]:
        who = f"person:{clean_name(text)}"
        await world.api("POST", "/api/principals", {"id": who, "kind": "person"})
        await world.api("POST", "/api/grants", {"subject": who, "target": f"{OAUTH_SERVER}/*"})
        world.keys[who] = (await world.api("POST", "/api/keys", {"principal": who}))["key"]
        await (await sign_in(browser, world, who)).connect_account()
        await ana.open("/accounts")
        await ana.page.get_by_role("row", name=who).click()
        dialog = ana.page.get_by_role("dialog")
        await expect(dialog).to_contain_text(who)
        await expect(dialog).to_contain_text("onerror=fail()")
        await is_clean(ana.page)
        await dialog.get_by_role("button", name="Disconnect").click()
        await expect(dialog).to_contain_text(who)
        await is_clean(ana.page)
    world.realm.more_scopes = ""
    assert ana.complaints == []


async def test_a_script_in_the_page_makes_no_policy_and_names_no_worker(
    world: World, browser: Browser
) -> None:
    """The console makes the one policy that there is, and it gives a constant address."""
    ana = await sign_in(browser, world)
    await ana.page.add_init_script(_RECORD_POLICIES)
    await ana.open("/approvals")
    await ana.page.get_by_role("heading", level=1).wait_for()
    policies = await ana.page.evaluate("window.policies")
    assert policies == [["comity-worker", "createScriptURL", "/console/worker.js"]]
    outcomes = await ana.page.evaluate(_ATTEMPTS)
    assert outcomes == dict.fromkeys(outcomes, "TypeError")
    assert "same policy" in outcomes


@pytest.mark.parametrize("place", range(0, 100, 9))
async def test_a_hostile_description_is_read_letter_by_letter(
    world: World, browser: Browser, place: int
) -> None:
    """The words of a description are on the page, with hidden characters made visible."""
    text = TEXTS[place]
    ana = await sign_in(browser, world)
    await ana.open(f"/tools/hostile__tool_{place:03}?tab=schema")
    shown = ana.page.get_by_role("region", name="Definition")
    await shown.wait_for()
    said = await shown.inner_text()
    for word in re.findall(r"[A-Za-z]{4,}", text)[:5]:
        assert word in said
    assert AGENT not in said
    for hidden in "\u202e\u200b\u2066\ufeff\x1b":
        assert hidden not in said
