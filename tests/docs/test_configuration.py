"""What the guide says of a mistaken configuration is what is said."""

from pathlib import Path

import pytest

from comity.config import load
from comity.wire.errors import Misconfigured
from tests.docs.pages import ROOT

GUIDE = ROOT / "docs" / "guides" / "configuration.md"

MISTAKEN = """\
prot = 8080

[limits]
idle_session = "1h"
call_deadline = "two minutes"

[[servers]]
id = "search"
headers = { Authorization = "Bearer ${SEARCH_TOKEN}" }
url = "https://search.example.org/mcp"
"""


def test_the_mistakes_in_the_guide_are_told_in_these_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "comity.toml").write_text(MISTAKEN)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misconfigured) as problem:
        load(Path("comity.toml"), {})
    assert f"comity: {problem.value}\n" in GUIDE.read_text("utf-8")
