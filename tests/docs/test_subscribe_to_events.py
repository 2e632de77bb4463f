"""The page about events, followed step by step."""

import shutil
import time
from pathlib import Path
from typing import override

import pytest

from tests.docs.pages import ROOT
from tests.docs.reader import WAIT_SECONDS, Reader
from tests.docs.transcript import Step

PAGE = ROOT / "docs" / "how-to" / "subscribe-to-events.md"


class Listener(Reader):
    """Repeats `grep` until the events have arrived."""

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


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_the_page_shows_the_events_that_arrive(tmp_path: Path) -> None:
    Listener(tmp_path).go_through(PAGE, {"comity.toml": "toml", "listen.json": "json"})
