"""The keeper and its guards stand between the gateway and the servers, and are hard to notice."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from comity.adapters.upstream.command import Command, Containment, begin
from comity.adapters.upstream.process import Limits, ServerProcess
from comity.wire.errors import Unavailable
from tests.adapters.test_containment import each_that_ends_all, every_kind, skip_without
from tests.adapters.trees import tree
from tests.adapters.witness import LONG, SHORT, Leash, Life, Signpost, Witness, on_both_loops

ECHO = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""
BRIEF = Limits(linger=SHORT)


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
        command = Command(("cat",), {}, containment=containment)
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
            await begin(Command(("no-such-program",), {}))
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
    command = Command(("grep", "^Sig[BI]", "/proc/self/status"), {}, containment=containment)
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
        limits=Limits(linger=LONG),
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
from comity.adapters.upstream.command import Command, begin
from comity.wire.errors import Unavailable
try:
    asyncio.run(begin(Command(("true",), {}, containment="namespace")))
except Unavailable as refused:
    print(refused)
"""
    without = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    argv = (*(without if os.geteuid() == 0 else ()), sys.executable, "-c", code)
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert said.decode().startswith("cannot start 'true': a pid namespace needs the capability")
    assert said.endswith(b"or set its `containment` to `auto`\n")
