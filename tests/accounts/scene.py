"""Gateways before a server that demands sign-ins, its authorization server, and people."""

import asyncio
import contextlib
import re
import ssl
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from comity.policy.grants import Effect, Grant
from tests.cluster.nodes import PEPPER
from tests.console.world import text_of
from tests.identity.login.scene import Browser, Response, query_of
from tests.interop.authorization import Realm, authorizing
from tests.interop.processes import Program, answers, http_server, running
from tests.support.principals import add_principals

ANA, BEN, AGENT, IDLER = "person:ana", "person:ben", "agent:ci", "agent:idler"
SECONDS = 80.0
WHOLE_LOG = 1_000_000
SERVER = "notes"
COMITY = str(Path(sys.executable).with_name("comity"))
PROTECTED_SERVER = (sys.executable, "-m", "tests.accounts.protected_server")


# Made once, because it reads the certificates of this machine.
TLS = ssl.create_default_context()


def an_http_client(headers: dict[str, str]) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(headers=headers, timeout=SECONDS, verify=TLS)


@dataclass
class AccountScene:
    """The nodes, the authorization server, the protected server, and the keys of principals."""

    origins: list[str]
    programs: list[Program]
    realm: Realm
    server: str
    keys: dict[str, str]
    store: str

    async def browser(self, person: str, node: int = 0) -> Browser:
        """A browser in which a person is signed in to the gateway."""
        browser = Browser(self.origins[node])
        done = await browser.send("POST", "/login", {"key": self.keys[person]})
        assert done.status_code == 303, done.text
        return browser

    async def connect(self, person: str, page: str = "", node: int = 0) -> Response:
        """Sign in to the server as a person with the same name there, as a browser does."""
        browser = await self.browser(person, node)
        return await self.finish(browser, await self.begin(browser, page))

    async def begin(self, browser: Browser, page: str = "") -> str:
        """Begin a sign-in. The address of the authorization server to which the browser goes."""
        path = page or f"/accounts/connect/{SERVER}"
        shown = await browser.get(path)
        assert shown.status_code == 200, (shown.status_code, shown.text)
        begun = await browser.send("POST", path)
        assert begun.status_code == 200, begun.text
        return refresh_target(begun)

    async def authorize(self, browser: Browser, url: str) -> str:
        """Approve at the authorization server. The address of the callback."""
        granted = await browser.get(url)
        assert granted.status_code == 302, granted.text
        return granted.headers["location"]

    async def finish(self, browser: Browser, url: str, person: str = "") -> Response:
        self.realm.person = person or query_of(url).get("person", self.realm.person)
        return await browser.get(await self.authorize(browser, url))

    async def call(
        self,
        principal: str,
        tool: str = "whoami",
        arguments: dict[str, Any] | None = None,
        *,
        node: int = 0,
        mode: str = "auto",
    ) -> str:
        """Call a tool of the server with the official client, and return the text."""
        async with self.client(principal, node, mode) as client:
            return text_of(await client.call_tool(f"{SERVER}__{tool}", arguments or {}))

    @asynccontextmanager
    async def client(
        self, principal: str, node: int = 0, mode: str = "auto", **more: Any
    ) -> AsyncGenerator[Client]:
        headers = {"authorization": f"Bearer {self.keys[principal]}"}
        async with an_http_client(headers) as http:
            where = streamable_http_client(f"{self.origins[node]}/mcp", http_client=http)
            async with Client(where, mode=mode, **more) as client, asyncio.timeout(SECONDS):
                yield client

    async def api(
        self, method: str, path: str, principal: str = ANA, node: int = 0
    ) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.keys[principal]}"}
        async with an_http_client(headers) as http:
            body = dict[str, str]() if method == "POST" else None
            answer = await http.request(method, f"{self.origins[node]}{path}", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

    async def sign_in_request(self, asker: str) -> str:
        """The id of the open request of kind `sign_in` of a principal, as soon as there is one."""
        async with asyncio.timeout(SECONDS):
            while True:
                found = await self.api("GET", "/api/approvals")
                for each in found["approvals"]:
                    if each["kind"] == "sign_in" and each["requester"] == asker:
                        return each["id"]
                await asyncio.sleep(0.05)

    def wait_for_server(self) -> None:
        """Wait until every node has read the lists of the server with an account."""
        for program, origin in zip(self.programs, self.origins, strict=True):
            program.wait_until(lambda origin=origin: answers(f"{origin}/ready?strict"))

    def show_no_token(self, *more: str) -> None:
        """Show that neither a log, the audit log nor the store file holds a secret of the realm.

        The secrets are its tokens, codes, verifiers and client secrets, and `more`.
        """
        kept = b""
        if self.store.startswith("sqlite:///"):
            file = Path(self.store.removeprefix("sqlite:///"))
            kept = b"".join(each.read_bytes() for each in file.parent.glob(f"{file.name}*"))
        exported = asyncio.run(self.export_audit_log())
        assert "account_connected" in exported
        assert self.realm.spent
        logs = [each.said for each in self.programs]
        assert all("DEBUG" in each for each in logs)
        for secret in {*self.realm.spent, *self.realm.private, *more}:
            assert secret.encode() not in kept
            assert secret not in exported
            assert not [each for each in logs if secret in each]

    async def export_audit_log(self) -> str:
        """The whole audit log, as the API exports it."""
        lines, cursor = list[str](), ""
        while True:
            part = await self.api("GET", f"/api/audit/export?{urlencode({'cursor': cursor})}")
            lines += part["lines"]
            cursor = part.get("next", "")
            if not cursor:
                return "\n".join(lines)


def refresh_target(page: Response) -> str:
    found = re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', page.text)
    assert found is not None, page.text
    return unescape(found[1])


GRANTS = (
    Grant(ANA, "*", "*", Effect.ALLOW),
    Grant(BEN, "tools/*", "*", Effect.ALLOW),
    Grant(AGENT, "tools/*", "*", Effect.ALLOW),
    Grant(AGENT, "account/use", f"{SERVER}/{ANA}", Effect.ALLOW),
    Grant(IDLER, "tools/*", "*", Effect.ALLOW),
)


@contextmanager
def an_account_scene(
    folder: Path,
    *,
    store: str = "",
    nats: str = "",
    nodes: int = 1,
    workers: int = 1,
    server_settings: str = "",
    tables: str = "",
    realm: dict[str, Any] | None = None,
    grants: Sequence[Grant] = (),
    command: Sequence[str] = PROTECTED_SERVER,
) -> Generator[AccountScene]:
    """Run the gateways. `grants` may name more principals.

    ORIGIN in the settings becomes the origin of the protected server.

    `command` runs the protected server, and gets its port and the issuer.
    """
    store = store or f"sqlite:///{folder / 'store.db'}"
    principals = dict.fromkeys((ANA, BEN, AGENT, IDLER, *(each.subject for each in grants)))
    keys = asyncio.run(add_principals(store, PEPPER, principals, *GRANTS, *grants))
    with contextlib.ExitStack() as stack:
        authorization = stack.enter_context(authorizing(**(realm or {})))
        server = stack.enter_context(
            http_server(lambda port: [*command, str(port), authorization.url])
        )
        programs: list[Program] = []
        for place in range(nodes):
            config = folder / f"node-{place}.toml"
            cluster = f'[cluster]\nurl = "{nats}"\nnode = "node-{place}"\n' if nats else ""
            config.write_text(f"""
[identity]
mode = "required"
[store]
url = "{store}"
{cluster}
[approvals]
client_wait = "20s"
{tables}
[[servers]]
id = "{SERVER}"
url = "{server}/mcp"
policy = {{ risk = "safe" }}
{server_settings.replace("ORIGIN", server)}
""")
            started = [COMITY, "serve", "-c", str(config), "--port", "0"]
            started += ["--workers", str(workers)] if workers > 1 else []
            environment = {"COMITY_PEPPER": PEPPER, "LOG_LEVEL": "DEBUG"}
            program = running(started, environment, kept_lines=WHOLE_LOG)
            programs.append(stack.enter_context(program))
        origins = [each.wait_for_line(r"listening on (http://\S+)").group(1) for each in programs]
        for each, origin in zip(programs, origins, strict=True):
            each.wait_until(lambda origin=origin: answers(f"{origin}/ready"))
        yield AccountScene(origins, programs, authorization, server, keys, store)
