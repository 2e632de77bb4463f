"""The last step before a server starts: it gives up all access that the server does not get.

It runs as a process of its own, inside of bubblewrap if there is one. It imports no package and few
modules, because every start of a server waits for it.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import stat
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

STAGE_FAILED_STATUS = 97
"""The exit status if the program could not be confined."""

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ONLY_VERSION, _BENEATH, _PORT = 1, 1, 2
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_READING = _READ | _LIST
# How many access rights to files each Landlock version has, counted from the lowest bit.
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_RIGHTS_SINCE_5 = 16
# From version 4 on: TCP ports to bind and to connect to.
_BIND_AND_CONNECT, _CONNECT = 3, 2
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


class _PortRule(ctypes.Structure):
    _fields_ = (("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64))


def landlock_version() -> int:
    """Return the Landlock version of this kernel. Raise OSError if it has none."""
    return _call(_CREATE, None, 0, _ONLY_VERSION)


def open_place(place: str, identities: Mapping[str, Sequence[int]]) -> int:
    """Open a place. Raise OSError (ESTALE) unless it has the device and inode of its grant."""
    opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
    status, identity = os.fstat(opened), identities.get(place)
    if identity is not None and [status.st_dev, status.st_ino] != list(identity):
        os.close(opened)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), place)
    return opened


def check_mounts(identities: Mapping[str, Sequence[int]]) -> None:
    """Raise OSError (ESTALE) unless each place shows its granted folder."""
    for place in identities:
        try:
            os.close(open_place(place, identities))
        except OSError:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), place) from None


def restrict_files(
    readable: Iterable[str],
    writable: Iterable[str],
    executable: Iterable[str],
    listed: Iterable[str] = (),
    ports: Iterable[int] = (),
    identities: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Restrict this process to these files, folders and TCP ports to connect to.

    Paths that do not exist are skipped. Raise OSError (ESTALE) for one without its identity.
    """
    known = landlock_version()
    rights = (1 << _RIGHTS.get(known, _RIGHTS_SINCE_5)) - 1
    ruleset = _LandlockRuleset(
        rights, _BIND_AND_CONNECT if known >= 4 else 0, _SCOPES if known >= 6 else 0
    )
    size = 8 if known < 4 else 16 if known < 6 else 24
    rules = _call(_CREATE, ctypes.byref(ruleset), size, 0)
    changing = rights & ~(_EXECUTE | _IOCTL | _MAKE_CHAR | _MAKE_BLOCK)
    try:
        for allowed, places in (
            (_READING, readable),
            (changing, writable),
            (_EXECUTE | _READING, executable),
            (_LIST, listed),
        ):
            for place in places:
                with suppress(FileNotFoundError, PermissionError, NotADirectoryError):
                    _allow(rules, open_place(place, identities or {}), allowed & rights)
        for port in ports:
            _call(_ADD, rules, _PORT, ctypes.byref(_PortRule(_CONNECT, port)), 0)
        _call(_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, opened: int, allowed: int) -> None:
    """Allow what is below an open file or folder, and close it."""
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
_PR_SET_SECUREBITS, _PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL = 28, 47, 4
# Root gets no capabilities from a new program or a change of users, and cannot change this.
_SECURE_BITS = 0b1111
_FILTER = 2
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_HAS_BITS = 0x45
_NUMBER_AT, _MACHINE_AT = 0, 4
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_MAX_CAPABILITIES = 64
_CAPSET, _CAPABILITY_VERSION = {"x86_64": 126, "aarch64": 91}, 0x20080522

_X86, _ARM = "x86_64", "aarch64"
_MACHINES = {_X86: 0xC000003E, _ARM: 0xC00000B7}
_X32 = 0x40000000
"""From this number on, an x86_64 kernel accepts the same system calls under other numbers."""

