"""Two nodes of a real gateway with real servers, and people who sign in with a real browser."""

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from comity.accounts.model import ACCOUNT_USE
from comity.approvals.model import SIGN_IN_PATH
from comity.policy.grants import Effect, Grant
from comity.sdk.topics.participant import Participant, join_topic
from tests.cli.program import EXAMPLE
from tests.cluster.nats_cluster import NatsCluster
from tests.cluster.nodes import PEPPER
from tests.cluster.postgres import Postgres
from tests.interop.authorization import Realm, authorizing
from tests.interop.peers import ROOT
from tests.interop.processes import Program, answers, http_server, running
from tests.live.end_to_end import models
from tests.support.principals import add_principals

ADMIN = "person:ana@example.org"
VIEWER = "person:ben@example.org"
AGENT = "agent:ci"
PLANNER = "agent:planner"
OAUTH_SERVER = "mail"
TOPIC = "ops"
TOPIC_SERVER = "server:disks"
REPLIES = ({"text": "The code of the door is 4711 today.", "when": "door"},)
"""What the model answers to a question about the door. Otherwise it repeats the question."""

CHROMIUM = shutil.which("chromium")
IS_BUILT = (ROOT / "src/comity/console/static/index.html").exists()
IS_CI = bool(os.environ.get("CI"))
"""There, a missing browser or console fails the tests that need it."""

NEEDS_CONSOLE = pytest.mark.skipif(
    not IS_BUILT and not IS_CI, reason="the console is not built; scripts/console builds it"
)
NEEDS_BROWSER = (
    NEEDS_CONSOLE,
    pytest.mark.skipif(
        CHROMIUM is None and not IS_CI, reason="no chromium here; scripts/setup installs it"
    ),
)
SECONDS = 40.0
"""Nothing here is measured: what has not come after this time does not come."""

APPROVAL_SECONDS = 240.0
"""How long a call waits for a person, who takes several steps of up to `SECONDS` before."""

DESK = (1280, 900)
PHONE = (390, 844)


@dataclass
class World:
    """The nodes, the keys of the principals, and the folder where the server writes its runs."""

    origins: list[str]
    keys: dict[str, str]
    folder: Path
    programs: list[Program]
    realm: Realm = field(default_factory=Realm)
    """The authorization server, where people sign in for accounts."""

    @property
    def origin(self) -> str:
        return self.origins[0]

    def runs(self, tool: str) -> int:
        """How often a dangerous tool has run."""
        file = self.folder / f"{tool}.runs"
        return len(file.read_text().splitlines()) if file.exists() else 0

    async def call(
        self, tool: str, arguments: dict[str, Any] | None = None, node: int = 0, key: str = AGENT
    ) -> str:
        """Call a tool with the official client, and return the text of its result."""
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        async with httpx2.AsyncClient(headers=headers, timeout=None) as http:
            where = streamable_http_client(f"{self.origins[node]}/mcp", http_client=http)
            async with Client(where, mode="legacy") as client, asyncio.timeout(APPROVAL_SECONDS):
                return text_of(await client.call_tool(tool, arguments or {}))

    async def api(
        self, method: str, path: str, body: dict[str, Any] | None = None, key: str = ADMIN
    ) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        async with httpx2.AsyncClient(headers=headers, timeout=SECONDS) as http:
            answer = await http.request(method, f"{self.origin}{path}", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

    async def wait_for_request(self, tool: str) -> str:
        """The id of the newest open request for a tool, as soon as there is one."""
        async with asyncio.timeout(SECONDS):
            while True:
                found = (await self.api("GET", "/api/approvals"))["approvals"]
                for each in found:
                    if each["tool"] == tool:
                        return each["id"]
                await asyncio.sleep(0.05)

    async def wait_until_connected(self, server: str) -> None:
        """Wait until the first node has the tools of a server."""
        async with asyncio.timeout(SECONDS):
            while (await self.api("GET", f"/api/servers/{server}"))["state"] != "connected":
                await asyncio.sleep(0.05)

    def member(
        self, key: str, node: int = 0, topic: str = TOPIC
    ) -> contextlib.AbstractAsyncContextManager[Participant]:
        """A program that is a member of a topic for as long as the block lasts."""
        return join_topic(self.origins[node], topic, token=self.keys[key])

    async def turn(self, text: str, conversation: str = "desk") -> dict[str, Any]:
        """Take a turn of the model, and return it when it is over."""
        begun = await self.api("POST", "/api/turns", {"text": text, "conversation": conversation})
        async with asyncio.timeout(SECONDS):
            while True:
                found = await self.api("GET", f"/api/turns/{begun['id']}?wait=5")
                if found["is_over"]:
                    return found


def text_of(result: CallToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, TextContent))


