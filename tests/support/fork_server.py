"""Starts `comity` processes by forking one that has already imported it.

A test run starts thousands of gateways and commands, and each would spend about a second of
processor time on imports. Every process is still one of its own, with its own environment, folder,
streams and process group. Only what a fresh interpreter decides at its start is not exercised, so
the tests about that start `comity` themselves.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

ROOT = Path(__file__).parents[2]
COMITY = str(Path(sys.executable).with_name("comity"))
_AS_MODULE = (sys.executable, "-m", "comity.cli")
# A fresh interpreter reads these at its start; a forked one cannot.
_READ_AT_START = ("PYTHON", "LC_", "LANG", "TZ", "LD_")
_HEADER = struct.Struct("!I")
_STATUS = struct.Struct("!i")


class ForkedProcess:
    """A forked `comity`, with the part of `subprocess.Popen` that the tests use."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is not None:
            return self.returncode
        if not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(COMITY, timeout or 0)
        said = os.read(self._status, _STATUS.size)
        os.close(self._status)
        # Its minder says nothing only if somebody killed that too.
        ended = self.returncode = _STATUS.unpack(said)[0] if said else -signal.SIGKILL
        return ended

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def arguments_of(command: Sequence[str], env: Mapping[str, str]) -> list[str] | None:
    """The arguments of a `comity` that can be forked; None where a process has to be started."""
    mine = {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_START)}
    if mine != {name: value for name, value in env.items() if name.startswith(_READ_AT_START)}:
        return None
    if command[0] == COMITY:
        return list(command[1:])
    is_module = tuple(command[: len(_AS_MODULE)]) == _AS_MODULE
    return list(command[len(_AS_MODULE) :]) if is_module else None


def fork(
    arguments: list[str], *, cwd: str, env: Mapping[str, str], streams: Sequence[int]
) -> ForkedProcess:
    """Run `comity` with these arguments; `streams` are its stdin, stdout and stderr."""
    ours, theirs = os.pipe()
    order = json.dumps({"arguments": arguments, "cwd": cwd, "env": dict(env)}).encode()
    server, lock = _server()
    with lock:
        socket.send_fds(server, [_HEADER.pack(len(order))], [*streams, theirs])
        server.sendall(order)
    os.close(theirs)
    return ForkedProcess(_STATUS.unpack(os.read(ours, _STATUS.size))[0], ours)