# The numbers of each system call on x86_64 and aarch64, or None where it does not exist.
REFUSED_CALLS: Mapping[str, tuple[int | None, int | None]] = {
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    # Mounts and namespaces.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    # Large parts of the kernel that a server does not need. io_uring opens sockets past a filter.
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "vmsplice": (278, 75),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # Without an address of its own, a socket listens at all of them. Landlock does not see it.
    "listen": (50, 201),
    # The machine itself.
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
}
# Without namespaces, a server has the user of the gateway and sees its files and processes.
# Landlock has no rule for the owner, mode and times of a file, nor for memory of System V.
REFUSED_WITHOUT_NAMESPACES: Mapping[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
}
# Calls without namespaces, with the value of each half of an argument that they need. A process of
# 0 is the caller. Without a path, `utimensat` changes the times of an open file.
_REQUIRED_WITHOUT_NAMESPACES: Mapping[str, tuple[tuple[int, int], Mapping[int, int]]] = {
    "utimensat": ((280, 88), {2: 0, 3: 0}),
    "prlimit64": ((302, 261), {0: 0}),
    "sched_setparam": ((142, 118), {0: 0}),
    "sched_setscheduler": ((144, 119), {0: 0}),
    "sched_setaffinity": ((203, 122), {0: 0}),
    "sched_setattr": ((314, 274), {0: 0}),
    "setpriority": ((141, 140), {0: 0, 2: 0}),
    "ioprio_set": ((251, 30), {0: 1, 2: 0}),
}
# The argument with the mode, and the bits that a program may set neither at a file of its own nor,
# without namespaces, at an open one: to run as its owner or group, and to be writable by all users.
_MODES: Mapping[str, tuple[tuple[int | None, int | None], int]] = {
    "chmod": ((90, None), 1),
    "fchmod": ((91, 52), 1),
    "fchmodat": ((268, 53), 2),
    "fchmodat2": ((452, 452), 2),
}
_SET_USER_OR_GROUP, _WRITABLE_BY_ALL = 0o6000, 0o2
# The argument with the flags of each call that can connect a socket. Landlock does not see that.
_SENDING: Mapping[str, tuple[tuple[int | None, int | None], int]] = {
    "sendto": ((44, 206), 3),
    "sendmsg": ((46, 211), 2),
    "sendmmsg": ((307, 269), 3),
}
_FAST_OPEN = 0x20000000
# Programs that are not in a file that may be executed.
_REFUSED_EXECUTION: Mapping[str, tuple[int | None, int | None]] = {
    "memfd_create": (319, 279),
    "execveat": (322, 281),
}
_SOCKET, _CLONE3 = {_X86: 41, _ARM: 198}, 435
SOCKET_PAIR_CALLS = {_X86: 53, _ARM: 199}
_FCNTL = {_X86: 72, _ARM: 25}
CLONE_CALLS = {_X86: 56, _ARM: 220}
IOCTL_CALLS = {_X86: 16, _ARM: 29}
# CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID and NET.
_NAMESPACE_FLAGS = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x70000000
# These put text into a terminal as if somebody had typed it.
_TERMINAL_REQUESTS = (0x5412, 0x541C)
# A lease or a delegation makes everybody wait who opens the file to write. A notification sends
# signals. These are F_SETLEASE, F_NOTIFY and F_SETDELEG.
_REFUSED_CONTROLS = (1024, 1026, 1040)
# Landlock has no rule for attributes, and a file that may only be read has them too.
ATTRIBUTE_REQUESTS: Mapping[str, int] = {
    "FS_IOC_SETFLAGS": 0x40086602,
    "FS_IOC32_SETFLAGS": 0x40046602,
    "FS_IOC_SETVERSION": 0x40087602,
    "FS_IOC32_SETVERSION": 0x40047602,
    "EXT4_IOC_SETVERSION": 0x40086604,
    "EXT4_IOC32_SETVERSION": 0x40046604,
    # Extended flags, and the project whose quota the file counts for.
    "FS_IOC_FSSETXATTR": 0x401C5820,
    # Nobody can ever write to such a file again.
    "FS_IOC_ENABLE_VERITY": 0x40806685,
    "FS_IOC_SET_ENCRYPTION_POLICY": 0x800C6613,
    "FS_IOC_ADD_ENCRYPTION_KEY": 0xC0506617,
    "FS_IOC_REMOVE_ENCRYPTION_KEY": 0xC0406618,
    "BTRFS_IOC_SUBVOL_SETFLAGS": 0x4008941A,
    "F2FS_IOC_SET_PIN_FILE": 0x4004F50D,
    "FAT_IOCTL_SET_ATTRIBUTES": 0x40047211,
}
_UNIX, _IPV4, _IPV6, _STREAM, _PACKETS, _TYPE_MASK, _TCP = 1, 2, 10, 1, 5, 0xF, 6

