"""The guide to long calls, followed to the letter: a plain client hears every word as it comes."""

from pathlib import Path

from tests.docs.pages import ROOT
from tests.docs.reader import Reader

GUIDE = ROOT / "docs" / "guides" / "long-calls.md"


def test_the_guide_says_what_a_plain_client_hears(tmp_path: Path) -> None:
    files = {"comity.toml": "toml", "writer.py": "python", "listen.py": "py"}
    Reader(tmp_path).go_through(GUIDE, files)
