"""What a server left behind outside of its group: found, and ended, by whoever adopted it.

A daemon that forked twice has no parent of its own any more. Below a process that adopts orphans it
becomes that one's child, so its id cannot pass to a stranger before it is collected here.
"""

import os
import select
import signal
import time
from collections.abc import Container, Iterator
from contextlib import suppress

_BETWEEN_ROUNDS = 0.02


def end_strays(seconds: float) -> bool:
    """End every child of this process, and theirs as they come; whether none is left."""
    until = time.monotonic() + seconds
    while _collect():
        if time.monotonic() > until:
            return False
        kill_children(spared=())
        select.select((), (), (), _BETWEEN_ROUNDS)
    return True


def kill_children(spared: Container[int]) -> None:
    for pid in _children(os.getpid()):
        if pid not in spared:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _collect() -> bool:
    """Let the dead children go; whether any are left alive."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _children(parent: int) -> Iterator[int]:
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        with suppress(OSError):
            if _parent_of(pid) == parent:
                yield pid


def _parent_of(pid: int) -> int:
    descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        said = os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
    # The second field is the program's name in brackets, and may hold anything, brackets included.
    return int(said.rpartition(b")")[2].split()[1])