VIEW = """
[[views]]
name = "greeting"
title = "Greeting"
select = ["hostile/*"]
[[views.tools]]
tool = "example/echo"
name = "say_hello"
arguments = { message = "hello" }
[[views.tools]]
tool = "example/missing"
"""


def _settings(folder: Path, name: str, store: str, nats: str, model: str, protected: str) -> Path:
    dangerous = [
        "-m",
        "tests.interop.approving.dangerous",
        str(folder),
        "wipe",
        "erase",
        "format",
        "shred",
    ]
    config = folder / f"{name}.toml"
    config.write_text(f"""
[identity]
mode = "required"
[store]
url = "{store}"
[cluster]
url = "{nats}"
node = "{name}"
heartbeat_interval = "300ms"
dead_after = "2s"
lease_ttl = "8s"
[approvals]
client_wait = "{APPROVAL_SECONDS:.0f}s"
[[approvals.clients]]
name = "mcp"
wait = "{APPROVAL_SECONDS:.0f}s"
[[servers]]
id = "example"
command = "{EXAMPLE["command"]}"
args = {json.dumps(EXAMPLE["args"])}
policy = {{ risk = "safe" }}
[[servers]]
id = "disks"
command = {json.dumps(sys.executable)}
args = {json.dumps(dangerous)}
cwd = {json.dumps(str(ROOT))}
replicas = "single"
policy = {{ risk = "dangerous" }}
[[servers]]
id = "hostile"
command = {json.dumps(sys.executable)}
args = ["-m", "tests.console.hostile_server"]
cwd = {json.dumps(str(ROOT))}
replicas = "single"
[[servers]]
id = "broken"
command = "/bin/false"
[[servers]]
id = "helper"
command = {json.dumps(sys.executable)}
args = ["-m", "tests.console.live_server", {json.dumps(str(folder))}]
cwd = {json.dumps(str(ROOT))}
policy = {{ risk = "safe" }}
[servers.live]
enabled = ["*"]
rewrites = true
[[servers]]
id = "{OAUTH_SERVER}"
url = "{protected}/mcp"
policy = {{ risk = "safe" }}
{VIEW}
[[pushes]]
from = "helper/builds"
to = "turn"
conversation = "builds"
[[models]]
id = "main"
api = "openai"
url = "{model}/v1"
model = "model-1"
price_input = 2.5
price_output = 10.0
[turns]
principal = "{AGENT}"
[topics]
access = "public"
capabilities = ["chat", "mcp/proposal:*", "mcp/response:*"]
message_rate = 0
chat_rate = 0
[[topics.overrides]]
name = "{TOPIC}"
servers = ["disks"]
""")
    return config


@contextlib.contextmanager
def a_world(
    folder: Path, nats: NatsCluster, postgres: Postgres, nodes: int = 2
) -> Generator[World]:
    """Start the nodes. Every person and agent has a key."""
    keys = asyncio.run(
        add_principals(
            postgres.url,
            PEPPER,
            (ADMIN, VIEWER, AGENT, PLANNER),
            Grant(ADMIN, "*", "*", Effect.ALLOW),
            Grant(VIEWER, "admin/read", "*", Effect.ALLOW),
            Grant(AGENT, "tools/*", "*", Effect.ALLOW),
            Grant(AGENT, ACCOUNT_USE, f"{OAUTH_SERVER}/{ADMIN}", Effect.ALLOW),
            Grant(PLANNER, "tools/*", f"{OAUTH_SERVER}/*", Effect.ALLOW),
            Grant(PLANNER, ACCOUNT_USE, f"{OAUTH_SERVER}/{VIEWER}", Effect.ALLOW),
        )
    )
    program = str(Path(sys.executable).with_name("comity"))
    with contextlib.ExitStack() as stack:
        names = [f"node-{place + 1}" for place in range(nodes)]
        model = stack.enter_context(models(*REPLIES)).url
        realm = stack.enter_context(authorizing())
        protected = stack.enter_context(http_server(lambda port: _protected(port, realm.url)))
        urls = ",".join(nats.urls)
        configs = [_settings(folder, name, postgres.url, urls, model, protected) for name in names]
        environment = {"COMITY_PEPPER": PEPPER, "LOG_LEVEL": "INFO"}
        programs = [
            stack.enter_context(
                running([program, "serve", "-c", str(config), "--port", "0"], environment)
            )
            for config in configs
        ]
        origins = [each.wait_for_line(r"listening on (http://\S+)").group(1) for each in programs]
        for each, origin in zip(programs, origins, strict=True):
            each.wait_until(lambda origin=origin: answers(f"{origin}/ready"))
        yield World(origins, keys, folder, programs, realm)


