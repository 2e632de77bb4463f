"""Named attacks on the sign-in to remote servers. None succeeds, and no secret is left behind.

Most run against one gateway process before an honest server, and before hostile ones.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

import httpx2
import nats
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from nats.aio.msg import Msg

from comity.accounts import oauth_client
from comity.accounts.identity_grants import IdentityGrants
from comity.accounts.issuers import AuthorizationServers
from comity.accounts.messages import IssuerMetadata, OAuthClientCredentials
from comity.accounts.model import AccountKey, AccountPolicy, AccountTokens
from comity.accounts.oauth_client import OAuthHttpClient
from comity.accounts.pages import ACCOUNT_COOKIE
from comity.accounts.tokens import AccountTokenSource, HeldToken
from comity.app.records import RecordStores, open_store
from comity.errors import Unavailable
from comity.http.client.client import default_tls
from comity.http.client.pool import HttpConnectionPool
from comity.http.client.proxies import NO_PROXIES
from comity.identity.authentication import TokenIssuer
from comity.identity.login.messages import claims_in, header_in
from comity.identity.login.openid import OpenIdProvider
from comity.identity.login.rules import SESSION_COOKIE
from comity.identity.login.service import IdTokenExchange
from comity.identity.login.sessions import BrowserSessions
from comity.policy.grants import Effect, Grant
from comity.secrets.backends import open_key_services
from comity.secrets.envelope import EnvelopeSealer
from comity.storage import stores
from comity.toolkit.sealed_tokens import seal_token, unseal_token
from tests.accounts.hostile_server import (
    HostileAnswer,
    HostilePort,
    HostileRequest,
    HostileServer,
    a_hostile_port,
    json_answer,
    rpc_answer,
)
from tests.accounts.scene import (
    AGENT,
    ANA,
    BEN,
    IDLER,
    SERVER,
    AccountScene,
    an_account_scene,
    an_http_client,
)
from tests.accounts.test_messages import WIRE_ATTACKS
from tests.cluster.nats_cluster import a_nats_cluster
from tests.cluster.nodes import PEPPER
from tests.cluster.postgres import a_postgres
from tests.console.world import text_of
from tests.identity.login.scene import Browser, Response, query_of, write_client_secret
from tests.support.openid_provider import CLIENT as COMPANY_CLIENT
from tests.support.openid_provider import SECRET as COMPANY_SECRET
from tests.support.openid_provider import Realm, openid_provider

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

CY, WIDE, WILD = "person:cy", "agent:wide", "agent:wild"
GRANTS = (
    Grant(CY, "tools/*", "*", Effect.ALLOW),
    Grant(WIDE, "tools/*", "*", Effect.ALLOW),
    Grant(WIDE, "account/use", f"{SERVER}/*", Effect.ALLOW),
    Grant(WILD, "*", "*", Effect.ALLOW),
)
# Servers whose accounts the sign-in to Comity gives, each with its settings.
JAG, SWAP, JAG_SECRET = "jag", "swap", "secret-of-comity-at-jag"
BY_IDENTITY = {
    JAG: (
        f'grant = "id_jag", issuer = "ORIGIN", client_id = "client-{JAG}", '
        f'client_secret = "{JAG_SECRET}"'
    ),
    SWAP: 'grant = "token_exchange"',
}
# The hostile servers, each with its settings.
HOSTILE = {"evil": "", "issuer": "", "mixer": "", "live": "", "far": "", "team": "shared"}
MODES = ("legacy", "auto")


@dataclass
class AttackScene:
    """The scene, the hostile servers, and a browser of each person."""

    scene: AccountScene
    hostile: HostilePort
    company: Realm
    browsers: dict[str, Browser] = field(default_factory=dict[str, Browser])
    others: set[str] = field(default_factory=set[str])

    async def browser(self, person: str = ANA) -> Browser:
        """A new browser in which a person is signed in, with no sign-in begun."""
        if person not in self.browsers:
            self.browsers[person] = await self.scene.browser(person)
        return self.browsers[person].copy()

    async def callback(self, browser: Browser, server: str = SERVER) -> str:
        """Begin a sign-in and approve it. The address of the callback, which is not opened."""
        self.scene.realm.person = "ana"
        url = await self.scene.begin(browser, f"/accounts/connect/{server}")
        return await self.scene.authorize(browser, url)

    async def begin(self, server: str) -> Response:
        """Press the button on the page of a server, as a person does."""
        return await (await self.browser()).send("POST", f"/accounts/connect/{server}")

    async def accounts(self) -> dict[str, Any]:
        found = (await self.scene.api("GET", "/api/accounts"))["accounts"]
        return {each["id"]: (each["owner"], each["connected_at"], each["state"]) for each in found}

    @asynccontextmanager
    async def nothing_changes(self) -> AsyncGenerator[None]:
        """Show that no account came, went or changed, and that nothing reached a thief."""
        before = await self.accounts()
        yield
        assert await self.accounts() == before
        assert not self.hostile.thefts

    async def api(
        self, method: str, path: str, principal: str, body: object = None
    ) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self.scene.keys[principal]}"}
        async with an_http_client(headers) as http:
            return await http.request(method, f"{self.scene.origins[0]}{path}", json=body)

    async def call(self, principal: str, tool: str, mode: str = "auto") -> str:
        """Call a tool. The text of the result, or of the error."""
        try:
            async with self.scene.client(principal, mode=mode) as client:
                return text_of(await client.call_tool(tool, {}))
        except (MCPError, ExceptionGroup) as raised:
            return str(_innermost(raised))

    @property
    def secrets(self) -> set[str]:
        realm = self.scene.realm
        return {*realm.spent, *realm.private, *self.hostile.private}


def _innermost(error: Exception) -> MCPError:
    """The error that a task group of the client wraps."""
    if isinstance(error, ExceptionGroup):
        return _innermost(cast("ExceptionGroup[Exception]", error).exceptions[0])
    assert isinstance(error, MCPError), error
    return error


@pytest.fixture(scope="module")
def attacks(tmp_path_factory: pytest.TempPathFactory) -> Generator[AttackScene]:
    folder = tmp_path_factory.mktemp("attacks")
    with a_hostile_port() as hostile, openid_provider() as company:
        tables = company_tables(company, hostile, folder) + "".join(
            f'[[servers]]\nid = "{name}"\nurl = "{hostile[name].url}/mcp"\n'
            f'account = "{mode or "each"}"\npolicy = {{ risk = "safe" }}\n'
            for name, mode in HOSTILE.items()
        )
        # The names are another origin, at the same listener.
        far = hostile.origin.replace("127.0.0.1", "localhost")
        hostile["far"].challenge = f'Bearer resource_metadata="{far}/thief"'
        with an_account_scene(folder, tables=tables, grants=GRANTS) as scene:
            made = AttackScene(scene, hostile, company)
            asyncio.run(connect_people(made))
            yield made
            scene.show_no_token(*hostile.private, *company.issued, *made.others, JAG_SECRET)


def company_tables(company: Realm, hostile: HostilePort, folder: Path) -> str:
    """The settings of the company's issuer, and of the servers that trust it."""
    issuer = (
        f'[[identity.issuers]]\nissuer = "{company.url}"\nclient_id = "{COMPANY_CLIENT}"\n'
        f'client_secret_file = "{write_client_secret(folder)}"\n'
    )
    company.clients[hostile[JAG].url] = f"client-{JAG}"
    # It gives nothing until an attack begins.
    company.exchange = exchange_nothing
    return issuer + "".join(
        f'[[servers]]\nid = "{name}"\nurl = "{hostile[name].url}/mcp"\n'
        'policy = { risk = "safe" }\n'
        f"oauth = {{ {oauth.replace('ORIGIN', hostile[name].url)} }}\n"
        for name, oauth in BY_IDENTITY.items()
    )


def exchange_nothing(form: dict[str, str], honest: dict[str, Any]) -> Any:
    return {"error": "temporarily_unavailable"}, 503


async def connect_people(attacks: AttackScene) -> None:
    """Connect Ana and Ben at the honest server, and Ana at the hostile one with a tool."""
    for person in (ANA, BEN):
        attacks.scene.realm.person = person.partition(":")[2]
        assert "is connected" in (await attacks.scene.connect(person)).text
    browser = await attacks.browser()
    assert "is connected" in (await browser.get(await attacks.callback(browser, "live"))).text
    attacks.company.redirect_uris.append(f"{attacks.scene.origins[0]}/login/callback")
    signed_in = Browser(attacks.scene.origins[0])
    assert (await signed_in.sign_in(attacks.company)).status_code in (200, 303)
    async with asyncio.timeout(60):
        for tool in (f"{SERVER}__whoami", "live__look"):
            while await attacks.call(ANA, tool) not in ("ana", "seen"):
                await asyncio.sleep(0.1)


