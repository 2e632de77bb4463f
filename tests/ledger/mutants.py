"""The table of mutants: for each row, one place of the product and how it is broken there.

Rule 1: a place is a piece of text that stands once in the product, not a path, so that the table
        survives moves. Where it stands no more, or twice, the mutant is stale.
Rule 2: which rows must have a mutant is drawn by a seed, and not by whoever writes them. A row's
        turn depends on its id alone, so that a new row changes little of the draw.
"""

import hashlib
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TABLE = Path("tests/ledger/mutants.toml")
PRODUCT = Path("src/comity")
SEED = 13
SAMPLE = 60


@dataclass(frozen=True, slots=True)
class Mutant:
    """One way to break what a row promises."""

    row: str
    breaks: str
    find: str
    replace: str


def read_mutants(root: Path) -> list[Mutant]:
    with (root / TABLE).open("rb") as file:
        return [Mutant(**each) for each in tomllib.load(file)["mutant"]]


def drawn(rows: Iterable[str], seed: int, count: int) -> list[str]:
    """So many of the rows, in the order of the draw."""
    return sorted(rows, key=lambda row: hashlib.sha256(f"{seed}:{row}".encode()).digest())[:count]


class Product:
    """The text of the product, in which places are looked up."""

    def __init__(self, root: Path) -> None:
        self._texts = {
            path: path.read_text(encoding="utf-8")
            for path in sorted((root / PRODUCT).rglob("*.py"))
        }

    def place_of(self, mutant: Mutant) -> Path | None:
        """The only file in which the piece of text stands, and only once; None if it is stale."""
        found = [path for path, text in self._texts.items() if mutant.find in text]
        if len(found) != 1 or self._texts[found[0]].count(mutant.find) != 1:
            return None
        return found[0]

    def broken(self, mutant: Mutant, place: Path) -> str:
        """The whole file with the mutant in it."""
        return self._texts[place].replace(mutant.find, mutant.replace)

    def whole(self, place: Path) -> str:
        return self._texts[place]

    def stale(self, mutants: Iterable[Mutant]) -> Iterator[Mutant]:
        for mutant in mutants:
            if mutant.find == mutant.replace or self.place_of(mutant) is None:
                yield mutant
