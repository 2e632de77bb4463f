"""A process of our own that may die of what it is asked: one line in, one line back.

It is started when first needed. What it is asked is written by strangers, so it has timers and a
limit of memory of its own, and the one who asks learns which line it died of, and how.
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

from comity.wire.errors import Unavailable

READY: Final = b"ready\n"
# What an interpreter may need to find its libraries; no secret of the operator's.
_INHERITED: Final = ("PYTHON", "LD_LIBRARY_PATH")
_TIMERS: Final = (-signal.SIGPROF, -signal.SIGALRM)


class Death(Enum):
    """What it died of."""

    TOO_SLOW = "too slow"
    TOO_MUCH = "too much"


def command_of(module: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", module)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a line may be, and how much of the processor, time and memory it may take."""

    line_bytes: int
    cpu_seconds: float
    wall_seconds: float
    memory_bytes: int = 1024 * 1024 * 1024


def answer_lines(answer: Callable[[bytes], bytes], bounds: Bounds) -> None:
    """The other end, in the process itself: one line in, one line back, until there are no more.

    Nobody handles its timers: no handler would run before a compiler returns, so they end it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (bounds.memory_bytes, bounds.memory_bytes))
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    answers.write(READY)
    answers.flush()
    while line := requests.readline(bounds.line_bytes):
        signal.setitimer(signal.ITIMER_PROF, bounds.cpu_seconds)
        signal.setitimer(signal.ITIMER_REAL, bounds.wall_seconds)
        said = answer(line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(said + b"\n")
        answers.flush()


class SideProcess:
    """The process, or none yet. For one thread at a time."""

    def __init__(self, command: Callable[[], Sequence[str]], name: str) -> None:
        self._command = command
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, lines: Sequence[bytes]) -> Iterator[bytes | Death]:
        """An answer for each line, up to and with the first that killed the process.

        All are written before any answer is read: 64 short answers fit into a pipe, so neither side
        can wait for the other for ever.
        """
        process = self._process or self._start()
        requests, answers = _pipes(process)
        with contextlib.suppress(OSError):  # it has died: the answers tell of which line
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

    def _autopsy(self, process: subprocess.Popen[bytes]) -> Death:
        self.end()
        if self._closed:
            raise Unavailable("the gateway is closing")
        return Death.TOO_SLOW if process.returncode in _TIMERS else Death.TOO_MUCH

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # At the end of its input it ends by itself; a kill would hide what it died of.
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
