"""Draws the overview picture of the README from `docs/assets/overview.toml`, light and dark."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

ASSETS: Final = Path(__file__).parents[2] / "docs" / "assets"
SOURCE: Final = ASSETS / "overview.toml"
COMMAND: Final = "python -m tests.docs.overview"

WIDTH, HEIGHT = 840, 330
_COLUMN_WIDTH: Final = 200
_MAIN_WIDTH: Final = 240
_TOP: Final = 64
_BOX: Final = 34
_GAP: Final = 8


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of one picture."""

    name: str
    text: str
    quiet: str
    line: str
    box: str
    main: str
    accent: str


THEMES: Final = (
    Theme("light", "#1f2328", "#59636e", "#b7bec6", "#ffffff", "#f1f5fd", "#3451b2"),
    Theme("dark", "#e6edf3", "#9198a1", "#4b535d", "#1b2129", "#172033", "#8fb0ff"),
)


def draw(source: dict[str, Any], theme: Theme) -> str:
    body = "\n".join(_parts(source, theme))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">\n'
        f"<title>{escape(_title(source))}</title>\n{body}\n</svg>\n"
    )


def _title(source: dict[str, Any]) -> str:
    first, main, last = (column["title"] for column in source["columns"])
    return f"{first} call {main}, which checks each call and forwards it to {last}."


def _parts(source: dict[str, Any], theme: Theme) -> Iterator[str]:
    edges: list[tuple[int, int]] = []
    spare = WIDTH - 2 - 2 * _COLUMN_WIDTH - _MAIN_WIDTH
    left = 1
    for column in source["columns"]:
        is_main = column.get("is_main", False)
        width = _MAIN_WIDTH if is_main else _COLUMN_WIDTH
        yield from _column(column, left, width, theme)
        if is_main:
            yield from _people(source["people"], column, left + width, theme)
        edges.append((left, left + width))
        left += width + spare // 2
    for number, arrow in enumerate(source["arrows"]):
        yield from _arrow(edges[number][1], edges[number + 1][0], arrow["text"], theme)


def _column(column: dict[str, Any], left: int, width: int, theme: Theme) -> Iterator[str]:
    boxes: list[str] = column["boxes"]
    is_main = column.get("is_main", False)
    yield _text(left + width / 2, _TOP - 34, column["title"], theme.text, 17, "600")
    if is_main:
        height = len(boxes) * (_BOX + _GAP) + _GAP + 4
        yield _box(left, _TOP - 18, width, height, theme.main, theme.accent, 12)
    inset = 16 if is_main else 0
    labels = [f"{number}. {box}" for number, box in enumerate(boxes, 1)] if is_main else boxes
    for top, label in zip(_tops(boxes), labels, strict=True):
        yield _box(left + inset, top, width - 2 * inset, _BOX, theme.box, theme.line, 7)
        yield _text(left + width / 2, top + _BOX / 2 + 5, label, theme.text, 14)


def _tops(boxes: list[str]) -> list[float]:
    step = _BOX + _GAP
    middle = _TOP - 18 + (6 * step + _GAP + 4) / 2
    first = middle - (len(boxes) * step - _GAP) / 2
    return [first + number * step for number in range(len(boxes))]


def _people(
    people: dict[str, str], column: dict[str, Any], right: int, theme: Theme
) -> Iterator[str]:
    """Below the servers, joined to the step that asks people."""
    boxes: list[str] = column["boxes"]
    top = _tops(boxes)[boxes.index(people["beside"])] + _BOX / 2
    left, middle = WIDTH - _COLUMN_WIDTH - 1, HEIGHT - 36
    yield (
        f'<path d="M {right - 16} {top} H {right + 30} V {middle} H {left}" fill="none" '
        f'stroke="{theme.accent}" stroke-width="1.6" stroke-dasharray="5 4"/>'
    )
    yield _box(left, middle - 26, _COLUMN_WIDTH, 52, theme.box, theme.accent, 7)
    centre = left + _COLUMN_WIDTH / 2
    yield _text(centre, middle - 5, people["title"], theme.accent, 14, "600")
    yield _text(centre, middle + 14, people["text"], theme.quiet, 12)


def _arrow(start: int, end: int, text: str, theme: Theme) -> Iterator[str]:
    y = _TOP - 18 + (6 * (_BOX + _GAP) + _GAP + 4) / 2
    x, tip = start + 8, end - 10
    yield (
        f'<path d="M {x} {y} H {tip} m -7 -5 l 7 5 l -7 5" fill="none" stroke="{theme.quiet}" '
        'stroke-width="1.8"/>'
    )
    yield _text((x + tip) / 2, y - 10, text, theme.quiet, 12)


def _box(x: float, y: float, width: float, height: float, fill: str, line: str, r: int) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{r}" fill="{fill}" '
        f'stroke="{line}"/>'
    )


def _text(x: float, y: float, text: str, fill: str, size: int, weight: str = "400") -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{fill}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="middle">{escape(text)}</text>'
    )


def pictures() -> dict[Path, str]:
    source = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    return {ASSETS / f"overview-{theme.name}.svg": draw(source, theme) for theme in THEMES}


def main() -> None:
    for path, picture in pictures().items():
        path.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
