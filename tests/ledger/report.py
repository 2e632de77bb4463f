"""What `scripts/ledger` prints: per document how many rows are proved, reasoned away, and open."""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.ledger.catalogue import DOCUMENTS, Requirement, read_deviations, read_requirements
from tests.ledger.record import RECORD, read_proved


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
    proved: frozenset[str]
    reasoned: frozenset[str]

    @classmethod
    def read(cls, root: Path) -> "Ledger":
        rows = read_requirements(root)
        # A row that is deliberately done otherwise is not also proved as written.
        reasoned = frozenset(read_deviations(root, rows))
        return cls(rows, (frozenset(read_proved(root)) & rows.keys()) - reasoned, reasoned)

    def tallies(self) -> dict[str, Tally]:
        tallies = {document: Tally() for document in DOCUMENTS.values()}
        for row in self.rows.values():
            tally = tallies[row.document]
            tally.rows += 1
            tally.proved += row.id in self.proved
            tally.reasoned += row.id in self.reasoned
            tally.open = tally.rows - tally.proved - tally.reasoned
        return tallies

    def open_rows(self, document: str) -> list[Requirement]:
        settled = self.proved | self.reasoned
        of_document = (row for row in self.rows.values() if row.document == document)
        return [row for row in of_document if row.id not in settled]


def main(arguments: Sequence[str] | None = None, root: Path = Path()) -> int:
    parser = argparse.ArgumentParser(prog="scripts/ledger", description=__doc__)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one object for programs")
    form.add_argument("--open", choices=[*DOCUMENTS.values()], help="list a document's open rows")
    options = parser.parse_args(arguments)
    ledger = Ledger.read(root)
    if options.open:
        _print_open(ledger.open_rows(options.open))
    elif options.json:
        _say(json.dumps({name: asdict(tally) for name, tally in ledger.tallies().items()}))
    else:
        _print_table(ledger.tallies(), ran=(root / RECORD).exists())
    return 0


def _print_table(tallies: dict[str, Tally], *, ran: bool) -> None:
    _say(f"{'document':<10}{'rows':>8}{'proved':>10}{'reasoned':>10}{'open':>8}")
    total = Tally(*(sum(column) for column in zip(*map(_columns, tallies.values()), strict=True)))
    for name, tally in [*tallies.items(), ("all", total)]:
        rows, proved, reasoned, still_open = _columns(tally)
        _say(f"{name:<10}{rows:>8}{proved:>10}{reasoned:>10}{still_open:>8}")
    if not ran:
        _say("No full run is on record: scripts/test without arguments makes one.")


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
