"""The sandbox of a server process: Landlock and seccomp. It runs as its own process."""

import ctypes
import errno
import json
import os
import platform
import resource
import shutil
import stat
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ONLY_VERSION, _BENEATH = 1, 1
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_READING = _EXECUTE | _READ | _LIST
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
# How many access rights each Landlock version has, counted from the lowest bit.
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_RIGHTS_SINCE_5 = 16
# From version 6 on: no signal and no abstract socket connection leaves the sandbox.
_SCOPES = 3


class _LandlockRuleset(ctypes.Structure):
    _fields_ = (
        ("handled_fs", ctypes.c_uint64),
        ("handled_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def landlock_version() -> int:
    """Return the Landlock version of this kernel."""
    return _call(_CREATE, None, 0, _ONLY_VERSION)


def restrict_files(
    readable: Iterable[str], writable: Iterable[str], listed: Iterable[str] = ()
) -> None:
    """Restrict this process to files that it may read and run, write, or only list.

    Paths that do not exist are skipped.
    """
    known = landlock_version()
    rights = (1 << _RIGHTS.get(known, _RIGHTS_SINCE_5)) - 1
    ruleset = _LandlockRuleset(rights, 0, _SCOPES if known >= 6 else 0)
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
        beneath = _PathBeneathRule(allowed, opened)
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


_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 38, 22, 24
_FILTER = 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _MACHINE_AT = 0, 4
_KILL, _ALLOW, _REFUSE = 0x80000000, 0x7FFF0000, 0x00050000 | errno.EPERM
_MAX_CAPABILITIES = 64

_X86, _ARM = "x86_64", "aarch64"
_MACHINES = {_X86: 0xC000003E, _ARM: 0xC00000B7}
_X32 = 0x40000000
"""From this number on, an x86_64 kernel accepts the same system calls under other numbers."""

_SOCKET = {_X86: 41, _ARM: 198}
_EVERYWHERE = (
    # io_uring, which creates sockets past any filter; pidfd_getfd; the new mount calls.
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


class _SeccompProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def restrict_syscalls(*, network: bool) -> None:
    """Install the seccomp filter. Raise OSError if the kernel or the architecture has none."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no filter of calls for {machine}")
    refused = [*_EVERYWHERE, *_REFUSED[machine], *(() if network else (_SOCKET[machine],))]
    written = _filter_program(machine, refused)
    program = _SeccompProgram(len(written) // 8, written)
    _drop_capabilities()
    _control(_PR_SET_NO_NEW_PRIVS, 1)
    _control(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program))


def _filter_program(machine: str, refused: list[int]) -> bytes:
    """Return the filter program for the kernel: instructions of a code, two jumps and a number."""
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
    """Drop the capability bounding set if this process is root. Others have none to drop."""
    if os.geteuid() != 0:
        return
    for capability in range(_MAX_CAPABILITIES):
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


SANDBOX_FAILED_STATUS = 97
"""The exit status if the program could not be sandboxed."""

_MAX_OPEN_FILES = 1024
_MAX_FILE_BYTES = 256 * 1024 * 1024
_SYSTEM_PATHS = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/localtime", "/etc/timezone"),
    *("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"),
    *("/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
)


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """The limits of a program. `memory` is in bytes."""

    network: bool
    memory: int
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()


def sandbox_command(limits: SandboxLimits, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that runs a program within these limits."""
    module = "comity.servers.process.sandbox"
    return (sys.executable, "-I", "-m", module, json.dumps(asdict(limits)), *argv)


def apply_sandbox(limits: SandboxLimits, program: str) -> None:
    """Give up all other access, irrevocably. Raise OSError if that is not possible."""
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
        (resource.RLIMIT_FSIZE, _MAX_FILE_BYTES),
        (resource.RLIMIT_DATA, limits.memory),
    ):
        _, hard = resource.getrlimit(what)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (bound, bound))
    package = Path(__file__).resolve().parents[2]
    own = (sys.prefix, sys.base_prefix, str(Path(program).resolve().parent), str(package))
    readable, writable = (*_SYSTEM_PATHS, *own, *limits.readable), ("/dev/null", *limits.writable)
    restrict_syscalls(network=limits.network)
    # An import lists the folder beside a package, which may also hold the gateway's store.
    restrict_files(readable, writable, (str(package.parent),))


def main(words: Sequence[str]) -> int:
    bounds, (name, *rest) = SandboxLimits(**json.loads(words[0])), words[1:]
    program = shutil.which(name)
    if program is None:
        sys.stderr.write(f"there is no program {name!r:.200}; check that it is installed\n")
        return SANDBOX_FAILED_STATUS
    try:
        apply_sandbox(bounds, program)
    except OSError as refused:
        sys.stderr.write(
            f"this machine cannot confine a program ({refused.strerror}); it needs Linux 5.13 with "
            "Landlock and seccomp, or confine = false in [registration]\n"
        )
        return SANDBOX_FAILED_STATUS
    os.execv(program, [name, *rest])  # noqa: S606  # words that the operator's patterns allow
    return SANDBOX_FAILED_STATUS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
