"""The process guard: a process that ends the children of servers. It imports no package.

It runs as a process of its own, and `servers.process.keeper_client` talks to it.
"""

import ctypes
import errno
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType

WISH_AUTO, WISH_GROUP, WISH_NAMESPACE, WISH_TRIAL = b"a", b"g", b"n", b"t"

# The argument of the keeper's command line.
ADOPT = "adopt"

# How a server is contained: by a kernel namespace, by a guard that adopts its orphans, or only by
# its process group.
NAMESPACE, REAPER, GROUP = "namespace", "reaper", "group"

# Where a start fails, or where a trial is stopped.
IN_PROGRAM, IN_FOLDER = "program", "folder"
NO_LINUX, NO_NAMESPACE, NO_PROC, NOWHERE = "system", "namespace", "proc", "nowhere"

_LENGTH_BYTES = 4


class ProcessOrder:
    """A command to run, in bytes as the system takes them.

    Its process writes its id to each of `member_files`, which are those of control groups. A
    sandbox `ignores_signals` that end a server, and its last step resets them for the server.
    """

    __slots__ = ("argv", "cwd", "env", "ignores_signals", "member_files")

    def __init__(
        self,
        argv: Sequence[bytes],
        env: Mapping[bytes, bytes],
        cwd: bytes,
        *,
        ignores_signals: bool = False,
        member_files: Sequence[bytes] = (),
    ) -> None:
        self.argv = list(argv)
        self.env = env
        self.cwd = cwd
        self.ignores_signals = ignores_signals
        self.member_files = member_files


def pack_order(order: ProcessOrder) -> bytes:
    """Encode a command. Raise `ValueError` if no system could run it."""
    argv, env, files = order.argv, order.env, order.member_files
    if not argv or any(not name or b"=" in name for name in env):
        raise ValueError("no program, or a variable without a name")
    words = [order.cwd, b"%d" % order.ignores_signals, b"%d" % len(argv), *argv]
    words += [b"%d" % len(files), *files, *(b"%s=%s" % pair for pair in env.items())]
    if any(b"\0" in word for word in words):
        raise ValueError("a NUL character")
    packed = b"\0".join(words)
    return len(packed).to_bytes(_LENGTH_BYTES) + packed


def length_of(prefix: bytes) -> int:
    return int.from_bytes(prefix[:_LENGTH_BYTES])


def unpack_order(packed: bytes) -> ProcessOrder:
    cwd, ignores, number, *words = packed.split(b"\0")
    argv, (number, *words) = words[: int(number)], words[int(number) :]
    files, words = words[: int(number)], words[int(number) :]
    env = {name: value for name, _, value in (word.partition(b"=") for word in words)}
    return ProcessOrder(argv, env, cwd, ignores_signals=ignores == b"1", member_files=files)


_ROUND_INTERVAL_SECONDS = 0.02


def kill_stray_processes(seconds: float) -> bool:
    """End every child of this process, and new ones as they appear. Return whether none is left."""
    until = time.monotonic() + seconds
    while _reap_children():
        if time.monotonic() > until:
            return False
        kill_children(spared=())
        select.select((), (), (), _ROUND_INTERVAL_SECONDS)
    return True


def kill_children(spared: Container[int]) -> None:
    for pid in _children(os.getpid()):
        if pid not in spared:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _reap_children() -> bool:
    """Reap dead children. Return whether any child is still alive."""
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


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_REC, _MS_SLAVE = 0x4000, 0x80000


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it, from now on."""
    _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent thread ends. It survives an exec."""
    _call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def mount_own_proc() -> None:
    """Give the caller's own namespace a /proc that only the caller and its children see."""
    os.unshare(os.CLONE_NEWNS)
    # As a slave, the mount tree still follows later mounts of the machine and keeps none busy.
    _call("mount", b"none", b"/", None, _MS_REC | _MS_SLAVE, None)
    _call("mount", b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)


