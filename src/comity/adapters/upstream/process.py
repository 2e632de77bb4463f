"""A tool server as a process of this machine: lines in, lines out, and a certain end.

Rule 1: nothing of the server outlives its first process, nor `stop`, nor the gateway.
Rule 2: `on_exit` is called exactly once, after the last `on_line`.
Rule 3: whatever the server does or fails to do, every buffer has a bound and every wait an end.
"""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Self, cast

from comity.adapters.upstream.command import Command, begin
from comity.adapters.upstream.keeping import Child
from comity.adapters.upstream.stderr import StderrTail
from comity.rules.allowance import BURST, Allowance
from comity.wire.errors import EXHAUSTED, Unavailable
from comity.wire.lines import LINE_LIMIT, NEWLINE, RETURN, LineSplitter, Overlong

# What SIGKILL has not ended by then hangs in the operating system; waiting longer helps nobody.
_LAST_WAIT = timedelta(seconds=10)
_LONGEST_HINT = 300
PORTION_BYTES = 16 * 1024
"""As much of a server's output as is looked at in one turn of the loop."""


@dataclass(frozen=True, slots=True)
class Limits:
    line_bytes: int = LINE_LIMIT
    # Input that the server has not read yet.
    unread_bytes: int = 16 * 1024 * 1024
    # How long a server may live without its output, and its output without the server.
    linger: timedelta = timedelta(seconds=2)


_USUAL_LIMITS = Limits()


def _ignore(_: object) -> None:
    pass


class ServerProcess:
    """A started server; make one with `start`.

    Callbacks run on the loop, must not raise, and may come before `start` returns. `on_line` gets
    each line of stdout, be it JSON or not, and says whether anybody waited for it: a server that
    says much unasked is read more slowly. `on_overlong` is told in its place of a line that was
    dropped for its size. `on_exit` gets the reason, in words for people.
    """

    def __init__(
        self,
        command: Command,
        child: Child,
        on_line: Callable[[bytes], bool | None],
        on_exit: Callable[[str], None],
        on_overlong: Callable[[Overlong], None],
        limits: Limits,
    ) -> None:
        self._command = command
        self._child = child
        self._on_line, self._on_exit, self._on_overlong = on_line, on_exit, on_overlong
        self._limits = limits
        self._splitter = LineSplitter(limits.line_bytes)
        self._tail = StderrTail()
        self._stdin: asyncio.WriteTransport | None = None
        burst = max(BURST, 2 * limits.line_bytes)
        self._stdout = _Output(self._split, self._stdout_lost, Allowance(burst))
        self._stderr = _Output(self._tail.feed, self._end_if_done, Allowance())
        self._stopping = False
        # Set when the server is ended for a reason that its status does not tell.
        self._fault: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._exited = self._loop.create_future()
        self._ended = self._loop.create_future()

    @classmethod
    async def start(
        cls,
        command: Command,
        on_line: Callable[[bytes], bool | None],
        on_exit: Callable[[str], None],
        on_overlong: Callable[[Overlong], None] = _ignore,
        limits: Limits = _USUAL_LIMITS,
    ) -> Self:
        """Raises `Unavailable`, saying what to look at, where the program cannot be run."""
        child = await begin(command)
        self = cls(command, child, on_line, on_exit, on_overlong, limits)
        child.call_at_death(self._leader_died)
        connecting = self._loop.create_task(self._connect())
        try:
            # Shielded: half-connected pipes cannot be undone, so a cancelled start completes them.
            await asyncio.shield(connecting)
        except BaseException:
            self._on_line = self._on_exit = self._on_overlong = _ignore
            child.signal(signal.SIGKILL)
            raise
        return self

    async def _connect(self) -> None:
        # Stdin comes first, so that the very first line can be answered.
        child = self._child
        self._stdin, _ = await self._loop.connect_write_pipe(asyncio.BaseProtocol, child.stdin)
        await self._loop.connect_read_pipe(lambda: self._stderr, child.stderr)
        await self._loop.connect_read_pipe(lambda: self._stdout, child.stdout)
        if self._exited.done():
            self._close_stdin(at_once=True)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        return self._child.returncode

    @property
    def containment(self) -> str:
        """By which means it is held together: `namespace`, `reaper` or `group`."""
        return self._child.kind

    def stderr_tail(self) -> list[str]:
        """The last lines, harmless to print; values of configured variables are shown by name."""
        return self._tail.read(self._command.env)

    def send(self, frame: bytes) -> None:
        """Hand one message over; whether the server ever reads it is not known here."""
        stdin = self._stdin
        if stdin is None or stdin.is_closing():
            gone = self._exited.done()
            why = _in_words(self.returncode) if gone else "takes no more messages"
            raise Unavailable(f"{self._command.program!r} {why}")
        if stdin.get_write_buffer_size() + len(frame) > self._limits.unread_bytes:
            raise Unavailable(f"{self._command.program!r} does not read its messages", EXHAUSTED)
        if NEWLINE in frame or RETURN in frame:
            # In JSON these are spaces between words; here they would begin a forged message.
            frame = frame.replace(b"\n", b" ").replace(b"\r", b" ")
        stdin.write(frame + b"\n")

    def pause(self) -> None:
        """Read no more of stdout; lines that were read already may still be delivered."""
        if self._stdout.transport is not None and not self._stopping:
            self._stdout.pause(True)

    def resume(self) -> None:
        if self._stdout.is_paused:
            self._stdout.pause(False)
            if self._exited.done():
                self._linger_for_output(turns=2)

    async def stop(self, grace: timedelta) -> None:
        """Close stdin, then SIGTERM, then SIGKILL, with `grace` between them. (MCP, shutdown)

        What the server still says is delivered. Cancelled, it goes straight to SIGKILL.
        """
        self._stopping = True
        self.resume()
        self._close_stdin()
        try:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                if await done_within(self._exited, grace):
                    break
                self._child.signal(sign)
            if not await done_within(self._ended, _LAST_WAIT + self._limits.linger):
                self._end(f"could not be ended (process {self.pid})")
        finally:
            self._child.signal(signal.SIGKILL)

    def _split(self, data: bytes) -> None:
        allowance = self._stdout.allowance
        for item in self._splitter.feed(data):
            if isinstance(item, bytes):
                if self._on_line(item):
                    allowance.give_back(len(item) + 1)
                else:
                    allowance.spend_on_noise(0)
            else:
                self._on_overlong(item)

    def _stdout_lost(self) -> None:
        # The usual beginning of an end. A server that lives on without output cannot answer; one
        # that is being stopped has its grace for that.
        if not self._exited.done() and not self._stopping:
            self._close_stdin()
            linger = self._limits.linger.total_seconds()
            self._timer = self._loop.call_later(linger, self._end_the_mute)
        self._end_if_done()

    def _end_the_mute(self) -> None:
        self._fault = "closed its output, and was ended"
        self._child.signal(signal.SIGKILL)

    def _leader_died(self) -> None:
        if self._child.is_unexplained:
            self._fault = "was ended, because the process that guarded it was killed"
        self._exited.set_result(None)
        self._stdout.hurry()
        self._stderr.hurry()
        self._close_stdin(at_once=True)
        self._stop_timer()
        self._linger_for_output(turns=2)
        self._end_if_done()

    def _linger_for_output(self, turns: int) -> None:
        """A grandchild in a session of its own may hold the pipes open for ever.

        It takes two turns because uvloop, when late, runs timers before it reads: what the server
        said last is certainly read between them.
        """
        if self._stdout.is_paused:
            return
        if turns:
            wait = self._limits.linger.total_seconds() / 2
            self._timer = self._loop.call_later(wait, self._linger_for_output, turns - 1)
        else:
            self._stdout.close()
            self._stderr.close()

    def _end_if_done(self) -> None:
        if self._exited.done() and self._stdout.is_lost and self._stderr.is_lost:
            # It may have left by itself just before it was to be ended.
            was_killed = self._child.returncode == -signal.SIGKILL
            self._end((was_killed and self._fault) or _in_words(self._child.returncode))

    def _end(self, reason: str) -> None:
        if self._ended.done():
            return
        self._stop_timer()
        self._ended.set_result(None)
        said = self.stderr_tail()
        self._on_exit(f"{reason}; it last said: {said[-1][:_LONGEST_HINT]}" if said else reason)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _close_stdin(self, *, at_once: bool = False) -> None:
        """What is still unread is written first, unless nobody is left to read it."""
        stdin = self._stdin
        if stdin is None:
            return
        if at_once and (stdin.get_write_buffer_size() or not stdin.is_closing()):
            stdin.abort()
        else:
            stdin.close()