type Change = Callable[[HostileServer], Any]
"""Makes a document, or the changes of one, or a whole answer."""

type Attack = Callable[[AttackScene], Awaitable[None]]

ATTACKS: dict[str, Attack] = {}


def attack(attempt: Attack) -> Attack:
    name = getattr(attempt, "__name__", "").replace("_", " ")
    assert name not in ATTACKS
    ATTACKS[name] = attempt
    return attempt


def add_table[Row](attempt: Callable[[AttackScene, Row], Awaitable[None]], rows: Mapping[str, Row]):
    """Add one attack for each row."""
    for name, row in rows.items():
        assert name not in ATTACKS
        ATTACKS[name] = partial(_attempt_row, attempt, row)


async def _attempt_row[Row](
    attempt: Callable[[AttackScene, Row], Awaitable[None]], row: Row, attacks: AttackScene
) -> None:
    await attempt(attacks, row)


def show_refused(answer: Response, words: str = "") -> None:
    shown = answer.text.partition("<article>")[2] or answer.text
    assert answer.status_code >= 400, shown
    assert "is connected" not in shown
    assert words.lower() in shown.lower(), shown


def changed_query(url: str, **changes: str | None) -> str:
    fields = {**query_of(url), **changes}
    kept = {name: value for name, value in fields.items() if value is not None}
    return f"{url.partition('?')[0]}?{urlencode(kept)}"


FOREIGN = "did not begin in this browser"


# State, code and cookie.


async def change_the_answer(attacks: AttackScene, changes: dict[str, str | None]) -> None:
    async with attacks.nothing_changes():
        browser = await attacks.browser()
        url = await attacks.callback(browser)
        redeemed = attacks.scene.realm.grants.count("authorization_code")
        show_refused(await browser.get(changed_query(url, **changes)))
        assert attacks.scene.realm.grants.count("authorization_code") == redeemed


add_table(
    change_the_answer,
    {
        "the state is missing": {"state": None},
        "the state is empty": {"state": ""},
        "the state is a guess": {"state": "A" * 43},
        "the state is beyond ASCII": {"state": "\u00e9" * 20},
        "the answer is of another issuer": {"iss": "https://evil.example"},
        "the answer is of the issuer with a slash": {"iss": "http://127.0.0.1/"},
        "the answer has no code": {"code": None},
        "the answer has an endless code": {"code": "c" * 5_000},
        "the answer is an error with a code": {"error": "access_denied"},
        "the answer has too many parameters": {f"a{number}": "1" for number in range(20)},
    },
)


@attack
async def the_error_of_an_answer_is_markup(attacks: AttackScene) -> None:
    browser = await attacks.browser()
    url = await attacks.callback(browser)
    markup = "<script>alert(1)</script>"
    answer = await browser.get(changed_query(url, error=markup, error_description=markup))
    show_refused(answer, "refused or cancelled")
    assert "<script" not in answer.text