_Step = tuple[int, int, int, int]


class _SeccompProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def restrict_syscalls(*, network: bool, execution: bool, namespaces: bool) -> None:
    """Install the seccomp filter. Raise OSError if the kernel or the architecture has none.

    With `network` the only sockets are those of TCP. With `execution` a program may come from
    memory too. Without `namespaces` it may not change the files and processes of its user.
    """
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no filter of calls for {machine}")
    written = _filter_program(machine, network=network, execution=execution, namespaces=namespaces)
    program = _SeccompProgram(len(written) // 8, written)
    _control(_PR_SET_NO_NEW_PRIVS, 1)
    _control(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program))


def _filter_program(machine: str, *, network: bool, execution: bool, namespaces: bool) -> bytes:
    """Return the filter program for the kernel: instructions of a code, two jumps and a number."""
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    steps: list[_Step] = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, _MACHINES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == _X86:
        steps += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    column = 0 if machine == _X86 else 1
    names = dict(REFUSED_CALLS)
    names |= {} if execution else _REFUSED_EXECUTION
    names |= {} if namespaces else REFUSED_WITHOUT_NAMESPACES
    for numbers in names.values():
        number = numbers[column]
        if number is not None:
            steps += [(_EQUAL, 0, 1, number), refuse]
    bits = _SET_USER_OR_GROUP | (0 if namespaces else _WRITABLE_BY_ALL)
    guarded = [(*each, bits) for each in _MODES.values()]
    guarded += [(*each, _FAST_OPEN) for each in _SENDING.values()]
    for numbers, argument, refused in guarded:
        number = numbers[column]
        if number is not None:
            checks = [_load_argument(argument), (_HAS_BITS, 0, 1, refused), refuse]
            steps += _guard_call(number, checks)
    for numbers, values in () if namespaces else _REQUIRED_WITHOUT_NAMESPACES.values():
        needed = [(_load_half(half), (_EQUAL, 1, 0, value)) for half, value in values.items()]
        checks = [step for load, check in needed for step in (load, check, refuse)]
        steps += _guard_call(numbers[column], checks)
    # The flags of this call are in memory, which a filter cannot read. Libraries then use clone.
    steps += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    steps += _guard_call(
        CLONE_CALLS[machine], [_load_argument(0), (_HAS_BITS, 0, 1, _NAMESPACE_FLAGS), refuse]
    )
    for call, refused in (
        (IOCTL_CALLS[machine], (*_TERMINAL_REQUESTS, *ATTRIBUTE_REQUESTS.values())),
        (_FCNTL[machine], _REFUSED_CONTROLS),
    ):
        checks = [part for each in refused for part in ((_EQUAL, 0, 1, each), refuse)]
        steps += _guard_call(call, [_load_argument(1), *checks])
    steps += _guard_call(SOCKET_PAIR_CALLS[machine], _allow_connected_pair(refuse))
    if network:
        steps += _guard_call(_SOCKET[machine], _allow_tcp(refuse))
    else:
        steps += [(_EQUAL, 0, 1, _SOCKET[machine]), refuse]
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _guard_call(number: int, checks: Sequence[_Step]) -> list[_Step]:
    """Return the steps for one system call. Every other call skips them."""
    return [(_EQUAL, 0, len(checks) + 1, number), *checks, (_RETURN, 0, 0, _ALLOW)]


def _load_argument(index: int) -> _Step:
    return _load_half(2 * index)


