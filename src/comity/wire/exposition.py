"""Figures as Prometheus reads them: the text format 0.0.4, family after family, in pieces.

A label's value may be a stranger's word (the name of a tool), so it is cut, freed of control
characters and escaped; a figure is never left out for the sake of its name.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import inf, isnan
from typing import Final, Literal, NamedTuple

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
LONGEST_VALUE: Final = 128
LINES_IN_A_PIECE: Final = 500

type Labels = tuple[tuple[str, str], ...]
type FamilyKind = Literal["counter", "gauge", "histogram", "summary"]


class Spread(NamedTuple):
    """Durations by how long they were; `counts` has one more place than `bounds`, for the rest."""

    bounds: tuple[float, ...]
    counts: Sequence[int]
    total: float


class Sum(NamedTuple):
    """Durations of which only the number and the sum are known."""

    number: int
    total: float


type Figure = float | Spread | Sum
type Sample = tuple[Labels, Figure]


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one name, with what the name means."""

    name: str
    kind: FamilyKind
    help: str
    samples: Sequence[Sample]


def encode(families: Iterable[Family]) -> Iterator[bytes]:
    """The page that a scrape reads, in pieces, so that others may have their turn in between."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escape_help(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, figure in family.samples:
            lines += _lines(family.name, _said(labels), figure)
            if len(lines) >= LINES_IN_A_PIECE:
                yield _joined(lines)
                lines = []
    if lines:
        yield _joined(lines)


def _joined(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _lines(name: str, labels: str, figure: Figure) -> list[str]:
    braced = f"{{{labels}}}" if labels else ""
    if isinstance(figure, Spread):
        before = f"{name}_bucket{{{labels}{',' if labels else ''}"
        reached = list(accumulate(figure.counts))
        return [
            *(
                f"{before}{le} {count}"
                for le, count in zip(_les(figure.bounds), reached, strict=True)
            ),
            f"{name}_sum{braced} {_number(figure.total)}",
            f"{name}_count{braced} {reached[-1]}",
        ]
    if isinstance(figure, Sum):
        return [
            f"{name}_sum{braced} {_number(figure.total)}",
            f"{name}_count{braced} {figure.number}",
        ]
    return [f"{name}{braced} {_number(figure)}"]


@lru_cache(16)
def _les(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(f'le="{_number(bound)}"}}' for bound in (*bounds, inf))


@lru_cache(8192)
def _said(labels: Labels) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in labels)


def _escape(value: str) -> str:
    cut = value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 1] + "…"
    return _CONTROL.sub("?", cut).replace("\\", r"\\").replace('"', r"\"")


def _escape_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    if isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) else repr(value)


# Line ends of every kind that a reader may know, and what moves a terminal's cursor.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
