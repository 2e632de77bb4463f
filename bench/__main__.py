"""`scripts/bench NAME`: runs one bench and prints its figures."""

import argparse
import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import uvloop

from bench import figures, relay
from bench.page import write_page
from bench.plot import plot
from bench.progress import say
from bench.table import table

_SHORT_WITHIN_SECONDS = 180.0
_WITHIN_SECONDS = 1800.0


def main() -> int:
    chosen = _arguments()
    plan = _plan(chosen)
    say(f"load average {_load()}, {os.cpu_count()} cores")
    within = _SHORT_WITHIN_SECONDS if chosen.short else _WITHIN_SECONDS
    try:
        cells = uvloop.run(_bounded(plan, within))
    except (asyncio.CancelledError, KeyboardInterrupt, TimeoutError):
        say("ended before everything was measured")
        return 2
    print(json.dumps(figures.as_json(cells), indent=2) if chosen.json else table(cells))
    say(f"load average {_load()}")
    if chosen.plot is not None:
        plot(cells, chosen.plot)
    if chosen.docs:
        write_page(cells)
    wrong = figures.gross_regressions(cells) if chosen.short else []
    for line in wrong:
        say(f"REGRESSION {line}")
    return 1 if wrong else 0


async def _bounded(plan: relay.Plan, within: float) -> list[relay.Cell]:
    task = asyncio.ensure_future(relay.measure(plan))
    # Ending by cancellation lets every process that was started be ended too.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with asyncio.timeout(within):
        return await task


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    benches = parser.add_subparsers(dest="bench", required=True, metavar="NAME")
    one = benches.add_parser("relay", help="the CPU that relaying a call costs")
    one.add_argument("--short", action="store_true", help="a minute; fails on gross regressions")
    one.add_argument("--json", action="store_true", help="print JSON instead of a table")
    one.add_argument("--paths", nargs="+", choices=relay.PATHS, metavar="PATH")
    one.add_argument("--relays", nargs="+", choices=relay.RELAYS, metavar="RELAY")
    one.add_argument("--rounds", type=int, metavar="N")
    one.add_argument("--plot", type=Path, metavar="PNG", help="also draw the figures")
    one.add_argument("--docs", action="store_true", help="also write docs/operate/bench.md")
    return parser.parse_args()


def _plan(chosen: argparse.Namespace) -> relay.Plan:
    plan = relay.SHORT if chosen.short else relay.Plan()
    return replace(
        plan,
        paths=tuple(chosen.paths or plan.paths),
        relays=tuple(chosen.relays or plan.relays),
        rounds=chosen.rounds or plan.rounds,
    )


def _load() -> str:
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


if __name__ == "__main__":
    sys.exit(main())
