"""A journal being proved: how far it has come, and what came of it, for people and programs."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

from comity.adapters.signing import verify
from comity.cli.asking import Answer
from comity.cli.exporting import read, reading
from comity.cli.show import plain, show, table
from comity.rules.phrases import count_noun
from comity.rules.proof import Proof, Report
from comity.rules.proof_chain import USUAL_INTERVAL, CheckpointInterval, Finding
from comity.wire import exported
from comity.wire.errors import MalformedMessage, Misconfigured
from comity.wire.journal import Checkpoint

_AT_ONCE: Final = 1_024
_EVERY_SECONDS: Final = 5.0
_ON_A_TERMINAL_SECONDS: Final = 0.2
_MOST_CALLS: Final = 5
_WIDTH: Final = 78

type Clock = Callable[[], float]


class Progress:
    """Tells how far it is: on a terminal in one line that changes, elsewhere now and then."""

    def __init__(self, size: int | None, clock: Clock = time.monotonic) -> None:
        self._size = size
        self._clock = clock
        self._began = self._told = clock()
        self._is_terminal = sys.stderr.isatty()

    def begin(self) -> None:
        """The first line is there: how long it took to come is not the proof's time."""
        self._began = self._told = self._clock()

    @property
    def seconds(self) -> float:
        return max(1e-9, self._clock() - self._began)

    def reach(self, entries: int, size: int) -> None:
        now = self._clock()
        often = _ON_A_TERMINAL_SECONDS if self._is_terminal else _EVERY_SECONDS
        if now - self._told < often:
            return
        self._told = now
        words = self._words(entries, size)
        sys.stderr.write(f"\r{words:{_WIDTH}.{_WIDTH}}" if self._is_terminal else f"{words}\n")
        sys.stderr.flush()

    def end(self) -> None:
        if self._is_terminal:
            sys.stderr.write(f"\r{'':{_WIDTH}}\r")
            sys.stderr.flush()

    def _words(self, entries: int, size: int) -> str:
        words = f"verified {entries:,} entries, {entries / self.seconds:,.0f} a second"
        if not self._size or not size:
            return words
        done = min(1.0, size / self._size)
        left = self.seconds / done - self.seconds
        return f"{words}, {done:.0%}, {left:.0f} s left"


def prove(lines: Iterable[bytes], proof: Proof, progress: Progress) -> Report:
    """Go through all of it. Raises Misconfigured where it is no export."""
    size = 0
    try:
        for count, line in enumerate(lines):
            if not count:
                progress.begin()
            proof.take(line)
            size += len(line)
            if not count % _AT_ONCE:
                progress.reach(proof.entries, size)
    except MalformedMessage as error:
        raise Misconfigured(str(error)) from None
    finally:
        progress.end()
    if not size:
        raise Misconfigured("there is nothing in it: no export of a journal")
    return proof.finish()


def outside(files: Iterable[str]) -> tuple[list[Checkpoint], int]:
    """The checkpoints in these files, and how many of their lines are none."""
    found: list[Checkpoint] = []
    strange = 0
    for name in files:
        with reading(name) as file:
            for row in _checkpoints(read(file)):
                if row is None:
                    strange += 1
                else:
                    found.append(row)
    return found, strange


def _checkpoints(lines: Iterator[bytes]) -> Iterator[Checkpoint | None]:
    for line in lines:
        try:
            row = exported.row_of(line).checkpoint
            yield None if row is None else exported.checkpoint_of(row)
        except MalformedMessage:
            yield None


def size_of(name: str) -> int | None:
    """How much there is to read, where that is known before."""
    path = Path(name)
    return path.stat().st_size if path.is_file() and path.suffix != ".gz" else None


def make_proof(
    keys: Iterable[str],
    checkpoints: Iterable[Checkpoint],
    interval: CheckpointInterval = USUAL_INTERVAL,
) -> Proof:
    trusted = frozenset(key.strip().lower() for key in keys)
    return Proof(verify, trusted, checkpoints, interval)


def report_view(report: Report, seconds: float) -> Answer:
    return {
        "whole": report.is_whole,
        "signed": report.signed,
        "unsigned": report.unsigned,
        "entries": report.entries,
        "checkpoints": report.checkpoints,
        "seconds": round(seconds, 3),
        "microseconds_per_entry": _each(report, seconds),
        "nodes": [asdict(node) for node in report.nodes],
        "findings": [asdict(finding) for finding in report.findings],
        "more_findings": report.more,
        "open_calls": report.open_calls,
    }


def show_report(report: Report, seconds: float, notes: Iterable[str]) -> None:
    entries = count_noun(report.entries, "entry", "entries")
    took = f"{seconds:.1f} s, {_each(report, seconds)} µs an entry"
    counted = f"{entries}, {count_noun(report.checkpoints, 'checkpoint')}, {took}"
    words, style = _headline(report)
    show(plain(words, style), plain(counted, "dim"))
    if report.findings:
        show("")
        for finding in report.findings:
            show(plain(words_of(finding), "red"))
        if report.more:
            show(plain(f"and {report.more:,} more", "red"))
    if report.nodes:
        rows = [
            (
                node.node,
                f"{node.first:,} to {node.last:,}" if node.entries else "none",
                f"{node.sealed:,}",
                f"{node.signed_to:,}" if node.signed_to else "nothing",
                " ".join(node.keys) or "none",
            )
            for node in report.nodes
        ]
        show("", table(("NODE", "ENTRIES", "SEALED", "SIGNED TO", "KEY"), rows))
    told = [*_open_tails(report), *notes]
    if told:
        show("", *(plain(note, "dim") for note in told))


def _headline(report: Report) -> tuple[str, str]:
    """What the report comes to, and its colour. Only what is signed is called whole."""
    if report.is_only_unsigned:
        return "The end of the journal is not signed: nothing proves it.", "bold red"
    if report.findings:
        return "The journal is not what was written.", "bold red"
    if not report.is_whole:
        return "Nothing is signed yet, so nothing is proved.", "bold yellow"
    if report.unsigned:
        signed = count_noun(report.signed, "entry", "entries")
        return f"The journal is whole as far as it is signed: {signed}.", "green"
    return "The journal is whole.", "bold green"


def words_of(finding: Finding) -> str:
    """`altered: entry 512 of n-0a1b... does not follow ...`"""
    where = f"entry {finding.seq:,} of {finding.node} " if finding.node and finding.seq else ""
    return f"{finding.kind}: {where}{finding.words}"


def _open_tails(report: Report) -> Iterator[str]:
    for node in report.nodes:
        if node.unsigned:
            entries = "entry is" if node.unsigned == 1 else f"{node.unsigned:,} entries are"
            yield f"{node.node}: the last {entries} not signed yet."
    if report.open_calls:
        named = ", ".join(report.open_calls[:_MOST_CALLS])
        more = "" if len(report.open_calls) <= _MOST_CALLS else " and others"
        yield f"How these calls ended is not told, they may still run: {named}{more}."


def _each(report: Report, seconds: float) -> float:
    return round(seconds * 1e6 / max(1, report.entries), 2)
