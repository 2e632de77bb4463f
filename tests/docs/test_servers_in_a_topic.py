"""The guide to servers in topics holds: its agent proposes, and what is approved is done."""

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, snippets_of
from tests.docs.reader import Asked

pytestmark = pytest.mark.timeout(300)

GUIDE = ROOT / "docs" / "guides" / "servers-in-a-topic.md"


def test_what_the_agent_of_the_guide_proposes_is_approved_and_done(tmp_path: Path) -> None:
    found = snippets_of(GUIDE)
    for name, language in {"comity.toml": "toml", "propose.py": "python"}.items():
        first = next(each for each in found if each.language == language)
        (tmp_path / name).write_text(first.text, encoding="utf-8")
    Asked(tmp_path).go_through(GUIDE, {})
