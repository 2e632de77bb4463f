"""The rows of the five documents, and the rows that Comity deviates from with a reason."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = Path("docs/design/requirements.tsv")
DEVIATIONS = Path("docs/design/deviations.tsv")

# The first word of an id tells its document; the order is that of the documents, 000 to 004.
DOCUMENTS: Mapping[str, str] = {
    "MGP": "mgp",
    "MCPX": "mcpx",
    "MCP": "mcp",
    "REG": "registry",
    "MCPL": "mcpl",
}


class BrokenCatalogue(ValueError):
    """A file of the ledger says something that it may not say."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One row: what a document asks, and of whom."""

    id: str
    section: str
    strength: str
    role: str
    text: str

    @property
    def document(self) -> str:
        return DOCUMENTS[self.id.partition("-")[0]]

    @property
    def is_prose(self) -> bool:
        """Whether the document describes this without asking for it by a word of its own."""
        return self.strength == "prose"


def read_requirements(root: Path) -> dict[str, Requirement]:
    """Every row by its id, in the order of the file."""
    rows: dict[str, Requirement] = {}
    for fields in _rows(root / REQUIREMENTS, columns=5):
        row = Requirement(*fields)
        if row.id in rows:
            raise BrokenCatalogue(f"{REQUIREMENTS}: {row.id} stands there twice")
        if row.id.partition("-")[0] not in DOCUMENTS:
            raise BrokenCatalogue(f"{REQUIREMENTS}: {row.id} belongs to no document")
        rows[row.id] = row
    return rows


def read_deviations(root: Path, known: Mapping[str, Requirement]) -> dict[str, str]:
    """The reason for each row that is deliberately not met as written."""
    reasons: dict[str, str] = {}
    for row_id, reason in _rows(root / DEVIATIONS, columns=2):
        if row_id not in known:
            raise BrokenCatalogue(f"{DEVIATIONS}: {row_id} is not a row of {REQUIREMENTS}")
        if row_id in reasons:
            raise BrokenCatalogue(f"{DEVIATIONS}: {row_id} stands there twice")
        if not reason.strip():
            raise BrokenCatalogue(f"{DEVIATIONS}: {row_id} has no reason")
        reasons[row_id] = reason
    return reasons


def _rows(path: Path, columns: int) -> Iterator[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        # The texts hold bare quotation marks, so a quotation mark must mean nothing here.
        lines = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        next(lines, None)
        for number, fields in enumerate(lines, start=2):
            if len(fields) != columns:
                raise BrokenCatalogue(f"{path.name}, line {number}: not {columns} columns")
            yield fields
