"""A server process: how it starts, what it reads and writes, and how it ends."""

import asyncio
import os
import sys
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from comity.errors import EXHAUSTED, Unavailable
from comity.servers.process import process
from comity.servers.process.keeper_client import ChildProcess
from comity.servers.process.process import (
    READ_CHUNK_BYTES,
    Containment,
    ProcessLimits,
    ServerCommand,
    ServerProcess,
    done_within,
    environment_for,
    start_process,
)
from tests.servers.witness import (
    LONG,
    SHORT,
    Leash,
    Life,
    Signpost,
    Witness,
    on_both_loops,
    some_turns,
)
from tests.support.cases import loop_over

pytestmark = pytest.mark.integration


async def output_of(command: ServerCommand) -> str:
    """What it says before it ends."""
    child = await start_process(command)
    ended = asyncio.Event()
    child.on_death(ended.set)
    async with asyncio.timeout(30):
        await ended.wait()
    with child.stdin, child.stdout, child.stderr:
        return child.stdout.read().decode()


def test_a_command_shows_its_program_and_no_secret() -> None:
    command = ServerCommand(("npx", "--token=hunter2"), {"API_KEY": "s3cret"}, "/srv")
    assert repr(command) == "Command('npx', 2 words, env ['API_KEY'])"
    assert "hunter2" not in str(command)
    assert "s3cret" not in f"{command}"


HARMLESS = {"PATH": "/bin", "HOME": "/root", "LC_ALL": "C", "LANG": "C"}


@loop_over(
    ("configured", "inherited", "expected"),
    [
        ({}, HARMLESS | {"AWS_SECRET": "x", "LC": "x", "path": "x"}, HARMLESS),
        # An exported function of a shell.
        ({}, {"TERM": "() { :; }; echo harm", "USER": "me"}, {"USER": "me"}),
        (
            {"PATH": "/opt", "AWS_SECRET": "y"},
            {"PATH": "/bin", "AWS_SECRET": "x"},
            {"PATH": "/opt", "AWS_SECRET": "y"},
        ),
    ],
)
def test_only_harmless_and_configured_variables_are_passed_on(
    configured: dict[str, str], inherited: dict[str, str], expected: dict[str, str]
) -> None:
    assert environment_for(configured, inherited) == expected


async def test_a_child_sees_the_listed_variables_and_the_configured_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMITY_TEST_SECRET", "leaked")
    monkeypatch.setenv("LC_TIME", "C")
    show = "import os; print(sorted(os.environ.items()))"
    shown = await output_of(ServerCommand((sys.executable, "-S", "-c", show), {"GIVEN": "yes"}))
    assert "('GIVEN', 'yes')" in shown
    assert "('LC_TIME', 'C')" in shown
    assert "leaked" not in shown


@loop_over("containment", ["auto", "group"])
async def test_a_child_inherits_no_descriptor(containment: Containment) -> None:
    ours, _ = pipe = os.pipe()
    os.set_inheritable(ours, True)
    show = "import os; print([n for n in range(3, 512) if os.path.exists(f'/dev/fd/{n}')])"
    command = ServerCommand((sys.executable, "-S", "-c", show), {}, containment=containment)
    assert await output_of(command) == "[]\n"
    for descriptor in pipe:
        os.close(descriptor)


async def test_a_child_leads_its_own_session_and_runs_in_its_folder(tmp_path: Path) -> None:
    show = "import os; print(os.getsid(0) == os.getpgid(0) == os.getpid(), os.getcwd())"
    shown = await output_of(ServerCommand((sys.executable, "-S", "-c", show), {}, str(tmp_path)))
    assert shown == f"True {tmp_path}\n"


async def test_a_relative_folder_is_one_below_the_gateways_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    assert await output_of(ServerCommand(("pwd",), {}, "below")) == f"{tmp_path}/below\n"
    assert await output_of(ServerCommand(("pwd",), {})) == f"{tmp_path}\n"


async def test_a_program_is_sought_on_the_path_that_is_configured(tmp_path: Path) -> None:
    script(tmp_path / "pwd", "#!/bin/sh\necho mine")
    assert await output_of(ServerCommand(("pwd",), {"PATH": f"/nowhere:{tmp_path}"})) == "mine\n"


def script(path: Path, text: str, *, mode: int = 0o755) -> str:
    path.write_text(text + "\n")
    path.chmod(mode)
    return str(path)


async def refusal(*argv: str, env: dict[str, str] | None = None, cwd: str | None = None) -> str:
    with pytest.raises(Unavailable) as refused:
        await start_process(ServerCommand(argv, env or {}, cwd))
    assert refused.value.__context__ is None, "the cause may quote an argument"
    return str(refused.value)


async def test_a_missing_program_is_named_with_what_to_check() -> None:
    said = await refusal("no-such-program", "--token=hunter2")
    assert said.startswith("cannot start 'no-such-program': there is no such program; check that")
    assert "hunter2" not in said


