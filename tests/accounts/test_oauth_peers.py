"""Accounts at servers of other makers: the official TypeScript SDK, and FastMCP."""

import asyncio
import sys
from collections.abc import Generator
from pathlib import Path

import httpx2
import pytest

from tests.accounts.scene import ANA, SERVER, AccountScene, an_account_scene
from tests.interop.peers import SERVERS, javascript, node

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

TYPESCRIPT_SERVER = SERVERS.with_name("js") / "protected_server.mjs"
ERAS = ("legacy", "auto")


@pytest.fixture
def typescript(tmp_path: Path) -> Generator[AccountScene]:
    command = (node(), str(TYPESCRIPT_SERVER), str(javascript()))
    with an_account_scene(tmp_path, command=command) as scene:
        yield scene
        scene.show_no_token()


@pytest.fixture
def fastmcp_scene(tmp_path: Path) -> Generator[AccountScene]:
    command = (sys.executable, str(SERVERS / "fastmcp_oauth.py"))
    with an_account_scene(tmp_path, command=command) as scene:
        yield scene


async def test_a_server_of_the_typescript_sdk_is_listed_called_refreshed_and_left(
    typescript: AccountScene,
) -> None:
    scene, realm = typescript, typescript.realm
    await sign_in_and_call(scene, "ana")
    realm.expire_all()
    assert [await scene.call(ANA, mode=mode) for mode in ERAS] == ["ana"] * 2
    assert realm.grants.count("refresh_token") == 1
    assert set(realm.resources) == {f"{scene.server}/mcp"}
    # The issuer ends everything. A call then waits for the next sign-in, and goes on.
    realm.access.clear()
    realm.refreshing.clear()
    waiting = asyncio.create_task(scene.call(ANA, mode="legacy"))
    request = await scene.sign_in_request(ANA)
    await scene.connect(ANA, f"/accounts/connect/{request}")
    assert await waiting == "ana"
    assert await disconnect(scene)
    assert not realm.access
    assert not realm.refreshing


async def test_a_fastmcp_server_with_its_own_provider_is_listed_called_refreshed_and_left(
    fastmcp_scene: AccountScene,
) -> None:
    scene = fastmcp_scene

    async def provider(method: str, path: str) -> dict[str, int]:
        async with httpx2.AsyncClient() as http:
            return (await http.request(method, f"{scene.server}{path}")).json()

    await sign_in_and_call(scene, "client")
    await provider("POST", "/expire")
    assert await provider("GET", "/known") == {"clients": 1, "access": 0, "refresh": 1}
    assert [await scene.call(ANA, mode=mode) for mode in ERAS] == ["client"] * 2
    assert await provider("GET", "/known") == {"clients": 1, "access": 1, "refresh": 1}
    assert await disconnect(scene)
    assert await provider("GET", "/known") == {"clients": 1, "access": 0, "refresh": 0}


async def sign_in_and_call(scene: AccountScene, name: str) -> None:
    """Sign in for the first time, and list and call in both eras."""
    done = await scene.connect(ANA)
    assert "is connected" in done.text
    scene.wait_for_server()
    for mode in ERAS:
        async with scene.client(ANA, mode=mode) as client:
            listed = [tool.name for tool in (await client.list_tools()).tools]
        assert f"{SERVER}__whoami" in listed
        assert await scene.call(ANA, mode=mode) == name


async def disconnect(scene: AccountScene) -> bool:
    (account,) = (await scene.api("GET", "/api/accounts"))["accounts"]
    ended = await scene.api("POST", f"/api/accounts/{account['id']}/disconnect")
    assert (await scene.api("GET", "/api/accounts"))["accounts"] == []
    return ended["revoked"]
