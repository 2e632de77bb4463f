"""Servers that say little about their sign-in: no challenge, or no metadata of their own."""

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.accounts.hostile_server import (
    ISSUER_PATH,
    HostileAnswer,
    HostilePort,
    HostileRequest,
    a_hostile_port,
    json_answer,
)
from tests.accounts.scene import ANA, SECONDS, AccountScene, an_account_scene
from tests.console.world import text_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

QUIET, OLD, CLOSED = "quiet", "old", "closed"


@pytest.fixture
def port() -> Generator[HostilePort]:
    """Servers without a challenge: with metadata, with that of MCP 2025-03-26, with none."""
    with a_hostile_port() as port:
        for name in (QUIET, OLD, CLOSED):
            port[name].sends_challenge = False
        for name in (OLD, CLOSED):
            port[name].resource = lambda _: HostileAnswer(404)
        yield port


@pytest.fixture
def scene(port: HostilePort, tmp_path: Path) -> Generator[AccountScene]:
    tables = "".join(
        f'[[servers]]\nid = "{name}"\nurl = "{each.url}/mcp"\npolicy = {{ risk = "safe" }}\n'
        for name, each in port.servers.items()
    )
    with an_account_scene(tmp_path, tables=tables) as made:
        yield made


async def demanding(scene: AccountScene) -> set[str]:
    """The servers that are known to demand a sign-in."""
    return {each["server"] for each in (await scene.api("GET", "/api/accounts"))["servers"]}


async def until_demanded(scene: AccountScene, server: str) -> None:
    async with asyncio.timeout(SECONDS):
        while server not in await demanding(scene):
            await asyncio.sleep(0.05)


async def sign_in_and_call(scene: AccountScene, server: str) -> str:
    done = await scene.connect(ANA, f"/accounts/connect/{server}")
    assert "is connected" in done.text, done.text
    async with asyncio.timeout(SECONDS), scene.client(ANA) as client:
        while f"{server}__look" not in [each.name for each in (await client.list_tools()).tools]:
            await asyncio.sleep(0.05)
        return text_of(await client.call_tool(f"{server}__look", {}))


async def test_a_server_without_a_challenge_is_found_by_its_metadata(
    scene: AccountScene, port: HostilePort
) -> None:
    await until_demanded(scene, QUIET)
    assert await sign_in_and_call(scene, QUIET) == "seen"
    # A server with neither a challenge nor metadata is one whose headers are wrong.
    async with asyncio.timeout(SECONDS):
        while not port[CLOSED].requests:
            await asyncio.sleep(0.05)
    assert CLOSED not in await demanding(scene)


async def test_a_server_of_the_first_version_is_its_own_issuer(
    scene: AccountScene, port: HostilePort
) -> None:
    old = port[OLD]
    old.sends_issuer = False
    old.issuer_changes = {
        "issuer": port.origin,
        "authorization_response_iss_parameter_supported": False,
    }

    def metadata_of_origin(request: HostileRequest) -> HostileAnswer:
        is_issuer = f"{request.path}/" == ISSUER_PATH
        return json_answer(old.issuer_document()) if is_issuer else HostileAnswer(404)

    port.root = metadata_of_origin
    await until_demanded(scene, OLD)
    assert await sign_in_and_call(scene, OLD) == "seen"
    (account,) = (await scene.api("GET", "/api/accounts"))["accounts"]
    assert account["issuer"] == port.origin
    (request,) = [each for each in old.requests_to("/token") if "code" in each.form]
    assert request.form["resource"] == f"{old.url}/mcp"
