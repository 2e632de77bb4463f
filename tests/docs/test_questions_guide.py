"""The guide to questions of servers, followed to the letter against a gateway that runs."""

import shutil
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.reader import Asked

GUIDE = ROOT / "docs" / "guides" / "questions-of-servers.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the guide shows it with curl")
def test_the_guide_says_what_somebody_who_answers_sees(tmp_path: Path) -> None:
    Asked(tmp_path).go_through(GUIDE, {"comity.toml": "toml", "cleaner.py": "python"})
