"""A worker process that answers each input line with one output line.

The lines come from untrusted servers and clients, so the process has its own timers and memory
limit. When it dies, the caller learns which line caused that, and how.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import IO, Final, cast

from comity.errors import Unavailable

READY: Final = b"ready\n"
# Variables that an interpreter may need to find its libraries. They hold no secrets.
_INHERITED: Final = ("PYTHON", "LD_LIBRARY_PATH")
_TIMERS: Final = (-signal.SIGPROF, -signal.SIGALRM)


class WorkerExitCause(Enum):
    """Why the worker process ended."""

    TOO_SLOW = "too slow"
    TOO_MUCH = "too much"


def command_of(module: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", module)


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """The limits of one line: its length, and its processor time, total time and memory."""

    line_bytes: int
    cpu_seconds: float
    wall_seconds: float
    memory_bytes: int = 1024 * 1024 * 1024


def answer_lines(answer: Callable[[bytes], bytes], limits: WorkerLimits) -> None:
    """Answer lines in the worker process until the input ends.

    The timers have no signal handler. A handler could not run before a compiler returns, so the
    signal ends the process.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    answers.write(READY)
    answers.flush()
    while line := requests.readline(limits.line_bytes):
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)
        signal.setitimer(signal.ITIMER_REAL, limits.wall_seconds)
        said = answer(line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(said + b"\n")
        answers.flush()


class SideProcess:
    """One worker process, started when needed. Only one thread may use it at a time."""

    def __init__(self, command: Callable[[], Sequence[str]], name: str) -> None:
        self._command = command
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, lines: Sequence[bytes]) -> Iterator[bytes | WorkerExitCause]:
        """Yield an answer for each line, up to and including the first that killed the process.

        All lines are written before any answer is read. 64 short answers fit into a pipe, so
        neither side can block the other forever.
        """
        process = self._process or self._start()
        requests, answers = _pipes(process)
        with contextlib.suppress(OSError):  # it has died: the answers show by which line
            requests.write(b"".join(lines))
            requests.flush()
        for _ in lines:
            answer = answers.readline()
            if not answer:
                yield self._autopsy(process)
                return
            yield answer

    def _start(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise Unavailable("the gateway is closing")
        process = subprocess.Popen(
            self._command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name.startswith(_INHERITED)},
            start_new_session=True,
        )
        self._process = process
        if _pipes(process)[1].readline() != READY:
            self.end()
            raise Unavailable(f"the {self._name} does not start; is the installation whole?")
        return process

    def _autopsy(self, process: subprocess.Popen[bytes]) -> WorkerExitCause:
        self.end()
        if self._closed:
            raise Unavailable("the gateway is closing")
        return (
            WorkerExitCause.TOO_SLOW if process.returncode in _TIMERS else WorkerExitCause.TOO_MUCH
        )

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # The process exits at the end of its input. A kill would hide the cause of its death.
            for pipe in _pipes(process):
                with contextlib.suppress(OSError):
                    pipe.close()
            process.wait()

    def close(self) -> None:
        self._closed = True
        if self._process is not None:
            self._process.kill()


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    return cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
