"""The guide of the governed tool, gone through as a new user does."""

import shutil
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.reader import Reader

pytestmark = pytest.mark.timeout(600)

GUIDE = ROOT / "docs" / "guides" / "govern-a-tool.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the guide shows it with curl")
def test_the_guide_says_what_a_new_user_sees(tmp_path: Path) -> None:
    Reader(tmp_path).go_through(GUIDE, {"comity.toml": "toml"})
