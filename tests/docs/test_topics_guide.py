"""The guide to topics holds: its member joins, is refused and promoted as the page shows it."""

import tomllib
from pathlib import Path

from comity.config.tables import SETTINGS
from comity.rules.topics import Violation
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


def test_every_setting_that_the_guide_names_is_one() -> None:
    known = {each.name for each in SETTINGS if each.table == "topics"}
    tables = [tomllib.loads(each.text) for each in snippets_of(GUIDE) if each.language == "toml"]
    named = {key for table in tables for key in table.get("topics", {})}
    assert named - known == set()


def test_every_error_of_a_topic_stands_in_the_reference() -> None:
    text = WIRE.read_text(encoding="utf-8")
    assert [each for each in Violation if f"| `{each}` |" not in text] == []
