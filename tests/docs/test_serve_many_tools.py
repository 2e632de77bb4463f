"""The page about many tools, followed step by step against a running gateway."""

from pathlib import Path

from tests.docs.pages import ROOT
from tests.docs.reader import Reader

PAGE = ROOT / "docs" / "how-to" / "serve-many-tools.md"


def test_a_client_lists_a_few_tools_and_finds_the_others(tmp_path: Path) -> None:
    files = {"comity.toml": "toml", "office.py": "python", "agent.py": "py"}
    Reader(tmp_path).go_through(PAGE, files)
