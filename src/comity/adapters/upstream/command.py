"""How a tool server's process is begun: its command, its environment, its own session.

The environment is an allow-list, as in the official SDK: a server is somebody else's program and
must not find the operator's cloud keys in its variables. The process leads a session and a group of
its own, so that whatever it starts can be ended with it, and Ctrl-C at the terminal is not its to
answer.
"""

import errno
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from comity.wire.errors import Unavailable

INHERITED = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"})


_WHAT_TO_CHECK = {
    errno.ENOENT: "there is no such program; check that it is installed and how it is spelt, "
    "or give its full path",
    errno.EACCES: "it may not be executed; check its permissions",
    errno.ENOEXEC: "it is no program for this machine; does a script lack its first line (#!)?",
}


@dataclass(frozen=True, slots=True, repr=False)
class Command:
    """What to run. `env` holds the configured variables only."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None = None

    @property
    def program(self) -> str:
        return self.argv[0] if self.argv else ""

    def __repr__(self) -> str:
        # Arguments and values may be secrets; the program and the names are not.
        return f"Command({self.program!r}, {len(self.argv)} words, env {sorted(self.env)})"


def environment_for(configured: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """What is inherited from `ours`, overridden by what is configured."""
    inherited = {
        name: value
        for name, value in ours.items()
        # A value that starts like this is an exported shell function: code, not text.
        if (name in INHERITED or name.startswith("LC_")) and not value.startswith("()")
    }
    return inherited | dict(configured)


def spawn(command: Command) -> subprocess.Popen[bytes]:
    """Start it, or say what the operator should look at.

    `loop.subprocess_exec` is not used: uvloop's ignores `close_fds`, so that a server would inherit
    the gateway's listening sockets, and both loops deliver each piece of output a turn later.
    Neither is a `preexec_fn`, which is unsafe beside threads. A server therefore learns of the
    gateway's violent death from the end of its stdin only; one that ignores that outlives us.
    """
    environment = environment_for(command.env, os.environ)
    try:
        return subprocess.Popen(
            command.argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=command.cwd,
            env=environment,
            close_fds=True,
            start_new_session=True,
        )
    except (OSError, ValueError, IndexError) as error:
        because = _why(command, environment.get("PATH"), error)
    # Outside of the handler: the cause's own text may quote an argument.
    raise Unavailable(f"cannot start {command.program!r}: {because}")


def _why(command: Command, path: str | None, error: Exception) -> str:
    if not isinstance(error, OSError):
        return "its command line or environment is empty or holds a NUL character"
    if command.cwd is not None and error.filename == command.cwd:
        return f"its working directory {command.cwd!r} cannot be entered; check `cwd`"
    if error.errno == errno.ENOENT and shutil.which(command.program, path=path):
        return "the interpreter that its first line names does not exist"
    return _WHAT_TO_CHECK.get(error.errno or 0) or error.strerror or "the system refused"
