"""Ping, progress and cancellation cross by hand, with every id and token as its sender knows it."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.interop.conftest import DIRECT, reached
from tests.interop.hand_client import SECONDS, Dial, Frame, HttpClient, frames_of, initialize
from tests.interop.servers import extended


@pytest.fixture(scope="module")
def dial(transport: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dial]:
    with reached("extended", transport, tmp_path_factory.mktemp("extended")) as dial:
        yield dial


@pytest.mark.requirement("MCP-4.4-ping")
async def test_a_ping_is_answered_with_an_empty_result(dial: Dial) -> None:
    async with dial() as client:
        await initialize(client, {})
        assert (await client.request("ping")).result == {}


@pytest.mark.requirement("MCP-4.4-progress")
@pytest.mark.parametrize("token", [7, "7", 2**60, "a token"])
async def test_progress_comes_with_the_token_that_the_client_gave(
    dial: Dial, token: object
) -> None:
    async with dial() as client:
        await initialize(client, {})
        params: Frame = {"name": "reports", "arguments": {}, "_meta": {"progressToken": token}}
        exchange = await client.request("tools/call", params)
    news = [frame["params"] for frame in exchange.said("notifications/progress")]
    assert [one["progress"] for one in news] == [1, 2.5]
    for one in news:
        assert one["progressToken"] == token
        assert type(one["progressToken"]) is type(token)
        assert one["vendorProgress"] == extended.ODD_VALUES


@pytest.mark.skipif(DIRECT, reason="the server by hand does not end a call that was cancelled")
@pytest.mark.requirement("MCP-4.4-cancelled")
async def test_a_cancelled_call_is_cancelled_by_the_id_that_the_server_knows(dial: Dial) -> None:
    async with dial() as client:
        assert isinstance(client, HttpClient)
        await initialize(client, {})
        params: Frame = {"name": "waits", "arguments": {}}
        frame = {"jsonrpc": "2.0", "id": "mine", "method": "tools/call", "params": params}
        async with asyncio.timeout(SECONDS), client.post(frame) as reply:
            async for said in frames_of(reply):
                assert said["method"] == "notifications/vendor.waiting"
                break
            cancelled = {"requestId": "mine", "reason": "no longer needed", "vendor": 1}
            await client.notify("notifications/cancelled", cancelled)
            seen: list[Frame] = []
            while not any(one["method"] == "notifications/cancelled" for one in seen):
                seen = (await client.request("vendor/seen")).result["seen"]
    # A shared process has seen calls of other clients too.
    (call,) = [one for one in seen if one.get("params") == params]
    (withdrawn,) = [one for one in seen if one["method"] == "notifications/cancelled"]
    assert withdrawn["params"]["requestId"] == call["id"]
    assert withdrawn["params"]["reason"] == "no longer needed"
