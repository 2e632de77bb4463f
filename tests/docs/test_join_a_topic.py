"""The page about joining a topic, followed step by step."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import override

import pytest

from tests.docs.pages import ROOT
from tests.docs.reader import Reader
from tests.docs.transcript import Step
from tests.interop.processes import running

pytestmark = pytest.mark.timeout(600)

PAGE = ROOT / "docs" / "how-to" / "join-a-topic.md"
WORKER = "python worker.py"


class Talker(Reader):
    """Leaves the worker running in its own terminal."""

    def __init__(self, folder: Path, terminals: ExitStack) -> None:
        super().__init__(folder)
        self._terminals = terminals

    @override
    def follow(self, steps: list[Step]) -> None:
        if [step.command for step in steps] != [WORKER]:
            super().follow(steps)
            return
        (expected,) = steps[0].expected
        # What is run here is watched on its standard error.
        command = ["/bin/sh", "-c", f'exec "{sys.executable}" "{self.folder}/worker.py" 1>&2']
        worker = self._terminals.enter_context(running(command, self.environment()))
        worker.wait_for_line(expected)


def test_the_page_shows_what_each_kind_of_member_sees(tmp_path: Path) -> None:
    with ExitStack() as terminals:
        files = {"comity.toml": "toml", "worker.py": "python", "hello.py": "py"}
        Talker(tmp_path, terminals).go_through(PAGE, files)
