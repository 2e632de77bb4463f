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
from tests.support.approved_files import approve_files

HERE: Final = Path(sys.executable).parent
SERVE: Final = "comity serve"
WRITTEN_ID: Final = "06gtu5so"
"""The id of every approval request in the pages. Each request of a test has another one."""

COMMAND_SECONDS: Final = 120
WAIT_SECONDS: Final = 30.0


class Reader:
    """In a folder of its own, with a gateway at a port of its own once the guide starts one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()

    def go_through(self, guide: Path, files: Mapping[str, str]) -> None:
        """`files` maps a name to a language: the first snippet in it is the file."""
        snippets = snippets_of(guide)
        for name, language in files.items():
            snippet = next(each for each in snippets if each.language == language)
            (self.folder / name).write_text(snippet.text, encoding="utf-8")
        consoles = [steps_of(each.text) for each in snippets if each.language == "console"]
        at = [[step.command for step in steps] for steps in consoles].index([SERVE])
        for steps in consoles[:at]:
            self.follow(steps)
        command = [str(HERE / "comity"), "serve", "-c", str(self.folder / "comity.toml")]
        # Its store is named from where it is started.
        started = ["/bin/sh", "-c", f'cd "{self.folder}" && exec "$@"', "sh", *command]
        with running([*started, "--port", str(self.port)], self.environment()) as gateway:
            gateway.wait_until(lambda: answers(f"http://127.0.0.1:{self.port}/ready"))
            for steps in consoles[at + 1 :]:
                self.follow(steps)

    def environment(self) -> dict[str, str]:
        # Beside the folder: a confined script does not open a folder that holds the home.
        home = self.folder.with_name(f"{self.folder.name}-home")
        home.mkdir(exist_ok=True)
        return {
            "HOME": str(home),
            "PATH": f"{fork_server.shell_folder()}:{HERE}:{os.defpath}",
            "COMITY_URL": f"http://127.0.0.1:{self.port}",
            # --offline refuses to work beside a gateway at the port of the configuration.
            "COMITY_PORT": str(self.port),
            "COMITY_STATE_DIR": os.environ["COMITY_STATE_DIR"],
            # A reader has the default store. Other tests have none.
            "DATABASE_URL": "",
            "COLUMNS": "100",
        }

    def here(self, text: str) -> str:
        """What a guide says of its gateway, as it is of this one."""
        return text.replace("localhost:2664", f"127.0.0.1:{self.port}")

    def sh(self, command: str) -> str:
        approve_files(self.folder, self.environment())
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
    """A reader who answers approval requests, and waits for files that the page shows."""

    def __init__(self, folder: Path, key_file: str = "") -> None:
        super().__init__(folder)
        self._key = f" --key-file {key_file}" if key_file else ""

    @override
    def follow(self, steps: list[Step]) -> None:
        for step in steps:
            has_id = WRITTEN_ID in step.command + "".join(step.expected)
            id = self._newest_request() if has_id else WRITTEN_ID
            command = step.command.replace(WRITTEN_ID, id)
            waits = command.startswith(("cat ", "grep "))
            deadline = time.monotonic() + WAIT_SECONDS
            while True:
                output = self.sh(f"{command} || true" if waits else command)
                output = output.replace(id, WRITTEN_ID)
                if step.is_met_by(output) or not waits or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            assert step.is_met_by(output), f"$ {step.command}\n{output}"

    @override
    def sh(self, command: str) -> str:
        # A process in the background must not hold the pipe that this one reads.
        return super().sh(f"{command[:-1]} 2> curl.txt &" if command.endswith("&") else command)

    def _newest_request(self) -> str:
        """Return the short id of the newest open request, once there is one."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            found: Any = json.loads(self.sh(f"comity approvals list -o json{self._key}"))
            if found["approvals"]:
                return max(each["id"] for each in found["approvals"])[: len(WRITTEN_ID)]
            assert time.monotonic() < deadline, "there is no open approval request"
            time.sleep(0.1)
