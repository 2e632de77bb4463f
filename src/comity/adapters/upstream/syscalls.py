"""The few calls of the Linux kernel that Python does not offer, by their C names.

Each raises `OSError` where the kernel refuses, and where it is no Linux: asking is how to find out.
"""

import ctypes
import errno
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_REC, _MS_SLAVE = 0x4000, 0x80000


def adopt_orphans() -> None:
    """From now on whatever loses its parent below this process becomes its child."""
    _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """The kernel kills this process when the thread that made it ends. (It survives an exec.)"""
    _call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def mount_own_proc() -> None:
    """Show in /proc the processes of the caller's own namespace, to it and its children only."""
    os.unshare(os.CLONE_NEWNS)
    # As a slave: what the machine mounts and unmounts later is still seen, and nothing is held.
    _call("mount", b"none", b"/", None, _MS_REC | _MS_SLAVE, None)
    _call("mount", b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)


def _call(name: str, *arguments: int | bytes | None) -> None:
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    words = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    if ctypes.CDLL(None, use_errno=True)[name](*words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
