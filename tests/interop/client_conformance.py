"""Comity as the client that the official suite judges: its scenarios of OAuth authorization.

The suite starts a program for each scenario, and one gateway serves them all. The program hands its
scenario to this process, which adds the server to the gateway, signs in as a browser does, calls a
tool, and answers with the exit status.
"""

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from os import kill
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from comity.accounts.messages import read_challenge, resource_metadata_urls
from comity.app.records import open_store
from comity.config.toml_writer import toml_value
from comity.identity.login.messages import claims_in
from comity.identity.login.model import BrowserSession, SignInMethod, hint_context
from comity.policy.grants import Effect, Grant
from comity.secrets.backends import open_key_services
from comity.secrets.envelope import EnvelopeSealer
from comity.storage.sqlite import SCHEME
from tests.accounts.scene import COMITY, refresh_target
from tests.cluster.nodes import PEPPER
from tests.identity.login.scene import Browser, Response
from tests.interop.peers import node, package
from tests.interop.processes import Program, answers, running
from tests.support.principals import add_principals

ANA = "person:ana"
PEPPERED = {"COMITY_PEPPER": PEPPER}
SCENARIO_SECONDS = 150.0
STEP_SECONDS = 45.0
LIST_SECONDS = 20.0
"""How long a tool may take to be listed. One scenario lists none, and waits that long."""

POLL_SECONDS = 0.05
AT_ONCE = 4
SIGN_INS = 3

NOT_SUPPORTED = {
    "auth/2025-03-26-oauth-endpoint-fallback": "guesses endpoints of an issuer without metadata, "
    "so nothing says that it checks PKCE",
    "auth/client-credentials-jwt": "an extension: a client that signs with a key of its own",
    "auth/dpop": "an extension: tokens bound to a key",
    "auth/dpop-nonce": "an extension: tokens bound to a key",
    "auth/wif-jwt-bearer": "an extension: tokens of a workload's platform",
}
"""The scenarios that are not run, each with its reason."""

WARNINGS = {
    "cimd-client-id-used": "the suite wants one public HTTPS address as the id of the client, and "
    "this gateway is reached over plain HTTP, where it registers itself",
}
"""The only checks that may give a warning, each with its reason."""

# Scenarios that only some revision or extension has run beside this one.
_BESIDE = {"2025-03-26": "2025-11-25", "extension": "2026-07-28"}

# Started by the suite with the address of its server as the last argument.
_DRIVER = """
import json, os, socket, sys
said = {
    name: os.environ.get(f"MCP_CONFORMANCE_{name.upper()}", "") for name in ("scenario", "context")
}
hub = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
hub.sendall(json.dumps({**said, "url": sys.argv[2]}).encode() + b"\\n")
answer = json.loads(hub.makefile().readline())
print(answer["said"], file=sys.stderr)
sys.exit(answer["status"])
"""


