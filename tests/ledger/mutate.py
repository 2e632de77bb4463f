"""What `scripts/mutate` does: breaks the product at one place for each row, and runs its tests.

killed    A test that names the row failed, and passes where the product is whole. Where only a
          fixture failed, that is said: such a mutant may break more than its row.
timeout   The tests did not end within the limit, and do where the product is whole. It is killed.
survived  All tests that name the row passed: they do not prove it.
unsound   A test failed, and fails where the product is whole too. It shows nothing.
stale     The place is not in the product any more, or it is there twice.
untested  No test names the row.
missing   The seed drew the row, and the table has no mutant for it.
"""

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Queue

from tests.ledger.catalogue import read_deviations, read_requirements
from tests.ledger.copies import make_copy
from tests.ledger.mutants import SEED, Mutant, Product, drawn, read_mutants

LEAST_KILLED = 0.97
_COMPOSED = re.compile(r'f"((?:MGP|MCPX|MCP|REG|MCPL)-[^{"]*)\{')
_NO_TESTS = 5


@dataclass(slots=True)
class Outcome:
    """What became of one mutant."""

    row: str
    breaks: str
    end: str
    seconds: float = 0.0
    by: list[str] = field(default_factory=list[str])
    in_fixture: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of the project, in which one mutant lives at a time."""

    folder: Path
    python: Path
    limit: float

    def pytest(self, *arguments: str) -> tuple[int | None, dict[str, list[str]]]:
        """Run some tests; the exit code, or None past the limit, and the ids by outcome."""
        told = self.folder / ".told.json"
        told.unlink(missing_ok=True)
        plugins = ["-p", "tests.ledger.selecting", "-p", "no:cacheprovider"]
        command = [str(self.python), "-m", "pytest", *plugins, f"--told={told}", "-q", *arguments]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(self.limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None, {}
        return code, json.loads(told.read_text(encoding="utf-8")) if told.exists() else {}

    def write(self, place: Path, text: str) -> None:
        """Write a file of the product so that its old bytecode is not taken for it."""
        later = max(int(place.stat().st_mtime) + 2, int(time.time()))
        place.write_text(text, encoding="utf-8")
        os.utime(place, (later, later))


class Mutation:
    """A run over some mutants, with as many copies as jobs."""

    def __init__(self, root: Path, folder: Path, *, jobs: int, limit: float) -> None:
        self._root = root
        self._product = Product(root)
        self._copies: Queue[Copy] = Queue()
        self._jobs = jobs
        for number in range(jobs):
            copy = folder / str(number)
            copy.mkdir()
            self._copies.put(Copy(copy, make_copy(root, copy), limit))

    def outcomes(self, mutants: Sequence[Mutant]) -> list[Outcome]:
        with ThreadPoolExecutor(self._jobs) as pool:
            outcomes = list(pool.map(self._tried, mutants))
        self._confirm([each for each in outcomes if each.end == "killed"])
        return outcomes

    def _tried(self, mutant: Mutant) -> Outcome:
        place = self._product.place_of(mutant)
        if place is None or mutant.find == mutant.replace:
            return Outcome(mutant.row, mutant.breaks, "stale")
        copy, started = self._copies.get(), time.monotonic()
        there = copy.folder / place.relative_to(self._root)
        files = files_naming(mutant.row, copy.folder)
        try:
            copy.write(there, self._product.broken(mutant, place))
            code, told = copy.pytest("-x", f"--row={mutant.row}", *files) if files else (5, {})
            copy.write(there, self._product.whole(place))
            end = self._late(copy, mutant, files) if code is None else _end_of(code, told)
        finally:
            self._copies.put(copy)
        by = [*told.get("failed", ()), *told.get("error", ())]
        seconds = time.monotonic() - started
        outcome = Outcome(mutant.row, mutant.breaks, end, seconds, by, not told.get("failed"))
        _progress(f"{outcome.end:<9}{outcome.seconds:>6.0f} s  {mutant.row}")
        return outcome

    def _late(self, copy: Copy, mutant: Mutant, files: Sequence[str]) -> str:
        """Whether the tests end in time where the product is whole."""
        code, _ = copy.pytest("-x", f"--row={mutant.row}", *files)
        return "timeout" if code == 0 else "unsound"

    def _confirm(self, killed: Sequence[Outcome]) -> None:
        """See that each test that failed passes where the product is whole."""
        copy = self._copies.get()
        ids = {test for each in killed for test in each.by if "::" in test}
        only = copy.folder / ".only"
        only.write_text("\n".join(sorted(ids)), encoding="utf-8")
        paths = sorted({test.partition("::")[0] for test in ids})
        patient = Copy(copy.folder, copy.python, copy.limit * max(1, len(ids)))
        _, told = patient.pytest(f"--only={only}", *paths) if ids else (0, {})
        sound = set(told.get("passed", ())) - {*told.get("failed", ()), *told.get("error", ())}
        for each in killed:
            if not sound.intersection(each.by):
                each.end = "unsound"
        self._copies.put(copy)


def _end_of(code: int, told: dict[str, list[str]]) -> str:
    if told.get("failed") or told.get("error"):
        return "killed"
    if code == 0:
        return "survived"
    # Nothing ran: no test names the row, or the product cannot even be imported.
    return "untested" if code == _NO_TESTS else "unsound"


def files_naming(row: str, root: Path) -> list[str]:
    """The files of tests that may name a row: in full, or composed of its beginning."""
    found: list[str] = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if f'"{row}"' in text or any(row.startswith(each) for each in _COMPOSED.findall(text)):
            found.append(path.relative_to(root).as_posix())
    return found


def chosen(root: Path, options: argparse.Namespace) -> tuple[list[Mutant], list[Outcome]]:
    """The mutants to try, and the rows that were wanted and have none."""
    mutants = read_mutants(root)
    rows = read_requirements(root)
    wanted: list[str] | None = options.rows
    if options.sample is not None:
        wanted = drawn(
            rows.keys() - read_deviations(root, rows).keys(), options.seed, options.sample
        )
        _progress(f"The seed {options.seed} draws: {' '.join(wanted)}")
    if wanted is None:
        return mutants, []
    there = {mutant.row for mutant in mutants}
    missing = [Outcome(row, "", "missing") for row in wanted if row not in there]
    return [mutant for mutant in mutants if mutant.row in wanted], missing


def verdict(outcomes: Iterable[Outcome]) -> tuple[int, int, bool]:
    """How many rows were mutated, how many of them were killed, and whether that is enough."""
    ends: dict[str, set[str]] = {}
    for each in outcomes:
        ends.setdefault(each.row, set()).add(each.end)
    tried = {
        row: found for row, found in ends.items() if found <= {"killed", "timeout", "survived"}
    }
    killed = sum("survived" not in found for found in tried.values())
    is_enough = len(tried) == len(ends) and killed >= LEAST_KILLED * len(tried)
    return len(tried), killed, is_enough


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    root = Path.cwd()
    mutants, outcomes = chosen(root, options)
    folder = Path(tempfile.mkdtemp(prefix="comity-mutate-"))
    try:
        mutation = Mutation(root, folder, jobs=options.jobs, limit=options.limit)
        outcomes += mutation.outcomes(mutants)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows, killed, is_enough = verdict(outcomes)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if options.json:
        said = [asdict(each) for each in outcomes]
        print(json.dumps({"rows": rows, "killed": killed, "outcomes": said}))
    else:
        _print(outcomes)
    print(
        f"{killed} of {rows} mutated rows were killed; "
        f"{used.ru_utime + used.ru_stime:.0f} s of processor time.",
        file=sys.stderr if options.json else sys.stdout,
    )
    return 0 if is_enough else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/mutate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only the mutants of these rows")
    parser.add_argument("--sample", type=int, metavar="K", help="only K rows that the seed draws")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help=f"usually {SEED}")
    parser.add_argument("--jobs", type=int, default=1, help="so many mutants at a time")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one mutant's tests")
    parser.add_argument("--json", action="store_true", help="one object for programs at the end")
    return parser.parse_args(arguments)


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print(outcomes: Sequence[Outcome]) -> None:
    print()
    for each in outcomes:
        print(f"{each.end:<9}{each.seconds:>6.0f} s  {each.row}: {each.breaks}")
        if each.by:
            print(f"{'':<19}by {each.by[0]}{' (in a fixture)' if each.in_fixture else ''}")
    print()


if __name__ == "__main__":
    sys.exit(main())
