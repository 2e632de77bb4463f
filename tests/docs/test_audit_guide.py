"""The guide to audit events, followed to the letter, and what its table says of the types."""

import shutil
import time
from pathlib import Path
from typing import override

import pytest

from tests.docs.pages import ROOT
from tests.docs.reader import WAIT_SECONDS, Reader
from tests.docs.transcript import Step

GUIDE = ROOT / "docs" / "guides" / "audit-events.md"


class Auditor(Reader):
    """Somebody who reads what the audit server wrote down, which takes a moment."""

    @override
    def follow(self, steps: list[Step]) -> None:
        for step in steps:
            deadline = time.monotonic() + WAIT_SECONDS
            reads = step.command.startswith("grep ")
            command = f"{step.command} || true" if reads else step.command
            while not step.is_met_by(said := self.sh(command)) and reads:
                assert time.monotonic() < deadline, said
                time.sleep(0.1)
            assert step.is_met_by(said), f"$ {step.command}\n{said}"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the guide shows it with curl")
def test_the_guide_says_what_an_audit_server_hears(tmp_path: Path) -> None:
    Auditor(tmp_path).go_through(GUIDE, {"comity.toml": "toml", "auditor.py": "python"})
