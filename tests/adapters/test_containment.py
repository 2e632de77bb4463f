"""Nothing that a server started outlives it, its stop, or the gateway's death by SIGKILL."""

import asyncio
import errno
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from comity.adapters.upstream import orders
from comity.adapters.upstream.command import Containment
from comity.adapters.upstream.containment import what_this_machine_allows, why_no_namespace
from comity.adapters.upstream.process import Limits
from tests.adapters.trees import LEAVING, STAYING, TREES, tree
from tests.adapters.witness import LONG, SHORT, Leash, Life, Witness, on_both_loops

PROMISED = 5.0
ALL_OF_IT = ("auto", "namespace")
every_tree = pytest.mark.parametrize("name", TREES)
every_kind = pytest.mark.parametrize("containment", ["auto", "group", "namespace"])
each_that_ends_all = pytest.mark.parametrize("containment", ALL_OF_IT)


async def skip_without(containment: Containment) -> None:
    if containment == "namespace":
        allowed = await what_this_machine_allows()
        if allowed.why_no_namespace:
            pytest.skip(allowed.why_no_namespace)


def is_let_go(name: str, containment: Containment) -> bool:
    return containment == "group" and name in LEAVING


async def see_it_end(leash: Leash, name: str, containment: Containment, youngest: int) -> None:
    if is_let_go(name, containment):
        assert leash.is_taut(), "more is ended than is promised: promise more"
        await Life(youngest).cut()
    async with asyncio.timeout(PROMISED):
        await leash.slack()


@every_kind
@every_tree
@on_both_loops
async def test_a_stopped_server_leaves_nothing(
    name: str, containment: Containment, tmp_path: Path
) -> None:
    await skip_without(containment)
    leash, witness = Leash(tmp_path), Witness()
    brief = Limits(linger=SHORT)
    server = await witness.start(tree(name, leash), limits=brief, containment=containment)
    youngest = int((await witness.next_line()).removeprefix(b"ready "))
    await server.stop(SHORT)
    assert (await witness.reason()).startswith("ended by signal")
    await see_it_end(leash, name, containment, youngest)


@every_kind
@every_tree
@on_both_loops
async def test_a_server_that_leaves_by_itself_leaves_nothing(
    name: str, containment: Containment, tmp_path: Path
) -> None:
    await skip_without(containment)
    leash, witness = Leash(tmp_path), Witness()
    brief = Limits(linger=SHORT)
    server = await witness.start(tree(name, leash), limits=brief, containment=containment)
    youngest = int((await witness.next_line()).removeprefix(b"ready "))
    server.send(b"leave")
    assert await witness.reason() == "exited with status 3"
    await see_it_end(leash, name, containment, youngest)


@asynccontextmanager
async def gateway(
    containment: Containment, leashes: dict[str, Leash], folder: Path
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, Sequence[int]]]:
    """A process of its own with a server of each kind of tree, and the youngest of each."""
    names = list(leashes)
    for name in names:
        (folder / f"{name}.py").write_text(tree(name, leashes[name]))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.adapters.trees", containment),
        *(str(folder / f"{name}.py") for name in names),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            ready = (await process.stdout.readline()).split()
        assert ready[:1] == [b"ready"]
        yield process, [int(word) for word in ready[1:]]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@each_that_ends_all
async def test_nothing_is_alive_five_seconds_after_the_gateway_was_killed(
    containment: Containment, tmp_path: Path
) -> None:
    await skip_without(containment)
    leashes = {name: Leash(tmp_path, name) for name in TREES}
    async with gateway(containment, leashes, tmp_path) as (process, _):
        assert all(leash.is_taut() for leash in leashes.values())
        process.kill()
        async with asyncio.timeout(PROMISED):
            for leash in leashes.values():
                await leash.slack()


