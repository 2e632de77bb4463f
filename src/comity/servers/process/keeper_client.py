"""The gateway's side of the process guard: starts the keeper and requests guards from it."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self
from weakref import WeakKeyDictionary

from comity.errors import Unavailable
from comity.servers.process import keeper
from comity.servers.process import keeper as orders

_PACKAGE_PATH: Final = str(Path(__file__).parents[3])
_RUN_CODE: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from comity.servers.process.keeper import main; main()"
)
# An interpreter may need these to find its libraries. They hold no secret of the operator.
_INHERITED_VARIABLES: Final = ("LD_LIBRARY_PATH", "PYTHONHOME")
_MAX_CONCURRENT_STARTS: Final = 32
"""How many servers may start at the same time on one event loop."""
_MAX_ANSWER_BYTES: Final = 4096


class GuardConnection:
    """A socket to the guard of one server. Closing it ends that server."""

    def __init__(self, ours: socket.socket, keeper: "_KeeperProcess") -> None:
        self._socket = ours
        self._keeper = keeper
        self._received = b""
        self._is_open = True

    async def send(self, data: bytes) -> None:
        with suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def read_line(self) -> list[str]:
        """Return the words of the next line, or none if the guard has ended."""
        while b"\n" not in self._received and await self._on_readable():
            pass
        return self._next_line()

    def on_next_line(self, callback: Callable[[list[str]], None]) -> None:
        loop = asyncio.get_running_loop()

        def readable() -> None:
            with suppress(BlockingIOError):
                self._received += self._receive() or b"\n"
            if b"\n" in self._received:
                loop.remove_reader(self._socket)
                callback(self._next_line())

        if b"\n" in self._received:
            loop.call_soon(callback, self._next_line())
        else:
            loop.add_reader(self._socket, readable)

    def signal(self, sign: signal.Signals) -> None:
        with suppress(OSError):
            self._socket.send(bytes((sign,)))

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._socket.close()
            self._keeper.release()

    async def _on_readable(self) -> bool:
        loop = asyncio.get_running_loop()
        try:
            more = await loop.sock_recv(self._socket, _MAX_ANSWER_BYTES)
        except ConnectionError:
            more = b""
        self._received += more
        return bool(more)

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(_MAX_ANSWER_BYTES)
        except ConnectionError:
            return b""

    def _next_line(self) -> list[str]:
        line, _, self._received = self._received.partition(b"\n")
        return line.decode(errors="replace").split()


class StdioPipes:
    """The pipes for a server's stdin, stdout and stderr: its ends and the gateway's ends."""

    def __init__(self) -> None:
        self._gateway_ends: list[IO[bytes]] = []
        self.server_ends: list[int] = []

    def __enter__(self) -> Self:
        try:
            for mode in ("wb", "rb", "rb"):
                reading, writing = os.pipe()
                ours, theirs = (writing, reading) if mode == "wb" else (reading, writing)
                self._gateway_ends.append(os.fdopen(ours, mode, buffering=0))
                self.server_ends.append(theirs)
        except OSError as refused:
            self.__exit__()
            raise Unavailable(f"no pipe can be had: {refused.strerror}") from refused
        return self

    def close_server_ends(self) -> None:
        """Close the server's ends, once they were sent to it."""
        theirs, self.server_ends = self.server_ends, []
        for descriptor in theirs:
            os.close(descriptor)

    def take_gateway_ends(self) -> Sequence[IO[bytes]]:
        """Return the gateway's ends, which stay open from now on."""
        given, self._gateway_ends = self._gateway_ends, []
        return given

    def __exit__(self, *_: object) -> None:
        self.close_server_ends()
        for pipe in self._gateway_ends:
            pipe.close()


class ChildProcess:
    """A started server process, as its guard reports on it."""

    def __init__(
        self, line: GuardConnection, pid: int, kind: str, pipes: Sequence[IO[bytes]]
    ) -> None:
        self.pid = pid
        self.kind = kind
        self.stdin, self.stdout, self.stderr = pipes
        self.returncode: int | None = None
        # Set when the guard ended without a report, because it was killed.
        self.is_unexplained = False
        self._line = line

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, on the event loop, when the server and its group have ended."""

        def tell(words: list[str]) -> None:
            self._line.close()
            self.is_unexplained = words[:1] != ["ended"]
            self.returncode = -signal.SIGKILL if self.is_unexplained else int(words[1])
            callback()

        self._line.on_next_line(tell)

    def signal(self, sign: signal.Signals) -> None:
        """Signal the whole group. The guard sends it only while the group id is certain."""
        if self.returncode is None:
            self._line.signal(sign)


def request_guard(request: bytes, descriptors: Sequence[int]) -> GuardConnection:
    """Send a request to the keeper, with the server's stdin, stdout and stderr."""
    keeper = _lenient if request == orders.WISH_GROUP else _strict
    ours: socket.socket | None = None
    try:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            keeper.send_request(request, [theirs.fileno(), *descriptors])
    except OSError as refused:
        if ours is not None:
            ours.close()
        raise Unavailable(f"the keeper cannot be reached: {refused.strerror}") from refused
    return GuardConnection(ours, keeper)


