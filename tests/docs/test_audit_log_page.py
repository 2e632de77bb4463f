"""The program on the page about the audit log verifies an export without Comity."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from comity.audit import export as exported
from comity.audit.chain import ChainSegment
from tests.docs.pages import ROOT
from tests.support.journals_rules import BEGAN, PUBLIC, Journal, export

PAGE = (ROOT / "docs" / "explanation" / "audit-log.md").read_text(encoding="utf-8")
WHOLE = Journal.of(60)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = re.search(r"```python title=\"verify.py\"\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    assert len(found[1].splitlines()) < 50
    file = tmp_path_factory.mktemp("docs") / "verify.py"
    file.write_text(found[1], encoding="utf-8")
    return file


def _verified(program: Path, lines: list[bytes]) -> subprocess.CompletedProcess[str]:
    folder = program.parent
    journal, outside = folder / "journal.jsonl", folder / "checkpoints.jsonl"
    journal.write_bytes(b"\n".join(lines) + b"\n")
    outside.write_bytes(exported.checkpoint_line(WHOLE.checkpoints[-1]) + b"\n")
    return subprocess.run(
        # Nothing of Comity is there to be imported.
        [sys.executable, "-W", "ignore", str(program), str(journal), PUBLIC, str(outside)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_a_whole_journal_is_verified_without_comity(program: Path) -> None:
    ran = _verified(program, export(WHOLE))
    assert (ran.returncode, ran.stdout) == (0, "whole: {'node-1': 60}\n"), ran.stderr


def test_what_was_sealed_is_taken_as_such(program: Path) -> None:
    segment = ChainSegment("node-1", 1, 20, bytes(32), WHOLE.lines[19].hash, BEGAN)
    rest = export(Journal(WHOLE.lines[20:], WHOLE.checkpoints[2:]))
    ran = _verified(program, [rest[0], exported.segment_line(segment), *rest[1:]])
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("deed", ["alter", "remove", "cut", "sign"])
def test_what_was_touched_is_found_without_comity(program: Path, deed: str) -> None:
    lines, checkpoints = list(WHOLE.lines), list(WHOLE.checkpoints)
    if deed == "alter":
        lines[30] = lines[30]._replace(body=lines[30].body.replace(b"entry", b"Entry"))
    elif deed == "remove":
        del lines[30]
    elif deed == "cut":
        lines, checkpoints = lines[:50], checkpoints[:5]
    else:
        checkpoints[2] = checkpoints[2]._replace(signature=bytes(64))
    ran = _verified(program, export(Journal(lines, checkpoints)))
    assert ran.returncode == 1
    assert ("entry 31" if deed in ("alter", "remove") else "") in ran.stderr