@attack
async def the_state_is_of_another_flow_of_the_same_person(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        browser = await attacks.browser()
        first = await attacks.callback(browser)
        await attacks.callback(browser)
        show_refused(await browser.get(first), FOREIGN)


@attack
async def an_answer_is_replayed(attacks: AttackScene) -> None:
    browser = await attacks.browser()
    url = await attacks.callback(browser)
    thief = browser.copy()
    assert "is connected" in (await browser.get(url)).text
    async with attacks.nothing_changes():
        show_refused(await thief.get(url), "was completed before")


@attack
async def the_state_is_replayed_with_a_new_code(attacks: AttackScene) -> None:
    browser = await attacks.browser()
    begun = await attacks.scene.begin(browser)
    thief = browser.copy()
    assert "is connected" in (await attacks.scene.finish(browser, begun)).text
    async with attacks.nothing_changes():
        again = await attacks.scene.authorize(thief, begun)
        show_refused(await thief.get(again), "was completed before")


@attack
async def a_code_of_another_flow_is_injected(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        victim, thief = await attacks.browser(ANA), await attacks.browser(BEN)
        code = query_of(await attacks.callback(thief))["code"]
        url = await attacks.callback(victim)
        # The authorization server compares the verifier of the victim with another challenge.
        show_refused(await victim.get(changed_query(url, code=code)), "did not accept")


@attack
async def wrong_codes_make_the_gateway_register_again_and_again(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        known = set(attacks.scene.realm.clients)
        for _ in range(3):
            browser = await attacks.browser()
            url = await attacks.callback(browser)
            show_refused(await browser.get(changed_query(url, code="wrong")), "did not accept")
        assert set(attacks.scene.realm.clients) == known


@attack
async def the_callback_has_no_cookie(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        browser = await attacks.browser()
        url = await attacks.callback(browser)
        del browser.jar[ACCOUNT_COOKIE]
        show_refused(await browser.get(url), FOREIGN)


@attack
async def the_callback_has_the_cookie_of_another_person(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        victim, thief = await attacks.browser(ANA), await attacks.browser(BEN)
        url = await attacks.callback(thief)
        victim.jar[ACCOUNT_COOKIE] = thief.jar[ACCOUNT_COOKIE]
        show_refused(await victim.get(url), "another person began")


@attack
async def the_cookie_is_forged(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        browser = await attacks.browser()
        url = await attacks.callback(browser)
        sealed = base64.urlsafe_b64decode(browser.jar[ACCOUNT_COOKIE])
        forged = sealed.replace(ANA.encode(), BEN.encode())
        assert forged != sealed
        for each in (forged, sealed[:-1], sealed[:32], b"", b"x" * 3_000):
            browser.jar[ACCOUNT_COOKIE] = base64.urlsafe_b64encode(each).decode()
            show_refused(await browser.copy().get(url), FOREIGN)


@attack
async def the_cookie_has_expired(attacks: AttackScene) -> None:
    browser = await attacks.browser()
    key = hmac.digest(PEPPER.encode(), b"account sign-in", hashlib.sha256)
    url = await attacks.callback(browser)
    words = unseal_token(key, browser.jar[ACCOUNT_COOKIE])
    assert words is not None
    *rest, expires = words
    async with attacks.nothing_changes():
        late = browser.copy()
        late.jar[ACCOUNT_COOKIE] = seal_token(key, *rest, str(int(expires) - 601))
        show_refused(await late.get(url), FOREIGN)
    browser.jar[ACCOUNT_COOKIE] = seal_token(key, *rest, str(int(expires) - 300))
    assert "is connected" in (await browser.get(url)).text


@attack
async def the_cookie_is_of_the_flow_of_another_server(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        honest, hostile = await attacks.browser(), await attacks.browser()
        url = await attacks.callback(honest)
        await attacks.callback(hostile, "live")
        show_refused(await hostile.get(url), FOREIGN)


@attack
async def the_answer_comes_to_the_address_of_another_server(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        browser = await attacks.browser()
        url = await attacks.callback(browser)
        assert f"/{SERVER}?" in url
        show_refused(await browser.get(url.replace(f"/{SERVER}?", "/live?")), FOREIGN)


@attack
async def the_cookie_is_that_of_the_session(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        browser = await attacks.browser()
        url = await attacks.callback(browser)
        browser.jar[ACCOUNT_COOKIE] = browser.jar[SESSION_COOKIE]
        show_refused(await browser.get(url), FOREIGN)


@attack
async def the_answer_is_posted_or_only_looked_at(attacks: AttackScene) -> None:
    browser = await attacks.browser()
    url = await attacks.callback(browser)
    async with attacks.nothing_changes():
        for method in ("POST", "HEAD", "PUT"):
            assert (await browser.copy().send(method, url)).status_code == 405
    # A program that only looked at the link did not use it up.
    assert "is connected" in (await browser.get(url)).text


# Account fixation, and links of other people.


@attack
async def an_attacker_begins_and_the_victim_finishes(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        thief, victim = await attacks.browser(BEN), await attacks.browser(ANA)
        show_refused(await victim.get(await attacks.callback(thief)), FOREIGN)


@attack
async def the_victim_begins_and_an_attacker_finishes(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        thief, victim = await attacks.browser(BEN), await attacks.browser(ANA)
        url = await attacks.callback(victim)
        show_refused(await thief.get(url), FOREIGN)
        thief.jar[ACCOUNT_COOKIE] = victim.jar[ACCOUNT_COOKIE]
        show_refused(await thief.get(url), "another person began")


@attack
async def a_stranger_finishes_without_a_session(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        browser = await attacks.browser()
        url = await attacks.callback(browser)
        del browser.jar[SESSION_COOKIE]
        # Without the session there is only a page that loads the address once more.
        shown = await browser.get(url)
        assert "One moment" in shown.text
        show_refused(await browser.get(f"{url}&reloaded=1"), "Sign in to Comity first")


@asynccontextmanager
async def a_waiting_call(attacks: AttackScene, person: str) -> AsyncGenerator[str]:
    """A call that waits for a sign-in of its person. The id of its request."""
    waiting = asyncio.create_task(attacks.scene.call(person, mode="legacy"))
    try:
        yield await attacks.scene.sign_in_request(person)
        assert not waiting.done()
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@attack
async def the_link_of_one_person_is_opened_by_others(attacks: AttackScene) -> None:
    async with attacks.nothing_changes(), a_waiting_call(attacks, CY) as request:
        path = f"/accounts/connect/{request}"
        for person in (ANA, BEN):
            browser = await attacks.browser(person)
            show_refused(await browser.get(path))
            show_refused(await browser.send("POST", path))
            assert ACCOUNT_COOKIE not in browser.jar
        # A stranger is sent to the login of this gateway, and comes back to this page only.
        stranger = Browser(attacks.scene.origins[0])
        sent = await stranger.get(path)
        assert (sent.status_code, query_of(sent.headers["location"])) == (303, {"next": path})
        show_refused(await stranger.send("POST", path), "Sign in to Comity first")
        for principal in (CY, AGENT):
            bearer = f"Bearer {attacks.scene.keys[principal]}"
            show_refused(await stranger.send("POST", path, authorization=bearer))


@attack
async def a_sign_in_request_is_approved_without_a_sign_in(attacks: AttackScene) -> None:
    async with attacks.nothing_changes(), a_waiting_call(attacks, CY) as request:
        for principal in (ANA, CY, BEN, AGENT):
            for body in (
                {"decision": "accept"},
                {"decision": "accept", "content": {"signed_in": True}},
                {"decision": "accept", "content": "yes"},
            ):
                told = await attacks.api("POST", f"/api/approvals/{request}", principal, body)
                assert told.status_code >= 400, told.text
        listed = (await attacks.scene.api("GET", "/api/approvals"))["approvals"]
        assert [each["state"] for each in listed if each["id"] == request] == ["pending"]


@attack
async def an_agent_key_is_used_as_a_login(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        browser = Browser(attacks.scene.origins[0])
        await browser.send("POST", "/login", {"key": attacks.scene.keys[AGENT]})
        path = f"/accounts/connect/{SERVER}"
        assert (await browser.get(path)).status_code != 200
        show_refused(await browser.send("POST", path))


@attack
async def the_shared_account_is_connected_by_a_person_without_the_grant(
    attacks: AttackScene,
) -> None:
    async with attacks.nothing_changes():
        browser = await attacks.browser(BEN)
        for method in ("GET", "POST"):
            answer = await browser.send(method, "/accounts/connect/team")
            show_refused(answer, "needs the grant")


@attack
async def a_person_or_agent_disconnects_the_account_of_another(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        ids = [id for id, (owner, *_) in (await attacks.accounts()).items() if owner == ANA]
        for principal in (BEN, AGENT, WIDE, IDLER):
            for id in ids:
                told = await attacks.api("POST", f"/api/accounts/{id}/disconnect", principal, {})
                assert told.status_code in (403, 404), told.text


@attack
async def a_person_lists_the_accounts_of_others(attacks: AttackScene) -> None:
    for principal, owners in ((BEN, [BEN]), (CY, []), (AGENT, []), (WIDE, [])):
        found = (await attacks.api("GET", "/api/accounts", principal)).json()["accounts"]
        assert [each["owner"] for each in found] == owners


# Agents.


async def call_as_an_agent(attacks: AttackScene, row: tuple[str, str]) -> None:
    agent, why = row
    for mode in MODES:
        assert why in await attacks.call(agent, f"{SERVER}__whoami", mode)


add_table(
    call_as_an_agent,
    {
        "an agent without a grant uses an account": (IDLER, "may use no account"),
        "an agent with every other grant uses an account": (WILD, "may use no account"),
        "an agent with the accounts of all uses one of them": (WIDE, "and it must be one"),
    },
)


@attack
async def an_agent_with_one_account_uses_it_at_another_server(attacks: AttackScene) -> None:
    before = len(attacks.hostile["live"].requests_to("/mcp"))
    for mode in MODES:
        assert "may use no account" in await attacks.call(AGENT, "live__look", mode)
    shown = attacks.hostile["live"].requests_to("/mcp")[before:]
    assert not [each for each in shown if '"tools/call"' in each.body]


# Pages: forged requests, frames, redirects.


async def forge_the_form(attacks: AttackScene, headers: dict[str, str | None]) -> None:
    async with attacks.nothing_changes():
        browser = await attacks.browser()
        answer = await browser.send("POST", f"/accounts/connect/{SERVER}", None, **headers)
        show_refused(answer)
        assert ACCOUNT_COOKIE not in browser.jar


add_table(
    forge_the_form,
    {
        "another site posts the form": {"origin": "https://evil.example"},
        "another port posts the form": {"origin": "http://127.0.0.1:1"},
        "a page without an origin posts the form": {"origin": None},
        "a sandboxed frame posts the form": {"origin": "null"},
        "another site posts the form through a redirect": {"sec_fetch_site": "cross-site"},
        "a page of the same site posts the form": {"sec_fetch_site": "same-site"},
        "a script posts the form as JSON": {"content_type": "application/json"},
        "the form comes to a rebound name": {
            "host": "evil.example",
            "origin": "http://evil.example",
        },
    },
)


@attack
async def a_link_begins_a_sign_in(attacks: AttackScene) -> None:
    browser, path = await attacks.browser(), f"/accounts/connect/{SERVER}"
    shown = await browser.get(path)
    assert "<form" in shown.text
    assert "http-equiv" not in shown.text
    assert ACCOUNT_COOKIE not in browser.jar
    assert (await browser.send("HEAD", path)).status_code == 405


@attack
async def the_page_is_shown_in_a_frame(attacks: AttackScene) -> None:
    browser = await attacks.browser()
    begun = await browser.send("POST", f"/accounts/connect/{SERVER}")
    for page in (await browser.get(f"/accounts/connect/{SERVER}"), begun):
        policy = page.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "default-src 'none'" in policy
        assert page.headers["x-frame-options"] == "DENY"
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["referrer-policy"] in ("same-origin", "no-referrer")
    attributes = browser.attributes[ACCOUNT_COOKIE].lower()
    for word in ("httponly", "secure", "samesite=lax", "path=/"):
        assert word in attributes
    assert "domain" not in attributes


async def redirect_after_the_login(attacks: AttackScene, target: str) -> None:
    browser = Browser(attacks.scene.origins[0])
    done = await browser.send("POST", "/login", {"key": attacks.scene.keys[ANA], "next": target})
    assert done.status_code == 303, done.text
    place = done.headers["location"]
    assert place.startswith("/")
    assert not place.startswith(("//", "/\\"))
    assert "evil" not in urlsplit(place).netloc


add_table(
    redirect_after_the_login,
    {
        "the login sends on to another site": "https://evil.example/accounts/connect/notes",
        "the login sends on to a bare host": "//evil.example/",
        "the login sends on past a backslash": "/\\evil.example/",
        "the login sends on to a script": "javascript:alert(1)",
    },
)


@attack
async def the_name_in_a_link_is_markup_or_a_path(attacks: AttackScene) -> None:
    async with attacks.nothing_changes():
        browser = await attacks.browser()
        for name in ("%3Cscript%3E", "..%2F..%2Fapi", "/evil.example", "a" * 500, "", "nothing"):
            answer = await browser.get(f"/accounts/connect/{name}")
            show_refused(answer)
            assert "<script" not in answer.text


# Metadata of hostile servers.


async def show_discovery_fails(attacks: AttackScene, server: str = "evil") -> None:
    async with attacks.nothing_changes():
        begun = await attacks.begin(server)
        show_refused(begun)
        assert "http-equiv" not in begun.text
        assert not attacks.hostile[server].requests_to("/token")


async def name_an_issuer(attacks: AttackScene, issuer: str) -> None:
    evil = attacks.hostile["evil"]
    evil.reset()
    changed = {**evil.resource_document(), "authorization_servers": [issuer]}
    evil.resource = lambda _: json_answer(changed)
    await show_discovery_fails(attacks)


add_table(
    name_an_issuer,
    {
        "the issuer is the metadata service of a cloud": "https://169.254.169.254/latest",
        "the issuer is the metadata service without TLS": "http://169.254.169.254/latest",
        "the issuer is a metadata service by name": "https://metadata.google.internal/",
        "the issuer is a private address": "https://10.0.0.1",
        "the issuer is another private address": "https://192.168.1.1:8443/admin",
        "the issuer is a private IPv6 address": "https://[fd00::1]/",
        "the issuer is a link-local IPv6 address": "https://[fe80::1]/",
        "the issuer is a mapped IPv4 address": "https://[::ffff:10.0.0.1]/",
        "the issuer is a decimal address": "https://2852039166/",
        "the issuer is a hexadecimal address": "https://0xa9fea9fe/",
        "the issuer is an octal address": "https://0251.0376.0251.0376/",
        "the issuer is a short loopback address": "https://127.1/",
        "the issuer is the unspecified address": "https://0.0.0.0/",
        "the issuer is a name that mirrors an address": "https://10.0.0.1.nip.io/",
        "the issuer is a name of the own network": "https://intranet/",
        "the issuer is a public name without TLS": "http://login.example.com/",
        "the issuer has a user": "http://127.0.0.1:1@evil.example/",
        "the issuer is a file": "file:///etc/passwd",
        "the issuer speaks another protocol": "gopher://127.0.0.1:25/",
    },
)


async def change_the_resource(attacks: AttackScene, make: Change) -> None:
    evil = attacks.hostile["evil"]
    evil.reset()
    made = make(evil)
    answer = made if isinstance(made, HostileAnswer) else json_answer(made)
    evil.resource = lambda _: answer
    await show_discovery_fails(attacks)


def resource_with(**changes: object) -> Change:
    return lambda evil: {**evil.resource_document(), **changes}


RESOURCES: dict[str, Change] = {
    "the metadata is that of another resource": resource_with(resource="https://other.example"),
    "the metadata is that of a neighbour": lambda evil: {
        **evil.resource_document(),
        "resource": f"{evil.origin}/live/mcp",
    },
    "the metadata redirects to an honest server": lambda evil: HostileAnswer(
        302, headers={"location": f"{evil.origin}/thief"}
    ),
    "the metadata is a page": lambda _: HostileAnswer(200, b"<html>"),
    "the metadata is ten megabytes": lambda _: HostileAnswer(200, b" " * 10_000_000),
    "the metadata is nested without end": lambda _: HostileAnswer(200, b'{"a":' * 40_000),
}
add_table(change_the_resource, RESOURCES)


async def change_the_issuer(attacks: AttackScene, make: Change) -> None:
    evil = attacks.hostile["evil"]
    evil.reset()
    made = make(evil)
    if isinstance(made, HostileAnswer):
        evil.issuer = lambda _: made
    else:
        evil.issuer_changes = made
    await show_discovery_fails(attacks)


ISSUERS: dict[str, Change] = {
    "the issuer says that it is another one": lambda _: {"issuer": "https://login.example"},
    "the issuer says that it is a neighbour": lambda evil: {"issuer": f"{evil.origin}/live"},
    "the issuer has no PKCE": lambda _: {"code_challenge_methods_supported": None},
    "the issuer has only plain PKCE": lambda _: {"code_challenge_methods_supported": ["plain"]},
    "the sign-in page is a script": lambda _: {"authorization_endpoint": "javascript:alert(1)"},
    "the sign-in page is data": lambda _: {"authorization_endpoint": "data:text/html,x"},
    "the sign-in page has another scheme": lambda _: {"authorization_endpoint": "ftp://a/b"},
    "the sign-in page breaks out of the attribute": lambda _: {
        "authorization_endpoint": 'http://a/"><script>alert(1)</script> '
    },
    "the token endpoint is private": lambda _: {"token_endpoint": "gopher://10.0.0.1/"},
    "the issuer redirects to another": lambda evil: HostileAnswer(
        307, headers={"location": f"{evil.origin}/thief"}
    ),
    "the metadata of the issuer is a list": lambda _: json_answer([1]),
    "registration is at the metadata service": lambda _: {
        "registration_endpoint": "http://169.254.169.254/"
    },
    "registration is refused with markup": lambda _: {"registration_endpoint": None},
}
add_table(change_the_issuer, ISSUERS)


@attack
async def a_registration_names_another_redirect_address(attacks: AttackScene) -> None:
    evil = attacks.hostile["evil"]
    evil.reset()
    evil.registration = lambda _: json_answer(
        {"client_id": "a", "redirect_uris": [f"{evil.origin}/thief"]}, 201
    )
    await show_discovery_fails(attacks)


@attack
async def a_quote_in_the_sign_in_address_ends_the_attribute(attacks: AttackScene) -> None:
    tokens = attacks.hostile["issuer"]
    tokens.reset()
    tokens.issuer_changes = {"authorization_endpoint": f"{tokens.url}/authorize?a='\"><script>"}
    begun = await attacks.begin("issuer")
    assert begun.status_code == 200
    assert "<script" not in begun.text


@attack
async def a_challenge_points_to_another_origin(attacks: AttackScene) -> None:
    await show_discovery_fails(attacks, "far")
    assert not attacks.hostile["far"].requests_to("/register")


# Mix-up.


async def mix_up(attacks: AttackScene, *, sends_issuer: bool) -> None:
    """Let a hostile issuer send the person to the honest one, and wait for the code."""
    mixer, realm = attacks.hostile["mixer"], attacks.scene.realm
    known = next(iter(realm.clients))
    mixer.issuer_changes = {
        "authorization_endpoint": f"{realm.url}/authorize",
        "authorization_response_iss_parameter_supported": False,
    }
    mixer.registration = lambda request: json_answer(
        {**json.loads(request.body), "client_id": known}, 201
    )
    async with attacks.nothing_changes():
        browser = await attacks.browser()
        begun = await attacks.scene.begin(browser, "/accounts/connect/mixer")
        assert begun.startswith(f"{realm.url}/authorize?")
        granted = await browser.get(begun)
        if granted.status_code == 302:
            issuer = {"iss": realm.url} if sends_issuer else {}
            show_refused(await browser.get(changed_query(granted.headers["location"], **issuer)))
        assert not mixer.requests_to("/token")


@attack
async def two_issuers_are_mixed_up(attacks: AttackScene) -> None:
    await mix_up(attacks, sends_issuer=False)


@attack
async def two_issuers_are_mixed_up_and_the_honest_one_says_who_it_is(attacks: AttackScene) -> None:
    # The honest issuer accepts every redirect address, as one with open registration may.
    for client in attacks.scene.realm.clients.values():
        uris: list[str] = client.metadata["redirect_uris"]
        here = [each.replace(f"/{SERVER}", "/mixer") for each in uris]
        uris += [each for each in here if each not in uris]
    await mix_up(attacks, sends_issuer=True)


@attack
async def an_issuer_keeps_back_its_name_that_it_promised(attacks: AttackScene) -> None:
    live = attacks.hostile["live"]
    async with attacks.nothing_changes():
        browser = await attacks.browser()
        live.sends_issuer, before = False, len(live.requests_to("/token"))
        show_refused(await browser.get(await attacks.callback(browser, "live")), "another issuer")
        assert len(live.requests_to("/token")) == before
    live.reset()


# Hostile token endpoints.


async def redeem_a_code(attacks: AttackScene, answer: HostileAnswer) -> None:
    tokens = attacks.hostile["issuer"]
    tokens.reset()

    def give(request: HostileRequest) -> HostileAnswer:
        tokens.give_token(request)
        return answer

    tokens.token, before = give, len(tokens.requests_to("/token"))
    async with attacks.nothing_changes():
        browser = await attacks.browser()
        refused = await browser.get(await attacks.callback(browser, "issuer"))
        show_refused(refused)
        assert "hidden" not in refused.text
        # A code is sent once, and never to the place of a redirect.
        assert len(tokens.requests_to("/token")) == before + 1


GOOD = {"access_token": "hidden-access", "token_type": "Bearer"}

add_table(
    redeem_a_code,
    {
        "the token endpoint redirects with a GET": HostileAnswer(
            302, headers={"location": "/thief"}
        ),
        "the token endpoint redirects with the form": HostileAnswer(
            307, headers={"location": "/thief"}
        ),
        "the token endpoint redirects for ever": HostileAnswer(
            308, headers={"location": "/issuer/token"}
        ),
        "the token endpoint answers with a page": HostileAnswer(200, b"<html>hidden</html>"),
        "the token endpoint answers with ten megabytes": HostileAnswer(200, b" " * 10_000_000),
        "the token endpoint answers with nothing": HostileAnswer(200),
        "the token is bound to a proof": json_answer({**GOOD, "token_type": "DPoP"}),
        "the token has no type": json_answer({"access_token": "hidden-access"}),
        "the token holds a line break": json_answer({**GOOD, "access_token": "hidden\r\nx: y"}),
        "the token is beyond ASCII": json_answer({**GOOD, "access_token": "hidden\u00e9"}),
        "the token is an object": json_answer({**GOOD, "access_token": {"hidden": 1}}),
        "the lifetime is no token": json_answer({"token_type": "Bearer", "expires_in": 10**400}),
        "the error tells a secret": json_answer(
            {"error": "server_error", "error_description": "hidden-access"}, 500
        ),
        "the error is a secret": json_answer({"error": "hidden access <b>"}, 400),
    },
)


# Calls at a hostile server that has an account.


@asynccontextmanager
async def a_tool(attacks: AttackScene, answer: Callable[[HostileRequest], HostileAnswer]):
    live = attacks.hostile["live"]
    live.tool = answer
    try:
        yield live
    finally:
        live.reset()


def with_token(request: HostileRequest) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": f"you sent {request.shown_token}"}]}


@attack
async def a_server_echoes_the_token_in_a_result(attacks: AttackScene) -> None:
    # It is the server's own token, and it may tell it to its callers. No record keeps it.
    async with a_tool(attacks, lambda each: rpc_answer(json.loads(each.body), with_token(each))):
        for mode in MODES:
            await attacks.call(ANA, "live__look", mode)


@attack
async def a_server_echoes_the_token_in_an_error(attacks: AttackScene) -> None:
    def fail(request: HostileRequest) -> HostileAnswer:
        error = {"code": -32000, "message": f"bad token {request.shown_token}"}
        base = {"jsonrpc": "2.0", "id": json.loads(request.body)["id"]}
        return json_answer({**base, "error": error})

    async with a_tool(attacks, fail):
        for mode in MODES:
            await attacks.call(ANA, "live__look", mode)


@attack
async def a_server_echoes_the_token_in_a_refusal(attacks: AttackScene) -> None:
    def fail(request: HostileRequest) -> HostileAnswer:
        token = request.shown_token
        return HostileAnswer(500, token.encode(), {"x-token": token})

    async with a_tool(attacks, fail) as live:
        for mode in MODES:
            told = await attacks.call(ANA, "live__look", mode)
            assert not [secret for secret in live.private if secret in told]


@attack
async def a_server_refuses_every_token_without_end(attacks: AttackScene) -> None:
    def refuse(request: HostileRequest) -> HostileAnswer:
        return HostileAnswer(401, headers={"www-authenticate": 'Bearer error="invalid_token"'})

    async with a_tool(attacks, refuse) as live:
        calls, refreshes = len(live.requests), len(live.requests_to("/token"))
        told = await attacks.call(ANA, "live__look", "legacy")
        assert "401" in told
        assert len(live.requests_to("/token")) - refreshes == 1
        assert len(live.requests) - calls < 15


@attack
async def a_server_demands_more_scopes_without_end(attacks: AttackScene) -> None:
    def refuse(request: HostileRequest) -> HostileAnswer:
        words = " ".join(f"s{number}" for number in range(300))
        challenge = f'Bearer error="insufficient_scope", scope="{words}"'
        return HostileAnswer(403, headers={"www-authenticate": challenge})

    async with a_tool(attacks, refuse) as live:
        before = len(live.requests)
        waiting = asyncio.create_task(attacks.call(ANA, "live__look", "legacy"))
        await attacks.scene.sign_in_request(ANA)
        found = (await attacks.scene.api("GET", "/api/accounts"))["accounts"]
        (account,) = (each for each in found if each["server"] == "live")
        assert len(account["missing_scopes"]) <= 100
        assert len(live.requests) - before < 15
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@attack
async def a_server_names_another_issuer_before_a_refresh(attacks: AttackScene) -> None:
    live, evil = attacks.hostile["live"], attacks.hostile["evil"]
    evil.reset()
    changed = {**live.resource_document(), "authorization_servers": [evil.url]}
    live.resource = lambda _: json_answer(changed)
    live.valid = set()
    live.challenge = 'Bearer error="invalid_token"'
    assert await attacks.call(ANA, "live__look") == "seen"
    live.reset()
    assert not evil.requests_to("/token")


@attack
async def a_refresh_gives_fewer_scopes_and_no_refresh_token(attacks: AttackScene) -> None:
    live = attacks.hostile["live"]
    live.token = lambda request: live.give_token(request, scope="tools", refresh_token=None)
    live.valid = set()
    assert await attacks.call(ANA, "live__look") == "seen"
    found = (await attacks.scene.api("GET", "/api/accounts"))["accounts"]
    (account,) = (each for each in found if each["server"] == "live")
    assert account["scopes"] == ["tools"]
    assert account["is_refreshable"]
    live.reset()


@attack
async def a_refresh_gives_a_token_with_a_line_break(attacks: AttackScene) -> None:
    live = attacks.hostile["live"]
    live.token = lambda request: live.give_token(request, access_token="a\r\nx-admin: 1")
    before, live.valid = len(live.requests), set()
    assert "malformed token" in await attacks.call(ANA, "live__look")
    assert not [each for each in live.requests[before:] if "x-admin" in each.headers]
    live.reset()
    assert await attacks.call(ANA, "live__look") == "seen"


@attack
async def fifty_calls_come_with_an_expired_token(attacks: AttackScene) -> None:
    live = attacks.hostile["live"]
    before, live.valid = len(live.requests_to("/token")), set()
    async with attacks.scene.client(ANA) as client:
        calls = (client.call_tool("live__look", {}) for _ in range(50))
        assert {text_of(each) for each in await asyncio.gather(*calls)} == {"seen"}
    assert len(live.requests_to("/token")) == before + 1


@attack
async def the_key_of_a_client_reaches_a_server(attacks: AttackScene) -> None:
    for mode in MODES:
        assert await attacks.call(ANA, "live__look", mode) == "seen"
    shown = [str(each) for each in attacks.hostile.requests]
    assert shown
    for key in attacks.scene.keys.values():
        assert not [each for each in shown if key in each]


@attack
async def the_token_of_a_server_reaches_its_client(attacks: AttackScene) -> None:
    received = list[str]()

    async def keep(answer: httpx2.Response) -> None:
        received.append(f"{answer.headers} {(await answer.aread()).decode()}")

    headers = {"authorization": f"Bearer {attacks.scene.keys[ANA]}"}
    for mode in MODES:
        async with an_http_client(headers) as http:
            place = f"{attacks.scene.origins[0]}/mcp"
            if mode == "auto":
                http.event_hooks["response"].append(keep)
            transport = streamable_http_client(place, http_client=http)
            async with Client(transport, mode=mode) as client:
                for tool in (f"{SERVER}__whoami", "live__look"):
                    received.append(str(await client.call_tool(tool, {})))
    assert len(received) > 4
    assert not [secret for secret in attacks.secrets for each in received if secret in each]


@attack
async def a_token_is_requested_for_another_resource(attacks: AttackScene) -> None:
    assert set(attacks.scene.realm.resources) == {f"{attacks.scene.server}/mcp"}
    for name in ("live", "issuer"):
        server = attacks.hostile[name]
        forms = [each.form for each in server.requests_to("/token")]
        assert {each["resource"] for each in forms} == {f"{server.url}/mcp"}
        for form in forms:
            assert len(form.get("code_verifier", "x" * 43)) == 43


# Leaks.


async def read_a_list(attacks: AttackScene, path: str) -> None:
    answer = await attacks.api("GET", path, ANA)
    assert answer.status_code == 200, answer.text
    assert not [secret for secret in attacks.secrets if secret in answer.text]


add_table(
    read_a_list,
    {
        "a viewer looks for tokens among the accounts": "/api/accounts",
        "a viewer looks for tokens in the audit log": "/api/audit",
        "a viewer looks for tokens in the settings": "/api/config",
        "a viewer looks for tokens among the servers": "/api/servers",
        "a viewer looks for tokens among the requests": "/api/approvals",
        "a viewer looks for tokens in the metrics": "/metrics",
        "a viewer looks for tokens in the description of health": "/api/health",
        "a viewer looks for tokens among the keys": "/api/secrets",
        "a viewer looks for tokens in the overview": "/api/overview",
    },
)


type StoreChange = tuple[str, dict[str, str]]
"""A statement, and its parameters."""


def a_sealer(pepper: str = PEPPER) -> EnvelopeSealer:
    return EnvelopeSealer(open_key_services(("pepper",), pepper.encode(), None, {}))  # pyright: ignore[reportArgumentType]


@asynccontextmanager
async def a_copied_store(
    attacks: AttackScene, change: StoreChange | None = None
) -> AsyncGenerator[RecordStores]:
    """A copy of the store, which a thief has changed."""
    file = Path(attacks.scene.store.removeprefix("sqlite:///"))
    copy = file.with_name("stolen.db")
    with (
        contextlib.closing(sqlite3.connect(file)) as origin,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        origin.backup(target)
        if change is not None:
            assert target.execute(*change).rowcount
            target.commit()
    records = open_store(f"sqlite:///{copy}")
    await records.open()
    try:
        yield records
    finally:
        await records.close()
        for each in copy.parent.glob(f"{copy.name}*"):
            each.unlink()


@asynccontextmanager
async def a_stolen_store(
    attacks: AttackScene, change: StoreChange | None = None, pepper: str = PEPPER
) -> AsyncGenerator[Callable[[str], Awaitable[AccountTokens | None]]]:
    """Read the accounts of a copy of the store, which a thief has changed."""
    async with a_copied_store(attacks, change) as records:
        source = AccountTokenSource(records.accounts, a_sealer(pepper), None, "thief")  # pyright: ignore[reportArgumentType]

        async def tokens_of(owner: str) -> AccountTokens | None:
            account = await records.accounts.get(AccountKey(SERVER, owner))
            assert account is not None
            return await source.tokens_of(account)

        yield tokens_of


async def refresh_nothing() -> None:
    return


def an_id_token_exchange(records: RecordStores, attacks: AttackScene) -> IdTokenExchange:
    """The exchange of ID tokens with the sessions of a store."""
    provider = OpenIdProvider(
        TokenIssuer(attacks.company.url, client_id=COMPANY_CLIENT),
        COMPANY_SECRET,
        timedelta(seconds=30),
        NO_PROXIES,
    )
    sessions = BrowserSessions(records.sessions, {}, refresh_nothing)
    return IdTokenExchange(sessions, {provider.id: provider}, a_sealer(), lambda _: True)


@attack
async def the_store_file_is_stolen(attacks: AttackScene) -> None:
    async with a_stolen_store(attacks) as tokens_of:
        found = await tokens_of(ANA)
        assert found is not None
        assert found.access in attacks.secrets
    async with a_stolen_store(attacks, pepper="another " * 6) as tokens_of:
        assert await tokens_of(ANA) is None


async def change_the_store(attacks: AttackScene, change: StoreChange) -> None:
    async with a_stolen_store(attacks, change) as tokens_of:
        assert await tokens_of(ANA) is None


COPY = """
UPDATE comity_accounts SET sealed = (
    SELECT sealed FROM comity_accounts WHERE server = :server AND owner = :owner
) WHERE server = 'notes' AND owner = 'person:ana'
"""
CUT = """
UPDATE comity_accounts SET sealed = CAST(
    substr(sealed, 1, length(sealed) - 1)
    || CASE substr(sealed, -1) WHEN x'00' THEN x'01' ELSE x'00' END AS BLOB
)
"""

add_table(
    change_the_store,
    {
        "the sealed tokens of another person are copied to a row": (
            COPY,
            {"server": SERVER, "owner": BEN},
        ),
        "the sealed tokens of another server are copied to a row": (
            COPY,
            {"server": "live", "owner": ANA},
        ),
        "the owner of a row is changed": (
            "UPDATE comity_accounts SET owner = 'person:cy' WHERE owner = 'person:ana'",
            {},
        ),
        "the server of a row is changed": ("UPDATE comity_accounts SET server = 'evil'", {}),
        "a sealed registration is copied to an account": (
            "UPDATE comity_accounts SET sealed = (SELECT sealed FROM comity_account_clients)",
            {},
        ),
        "one byte of the sealed tokens is changed": (
            CUT,
            {},
        ),
    },
)


@attack
async def the_text_form_of_an_object_is_logged(attacks: AttackScene) -> None:
    async with a_stolen_store(attacks) as tokens_of:
        tokens = await tokens_of(ANA)
    assert tokens is not None
    client = OAuthClientCredentials("id", "hidden")
    held = HeldToken(tokens.access, None)  # pyright: ignore[reportArgumentType]
    with contextlib.suppress(AttributeError):
        assert tokens.access not in repr(held)
    shown = f"{tokens!r} {client!r}"
    assert not [each for each in (tokens.access, tokens.refresh, "hidden") if each in shown]


# Names that resolve to private addresses, and endless answers: in this process.

PUBLIC_SERVER = "https://mcp.example.com/mcp"


class FakeResolver:
    """Gives the next of several answers for each question."""

    def __init__(self, *answers: tuple[str, ...]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def resolve(self, name: str) -> tuple[str, ...]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@asynccontextmanager
async def an_oauth_client(
    *answers: tuple[str, ...],
) -> AsyncGenerator[tuple[OAuthHttpClient, FakeResolver]]:
    resolver = FakeResolver(*answers)
    async with HttpConnectionPool(default_tls()) as pool:
        oauth = OAuthHttpClient(pool, resolver.resolve)
        try:
            yield oauth, resolver
        finally:
            await oauth.close()


async def resolve_a_name(attacks: AttackScene, addresses: tuple[str, ...]) -> None:
    async with an_oauth_client(addresses) as (oauth, resolver):
        with pytest.raises(Unavailable, match="refused"):
            await oauth.issuer_metadata("https://login.example.com", (PUBLIC_SERVER,))
        assert resolver.asked == 1


add_table(
    resolve_a_name,
    {
        "the name of an issuer resolves to this machine": ("127.0.0.1",),
        "the name of an issuer resolves to a private address": ("10.1.2.3",),
        "the name of an issuer resolves to a metadata service": ("169.254.169.254",),
        "the name of an issuer resolves to IPv6 of this machine": ("::1",),
        "the name of an issuer resolves to a mapped address": ("::ffff:127.0.0.1",),
        "one of several addresses of an issuer is private": ("93.184.215.14", "10.0.0.1"),
        "the name of an issuer does not resolve": (),
    },
)


@attack
async def a_server_with_tls_names_an_issuer_without(attacks: AttackScene) -> None:
    async with an_oauth_client(("127.0.0.1",)) as (oauth, resolver):
        with pytest.raises(Unavailable, match="not HTTPS"):
            await oauth.issuer_metadata("http://mcp.example.com", (PUBLIC_SERVER,))
        assert resolver.asked == 0


@attack
async def a_server_names_the_private_issuer_of_another_server(attacks: AttackScene) -> None:
    """The operator wrote it for one server. For all others it stays a private address."""
    private = attacks.hostile["evil"]
    private.reset()
    own = AccountPolicy("own", PUBLIC_SERVER, issuer=private.url)
    other = AccountPolicy("other", "https://mcp.example.org/mcp")
    async with an_oauth_client(("127.0.0.1",)) as (oauth, _):
        assert await oauth.issuer_metadata(private.url, own.trusted_urls)
        with pytest.raises(Unavailable, match="not HTTPS"):
            await oauth.issuer_metadata(private.url, other.trusted_urls)


@attack
async def a_private_issuer_names_endpoints_on_another_private_host(attacks: AttackScene) -> None:
    policy = AccountPolicy("own", PUBLIC_SERVER, issuer="https://login.corp.example")
    metadata = IssuerMetadata(policy.issuer, "", "https://vault.corp.example/token")
    async with an_oauth_client(("10.1.2.3",)) as (oauth, resolver):
        with pytest.raises(Unavailable, match="refused"):
            await oauth.request_token(
                metadata, OAuthClientCredentials("a"), {}, policy.trusted_urls
            )
        assert resolver.asked == 1


async def let_the_token_endpoint_dawdle(attacks: AttackScene, chunk: bytes) -> None:
    """Open a connection that sends a little for ever."""
    stop = asyncio.Event()

    async def dawdle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            while not stop.is_set():
                writer.write(chunk)
                await writer.drain()
                await asyncio.sleep(0.01)
            writer.close()
            await writer.wait_closed()
        served.set()

    served = asyncio.Event()
    listener = await asyncio.start_server(dawdle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    metadata = IssuerMetadata(url, url, f"{url}/token")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(oauth_client, "REQUEST_SECONDS", 0.5)
        async with an_oauth_client(()) as (oauth, _), asyncio.timeout(10):
            with pytest.raises(Unavailable):
                await oauth.request_token(metadata, OAuthClientCredentials("a"), {}, (url,))
    stop.set()
    async with asyncio.timeout(10):
        await served.wait()
    listener.close()


add_table(
    let_the_token_endpoint_dawdle,
    {
        "the token endpoint never begins its answer": b"",
        "the token endpoint sends one byte at a time": b"1\r\n \r\n",
        "the token endpoint never ends its answer": b"4000\r\n" + b" " * 0x4000 + b"\r\n",
    },
)


@attack
async def the_name_of_an_issuer_is_rebound(attacks: AttackScene) -> None:
    dialled = list[tuple[str, ...]]()
    async with an_oauth_client(("93.184.215.14",), ("127.0.0.1",)) as (oauth, resolver):
        # The pool connects to the addresses that were checked, and asks no second time.
        dialled.append(tuple(await oauth._find_public("login.example.com")))  # pyright: ignore[reportPrivateUsage]
        assert (dialled, resolver.asked) == ([("93.184.215.14",)], 1)
        with pytest.raises(Unavailable, match="not public"):
            await oauth.issuer_metadata("https://login.example.com", (PUBLIC_SERVER,))


# Accounts that the sign-in to Comity gives.


type Forgery = Callable[[Realm, dict[str, str], dict[str, Any]], Any]
"""Returns what the company answers: of its keys, of the form, and of the honest answer."""


@asynccontextmanager
async def an_exchange(attacks: AttackScene, forge: Forgery) -> AsyncGenerator[None]:
    """Let the company answer exchanges as an attack wants it."""

    def answer(form: dict[str, str], honest: dict[str, Any]) -> Any:
        made = forge(attacks.company, form, honest)
        if isinstance(made, dict):
            attacks.others.add(str(cast("dict[str, Any]", made).get("access_token", form)))
        return cast("Any", made)

    attacks.company.exchange = answer
    try:
        yield
    finally:
        attacks.company.exchange = exchange_nothing


async def open_page(attacks: AttackScene, server: str, person: str = ANA) -> Response:
    return await (await attacks.browser(person)).get(f"/accounts/connect/{server}")


def show_no_secret(attacks: AttackScene, text: str) -> None:
    assert not [each for each in {*attacks.company.issued, *attacks.secrets} if each in text]


def with_claims(header: dict[str, Any] | None = None, **changes: Any) -> Forgery:
    """An answer whose token has other claims, and a valid signature."""

    def forge(company: Realm, form: dict[str, str], honest: dict[str, Any]) -> dict[str, Any]:
        plain = {**claims_in(honest["access_token"]), **changes}
        claims = {name: each for name, each in plain.items() if each is not None}
        typ = header_in(honest["access_token"])["typ"]
        return {**honest, "access_token": company.sign(claims, **{"typ": typ, **(header or {})})}

    return forge


def with_members(**changes: Any) -> Forgery:
    """An answer with other members. None leaves a member out."""

    def forge(company: Realm, form: dict[str, str], honest: dict[str, Any]) -> dict[str, Any]:
        members = {**honest, **changes}
        return {name: each for name, each in members.items() if each is not None}

    return forge


def echo_id_token(company: Realm, form: dict[str, str], honest: dict[str, Any]) -> dict[str, Any]:
    return {**honest, "access_token": form["subject_token"]}


async def forge_an_assertion(attacks: AttackScene, row: tuple[Forgery, str]) -> None:
    forge, words = row
    before = len(attacks.hostile[JAG].requests_to("/token"))
    async with attacks.nothing_changes(), an_exchange(attacks, forge):
        answer = await open_page(attacks, JAG)
        show_refused(answer, words)
        show_no_secret(attacks, answer.text)
    # Nothing was presented to the authorization server.
    assert len(attacks.hostile[JAG].requests_to("/token")) == before


add_table(
    forge_an_assertion,
    {
        "the issuer gives an access token in place of an assertion": (
            with_members(issued_token_type="urn:ietf:params:oauth:token-type:access_token"),
            "of another type",
        ),
        "the issuer does not say what it gives": (
            with_members(issued_token_type=None),
            "of another type",
        ),
        "the issuer gives an assertion as a bearer token": (
            with_members(token_type="Bearer"),
            "for another use",
        ),
        "the assertion is the ID token": (echo_id_token, "for this gateway itself"),
        "the assertion is a plain token": (with_claims({"typ": "JWT"}), "no identity assertion"),
        "the assertion is an opaque text": (
            with_members(access_token="opaque-assertion"),
            "no identity assertion",
        ),
        "the assertion has a line break": (
            with_members(access_token="opaque\r\nassertion"),
            "of another type",
        ),
        "the assertion is for another authorization server": (
            with_claims(aud="https://login.example.com"),
            "another authorization server",
        ),
        "the assertion is for two authorization servers": (
            with_claims(aud=["https://login.example.com", "https://a.example"]),
            "another authorization server",
        ),
        "the assertion is for no authorization server": (
            with_claims(aud=None),
            "another authorization server",
        ),
        "the assertion is for the gateway": (
            with_claims(aud=COMPANY_CLIENT),
            "for this gateway itself",
        ),
        "the assertion is for another client": (with_claims(client_id="other"), "another client"),
        "the assertion is of another issuer": (
            with_claims(iss="https://evil.example"),
            "another client",
        ),
        "an assertion for another server is replayed": (
            with_claims(resource="https://mcp.example.com/mcp"),
            "another server",
        ),
        "the assertion names no server": (with_claims(resource=None), "another server"),
        "the assertion names two servers": (
            with_claims(resource=["https://mcp.example.com/mcp", "https://a.example"]),
            "another server",
        ),
    },
)


async def forge_an_exchanged_token(attacks: AttackScene, row: tuple[Forgery, str]) -> None:
    forge, words = row
    async with attacks.nothing_changes(), an_exchange(attacks, forge):
        answer = await open_page(attacks, SWAP)
        show_refused(answer, words)
        show_no_secret(attacks, answer.text)
    assert not [each for each in attacks.hostile[SWAP].requests if each.shown_token]


add_table(
    forge_an_exchanged_token,
    {
        "the issuer gives an assertion in place of a token": (
            with_members(issued_token_type="urn:ietf:params:oauth:token-type:id-jag"),
            "of another type",
        ),
        "the issuer gives a refresh token in place of a token": (
            with_members(issued_token_type="urn:ietf:params:oauth:token-type:refresh_token"),
            "of another type",
        ),
        "the issuer gives a token that is no bearer token": (
            with_members(token_type="N_A"),
            "for another use",
        ),
        "the issuer gives the ID token back": (echo_id_token, "for this gateway itself"),
        "the issuer gives a token that the gateway accepts": (
            with_claims(aud=[COMPANY_CLIENT, "https://mcp.example.com/mcp"]),
            "for this gateway itself",
        ),
        "the issuer gives a token for another audience": (
            with_claims(aud="https://mcp.example.com/mcp"),
            "another audience",
        ),
    },
)


@attack
async def the_issuer_redirects_an_exchange(attacks: AttackScene) -> None:
    def redirect(company: Realm, form: dict[str, str], honest: dict[str, Any]) -> Any:
        return "", 307, {"location": f"{attacks.hostile.origin}/thief"}

    for server in BY_IDENTITY:
        async with attacks.nothing_changes(), an_exchange(attacks, redirect):
            show_refused(await open_page(attacks, server), "HTTP 307")


@attack
async def the_authorization_server_redirects_an_assertion(attacks: AttackScene) -> None:
    thief = {"location": f"{attacks.hostile.origin}/thief"}
    attacks.hostile[JAG].token = lambda _: HostileAnswer(307, headers=thief)
    async with attacks.nothing_changes(), an_exchange(attacks, with_members()):
        show_refused(await open_page(attacks, JAG), "HTTP 307")
    attacks.hostile[JAG].reset()


@attack
async def an_error_of_the_issuer_echoes_the_id_token(attacks: AttackScene) -> None:
    def echo(company: Realm, form: dict[str, str], honest: dict[str, Any]) -> Any:
        token = form["subject_token"]
        return {"error": token, "error_description": token, "error_uri": token[-50:]}, 400

    for server in BY_IDENTITY:
        async with attacks.nothing_changes(), an_exchange(attacks, echo):
            answer = await open_page(attacks, server)
            show_refused(answer, "exchanged no token")
            show_no_secret(attacks, answer.text)


@attack
async def an_error_of_the_authorization_server_echoes_the_assertion(attacks: AttackScene) -> None:
    shown = list[str]()

    def echo(request: HostileRequest) -> HostileAnswer:
        shown.append(request.form["assertion"])
        # The end of an assertion is short enough for a code.
        return json_answer({"error": shown[-1][-50:], "error_description": shown[-1]}, 400)

    attacks.hostile[JAG].token = echo
    async with attacks.nothing_changes(), an_exchange(attacks, with_members()):
        answer = await open_page(attacks, JAG)
    attacks.hostile[JAG].reset()
    show_refused(answer, "gave no token")
    assert shown
    assert shown[-1][-50:] not in answer.text
    assert shown[-1][-50:] not in attacks.scene.programs[0].said


@attack
async def a_server_names_the_authorization_server_of_another_one(attacks: AttackScene) -> None:
    jag, mixer = attacks.hostile[JAG], attacks.hostile["mixer"]
    changed = {**jag.resource_document(), "authorization_servers": [mixer.url]}
    async with an_oauth_client(()) as (oauth, _), a_copied_store(attacks) as records:
        policy = AccountPolicy(
            JAG,
            f"{jag.url}/mcp",
            client=OAuthClientCredentials(f"client-{JAG}", JAG_SECRET),
            grant="id_jag",
        )
        grants = IdentityGrants(
            AuthorizationServers(oauth, records.accounts, a_sealer()),
            an_id_token_exchange(records, attacks),
        )
        jag.resource = lambda _: json_answer(changed)
        async with an_exchange(attacks, with_members()):
            # The company knows another client there, so nothing is presented.
            with pytest.raises(Unavailable, match="another client"):
                await grants.request(policy, ANA, None)
    jag.reset()
    assert not mixer.requests_to("/token")


@attack
async def a_person_without_a_sign_in_at_the_company_takes_the_account_of_another(
    attacks: AttackScene,
) -> None:
    async with attacks.nothing_changes(), an_exchange(attacks, with_members()):
        asked = len(attacks.company.exchanges)
        for server in BY_IDENTITY:
            answer = await open_page(attacks, server, BEN)
            assert "Sign in to Comity again" in answer.text
        assert len(attacks.company.exchanges) == asked


@attack
async def an_agent_without_a_grant_uses_an_account_that_a_sign_in_gives(
    attacks: AttackScene,
) -> None:
    async with attacks.nothing_changes(), an_exchange(attacks, with_members()):
        asked = len(attacks.company.exchanges)
        for agent in (IDLER, WILD):
            for server in BY_IDENTITY:
                assert "seen" not in await attacks.call(agent, f"{server}__look")
        assert len(attacks.company.exchanges) == asked


async def take_an_id_token(attacks: AttackScene, row: tuple[str, str]) -> None:
    """Change the sessions in a copy of the store. The ID token of Ana is then of no use."""
    change, party = row
    async with an_exchange(attacks, with_members()):
        fields = {
            "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "resource": "https://mcp.example.com/mcp",
        }
        async with a_copied_store(attacks) as records:
            honest = an_id_token_exchange(records, attacks)
            assert await honest.exchange(ANA, attacks.company.url, fields)
        asked = len(attacks.company.exchanges)
        async with a_copied_store(attacks, (change, {})) as records:
            thief = an_id_token_exchange(records, attacks)
            assert await thief.exchange(party, attacks.company.url, fields) is None
        assert len(attacks.company.exchanges) == asked


COPY_HINT = """
UPDATE comity_browser_sessions SET method = 'openid', subject = 'ben', hint = (
    SELECT hint FROM comity_browser_sessions WHERE hint <> x'' AND party = 'person:ana'
), issuer = (SELECT max(issuer) FROM comity_browser_sessions) WHERE party = 'person:ben'
"""

add_table(
    take_an_id_token,
    {
        "the sealed ID token of another person is copied to a session": (COPY_HINT, BEN),
        "the session of another person is renamed": (
            "UPDATE comity_browser_sessions SET party = 'person:ben' WHERE hint <> x''",
            BEN,
        ),
        "the subject of a session is changed": (
            "UPDATE comity_browser_sessions SET subject = 'ben' WHERE hint <> x''",
            ANA,
        ),
        "a session that has ended gives its ID token": (
            "UPDATE comity_browser_sessions SET expires_at = '2020-01-01 00:00:00.000000'",
            ANA,
        ),
    },
)


@attack
async def an_honest_exchange_gives_no_lasting_token(attacks: AttackScene) -> None:
    """The control of the attacks above: the same scene connects with an honest issuer."""
    for server in BY_IDENTITY:
        async with an_exchange(attacks, with_members()):
            answer = await open_page(attacks, server)
            assert f"Your account at {server} is connected" in answer.text
        found = (await attacks.scene.api("GET", "/api/accounts"))["accounts"]
        (account,) = [each for each in found if each["server"] == server]
        assert account["owner"] == ANA
        # The server sent a refresh token with it, which would outlive the sign-in.
        assert not account["is_refreshable"]
        await attacks.scene.api("POST", f"/api/accounts/{account['id']}/disconnect")


@attack
async def an_issuer_is_replaced_between_sign_in_and_refresh(attacks: AttackScene) -> None:
    live, evil = attacks.hostile["live"], attacks.hostile["evil"]
    evil.reset()
    changed = {**live.resource_document(), "authorization_servers": [evil.url]}
    live.resource = lambda _: json_answer(changed)
    async with an_oauth_client(()) as (oauth, _):
        # Without a memory of earlier metadata, as after a restart.
        servers = AuthorizationServers(oauth, None, a_sealer())  # pyright: ignore[reportArgumentType]
        policy = AccountPolicy("live", f"{live.url}/mcp", "each")
        with pytest.raises(Unavailable, match="does not name the issuer"):
            await servers.find(policy, None, live.url)
    live.reset()


@pytest.mark.parametrize("name", ATTACKS)
async def test_no_attack_succeeds(attacks: AttackScene, name: str) -> None:
    await ATTACKS[name](attacks)


def test_no_message_between_nodes_holds_a_secret(tmp_path: Path) -> None:
    with a_nats_cluster(tmp_path, 1) as bus, a_postgres() as postgres:
        asyncio.run(stores.upgrade_store(postgres.url))
        with an_account_scene(tmp_path, store=postgres.url, nats=bus.urls[0], nodes=2) as scene:
            heard = asyncio.run(use_accounts_on_two_nodes(scene, bus.urls[0]))
            scene.show_no_token()
    # Nodes encrypt their messages, so this is all that a listener on the bus can see.
    assert heard
    for secret in {*scene.realm.spent, *scene.realm.private}:
        assert not [each for each in heard if secret.encode() in each]


async def use_accounts_on_two_nodes(scene: AccountScene, bus: str) -> list[bytes]:
    """Sign in on one node and call on another. All that the bus carried meanwhile."""
    heard = list[bytes]()

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    listener = await nats.connect(bus)  # pyright: ignore[reportUnknownMemberType]
    await listener.subscribe(">", cb=hear)  # pyright: ignore[reportUnknownMemberType]
    try:
        assert "is connected" in (await scene.connect(ANA, node=0)).text
        await asyncio.to_thread(scene.wait_for_server)
        waiting = asyncio.create_task(scene.call(BEN, node=1, mode="legacy"))
        request = await scene.sign_in_request(BEN)
        scene.realm.person = "ben"
        await scene.connect(BEN, f"/accounts/connect/{request}", node=0)
        assert await waiting == "ben"
        scene.realm.expire_all()
        assert [await scene.call(ANA, node=node) for node in (0, 1)] == ["ana", "ana"]
    finally:
        await listener.close()
    return heard


def test_there_are_at_least_sixty_named_attacks() -> None:
    assert len(ATTACKS) >= 60
    assert not ATTACKS.keys() & set(WIRE_ATTACKS)