async def test_in_a_group_only_what_stayed_in_it_dies_with_the_gateway(tmp_path: Path) -> None:
    """What is not promised there: daemons, and whatever began a session of its own."""
    leashes = {name: Leash(tmp_path, name) for name in TREES}
    async with gateway("group", leashes, tmp_path) as (process, youngest):
        process.kill()
        async with asyncio.timeout(PROMISED):
            for name in STAYING:
                await leashes[name].slack()
        left = [pid for name, pid in zip(TREES, youngest, strict=True) if name in LEAVING]
        for name, pid in zip(LEAVING, left, strict=True):
            assert leashes[name].is_taut()
            await Life(pid).cut()
            await leashes[name].slack()


@each_that_ends_all
async def test_a_server_that_heeds_the_end_of_its_input_is_not_hurried_by_the_gateways_death(
    containment: Containment, tmp_path: Path
) -> None:
    await skip_without(containment)
    leash, farewell = Leash(tmp_path), tmp_path / "farewell"
    code = f"""
import sys
print("ready 0", flush=True)
sys.stdin.read()
open({str(farewell)!r}, "w").write("all is written")
"""
    (tmp_path / "polite.py").write_text(leash.hold(code))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.adapters.trees", containment),
        str(tmp_path / "polite.py"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(30):
        await process.stdout.readline()
        process.kill()
        await process.wait()
        await leash.slack()
    assert farewell.read_text() == "all is written"


@each_that_ends_all
@on_both_loops
async def test_a_crowd_of_daemons_that_keeps_forking_is_ended(
    containment: Containment, tmp_path: Path
) -> None:
    await skip_without(containment)
    leash, witness = Leash(tmp_path), Witness()
    code = """
import time
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        signal.alarm(60)
        while True:
            if os.fork():
                os._exit(0)
            os.setsid()
            time.sleep(0.005)
print("ready", flush=True)
signal.pause()
"""
    brief = Limits(linger=SHORT)
    server = await witness.start(leash.hold(code), limits=brief, containment=containment)
    await witness.next_line()
    await server.stop(SHORT)
    async with asyncio.timeout(PROMISED):
        await leash.slack()


@each_that_ends_all
@on_both_loops
async def test_orphans_that_end_while_their_server_lives_are_collected(
    containment: Containment, tmp_path: Path
) -> None:
    await skip_without(containment)
    witness = Witness()
    code = """
import os, sys
for _ in range(10):
    if os.fork() == 0:
        os._exit(0 if os.fork() else os.setsid() or 0)
    os.wait()
print("ready", flush=True)
for line in sys.stdin:
    dead = 0
    for name in os.listdir("/proc"):
        try:
            dead += name.isdigit() and open(f"/proc/{name}/stat").read().split()[2:4] == WANTED
        except OSError: pass
    print(dead, flush=True)
""".replace("WANTED", '["Z", str(os.getppid())]' if containment == "auto" else '["Z", "1"]')
    server = await witness.start(code, containment=containment)
    await witness.next_line()
    server.send(b"count")
    while await witness.next_line() != b"0":
        server.send(b"count")
    await server.stop(LONG)


async def test_the_machine_says_what_it_allows_and_servers_get_it() -> None:
    allowed = await what_this_machine_allows()
    witness = Witness()
    server = await witness.start("")
    assert server.containment == allowed.kind
    await witness.reason()
    assert allowed.ends_daemons == (sys.platform == "linux")
    assert "ends with it and with the gateway" in allowed.promise
    assert bool(allowed.what_to_do) != allowed.ends_daemons


@pytest.mark.parametrize(
    ("where", "number", "said"),
    [
        (orders.NO_LINUX, 0, "are Linux's own; run the gateway there"),
        (orders.NO_PROC, errno.EACCES, "cannot be mounted (Permission denied); allow `mount`"),
        (orders.NO_NAMESPACE, errno.EPERM, "needs the capability CAP_SYS_ADMIN; run"),
        (orders.NO_NAMESPACE, errno.ENOSPC, "raise `user.max_pid_namespaces`"),
        (orders.NO_NAMESPACE, errno.ENOSYS, "refuses pid namespaces (Function not implemented)"),
    ],
)
def test_a_refusal_says_what_to_do(where: str, number: int, said: str) -> None:
    assert said in why_no_namespace(where, number)
