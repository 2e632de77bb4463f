"""The gateway's side of its keeper: a server is asked for, and comes as a child to talk about.

A keeper serves the whole process. It is started with the first server and let go after the last,
and needs no other end: were everything here forgotten, it would still see its socket break.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Self
from weakref import WeakKeyDictionary

from comity.adapters.upstream import orders
from comity.wire.errors import Unavailable

_PACKAGES: Final = str(Path(__file__).parents[3])
_RUN: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from comity.adapters.upstream.keeper import main; main()"
)
# What an interpreter may need to find its libraries; no secret of the operator's.
_INHERITED: Final = ("LD_LIBRARY_PATH", "PYTHONHOME")
_AT_ONCE: Final = 32
_LONGEST_ANSWER: Final = 4096


class Line:
    """A socket to the guard of one server; closing it ends that server."""

    def __init__(self, ours: socket.socket, keeper: "_Keeper") -> None:
        self._socket = ours
        self._keeper = keeper
        self._heard = b""
        self._is_open = True

    async def send(self, data: bytes) -> None:
        with suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def answer(self) -> list[str]:
        """The words of the next line; none if the guard is gone."""
        while b"\n" not in self._heard and await self._hear():
            pass
        return self._next_line()

    def call_at_next_line(self, tell: Callable[[list[str]], None]) -> None:
        loop = asyncio.get_running_loop()

        def readable() -> None:
            with suppress(BlockingIOError):
                self._heard += self._receive() or b"\n"
            if b"\n" in self._heard:
                loop.remove_reader(self._socket)
                tell(self._next_line())

        if b"\n" in self._heard:
            loop.call_soon(tell, self._next_line())
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

    async def _hear(self) -> bool:
        loop = asyncio.get_running_loop()
        try:
            more = await loop.sock_recv(self._socket, _LONGEST_ANSWER)
        except ConnectionError:
            more = b""
        self._heard += more
        return bool(more)

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(_LONGEST_ANSWER)
        except ConnectionError:
            return b""

    def _next_line(self) -> list[str]:
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode(errors="replace").split()


class Pipes:
    """What will be a server's stdin, stdout and stderr, and their other ends, which are ours."""

    def __init__(self) -> None:
        self._ours: list[IO[bytes]] = []
        self.theirs: list[int] = []

    def __enter__(self) -> Self:
        try:
            for mode in ("wb", "rb", "rb"):
                reading, writing = os.pipe()
                ours, theirs = (writing, reading) if mode == "wb" else (reading, writing)
                self._ours.append(os.fdopen(ours, mode, buffering=0))
                self.theirs.append(theirs)
        except OSError as refused:
            self.__exit__()
            raise Unavailable(f"no pipe can be had: {refused.strerror}") from refused
        return self

    def let_go(self) -> None:
        """Close the server's ends, once they are on their way to it."""
        theirs, self.theirs = self.theirs, []
        for descriptor in theirs:
            os.close(descriptor)

    def give(self) -> Sequence[IO[bytes]]:
        """Our ends, which stay open from now on."""
        given, self._ours = self._ours, []
        return given

    def __exit__(self, *_: object) -> None:
        self.let_go()
        for pipe in self._ours:
            pipe.close()


class Child:
    """A server that was started, as its guard tells of it."""

    def __init__(self, line: Line, pid: int, kind: str, pipes: Sequence[IO[bytes]]) -> None:
        self.pid = pid
        self.kind = kind
        self.stdin, self.stdout, self.stderr = pipes
        self.returncode: int | None = None
        # Set where the guard went without a word: somebody killed it.
        self.is_unexplained = False
        self._line = line

    def call_at_death(self, died: Callable[[], None]) -> None:
        """`died` is called once, on the loop, when the server and its group are ended."""

        def tell(words: list[str]) -> None:
            self._line.close()
            self.is_unexplained = words[:1] != ["ended"]
            self.returncode = -signal.SIGKILL if self.is_unexplained else int(words[1])
            died()

        self._line.call_at_next_line(tell)

    def signal(self, sign: signal.Signals) -> None:
        """To the whole group, and only while its id is certain: the guard sees to both."""
        if self.returncode is None:
            self._line.signal(sign)


def ask(wish: bytes, descriptors: Sequence[int]) -> Line:
    """Hand a wish to the keeper, with what the server shall have as stdin, stdout and stderr."""
    keeper = _lenient if wish == orders.WISH_GROUP else _strict
    ours: socket.socket | None = None
    try:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            keeper.take(wish, [theirs.fileno(), *descriptors])
    except OSError as refused:
        if ours is not None:
            ours.close()
        raise Unavailable(f"the keeper cannot be reached: {refused.strerror}") from refused
    return Line(ours, keeper)


def turn() -> asyncio.Semaphore:
    """To be held while a server starts: each takes more descriptors then than later."""
    loop = asyncio.get_running_loop()
    if loop not in _turns:
        _turns[loop] = asyncio.Semaphore(_AT_ONCE)
    return _turns[loop]


class _Keeper:
    """The keeper's process, as long as anybody holds it. Several loops may share it."""

    def __init__(self, *how: str) -> None:
        self._how = how
        self._lock = threading.Lock()
        self._holders = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._wishes: socket.socket | None = None

    def take(self, wish: bytes, descriptors: list[int]) -> None:
        """Hand it over. The keeper is held from now on until it is released as often."""
        with self._lock:
            try:
                socket.send_fds(self._begun(), [wish], descriptors)
            except ConnectionError:
                # Somebody killed it. Its guards stay at their posts; a new one takes new wishes.
                self._let_go()
                socket.send_fds(self._begun(), [wish], descriptors)
            self._holders += 1

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._let_go()

    def _begun(self) -> socket.socket:
        if self._wishes is None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = _run_keeper(theirs, self._how)
            self._wishes = ours
        return self._wishes

    def _let_go(self) -> None:
        process, self._process = self._process, None
        wishes, self._wishes = self._wishes, None
        if wishes is not None:
            wishes.close()
        if process is not None:
            # It ends at once, or after its last guard; in a thread nobody has to wait for it.
            threading.Thread(target=process.wait, daemon=True).start()


def _run_keeper(theirs: socket.socket, how: Sequence[str]) -> subprocess.Popen[bytes]:
    command = (sys.executable, "-s", "-S", "-P", "-c", _RUN, _PACKAGES, str(theirs.fileno()), *how)
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={name: os.environ[name] for name in _INHERITED if name in os.environ},
        close_fds=True,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
    )


_strict: Final = _Keeper(orders.ADOPT)
# One that adopts ends every orphan below it. What `group` lets go must not come to it.
_lenient: Final = _Keeper()
_turns: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]()
