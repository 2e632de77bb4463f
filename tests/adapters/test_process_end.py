"""However a server ends, it is told once and late enough, and nothing of it stays behind."""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from comity.adapters.upstream import command, process
from comity.adapters.upstream.command import Command
from comity.adapters.upstream.keeping import Child
from comity.adapters.upstream.process import Limits, ServerProcess, done_within
from tests.adapters.witness import (
    LONG,
    SHORT,
    Leash,
    Life,
    Signpost,
    Witness,
    on_both_loops,
    some_turns,
)

BRIEF = Limits(linger=SHORT)
PATIENT = Limits(linger=LONG)


def with_grandchild(then: str, before: str = "pass") -> str:
    """The grandchild ignores what can be ignored, keeps every pipe, and is named on stdout.

    The alarm ends it where a failing test does not.
    """
    return f"""
import os, signal
ready, told = os.pipe()
grandchild = os.fork()
if grandchild == 0:
    {before}
    signal.alarm(120)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(told, b"ready")
    while True: signal.pause()
os.read(ready, 5)
print(grandchild, flush=True)
{then}
"""


@on_both_loops
async def test_a_server_that_exits_at_once_is_told_once() -> None:
    witness = Witness()
    server = await witness.start("import sys; sys.exit('no configuration')")
    assert await witness.reason() == "exited with status 1; it last said: no configuration"
    assert server.returncode == 1


@on_both_loops
async def test_an_end_by_signal_is_told_by_name() -> None:
    witness = Witness()
    server = await witness.start("import os; os.kill(os.getpid(), 9)")
    assert await witness.reason() == "ended by signal 9 (SIGKILL)"
    assert server.returncode == -9


@on_both_loops
async def test_a_signal_without_a_name_is_told_by_number() -> None:
    witness = Witness()
    await witness.start("import os; os.kill(os.getpid(), 40)")
    assert await witness.reason() == "ended by signal 40"


READS_TO_THE_END = """
import sys
heard = sys.stdin.readlines()
print("goodbye after", len(heard))
"""


@on_both_loops
async def test_a_server_that_heeds_the_end_of_its_input_leaves_in_peace() -> None:
    witness = Witness()
    server = await witness.start(READS_TO_THE_END)
    for _ in range(5000):
        server.send(b"x" * 100)
    await server.stop(LONG)
    assert witness.reasons == ["exited with status 0"]
    assert witness.lines == [b"goodbye after 5000"]


@on_both_loops
async def test_a_server_that_ignores_the_end_of_its_input_is_asked_to_terminate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = iter([SHORT, LONG, LONG])

    async def next_wait(future: asyncio.Future[None], _: timedelta) -> bool:
        return await done_within(future, next(waits))

    monkeypatch.setattr(process, "done_within", next_wait)
    witness = Witness()
    code = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: (print("terminating", flush=True), os._exit(7)))
print("ready", flush=True)
while True: signal.pause()
"""
    server = await witness.start(code)
    await witness.next_line()
    await server.stop(LONG)
    assert witness.reasons == ["exited with status 7"]
    assert witness.lines == [b"ready", b"terminating"]


@on_both_loops
async def test_a_server_that_ignores_everything_is_killed() -> None:
    witness = Witness()
    code = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True: signal.pause()
"""
    server = await witness.start(code)
    await witness.next_line()
    await server.stop(SHORT)
    assert witness.reasons == ["ended by signal 9 (SIGKILL)"]


@on_both_loops
async def test_stop_takes_the_whole_group() -> None:
    witness = Witness()
    code = with_grandchild("while True: signal.pause()")
    server = await witness.start(code, limits=PATIENT, containment="group")
    grandchild = Life(int(await witness.next_line()))
    await server.stop(SHORT)
    assert (await witness.reason()).startswith("ended by signal")
    await grandchild.end()


@on_both_loops
async def test_what_a_server_leaves_behind_goes_with_it() -> None:
    """The grandchild holds the pipes: were it alive, the end would be `LONG` in coming."""
    witness = Witness()
    await witness.start(with_grandchild("signal.raise_signal(15)"), limits=PATIENT)
    assert await witness.reason() == "ended by signal 15 (SIGTERM)"


@on_both_loops
async def test_it_goes_with_it_also_where_only_its_group_is_known() -> None:
    witness = Witness()
    code = with_grandchild("print('last'); raise SystemExit(4)")
    await witness.start(code, limits=PATIENT, containment="group")
    assert await witness.reason() == "exited with status 4"
    assert witness.lines[1:] == [b"last"]


@on_both_loops
async def test_pipes_held_from_another_session_do_not_delay_the_end_for_ever() -> None:
    witness = Witness()
    code = with_grandchild("print('last', flush=True); raise SystemExit(5)", before="os.setsid()")
    server = await witness.start(code, limits=BRIEF, containment="group")
    grandchild = Life(int(await witness.next_line()))
    assert await witness.reason() == "exited with status 5"
    assert witness.lines[1:] == [b"last"]
    await server.stop(LONG)
    await grandchild.cut()


def open_pipes() -> set[str]:
    entries = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return {name for entry in entries if (name := entry.readlink().name).startswith("pipe:")}


@on_both_loops
async def test_unread_input_held_from_another_session_is_let_go() -> None:
    witness = Witness()
    before = open_pipes()
    code = with_grandchild("signal.pause()", before="os.setsid()")
    server = await witness.start(code, limits=BRIEF, containment="group")
    grandchild = Life(int(await witness.next_line()))
    server.send(b"x" * 1_000_000)
    await server.stop(SHORT)
    assert (await witness.reason()).startswith("ended by signal")
    assert open_pipes() <= before
    await grandchild.cut()


