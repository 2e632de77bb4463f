"""The page about servers in a topic: an approved proposal of its agent is carried out."""

from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.reader import Asked

pytestmark = pytest.mark.timeout(300)

PAGE = ROOT / "docs" / "how-to" / "servers-in-a-topic.md"


def test_the_proposal_of_the_agent_is_approved_and_carried_out(tmp_path: Path) -> None:
    Asked(tmp_path).go_through(PAGE, {"comity.toml": "toml", "propose.py": "python"})
