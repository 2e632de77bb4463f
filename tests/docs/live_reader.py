"""Somebody who goes through a guide of live servers, with a terminal for whatever keeps running."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final, override

from tests.docs.pages import snippets_of
from tests.docs.reader import HERE, SERVE, Reader
from tests.docs.transcript import Step, steps_of
from tests.interop.processes import Program, answers, running
from tests.pace import here
from tests.support import fork_server
from tests.support.approved_files import approve_files

JOIN: Final = "comity topics join"
LOOKING: Final = re.compile(r"comity (chat list|audit list|pushes)")
PATIENCE: Final = 60.0
KEY: Final = "a-key-of-the-vendor"


class LiveReader(Reader):
    """Has a model at an address of its own, as one has a vendor's.

    `comity serve` begins the gateway, or stops it and begins it anew; `comity topics join` with
    `--stay` is left running, and what the page shows of it is looked for in the end.
    """

    def __init__(self, folder: Path, model: str, programs: Path | None = None) -> None:
        super().__init__(folder)
        self._programs = str(programs) if programs else f"{fork_server.shell_folder()}:{HERE}"
        self._model = model
        self._home = folder.with_name(f"{folder.name}-home")
        self._gateway = ExitStack()
        self._terminals = ExitStack()
        self._awaited: list[tuple[Program, Step]] = []

    @override
    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "HOME": str(self._home),
            "PATH": f"{self._programs}:{os.defpath}",
            "MODEL_URL": self._model,
            "MODEL_NAME": "some-model",
            "MODEL_KEY": KEY,
            "COLUMNS": "160",
        }

    def take(self, example: Path) -> None:
        shutil.copytree(example, self.folder, dirs_exist_ok=True)

    def read(self, guide: Path, files: Mapping[str, str] | None = None) -> None:
        """All consoles of the page, from the first to the last.

        `files` are written when the page comes to the snippet of their language.
        """
        named = files or {}
        try:
            for each in snippets_of(guide):
                if each.language in named:
                    (self.folder / named[each.language]).write_text(each.text, "utf-8")
                elif each.language == "console":
                    self.follow(steps_of(each.text))
            self._see()
        finally:
            self._terminals.close()
            self._gateway.close()

    @override
    def follow(self, steps: list[Step]) -> None:
        for step in steps:
            if step.command.startswith("cd "):
                self.folder = self.folder / step.command.removeprefix("cd ")
            elif step.command.split()[:2] == SERVE.split():
                self._serve(step.command)
            elif step.command.startswith(JOIN) and "--stay" in step.command:
                self._sit_down(step)
            elif LOOKING.match(step.command):
                self._look(step)
            else:
                super().follow([step])

    def _look(self, step: Step) -> None:
        """What happens by itself takes its time: it is looked for again."""
        approve_files(self.folder, self.environment())
        deadline = time.monotonic() + here(PATIENCE)
        while True:
            done = subprocess.run(
                ["/bin/sh", "-c", self.here(step.command)],
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=here(PATIENCE),
                check=False,
            )
            if step.is_met_by(done.stdout):
                return
            assert time.monotonic() < deadline, f"$ {step.command}\n{done.stdout}{done.stderr}"
            time.sleep(0.1)

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
        # What is run here is watched on its standard error, starts where its files are, and has
        # nothing of our own environment.
        approve_files(self.folder, self.environment())
        fresh = ["/usr/bin/env", "-i", *(f"{name}={it}" for name, it in self.environment().items())]
        words = ["/bin/sh", "-c", f'cd "$0" && exec {command} 1>&2', str(self.folder)]
        return running([*fresh, *words])
