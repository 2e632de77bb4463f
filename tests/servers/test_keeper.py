"""The process guard ends everything that a server started, and is hard to notice itself."""

import asyncio
import errno
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.errors import Unavailable
from comity.servers.process import keeper
from comity.servers.process.keeper_client import detect_containment, namespace_problem
from comity.servers.process.process import (
    Containment,
    ProcessLimits,
    ServerCommand,
    ServerProcess,
    start_process,
)
from tests.servers.trees import LEAVING, STAYING, TREES, tree
from tests.servers.witness import LONG, SHORT, Leash, Life, Signpost, Witness, on_both_loops
from tests.support.cases import loop_over

pytestmark = pytest.mark.integration

PROMISED = 5.0

ALL_OF_IT = ("auto", "namespace")

every_tree = pytest.mark.parametrize("name", TREES)

every_kind = pytest.mark.parametrize("containment", ["auto", "group", "namespace"])

each_that_ends_all = pytest.mark.parametrize("containment", ALL_OF_IT)


async def skip_without(containment: Containment) -> None:
    if containment == "namespace":
        allowed = await detect_containment()
        if allowed.namespace_problem:
            pytest.skip(allowed.namespace_problem)


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
    brief = ProcessLimits(linger=SHORT)
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
    brief = ProcessLimits(linger=SHORT)
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
        *(sys.executable, "-m", "tests.servers.trees", containment),
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
        *(sys.executable, "-m", "tests.servers.trees", containment),
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
    brief = ProcessLimits(linger=SHORT)
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
    allowed = await detect_containment()
    witness = Witness()
    server = await witness.start("")
    assert server.containment == allowed.kind
    await witness.reason()
    assert allowed.ends_daemons == (sys.platform == "linux")
    promise = "all child processes" if allowed.ends_daemons else "processes in a server's process"
    assert allowed.promise.startswith(promise)
    assert bool(allowed.advice) != allowed.ends_daemons


@loop_over(
    ("where", "number", "said"),
    [
        (keeper.NO_LINUX, 0, "are Linux's own; run the gateway there"),
        (keeper.NO_PROC, errno.EACCES, "but `mount` failed (Permission denied); allow `mount`"),
        (keeper.NO_NAMESPACE, errno.EPERM, "needs the capability CAP_SYS_ADMIN; run"),
        (keeper.NO_NAMESPACE, errno.ENOSPC, "raise `user.max_pid_namespaces`"),
        (keeper.NO_NAMESPACE, errno.ENOSYS, "refuses pid namespaces (Function not implemented)"),
    ],
)
def test_a_refusal_says_what_to_do(where: str, number: int, said: str) -> None:
    assert said in namespace_problem(where, number)


ECHO = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""

BRIEF = ProcessLimits(linger=timedelta(seconds=1))

"""How long a server may live without its output: far longer than the news of a death takes."""


def above(server: ServerProcess) -> list[psutil.Process]:
    """Whoever stands between the server and this process, the nearest first."""
    ours, chain = psutil.Process(), [psutil.Process(server.pid).parent()]
    while chain[-1] is not None and chain[-1] != ours:
        chain.append(chain[-1].parent())
    return [each for each in chain[:-1] if each is not None]


def pipes_of(process: int) -> set[str]:
    entries = [entry for entry in Path(f"/proc/{process}/fd").iterdir() if entry.is_symlink()]
    return {name for entry in entries if (name := entry.readlink().name).startswith("pipe:")}


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


async def no_more_than(before: set[psutil.Process]) -> None:
    """Wait until every process that was started for a server has ended, and been collected.

    Engines that other tests share are children of this process too.
    """
    while children() - before:
        await asyncio.sleep(0.01)


@every_kind
@on_both_loops
async def test_two_hundred_starts_and_stops_leave_nothing(containment: Containment) -> None:
    await skip_without(containment)

    async def live() -> None:
        witness = Witness()
        command = ServerCommand(("cat",), {}, containment=containment)
        server = await ServerProcess.start(command, witness.on_line, witness.on_exit)
        server.send(b"hello")
        assert await witness.next_line() == b"hello"
        await server.stop(LONG)
        assert await witness.reason() == "exited with status 0"

    others = children()
    # What the loop itself opens with the first of them, it keeps.
    await live()
    await no_more_than(others)
    before = psutil.Process().num_fds()
    for _ in range(10):
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(live())
    await no_more_than(others)
    assert psutil.Process().num_fds() == before


@on_both_loops
async def test_programs_that_cannot_be_started_leave_nothing_either() -> None:
    others = children()
    before = psutil.Process().num_fds()
    for _ in range(20):
        with pytest.raises(Unavailable):
            await start_process(ServerCommand(("no-such-program",), {}))
    await no_more_than(others)
    assert psutil.Process().num_fds() == before


@every_kind
@on_both_loops
async def test_when_a_guard_is_killed_its_server_ends_and_that_is_told(
    containment: Containment, tmp_path: Path
) -> None:
    await skip_without(containment)
    leash, witness = Leash(tmp_path), Witness()
    kind = "stubborn" if containment == "group" else "daemon"
    server = await witness.start(tree(kind, leash), limits=BRIEF, containment=containment)
    await witness.next_line()
    above(server)[0].kill()
    said = "was ended, because the process that guarded it was killed"
    assert await witness.reason() == said
    await leash.slack()
    await server.stop(LONG)


