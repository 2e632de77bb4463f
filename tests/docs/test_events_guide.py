"""The guide to events, followed to the letter, and what it says of channels and bounds."""

import re
import shutil
import time
from pathlib import Path
from typing import override

import pytest

from comity.kernel.event_methods import MOST_BYTES, MOST_OF_SESSION, MOST_WAITING
from comity.kernel.event_servers import FLOOD
from comity.rules.standard_channels import STANDARD
from comity.wire.events import MOST_CHANNELS, Severity
from tests.docs.pages import ROOT
from tests.docs.reader import WAIT_SECONDS, Reader
from tests.docs.transcript import Step

GUIDE = ROOT / "docs" / "guides" / "events.md"


class Listener(Reader):
    """Somebody who reads what was heard, which takes a moment."""

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
def test_the_guide_says_what_is_heard(tmp_path: Path) -> None:
    Listener(tmp_path).go_through(GUIDE, {"comity.toml": "toml", "listen.json": "json"})


def test_the_guide_names_every_channel_and_no_other() -> None:
    table = re.findall(r"^\| (`.*`) \|", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {name for row in table for name in re.findall(r"`([\w.]+)`", row)} == set(STANDARD)


def test_the_guide_says_the_bounds_as_they_are() -> None:
    text = " ".join(GUIDE.read_text(encoding="utf-8").split())
    assert f"at most {MOST_OF_SESSION} subscriptions of {MOST_CHANNELS} channels" in text
    assert f"Up to {MOST_WAITING} events wait" in text
    assert MOST_BYTES == 1024 * 1024
    assert ", ".join(f"`{each}`" for each in Severity) in text
    assert f"More than {FLOOD.most:,} events" in text
    assert (FLOOD.window.seconds, FLOOD.pause.seconds) == (10, 60)
