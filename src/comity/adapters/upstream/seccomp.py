"""What a process gives up of the kernel's calls, by a seccomp filter: they fail with EPERM.

It holds for whatever the process becomes or starts. Without a network no socket can be made at all,
of no family: what listens on this machine is as far away as what listens elsewhere.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 38, 22, 24
_FILTER = 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _MACHINE_AT = 0, 4
_KILL, _ALLOW, _REFUSE = 0x80000000, 0x7FFF0000, 0x00050000 | errno.EPERM
_MOST_CAPABILITIES = 64

_X86, _ARM = "x86_64", "aarch64"
_MACHINES = {_X86: 0xC000003E, _ARM: 0xC00000B7}
_X32 = 0x40000000
"""From here on an x86_64 kernel takes the same calls under other numbers."""

_SOCKET = {_X86: 41, _ARM: 198}
_EVERYWHERE = (
    # io_uring, which makes sockets past any filter; pidfd_getfd; the new mount calls.
    *(425, 426, 427, 438, 428, 429, 430, 431, 432, 433, 442),
)
_REFUSED = {
    # ptrace, process_vm_*, kcmp; mount, umount2, pivot_root, chroot; unshare, setns; bpf; keys;
    # kexec and modules; perf_event_open, userfaultfd, open_by_handle_at; reboot, swapon.
    _X86: (
        *(101, 310, 311, 312, 165, 166, 155, 161, 272, 308, 321, 248, 249, 250),
        *(246, 320, 175, 313, 176, 298, 323, 304, 169, 167),
    ),
    _ARM: (
        *(117, 270, 271, 272, 40, 39, 41, 51, 97, 268, 280, 217, 218, 219),
        *(104, 294, 105, 273, 106, 241, 282, 265, 142, 224),
    ),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def give_up_calls(*, network: bool) -> None:
    """Raises OSError where the kernel, or this machine's kind, has no such filter."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no filter of calls for {machine}")
    refused = [*_EVERYWHERE, *_REFUSED[machine], *(() if network else (_SOCKET[machine],))]
    written = _written(machine, refused)
    program = _Program(len(written) // 8, written)
    _drop_capabilities()
    _control(_PR_SET_NO_NEW_PRIVS, 1)
    _control(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program))


def _written(machine: str, refused: list[int]) -> bytes:
    """The filter as the kernel reads it: steps of a code, two jumps and a number."""
    steps = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, _MACHINES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == _X86:
        steps += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for number in refused:
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _drop_capabilities() -> None:
    """Whoever is root here is root in name only; anybody else has nothing to drop."""
    if os.geteuid() != 0:
        return
    for capability in range(_MOST_CAPABILITIES):
        try:
            _control(_PR_CAPBSET_DROP, capability)
        except OSError as refused:
            if refused.errno == errno.EINVAL:
                return
            raise


def _control(what: int, *arguments: object) -> None:
    words = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    words += [ctypes.c_ulong(0)] * (4 - len(words))
    if ctypes.CDLL(None, use_errno=True).prctl(what, *words) != 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))
