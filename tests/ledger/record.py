"""What the last full run proved, kept in a file between the run and the report.

A row is proved when every test that names it passed. A skipped test proves nothing, so it leaves
its rows open, as does an expected failure. A test that passed only when it was run again passed;
the record names it beside its rows, because it is a test to mend.
"""

import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.pace import at_length

RECORD = Path(".ledger/full-run.json")


@dataclass(frozen=True, slots=True)
class Run:
    """The run that a record is of: which commit, when, at which length, with which Python."""

    commit: str
    date: str
    form: str
    python: str

    @classmethod
    def now(cls, root: Path) -> "Run":
        return cls(
            commit=head(root),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            form=at_length("full", "short"),
            python=platform.python_version(),
        )


@dataclass(frozen=True, slots=True)
class Proof:
    """The tests that name one row, those of them that did not pass, and those that ran again."""

    tests: list[str]
    fallen: list[str]
    rerun: list[str]


@dataclass(frozen=True, slots=True)
class Reading:
    """A record as it was read: the run, and the proof of each row that some test names."""

    run: Run | None
    rows: Mapping[str, Proof]


@dataclass(slots=True)
class Record:
    """Which tests named which row, which did not pass, and which passed only when run again."""

    tests: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    passed: set[str] = field(default_factory=set[str])
    fallen: set[str] = field(default_factory=set[str])
    rerun: set[str] = field(default_factory=set[str])

    def note(self, test: str, rows: Iterable[str], *, phase: str, outcome: str) -> None:
        """Take one report: a test has three phases, and any of them can undo its pass."""
        for row in rows:
            self.tests.setdefault(row, set()).add(test)
        if outcome == "rerun":
            self.rerun.add(test)
        elif outcome != "passed":
            self.fallen.add(test)
        elif phase == "call":
            self.passed.add(test)

    def proofs(self) -> dict[str, Proof]:
        """What became of each row that a test names."""
        good = self.passed - self.fallen
        return {
            row: Proof(sorted(tests), sorted(tests - good), sorted(tests & good & self.rerun))
            for row, tests in sorted(self.tests.items())
        }

    def write(self, root: Path, run: Run) -> None:
        _write(root, run, self.proofs())

    def mend(self, root: Path, run: Run) -> None:
        """Note in the record of the same commit which of its fallen tests passed by themselves."""
        kept = read_record(root)
        if kept.run is None or kept.run.commit != run.commit:
            return
        good = self.passed - self.fallen
        _write(root, kept.run, {row: _mended(proof, good) for row, proof in kept.rows.items()})


def _mended(proof: Proof, good: set[str]) -> Proof:
    passed = good & set(proof.fallen)
    fallen = [test for test in proof.fallen if test not in passed]
    return Proof(proof.tests, fallen, sorted({*proof.rerun, *passed}))


def _write(root: Path, run: Run, proofs: Mapping[str, Proof]) -> None:
    rows = {row: asdict(proof) for row, proof in proofs.items()}
    path = root / RECORD
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"run": asdict(run), "rows": rows}, indent=1) + "\n", "utf-8")


def read_record(root: Path) -> Reading:
    """The last full run; nothing is proved before there is one."""
    path = root / RECORD
    if not path.exists():
        return Reading(None, {})
    kept = json.loads(path.read_text(encoding="utf-8"))
    return Reading(Run(**kept["run"]), {row: Proof(**kept["rows"][row]) for row in kept["rows"]})


def head(root: Path) -> str:
    """The commit that is checked out, or nothing where Git knows of none."""
    # The checkout of a CI machine may belong to another user, which Git refuses to read otherwise.
    command = ["git", "-c", f"safe.directory={root.resolve()}", "rev-parse", "--verify", "HEAD"]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return told.stdout.strip() if told.returncode == 0 else ""
