"""The guide to topics holds: its member joins, is refused and promoted as the page shows it."""

from pathlib import Path

from tests.docs.pages import ROOT, snippets_of
from tests.docs.reader import Reader

GUIDE = ROOT / "docs" / "guides" / "topics.md"
WIRE = ROOT / "docs" / "reference" / "topics.md"


def test_the_member_of_the_guide_joins_is_refused_and_promoted(tmp_path: Path) -> None:
    found = snippets_of(GUIDE)
    for name, language in {"comity.toml": "toml", "hello.py": "python"}.items():
        first = next(each for each in found if each.language == language)
        (tmp_path / name).write_text(first.text, encoding="utf-8")
    Reader(tmp_path).go_through(GUIDE, {})
