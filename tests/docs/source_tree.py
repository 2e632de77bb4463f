"""Draws the import order of the packages, as the contract in `pyproject.toml` has it.

`python -m tests.docs.source_tree` writes `docs/contributing/import-order.svg`.
"""

import tomllib
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

ROOT: Final = Path(__file__).parents[2]
PICTURE: Final = ROOT / "docs" / "contributing" / "import-order.svg"
WIDTH, ROW, GAP, MARGIN = 640, 30, 6, 12


def layers() -> list[list[str]]:
    """The packages of each layer, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    order = next(each["layers"] for each in contracts if each["type"] == "layers")
    return [[name.strip() for name in layer.split("|")] for layer in order]


def draw() -> str:
    rows = layers()
    height = 2 * MARGIN + len(rows) * (ROW + GAP) - GAP
    size = f'viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif" font-size="14"'
    boxes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        "<title>A package imports only packages that are drawn below it</title>",
    ]
    for number, names in enumerate(rows):
        top = MARGIN + number * (ROW + GAP)
        wide = (WIDTH - 2 * MARGIN - GAP * (len(names) - 1)) / len(names)
        for column, name in enumerate(names):
            left = MARGIN + column * (wide + GAP)
            place = f'x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{ROW}"'
            boxes.append(f'<rect {place} rx="4" fill="#e8eef7" stroke="#5a6f92"/>')
            middle = f'x="{left + wide / 2:.1f}" y="{top + 20}" text-anchor="middle"'
            boxes.append(f'<text {middle} fill="#1d2a3f">{escape(name)}</text>')
    return "\n".join([*boxes, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
