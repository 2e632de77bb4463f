"""`scripts/bench search`: how well tools are found, or with `--speed` how fast."""

import argparse
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import search_quality, search_quality_figures, search_speed, search_speed_figures
from bench.search_sets import OWN, collections

type Run = Callable[[Coroutine[None, None, Any]], Any]


def run(chosen: argparse.Namespace, measured: Run) -> list[str]:
    """Measures, prints and writes; gives what is wrong, where the short form asks for that."""
    return _speed(chosen, measured) if chosen.speed else _quality(chosen, measured)


def _speed(chosen: argparse.Namespace, measured: Run) -> list[str]:
    figures = search_speed_figures
    plan = search_speed.SHORT if chosen.short else search_speed.Plan()
    rounds, sizes = chosen.rounds or plan.rounds, tuple(chosen.sizes or plan.sizes)
    plan = replace(plan, rounds=rounds, sizes=sizes, folders=_folders(chosen))
    cells = measured(search_speed.measure(plan))
    print(json.dumps(figures.as_json(cells), indent=2) if chosen.json else figures.text(cells))
    if chosen.docs:
        figures.write_page(cells)
    return figures.wrong(cells) if chosen.short else []


def _quality(chosen: argparse.Namespace, measured: Run) -> list[str]:
    figures = search_quality_figures
    plan = search_quality.Plan(_folders(chosen), chosen.vectors)
    found = measured(search_quality.measure(plan))
    print(json.dumps(figures.as_json(found), indent=2) if chosen.json else figures.text(found))
    if chosen.docs:
        figures.write_page(found)
    return figures.wrong(found) if chosen.short else []


def _folders(chosen: argparse.Namespace) -> tuple[Path, ...]:
    return (OWN, *([chosen.data] if chosen.data else []))


def _folder(said: str) -> Path:
    try:
        collections([Path(said)])
    except FileNotFoundError as missing:
        raise argparse.ArgumentTypeError(str(missing)) from None
    return Path(said)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--speed", action="store_true", help="how fast, instead of how well")
    parser.add_argument("--sizes", nargs="+", type=int, metavar="TOOLS", help="with --speed")
    parser.add_argument("--data", type=_folder, metavar="FOLDER", help="of more sets to measure")
    parser.add_argument("--vectors", type=Path, metavar="FOLDER", help="where vectors are kept")
