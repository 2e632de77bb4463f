"""Accounts from end to end: a gateway before a server of the official SDK that wants OAuth."""

import asyncio
from collections.abc import Generator
from pathlib import Path

import mcp_types
import pytest
from mcp.client import ClientRequestContext

from tests.accounts.scene import AGENT, ANA, BEN, IDLER, SERVER, AccountScene, an_account_scene
from tests.console.world import text_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture
def scene(tmp_path: Path) -> Generator[AccountScene]:
    with an_account_scene(tmp_path) as made:
        yield made
        made.show_no_token()


async def test_two_people_and_an_agent_each_call_with_the_right_account(
    scene: AccountScene,
) -> None:
    found = await scene.api("GET", "/api/accounts")
    assert [each["server"] for each in found["servers"]] == [SERVER]
    scene.realm.person = "ana"
    done = await scene.connect(ANA)
    assert "is connected" in done.text
    scene.wait_for_server()
    for mode in ("legacy", "auto"):
        assert await scene.call(ANA, mode=mode) == "ana"
        assert await scene.call(AGENT, mode=mode) == "ana"
        assert "may use no account" in await scene.call(IDLER, mode=mode)
    # Ben's call waits until Ben has signed in, and then goes on by itself.
    waiting = asyncio.create_task(scene.call(BEN, mode="legacy"))
    request = await scene.sign_in_request(BEN)
    scene.realm.person = "ben"
    await scene.connect(BEN, f"/accounts/connect/{request}")
    assert await waiting == "ben"
    assert await scene.call(ANA) == "ana"
    assert await scene.call(BEN) == "ben"
    named = await scene.api("GET", f"/api/audit?server={SERVER}&limit=100")
    used = {(each["actor"], each["details"].get("account")) for each in named["entries"]}
    assert {(AGENT, ANA), (ANA, ANA), (BEN, BEN)} <= used
    owners = [each["owner"] for each in (await scene.api("GET", "/api/accounts"))["accounts"]]
    assert owners == [ANA, BEN]
    # The server names itself as the resource of each token, so that no other server accepts it.
    assert set(scene.realm.resources) == {f"{scene.server}/mcp"}


async def test_a_token_is_refreshed_revoked_and_replaced_by_another_sign_in(
    scene: AccountScene,
) -> None:
    scene.realm.person = "ana"
    await scene.connect(ANA)
    scene.wait_for_server()
    scene.realm.expire_all()
    assert await asyncio.gather(*(scene.call(ANA) for _ in range(4))) == ["ana"] * 4
    assert scene.realm.grants.count("refresh_token") == 1
    # The tool `write` needs one more scope: the call waits for another sign-in and goes on, once.
    waiting = asyncio.create_task(scene.call(ANA, "write", {"text": "one"}))
    request = await scene.sign_in_request(ANA)
    await scene.connect(ANA, f"/accounts/connect/{request}")
    assert await waiting == "ana wrote one"
    assert await scene.call(ANA, "write", {"text": "two"}) == "ana wrote two"
    (account,) = (await scene.api("GET", "/api/accounts"))["accounts"]
    assert "write" in account["scopes"]
    # The authorization server ends everything: the next call waits for a sign-in.
    scene.realm.access.clear()
    scene.realm.refreshing.clear()
    waiting = asyncio.create_task(scene.call(ANA))
    request = await scene.sign_in_request(ANA)
    (account,) = (await scene.api("GET", "/api/accounts"))["accounts"]
    assert account["state"] == "sign_in_needed"
    await scene.connect(ANA, f"/accounts/connect/{request}")
    assert await waiting == "ana"
    # A disconnected account is revoked at its issuer, with both of its tokens.
    scene.realm.revoked.clear()
    ended = await scene.api("POST", f"/api/accounts/{account['id']}/disconnect")
    assert ended["revoked"] is True
    assert len(scene.realm.revoked) == 2
    assert not scene.realm.access


async def test_a_client_is_led_to_the_page_and_its_call_goes_on(
    scene: AccountScene,
) -> None:
    scene.realm.person = "ana"
    await scene.connect(ANA)
    scene.wait_for_server()
    scene.realm.person = "ben"
    shown: list[str] = []

    async def sign_in(
        context: ClientRequestContext, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult:
        """What a person does whose client shows a page."""
        assert isinstance(params, mcp_types.ElicitRequestURLParams)
        shown.append(params.url)
        done = await scene.connect(BEN, params.url.removeprefix(scene.origins[0]))
        assert "is connected" in done.text
        return mcp_types.ElicitResult(action="accept")

    for mode in ("auto", "legacy"):
        async with scene.client(BEN, mode=mode, elicitation_callback=sign_in) as client:
            called = await client.call_tool(f"{SERVER}__whoami", {})
        assert text_of(called) == "ben"
        (account,) = (await scene.api("GET", "/api/accounts", BEN))["accounts"]
        await scene.api("POST", f"/api/accounts/{account['id']}/disconnect", BEN)
    assert len(shown) == 2
    # A client that knows nothing of it is told where the person signs in, and may call again.
    told = await scene.call(BEN, mode="legacy")
    assert "waits for a sign-in" in told
    assert f"{scene.origins[0]}/accounts/connect/" in told
    await scene.connect(BEN)
    assert await scene.call(BEN, mode="legacy") == "ben"