def _protected(port: int, issuer: str) -> list[str]:
    return [sys.executable, "-m", "tests.accounts.protected_server", str(port), issuer]


def propose(member: Participant, tool: str) -> asyncio.Task[str]:
    """Propose the call of a tool, and return what comes of it."""

    async def outcome() -> str:
        given: dict[str, Any] = {"name": tool, "arguments": {}}
        proposed = await member.propose("tools/call", given, to=TOPIC_SERVER)
        return str(await proposed.result())

    return asyncio.create_task(outcome())


@contextlib.asynccontextmanager
async def filled(world: World) -> AsyncGenerator[None]:
    """Members talk and propose in a topic, and the live server has been busy."""
    done = world.folder / "filled"
    if not done.exists():
        done.touch()
        await world.call("helper__remember", {"text": "They live at the lake."})
        await world.turn("What is the code of the door?")
        await world.call("helper__push", {"events": {"build-7": "Build 7 failed."}})
        await world.call("helper__open", {"rooms": {"room": "Room"}})
        for text in ("one", "two"):
            await world.call("helper__add_note", {"text": text})
        await world.api("POST", "/api/state/helper/notes/rollback", {"checkpoint": "note-1"})
    async with world.member(AGENT) as agent, world.member(PLANNER, node=1) as planner:
        first = await planner.chat("Which disk is old?")
        await agent.chat("The first one.", reply_to=first)
        outcome = propose(agent, "shred")
        await world.wait_for_request("shred")
        yield
        outcome.cancel()
        await asyncio.gather(outcome, return_exceptions=True)


@contextlib.asynccontextmanager
async def a_browser() -> AsyncGenerator[Browser]:
    assert IS_BUILT, "the console is not built; scripts/console builds it"
    assert CHROMIUM is not None, "no chromium here; scripts/setup installs it"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Visitor:
    """A person in a browser, and what the browser complained about."""

    page: Page
    context: BrowserContext
    origin: str
    complaints: list[str]

    async def open(self, path: str) -> None:
        await self.page.goto(f"{self.origin}/console{path}")

    async def connect_account(self) -> None:
        """Sign in at the OAuth server, in a page of its own."""
        page = await self.context.new_page()
        await page.goto(f"{self.origin}{SIGN_IN_PATH}{OAUTH_SERVER}")
        await finish_sign_in(page)

    async def sees(self, text: str) -> None:
        await self.page.get_by_text(text).first.wait_for()


async def sign_in(
    browser: Browser,
    world: World,
    who: str = ADMIN,
    *,
    node: int = 0,
    size: tuple[int, int] = DESK,
    scheme: str = "light",
) -> Visitor:
    """Open a browser of one person, who signs in with an API key."""
    context = await browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    page = await context.new_page()
    page.set_default_timeout(SECONDS * 1000)
    visitor = Visitor(page, context, world.origins[node], [])
    page.on("console", lambda said: _note(visitor, said.type, said.text))
    page.on("pageerror", lambda error: visitor.complaints.append(str(error)))
    await page.goto(f"{visitor.origin}/login?next=/console/")
    await page.fill("input[name=key]", world.keys[who])
    await page.click("button")
    await page.get_by_role("navigation", name="Screens").wait_for()
    return visitor


async def finish_sign_in(page: Page) -> None:
    """Sign in on the page that explains it. The authorization server asks nothing."""
    await page.get_by_role("button", name=f"Sign in to {OAUTH_SERVER}").click()
    await page.get_by_text(f"Your account at {OAUTH_SERVER} is connected.").wait_for()
    await page.close()


def _note(visitor: Visitor, kind: str, text: str) -> None:
    if kind in ("error", "warning"):
        visitor.complaints.append(text)


def new_word() -> str:
    """A word that no other test uses."""
    return f"w{token_hex(4)}"
