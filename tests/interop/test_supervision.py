"""Servers that are killed, leave, or are left behind, as real processes behind a real gateway."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.interop.conftest import command_of
from tests.interop.crowds import (
    SECONDS,
    Caller,
    Entry,
    Frame,
    Gateway,
    Held,
    ModernCaller,
    calling,
    deaf,
    growth,
    heard,
    hearing,
    light,
    processes_of,
    refusal,
    serving,
    until_forgotten,
    until_told,
)
from tests.interop.processes import free_port, operator_headers, running
from tests.support.figures import Tell

pytestmark = pytest.mark.timeout(300)

LIST_CHANGED = "notifications/tools/list_changed"
RESTARTS = 200
EAGER: Entry = {"backoff_base": "5ms", "backoff_max": "5ms", "max_restarts": 1_000_000}

doors = pytest.mark.parametrize("door", ["", "srv"], ids=["all-servers", "one-server"])
eras = pytest.mark.parametrize("era", [Caller, ModernCaller], ids=["handshake", "modern"])


async def until(is_so: Callable[[], object], seconds: float = SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.02)


@eras
@doors
async def test_a_killed_server_ends_its_calls_and_is_back_and_its_clients_are_told(
    tmp_path: Path, door: str, era: type[Caller]
) -> None:
    prefix = "" if door else "srv__"
    with serving(tmp_path, {"srv": light("srv", backoff_base="1s")}) as gateway:
        async with calling(gateway.door()) as anyone:
            await anyone.until_listed(["srv__say"])
        async with calling(gateway.door(door), era) as caller, hearing(caller) as told:
            before = heard(await caller.call(f"{prefix}say", n=1))["pid"]
            under_way = [asyncio.ensure_future(caller.call(f"{prefix}hold")) for _ in range(20)]
            await until_under_way(gateway, len(under_way))
            await until_forgotten(told)
            os.kill(before, signal.SIGKILL)
            for answer in await asyncio.gather(*under_way):
                refused = _refused(answer)
                assert refused["error_type"] == "upstream_failed"
                assert not refused["retryable"], "nobody knows whether it was done"
                assert "SIGKILL" in refused["reason"]
            refused = _refused(await caller.call(f"{prefix}say", n=2))
            assert refused["retryable"]
            # The connection can be known to be closed before the supervisor has seen the exit.
            if refused["error_type"] != "upstream_down":
                assert refused["error_type"] == "server_restarting"
                assert 100 <= refused["retry_after_ms"] <= 1000 + SECONDS * 1000
            after = heard(await caller.until_said(f"{prefix}say"))["pid"]
            assert after != before
            await until_told(told, LIST_CHANGED)


def _refused(answer: Frame) -> Frame:
    refused = refusal(answer)
    assert refused is not None, answer
    return refused


async def until_under_way(gateway: Gateway, calls: int) -> None:
    async with calling(gateway.door()) as caller, asyncio.timeout(SECONDS):
        while (await _status(caller, gateway))["calls"] < calls:
            await asyncio.sleep(0.02)


async def _status(caller: Caller, gateway: Gateway) -> Frame:
    return await _read(caller, gateway, "status")


async def _read(caller: Caller, gateway: Gateway, place: str) -> Frame:
    shown = operator_headers(gateway.origin)
    async with caller.http.get(f"{gateway.origin}/api/{place}", headers=shown) as reply:
        return await reply.json()


async def test_a_server_that_leaves_cleanly_is_started_again_when_it_is_used(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, {"srv": light("srv", "leaves")}) as gateway:
        async with calling(gateway.door()) as caller:
            await caller.until_listed(["srv__say"])
            first = heard(await caller.call("srv__say", n=1))["pid"]
            await until(lambda: not processes_of("srv"))
            refused = _refused(await until_refused(caller))
            assert (refused["error_type"], refused["retryable"]) == ("server_not_ready", True)
            assert heard(await caller.until_said("srv__say"))["pid"] != first


async def until_refused(caller: Caller) -> Frame:
    """Its end is known a moment after its process is gone."""
    async with asyncio.timeout(SECONDS):
        while (refused := refusal(answer := await caller.call("srv__say", n=2))) is None or (
            refused["error_type"] != "server_not_ready"
        ):
            await asyncio.sleep(0.02)
    return answer


async def test_a_server_that_always_crashes_is_given_up_and_says_what_to_do(
    tmp_path: Path,
) -> None:
    few = {"max_restarts": 2, "backoff_base": "10ms", "backoff_max": "10ms"}
    entry = {"command": "/bin/sh", "args": ["-c", "echo no such key >&2; exit 7"], **few}
    with serving(tmp_path, {"srv": entry}) as gateway:
        async with calling(gateway.door()) as caller:
            async with asyncio.timeout(SECONDS):
                while (await _status(caller, gateway))["servers"].get("error") != 1:
                    await asyncio.sleep(0.02)
            (troubled,) = (await _status(caller, gateway))["troubled"]
            assert "restart_limit_exceeded" in troubled["reason"]
            assert "no such key" in troubled["reason"]
            assert "comity servers restart srv" in troubled["reason"]
            own = await caller.http.post(
                gateway.door("srv"),
                json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}},
                headers={"accept": "application/json, text/event-stream"},
            )
            refused = _refused(await own.json())
            assert (refused["error_type"], refused["retryable"]) == ("server_stopped", False)


@pytest.mark.requirement("MGP-11.3-miss")
async def test_a_server_that_hangs_is_found_by_its_probes_and_started_again(
    tmp_path: Path,
) -> None:
    how: Entry = {"health_interval": "100ms", "backoff_base": "10ms"}
    with serving(tmp_path, {"srv": light("srv", "", **how)}) as gateway:
        async with calling(gateway.door()) as caller:
            await caller.until_listed(["srv__say"])
            pid = heard(await caller.call("srv__say", n=1))["pid"]
            os.kill(pid, signal.SIGSTOP)
            stopped = time.monotonic()
            await until(lambda: not psutil.pid_exists(pid))
            # It had three times the five seconds in which a probe is answered.
            assert time.monotonic() - stopped >= 3 * 5
            assert heard(await caller.until_said("srv__say", most=0.1))["pid"] != pid
            assert (await _read(caller, gateway, "servers/srv"))["restarts"] == 1


@eras
@pytest.mark.parametrize("noticed_by", ["probes", "calls"])
async def test_a_remote_server_that_dies_is_noticed_and_its_clients_are_told_when_it_is_back(
    tmp_path: Path, era: type[Caller], noticed_by: str
) -> None:
    port = free_port()
    how: Entry = {"backoff_base": "50ms", "backoff_max": "100ms"}
    how["health_interval"] = "100ms" if noticed_by == "probes" else 0
    entry = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp", **how}
    far = running(command_of("far", str(port), "srv", "both"))
    with serving(tmp_path, {"srv": entry}) as gateway, ExitStack() as stack:
        program = stack.enter_context(far)
        async with calling(gateway.door(), era) as caller, hearing(caller) as told:
            await caller.until_listed(["srv__say"])
            assert heard(await caller.call("srv__say", n=1))["heard"] == {"n": 1}
            program.stop()
            async with asyncio.timeout(SECONDS):
                while (await _status(caller, gateway))["servers"].get("connected"):
                    if noticed_by == "calls":
                        _refused(await caller.call("srv__say", n=2))
                    await asyncio.sleep(0.02)
            refused = _refused(await caller.call("srv__say", n=3))
            assert (refused["error_type"], refused["retryable"]) == ("server_restarting", True)
            await until_forgotten(told)
            with running(command_of("far", str(port), "srv", "both")):
                assert heard(await caller.until_said("srv__say", most=0.2))["heard"] == {"n": 1}
                await until_told(told, LIST_CHANGED)


async def test_two_hundred_restarts_leave_nothing_behind(tmp_path: Path, tell: Tell) -> None:
    with serving(tmp_path, {"srv": light("srv", "", **EAGER)}) as gateway:
        async with calling(gateway.door()) as caller, asyncio.timeout(SECONDS * 2):
            await caller.until_listed(["srv__say"])
            samples = list[Held]()
            for number in range(RESTARTS + 1):
                pid = heard(await caller.until_said("srv__say", most=0.02))["pid"]
                if number % 10 == 0:
                    samples.append(await gateway.held())
                os.kill(pid, signal.SIGKILL)
                await until(lambda pid=pid: not psutil.pid_exists(pid))
            await caller.until_said("srv__say")
        assert len(processes_of("srv")) == 1
    assert processes_of("srv") == []
    # The first restarts fill pools that stay.
    first, *later = samples[3:]
    each = growth([one.memory for one in later]) / 10
    objects = growth([one.objects for one in later]) / 10
    tell(f"{RESTARTS} restarts, {first} and then {later[-1]}")
    tell(f"{each:.0f} bytes of memory and {objects:.1f} objects for each")
    assert later[-1].processes == first.processes
    assert max(one.files for one in later) <= first.files
    assert objects < 1
    # The page cache of the temporary store grows with the audit log, up to two megabytes. A pipe
    # or a process that is left behind is found above.
    assert each < 4096


async def test_no_child_outlives_a_gateway_that_is_killed(tmp_path: Path) -> None:
    servers = {
        "plain": light("plain"),
        "stubborn": deaf("stubborn", "stubborn"),
        "orphan": light("orphan", "orphan"),
        "floods": light("floods", "floods"),
        "hangs": light("hangs", "hangs"),
    }
    with serving(tmp_path, servers) as gateway:
        async with calling(gateway.door()) as caller:
            await caller.until_listed(f"{name}__say" for name in ("plain", "stubborn", "orphan"))
        await until(lambda: all(processes_of(name) for name in servers))
        assert len(processes_of("orphan")) >= 2, "it has left one behind"
        os.kill(gateway.program.pid, signal.SIGKILL)
        killed = time.monotonic()
        with contextlib.suppress(TimeoutError):
            await until(lambda: not any(processes_of(name) for name in servers), 5)
        left = {name: len(processes_of(name)) for name in servers if processes_of(name)}
        for name in left:
            for process in processes_of(name):
                process.kill()
    assert left == {}, f"alive {time.monotonic() - killed:.1f} s after the gateway"