class _Output(asyncio.Protocol):
    """The reading end of one of the server's outputs."""

    def __init__(
        self, take: Callable[[bytes], None], lost: Callable[[], None], allowance: Allowance
    ) -> None:
        self.transport: asyncio.ReadTransport | None = None
        self.is_lost = False
        self.is_paused = False
        self.allowance = allowance
        self._hurries = False
        self._rests = False
        self._later = b""  # read already, and waiting for a turn of its own
        self._take = take
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        self.allowance.spend(len(data))
        self._give(data)

    def _give(self, data: bytes) -> None:
        if len(data) > PORTION_BYTES and not self._hurries and self.transport is not None:
            # It may be thousands of small messages; between some of them others go on.
            self._later, data = data[PORTION_BYTES:], data[:PORTION_BYTES]
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)
        self._take(data)
        if self.allowance.is_spent and not self._hurries and not self._later:
            self._rest()

    def _go_on(self) -> None:
        """What waited for its turn; then more is read, unless somebody has it wait still."""
        if self.is_paused or not self._later:
            return
        data, self._later = self._later, b""
        self._give(data)
        if not (self._later or self._rests or self.is_paused):
            self.pause(False)

    def pause(self, paused: bool) -> None:
        self.is_paused = paused
        if self.transport is None or self.transport.is_closing():
            return
        if paused:
            self.transport.pause_reading()
        elif self._later:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self.transport.resume_reading()

    def _rest(self) -> None:
        """A flood waits in its own pipe, and stops whoever pours it; all others go on."""
        loop = asyncio.get_running_loop()
        seconds = self.allowance.rest(loop.time())
        if seconds and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            self._rests = True
            loop.call_later(seconds, self._wake)

    def hurry(self) -> None:
        """Nobody pours any more: read what is left without a rest."""
        self._hurries = True
        self._wake()

    def _wake(self) -> None:
        self._rests = False
        if not self.is_paused:
            self.pause(False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._later:
            self._take(self._later)
        self.is_lost = True
        self._lost()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


async def done_within(future: asyncio.Future[None], wait: timedelta) -> bool:
    await asyncio.wait([future], timeout=wait.total_seconds())
    return future.done()


def _in_words(status: int | None) -> str:
    if status is None or status >= 0:
        return f"exited with status {status}"
    try:
        return f"ended by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"ended by signal {-status}"