def _call(name: str, *arguments: int | bytes | None) -> None:
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    words = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    if ctypes.CDLL(None, use_errno=True)[name](*words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# After the gateway's death, in seconds: first only the end of stdin, as MCP requires, then
# SIGTERM, then SIGKILL. Together they stay well under the promised five seconds.
_ALONE, _AFTER_TERM, _AFTER_KILL = 1.0, 1.5, 1.0
_STRAY_TIMEOUT_SECONDS = 1.0

# Keeper and guard ignore these signals: Ctrl-C and the stop of a service reach every process, and
# the gateway needs these two to stop its servers in order.
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Python ignores these signals for itself. A program expects the defaults of the system.
_PYTHON_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)


class ProcessGuard:
    """Starts one server, forwards signals, and ends all its processes if the gateway dies."""

    def __init__(self, gateway_socket: socket.socket, kind: str, proc: int | None) -> None:
        """`proc` is the gateway's /proc, if a namespace has another one."""
        self._gateway_socket = gateway_socket
        self._kind = kind
        self._proc = proc
        self._server = 0
        self._status: int | None = None

    def run(self, stdio: list[int]) -> None:
        """Start the server, stay until all its processes have ended, and exit."""
        order = self._read_order()
        woken = wake_at_child_deaths()
        if self._kind == REAPER:
            adopt_orphans()
        said = self._start(order, stdio)
        for descriptor in stdio:
            os.close(descriptor)
        outside, _, failed = said.decode().partition(" ")
        if failed or not outside:
            self._report(f"failed {failed or f'{IN_PROGRAM} 0'}")
            os._exit(0)
        self._report(f"started {outside} {self._kind}")
        self._watch(woken)
        os._exit(0 if self._end() else 1)

    def _read_order(self) -> ProcessOrder:
        prefix = self._read(4)
        return unpack_order(self._read(length_of(prefix)))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._gateway_socket.recv(size - len(data))
            if not more:
                os._exit(0)
            data += more
        return data

    def _report(self, text: str) -> None:
        with suppress(OSError):
            self._gateway_socket.sendall(f"{text}\n".encode())

    def _start(self, order: ProcessOrder, stdio: list[int]) -> bytes:
        """Return the server's process id as seen by the gateway, and the error if it failed."""
        told, telling = os.pipe()
        guard = os.getpid()
        self._server = os.fork()
        if self._server == 0:
            try:
                _exec_server(order, stdio, telling, guard, self._proc)
            finally:
                os._exit(127)
        os.close(telling)
        said = b""
        # The read ends with the exec, which closes the other end of the pipe.
        while more := os.read(told, 4096):
            said += more
        os.close(told)
        if self._proc is not None:
            os.close(self._proc)
        return said

    def _watch(self, woken: int) -> None:
        """Return when the server is dead, or cannot be killed."""
        waiting = select.poll()
        waiting.register(woken, select.POLLIN)
        waiting.register(self._gateway_socket, select.POLLIN)
        steps = iter(((signal.SIGTERM, _AFTER_TERM), (signal.SIGKILL, _AFTER_KILL)))
        until: float | None = None
        while not self._is_dead():
            left = None if until is None else max(0.0, until - time.monotonic()) * 1000
            for descriptor, _ in waiting.poll(left):
                if descriptor == woken:
                    os.read(woken, 4096)
                elif not self._handle_signals():
                    waiting.unregister(self._gateway_socket)
                    until = time.monotonic() + _ALONE
            if until is not None and time.monotonic() >= until:
                sign, patience = next(steps, (None, 0.0))
                if sign is None:
                    return
                self._signal(sign)
                until = time.monotonic() + patience

    def _handle_signals(self) -> bool:
        """Send the requested signals. Return whether the gateway is still alive."""
        try:
            asked = self._gateway_socket.recv(64)
        except ConnectionError:
            return False
        for sign in asked:
            self._signal(sign)
        return bool(asked)

    def _signal(self, sign: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._server, sign)

    def _is_dead(self) -> bool:
        """Whether the server is dead. It is not reaped, so its group id stays reserved."""
        if sys.platform != "linux":
            # Here `waitpid` reaps the server, so its group ends a moment too late to be sure.
            dead, self._status = os.waitpid(self._server, os.WNOHANG)
            return dead != 0
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (dead := os.waitid(os.P_ALL, 0, look)) is not None:
            if dead.si_pid == self._server:
                return True
            os.waitpid(dead.si_pid, 0)
        return False

    def _end(self) -> bool:
        """End the group first, while its leader reserves the id. Return whether none is left."""
        self._signal(signal.SIGKILL)
        if self._status is None:
            _, self._status = os.waitpid(self._server, os.WNOHANG)
        self._report(f"ended {os.waitstatus_to_exitcode(self._status)}")
        return self._kind != REAPER or kill_stray_processes(_STRAY_TIMEOUT_SECONDS)


