"""What `scripts/ledger` prints: per document how many rows are proved, reasoned away, and open."""

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.ledger.catalogue import (
    DEVIATIONS,
    DOCUMENTS,
    Requirement,
    read_deviations,
    read_requirements,
)
from tests.ledger.record import Reading, head, read_record


@dataclass(slots=True)
class Tally:
    """The state of one document; the last three add up to the first."""

    rows: int = 0
    proved: int = 0
    reasoned: int = 0
    open: int = 0


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every row, with the two ways in which it can be settled."""

    rows: dict[str, Requirement]
    record: Reading
    reasoned: frozenset[str]

    @classmethod
    def read(cls, root: Path) -> "Ledger":
        rows = read_requirements(root)
        return cls(rows, read_record(root), frozenset(read_deviations(root, rows)))

    @property
    def proved(self) -> frozenset[str]:
        # A row that is deliberately done otherwise is not also proved as written.
        passed = {row for row, proof in self.record.rows.items() if not proof.fallen}
        return frozenset(passed & self.rows.keys()) - self.reasoned

    def tallies(self) -> dict[str, Tally]:
        tallies = {document: Tally() for document in DOCUMENTS.values()}
        proved = self.proved
        for row in self.rows.values():
            tally = tallies[row.document]
            tally.rows += 1
            tally.proved += row.id in proved
            tally.reasoned += row.id in self.reasoned
            tally.open = tally.rows - tally.proved - tally.reasoned
        return tallies

    def open_rows(self, *documents: str) -> list[Requirement]:
        settled = self.proved | self.reasoned
        of_document = (row for row in self.rows.values() if row.document in documents)
        return [row for row in of_document if row.id not in settled]

    def faults(self, commit: str) -> Iterator[str]:
        """What `--check` fails on: open rows, rows settled twice, a record of another commit."""
        for row in self.open_rows(*DOCUMENTS.values()):
            proof = self.record.rows.get(row.id)
            why = f"did not pass: {', '.join(proof.fallen)}" if proof else "no test names it"
            yield f"open    {row.id}: {why}"
        for row_id in sorted(self.reasoned & self.record.rows.keys()):
            tests = ", ".join(self.record.rows[row_id].tests)
            yield f"both    {row_id}: {DEVIATIONS} gives a reason, and these tests name it: {tests}"
        if self.record.run is None:
            yield "record  No full run is on record: `scripts/test --integration` makes one."
        elif not commit or self.record.run.commit != commit:
            there, here = self.record.run.commit or "no commit", commit or "no commit"
            yield f"record  The last full run was of {there}, and {here} is checked out."

    def reruns(self) -> list[str]:
        """The tests that passed only when they were run again: they prove, and are to be mended."""
        return sorted({test for proof in self.record.rows.values() for test in proof.rerun})


def main(arguments: Sequence[str] | None = None, root: Path = Path()) -> int:
    parser = argparse.ArgumentParser(prog="scripts/ledger", description=__doc__)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one object for programs")
    form.add_argument("--open", choices=[*DOCUMENTS.values()], help="list a document's open rows")
    form.add_argument("--check", action="store_true", help="exit 1 if a row is not settled once")
    options = parser.parse_args(arguments)
    ledger = Ledger.read(root)
    if options.open:
        _print_open(ledger.open_rows(options.open))
    elif options.json:
        _say(json.dumps({name: asdict(tally) for name, tally in ledger.tallies().items()}))
    else:
        _print_table(ledger)
    return _check(ledger, head(root)) if options.check else 0


def _check(ledger: Ledger, commit: str) -> int:
    faults = list(ledger.faults(commit))
    for line in [*(f"rerun   {test}" for test in ledger.reruns()), *faults]:
        _say(line)
    _say(f"The ledger has {len(faults)} faults." if faults else "Every row is settled once.")
    return 1 if faults else 0


def _print_table(ledger: Ledger) -> None:
    tallies = ledger.tallies()
    _say(f"{'document':<10}{'rows':>8}{'proved':>10}{'reasoned':>10}{'open':>8}")
    total = Tally(*(sum(column) for column in zip(*map(_columns, tallies.values()), strict=True)))
    for name, tally in [*tallies.items(), ("all", total)]:
        rows, proved, reasoned, still_open = _columns(tally)
        _say(f"{name:<10}{rows:>8}{proved:>10}{reasoned:>10}{still_open:>8}")
    run = ledger.record.run
    if run is None:
        _say("No full run is on record: `scripts/test --integration` makes one.")
    else:
        commit = run.commit[:12] or "no commit"
        _say(f"The {run.form} form ran on {run.date} at {commit} with Python {run.python}.")


def _print_open(rows: list[Requirement]) -> None:
    for row in rows:
        _say(f"{row.id}\t{row.strength}\t{row.role}\t{row.text}")


def _columns(tally: Tally) -> tuple[int, int, int, int]:
    return tally.rows, tally.proved, tally.reasoned, tally.open


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    # So that `scripts/ledger --open mgp | head` ends quietly.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