def start_semaphore() -> asyncio.Semaphore:
    """Return the semaphore to hold during a start, which takes the most descriptors."""
    loop = asyncio.get_running_loop()
    if loop not in _start_semaphores:
        _start_semaphores[loop] = asyncio.Semaphore(_MAX_CONCURRENT_STARTS)
    return _start_semaphores[loop]


class _KeeperProcess:
    """The keeper's process, while at least one guard uses it. Several event loops may share it."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        # Event loops of several threads share the keeper.
        self._lock = threading.Lock()
        self._holders = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._request_socket: socket.socket | None = None

    def send_request(self, request: bytes, descriptors: list[int]) -> None:
        """Send a request. It holds the keeper until it is released as often."""
        with self._lock:
            try:
                socket.send_fds(self._start(), [request], descriptors)
            except ConnectionError:
                # The keeper was killed. Its guards go on, and a new keeper takes new requests.
                self._stop()
                socket.send_fds(self._start(), [request], descriptors)
            self._holders += 1

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._stop()

    def _start(self) -> socket.socket:
        if self._request_socket is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = _run_keeper(theirs, self._arguments)
            self._request_socket = ours
        return self._request_socket

    def _stop(self) -> None:
        process, self._process = self._process, None
        wishes, self._request_socket = self._request_socket, None
        if wishes is not None:
            wishes.close()
        if process is not None:
            # The keeper ends at once or after its last guard. A thread waits, not the event loop.
            threading.Thread(target=process.wait, daemon=True).start()


def _run_keeper(theirs: socket.socket, how: Sequence[str]) -> subprocess.Popen[bytes]:
    command = (
        sys.executable,
        "-s",
        "-S",
        "-P",
        "-c",
        _RUN_CODE,
        _PACKAGE_PATH,
        str(theirs.fileno()),
        *how,
    )
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ},
        close_fds=True,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
    )


_strict: Final = _KeeperProcess(orders.ADOPT)
# A keeper that adopts ends every orphan below it. It must not adopt those that `group` spares.
_lenient: Final = _KeeperProcess()
_start_semaphores: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]()


_PROMISE_BY_KIND = {
    keeper.REAPER: "all child processes of servers are cleaned up",
    keeper.GROUP: "processes in a server's process group end with it and with the gateway; a "
    "process that leaves the group, such as a daemon, does not",
}
_DAEMON_ADVICE = "keep servers in the foreground, or run the gateway on Linux"


@dataclass(frozen=True, slots=True)
class ContainmentSupport:
    """The containment that the machine allows. `auto` uses `kind`; `promise` describes it."""

    kind: str
    promise: str
    # Both are empty where there is nothing to report.
    namespace_problem: str
    advice: str

    @property
    def ends_daemons(self) -> bool:
        return self.kind != keeper.GROUP


async def detect_containment() -> ContainmentSupport:
    """Try each kind of containment and return the result. It takes a few hundredths of a second."""
    line = request_guard(keeper.WISH_TRIAL, ())
    try:
        answer = await line.read_line()
    finally:
        line.close()
    if answer[:1] != ["best"]:
        raise Unavailable("the process that was to find out what this machine allows is gone")
    _, kind, where, number = answer
    why = "" if where == keeper.NOWHERE else namespace_problem(where, int(number))
    return ContainmentSupport(
        kind, _PROMISE_BY_KIND[kind], why, _DAEMON_ADVICE if kind == keeper.GROUP else ""
    )


def namespace_problem(where: str, number: int) -> str:
    """Return why `process_cleanup = "namespace"` is not available, and what to do about it."""
    if where == keeper.NO_LINUX:
        return "pid namespaces are Linux's own; run the gateway there"
    if where == keeper.NO_PROC:
        return (
            f"a pid namespace needs a /proc of its own, but `mount` failed "
            f"({os.strerror(number)}); allow `mount` in the container's or the service's profile"
        )
    if number == errno.EPERM:
        return (
            "a pid namespace needs the capability CAP_SYS_ADMIN; run the gateway as root, or give "
            "it to its container or its service"
        )
    if number == errno.ENOSPC:
        return "the limit of pid namespaces is reached; raise `user.max_pid_namespaces` with sysctl"
    return f"the kernel refuses pid namespaces ({os.strerror(number)})"
