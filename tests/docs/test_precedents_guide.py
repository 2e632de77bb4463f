"""The guide to precedents, gone through as somebody does who decides for an agent."""

import shutil
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, snippets_of
from tests.docs.reader import Reader

pytestmark = pytest.mark.timeout(600)

GUIDE = ROOT / "docs" / "guides" / "let-precedents-become-grants.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the guide shows it with curl")
def test_the_guide_shows_what_somebody_sees_who_decides(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    found = {each.language: each.text for each in snippets_of(GUIDE)}
    (tmp_path / "comity.toml").write_text(found["toml"], encoding="utf-8")
    (tmp_path / "work.sh").write_text(reader.here(found["sh"]), encoding="utf-8")
    reader.go_through(GUIDE, {})
