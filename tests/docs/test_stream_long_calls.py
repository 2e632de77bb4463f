"""The page about long calls, followed step by step: a plain client receives each piece."""

from pathlib import Path

from tests.docs.pages import ROOT
from tests.docs.reader import Reader

PAGE = ROOT / "docs" / "how-to" / "stream-long-calls.md"


def test_the_page_shows_what_a_plain_client_receives(tmp_path: Path) -> None:
    files = {"comity.toml": "toml", "writer.py": "python", "listen.py": "py"}
    Reader(tmp_path).go_through(PAGE, files)
