"""What the last full run proved, kept in a file between the run and the report.

A row is proved when every test that names it passed. A skipped test proves nothing, so it leaves
its rows open, as does an expected failure.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

RECORD = Path(".ledger/full-run.json")


@dataclass(slots=True)
class Record:
    """Which tests named which row, and which tests did not pass."""

    tests: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    passed: set[str] = field(default_factory=set[str])
    fallen: set[str] = field(default_factory=set[str])

    def note(self, test: str, rows: Iterable[str], *, phase: str, outcome: str) -> None:
        """Take one report: a test has three phases, and any of them can undo its pass."""
        for row in rows:
            self.tests.setdefault(row, set()).add(test)
        if outcome != "passed":
            self.fallen.add(test)
        elif phase == "call":
            self.passed.add(test)

    def proved(self) -> dict[str, list[str]]:
        good = self.passed - self.fallen
        return {row: sorted(tests) for row, tests in sorted(self.tests.items()) if tests <= good}

    def write(self, root: Path) -> None:
        path = root / RECORD
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"proved": self.proved()}, indent=1) + "\n", encoding="utf-8")


def read_proved(root: Path) -> Mapping[str, list[str]]:
    """The proved rows and their tests; nothing is proved before a full run."""
    path = root / RECORD
    if not path.exists():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))["proved"]
