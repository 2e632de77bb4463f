"""Somebody who goes through a guide: writes its files, types what it says, sees what it shows."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, override

from tests.docs.pages import snippets_of
from tests.docs.transcript import Step, steps_of
from tests.interop.processes import answers, free_port, running
from tests.support import fork_server

HERE: Final = Path(sys.executable).parent
SERVE: Final = "comity serve"
WRITTEN_ID: Final = "06gtu5so"
"""What the guides call each ask; here each has another id."""

COMMAND_SECONDS: Final = 120
WAIT_SECONDS: Final = 30.0


class Reader:
    """In a folder of its own, with a gateway at a port of its own once the guide starts one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()

    def go_through(self, guide: Path, files: Mapping[str, str]) -> None:
        """`files` are named with the language of the one snippet that each of them is."""
        snippets = snippets_of(guide)
        for name, language in files.items():
            (snippet,) = [each for each in snippets if each.language == language]
            (self.folder / name).write_text(snippet.text, encoding="utf-8")
        consoles = [steps_of(each.text) for each in snippets if each.language == "console"]
        at = [[step.command for step in steps] for steps in consoles].index([SERVE])
        for steps in consoles[:at]:
            self.follow(steps)
        command = [str(HERE / "comity"), "serve", str(self.folder / "comity.toml")]
        # Its store is named from where it is started.
        started = ["/bin/sh", "-c", f'cd "{self.folder}" && exec "$@"', "sh", *command]
        with running([*started, "--port", str(self.port)], self.environment()) as gateway:
            gateway.wait_until(lambda: answers(f"http://127.0.0.1:{self.port}/ready"))
            for steps in consoles[at + 1 :]:
                self.follow(steps)

    def environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "PATH": f"{fork_server.shell_folder()}:{HERE}:{os.defpath}",
            "COMITY_URL": f"http://127.0.0.1:{self.port}",
            "COMITY_STATE_DIR": os.environ["COMITY_STATE_DIR"],
            "COLUMNS": "100",
        }

    def here(self, text: str) -> str:
        """What a guide says of its gateway, as it is of this one."""
        return text.replace("localhost:2664", f"127.0.0.1:{self.port}")

    def sh(self, command: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-c", self.here(command)],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    def follow(self, steps: list[Step]) -> None:
        for step in steps:
            said = self.sh(step.command)
            assert step.is_met_by(said), f"$ {step.command}\n{said}"


class Asked(Reader):
    """Somebody who answers what a server asks; both take their time."""

    @override
    def follow(self, steps: list[Step]) -> None:
        for step in steps:
            id = self._open() if WRITTEN_ID in step.command else WRITTEN_ID
            deadline = time.monotonic() + WAIT_SECONDS
            while True:
                said = self.sh(step.command.replace(WRITTEN_ID, id)).replace(id, WRITTEN_ID)
                if step.is_met_by(said) or not step.command.startswith("cat "):
                    break
                assert time.monotonic() < deadline, said
                time.sleep(0.1)
            assert step.is_met_by(said), f"$ {step.command}\n{said}"

    @override
    def sh(self, command: str) -> str:
        # What goes on behind our back must not hold the pipe that we read.
        return super().sh(f"{command[:-1]} 2> curl.txt &" if command.endswith("&") else command)

    def _open(self) -> str:
        """The one ask that is open, once there is one."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            found: Any = json.loads(self.sh("comity asks --json || true"))
            if found["asks"]:
                return found["asks"][0]["id"][: len(WRITTEN_ID)]
            assert time.monotonic() < deadline, "nobody asks anything"
            time.sleep(0.1)
