"""The states of a server's life as clients meet them, from first to last. (MGP §11.2 to §11.4)"""

import asyncio
import json
from pathlib import Path

import pytest

from tests.conformance.realm import PLAIN
from tests.conformance.servers.talker_words import GO
from tests.conformance.supervised import LIFECYCLE, gateway, mortal, refusal_in, steps
from tests.conformance.ways import Entry, Frame, Talk, on_pipes
from tests.interop.hand_client import SECONDS, Exchange

BEGUN = "notifications/talker.waiting"


class Held:
    """A call that its server has begun and will not answer before it is let go."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._begun = asyncio.Event()
        self._asked = asyncio.ensure_future(talk.call("wait", meanwhile=self._hear))

    async def _hear(self, frame: Frame) -> None:
        if frame["method"] == BEGUN:
            self._begun.set()

    async def begun(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self._begun.wait()

    async def let_go(self) -> Exchange:
        await self._talk.client.notify(GO)
        async with asyncio.timeout(SECONDS):
            return await self._asked


@pytest.mark.requirement("MGP-11.2-registered", "MGP-11.2-t-start", "MGP-11.2-connecting")
@pytest.mark.requirement("MGP-11.2-t-ok", "MGP-11.2-connected", "MGP-11.2-t-fail", "MGP-11.2-error")
async def test_a_server_that_is_added_is_registered_then_connects_or_fails(tmp_path: Path) -> None:
    servers: dict[str, Entry] = {"near": mortal("near")}
    added: dict[str, Entry] = {
        "sound": mortal("sound"),
        "broken": {"command": "no-such-program", "mgp": {"restart_policy": "never"}},
    }
    with gateway(tmp_path, servers) as house:
        async with house.watching("sound") as sound, house.watching("broken") as broken:
            house.configure({**servers, **added})
            began = await sound.until("connected")
            failed = await broken.until("error")
            called = await sound.talk.call("echo")
            listed = await sound.talk.client.request("mgp/discovery/list", {})
    assert steps(began) == [("registered", "connecting"), ("connecting", "connected")]
    assert steps(failed) == [("registered", "connecting"), ("connecting", "error")]
    assert "no-such-program" in failed[-1]["reason"]
    assert called.result["structuredContent"]["from"] == "sound"
    found = {server["id"]: server["status"] for server in listed.result["servers"]}
    assert found == {"near": "connected", "sound": "connected", "broken": "error"}


@pytest.mark.requirement("MGP-11.2-draining", "MGP-11.2-t-drain", "MGP-11.2-t-drainrestart")
@pytest.mark.requirement("MGP-11.2-restarting", "MGP-14.3-2001")
@pytest.mark.requirement("MGP-14.2-range-2000")
@pytest.mark.parametrize("mgp", [False, True], ids=["plain", "mgp"])
async def test_a_server_that_drains_finishes_what_is_open_and_takes_nothing_new(
    tmp_path: Path, mgp: bool
) -> None:
    with gateway(tmp_path, {"near": mortal("near", mgp=mgp)}) as house:
        all_servers = house.among_all("near")
        async with (
            house.watching("near") as watch,
            house.own("near").talk(PLAIN) as caller,
            all_servers.talk(PLAIN) as plain,
        ):
            held = Held(caller)
            await held.begun()
            ordered = asyncio.ensure_future(house.order("near", "restart"))
            drained = await watch.until("draining")
            code, body = refusal_in((await watch.talk.call("echo")).response)
            plainly, words = refusal_in((await plain.call("echo")).response)
            finished = await held.let_go()
            restarted = await watch.until("connected")
            await ordered
            again = await plain.call("echo")
    assert steps(drained) == [("connected", "draining")]
    assert (code, plainly) == (2001, -32603)
    assert body["error_type"] == words["error_type"] == "server_draining"
    assert body["_mgp"]["category"] == "lifecycle"
    assert (body["_mgp"]["retryable"], words["retryable"]) == (True, True)
    assert finished.result["content"][0]["text"] == "went"
    # From restarting to connected it goes by way of connecting, as from anywhere else. (D-20)
    assert steps(restarted) == [
        ("draining", "restarting"),
        ("restarting", "connecting"),
        ("connecting", "connected"),
    ]
    assert again.result["structuredContent"]["from"] == "near"


@pytest.mark.requirement("MGP-11.2-disconnected", "MGP-11.2-t-drained", "MGP-14.3-2000")
async def test_a_server_that_is_stopped_stays_so_and_says_so(tmp_path: Path) -> None:
    with gateway(tmp_path, {"near": mortal("near", mgp=True, restart_policy="always")}) as house:
        async with house.watching("near") as watch, house.own("near").talk(LIFECYCLE) as talk:
            stopped = await house.order("near", "stop")
            told = await watch.until("disconnected")
            code, body = refusal_in((await talk.call("echo")).response)
            await house.order("near", "start")
            await watch.until("connected")
    assert stopped["state"] == "disconnected"
    assert steps(told) == [("connected", "draining"), ("draining", "disconnected")]
    assert {step["reason"] for step in told} == {"operator_request"}
    assert (code, body["_mgp"]["retryable"]) == (2000, False)


@pytest.mark.requirement("MGP-11.2-restarting", "MGP-11.2-t-errrestart", "MGP-14.3-2002")
@pytest.mark.requirement("MGP-14.5-retry_after_ms")
async def test_whoever_calls_a_server_that_restarts_is_told_when_to_come_back(
    tmp_path: Path,
) -> None:
    with gateway(tmp_path, {"near": mortal("near", backoff_base_ms=6000)}) as house:
        way = house.among_all("near")
        async with house.watching("near") as watch, way.talk(PLAIN) as plain:
            await plain.call("die")
            told = await watch.until("restarting")
            code, body = refusal_in((await watch.talk.call("echo")).response)
            plainly, words = refusal_in((await plain.call("echo")).response)
            back = await watch.until("connected")
    assert steps(told) == [("connected", "error"), ("error", "restarting")]
    assert (code, plainly) == (2002, -32603)
    assert words["error_type"] == "server_restarting"
    # The wait before the start, at least half of what was written, and what a start takes.
    assert body["_mgp"]["retry_after_ms"] >= words["retry_after_ms"] > 0
    assert 2_000 < body["_mgp"]["retry_after_ms"] < 60_000
    assert body["_mgp"]["retry_strategy"] == "fixed_delay"
    assert steps(back) == [("restarting", "connecting"), ("connecting", "connected")]


@pytest.mark.requirement("MGP-11.4-operator_request", "MGP-11.4-configuration_change")
@pytest.mark.requirement("MGP-11.4-kernel_shutdown", "MGP-11.4-shutdown-timeout")
async def test_a_server_that_can_is_asked_to_go_and_told_why_and_how_long_it_has(
    tmp_path: Path,
) -> None:
    diary = tmp_path / "diary"
    names = ("stopped", "changed", "removed", "left", "plain")
    servers = {name: mortal(name, mgp=name != "plain", diary=diary) for name in names}
    with gateway(tmp_path, servers) as house:
        for name in ("stopped", "plain"):
            await house.order(name, "stop")
        changed = {**servers["changed"], "env": {**servers["changed"]["env"], "MORE": "1"}}
        kept = {name: servers[name] for name in ("stopped", "left", "plain")}
        house.configure({**kept, "changed": changed})
        async with asyncio.timeout(SECONDS):
            while len(_written(diary)) < 3:
                await asyncio.sleep(0.02)
        await house.until_state("changed", "connected")
    asked = {entry["server"]: entry for entry in _written(diary)[:3]}
    assert asked["stopped"]["reason"] == asked["removed"]["reason"] == "operator_request"
    assert asked["changed"]["reason"] == "configuration_change"
    ends = {entry["server"]: entry["reason"] for entry in _written(diary)[3:]}
    assert ends == {"left": "kernel_shutdown", "changed": "kernel_shutdown"}
    for entry in _written(diary):
        assert entry.keys() == {"server", "reason", "timeout_ms", "trace_id"}
        assert 0 < entry["timeout_ms"] <= 30_000


def _written(diary: Path) -> list[Frame]:
    lines = diary.read_text().splitlines() if diary.exists() else []
    return [json.loads(line) for line in lines]


@pytest.mark.requirement("MGP-11.3-nodepend")
@pytest.mark.parametrize(
    "health",
    [
        {"resources": {"memory_bytes": "plenty"}, "checks": {}},
        {"resources": None, "checks": 7},
        {"status": "degraded", "checks": {"api_key_configured": False}},
        {"status": ["no", "word"], "uptime_secs": -1},
    ],
    ids=json.dumps,
)
async def test_whatever_a_server_says_of_its_health_it_is_alive(
    tmp_path: Path, health: Frame
) -> None:
    spoken = mortal("near", mgp=True)
    env = {**spoken["env"], "TALKER_HEALTH": json.dumps(health)}
    entry = {**on_pipes("talker", **env), "health_interval": "0.1s"}
    with gateway(tmp_path, {"near": entry}) as house:
        async with house.own("near").talk(PLAIN) as talk:
            async with asyncio.timeout(SECONDS):
                while len(pings := await _pings(talk)) < 3:
                    await asyncio.sleep(0.2)
            assert (await talk.call("echo")).result
        found = await house.look("near")
    assert (found["state"], found["restarts"]) == ("connected", 0)
    assert all(ping["params"]["timestamp"] for ping in pings)


async def _pings(talk: Talk) -> list[Frame]:
    return [frame for frame in await talk.seen() if frame["method"] == "mgp/health/ping"]
