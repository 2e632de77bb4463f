"""The figures of a relay bench as a picture for the documentation."""

# matplotlib declares its keyword arguments without types.
# pyright: reportUnknownMemberType=false

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture

from bench.figures import figures
from bench.relay import CONCURRENCIES, Cell

_COLOURS = {
    "bare": "#9aa5b1",
    "comity": "#1f7a5c",
    "sdk": "#4f6db8",
    "fastmcp-reused": "#c98a2b",
    "fastmcp": "#b8524f",
}


def plot(cells: list[Cell], to: Path) -> None:
    """CPU per call of each relay on each path, one panel for each concurrency."""
    picture = Picture(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(picture)
    panels = picture.subplots(1, len(CONCURRENCIES), sharey=True, squeeze=False)[0]
    for panel, concurrency in zip(panels, CONCURRENCIES, strict=True):
        _panel(panel, [cell for cell in cells if cell.concurrency == concurrency])
        panel.set_title("one call at a time" if concurrency == 1 else f"{concurrency} at a time")
    panels[0].set_ylabel("CPU of the relay per call, ms")
    handles, labels = panels[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    to.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(to, dpi=110)


def _panel(panel: Axes, cells: list[Cell]) -> None:
    found = [figures(cell) for cell in cells]
    shown = [relay for relay in _COLOURS if any(relay in by_relay for by_relay in found)]
    width = 0.84 / max(len(shown), 1)
    for order, relay in enumerate(shown):
        places = [place for place, by_relay in enumerate(found) if relay in by_relay]
        heights = [found[place][relay].cpu_ms for place in places]
        left = [place - 0.42 + (order + 0.5) * width for place in places]
        bars = panel.bar(left, heights, width * 0.92, color=_COLOURS[relay], label=relay)
        panel.bar_label(bars, [f"{height:.2g}" for height in heights], fontsize=6, padding=1)
    panel.set_xticks(range(len(cells)), [cell.path.replace("-", "\n") for cell in cells])
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter("{x:g}")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", alpha=0.25)
    panel.set_axisbelow(True)
