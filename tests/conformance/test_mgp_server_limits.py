"""Servers that are ended for being idle, or for using too much, and what follows. (MGP §11.4)"""

import json
from pathlib import Path

import pytest

from tests.conformance.supervised import Gateway, Watch, gateway, mortal, refusal_in, steps
from tests.conformance.ways import Entry, Frame


def written(diary: Path) -> list[str]:
    """For which reasons the server was asked to go, in their order."""
    lines = diary.read_text().splitlines() if diary.exists() else []
    return [json.loads(line)["reason"] for line in lines]


async def used_again(house: Gateway, watch: Watch) -> Frame:
    """What the first call is told after the end, and then the answer of one that is served."""
    refused = await watch.talk.call("echo")
    await house.until_state(watch.server, "connected")
    return refused.response


@pytest.mark.requirement("MGP-11.4-idle_timeout")
async def test_a_server_that_nobody_uses_is_ended_and_starts_again_when_it_is_used(
    tmp_path: Path,
) -> None:
    diary = tmp_path / "diary"
    idle: Entry = {**mortal("idle", mgp=True, diary=diary), "idle_timeout": "2s"}
    servers = {"idle": idle, "near": mortal("near")}
    with gateway(tmp_path, servers) as house:
        async with house.watching("idle") as watch:
            told = await watch.until("disconnected")
            assert steps(told)[-2:] == [("connected", "draining"), ("draining", "disconnected")]
            assert told[-1]["reason"] == "idle_timeout"
            listed = await watch.talk.client.request("tools/list", {})
            assert any(tool["name"] == "idle__echo" for tool in listed.result["tools"])
            code, body = refusal_in(await used_again(house, watch))
            assert (code, body["_mgp"]["retryable"]) == (2000, True)
            called = await watch.talk.call("echo")
            assert called.result["structuredContent"]["from"] == "idle"
        assert (await house.look("near"))["state"] == "connected"
    assert written(diary)[0] == "idle_timeout"


@pytest.mark.requirement("MGP-11.4-resource_limit")
async def test_a_server_that_holds_too_much_memory_has_failed(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    care = {"max_restarts": 1, "backoff_base_ms": 50, "backoff_max_ms": 50}
    greedy: Entry = {**mortal("greedy", mgp=True, diary=diary, **care), "max_memory_mb": 1}
    with gateway(tmp_path, {"greedy": greedy, "near": mortal("near")}) as house:
        ended = await house.until(
            "greedy", lambda found: found["state"] == "disconnected" and found["restarts"] == 1
        )
        assert ended["reason"] == "resource_limit"
        # Nothing starts it again but a word: it was started again as often as it may be.
        async with house.watching("greedy") as watch:
            _, body = refusal_in((await watch.talk.call("echo")).response)
            assert body["error_type"] == "server_stopped"
        assert (await house.look("near"))["state"] == "connected"
    assert written(diary) == ["resource_limit", "resource_limit"]
