"""The real `comity` program in a home and a folder of its own, as somebody runs it."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from comity.config.trust import content_digest, trust_file
from tests.support import fork_server
from tests.support.fork_server import COMITY

SECONDS = 120.0
EXAMPLE: dict[str, Any] = {
    "command": sys.executable,
    "args": ["-m", "comity.cli", "dev", "example-server"],
}
# What would make one machine's answers differ from another's.
_NOT_INHERITED = ("COMITY_", "XDG_", "CODEX_", "CLAUDE_", "CLINE_", "NO_COLOR", "COLUMNS", "FORCE_")


@dataclass
class Ran:
    """How one command ended, and what it said."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Desk:
    """Somebody's home and the folder they work in; both are empty at first."""

    def __init__(self, root: Path, **env: str) -> None:
        self.home = root / "home"
        self.folder = root / "folder"
        self.home.mkdir()
        self.folder.mkdir()
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)
        }
        # Where the gateways that tests start have left what commands need to find them, and how
        # they confine servers.
        kept = ("COMITY_STATE_DIR", "COMITY_POLICY_SANDBOX")
        state = {name: os.environ[name] for name in kept if name in os.environ}
        self.env = {**inherited, **state, "HOME": str(self.home), **env}

    def run(self, *arguments: str, said: str = "", **env: str) -> Ran:
        whole = {**self.env, **env}
        can_be_forked = fork_server.arguments_of([COMITY], whole) is not None
        done = (fork_server.run if can_be_forked else _run)(
            list(arguments), cwd=str(self.folder), env=whole, said=said, timeout=SECONDS
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    def write(self, name: str, content: object) -> Path:
        """A file of the folder, or of the home if its name begins with a tilde."""
        path = self.home / name[2:] if name.startswith("~/") else self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
        if path.parent == self.folder:
            # Whoever sits here has written it, so nothing in it is a surprise.
            trust_file(path, content_digest(path.read_bytes()), self.env)
        return path


def _run(
    arguments: list[str], *, cwd: str, env: dict[str, str], said: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMITY, *arguments],
        cwd=cwd,
        env=env,
        input=said,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _heed_interruptions() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """The program at a terminal of its own, which a test reads and types at."""

    def __init__(
        self, desk: Desk, *arguments: str, program: Sequence[str] = (COMITY,), columns: int = 100
    ) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*program, *arguments],
            cwd=desk.folder,
            env={**desk.env, "TERM": "xterm", "COLUMNS": str(columns)},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # Tests may run where somebody ignores it, which a program inherits.
            preexec_fn=_heed_interruptions,  # noqa: PLW1509  # it takes no lock
        )
        self._slave = slave
        self.seen = ""

    def until(self, text: str, seconds: float = SECONDS) -> None:
        """Read until the text was seen after what was typed last."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            has_ended = self.process.poll() is not None
            if select.select([self._master], [], [], 0.5)[0]:
                self.seen += os.read(self._master, 65536).decode(errors="replace")
            else:
                assert not has_ended, self.seen

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Its exit status, once it has ended; what it still says is read, or it could not end."""
        deadline = time.monotonic() + SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen
            if select.select([self._master], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self._master, 65536).decode(errors="replace")
        return self.process.wait(SECONDS)

    def unread_input(self) -> int:
        """How many bytes that were typed wait for whoever reads the terminal next."""
        canonical = termios.tcgetattr(self._slave)
        # A line that was not ended counts only where lines are not edited.
        canonical[3] &= ~termios.ICANON
        termios.tcsetattr(self._slave, termios.TCSANOW, canonical)
        return int.from_bytes(fcntl.ioctl(self._slave, termios.FIONREAD, bytes(4)), sys.byteorder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._slave)
        os.close(self._master)