def run(
    arguments: list[str], *, cwd: str, env: Mapping[str, str], said: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with text captured."""
    ends = [os.pipe() for _ in range(3)]
    streams = [ends[0][0], ends[1][1], ends[2][1]]
    process = fork(arguments, cwd=cwd, env=env, streams=streams)
    for each in streams:
        os.close(each)
    out: list[bytes] = []
    err: list[bytes] = []
    work = [
        threading.Thread(target=_write, args=(ends[0][1], said.encode()), daemon=True),
        threading.Thread(target=_read, args=(ends[1][0], out), daemon=True),
        threading.Thread(target=_read, args=(ends[2][0], err), daemon=True),
    ]
    for each in work:
        each.start()
    deadline = time.monotonic() + timeout
    try:
        status = process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    for each in work:
        each.join(max(0.0, deadline - time.monotonic()))
    texts = [b"".join(each).decode() for each in (out, err)]
    return subprocess.CompletedProcess([COMITY, *arguments], status, *texts)


def _write(end: int, said: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(end, "wb") as stream:
        stream.write(said)


def _read(end: int, into: list[bytes]) -> None:
    with os.fdopen(end, "rb") as stream:
        into.append(stream.read())


@cache
def _server() -> tuple[socket.socket, threading.Lock]:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
        cwd=ROOT,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    # It leaves a server behind that is no child of the tests: some count their children. That ends
    # when this process does.
    process.wait(30)
    atexit.register(ours.close)
    return ours, threading.Lock()


@cache
def shell_folder() -> str:
    """A folder for the PATH of a shell, with a `comity` that is forked as well."""
    folder = Path(tempfile.mkdtemp(prefix="comity-forked-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "orders"))
    listening.listen(64)
    threading.Thread(target=_take_orders, args=(listening,), daemon=True).start()
    program = folder / "bin" / "comity"
    program.parent.mkdir()
    program.write_text(_SHELL_PROGRAM.format(python=sys.executable, orders=folder / "orders"))
    program.chmod(0o755)
    return str(program.parent)


_SHELL_PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys
try:
    line = socket.socket(socket.AF_UNIX)
    line.connect("{orders}")
except OSError:
    # In a sandbox there is nobody to fork.
    os.execv("{python}", ["{python}", "-m", "comity.cli", *sys.argv[1:]])
with line:
    order = {{"arguments": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
    socket.send_fds(line, [b"."], [0, 1, 2])
    line.sendall(json.dumps(order).encode())
    line.shutdown(socket.SHUT_WR)
    said = line.makefile()
    pid = int(said.readline())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    code = int(said.readline())
sys.exit(code if code >= 0 else 128 - code)
"""


def _take_orders(listening: socket.socket) -> None:
    while True:
        line, _ = listening.accept()
        threading.Thread(target=_carry_out, args=(line,), daemon=True).start()


def _carry_out(line: socket.socket) -> None:
    """Fork for one command of a shell, and tell it the pid and how it ended."""
    with line:
        _, streams, _, _ = socket.recv_fds(line, 1, 3)
        order = json.loads(line.makefile("rb").read())
        process = fork(order["arguments"], cwd=order["cwd"], env=order["env"], streams=streams)
        for each in streams:
            os.close(each)
        # The shell may have been killed meanwhile.
        with contextlib.suppress(BrokenPipeError):
            line.sendall(b"%d\n" % process.pid)
            line.sendall(b"%d\n" % process.wait())


# The server's own side.


def serve(number: int) -> None:
    """Fork for each order, until nobody can give one any more."""
    if os.fork():
        os._exit(0)
    _import_everything()
    # What is imported by now is never collected, so children do not copy its pages.
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=number) as orders:
        while True:
            head, fds, _, _ = socket.recv_fds(orders, _HEADER.size, 4)
            if not head:
                return
            (size,) = _HEADER.unpack(head)
            order = json.loads(_exactly(orders, size))
            if os.fork() == 0:
                orders.close()
                _mind(order, fds)
            for each in fds:
                os.close(each)


def _import_everything() -> None:
    # The tests themselves need nothing of it.
    import comity

    for each in pkgutil.walk_packages(comity.__path__, "comity."):
        if "__main__" in each.name or ".versions." in each.name or each.name.endswith(".env"):
            continue
        # NumPy and ONNX Runtime start threads of their own, which a forked process lacks.
        if each.name.endswith((".numpy_scorer", ".minilm")):
            continue
        # An extra may be missing; whoever needs it says so.
        with contextlib.suppress(ImportError):
            importlib.import_module(each.name)
    assert threading.active_count() == 1, threading.enumerate()


def _exactly(stream: socket.socket, size: int) -> bytes:
    read = bytearray()
    while len(read) < size:
        part = stream.recv(size - len(read))
        if not part:
            raise EOFError("the tests ended amid an order")
        read += part
    return bytes(read)


def _mind(order: Any, fds: list[int]) -> NoReturn:
    """Fork the process itself, and tell its pid and how it ends."""
    *streams, status = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A signal to the group of the tests is not for the one that tells how another ended.
    os.setsid()
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _become(order, streams)
    for each in streams:
        os.close(each)
    os.write(status, _STATUS.pack(pid))
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(status, _STATUS.pack(ended))
    os._exit(0)


def _become(order: Any, streams: list[int]) -> NoReturn:
    """Be the program that was wanted."""
    # The tests themselves need nothing of it.
    from comity.cli.main import main

    os.setsid()
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.argv = [COMITY, *order["arguments"]]
    sys.stdin, sys.stdout, sys.stderr = _stream(0), _stream(1), _stream(2)
    random.seed()
    code = 1
    try:
        code = main(order["arguments"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        # As an interpreter ends: threads first, then what wanted to be told.
        # There is no public way to either.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _stream(number: int) -> IO[str]:
    if number == 0:
        return os.fdopen(0, encoding="utf-8", closefd=False)
    errors = "backslashreplace" if number == 2 else "strict"
    raw = os.fdopen(number, "wb", closefd=False)
    return io.TextIOWrapper(raw, "utf-8", errors, line_buffering=number == 2, write_through=False)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