class ClientUnderTest:
    """A gateway with one person, and a server for each scenario that has begun."""

    def __init__(self, program: Program, origin: str, config: Path, key: str) -> None:
        self._program = program
        self._origin = origin
        self._config = config
        self._key = key
        self._numbers = count(1)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Play one scenario for the program at the other end."""
        asked: dict[str, str] = json.loads(await reader.readline())
        try:
            async with asyncio.timeout(3 * STEP_SECONDS):
                said, status = await self._play(**asked), 0
        except Exception as error:
            said, status = f"{type(error).__name__}: {error}", 1
        writer.write(json.dumps({"said": said, "status": status}).encode() + b"\n")
        with suppress(OSError):
            await writer.drain()
        writer.close()

    async def _play(self, scenario: str, context: str, url: str) -> str:
        server, is_client = f"scenario-{next(self._numbers)}", "client-credentials" in scenario
        known: dict[str, Any] = json.loads(context or "{}")
        if "idp_issuer" in known:
            return await _play_for_company(self._config.parent / server, url, known)
        oauth = {key: known[key] for key in ("client_id", "client_secret") if key in known}
        if oauth:
            oauth["issuer"] = await _issuer_of(url)
        if is_client:
            oauth["grant"] = "client_credentials"
        self._add(server, url, oauth)
        browser = Browser(self._origin)
        if not is_client:
            await self._until_demanded(server)
            signed_in = await browser.send("POST", "/login", {"key": self._key})
            assert signed_in.status_code == 303, signed_in.text
            await self._sign_in(browser, server)
        call = asyncio.create_task(self._call(server))
        for _ in range(SIGN_INS):
            waiting = asyncio.create_task(self._demand_of(server))
            await asyncio.wait((call, waiting), return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                waiting.cancel()
                break
            await self._sign_in(browser, waiting.result())
        return await call

    async def play_signed_in(self, server: str) -> str:
        """Call a tool of a server whose account the sign-in to the gateway gives."""
        browser = Browser(self._origin)
        signed_in = await browser.send("POST", "/login", {"key": self._key})
        assert signed_in.status_code == 303, signed_in.text
        done = await browser.get(f"/accounts/connect/{server}")
        if "is connected" not in done.text:
            raise RuntimeError(_plain(done))
        return await self._call(server)

    def _add(self, server: str, url: str, oauth: dict[str, str]) -> None:
        lines = ["[[servers]]", f'id = "{server}"', f'url = "{url}"', 'policy = { risk = "safe" }']
        if oauth:
            lines += ["[servers.oauth]"]
            lines += [f"{key} = {toml_value(value)}" for key, value in oauth.items()]
        with self._config.open("a") as file:
            file.write("\n".join([*lines, ""]))
        kill(self._program.pid, signal.SIGHUP)

    async def _until_demanded(self, server: str) -> None:
        async with asyncio.timeout(STEP_SECONDS):
            while server not in [
                each["server"] for each in (await self._api("/api/accounts"))["servers"]
            ]:
                await asyncio.sleep(POLL_SECONDS)

    async def _sign_in(self, browser: Browser, target: str) -> None:
        page = f"/accounts/connect/{target}"
        begun = await browser.send("POST", page)
        if begun.status_code != 200:
            raise RuntimeError(_plain(begun))
        granted = await browser.get(refresh_target(begun))
        if granted.status_code not in (302, 303):
            raise RuntimeError(f"authorization: {granted.status_code} {granted.text[:300]}")
        done = await browser.get(granted.headers["location"])
        if "is connected" not in done.text:
            raise RuntimeError(_plain(done))

    async def _demand_of(self, server: str) -> str:
        """The request that waits for another sign-in, or the server whose account has ended."""
        while True:
            for each in (await self._api("/api/approvals"))["approvals"]:
                if each["kind"] == "sign_in" and each["server"] == server:
                    return each["id"]
            for each in (await self._api("/api/accounts"))["accounts"]:
                if each["server"] == server and each["state"] == "sign_in_needed":
                    return server
            await asyncio.sleep(POLL_SECONDS)

    async def _call(self, server: str) -> str:
        async with self._client() as client:
            async with asyncio.timeout(LIST_SECONDS):
                while not (name := await _tool_of(server, client)):
                    await asyncio.sleep(POLL_SECONDS)
            async with asyncio.timeout(STEP_SECONDS):
                called = await client.call_tool(name, {})
            if called.is_error:
                raise RuntimeError(f"the call failed: {called.content}")
            return f"called {name}"

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[Client]:
        async with httpx2.AsyncClient(headers=self._headers, timeout=STEP_SECONDS) as http:
            where = streamable_http_client(f"{self._origin}/mcp", http_client=http)
            async with Client(where) as client:
                yield client

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"}

    async def _api(self, path: str) -> dict[str, Any]:
        async with httpx2.AsyncClient(headers=self._headers, timeout=STEP_SECONDS) as http:
            answer = await http.get(f"{self._origin}{path}")
            assert answer.status_code == 200, answer.text
            return answer.json()


async def _issuer_of(url: str) -> str:
    """The issuer of a server, as an operator reads it in the metadata."""
    async with httpx2.AsyncClient(timeout=STEP_SECONDS) as http:
        refused = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        challenge = read_challenge(refused.headers.get("www-authenticate", ""))
        for place in resource_metadata_urls(url, challenge):
            answer = await http.get(place)
            if answer.status_code == 200:
                return answer.json()["authorization_servers"][0]
    raise RuntimeError(f"{url} has no metadata")


async def _play_for_company(folder: Path, url: str, known: dict[str, Any]) -> str:
    """Play the scenario of a company's issuer, at which no page of the suite lets people sign in.

    The suite gives the ID token instead. So a gateway of its own finds a session in its store, as
    a sign-in leaves it, and does all the rest.
    """
    await asyncio.to_thread(folder.mkdir)
    store, config = f"{SCHEME}{folder / 'store.db'}", folder / "comity.toml"
    keys = await add_principals(store, PEPPER, [ANA], Grant(ANA, "*", "*", Effect.ALLOW))
    await _add_session(store, known["idp_issuer"], known["idp_id_token"])
    oauth = {"grant": "id_jag", "issuer": await _issuer_of(url)}
    oauth |= {key: known[key] for key in ("client_id", "client_secret")}
    issuer = {"issuer": known["idp_issuer"], "client_id": known["idp_client_id"]}
    lines = ['[identity]\nmode = "required"', f"[store]\nurl = {toml_value(store)}"]
    lines += ["[[identity.issuers]]", *(f"{key} = {toml_value(issuer[key])}" for key in issuer)]
    lines += ["[[servers]]", f'id = "company"\nurl = "{url}"', 'policy = { risk = "safe" }']
    lines += ["[servers.oauth]", *(f"{key} = {toml_value(oauth[key])}" for key in oauth), ""]
    await asyncio.to_thread(config.write_text, "\n".join(lines))
    with running([COMITY, "serve", "-c", str(config), "--port", "0"], PEPPERED) as program:
        found = await asyncio.to_thread(program.wait_for_line, r"listening on (http://\S+)")
        origin = found.group(1)
        await asyncio.to_thread(program.wait_until, lambda: answers(f"{origin}/ready"))
        client = ClientUnderTest(program, origin, config, keys[ANA])
        return await client.play_signed_in("company")


async def _add_session(store: str, issuer: str, id_token: str) -> None:
    """Add the session of a person who signed in with this token."""
    subject, now = str(claims_in(id_token)["sub"]), datetime.now(UTC)
    sealer = EnvelopeSealer(open_key_services(("pepper",), PEPPER.encode(), None, {}))  # pyright: ignore[reportArgumentType]
    hint = await sealer.seal(id_token.encode(), hint_context(ANA, issuer, subject))
    session = BrowserSession(
        "0123456789abcdef",
        ANA,
        SignInMethod.OPENID,
        b"",
        b"",
        rotated_at=now,
        created_at=now,
        last_seen=now,
        expires_at=now + timedelta(hours=1),
        issuer=issuer,
        subject=subject,
        hint=hint,
    )
    records = open_store(store)
    await records.open()
    try:
        await records.sessions.put(session)
    finally:
        await records.close()


async def _tool_of(server: str, client: Client) -> str:
    names = [each.name for each in (await client.list_tools()).tools]
    return next((each for each in names if each.startswith(f"{server}__")), "")


def _plain(page: Response) -> str:
    return " ".join(re.sub(r"<style.*?</style>|<[^>]+>", " ", page.text, flags=re.DOTALL).split())


@dataclass(frozen=True)
class ScenarioOutcome:
    """The checks of one scenario, and what the program and the suite said."""

    scenario: str
    passed: int
    problems: tuple[str, ...]
    said: str


async def run_scenarios(revision: str, folder: Path) -> list[ScenarioOutcome]:
    """Play the scenarios of one revision before one gateway."""
    store, config = f"{SCHEME}{folder / 'store.db'}", folder / "comity.toml"
    keys = await add_principals(store, PEPPER, [ANA], Grant(ANA, "*", "*", Effect.ALLOW))
    config.write_text(
        f'[identity]\nmode = "required"\n[store]\nurl = {toml_value(store)}\n'
        '[approvals]\nclient_wait = "20s"\n'
    )
    command = [COMITY, "serve", "-c", str(config), "--port", "0"]
    with running(command, PEPPERED) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        await asyncio.to_thread(program.wait_until, lambda: answers(f"{origin}/ready"))
        client = ClientUnderTest(program, origin, config, keys[ANA])
        async with await asyncio.start_server(client.answer, "127.0.0.1", 0) as hub:
            driver = folder / "driver.py"
            driver.write_text(_DRIVER)
            port = hub.sockets[0].getsockname()[1]
            command = f"{sys.executable} -I -S {driver} {port}"
            room = asyncio.Semaphore(AT_ONCE)

            async def run(scenario: str, version: str) -> ScenarioOutcome:
                async with room:
                    return await _run_scenario(scenario, version, command, folder / scenario)

            found = await _scenarios(revision)
            return await asyncio.gather(*(run(*each) for each in found))


async def _scenarios(revision: str) -> list[tuple[str, str]]:
    """The authorization scenarios of a revision, each with the version that it belongs to."""
    _, listed = await _suite("list", "--client")
    found = re.findall(r"^  - (auth/\S+) \[(\S+)\]$", listed, re.MULTILINE)
    chosen: list[tuple[str, str]] = []
    for name, text in found:
        versions = text.split(",")
        if name in NOT_SUPPORTED:
            continue
        if revision in versions:
            chosen.append((name, revision))
        elif len(versions) == 1 and _BESIDE.get(versions[0]) == revision:
            chosen.append((name, versions[0]))
    return chosen


async def _run_scenario(scenario: str, version: str, command: str, checks: Path) -> ScenarioOutcome:
    dated = () if version == "extension" else ("--spec-version", version)
    status, said = await _suite(
        *("client", "--command", command, "--scenario", scenario, *dated),
        *("--timeout", str(int(SCENARIO_SECONDS * 1000)), "--output-dir", str(checks)),
    )
    found = await asyncio.to_thread(_read_checks, checks)
    problems = [
        f"{each['status'].lower()}: {each['id']}: {each['description']}"
        for each in found
        if each["status"] == "FAILURE"
        or (each["status"] == "WARNING" and each["id"] not in WARNINGS)
    ]
    passed = sum(each["status"] == "SUCCESS" for each in found)
    is_warned = any(each["status"] == "WARNING" for each in found)
    if not passed or (status and not problems and not is_warned):
        problems.append(f"the suite ended with {status} after {passed} checks")
    return ScenarioOutcome(scenario, passed, tuple(problems), said)


def _read_checks(folder: Path) -> list[dict[str, Any]]:
    return [each for file in folder.glob("**/checks.json") for each in json.loads(file.read_text())]


async def _suite(*arguments: str) -> tuple[int, str]:
    suite = package("@modelcontextprotocol/conformance", "dist/index.js")
    process = await asyncio.create_subprocess_exec(
        *(node(), suite, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(2 * SCENARIO_SECONDS):
        said, _ = await process.communicate()
    return process.returncode or 0, re.sub(r"\x1b\[[0-9;]*m", "", said.decode())
