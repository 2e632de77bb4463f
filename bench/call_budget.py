"""Counts what one warm `tools/call` does: calls, tasks, futures, decodes, encodes, memory blocks.

`--write` writes the figures to the table that a test compares them with. CI gates on that table.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.call_counter import KINDS, CallCounter, place_of
from bench.call_driver import CallPath, PipeLoop, driver
from bench.processes import ROOT

TABLE: Final = ROOT / "tests" / "gateway" / "call_budget.toml"
COMMAND: Final = "python -m bench.call_budget --write"
PYTHON: Final = (3, 13)
"""The figures of another minor version differ."""

TRIES: Final = 25
BATCH: Final = 100
BATCHES: Final = 9
BLOCKS: Final = "allocations"
_HEADING: Final = f"""\
# What one warm tools/call does, for each path. `{COMMAND}` writes this table.
# CPython {PYTHON[0]}.{PYTHON[1]} only. A change may lower a figure. One that raises it says why.
#
# python, c_calls: calls of Python and of C functions; tasks, futures: those that are created;
# decodes, encodes: of JSON; allocations: memory blocks that the call holds while it waits for its
# server, which vary by a few. A path that begins with "audit" is the commit of a batch of {BATCH}
# calls, per call. A path with futures waits for the thread of the store.
"""

type Figures = dict[str, float]

_RELAY: Final = CallPath("relay modern")
_GOVERNED: Final = CallPath("governed modern", is_governed=True)
PATHS: Final = (
    _RELAY,
    CallPath("relay legacy", "handshake", "handshake"),
    CallPath("stdio modern", is_stdio=True),
    CallPath("stdio legacy", "handshake", "handshake", is_stdio=True),
    CallPath("merged modern", is_merged=True),
    CallPath("bridge to legacy", server_era="handshake"),
    CallPath("bridge to modern", "handshake"),
    *(
        replace(_RELAY, name=f"relay modern, {body} body", body=body)
        for body in ("newline", "utf8", "escaped", "progress", "2kb", "20kb")
    ),
    _GOVERNED,
    CallPath("governed legacy", "handshake", "handshake", is_governed=True),
    replace(_GOVERNED, name="governed limited", has_limit=True),
    replace(_GOVERNED, name="governed merged", is_merged=True),
    replace(_GOVERNED, name="governed durable", risk="dangerous"),
    CallPath("view modern", is_view=True),
    CallPath("view modern, fixed argument", is_view=True, fixed="loud"),
    replace(_GOVERNED, name="governed view, fixed argument", is_view=True, fixed="loud"),
)
AUDIT_PATHS: Final = (
    replace(_RELAY, name="audit in memory", is_batched=True),
    replace(_GOVERNED, name="audit in SQLite", risk="safe", is_batched=True),
)


def measure(path: CallPath) -> tuple[Figures, CallCounter]:
    """The figures of a path, and the counter of one call."""
    return _run(_measure(path))


def measure_audit(path: CallPath) -> tuple[Figures, CallCounter]:
    """The same for the commit of the calls' audit events, divided by the number of calls."""
    return _run(_measure_audit(path))


def _run[T](work: Coroutine[None, None, T]) -> T:
    with asyncio.Runner(loop_factory=PipeLoop) as runner:
        return runner.run(work)


async def _measure(path: CallPath) -> tuple[Figures, CallCounter]:
    counters: list[CallCounter] = []
    with tempfile.TemporaryDirectory() as folder:
        async with driver(path, Path(folder)) as driven:
            for _ in range(TRIES):
                counters.append(CallCounter())
                await driven.count(counters[-1])
            blocks = statistics.median_low([await driven.blocks() for _ in range(TRIES)])
    by_figures = {tuple(each.figures().values()): each for each in counters}
    usual = statistics.mode([tuple(each.figures().values()) for each in counters])
    if by_figures[usual].counts["futures"] or path.servers > 1:
        # Other work of the gateway that runs while a call waits only adds to it.
        usual = min(by_figures)
    return {**dict(zip(KINDS, usual, strict=True)), BLOCKS: blocks}, by_figures[usual]


