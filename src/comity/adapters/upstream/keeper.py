"""The keeper: a process that starts the tool servers, so that somebody is left to end them.

The gateway may be killed with SIGKILL, and then can end nothing. So it starts no server itself: it
asks its keeper, whose forks are the servers' guards. Each holds a socket to the gateway, and when
that breaks, ends its server. A fork of this small process costs a few milliseconds and less than a
megabyte, which is why there is a keeper and not an interpreter for each server. (Decision 0009)

It runs with the standard library alone, and ends when the gateway's socket has and all guards have.
"""

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from comity.adapters.upstream import orders
from comity.adapters.upstream.guard import DEAF_TO, Guard, wake_at_child_deaths
from comity.adapters.upstream.namespace import Refused, begin_in_namespace
from comity.adapters.upstream.strays import kill_children
from comity.adapters.upstream.syscalls import adopt_orphans


class Keeper:
    def __init__(self, wishes: socket.socket, *, shall_adopt: bool) -> None:
        self._wishes = wishes
        self._guards: set[int] = set()
        self._woken = wake_at_child_deaths()
        self._adopts = False
        if shall_adopt:
            with suppress(OSError):
                # Should a guard be killed, what its server had started comes to the keeper.
                adopt_orphans()
                self._adopts = True
        self._home: int | None = None
        self._proc: int | None = None
        with suppress(OSError):
            self._home = os.open("/proc/self/ns/pid", os.O_RDONLY)
            self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)

    def run(self) -> None:
        waiting = select.poll()
        waiting.register(self._woken, select.POLLIN)
        waiting.register(self._wishes, select.POLLIN)
        is_wanted = True
        while is_wanted or self._guards:
            for descriptor, _ in waiting.poll():
                if descriptor == self._woken:
                    os.read(self._woken, 4096)
                    self._collect()
                elif not self._serve():
                    waiting.unregister(self._wishes)
                    is_wanted = False

    def _serve(self) -> bool:
        """Do what is wished; whether there is anybody left to wish."""
        wish, descriptors, _, _ = socket.recv_fds(self._wishes, 1, 4)
        if not wish:
            return False
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        line = socket.socket(fileno=descriptors[0])
        try:
            self._begin(wish, line, descriptors[1:])
        except OSError as refused:
            # No process or no descriptor left: this server fails, and the next may not.
            with suppress(OSError):
                line.sendall(f"failed {orders.IN_PROGRAM} {refused.errno or 0}\n".encode())
        line.close()
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        return True

    def _begin(self, wish: bytes, line: socket.socket, stdio: list[int]) -> None:
        best = orders.REAPER if self._adopts else orders.GROUP
        if wish == orders.WISH_GROUP:
            self._fork(Guard(line, orders.GROUP, None), stdio)
        elif wish == orders.WISH_AUTO:
            self._fork(Guard(line, best, None), stdio)
        elif wish == orders.WISH_NAMESPACE:
            guard = Guard(line, orders.NAMESPACE, self._proc)
            refused = self._begin_in_namespace(partial(self._become, guard, stdio))
            if refused is not None:
                line.sendall(f"failed {refused.where} {refused.number}\n".encode())
        else:
            refused = self._begin_in_namespace(_do_nothing) or Refused(orders.NOWHERE, 0)
            line.sendall(f"best {best} {refused.where} {refused.number}\n".encode())

    def _begin_in_namespace(self, run_guard: Callable[[], None]) -> Refused | None:
        if self._home is None:
            return Refused(orders.NO_LINUX, 0)
        first = begin_in_namespace(self._home, run_guard)
        if isinstance(first, Refused):
            return first
        self._guards.add(first)
        return None

    def _fork(self, guard: Guard, stdio: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                self._become(guard, stdio)
            finally:
                os._exit(1)
        self._guards.add(pid)

    def _become(self, guard: Guard, stdio: list[int]) -> None:
        # Were it kept open by a guard, the gateway would not see that the keeper is dead.
        self._wishes.close()
        guard.keep(stdio)

    def _collect(self) -> None:
        a_guard_failed = False
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                a_guard_failed |= status != 0 or pid not in self._guards
                self._guards.discard(pid)
        if a_guard_failed and self._adopts:
            kill_children(spared=self._guards)


def _do_nothing() -> None:
    """A trial has no server."""


def main() -> None:
    for sign in DEAF_TO:
        signal.signal(sign, signal.SIG_IGN)
    # What is never looked at again by the collector stays shared with every fork.
    gc.disable()
    gc.freeze()
    wishes = socket.socket(fileno=int(sys.argv[2]))
    wishes.set_inheritable(False)
    Keeper(wishes, shall_adopt=orders.ADOPT in sys.argv[3:]).run()
