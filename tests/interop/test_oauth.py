"""OAuth from end to end: the official clients get their tokens by themselves, and renew them."""

import asyncio
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc import jwt
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from mcp_types import TextContent
from pydantic import AnyUrl

from tests.interop.authorization import Realm, authorizing
from tests.interop.peers import javascript, node
from tests.interop.processes import answers, free_port, running

COMITY = str(Path(sys.executable).with_name("comity"))
REDIRECT = "http://127.0.0.1:9/callback"
SKEW = 1
SCRIPT = Path(__file__).parent / "js" / "oauth.mjs"
UNHURRIED = pytest.mark.timeout(180)


@contextmanager
def guarded(
    folder: Path, realm: Realm, subject: str = "person:ana", issuer: str = ""
) -> Generator[str]:
    """A gateway whose only way in is a token of the realm; gives its origin."""
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    config = folder / "comity.toml"
    config.write_text(f"""
port = {port}

[identity]
mode = "required"
clock_skew = "{SKEW}s"

[[identity.issuers]]
issuer = "{realm.url}"
audience = "{origin}"
required_scopes = ["tools"]
{issuer}

[[grants]]
subject = "{subject}"
verb = "tools/call"
target = "try/echo"

[[servers]]
id = "try"
command = "{COMITY}"
args = ["dev", "example-server"]
""")
    with running([COMITY, "serve", "-c", str(config)], {"LOG_LEVEL": "DEBUG"}) as program:
        program.wait_for_line(r"listening on (http://\S+)")
        program.wait_until(lambda: answers(f"{origin}/ready"))
        yield origin
        assert "eyJ" not in program.said


class Kept:
    """What a client keeps between two starts."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        self.all: list[str] = []

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens
        self.all.append(tokens.access_token)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def _provider(url: str, kept: Kept) -> OAuthClientProvider:
    """The SDK's own, with a browser that approves whatever it is shown."""
    shown: list[str] = []

    async def approve() -> AuthorizationCodeResult:
        async with httpx2.AsyncClient() as browser:
            reply = await browser.get(shown[-1], follow_redirects=False)
        said = parse_qs(urlsplit(reply.headers["location"]).query)
        return AuthorizationCodeResult(code=said["code"][0], state=said["state"][0])

    async def show(where: str) -> None:
        shown.append(where)

    metadata = OAuthClientMetadata(
        client_name="python-peer",
        redirect_uris=[AnyUrl(REDIRECT)],
        grant_types=["authorization_code", "refresh_token"],
        token_endpoint_auth_method="none",
    )
    return OAuthClientProvider(url, metadata, kept, show, approve)


@asynccontextmanager
async def peer(url: str, mode: str, kept: Kept) -> AsyncGenerator[Client]:
    async with httpx2.AsyncClient(auth=_provider(url, kept), timeout=30) as carrier:
        transport = streamable_http_client(url, http_client=carrier)
        async with Client(transport, mode=mode) as client:
            yield client


async def echoed(client: Client, tool: str, message: str) -> str:
    result = await client.call_tool(tool, {"message": message})
    (part,) = result.content
    assert isinstance(part, TextContent)
    return part.text


def status_of(url: str, token: str | None = None) -> tuple[int, dict[str, Any], str]:
    """What a bare request gets: its status, the error, and the challenge."""
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    headers |= {} if token is None else {"Authorization": f"Bearer {token}"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bare"}}
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    asked = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
    try:
        with urllib.request.urlopen(asked, timeout=30) as reply:  # noqa: S310 - loopback only
            return reply.status, {}, ""
    except urllib.error.HTTPError as refused:
        with refused:
            error = json.loads(refused.read())["error"]
            return refused.code, error, refused.headers["www-authenticate"]


@UNHURRIED
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_python_sdk_is_authorized_and_renews_its_token_in_mid_session(
    tmp_path: Path, mode: str
) -> None:
    with authorizing(lifetime=3) as realm, guarded(tmp_path, realm) as origin:
        kept = Kept()
        async with peer(f"{origin}/mcp", mode, kept) as client:
            assert await echoed(client, "try__echo", "one") == "one"
            assert realm.grants == ["authorization_code"]
            # Until the first token counts neither with the client nor with the gateway.
            first = kept.all[0]
            deadline = time.monotonic() + 60
            while status_of(f"{origin}/mcp", first)[0] == 200:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.2)
            assert await echoed(client, "try__echo", "two") == "two"
        assert "refresh_token" in realm.grants
        assert realm.grants.count("authorization_code") == 1
        assert set(realm.resources) == {f"{origin}/mcp"}
        status, error, _ = status_of(f"{origin}/mcp", first)
        assert (status, error["data"]["error_type"]) == (401, "credential_expired")