async def _measure_audit(path: CallPath) -> tuple[Figures, CallCounter]:
    batches: list[tuple[int, CallCounter]] = []
    with tempfile.TemporaryDirectory() as folder:
        async with driver(path, Path(folder)) as driven:
            for _ in range(BATCHES):
                counter = CallCounter()
                batches.append((await driven.count_audit(counter, BATCH), counter))
    most = max(events for events, _ in batches)
    counters = [counter for events, counter in batches if events == most]
    # Other work of the gateway that runs during a commit only adds to it.
    least = min(counters, key=lambda each: each.figures()["python"])
    return {kind: round(count / BATCH) for kind, count in least.figures().items()}, least


def read_table(table: Path = TABLE) -> dict[str, Figures]:
    return tomllib.loads(table.read_text(encoding="utf-8"))


def write_table(found: dict[str, Figures], table: Path = TABLE) -> None:
    entries = [f"\n[{json.dumps(name)}]\n{_entry(figures)}" for name, figures in found.items()]
    table.write_text(_HEADING + "".join(entries), encoding="utf-8")


def _entry(figures: Figures) -> str:
    return "".join(f"{kind} = {figure}\n" for kind, figure in figures.items())


def differences(table: Figures, found: Figures) -> list[str]:
    """What differs by more than two runs of the same code may differ."""
    # Figures of threads that wait for each other, and those of memory, vary a little.
    is_threaded = BLOCKS not in found or found["futures"] > 0
    calls = 5 + found["python"] // 20
    allowed = {"python": calls, "c_calls": calls, "futures": 1, BLOCKS: 6}
    return [
        f"{kind}: {table.get(kind)} in the table, {found.get(kind)} now"
        for kind in (*KINDS, BLOCKS)
        if abs(table.get(kind, 0) - found.get(kind, 0))
        > (allowed.get(kind, 0) if is_threaded or kind == BLOCKS else 0)
    ]


def measure_all(only: str = "", show: Sequence[str] = ()) -> dict[str, Figures]:
    """The figures of every path whose name holds `only`."""
    found: dict[str, Figures] = {}
    for path in (*PATHS, *AUDIT_PATHS):
        if only in path.name:
            ways = measure_audit if path in AUDIT_PATHS else measure
            found[path.name], counter = ways(path)
            said = ", ".join(f"{kind} {figure}" for kind, figure in found[path.name].items())
            print(f"{path.name}: {said}", file=sys.stderr, flush=True)
            _show(counter, show)
    return found


def _show(counter: CallCounter, show: Sequence[str]) -> None:
    if "functions" in show:
        for code, times in counter.functions.most_common():
            print(f"  {times:3} {place_of(code)}:{code.co_firstlineno} {code.co_qualname}")
    if "modules" in show:
        modules = counter.modules()
        for module, times in sorted(modules.items(), key=lambda each: (-each[1], each[0])):
            print(f"  {times:3} {module}")
        calls = sum(modules.values())
        print(f"{calls} calls of {len(counter.functions)} functions in {len(modules)} modules")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="the paths whose name holds this")
    parser.add_argument("--functions", action="store_true", help="list the functions of each path")
    parser.add_argument("--modules", action="store_true", help="list the modules of each path")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--write", action="store_true", help="write the table of the test")
    chosen = parser.parse_args()
    if chosen.write and (chosen.only or sys.version_info[:2] != PYTHON):
        parser.error(f"the table holds every path, counted by Python {PYTHON[0]}.{PYTHON[1]}")
    show = [each for each in ("functions", "modules") if getattr(chosen, each)]
    found = measure_all(chosen.only, show)
    if chosen.json:
        print(json.dumps(found, indent=2))
    if chosen.write:
        write_table(found)


if __name__ == "__main__":
    main()