@on_both_loops
async def test_a_server_that_closes_its_output_is_ended() -> None:
    witness = Witness()
    code = "import os, signal; print('last', flush=True); os.close(1); signal.pause()"
    server = await witness.start(code, limits=BRIEF)
    assert await witness.reason() == "closed its output, and was ended"
    assert witness.lines == [b"last"]
    assert server.returncode == -9


@on_both_loops
async def test_a_server_that_closed_its_output_and_left_in_time_is_not_blamed() -> None:
    """A grandchild elsewhere keeps stderr, so that the end is told late."""
    witness = Witness()
    code = with_grandchild("os.close(1); os._exit(6)", before="os.setsid(); os.close(1)")
    await witness.start(code, limits=Limits(linger=timedelta(seconds=1)), containment="group")
    grandchild = Life(int(await witness.next_line()))
    assert await witness.reason() == "exited with status 6"
    await grandchild.cut()


@on_both_loops
async def test_a_server_being_stopped_has_its_grace_also_without_output() -> None:
    witness = Witness()
    code = "import os, sys, time; sys.stdin.read(); os.close(1); time.sleep(0.3); os._exit(8)"
    server = await witness.start(code, limits=BRIEF)
    await server.stop(LONG)
    assert witness.reasons == ["exited with status 8"]


@on_both_loops
async def test_the_end_waits_for_lines_that_are_not_read_yet(tmp_path: Path) -> None:
    witness, signpost = Witness(), Signpost(tmp_path)
    code = f"""
print("one", flush=True)
input()
print("two", flush=True)
open({str(signpost.path)!r}, "w").write("written")
"""
    server = await witness.start(code, limits=BRIEF)
    life = Life(server.pid)
    await witness.next_line()
    server.pause()
    server.send(b"go on")
    await signpost.reached()
    await life.end()
    # Long enough for every timer that could wrongly end it.
    await asyncio.sleep(SHORT.total_seconds() * 4)
    assert witness.reasons == []
    server.resume()
    assert await witness.reason() == "exited with status 0"
    assert witness.lines == [b"one", b"two"]


@on_both_loops
async def test_stop_ends_also_a_paused_server_and_delivers_its_last_words() -> None:
    witness = Witness()
    server = await witness.start(READS_TO_THE_END)
    server.pause()
    await server.stop(LONG)
    assert witness.lines == [b"goodbye after 0"]
    assert witness.reasons == ["exited with status 0"]


@on_both_loops
async def test_a_server_being_stopped_can_be_paused_no_more() -> None:
    witness = Witness()
    server = await witness.start(READS_TO_THE_END)
    stopping = asyncio.create_task(server.stop(LONG))
    await asyncio.sleep(0)
    server.pause()
    await stopping
    assert witness.reasons == ["exited with status 0"]


@on_both_loops
async def test_stopping_twice_or_after_the_end_does_no_harm() -> None:
    witness = Witness()
    server = await witness.start(READS_TO_THE_END)
    await asyncio.gather(server.stop(LONG), server.stop(LONG))
    await server.stop(LONG)
    server.pause()
    server.resume()
    assert await witness.reason() == "exited with status 0"


@on_both_loops
async def test_a_cancelled_stop_kills() -> None:
    witness = Witness()
    server = await witness.start("import signal\nwhile True: signal.pause()")
    stopping = asyncio.create_task(server.stop(LONG))
    await some_turns()
    stopping.cancel()
    assert await witness.reason() == "ended by signal 9 (SIGKILL)"
    assert stopping.cancelled()


@on_both_loops
async def test_a_cancelled_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[Child, Life]] = []

    async def begin(wanted: Command) -> Child:
        child = await command.begin(wanted)
        begun.append((child, Life(child.pid)))
        starting.cancel()
        return child

    monkeypatch.setattr(process, "begin", begin)
    witness = Witness()
    starting = asyncio.create_task(witness.start("import signal\nwhile True: signal.pause()"))
    await asyncio.wait([starting])
    assert starting.cancelled()
    ((child, life),) = begun
    await life.end()
    while child.returncode is None:
        await asyncio.sleep(0)
    assert child.returncode == -9
    assert witness.reasons == []


@on_both_loops
async def test_a_start_cancelled_while_its_program_is_sought_leaves_none(tmp_path: Path) -> None:
    leash = Leash(tmp_path)
    witness = Witness()
    starting = asyncio.create_task(witness.start(leash.hold("while True: signal.pause()")))
    await some_turns()
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    await leash.slack()
    assert witness.reasons == []


@on_both_loops
async def test_a_process_that_even_sigkill_does_not_end_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    witness = Witness()
    argv = (sys.executable, "-S", "-c", "import signal\nwhile True: signal.pause()")
    server = await ServerProcess.start(
        Command(argv, {}), witness.on_line, witness.on_exit, limits=BRIEF
    )
    life = Life(server.pid)
    with monkeypatch.context() as stubborn:
        stubborn.setattr(process, "_LAST_WAIT", SHORT)
        stubborn.setattr(Child, "signal", lambda *_: None)  # type: ignore[reportUnknownLambdaType]
        await server.stop(SHORT)
    assert witness.reasons == [f"could not be ended (process {server.pid})"]
    await server.stop(SHORT)
    await life.end()
    await witness.reason()
