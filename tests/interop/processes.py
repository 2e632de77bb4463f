"""Programs that a test runs beside itself: started, awaited within bounds, and always ended."""

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from comity.cli.api_client import find_gateway_by_url
from tests.interop.peers import ROOT
from tests.support import fork_server

START_SECONDS = 120.0
_STOP_SECONDS = 30.0
# A peer may wait for ever for the end of a stream; how it ends is nothing that a test is about.
_PEER_STOP_SECONDS = 1.0
_KEPT_LINES = 400


class Program:
    """A subprocess in its own process group, with the last lines it said on stderr."""

    def __init__(
        self,
        command: list[str],
        env: Mapping[str, str] | None = None,
        *,
        may_fork: bool = True,
        kept_lines: int = _KEPT_LINES,
    ) -> None:
        is_comity = any(Path(word).name in ("comity", "comity.cli") for word in command)
        self._grace = _STOP_SECONDS if is_comity else _PEER_STOP_SECONDS
        self._process, self._stderr = _start(
            command, {**os.environ, **(env or {})}, may_fork=may_fork
        )
        self._lines: deque[str] = deque(maxlen=kept_lines)
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        with self._said:
            return "\n".join(self._lines)

    def wait_for_line(self, pattern: str, seconds: float = START_SECONDS) -> re.Match[str]:
        """The first line on stderr that `pattern` finds, among those already said or to come."""
        deadline = time.monotonic() + seconds
        with self._said:
            while True:
                for line in self._lines:
                    if found := re.search(pattern, line):
                        return found
                if self._process.poll() is not None:
                    raise RuntimeError(f"ended with {self._process.returncode}:\n{self._tail()}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"never said {pattern!r}:\n{self._tail()}")
                self._said.wait(min(0.5, left))

    def wait_until(self, is_so: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            if self._process.poll() is not None:
                raise RuntimeError(f"ended with {self._process.returncode}:\n{self.said}")
            if time.monotonic() >= deadline:
                raise TimeoutError(f"was not ready in {seconds:g} s:\n{self.said}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Ask the whole group to end, then make it."""
        for ending, seconds in ((signal.SIGTERM, self._grace), (signal.SIGKILL, _STOP_SECONDS)):
            try:
                os.killpg(self._process.pid, ending)
            except ProcessLookupError:
                break
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
        self._process.wait(_STOP_SECONDS)
        self._reader.join(_STOP_SECONDS)
        self._stderr.close()

    def _tail(self) -> str:
        return "\n".join(self._lines)

    def _read(self) -> None:
        for line in self._stderr:
            with self._said:
                self._lines.append(line.rstrip("\n"))
                self._said.notify_all()
        with self._said:
            self._said.notify_all()


def _start(
    command: list[str], env: Mapping[str, str], *, may_fork: bool
) -> tuple["subprocess.Popen[str] | fork_server.ForkedProcess", IO[str]]:
    """A program with its stderr; a `comity` is forked from one that is loaded already."""
    arguments = fork_server.arguments_of(command, env) if may_fork else None
    if arguments is None:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert process.stderr is not None
        return process, process.stderr
    ours, theirs = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR)
    streams = (nothing, nothing, theirs)
    forked = fork_server.fork(arguments, cwd=str(ROOT), env=env, streams=streams)
    os.close(nothing)
    os.close(theirs)
    return forked, os.fdopen(ours, encoding="utf-8", errors="replace")


@contextmanager
def running(
    command: list[str],
    env: Mapping[str, str] | None = None,
    *,
    may_fork: bool = True,
    kept_lines: int = _KEPT_LINES,
) -> Generator[Program]:
    """A program until the block ends; without `may_fork` it is a child of this process."""
    program = Program(command, env, may_fork=may_fork, kept_lines=kept_lines)
    try:
        yield program
    finally:
        program.stop()
        # Where a test failed, pytest shows this beside it.
        print(program.said, file=sys.stderr)


@contextmanager
def http_server(
    command: Callable[[int], list[str]], env: Mapping[str, str] | None = None
) -> Generator[str]:
    """Run a server that takes a port, and yield its origin once it accepts connections."""
    port = free_port()
    with running(command(port), env) as program:
        program.wait_until(lambda: accepts(port))
        yield f"http://127.0.0.1:{port}"


@contextmanager
def comity(
    config: Path, env: Mapping[str, str] | None = None, path: str = "/ready"
) -> Generator[str]:
    """Run `comity serve` on a free port, and yield its origin once `path` answers with 200."""
    command = [
        str(Path(sys.executable).with_name("comity")),
        "serve",
        "-c",
        str(config),
        "--port",
        "0",
    ]
    with running(command, env) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}{path}"))
        yield origin


def operator_headers(origin: str) -> dict[str, str]:
    """What makes a request to a gateway in local mode its operator's."""
    token = operator_token(origin)
    return {"Authorization": f"Bearer {token}"} if token else {}


def operator_token(origin: str) -> str:
    """The token of a gateway in local mode; empty where it has none."""
    record = find_gateway_by_url(origin)
    return "" if record is None else record.token


def on_pipes(config: Path) -> list[str]:
    """The command by which a client joins the gateway of a configuration.

    Most clients hand down only a few variables, and not where this run keeps its records.
    """
    kept = (
        *("COMITY_STATE_DIR", "COMITY_IDLE_SECONDS", "COMITY_POLICY_SANDBOX"),
        "DATABASE_URL",
    )
    variables = [f"{name}={os.environ[name]}" for name in kept if name in os.environ]
    program = str(Path(sys.executable).with_name("comity"))
    return ["env", *variables, program, "serve", "-c", str(config), "--stdio"]


def free_port() -> int:
    """A free port that the system gives to no outgoing connection in the meantime."""
    while True:
        port = 15_000 + secrets.randbelow(17_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:  # noqa: S310 - loopback only
            return reply.status == 200
    except (OSError, urllib.error.HTTPError):
        return False
