"""Starts small servers for the tests of processes, under both loops, and notes what they do."""

import asyncio
import gc
import inspect
import io
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop

from comity.mcp.framing import OverlongLine
from comity.servers.process.process import Containment, ProcessLimits, ServerCommand, ServerProcess

LONG = timedelta(minutes=10)
SHORT = timedelta(milliseconds=20)
LIMITS = ProcessLimits()
_started: list[ServerProcess] = []


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run the test under asyncio's own loop and under uvloop, each within a minute."""

    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], **fixtures: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(50):
                before = _open_pipes()
                _started.clear()
                try:
                    await test(**fixtures)
                except BaseException:
                    # uvloop closes only after its pipes, which a server that runs on holds open.
                    for server in _started:
                        await server.stop(SHORT)
                    raise
                # A loop that ends before its pipes are closed leaves their numbers to be closed
                # a second time, when somebody else has them.
                while _open_pipes() - before:
                    await asyncio.sleep(0.01)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(bounded())

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    taken = inspect.signature(test).parameters.values()
    new_loop = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*taken, new_loop])
    loops = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return pytest.mark.parametrize("new_loop", loops.values(), ids=loops.keys())(run)


def _open_pipes() -> set[int]:
    """Every pipe that is open as a file, by the identity of the file."""
    files = [each for each in gc.get_objects() if type(each) is io.FileIO]
    return {id(each) for each in files if not each.closed}


class Witness:
    """Notes what a server says and how it ends, in order."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.overlong: list[OverlongLine] = []
        self.reasons: list[str] = []
        self.lines_at_the_end = -1
        self._unread: asyncio.Queue[bytes] = asyncio.Queue()
        self._ended = asyncio.Event()

    def on_line(self, line: bytes) -> None:
        self.lines.append(line)
        self._unread.put_nowait(line)

    def on_exit(self, reason: str) -> None:
        self.reasons.append(reason)
        self.lines_at_the_end = len(self.lines)
        self._ended.set()

    async def next_line(self) -> bytes:
        return await self._unread.get()

    async def reason(self) -> str:
        """The one reason, once everything that the loop still had to do is done."""
        await self._ended.wait()
        await some_turns()
        assert len(self.lines) == self.lines_at_the_end, "a line came after the end"
        (reason,) = self.reasons
        return reason

    async def start(
        self,
        code: str,
        env: Mapping[str, str] | None = None,
        limits: ProcessLimits = LIMITS,
        containment: Containment = "auto",
    ) -> ServerProcess:
        argv = (sys.executable, "-S", "-c", code)
        command = ServerCommand(argv, env or {}, containment=containment)
        server = await ServerProcess.start(
            command, self.on_line, self.on_exit, self.overlong.append, limits
        )
        _started.append(server)
        return server


async def some_turns() -> None:
    """Let the loop do whatever it has ready."""
    for _ in range(10):
        await asyncio.sleep(0)


class Life:
    """Another process, held by a descriptor, so that its id cannot come to mean a stranger."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    async def end(self) -> None:
        await readable(self._descriptor)
        os.close(self._descriptor)

    async def cut(self) -> None:
        signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        await self.end()


async def readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    await ready.wait()
    loop.remove_reader(descriptor)


class Signpost:
    """A way for a server to tell the test something beside its stdin, stdout and stderr."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "signpost"
        os.mkfifo(self.path)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)

    async def reached(self) -> bytes:
        await readable(self._descriptor)
        said = os.read(self._descriptor, 4096)
        os.close(self._descriptor)
        return said


class Leash:
    """What every process of a server holds, wherever it went: slack once all of them are dead."""

    def __init__(self, folder: Path, name: str = "leash") -> None:
        self.path = folder / name
        os.mkfifo(self.path)
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def hold(self, then: str) -> str:
        """Code that takes hold, for itself and all that it forks."""
        return f"import os, signal\nos.open({str(self.path)!r}, os.O_WRONLY)\n{then}"

    def is_taut(self) -> bool:
        """Whether somebody who took hold is still there."""
        try:
            return os.read(self._descriptor, 4096) != b""
        except BlockingIOError:
            return True

    async def slack(self) -> None:
        """Return when nobody holds on, be it that nobody has yet."""
        while self.is_taut():
            await asyncio.sleep(0.01)
        os.close(self._descriptor)
