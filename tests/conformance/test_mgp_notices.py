"""Every step in a server's life, as those are told who agreed to be told. (MGP §11.4, D-21)"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from tests.conformance.realm import PLAIN, SPOKEN, offer, realm
from tests.conformance.ways import Frame, House, Talk
from tests.interop.hand_client import SECONDS

NOTICE = "notifications/mgp.lifecycle"
STEPS = [
    ("connected", "error"),
    ("error", "restarting"),
    ("restarting", "connecting"),
    ("connecting", "connected"),
]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with realm(tmp_path_factory.mktemp("notices")) as house:
        yield house


async def told_of(talk: Talk, server: str, last: str) -> list[Frame]:
    """The notices about one server, up to the one that tells of its last state."""
    told: list[Frame] = []
    async with asyncio.timeout(SECONDS):
        while not told or told[-1]["new_state"] != last:
            notice = await talk.told(NOTICE)
            assert notice.keys() == {"jsonrpc", "method", "params"}
            if notice["params"]["server_id"] == server:
                told.append(notice["params"])
    return told


def methods_in(talk: Talk) -> list[str]:
    waiting = talk.client.standalone
    return [waiting.get_nowait()["method"] for _ in range(waiting.qsize())]


@pytest.mark.requirement("MGP-1.5-notifprefix", "MGP-2.2-ext-lifecycle", "MGP-11.4-lifecycle")
@pytest.mark.requirement("MGP-11.2-t-errrestart", "MGP-11.2-t-ok", "MGP-11.2-error")
@pytest.mark.requirement("MGP-11.2-restarting", "MGP-11.2-connecting", "MGP-11.2-connected")
@pytest.mark.parametrize("server", ["near", "mgpnear"])
async def test_whoever_agreed_is_told_of_each_step_in_order(house: House, server: str) -> None:
    before = datetime.now(UTC)
    async with house.among_all(server).talk(offer("lifecycle")) as talk:
        await talk.client.listen()
        await talk.call("die")
        told = await told_of(talk, server, "connected")
    assert [(step["previous_state"], step["new_state"]) for step in told] == STEPS
    for step in told:
        assert step.keys() == {
            "server_id",
            "previous_state",
            "new_state",
            "reason",
            "timestamp",
        }
        at = datetime.fromisoformat(step["timestamp"])
        assert before - timedelta(seconds=1) <= at <= datetime.now(UTC) + timedelta(seconds=1)
        assert isinstance(step["reason"], str)
    assert told[0]["reason"]


@pytest.mark.requirement("MGP-1.2-negotiated", "MGP-2.4-intersection")
async def test_nobody_else_is_told(house: House) -> None:
    """A client without MGP, one without the extension, and one at the server's own door."""
    async with AsyncExitStack() as stack:
        hears = await stack.enter_async_context(house.among_all("near").talk(offer("lifecycle")))
        others = [
            await stack.enter_async_context(way.talk(capabilities))
            for way, capabilities in (
                (house.among_all("near"), PLAIN),
                (house.among_all("near"), offer("discovery")),
                (house.own("far"), offer("lifecycle")),
            )
        ]
        for talk in (hears, *others):
            await talk.client.listen()
        await hears.call("die")
        await told_of(hears, "near", "connected")
        for talk in others:
            # What was told before the answer to this has come by now.
            await talk.client.request("ping", {})
            assert NOTICE not in methods_in(talk)


async def test_what_a_server_tells_of_itself_and_of_others_goes_no_further(house: House) -> None:
    spoof = {"server_id": "far", "previous_state": "connected", "new_state": "error"}
    lie = {"method": NOTICE, "params": {**spoof, "reason": "gone", "timestamp": "now"}}
    true = {"method": "notifications/talker.said"}
    assert "lifecycle" in SPOKEN["extensions"]
    for server in ("mgpnear", "mgpfar", "near"):
        async with house.among_all(server).talk(offer("lifecycle")) as talk:
            await talk.listen()
            amid = await talk.call("tell", {"notices": [lie, true]})
            apart = await talk.call("tell", {"notices": [lie, true], "standalone": True})
            assert not amid.said(NOTICE) + apart.said(NOTICE)
            assert amid.said(true["method"])
            if not apart.said(true["method"]):
                assert NOTICE not in await heard_until(talk, true["method"])


async def heard_until(talk: Talk, method: str) -> list[str]:
    """The methods of what comes on the standing stream, up to this one."""
    heard: list[str] = []
    async with asyncio.timeout(SECONDS):
        while method not in heard:
            heard.append((await talk.client.standalone.get())["method"])
    return heard