def _load_half(half: int) -> _Step:
    """Load the lower half of an argument of 64 bits (even numbers) or its upper half (odd)."""
    return (_LOAD, 0, 0, 16 + 4 * half)


def _allow_tcp(refuse: _Step) -> list[_Step]:
    """Return the checks of a new socket: IPv4 or IPv6, a stream, and TCP by default or by name.

    Landlock has no rule for other protocols over streams, such as MPTCP.
    """
    return [
        _load_argument(0),
        (_EQUAL, 2, 0, _IPV4),
        (_EQUAL, 1, 0, _IPV6),
        refuse,
        _load_argument(1),
        (_AND, 0, 0, _TYPE_MASK),
        (_EQUAL, 1, 0, _STREAM),
        refuse,
        _load_argument(2),
        (_EQUAL, 2, 0, 0),
        (_EQUAL, 1, 0, _TCP),
        refuse,
    ]


def _allow_connected_pair(refuse: _Step) -> list[_Step]:
    """Return the checks of a pair of sockets: Unix sockets that stay connected to each other.

    A datagram socket reaches every other one in the file system, and passes open files on.
    """
    return [
        _load_argument(0),
        (_EQUAL, 1, 0, _UNIX),
        refuse,
        _load_argument(1),
        (_AND, 0, 0, _TYPE_MASK),
        (_EQUAL, 2, 0, _STREAM),
        (_EQUAL, 1, 0, _PACKETS),
        refuse,
    ]


def drop_privileges(user: int) -> None:
    """Become this user, unless it is 0, without any capability. Raise OSError if that fails.

    Root without capabilities is an ordinary owner of root's files.
    """
    machine = os.uname().machine
    if machine not in _CAPSET:
        raise OSError(errno.ENOSYS, f"cannot drop the capabilities on {machine}")
    if os.geteuid() == 0:
        _drop_bounding_set()
        _control(_PR_SET_SECUREBITS, _SECURE_BITS)
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    # A service manager gives a program of an ordinary user such capabilities.
    _control(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    # A version and a process id; then the effective, permitted and inheritable set, in two halves.
    _call(_CAPSET[machine], struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24))


def _drop_bounding_set() -> None:
    for capability in range(_MAX_CAPABILITIES):
        try:
            _control(_PR_CAPBSET_DROP, capability)
        except OSError as refused:
            if refused.errno == errno.EINVAL:
                return
            raise


def choose_user(user: int, scratch: str, program_files: Iterable[str]) -> int:
    """Return the user to become, and give it the scratch folder. 0 is to stay root.

    Root stays root where the program belongs to root alone, or where there is no such user.
    """
    if user == 0 or os.geteuid() != 0 or not _can_become(user, scratch, program_files):
        return 0
    os.chown(scratch, user, user)
    return user


def _can_become(user: int, scratch: str, program_files: Iterable[str]) -> bool:
    groups, group = os.getgroups(), os.getegid()
    try:
        os.setgroups([])
        os.setegid(user)
    except OSError:
        # A namespace has only the users that were mapped into it.
        return False
    try:
        os.seteuid(user)
        # The kernel looks at each part of a path, and at access control lists.
        can_enter = os.access(os.path.dirname(scratch), os.X_OK, effective_ids=True)  # noqa: PTH120  # as below
        return can_enter and all(_can_read(place) for place in program_files)
    except OSError:
        return False
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


def _can_read(place: str) -> bool:
    needs = os.R_OK | (os.X_OK if os.path.isdir(place) else 0)  # noqa: PTH112  # as below
    return os.access(place, needs, effective_ids=True)


def _control(what: int, *arguments: object) -> None:
    words = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    words += [ctypes.c_ulong(0)] * (4 - len(words))
    if ctypes.CDLL(None, use_errno=True).prctl(what, *words) != 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))


