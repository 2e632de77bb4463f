"""The guard of one server: its parent, who tells how it ended and sees that nothing of it is left.

Rule 1: a signal is sent only while the server is uncollected, so its id cannot mean a stranger.
Rule 2: when the gateway is gone the server is ended, whatever it does.
Rule 3: the server's pipes are its own; a guard that held one would hide its end.

It runs as a fork of the keeper, with the standard library alone.
"""

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from types import FrameType

from comity.adapters.upstream import orders
from comity.adapters.upstream.orders import Order
from comity.adapters.upstream.strays import end_strays
from comity.adapters.upstream.syscalls import adopt_orphans, die_with_parent

# After the gateway's death, in seconds: first the end of stdin alone, as MCP would have it, then
# SIGTERM, then SIGKILL. Together they stay well under the five that are promised.
_ALONE, _AFTER_TERM, _AFTER_KILL = 1.0, 1.5, 1.0
_FOR_STRAYS = 1.0

# What ends neither keeper nor guard: Ctrl-C and the stopping of a whole service reach every
# process, and the gateway needs these two to stop its servers in order.
DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Python ignores these for itself; a program expects them as the system has them.
_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)


class Guard:
    def __init__(self, line: socket.socket, kind: str, proc: int | None) -> None:
        """`proc` is the gateway's /proc, where a namespace has another."""
        self._line = line
        self._kind = kind
        self._proc = proc
        self._server = 0
        self._status: int | None = None

    def keep(self, stdio: list[int]) -> None:
        """Start the server, stay until nothing of it is left, and end the process."""
        order = self._read_order()
        woken = wake_at_child_deaths()
        if self._kind == orders.REAPER:
            adopt_orphans()
        said = self._start(order, stdio)
        for descriptor in stdio:
            os.close(descriptor)
        outside, _, failed = said.decode().partition(" ")
        if failed or not outside:
            self._tell(f"failed {failed or f'{orders.IN_PROGRAM} 0'}")
            os._exit(0)
        self._tell(f"started {outside} {self._kind}")
        self._watch(woken)
        os._exit(0 if self._end() else 1)

    def _read_order(self) -> Order:
        prefix = self._read(4)
        return orders.unpack(self._read(orders.length_of(prefix)))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._line.recv(size - len(data))
            if not more:
                os._exit(0)
            data += more
        return data

    def _tell(self, said: str) -> None:
        with suppress(OSError):
            self._line.sendall(f"{said}\n".encode())

    def _start(self, order: Order, stdio: list[int]) -> bytes:
        """The server's id as the gateway knows it, and what failed, if anything did."""
        told, telling = os.pipe()
        guard = os.getpid()
        self._server = os.fork()
        if self._server == 0:
            try:
                _become(order, stdio, telling, guard, self._proc)
            finally:
                os._exit(127)
        os.close(telling)
        said = b""
        # It ends with the exec, which closes the other end.
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
        waiting.register(self._line, select.POLLIN)
        steps = iter(((signal.SIGTERM, _AFTER_TERM), (signal.SIGKILL, _AFTER_KILL)))
        until: float | None = None
        while not self._is_dead():
            left = None if until is None else max(0.0, until - time.monotonic()) * 1000
            for descriptor, _ in waiting.poll(left):
                if descriptor == woken:
                    os.read(woken, 4096)
                elif not self._heed():
                    waiting.unregister(self._line)
                    until = time.monotonic() + _ALONE
            if until is not None and time.monotonic() >= until:
                sign, patience = next(steps, (None, 0.0))
                if sign is None:
                    return
                self._signal(sign)
                until = time.monotonic() + patience

    def _heed(self) -> bool:
        """Send what the gateway asked to be sent; whether it is still there."""
        try:
            asked = self._line.recv(64)
        except ConnectionError:
            return False
        for sign in asked:
            self._signal(sign)
        return bool(asked)

    def _signal(self, sign: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._server, sign)

    def _is_dead(self) -> bool:
        """It is left uncollected, and holds its group's id; orphans it adopted are let go."""
        if sys.platform != "linux":
            # There the look collects it, and its group is ended a moment too late to be certain.
            dead, self._status = os.waitpid(self._server, os.WNOHANG)
            return dead != 0
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (dead := os.waitid(os.P_ALL, 0, look)) is not None:
            if dead.si_pid == self._server:
                return True
            os.waitpid(dead.si_pid, 0)
        return False

    def _end(self) -> bool:
        """Whether all is gone. The group goes first, while its dead leader still holds its id."""
        self._signal(signal.SIGKILL)
        if self._status is None:
            _, self._status = os.waitpid(self._server, os.WNOHANG)
        self._tell(f"ended {os.waitstatus_to_exitcode(self._status)}")
        return self._kind != orders.REAPER or end_strays(_FOR_STRAYS)


def wake_at_child_deaths() -> int:
    """A descriptor that can be read when a child of this process has died."""
    woken, waking = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _note)
    return woken


def _note(_: int, __: FrameType | None) -> None:
    """The byte in the pipe says it all; but without a function here none would be written."""


def _become(order: Order, stdio: list[int], telling: int, guard: int, proc: int | None) -> None:
    """Turn into the server; return only if that fails, having said why."""
    where = orders.IN_PROGRAM
    try:
        os.setsid()
        with suppress(OSError):
            die_with_parent()
        if os.getppid() != guard:
            return
        # A namespace has numbers of its own; people and the gateway know it by this one.
        outside = os.getpid() if proc is None else os.readlink("self", dir_fd=proc)
        os.write(telling, b"%d" % int(outside))
        for target, descriptor in enumerate(stdio):
            os.dup2(descriptor, target)
        for sign in (*DEAF_TO, *_PYTHONS_OWN, signal.SIGCHLD):
            signal.signal(sign, signal.SIG_DFL)
        where = orders.IN_FOLDER
        os.chdir(order.cwd)
        where = orders.IN_PROGRAM
        os.execvpe(order.argv[0], order.argv, order.env)  # noqa: S606  # the operator's own words
    except OSError as refused:
        os.write(telling, f" {where} {refused.errno or 0}".encode())
