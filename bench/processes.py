"""Starts the processes of a bench, reads what CPU each has used, and leaves none behind."""

import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

ROOT = Path(__file__).resolve().parent.parent
_LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
_STARTED_WITHIN_SECONDS = 120.0
_ENDED_WITHIN_SECONDS = 8.0


class DidNotStart(Exception):
    """A process ended, or said nothing, before it listened."""


class Running:
    """One child in a process group of its own, which listens on a loopback port."""

    def __init__(
        self,
        command: list[str],
        environment: Mapping[str, str] | None = None,
        listening: re.Pattern[str] = _LISTENING,
    ) -> None:
        self._heard: deque[str] = deque(maxlen=20)
        self._told = threading.Event()
        self._port: int | None = None
        self._listening = listening
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            # A bench that measures a store names one; no other writes to the disk.
            env={"DATABASE_URL": "memory", **os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self._process.stderr is not None
        self._listener = threading.Thread(
            target=self._listen, args=(self._process.stderr,), daemon=True
        )
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def port(self) -> int:
        """Waits until the process has said where it listens."""
        self._told.wait(_STARTED_WITHIN_SECONDS)
        if self._port is None:
            last = self._heard[-1] if self._heard else "it said nothing"
            raise DidNotStart(last.replace(str(ROOT), "."))
        return self._port

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float:
        """User and system time of this process alone, its threads included, its children not."""
        return cpu_seconds_of(self._process.pid)

    def stop(self) -> None:
        """Ends the whole group: politely, and then not."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, how)
            except ProcessLookupError:
                break
            try:
                self._process.wait(_ENDED_WITHIN_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        self._process.wait(_ENDED_WITHIN_SECONDS)
        self._listener.join(_ENDED_WITHIN_SECONDS)

    def _listen(self, stderr: IO[str]) -> None:
        with stderr:
            for line in stderr:
                self._heard.append(line.strip())
                if self._port is None and (found := self._listening.search(line)):
                    self._port = int(found[1])
                    self._told.set()
        self._told.set()


def cpu_seconds_of(pid: int) -> float:
    # The CPU clock that Linux keeps for every process (clock_getcpuclockid(3)), which counts
    # nanoseconds where /proc/PID/stat counts ticks of 10 ms.
    return time.clock_gettime((~pid << 3) | 2)
