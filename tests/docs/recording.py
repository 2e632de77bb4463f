"""Records one approval in two terminals as an animated SVG, from the real program.

`python -m tests.docs.recording` writes `docs/assets/approval.svg`, which the README shows.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

from tests.interop.processes import answers, free_port, running

PICTURE: Final = Path(__file__).parents[2] / "docs" / "assets" / "approval.svg"
COMMAND: Final = "python -m tests.docs.recording"
CALL: Final = "comity call example__delete_note name=draft"

COLUMNS: Final = 80
_WAIT_SECONDS: Final = 60.0
_LOOP_SECONDS: Final = 16.0
_TYPING_SECONDS: Final = 1.4
_READING_SECONDS: Final = 1.6
_LINE_HEIGHT, _CHAR_WIDTH, _SIZE = 19, 8.43, 14
_BACKGROUND, _BAR, _TEXT, _PROMPT, _QUIET = "#11151c", "#1d2430", "#d7dde6", "#8fb0ff", "#8a94a3"


@dataclass(slots=True)
class Terminal:
    """The lines of one terminal, each with the second at which it appears."""

    title: str
    lines: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])

    def add(self, at: float, text: str) -> None:
        for line in text.rstrip().split("\n"):
            # As a terminal breaks a line that is too long.
            parts = [line[start : start + COLUMNS] for start in range(0, len(line), COLUMNS)]
            self.lines += [(at, part) for part in parts or [""]]


@dataclass(frozen=True, slots=True)
class Shell:
    """The folder of a user, where commands run against the gateway of one port."""

    place: Path
    port: int

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
            "HOME": str(self.place),
            "XDG_STATE_HOME": str(self.place / "state"),
            "COMITY_PORT": str(self.port),
            "COMITY_URL": f"http://127.0.0.1:{self.port}",
            "COLUMNS": str(COLUMNS),
            "NO_COLOR": "1",
        }

    def run(self, command: str, columns: int = COLUMNS, *, check: bool = True) -> str:
        done = subprocess.run(
            shlex.split(command),
            cwd=self.place,
            env={**self.env, "COLUMNS": str(columns)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_WAIT_SECONDS,
            check=check,
        )
        return done.stdout

    @contextmanager
    def serving(self) -> Generator[None]:
        """Run a gateway in the folder."""
        command = ["/bin/sh", "-c", f"cd '{self.place}' && exec comity serve"]
        with running(command, self.env) as gateway:
            gateway.wait_until(lambda: answers(f"{self.env['COMITY_URL']}/readyz"))
            yield


def record() -> tuple[Terminal, Terminal]:
    """Run an agent's call and a person's approval, and return what both terminals showed."""
    agent, person = Terminal("An agent"), Terminal("A person")
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(Path(folder), free_port())
        run = shell.run
        run("comity init")
        with shell.serving():
            calling = subprocess.Popen(
                CALL.split(),
                cwd=shell.place,
                env=shell.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            name = _pending(run)
            agent.add(0.6, f"$ {CALL}")
            listed = run("comity approvals list")
            person.add(3.0, "$ comity approvals list")
            person.add(3.0 + _TYPING_SECONDS, listed)
            person.add(6.4, f"$ comity approve {name} --yes")
            person.add(6.4 + _TYPING_SECONDS, run(f"comity approve {name} --yes"))
            said, _ = calling.communicate(timeout=_WAIT_SECONDS)
            waited, _, result = said.rstrip().rpartition("\n")
            agent.add(0.6 + _TYPING_SECONDS, waited)
            agent.add(6.8 + _TYPING_SECONDS, result)
            person.add(10.6, "$ comity audit verify")
            person.add(10.6 + _TYPING_SECONDS, run("comity audit verify"))
    return agent, person


def _pending(run: Callable[[str], str]) -> str:
    """Wait until the request is open, and return its short id."""
    until = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < until:
        if names := run("comity approvals list --output name").split():
            return names[0][:8]
        time.sleep(0.1)
    raise TimeoutError("no approval request appeared")


def draw(terminals: tuple[Terminal, ...]) -> str:
    width = round(COLUMNS * _CHAR_WIDTH) + 32
    top, parts = 0.0, list[str]()
    for terminal in terminals:
        height = 36 + _LINE_HEIGHT * len(terminal.lines) + 16
        parts += _terminal(terminal, top, width, height)
        top += height + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top - 12:g}" '
        f'width="{width}" height="{top - 12:g}" role="img" font-size="{_SIZE}" '
        "font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', "
        'monospace">\n<title>One approval in two terminals</title>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _terminal(terminal: Terminal, top: float, width: int, height: float) -> Iterator[str]:
    yield f'<rect y="{top:g}" width="{width}" height="{height:g}" rx="8" fill="{_BACKGROUND}"/>'
    edge = f"M 8 {top:g} h {width - 16} q 8 0 8 8 v 20 h -{width} v -20 q 0 -8 8 -8"
    yield f'<path d="{edge}" fill="{_BAR}"/>'
    yield f'<text x="16" y="{top + 19:g}" fill="{_QUIET}">{escape(terminal.title)}</text>'
    for number, (at, line) in enumerate(terminal.lines):
        fill = _PROMPT if line.startswith("$ ") else _TEXT
        y = top + 36 + _LINE_HEIGHT * (number + 0.75)
        yield (
            f'<text x="16" y="{y:g}" fill="{fill}" xml:space="preserve" opacity="0">'
            f"{escape(line)}{_appearance(at)}</text>"
        )


def _appearance(at: float) -> str:
    """Show a line from this second to the end of each loop."""
    share = at / _LOOP_SECONDS
    return (
        f'<animate attributeName="opacity" calcMode="discrete" values="0;1" '
        f'keyTimes="0;{share:.4f}" dur="{_LOOP_SECONDS:g}s" repeatCount="indefinite"/>'
    )


def main() -> None:
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(record()), encoding="utf-8")


if __name__ == "__main__":
    main()