def wake_at_child_deaths() -> int:
    """Return a descriptor that becomes readable when a child of this process has died."""
    woken, waking = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore_signal)
    return woken


def _ignore_signal(_: int, __: FrameType | None) -> None:
    """Do nothing: Python writes the byte to the pipe only if a handler is set."""


def _exec_server(
    order: ProcessOrder, stdio: list[int], telling: int, guard: int, proc: int | None
) -> None:
    """Become the server by exec. Return only if that fails, after the error was reported."""
    where = IN_PROGRAM
    try:
        os.setsid()
        with suppress(OSError):
            die_with_parent()
        if os.getppid() != guard:
            return
        # A namespace has process ids of its own. The gateway and the operator use this one.
        outside = os.getpid() if proc is None else os.readlink("self", dir_fd=proc)
        os.write(telling, b"%d" % int(outside))
        for target, descriptor in enumerate(stdio):
            os.dup2(descriptor, target)
        for sign in (*IGNORED_SIGNALS, *_PYTHON_SIGNALS, signal.SIGCHLD):
            if not (order.ignores_signals and sign in IGNORED_SIGNALS):
                signal.signal(sign, signal.SIG_DFL)
        for file in order.member_files:
            _join_group(file)
        where = IN_FOLDER
        os.chdir(order.cwd)
        where = IN_PROGRAM
        os.execvpe(order.argv[0], order.argv, order.env)  # noqa: S606  # the operator's own words
    except OSError as refused:
        os.write(telling, f" {where} {refused.errno or 0}".encode())


def _join_group(member_file: bytes) -> None:
    descriptor = os.open(member_file, os.O_WRONLY)
    try:
        os.write(descriptor, b"0")
    finally:
        os.close(descriptor)


_READY = b"ready"


class NamespaceRefusal:
    """The step at which the kernel refused a namespace, and the error."""

    def __init__(self, where: str, number: int) -> None:
        self.where = where
        self.number = number


def begin_in_namespace(home: int, run_guard: Callable[[], None]) -> int | NamespaceRefusal:
    """Start the first process and its guard. `home` is the caller's own namespace."""
    try:
        os.unshare(os.CLONE_NEWPID)
    except OSError as refused:
        return NamespaceRefusal(NO_NAMESPACE, refused.errno or 0)
    told, telling = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            _run_first_process(telling, run_guard)
        finally:
            os._exit(1)
    os.setns(home, os.CLONE_NEWPID)
    os.close(telling)
    said = os.read(told, 64)
    os.close(told)
    if said == _READY:
        return first
    os.waitpid(first, 0)
    return NamespaceRefusal(NO_PROC, int(said or b"0"))


def _run_first_process(telling: int, run_guard: Callable[[], None]) -> None:
    """Run as the first process: start the guard, reap dead processes, and end all at its exit."""
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
    # By name: with a limit of a thousand million descriptors, closing every number takes an hour.
    with os.scandir("/proc/self/fd") as entries:
        numbers = [int(entry.name) for entry in entries]
    for number in numbers:
        if number > 2:
            with suppress(OSError):
                os.close(number)
    while os.wait()[0] != guard:
        pass
    os._exit(0)


