"""Comity beside nginx and other gateways: one figure each, one picture, one page of the docs.

`scripts/bench peers --docs` measures, and writes the JSON, the picture and the table of the page.
"""

# matplotlib declares its keyword arguments without types.
# pyright: reportUnknownMemberType=false

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture

from bench import governed, relay
from bench.bodies import PLAIN
from bench.figures import figures, ratio
from bench.page import machine, markdown, replace_between
from bench.peers import reason_missing
from bench.processes import ROOT

PAGE = ROOT / "docs" / "explanation" / "performance.md"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
HTTP, STDIO = "http-handshake", "stdio-handshake"
CONCURRENCY = 32
NAMES = {
    "nginx": "nginx (reads no JSON)",
    "bare": "bare Python relay",
    "comity": "Comity",
    "sdk": "SDK relay",
    "supergateway": "supergateway (stdio)",
    "fastmcp": "FastMCP proxy",
    "litellm": "LiteLLM",
    "contextforge": "ContextForge",
}


async def measure(rounds: int) -> dict[str, Any]:
    """CPU of each relay, in ms per call and in times the bare relay of the same path."""
    missing = {name: reason_missing(name) for name in ("nginx", "supergateway", "litellm")}
    there = [name for name, reason in missing.items() if reason is None]
    over_http = ("bare", "comity", "sdk", "fastmcp", *(set(there) - {"supergateway"}))
    cells = await relay.measure(
        relay.Plan(paths=(HTTP,), relays=over_http, rounds=rounds, bodies=(PLAIN,))
    )
    if "supergateway" in there:
        relays = ("bare", "supergateway")
        cells += await relay.measure(
            relay.Plan(paths=(STDIO,), relays=relays, rounds=rounds, bodies=(PLAIN,))
        )
    plan = governed.Plan(
        paths=(HTTP,), relays=("bare", "contextforge"), rounds=rounds, bodies=(PLAIN,)
    )
    cells += (await governed.measure(plan)).cells
    found: dict[str, Any] = {}
    reasons = {name: reason for name, reason in missing.items() if reason}
    for cell in (cell for cell in cells if cell.concurrency == CONCURRENCY):
        reasons |= {name: reason[:200] for name, reason in cell.reasons.items()}
        for name, figure in figures(cell).items():
            times = ratio(cell, name, "bare")
            found.setdefault(
                name, {"cpu_ms": round(figure.cpu_ms, 4), "times_bare": round(times or 0, 3)}
            )
    stated = f"{datetime.now(UTC):%Y-%m-%d}, {machine()}"
    return {"measured": stated, "relays": found, "not_available": reasons}


def text(measured: dict[str, Any]) -> str:
    return markdown(_rows(measured))


def write_page(measured: dict[str, Any], page: Path = PAGE) -> None:
    written = json.dumps(measured, indent=2) + "\n"
    page.with_suffix(".json").write_text(written, encoding="utf-8")
    missing = [
        f"{NAMES.get(name, name)} has no figure: {reason}"
        for name, reason in measured["not_available"].items()
    ]
    stated = f"`scripts/bench peers --docs`, {measured['measured']}"
    replace_between(page, BEGIN, END, [stated, text(measured), *missing])
    plot(measured, page.with_suffix(".png"))


def _rows(measured: dict[str, Any]) -> list[list[str]]:
    rows = [["relay", "CPU, ms per call", "times the bare relay"]]
    for name, title in NAMES.items():
        if one := measured["relays"].get(name):
            rows.append([title, f"{one['cpu_ms']:.3f}", f"{one['times_bare']:.3g}"])
    return rows


def plot(measured: dict[str, Any], to: Path) -> None:
    """One bar for each relay, on one logarithmic axis."""
    picture = Picture(figsize=(8, 3.6), layout="constrained")
    FigureCanvasAgg(picture)
    panel = picture.subplots()
    shown = [name for name in NAMES if name in measured["relays"]][::-1]
    costs = [measured["relays"][name]["cpu_ms"] for name in shown]
    colours = ["#1f7a5c" if name == "comity" else "#9aa5b1" for name in shown]
    bars = panel.barh([NAMES[name] for name in shown], costs, color=colours)
    panel.bar_label(bars, [f"{cost:.2g}" for cost in costs], padding=3, fontsize=8)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set_xlabel(f"CPU of the relay per call, ms; {CONCURRENCY} calls at a time")
    panel.spines[["top", "right"]].set_visible(False)
    picture.savefig(to, dpi=110)
