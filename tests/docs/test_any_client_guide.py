"""The guide to approvals for any client, followed to the letter against a gateway that runs."""

import shutil
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.reader import Asked

GUIDE = ROOT / "docs" / "guides" / "approvals-for-any-client.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the guide shows it with curl")
def test_the_same_call_again_runs_once(tmp_path: Path) -> None:
    Asked(tmp_path).go_through(GUIDE, {"comity.toml": "toml", "disks.py": "python"})
