"""The guide to audit events, followed to the letter, and what its table says of the types."""

import re
import shutil
import time
from pathlib import Path
from typing import override

import pytest

from comity.kernel.audit import MISSED, MOST_BYTES, MOST_WAITING
from comity.kernel.audit_servers import MOST_QUEUED
from comity.kernel.testimony import CLAIMED
from comity.kernel.testimony import MOST_BYTES as MOST_ASSERTED
from comity.wire.audit import OURS, Type
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


def test_the_guide_names_every_type_of_event() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    named = set(re.findall(r"`([A-Z]+_[A-Z_]+)`", text))
    named |= {f"PERMISSION{each}" for each in re.findall(r"`…(_[A-Z]+)`", text)}
    named |= {OURS + each for each in re.findall(r"`(?:…|dev\.comity\.)([a-z_]+)`", text)}
    own = {Type.JOURNAL_OPENED, Type.JOURNAL_CLOSED, Type.SEGMENT_SEALED}
    assert set(Type) - own <= named


def test_the_guide_says_how_much_waits_and_by_which_names() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert f"Up to {MOST_WAITING} notices" in text
    assert (MOST_BYTES, MOST_QUEUED, MOST_ASSERTED) == (1024 * 1024, 1000, 16 * 1024)
    assert {MISSED, CLAIMED} <= set(re.findall(r"`([\w./]+)`", text))
