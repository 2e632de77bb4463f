"""What a process gives up of the file system, by Linux's Landlock: all but the named folders.

It holds for whatever the process becomes or starts, and nothing takes it back. Asked for by number:
the C library has no names for these calls. Raises `OSError` where the kernel does not have it.
"""

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ONLY_VERSION, _BENEATH = 1, 1
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_READING = _EXECUTE | _READ | _LIST
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
# How many of the rights each version knows, counted from the lowest.
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_RIGHTS_SINCE_5 = 16
# From the sixth on: no signal, and no abstract socket, leaves what is confined together.
_SCOPES = 3


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_fs", ctypes.c_uint64),
        ("handled_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """Which version this kernel has."""
    return _call(_CREATE, None, 0, _ONLY_VERSION)


def give_up_files(
    readable: Iterable[str], writable: Iterable[str], listed: Iterable[str] = ()
) -> None:
    """From now on only these can be read and run, or also written, or be looked for names in.

    What is not there is left out.
    """
    known = version()
    rights = (1 << _RIGHTS.get(known, _RIGHTS_SINCE_5)) - 1
    ruleset = _Ruleset(rights, 0, _SCOPES if known >= 6 else 0)
    size = 8 if known < 4 else 16 if known < 6 else 24
    rules = _call(_CREATE, ctypes.byref(ruleset), size, 0)
    try:
        for allowed, places in ((_READING, readable), (rights, writable), (_LIST, listed)):
            for place in places:
                with suppress(FileNotFoundError, PermissionError, NotADirectoryError):
                    _allow(rules, Path(place), allowed & rights)
        _call(_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, place: Path, allowed: int) -> None:
    opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            allowed &= _OF_FILES
        beneath = _Beneath(allowed, opened)
        _call(_ADD, rules, _BENEATH, ctypes.byref(beneath), 0)
    finally:
        os.close(opened)


def _call(number: int, *arguments: object) -> int:
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    found: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *words)
    if found < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))
    return found