async def test_a_missing_folder_is_not_mistaken_for_a_missing_program(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert f"working directory {missing!r} cannot be entered" in await refusal("true", cwd=missing)


@loop_over(
    ("text", "mode", "told"),
    [
        ("#!/bin/sh", 0o644, "it may not be executed; check its permissions"),
        ("#!/no/such/interpreter", 0o755, "the interpreter that its first line names does not"),
        ("\necho never", 0o755, "lack its first line (#!)?"),
    ],
)
async def test_script_that_cannot_run_is_refused_with_the_reason(
    tmp_path: Path, text: str, mode: int, told: str
) -> None:
    assert told in await refusal(script(tmp_path / "server", text, mode=mode))


@loop_over("argv", [(), ("true", "a\0b")])
async def test_a_command_that_cannot_be_is_told(argv: tuple[str, ...]) -> None:
    assert "is empty or holds a NUL character" in await refusal(*argv)


async def test_a_variable_with_a_nul_is_told_without_its_value() -> None:
    said = await refusal("true", env={"KEY": "s3cret\0"})
    assert "holds a NUL character" in said
    assert "s3cret" not in said


async def test_any_other_refusal_is_told_in_the_words_of_the_system() -> None:
    """Here of a command line that is longer than the system takes."""
    said = await refusal("true", *["x" * 100_000] * 100)
    assert said == "cannot start 'true': Argument list too long"


ECHO = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""


@on_both_loops
async def test_what_is_sent_arrives_as_lines() -> None:
    witness = Witness()
    server = await witness.start(ECHO)
    for number in range(100):
        server.send(b'{"id":%d}' % number)
    assert [await witness.next_line() for _ in range(100)] == [
        b'{"id":%d}' % number for number in range(100)
    ]
    assert server.returncode is None
    await server.stop(LONG)
    assert server.returncode == 0


@on_both_loops
async def test_line_breaks_in_a_message_cannot_forge_another() -> None:
    witness = Witness()
    server = await witness.start(ECHO)
    server.send(b'{"id":1,\n"params":\r\n{}}')
    assert await witness.next_line() == b'{"id":1, "params":  {}}'
    await server.stop(LONG)


@on_both_loops
async def test_garbage_is_passed_on_for_others_to_judge() -> None:
    witness = Witness()
    code = r"import os; os.write(1, b'Welcome!\n\xff\x00\xfe\n\n  \n{}{}\r\nhalf a line')"
    await witness.start(code)
    assert await witness.reason() == "exited with status 0"
    assert witness.lines == [b"Welcome!", b"\xff\x00\xfe", b"{}{}"]


@on_both_loops
async def test_a_flood_of_lines_is_delivered_whole_before_the_end() -> None:
    witness = Witness()
    await witness.start("import sys\nfor n in range(50_000): print(n)\nsys.exit(3)")
    assert await witness.reason() == "exited with status 3"
    assert witness.lines == [b"%d" % number for number in range(50_000)]


@on_both_loops
async def test_between_some_lines_of_a_flood_others_have_their_turn() -> None:
    """The pipe holds them all, so that they would be read at once."""
    witness, turns, heard = Witness(), 0, Counter[int]()

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            heard[turns] = len(witness.lines)
            await asyncio.sleep(0)

    code = "import os, sys; os.write(1, b'x\\n' * 30_000); sys.stdin.read()"
    # They have their turns from the start: on a busy machine all lines may come with it.
    others = asyncio.ensure_future(take_turns())
    server = await witness.start(code)
    async with asyncio.timeout(LONG.total_seconds()):
        while len(witness.lines) < 30_000:
            await asyncio.sleep(0)
    others.cancel()
    seen = list(heard.values())
    assert max(now - before for before, now in pairwise(seen)) <= READ_CHUNK_BYTES
    await server.stop(LONG)


@on_both_loops
async def test_a_line_of_four_mebibytes_goes_both_ways() -> None:
    witness = Witness()
    server = await witness.start(ECHO)
    frame = b"x" * (4 * 1024 * 1024)
    server.send(frame)
    assert await witness.next_line() == frame
    await server.stop(LONG)


@on_both_loops
async def test_an_overlong_line_is_told_and_the_conversation_goes_on() -> None:
    witness = Witness()
    server = await witness.start(ECHO, limits=ProcessLimits(line_bytes=1000))
    server.send(b"x" * 100_000)
    server.send(b"after")
    assert await witness.next_line() == b"after"
    (overlong,) = witness.overlong
    assert overlong.size_so_far > 1000
    await server.stop(LONG)


async def refusal_after_many(server: ServerProcess, frame: bytes, *, wait: bool) -> tuple[int, str]:
    """How many frames were taken before one was refused, and why it was."""
    for number in range(20_000):
        try:
            server.send(frame)
        except Unavailable as refused:
            return number, str(refused)
        if wait:
            await asyncio.sleep(0)
    raise AssertionError("nothing was ever refused")


@pytest.mark.parametrize("wait", [True, False], ids=["in many turns", "in one turn"])
@on_both_loops
async def test_server_that_never_reads_is_sent_a_bounded_amount(wait: bool) -> None:
    witness = Witness()
    server = await witness.start("import signal; signal.pause()")
    taken, because = await refusal_after_many(server, b"x" * 10_000, wait=wait)
    assert because.endswith("does not read its messages")
    assert (15 * 1024 * 1024 if wait else 0) < taken * 10_000 < 18 * 1024 * 1024
    with pytest.raises(Unavailable) as refused:
        server.send(b"x" * 10_000)
    assert refused.value.fault is EXHAUSTED
    await server.stop(SHORT)
    assert (await witness.reason()).startswith("ended by signal")


@on_both_loops
async def test_a_server_that_closed_its_input_is_sent_nothing_more() -> None:
    witness = Witness()
    code = "import os, signal; os.close(0); print(1, flush=True); signal.pause()"
    server = await witness.start(code)
    await witness.next_line()
    _, because = await refusal_after_many(server, b"{}", wait=True)
    assert because.endswith("takes no more messages")
    await server.stop(SHORT)


@on_both_loops
async def test_nothing_is_sent_to_a_server_that_ended() -> None:
    witness = Witness()
    server = await witness.start("")
    await witness.reason()
    with pytest.raises(Unavailable, match="exited with status 0"):
        server.send(b"{}")


WAITS_BETWEEN_TWO_LINES = """
import sys
print("one", flush=True)
sys.stdin.readline()
print("two", flush=True)
open(sys.argv[1], "w").write("written")
sys.stdin.readline()
"""


@on_both_loops
async def test_a_paused_server_is_not_read_until_resumed(tmp_path: Path) -> None:
    witness, signpost = Witness(), Signpost(tmp_path)
    argv = (sys.executable, "-S", "-c", WAITS_BETWEEN_TWO_LINES, str(signpost.path))
    server = await ServerProcess.start(ServerCommand(argv, {}), witness.on_line, witness.on_exit)
    assert await witness.next_line() == b"one"
    server.pause()
    server.pause()
    server.send(b"go on")
    assert await signpost.reached() == b"written"
    await some_turns()
    assert witness.lines == [b"one"]
    server.resume()
    assert await witness.next_line() == b"two"
    await server.stop(LONG)


@on_both_loops
async def test_stderr_is_kept_and_configured_values_stay_hidden() -> None:
    witness = Witness()
    code = r"""
import os, sys
sys.stderr.write(f"starting\n\x1b[31mbad key {os.environ['API_KEY']}\x1b[0m\n")
print("{}", flush=True)
sys.exit(1)
"""
    server = await witness.start(code, env={"API_KEY": "s3cret-value"})
    assert await witness.reason() == "exited with status 1; its last output: bad key ${API_KEY}"
    assert server.stderr_tail() == ["starting", "bad key ${API_KEY}"]
    assert "s3cret" not in repr(server)


@on_both_loops
async def test_a_flood_on_stderr_stalls_nothing_and_is_bounded() -> None:
    witness = Witness()
    code = "import sys\nfor n in range(50_000): print('noise', n, file=sys.stderr)\nprint('done')"
    server = await witness.start(code)
    assert (await witness.reason()).endswith("its last output: noise 49999")
    assert witness.lines == [b"done"]
    assert len(server.stderr_tail()) == 200


BRIEF = ProcessLimits(linger=SHORT)

PATIENT = ProcessLimits(linger=LONG)


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


@pytest.mark.parametrize(
    ("code", "reason", "status"),
    [
        (
            "import sys; sys.exit('no configuration')",
            "exited with status 1; its last output: no configuration",
            1,
        ),
        ("import os; os.kill(os.getpid(), 9)", "ended by signal 9 (SIGKILL)", -9),
        ("import os; os.kill(os.getpid(), 40)", "ended by signal 40", -40),
    ],
)
@on_both_loops
async def test_end_of_a_server_is_reported_once_with_its_reason(
    code: str, reason: str, status: int
) -> None:
    witness = Witness()
    server = await witness.start(code)
    assert await witness.reason() == reason
    assert server.returncode == status


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
    await witness.start(
        code, limits=ProcessLimits(linger=timedelta(seconds=1)), containment="group"
    )
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
    begun: list[tuple[ChildProcess, Life]] = []
    begin_really = process.start_process

    async def begin(wanted: ServerCommand) -> ChildProcess:
        child = await begin_really(wanted)
        begun.append((child, Life(child.pid)))
        starting.cancel()
        return child

    monkeypatch.setattr(process, "start_process", begin)
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
        ServerCommand(argv, {}), witness.on_line, witness.on_exit, limits=BRIEF
    )
    life = Life(server.pid)
    with monkeypatch.context() as stubborn:
        stubborn.setattr(process, "_KILL_TIMEOUT", SHORT)
        stubborn.setattr(ChildProcess, "signal", lambda *_: None)  # type: ignore[reportUnknownLambdaType]
        await server.stop(SHORT)
    assert witness.reasons == [f"could not be ended (process {server.pid})"]
    await server.stop(SHORT)
    await life.end()
    await witness.reason()