class ProcessKeeper:
    """Starts a guard for each server, and ends the orphans of a guard that was killed."""

    def __init__(self, requests: socket.socket, *, shall_adopt: bool) -> None:
        self._requests = requests
        self._guards: set[int] = set()
        self._wake_descriptor = wake_at_child_deaths()
        self._adopts_orphans = False
        if shall_adopt:
            with suppress(OSError):
                # If a guard is killed, the children of its server become children of the keeper.
                adopt_orphans()
                self._adopts_orphans = True
        self._own_namespace: int | None = None
        self._proc: int | None = None
        with suppress(OSError):
            self._own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
            self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)

    def run(self) -> None:
        waiting = select.poll()
        waiting.register(self._wake_descriptor, select.POLLIN)
        waiting.register(self._requests, select.POLLIN)
        is_wanted = True
        while is_wanted or self._guards:
            for descriptor, _ in waiting.poll():
                if descriptor == self._wake_descriptor:
                    os.read(self._wake_descriptor, 4096)
                    self._reap_guards()
                elif not self._handle_requests():
                    waiting.unregister(self._requests)
                    is_wanted = False

    def _handle_requests(self) -> bool:
        """Carry out requests. Return whether the gateway is still there."""
        wish, descriptors, _, _ = socket.recv_fds(self._requests, 1, 4)
        if not wish:
            return False
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        line = socket.socket(fileno=descriptors[0])
        try:
            self._start_guard(wish, line, descriptors[1:])
        except OSError as refused:
            # No process or no descriptor is left. This server fails, and the next one may not.
            with suppress(OSError):
                line.sendall(f"failed {IN_PROGRAM} {refused.errno or 0}\n".encode())
        line.close()
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        return True

    def _start_guard(self, wish: bytes, line: socket.socket, stdio: list[int]) -> None:
        best = REAPER if self._adopts_orphans else GROUP
        if wish == WISH_GROUP:
            self._fork(ProcessGuard(line, GROUP, None), stdio)
        elif wish == WISH_AUTO:
            self._fork(ProcessGuard(line, best, None), stdio)
        elif wish == WISH_NAMESPACE:
            guard = ProcessGuard(line, NAMESPACE, self._proc)
            refused = self._begin_in_namespace(partial(self._run_guard, guard, stdio))
            if refused is not None:
                line.sendall(f"failed {refused.where} {refused.number}\n".encode())
        else:
            refused = self._begin_in_namespace(_do_nothing) or NamespaceRefusal(NOWHERE, 0)
            line.sendall(f"best {best} {refused.where} {refused.number}\n".encode())

    def _begin_in_namespace(self, run_guard: Callable[[], None]) -> NamespaceRefusal | None:
        if self._own_namespace is None:
            return NamespaceRefusal(NO_LINUX, 0)
        first = begin_in_namespace(self._own_namespace, run_guard)
        if isinstance(first, NamespaceRefusal):
            return first
        self._guards.add(first)
        return None

    def _fork(self, guard: ProcessGuard, stdio: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                self._run_guard(guard, stdio)
            finally:
                os._exit(1)
        self._guards.add(pid)

    def _run_guard(self, guard: ProcessGuard, stdio: list[int]) -> None:
        # If a guard kept this open, the gateway would not notice the death of the keeper.
        self._requests.close()
        guard.run(stdio)

    def _reap_guards(self) -> None:
        a_guard_failed = False
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                a_guard_failed |= status != 0 or pid not in self._guards
                self._guards.discard(pid)
        if a_guard_failed and self._adopts_orphans:
            kill_children(spared=self._guards)


def _do_nothing() -> None:
    """Do nothing: a trial has no server."""


def main() -> None:
    for sign in IGNORED_SIGNALS:
        signal.signal(sign, signal.SIG_IGN)
    # Without the collector, the memory pages stay shared with every fork.
    gc.disable()
    gc.freeze()
    wishes = socket.socket(fileno=int(sys.argv[2]))
    wishes.set_inheritable(False)
    ProcessKeeper(wishes, shall_adopt=ADOPT in sys.argv[3:]).run()
