"""A journal at its size: a day's million entries are proved in one go, in the memory of a few.

50,000 entries unless JOURNAL_ENTRIES says how many: `JOURNAL_ENTRIES=1000000` takes some minutes.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from comity.audit import export
from comity.audit.chain import GENESIS
from comity.audit.events import body_of
from tests.support.figures import Tell
from tests.support.fork_server import COMITY
from tests.support.journals_rules import BEGAN, PUBLIC, chained, event, signed

ENTRIES = int(os.environ.get("JOURNAL_ENTRIES", "20000"))
EVERY = 1_000
MOST_MORE_KIB = 30 * 1024
"""How much more memory all of it may take than a hundredth: as much as a busy allocator does."""

pytestmark = pytest.mark.timeout(1800)


def _lines(count: int) -> Iterator[bytes]:
    """An export of so many entries, never all of them at once."""
    yield export.encode_header(BEGAN, ["node-1"])
    before = GENESIS
    for first in range(1, count + 1, EVERY):
        events = [event(number) for number in range(first, min(first + EVERY, count + 1))]
        lines = chained([(each, body_of(each)) for each in events], "node-1", before, first)
        yield from map(export.encode_entry, lines)
        yield export.checkpoint_line(signed(lines[-1]))
        before = lines[-1].hash
    yield export.end_line(count)


def _proved(file: Path) -> tuple[int, str, str, int]:
    """How the command ended, what it said, and the most memory that it had, in KiB."""
    words = [COMITY, "audit", "verify", str(file), "--key", PUBLIC, "-o", "json"]
    said, told = file.with_suffix(".out"), file.with_suffix(".err")
    most = 0
    with said.open("wb") as out, told.open("wb") as err:
        process = subprocess.Popen(words, stdout=out, stderr=err)
        while process.poll() is None:
            most = max(most, _memory(process.pid))
            time.sleep(0.05)
    return process.returncode, said.read_text(), told.read_text(), most


def _memory(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) if found else 0


def test_a_days_entries_are_proved_in_the_memory_of_a_few(tmp_path: Path, tell: Tell) -> None:
    memory: list[int] = []
    for count in (ENTRIES // 100, ENTRIES):
        file = tmp_path / f"{count}.jsonl"
        with file.open("wb") as opened:
            opened.writelines(line + b"\n" for line in _lines(count))
        status, said, told, most = _proved(file)
        report = json.loads(said)
        assert (status, report["whole"], report["entries"]) == (0, True, count), told
        assert report["nodes"][0]["signed_to"] == count
        memory.append(most)
        file.unlink()
    tell(
        f"{ENTRIES:,} entries proved in {report['seconds']:.1f} s, "
        f"{report['microseconds_per_entry']:.2f} µs each, in {memory[1] // 1024} MiB"
    )
    if report["seconds"] > 6:
        assert "verified " in told, "and it tells how far it is"
    assert memory[1] < memory[0] + MOST_MORE_KIB
