"""A pid namespace for one server: with its first process the kernel ends all that are in it.

The first process of a namespace is no place for a server: signals without a handler do not reach
it, orphans come to it and wait to be collected, and a server that finds itself child of number 1
takes itself for an orphan and leaves. So the first does nothing but collect, the guard is the
second, and the server the third.

No user namespace is made, though it would let everybody do this: in one, root's files belong to
nobody, for which `ssh` refuses to read its configuration, and `sudo`, `podman` or a snap do not
start at all. (Decision 0009)
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from comity.adapters.upstream import orders
from comity.adapters.upstream.syscalls import mount_own_proc

_READY = b"ready"


class Refused:
    """At which step the kernel would not have it, and why."""

    def __init__(self, where: str, number: int) -> None:
        self.where = where
        self.number = number


def begin_in_namespace(home: int, run_guard: Callable[[], None]) -> int | Refused:
    """Start the first process, and through it the guard. `home` is the caller's own namespace."""
    try:
        os.unshare(os.CLONE_NEWPID)
    except OSError as refused:
        return Refused(orders.NO_NAMESPACE, refused.errno or 0)
    told, telling = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            _lead(telling, run_guard)
        finally:
            os._exit(1)
    os.setns(home, os.CLONE_NEWPID)
    os.close(telling)
    said = os.read(told, 64)
    os.close(told)
    if said == _READY:
        return first
    os.waitpid(first, 0)
    return Refused(orders.NO_PROC, int(said or b"0"))


def _lead(telling: int, run_guard: Callable[[], None]) -> None:
    """Be the first: bring the guard up, collect the dead, and take everybody along at its end."""
    try:
        mount_own_proc()
    except OSError as refused:
        os.write(telling, b"%d" % (refused.errno or 0))
        os._exit(0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    guard = os.fork()
    if guard == 0:
        os.close(telling)
        run_guard()
        os._exit(1)
    os.write(telling, _READY)
    # By name: where the limit is a thousand million, closing every number would take an hour.
    with os.scandir("/proc/self/fd") as entries:
        numbers = [int(entry.name) for entry in entries]
    for number in numbers:
        if number > 2:
            with suppress(OSError):
                os.close(number)
    while os.wait()[0] != guard:
        pass
    os._exit(0)
