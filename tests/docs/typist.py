"""Somebody at real terminals, who types what a page says and reads what comes back."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from tests.docs.pages import Snippet, snippets_of
from tests.docs.transcript import Step, steps_of

COLUMNS: Final = 100
WAIT_SECONDS: Final = 300.0
PATIENCE_SECONDS: Final = 5.0
"""A person who sees a question and no result for so long answers the question."""

_PROMPT: Final = re.compile(r"\[reader (\d+)\] $")
_PIECE: Final = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b.|(.)", re.DOTALL)


def render(raw: str) -> str:
    """Return what a screen shows after these bytes: progress that was drawn over is gone."""
    lines: list[list[str]] = [[]]
    row = column = 0
    for number, kind, letter in _PIECE.findall(raw):
        if letter == "\n":
            row += 1
            lines += [[] for _ in range(row + 1 - len(lines))]
        elif letter == "\r":
            column = 0
        elif letter >= " ":
            line = lines[row]
            line += " " * (column + 1 - len(line))
            line[column] = letter
            column += 1
        elif kind == "A":
            row = max(0, row - int(number or 1))
        elif kind == "K":
            del lines[row][0 if number in ("1", "2") else column :]
    return "\n".join("".join(line) for line in lines)


class TypedShell:
    """A shell at a terminal of its own, as a person has it in a window."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            cwd=folder,
            env={**env, "PS1": "[reader $?] ", "TERM": "xterm", "LANG": "C.UTF-8"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # So Ctrl-C reaches what runs in the shell. It takes no lock.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        os.close(slave)
        self._raw = ""
        self._wait_for_prompt()

    @property
    def seen(self) -> str:
        """What the terminal shows since the last line that was typed."""
        return render(self._raw)

    def type(self, text: str) -> None:
        self._raw = ""
        os.write(self._master, text.encode())

    def wait_for(self, pattern: str, seconds: float = WAIT_SECONDS) -> bool:
        """Read until the pattern is there; returns whether it came in time."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.seen):
            if time.monotonic() > deadline:
                return False
            self._read()
        return True

    def expect(self, pattern: str) -> None:
        assert self.wait_for(pattern), f"{pattern} does not appear in:\n{self.seen}"

    def run(self, command: str) -> str:
        """Type a command and wait for its end; returns what it printed."""
        self.type(f"{command}\n")
        status = self._wait_for_prompt()
        assert status == 0, self.seen
        return _PROMPT.sub("", self.seen.partition("\n")[2])

    def follow(self, step: Step, names: Mapping[str, str]) -> None:
        """Type the command of a page, and compare the output with what the page shows."""
        command = step.command
        for written, real in names.items():
            command = command.replace(written, real)
        output = self.run(command)
        for written, real in names.items():
            output = output.replace(real, written)
        assert step.is_met_by(output), f"$ {command}\n{output}\nis not as the page has it"

    def follow_until(self, step: Step, names: Mapping[str, str], pattern: str) -> None:
        """Follow a command again until its output has the pattern, as a person would."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            self.follow(step, names)
            if re.search(pattern, self.seen):
                return
            assert time.monotonic() < deadline, f"{pattern} does not appear in:\n{self.seen}"
            time.sleep(0.5)

    def interrupt(self) -> int:
        """Press Ctrl-C, and wait for the shell."""
        self.type("\x03")
        return self._wait_for_prompt()

    def _wait_for_prompt(self) -> int:
        self.expect(_PROMPT.pattern)
        found = _PROMPT.search(self.seen)
        assert found is not None
        return int(found[1])

    def _read(self) -> None:
        if select.select([self._master], [], [], 0.2)[0]:
            try:
                self._raw += os.read(self._master, 65_536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"the shell has ended:\n{self.seen}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # As a window that is closed: what runs in it is told to end.
        for kind in (signal.SIGHUP, signal.SIGKILL):
            if self._process.poll() is None:
                os.killpg(self._process.pid, kind)
                try:
                    self._process.wait(10)
                except subprocess.TimeoutExpired:
                    continue
        os.close(self._master)


class PageReader:
    """Goes through a page with three terminals in one folder, as the page says."""

    def __init__(self, page: Path, folder: Path, env: Mapping[str, str], prelude: str = "") -> None:
        self.page = page
        self.folder = folder
        self._env = env
        self._prelude = prelude
        self.port = env["COMITY_PORT"]

    def terminal(self) -> TypedShell:
        shell = TypedShell(self.folder, self._env)
        if self._prelude:
            shell.run(self._prelude)
        return shell

    def consoles(self) -> list[Step]:
        """Return all commands of the page, in its order."""
        blocks = [each for each in snippets_of(self.page) if each.language == "console"]
        return [step for block in blocks for step in steps_of(block.text)]

    def snippets(self, language: str) -> list[Snippet]:
        return [each for each in snippets_of(self.page) if each.language == language]

    @property
    def names(self) -> dict[str, str]:
        return {"127.0.0.1:2664": f"127.0.0.1:{self.port}"}

    def serve(self, shell: TypedShell, step: Step) -> None:
        """Start the gateway in a terminal, and leave it running."""
        shell.type(f"{step.command}\n")
        shell.expect(r"1 of 1 server ready")
        output = shell.seen.partition("\n")[2].replace(f":{self.port}", ":2664")
        assert step.is_met_by(output), output
        # A link that a person copies is on one line.
        assert re.search(
            rf"(?m)^http://127\.0\.0\.1:{self.port}/login/link\?token=\S+$", shell.seen
        )

    def call_and_approve(
        self, calling: TypedShell, deciding: TypedShell, steps: list[Step]
    ) -> None:
        """Type a call that waits, approve it in another terminal, and see the result."""
        call, *decide = steps
        calling.type(f"{call.command}\n")
        calling.expect(r"approval")
        request = self.open_request(deciding)
        for step in decide:
            deciding.follow(step, {**self.names, "06gtu5so": request[:8]})
        see_result(calling, r"Deleted the note draft\.")

    def wait_until_listed(self, shell: TypedShell, tool: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while tool not in shell.run("comity tools -o name").split():
            assert time.monotonic() < deadline, f"{tool} is not listed"

    def open_request(self, shell: TypedShell) -> str:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            if names := shell.run("comity approvals list -o name").split():
                return names[0]
        raise TimeoutError("the call asks for no approval")


def see_result(shell: TypedShell, pattern: str) -> None:
    """Wait for the result of an approved call. A person answers a question that still stands."""
    deadline = time.monotonic() + WAIT_SECONDS
    shown = ""
    while not re.search(pattern, shown):
        assert time.monotonic() < deadline, shown
        if not shell.wait_for(pattern, PATIENCE_SECONDS):
            # A choice has numbers, and the first one agrees. An answer that comes too late is an
            # unknown command of the shell, and does no harm.
            question = shell.seen.rstrip().rpartition("\n")[2]
            shown += shell.seen
            shell.type("y\n" if "[" in question else "1\n")
        else:
            shown += shell.seen
    shell.run("true")