@UNHURRIED
@pytest.mark.parametrize("sdk", ["v1", "v2", "v2-modern"])
def test_the_typescript_sdk_is_authorized_and_renews_its_token_in_mid_session(
    tmp_path: Path, sdk: str
) -> None:
    with authorizing(lifetime=3) as realm, guarded(tmp_path, realm) as origin:
        command = [node(), str(SCRIPT), str(javascript()), sdk, f"{origin}/mcp", "try__echo"]
        waits = json.dumps([(3 + SKEW + 2) * 1000])
        done = subprocess.run(
            command, input=waits, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["refused"] == "UnauthorizedError"
        assert told["answers"] == ["after 0", f"after {(3 + SKEW + 2) * 1000}"]
        assert len(set(told["sessions"])) == 1
        assert realm.grants == ["authorization_code", "refresh_token"]
        assert set(realm.resources) == {f"{origin}/mcp"}


def issued(realm: Realm, origin: str, **changed: Any) -> str:
    """A token as the realm would sign it, but for what is changed."""
    now = int(time.time())
    plain: dict[str, Any] = {
        "iss": realm.url,
        "aud": origin,
        "sub": "ana",
        "iat": now,
        "exp": now + 60,
        "scope": "tools",
    }
    header = {"alg": "RS256", "kid": realm.keys[0].kid, "typ": "at+jwt"}
    return jwt.encode(header, {**plain, **changed}, realm.keys[0])


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Realm, str]]:
    """A realm whose tokens last, and a gateway that trusts it."""
    with authorizing() as realm, guarded(tmp_path_factory.mktemp("lasting"), realm) as origin:
        yield realm, origin


@UNHURRIED
def test_a_token_for_somebody_else_or_by_somebody_else_is_refused(
    lasting: tuple[Realm, str],
) -> None:
    realm, origin = lasting
    url, now = f"{origin}/mcp", int(time.time())
    assert status_of(url, issued(realm, origin))[0] == 200
    wrong: list[dict[str, Any]] = [
        {"aud": "https://elsewhere.org"},
        {"aud": f"{origin}/servers/try/mcp"},
        {"iss": "https://elsewhere.org"},
        {"exp": now - 60},
        {"nbf": now + 60},
        {"iat": now + 60},
        {"sub": "local"},
    ]
    for changed in wrong:
        status, error, challenge = status_of(url, issued(realm, origin, **changed))
        assert status == 401, changed
        assert error["data"]["error_type"] in ("unauthenticated", "credential_expired")
        assert 'error="invalid_token"' in challenge
    part = issued(realm, origin, aud=f"{origin}/servers/try/mcp")
    assert status_of(f"{origin}/servers/try/mcp", part)[0] == 200


@UNHURRIED
async def test_a_grant_of_a_group_counts_for_a_token_that_names_the_group(tmp_path: Path) -> None:
    with (
        authorizing() as realm,
        guarded(tmp_path, realm, "group:sre", 'groups_claim = "groups"') as origin,
    ):
        for groups, is_listed in (
            (["qa", "sre"], True),
            ("sre", True),
            (["SRE"], False),
            ([], False),
        ):
            realm.groups = groups
            async with peer(f"{origin}/mcp", "2026-07-28", Kept()) as client:
                names = [tool.name for tool in (await client.list_tools()).tools]
                assert ("try__echo" in names) is is_listed, groups
                if is_listed:
                    assert await echoed(client, "try__echo", "one") == "one"
                else:
                    refused = await client.call_tool("try__echo", {"message": "one"})
                    assert refused.is_error
        for groups in ({"sre": True}, [7], ["sre\n"], 7, ["g"] * 201):
            status, error, _ = status_of(f"{origin}/mcp", issued(realm, origin, groups=groups))
            assert (status, error["data"]["error_type"]) == (401, "unauthenticated"), groups


def test_a_token_without_the_scope_is_told_which_one_it_lacks(lasting: tuple[Realm, str]) -> None:
    realm, origin = lasting
    status, error, challenge = status_of(f"{origin}/mcp", issued(realm, origin, scope="other"))
    assert status == 403
    assert error["data"]["error_type"] == "insufficient_scope"
    assert 'error="insufficient_scope"' in challenge
    assert 'scope="tools"' in challenge


@pytest.mark.parametrize("place", ["", "/mcp", "/servers/try/mcp", "/servers/not-there/mcp"])
def test_where_tokens_are_issued_is_told_to_everybody(
    lasting: tuple[Realm, str], place: str
) -> None:
    realm, origin = lasting
    where = f"{origin}/.well-known/oauth-protected-resource{place}"
    with urllib.request.urlopen(where, timeout=30) as reply:  # noqa: S310 - loopback only
        metadata = json.loads(reply.read())
    assert metadata["resource"] == f"{origin}{place}"
    assert metadata["authorization_servers"] == [realm.url]
    assert metadata["scopes_supported"] == ["tools"]
    if place:
        status, _, challenge = status_of(f"{origin}{place}")
        assert status == 401
        assert f'resource_metadata="{where}"' in challenge


@UNHURRIED
async def test_a_new_key_of_the_issuer_is_found_without_a_word_to_anybody(
    lasting: tuple[Realm, str],
) -> None:
    realm, origin = lasting
    async with peer(f"{origin}/mcp", "legacy", Kept()) as client:
        assert await echoed(client, "try__echo", "one") == "one"
    realm.rotate()
    token = issued(realm, origin)
    deadline = time.monotonic() + 30
    while status_of(f"{origin}/mcp", token)[0] != 200:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)
