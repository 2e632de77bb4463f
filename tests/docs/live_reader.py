"""Somebody who goes through a guide of live servers, with a terminal for whatever keeps running."""

import re
import shutil
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final, override

from tests.docs.pages import snippets_of
from tests.docs.reader import SERVE, Reader
from tests.docs.transcript import Step, steps_of
from tests.interop.processes import Program, answers, running
from tests.pace import here

JOIN: Final = "comity topic join"
PATIENCE: Final = 60.0
KEY: Final = "a-key-of-the-vendor"


class LiveReader(Reader):
    """Has a model at an address of its own, as one has a vendor's.

    `comity serve` begins the gateway, or stops it and begins it anew; `comity topic join` with
    `--stay` is left running, and what the page shows of it is looked for in the end.
    """

    def __init__(self, folder: Path, model: str) -> None:
        super().__init__(folder)
        self._model = model
        self._gateway = ExitStack()
        self._terminals = ExitStack()
        self._awaited: list[tuple[Program, Step]] = []

    @override
    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "MODEL_URL": self._model,
            "MODEL_NAME": "some-model",
            "MODEL_KEY": KEY,
            "COLUMNS": "160",
        }

    def take(self, example: Path) -> None:
        shutil.copytree(example, self.folder, dirs_exist_ok=True)

    def read(self, guide: Path) -> None:
        """All consoles of the page, from the first to the last."""
        consoles = [each for each in snippets_of(guide) if each.language == "console"]
        try:
            for console in consoles:
                self.follow(steps_of(console.text))
            self._see()
        finally:
            self._terminals.close()
            self._gateway.close()

    @override
    def follow(self, steps: list[Step]) -> None:
        for step in steps:
            if step.command.startswith(SERVE):
                self._serve(step.command)
            elif step.command.startswith(JOIN) and "--stay" in step.command:
                self._sit_down(step)
            else:
                super().follow([step])

    def _serve(self, command: str) -> None:
        self._gateway.close()
        gateway = self._gateway.enter_context(self._aloud(f"{command} --port {self.port}"))
        gateway.wait_until(lambda: answers(f"http://127.0.0.1:{self.port}/ready"))

    def _sit_down(self, step: Step) -> None:
        terminal = self._terminals.enter_context(self._aloud(step.command))
        terminal.wait_for_line(r"You are ")
        self._awaited.append((terminal, step))

    def _see(self) -> None:
        """Each line that the page shows of a terminal is there, once what brings it has come."""
        deadline = time.monotonic() + here(PATIENCE)
        for terminal, step in self._awaited:
            for line in step.expected:
                pattern = ".*".join(re.escape(each) for each in line.split("…"))
                terminal.wait_for_line(pattern, max(1.0, deadline - time.monotonic()))

    def _aloud(self, command: str) -> AbstractContextManager[Program]:
        # What is run here is watched on its standard error, and starts where its files are.
        words = ["/bin/sh", "-c", f'cd "$0" && exec {command} 1>&2', str(self.folder)]
        return running(words, self.environment())
