"""The pages that this project has written, and the pieces of code that stand in them."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Snippet:
    """One fenced block: its language, its text, and where it stands."""

    language: str
    text: str
    page: Path
    line: int

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    folders = (ROOT / "docs", ROOT / "examples")
    return sorted([*ROOT.glob("*.md"), *(page for each in folders for page in each.rglob("*.md"))])


def snippets(language: str) -> list[Snippet]:
    return [each for page in pages() for each in snippets_of(page) if each.language == language]


def snippets_of(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(
            found["language"],
            # A block inside of a list item is indented.
            textwrap.dedent(found["text"]),
            page,
            text.count("\n", 0, found.start()) + 1,
        )
        for found in _FENCE.finditer(text)
    ]
