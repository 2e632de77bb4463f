"""The start of a confined server and the CPU of its calls, beside the same server unconfined.

The usual run shows that both serve the same calls. `COMITY_WHOLE=1` measures, and asserts both.
"""

import json
import os
import socket
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path

import aiohttp
import psutil
import pytest

from comity.cli.api_client import find_gateway_by_url
from comity.servers.process.process import ServerCommand, ServerProcess
from comity.servers.sandbox.egress import EgressProxy, open_stream
from comity.servers.sandbox.egress_rules import EgressRules
from comity.servers.sandbox.model import SandboxAccess, SandboxLimits
from comity.servers.sandbox.reach import FolderHandles
from comity.servers.sandbox.service import NetworkProxy, SandboxRequest, SandboxService
from tests.interop.processes import comity, operator_headers
from tests.support.carriers import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"),
]

IS_WHOLE = bool(os.environ.get("COMITY_WHOLE"))
STARTS = 15 if IS_WHOLE else 1
ROUNDS, CALLS = (9, 1000) if IS_WHOLE else (1, 20)
MAX_START_MS = 150
MAX_CPU_RATIO = 1.05
SCRIPT = Path(__file__).parents[1] / "support" / "stdio_server.py"


def refusing_proxy(server: str, hosts: tuple[str, ...], listener: socket.socket) -> NetworkProxy:
    async def resolve(name: str) -> list[str]:
        raise AssertionError(f"{name} was resolved")

    return EgressProxy(
        server,
        listener,
        EgressRules(hosts),
        resolve=resolve,
        connect=open_stream(None),
        on_event=lambda _: None,
    )


async def start_ms(service: SandboxService, level: str) -> float:
    """Return the time from the order to the first line of a program."""
    began, lines = time.perf_counter(), list[bytes]()
    command = ServerCommand((sys.executable, "-I", "-S", "-c", "print(1, flush=True); input()"), {})
    request = SandboxRequest(
        level, must_confine=False, access=SandboxAccess(), limits=SandboxLimits()
    )
    run = await service.enter("measured", command, request, FolderHandles({}))
    process = await ServerProcess.start(run.command, lines.append, lambda _: None)
    await until(lambda: bool(lines))
    took = (time.perf_counter() - began) * 1000
    await process.stop(timedelta(seconds=2))
    await run.close()
    return took


async def test_a_confined_server_starts_little_later() -> None:
    service = SandboxService(refusing_proxy)
    best = (await service.machine()).best.label
    took: dict[str, list[float]] = {"none": [], best: []}
    for _ in range(STARTS):
        for level, times in took.items():
            times.append(await start_ms(service, level))
    await service.close()
    plain, confined = (statistics.median(times) for times in took.values())
    print(f"start: {plain:.0f} ms without, {confined:.0f} ms at level {best}")
    if IS_WHOLE:
        assert confined - plain <= MAX_START_MS


def cpu_seconds(gateway: psutil.Process) -> float:
    """Return the CPU time of a gateway and of all processes below it."""
    total = 0.0
    for each in (gateway, *gateway.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


async def test_a_call_of_a_confined_server_costs_no_more(tmp_path: Path) -> None:
    entries = [
        f'[[servers]]\nid = "{name}"\ncommand = {json.dumps(sys.executable)}\n'
        f"args = [{json.dumps(str(SCRIPT))}]\n{more}"
        for name, more in (("plain", ""), ("confined", '[servers.policy]\ntrust = "sandboxed"\n'))
    ]
    config = tmp_path / "comity.toml"
    config.write_text("\n".join(entries))
    spent: dict[str, list[float]] = {"plain": [], "confined": []}
    with comity(config) as origin:
        record = find_gateway_by_url(origin)
        assert record is not None
        gateway = psutil.Process(record.pid)
        async with aiohttp.ClientSession(origin, headers=operator_headers(origin)) as http:
            for _ in range(ROUNDS):
                for server, seconds in spent.items():
                    before = cpu_seconds(gateway)
                    for _ in range(CALLS):
                        async with http.post(f"/tools/{server}__plain", json={}) as answer:
                            assert answer.status == 200
                    seconds.append(cpu_seconds(gateway) - before)
    ratio = statistics.median(spent["confined"]) / max(statistics.median(spent["plain"]), 1e-9)
    print(f"CPU per call, confined to plain: {ratio:.3f}")
    if IS_WHOLE:
        assert ratio <= MAX_CPU_RATIO
