"""Lines go to a server and come back, whatever it says and however much of it."""

import asyncio
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from comity.adapters.upstream.command import Command
from comity.adapters.upstream.process import PORTION_BYTES, Limits, ServerProcess
from comity.wire.errors import EXHAUSTED, Unavailable
from tests.adapters.witness import LONG, SHORT, Signpost, Witness, on_both_loops, some_turns

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
    server = await witness.start(code)
    others = asyncio.ensure_future(take_turns())
    async with asyncio.timeout(LONG.total_seconds()):
        while len(witness.lines) < 30_000:
            await asyncio.sleep(0)
    others.cancel()
    seen = list(heard.values())
    assert max(now - before for before, now in pairwise(seen)) <= PORTION_BYTES
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
    server = await witness.start(ECHO, limits=Limits(line_bytes=1000))
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


@on_both_loops
async def test_a_server_that_never_reads_is_refused_more_at_a_bound() -> None:
    witness = Witness()
    server = await witness.start("import signal; signal.pause()")
    taken, because = await refusal_after_many(server, b"x" * 10_000, wait=True)
    assert because.endswith("does not read its messages")
    assert 15 * 1024 * 1024 < taken * 10_000 < 18 * 1024 * 1024
    await server.stop(SHORT)
    assert (await witness.reason()).startswith("ended by signal")


@on_both_loops
async def test_messages_sent_in_one_turn_are_counted_too() -> None:
    witness = Witness()
    server = await witness.start("import signal; signal.pause()")
    taken, because = await refusal_after_many(server, b"x" * 10_000, wait=False)
    assert because.endswith("does not read its messages")
    assert taken * 10_000 < 18 * 1024 * 1024
    with pytest.raises(Unavailable) as refused:
        server.send(b"x" * 10_000)
    assert refused.value.fault is EXHAUSTED
    await server.stop(SHORT)


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
    server = await ServerProcess.start(Command(argv, {}), witness.on_line, witness.on_exit)
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
    assert await witness.reason() == "exited with status 1; it last said: bad key ${API_KEY}"
    assert server.stderr_tail() == ["starting", "bad key ${API_KEY}"]
    assert "s3cret" not in repr(server)


@on_both_loops
async def test_a_flood_on_stderr_stalls_nothing_and_is_bounded() -> None:
    witness = Witness()
    code = "import sys\nfor n in range(50_000): print('noise', n, file=sys.stderr)\nprint('done')"
    server = await witness.start(code)
    assert (await witness.reason()).endswith("it last said: noise 49999")
    assert witness.lines == [b"done"]
    assert len(server.stderr_tail()) == 200


@on_both_loops
async def test_a_program_that_cannot_be_started_is_unavailable() -> None:
    witness = Witness()
    with pytest.raises(Unavailable, match="there is no such program"):
        await ServerProcess.start(
            Command(("no-such-program",), {}), witness.on_line, witness.on_exit
        )
    await some_turns()
    assert witness.reasons == []
