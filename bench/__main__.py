"""`scripts/bench NAME`: runs one bench and prints its figures."""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path

import uvloop

from bench import (
    client_crowd,
    figures,
    governed,
    governed_figures,
    idle,
    page,
    peers_page,
    relay,
    search,
    topic_figures,
    topic_servers,
    topics,
)
from bench.bodies import BODIES
from bench.plot import plot
from bench.progress import say
from bench.table import table

_SHORT_WITHIN_SECONDS = 180.0
_WITHIN_SECONDS = 4 * 3600.0


def main() -> int:
    chosen = _arguments()
    say(f"load average {_load()}, {os.cpu_count()} cores")
    try:
        wrong = _BENCHES[chosen.bench](chosen)
    except (asyncio.CancelledError, KeyboardInterrupt, TimeoutError):
        say("ended before everything was measured")
        return 2
    for line in wrong:
        say(f"REGRESSION {line}")
    return 1 if wrong else 0


def _relay(chosen: argparse.Namespace) -> list[str]:
    plan = _narrowed(relay.SHORT if chosen.short else relay.Plan(), chosen)
    cells = _run(relay.measure(plan), chosen)
    print(json.dumps(figures.as_json(cells), indent=2) if chosen.json else table(cells))
    if chosen.plot is not None:
        plot(cells, chosen.plot)
    if chosen.docs:
        page.write_page(cells)
    return figures.gross_regressions(cells) if chosen.short else []


def _governed(chosen: argparse.Namespace) -> list[str]:
    plan = _narrowed(governed.SHORT if chosen.short else governed.Plan(), chosen)
    plan = replace(plan, parties=chosen.parties or plan.parties, store=chosen.store)
    found = _run(governed.measure(plan), chosen)
    shown = governed_figures.as_json(found) if chosen.json else governed_figures.text(found)
    print(json.dumps(shown, indent=2) if chosen.json else shown)
    if chosen.docs:
        governed_figures.write_page(found)
    return governed_figures.wrong(found) if chosen.short else []


def _topics(chosen: argparse.Namespace) -> list[str]:
    plan = topics.SHORT if chosen.short else topics.Plan()
    plan = replace(
        plan,
        sizes=tuple(chosen.sizes or plan.sizes),
        servers=tuple(chosen.servers or plan.servers),
        rounds=chosen.rounds or plan.rounds,
    )
    found = _run(topics.measure(plan), chosen)
    shown = topic_figures.as_json(found) if chosen.json else topic_figures.text(found)
    print(json.dumps(shown, indent=2) if chosen.json else shown)
    if chosen.docs:
        topic_figures.write_page(found)
    return topic_figures.wrong(found) if chosen.short else []


def _search(chosen: argparse.Namespace) -> list[str]:
    return search.run(chosen, lambda measured: _run(measured, chosen))


def _idle(chosen: argparse.Namespace) -> list[str]:
    plan = replace(idle.SHORT if chosen.short else idle.Plan(), store=chosen.store)
    return idle.show(_run(idle.measure(plan), chosen), as_json=chosen.json)


def _crowd(chosen: argparse.Namespace) -> list[str]:
    plan = client_crowd.SHORT if chosen.short else client_crowd.Plan()
    plan = replace(
        plan,
        clients=chosen.clients or plan.clients,
        sessions=chosen.sessions or plan.sessions,
        rounds=chosen.rounds or plan.rounds,
    )
    found = _run(client_crowd.measure(plan), chosen)
    shown = json.dumps(client_crowd.as_json(found), indent=2)
    print(shown if chosen.json else client_crowd.text(found))
    return []


def _peers(chosen: argparse.Namespace) -> list[str]:
    measured = _run(peers_page.measure(chosen.rounds or 5), chosen)
    print(json.dumps(measured, indent=2) if chosen.json else peers_page.text(measured))
    if chosen.docs:
        peers_page.write_page(measured)
    return []


_BENCHES = {
    "peers": _peers,
    "relay": _relay,
    "governed": _governed,
    "topics": _topics,
    "search": _search,
    "idle": _idle,
    "crowd": _crowd,
}


def _narrowed[Plan: (relay.Plan, governed.Plan)](plan: Plan, chosen: argparse.Namespace) -> Plan:
    """A plan with what was asked for in the place of what it has."""
    return replace(
        plan,
        paths=tuple(chosen.paths or plan.paths),
        relays=tuple(chosen.relays or plan.relays),
        rounds=chosen.rounds or plan.rounds,
        bodies=tuple(chosen.bodies or plan.bodies),
        runs=chosen.runs,
    )


def _run[Found](measured: Coroutine[None, None, Found], chosen: argparse.Namespace) -> Found:
    within = _SHORT_WITHIN_SECONDS if chosen.short else _WITHIN_SECONDS
    found = uvloop.run(_bounded(measured, within))
    say(f"load average {_load()}")
    return found


async def _bounded[Found](measured: Coroutine[None, None, Found], within: float) -> Found:
    task = asyncio.ensure_future(measured)
    # Ending by cancellation lets every process that was started be ended too.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with asyncio.timeout(within):
        return await task


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    benches = parser.add_subparsers(dest="bench", required=True, metavar="NAME")
    one = benches.add_parser("relay", help="the CPU that relaying a call costs")
    _add_common(one, relay.PATHS, relay.RELAYS)
    one.add_argument("--plot", type=Path, metavar="PNG", help="also draw the figures")
    other = benches.add_parser("governed", help="the CPU that governing a call costs")
    _add_common(other, governed.PATHS, governed.RELAYS)
    other.add_argument("--parties", type=int, metavar="N", help="parties of ten grants each")
    other.add_argument("--store", default="", metavar="URL", help="an empty PostgreSQL to use")
    _add_manner(benches.add_parser("peers", help="other gateways and nginx on one axis"))
    crowd = benches.add_parser("crowd", help="many clients and idle sessions at once")
    _add_manner(crowd)
    crowd.add_argument("--clients", type=int, metavar="N")
    crowd.add_argument("--sessions", type=int, metavar="N")
    third = benches.add_parser("topics", help="the CPU that giving an envelope to many costs")
    _add_manner(third)
    third.add_argument("--sizes", nargs="+", type=int, metavar="MEMBERS")
    third.add_argument("--servers", nargs="+", choices=topic_servers.SERVERS, metavar="SERVER")
    fourth = benches.add_parser("search", help="how well tools are found, and how fast")
    _add_manner(fourth)
    search.add_options(fourth)
    fifth = benches.add_parser("idle", help="the CPU that an idle gateway uses")
    _add_manner(fifth)
    idle.add_options(fifth)
    return parser.parse_args()


def _add_common(
    parser: argparse.ArgumentParser, paths: tuple[str, ...], relays: tuple[str, ...]
) -> None:
    _add_manner(parser)
    parser.add_argument("--paths", nargs="+", choices=paths, metavar="PATH")
    parser.add_argument("--relays", nargs="+", choices=relays, metavar="RELAY")
    parser.add_argument("--bodies", nargs="+", choices=BODIES, metavar="BODY")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="measure all N times")


def _add_manner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--short", action="store_true", help="a minute; fails on what is wrong")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--rounds", type=int, metavar="N")
    parser.add_argument("--docs", action="store_true", help="also write the page of the docs")


def _load() -> str:
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


if __name__ == "__main__":
    sys.exit(main())
