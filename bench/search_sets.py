"""Sets of tools and questions for the search bench: our own, and others from a folder."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.processes import ROOT

OWN = ROOT / "bench" / "data"
_TOOLS, _QUESTIONS = ".tools.jsonl", ".queries.jsonl"

type Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Collection:
    """Tools of one name, and the sets of questions about them: NAME and NAME.X."""

    folder: Path
    name: str
    sets: tuple[str, ...]

    def tools(self) -> list[Row]:
        return list(_rows(self.folder / f"{self.name}{_TOOLS}"))

    def questions(self, of: str) -> list[Row]:
        return list(_rows(self.folder / f"{of}{_QUESTIONS}"))


def collections(folders: Iterable[Path]) -> list[Collection]:
    """Every collection in these folders, by name. Raises FileNotFoundError for a folder without."""
    found: list[Collection] = []
    for folder in folders:
        names = sorted(path.name.removesuffix(_TOOLS) for path in folder.glob(f"*{_TOOLS}"))
        if not names:
            raise FileNotFoundError(f"{folder} has no file *{_TOOLS}")
        found += [Collection(folder, name, _sets(folder, name)) for name in names]
    return found


def _sets(folder: Path, name: str) -> tuple[str, ...]:
    sets = sorted(path.name.removesuffix(_QUESTIONS) for path in folder.glob(f"*{_QUESTIONS}"))
    return tuple(each for each in sets if each.partition(".")[0] == name)


def _rows(path: Path) -> Iterator[Row]:
    yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())