@every_kind
@on_both_loops
async def test_when_the_keeper_is_killed_servers_live_on_and_new_ones_start(
    containment: Containment, tmp_path: Path
) -> None:
    await skip_without(containment)
    leash = Leash(tmp_path)
    first, second = Witness(), Witness()
    server = await first.start(leash.hold(ECHO), containment=containment)
    keeper = Life(above(server)[-1].pid)
    await keeper.cut()
    other = await second.start(leash.hold(ECHO), containment=containment)
    for each, witness in ((server, first), (other, second)):
        each.send(b"still here")
        assert await witness.next_line() == b"still here"
        await each.stop(LONG)
        assert witness.reasons == ["exited with status 0"]
    await leash.slack()


@every_kind
@on_both_loops
async def test_what_stops_a_whole_service_leaves_the_order_of_stopping_to_the_gateway(
    containment: Containment,
) -> None:
    await skip_without(containment)
    witness = Witness()
    server = await witness.start(ECHO, containment=containment)
    for process in above(server):
        for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            process.send_signal(sign)
    server.send(b"still here")
    assert await witness.next_line() == b"still here"
    await server.stop(LONG)
    assert witness.reasons == ["exited with status 0"]


@every_kind
@on_both_loops
async def test_a_server_meets_every_signal_as_the_system_has_it(containment: Containment) -> None:
    await skip_without(containment)
    witness = Witness()
    command = ServerCommand(("grep", "^Sig[BI]", "/proc/self/status"), {}, containment=containment)
    await ServerProcess.start(command, witness.on_line, witness.on_exit)
    await witness.reason()
    said = {line.split()[0]: int(line.split()[1], 16) for line in witness.lines}
    assert said == {b"SigBlk:": 0, b"SigIgn:": 0}


@each_that_ends_all
@on_both_loops
async def test_a_server_does_not_take_itself_for_an_orphan_and_proc_tells_the_truth(
    containment: Containment,
) -> None:
    """Many servers leave when their parent's number is 1 or 0."""
    await skip_without(containment)
    witness = Witness()
    show = "import os; print(os.getppid() > 1, os.readlink('/proc/self') == str(os.getpid()))"
    server = await witness.start(show, containment=containment)
    assert await witness.next_line() == b"True True"
    await witness.reason()
    assert server.containment == ("namespace" if containment == "namespace" else "reaper")


@every_kind
@on_both_loops
async def test_nobody_else_holds_the_pipes_of_a_server(
    containment: Containment, tmp_path: Path
) -> None:
    """Else its end would not be seen; and one server must not reach into another."""
    await skip_without(containment)
    witness, neighbour, signpost = Witness(), Witness(), Signpost(tmp_path)
    server = await witness.start(
        f"import os, signal; os.close(1); os.close(2); os.close(0); "
        f"open({str(signpost.path)!r}, 'w').write('closed'); signal.pause()",
        containment=containment,
        limits=ProcessLimits(linger=LONG),
    )
    other = await neighbour.start(ECHO, containment=containment)
    await signpost.reached()
    ours = pipes_of(os.getpid())
    for process in {*above(server), *above(other)}:
        assert not pipes_of(process.pid) & ours
    await server.stop(SHORT)
    await other.stop(LONG)


@on_both_loops
async def test_a_namespace_that_cannot_be_had_is_refused_with_what_to_do() -> None:
    """A gateway without the capability for it says so, and starts nothing."""
    code = """
import asyncio
from comity.servers.process.process import ServerCommand, start_process
from comity.errors import Unavailable
try:
    asyncio.run(start_process(ServerCommand(("true",), {}, containment="namespace")))
except Unavailable as refused:
    print(refused)
"""
    without = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    argv = (*(without if os.geteuid() == 0 else ()), sys.executable, "-c", code)
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert said.decode().startswith("cannot start 'true': a pid namespace needs the capability")
    assert said.endswith(b"or set its `process_cleanup` to `auto`\n")


words = st.binary().filter(lambda word: b"\0" not in word)

names = words.filter(lambda word: word != b"" and b"=" not in word)


@given(
    argv=st.lists(words, min_size=1),
    env=st.dictionaries(names, words),
    cwd=words,
    files=st.lists(words),
    ignores=st.booleans(),
)
def test_an_order_is_read_as_it_was_written(
    argv: list[bytes], env: dict[bytes, bytes], cwd: bytes, files: list[bytes], *, ignores: bool
) -> None:
    written = keeper.ProcessOrder(argv, env, cwd, ignores_signals=ignores, member_files=files)
    packed = keeper.pack_order(written)
    assert keeper.length_of(packed) == len(packed) - 4
    order = keeper.unpack_order(packed[4:])
    assert (order.argv, order.env, order.cwd) == (argv, env, cwd)
    assert (order.member_files, order.ignores_signals) == (files, ignores)


@loop_over(
    ("argv", "env", "cwd"),
    [
        ([], {}, b"/"),
        ([b"a\0b"], {}, b"/"),
        ([b"a"], {b"": b"x"}, b"/"),
        ([b"a"], {b"a=b": b"x"}, b"/"),
        ([b"a"], {b"a": b"x\0"}, b"/"),
        ([b"a"], {}, b"/\0"),
    ],
)
def test_what_no_system_could_run_is_refused(
    argv: list[bytes], env: dict[bytes, bytes], cwd: bytes
) -> None:
    with pytest.raises(ValueError, match=r"no program|NUL"):
        keeper.pack_order(keeper.ProcessOrder(argv, env, cwd))