def restrict_resources(limits: Mapping[str, int]) -> None:
    """Set the limits of this process. `limits` are those of `comity.servers.sandbox.model`."""
    bounds = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_DATA, limits["memory"]),
    ]
    # The limit holds for all processes of a user, and only Linux tells how many there are.
    if sys.platform == "linux":
        processes = limits["processes"] + limits.get("counted_processes", 0)
        bounds.append((resource.RLIMIT_NPROC, processes))
    for what, most in bounds:
        _, hard = resource.getrlimit(what)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (bound, bound))


def count_processes(user: int) -> int:
    """Return how many threads a user runs. The kernel counts them together."""
    found = 0
    for name in os.listdir("/proc"):  # noqa: PTH208  # the stage imports as little as it can
        with suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:  # noqa: PTH116  # as above
                found += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208  # as above
    return found


def hand_over_listener(gateway: str, port: int) -> None:
    """Listen on loopback in this network namespace, and give the socket to the gateway.

    The gateway accepts the connections of the server there: it is the only way out.
    """
    # Only here, for a program without a proxy. The public module takes ten times as long to import.
    import _socket

    listener, line = _socket.socket(), _socket.socket(_socket.AF_UNIX)
    try:
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        line.settimeout(10)
        line.connect(gateway)
        rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", listener.fileno()))
        line.sendmsg([b"l"], [rights])
        line.recv(1)
    finally:
        listener.close()
        line.close()


_WITHOUT_FILTER, _WITH_NAMESPACES = 1, 3
"""The levels of `comity.servers.sandbox.model` that differ here."""


class StagePolicy:
    """The policy as `comity.servers.sandbox.launch` writes it."""

    level: int
    limits: dict[str, int]
    counts_processes: bool
    readable: list[str]
    writable: list[str]
    executable: list[str]
    listed: list[str]
    identities: dict[str, list[int]]
    network: bool
    execution: bool
    ports: list[int]
    egress: str
    egress_port: int
    folder: str
    user: int
    scratch: str
    program_files: list[str]

    def __init__(self, text: str) -> None:
        self.__dict__.update(json.loads(text))


def apply_sandbox(policy: StagePolicy) -> None:
    """Give up all other access, irrevocably. Raise OSError if that is not possible.

    Raises OSError (ESTALE) if a granted folder is not the one that the gateway checked.
    """
    user = choose_user(policy.user, policy.scratch, policy.program_files)
    if policy.egress:
        hand_over_listener(policy.egress, policy.egress_port)
    limits = dict(policy.limits)
    if policy.counts_processes and sys.platform == "linux":
        limits["counted_processes"] = count_processes(user or os.getuid())
    restrict_resources(limits)
    if policy.level == _WITHOUT_FILTER:
        # Other systems have no such flag.
        if sys.platform == "linux":
            drop_privileges(user)
            _control(_PR_SET_NO_NEW_PRIVS, 1)
        return
    drop_privileges(user)
    if policy.level == _WITH_NAMESPACES:
        check_mounts(policy.identities)
    restrict_syscalls(
        network=policy.network,
        execution=policy.execution,
        namespaces=policy.level == _WITH_NAMESPACES,
    )
    restrict_files(
        policy.readable,
        policy.writable,
        policy.executable,
        policy.listed,
        policy.ports,
        policy.identities,
    )


def main(words: Sequence[str]) -> int:
    policy, program, argv = StagePolicy(words[0]), words[1], words[2:]
    try:
        apply_sandbox(policy)
    except OSError as refused:
        sys.stderr.write(
            f"{refused.filename} was exchanged for another folder during the start\n"
            if refused.errno == errno.ESTALE
            else f"this machine cannot confine a program ({refused.strerror}); see its levels with "
            "`comity doctor`\n"
        )
        return STAGE_FAILED_STATUS
    # Bubblewrap ignores these, so that a signal to the group ends the server and not its cage.
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(sign, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if policy.folder:
        with suppress(OSError):
            os.chdir(policy.folder)
    try:
        os.execv(program, list(argv))  # noqa: S606  # words that the operator's rules allow
    except OSError as refused:
        sys.stderr.write(f"cannot start {argv[0]!r:.200}: {refused.strerror}\n")
    return STAGE_FAILED_STATUS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
