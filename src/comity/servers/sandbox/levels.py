"""The levels of confinement that this machine has, and the level that a server gets."""

import errno
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from comity.errors import Unavailable
from comity.servers.sandbox import stage
from comity.servers.sandbox.launch import base_python, find_bubblewrap, sandbox_command
from comity.servers.sandbox.model import LEVEL_BY_LABEL, SandboxLevel, SandboxPolicy

MIN_LANDLOCK_VERSION: Final = 6
"""The first version that keeps signals and abstract sockets inside of the sandbox."""

AUTO: Final = "auto"
_PROBE_SECONDS: Final = 20
_BUSY: Final = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True)
class MachineSandbox:
    """The best level of this machine, and why it has no better one."""

    best: SandboxLevel
    reason: str = ""

    def choose(self, wanted: str, *, must_confine: bool) -> SandboxLevel:
        """Return the level for a server. Raise Unavailable if this machine cannot make it.

        With `must_confine` nothing below Landlock is enough.
        """
        level = self.best if wanted == AUTO else LEVEL_BY_LABEL[wanted]
        if level is SandboxLevel.OCI:
            # The container engine confines the server, whatever this machine has itself.
            return level
        if must_confine and level < SandboxLevel.LANDLOCK:
            raise Unavailable(f"it must be confined, and {self._describe()}")
        if level > self.best:
            raise Unavailable(f"its sandbox is to be {wanted!r}, and {self._describe()}")
        return level

    def _describe(self) -> str:
        return f"the best level of this machine is {self.best.label!r}: {self.reason}"


def detect_levels() -> MachineSandbox:
    """Find the best level by starting a program in it. This blocks for a moment.

    Raises Unavailable if the machine is too busy to tell.
    """
    if sys.platform != "linux":
        return MachineSandbox(SandboxLevel.BASIC, "Landlock and bubblewrap need Linux")
    problem = bubblewrap_problem()
    if problem is None:
        return MachineSandbox(SandboxLevel.BUBBLEWRAP)
    other = landlock_problem()
    if other is None:
        return MachineSandbox(SandboxLevel.LANDLOCK, problem)
    return MachineSandbox(SandboxLevel.BASIC, f"{problem}, and {other}")


def bubblewrap_problem() -> str | None:
    """Return why this machine cannot confine with bubblewrap, or None if it can."""
    if find_bubblewrap() is None:
        return "bubblewrap is not installed (package `bubblewrap`)"
    said = _try_level(SandboxLevel.BUBBLEWRAP)
    return None if said is None else f"bubblewrap does not work here ({said})"


def landlock_problem() -> str | None:
    """Return why this machine cannot confine with Landlock alone, or None if it can."""
    try:
        version = stage.landlock_version()
    except OSError:
        return "this kernel has no Landlock"
    if version < MIN_LANDLOCK_VERSION:
        return f"Landlock here has version {version}; {MIN_LANDLOCK_VERSION} is needed (Linux 6.12)"
    said = _try_level(SandboxLevel.LANDLOCK)
    return None if said is None else f"Landlock and seccomp do not work here ({said})"


def _try_level(level: SandboxLevel) -> str | None:
    """Start a program at this level. Return its last words if it failed.

    Raises Unavailable if the machine is too busy to tell. Otherwise one busy moment would give
    every server a weaker level.
    """
    words = (base_python(), "-I", "-S", "-c", "")
    argv = sandbox_command(SandboxPolicy(level), words, {"PATH": "/usr/bin"}, folder="/")
    busy = f"this machine is too busy to try the level {level.label!r}"
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=_PROBE_SECONDS, check=False, env={}
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{busy}: it took more than {_PROBE_SECONDS} s") from None
    except OSError as error:
        if error.errno in _BUSY:
            raise Unavailable(f"{busy}: {error.strerror}") from None
        return type(error).__name__
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    said = (lines or [f"status {done.returncode}"])[-1][:200]
    # The system ends a program without memory in this way.
    is_killed = done.returncode == -signal.SIGKILL
    if is_killed or (done.returncode and any(os.strerror(each) in said for each in _BUSY)):
        raise Unavailable(f"{busy}: {said}")
    return None if done.returncode == 0 else said
