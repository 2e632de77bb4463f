"""One server process: its command, its pipes and its memory."""

import asyncio
import errno
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal, Self, cast

from comity.errors import EXHAUSTED, Unavailable
from comity.mcp.framing import LINE_LIMIT, NEWLINE, RETURN, LineSplitter, OverlongLine
from comity.servers.process import keeper
from comity.servers.process.keeper_client import (
    ChildProcess,
    GuardConnection,
    StdioPipes,
    namespace_problem,
    request_guard,
    start_semaphore,
)
from comity.servers.process.stderr import StderrTail, find_fault
from comity.toolkit.resilience import BURST, ByteBudget

type Containment = Literal["auto", "group", "namespace"]

INHERITED_VARIABLES = frozenset(
    {
        *("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"),
        # The proxy variables: without these `npx` and `uvx` fail behind a proxy.
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"),
    }
)

_REQUEST_BY_CONTAINMENT: Mapping[Containment, bytes] = {
    "auto": keeper.WISH_AUTO,
    "group": keeper.WISH_GROUP,
    "namespace": keeper.WISH_NAMESPACE,
}
_ADVICE_BY_ERRNO = {
    errno.ENOENT: "there is no such program; check that it is installed and how it is spelt, "
    "or give its full path",
    errno.EACCES: "it may not be executed; check its permissions",
    errno.ENOEXEC: "it is no program for this machine; does a script lack its first line (#!)?",
}


@dataclass(frozen=True, slots=True, repr=False)
class ServerCommand:
    """The command of a server. `env` holds the configured variables only.

    The containment `auto` ends every process that the server started. `group` ends only those in
    its process group. With `namespace` the kernel ends them, and the server sees another process
    id. `is_confined` says that `argv` begins with a sandbox, whose processes join the control
    groups of `member_files`.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None = None
    containment: Containment = "auto"
    is_confined: bool = False
    member_files: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        return self.argv[0] if self.argv else ""

    def __repr__(self) -> str:
        # Arguments and values may be secrets. The program and the names are not.
        return f"Command({self.program!r}, {len(self.argv)} words, env {sorted(self.env)})"


def environment_for(
    configured: Mapping[str, str], own_environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables inherited from `own_environment`, overridden by the configured ones."""
    inherited = {
        name: value
        for name, value in own_environment.items()
        # A value that starts like this is an exported shell function: code, not text.
        if (name in INHERITED_VARIABLES or name.startswith("LC_")) and not value.startswith("()")
    }
    return inherited | dict(configured)


async def start_process(command: ServerCommand) -> ChildProcess:
    """Start a server process. Raise Unavailable with advice for the operator if that fails.

    The process is a child of its guard, not of the gateway. The guard ends it if the gateway is
    killed, and passes on no descriptor. (Decision 0009)
    """
    environment = environment_for(command.env, os.environ)
    try:
        order = _pack_order(command, environment)
    except ValueError:
        reason = "its command line or environment is empty or holds a NUL character"
    else:
        async with start_semaphore():
            answer = await _start_child(command, order)
        if isinstance(answer, ChildProcess):
            return answer
        reason = _describe_failure(command, environment.get("PATH"), answer)
    # Outside of the handler: the text of the cause may quote an argument.
    raise Unavailable(f"cannot start {command.program!r}: {reason}")


async def _start_child(command: ServerCommand, order: bytes) -> ChildProcess | list[str]:
    """Return the child, or the words in which its guard reported a failure."""
    with StdioPipes() as pipes:
        line = request_guard(_REQUEST_BY_CONTAINMENT[command.containment], pipes.server_ends)
        pipes.close_server_ends()
        try:
            await line.send(order)
        except BaseException:
            line.close()
            raise
        answer = await _read_guard_answer(line)
        if answer[:1] == ["started"]:
            return ChildProcess(line, int(answer[1]), answer[2], pipes.take_gateway_ends())
        line.close()
        return answer


async def _read_guard_answer(line: GuardConnection) -> list[str]:
    try:
        return await line.read_line()
    except BaseException:
        # The caller was cancelled and waits no longer, so the process gets no grace period.
        line.signal(signal.SIGKILL)
        line.close()
        raise


def _pack_order(command: ServerCommand, environment: Mapping[str, str]) -> bytes:
    argv = [os.fsencode(word) for word in command.argv]
    env = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    try:
        here = Path.cwd()
    except FileNotFoundError:
        here = Path("/")
    order = keeper.ProcessOrder(
        argv,
        env,
        os.fsencode(here / (command.cwd or "")),
        ignores_signals=command.is_confined,
        member_files=[os.fsencode(file) for file in command.member_files],
    )
    return keeper.pack_order(order)


def _describe_failure(command: ServerCommand, path: str | None, answer: list[str]) -> str:
    if answer[:1] != ["failed"]:
        return "the process that was to start it is gone"
    where, number = answer[1], int(answer[2])
    if where in (keeper.NO_LINUX, keeper.NO_NAMESPACE, keeper.NO_PROC):
        return f"{namespace_problem(where, number)}; or set its `process_cleanup` to `auto`"
    if where == keeper.IN_FOLDER and command.cwd is not None:
        return f"its working directory {command.cwd!r} cannot be entered; check `cwd`"
    if number == errno.ENOENT and shutil.which(command.program, path=path):
        return "the interpreter that its first line names does not exist"
    return _ADVICE_BY_ERRNO.get(number) or (os.strerror(number) if number else "the system refused")


MAX_COUNTED_PROCESSES: Final = 256
"""How many processes of one server are counted."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")


def memory_of(pid: int) -> int:
    """Return the bytes that a process holds: 0 if it has ended, and always 0 outside Linux."""
    held, waiting, seen = 0, [pid], 0
    while waiting and seen < MAX_COUNTED_PROCESSES:
        each = waiting.pop()
        seen += 1
        with suppress(OSError, ValueError, IndexError):
            held += int(Path(f"/proc/{each}/statm").read_text("ascii").split()[1]) * _PAGE_BYTES
            waiting += _children(each)
    return held


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += [int(child) for child in (thread / "children").read_text("ascii").split()]
    return found


# A process that survives SIGKILL this long hangs in the operating system. Waiting does not help.
_KILL_TIMEOUT = timedelta(seconds=10)
_MAX_HINT_LENGTH = 300
LAST_OUTPUT: Final = "; its last output: "
"""Introduces the words of the server in the reason of an end."""
READ_CHUNK_BYTES = 16 * 1024
"""The bytes of a server's output that are processed in one turn of the event loop."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits for the output, the input and the end of a server process."""

    line_bytes: int = LINE_LIMIT
    # The limit for input that the server has not read yet.
    unread_bytes: int = 16 * 1024 * 1024
    # How long a server may live without its output, and its output without the server.
    linger: timedelta = timedelta(seconds=2)


_DEFAULT_LIMITS = ProcessLimits()


def _ignore(_: object) -> None:
    pass


class ServerProcess:
    """A running server process. `start` creates one.

    Callbacks run on the event loop, must not raise, and may run before `start` returns.
    `on_line` gets each line of stdout, JSON or not, and returns whether the line was awaited. A
    server that sends much unsolicited output is read more slowly. `on_overlong` is called instead
    for a line that was dropped for its size. `on_exit` gets the reason as readable text.
    """

    def __init__(
        self,
        command: ServerCommand,
        child: ChildProcess,
        on_line: Callable[[bytes], bool | None],
        on_exit: Callable[[str], None],
        on_overlong: Callable[[OverlongLine], None],
        limits: ProcessLimits,
    ) -> None:
        self._command = command
        self._child = child
        self._on_line, self._on_exit, self._on_overlong = on_line, on_exit, on_overlong
        self._limits = limits
        self._splitter = LineSplitter(limits.line_bytes)
        self._tail = StderrTail()
        self._stdin: asyncio.WriteTransport | None = None
        burst = max(BURST, 2 * limits.line_bytes)
        self._stdout = _OutputReader(self._on_stdout, self._on_stdout_closed, ByteBudget(burst))
        self._stderr = _OutputReader(self._tail.feed, self._end_if_done, ByteBudget())
        self._is_stopping = False
        # Set when the gateway ends the server for a reason that the exit status does not show.
        self._fault: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._exited = self._loop.create_future()
        self._ended = self._loop.create_future()

    @classmethod
    async def start(
        cls,
        command: ServerCommand,
        on_line: Callable[[bytes], bool | None],
        on_exit: Callable[[str], None],
        on_overlong: Callable[[OverlongLine], None] = _ignore,
        limits: ProcessLimits = _DEFAULT_LIMITS,
    ) -> Self:
        """Start the command. Raise `Unavailable` with advice if it cannot be run."""
        child = await start_process(command)
        self = cls(command, child, on_line, on_exit, on_overlong, limits)
        child.on_death(self._on_leader_death)
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
        # Stdin is connected first, so that the very first line can be answered.
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
        """How the process is contained: `namespace`, `reaper` or `group`."""
        return self._child.kind

    def stderr_tail(self) -> list[str]:
        """Return the last lines, safe to print, with configured values shown by name."""
        return self._tail.read(self._command.env)

    def send(self, frame: bytes) -> None:
        """Write one message to stdin. It is not known whether the server reads it."""
        stdin = self._stdin
        if stdin is None or stdin.is_closing():
            gone = self._exited.done()
            why = _describe_status(self.returncode) if gone else "takes no more messages"
            raise Unavailable(f"{self._command.program!r} {why}")
        if stdin.get_write_buffer_size() + len(frame) > self._limits.unread_bytes:
            raise Unavailable(f"{self._command.program!r} does not read its messages", EXHAUSTED)
        if NEWLINE in frame or RETURN in frame:
            # In JSON these are spaces between words. Here they would begin a forged message.
            frame = frame.replace(b"\n", b" ").replace(b"\r", b" ")
        stdin.write(frame + b"\n")

    def pause(self) -> None:
        """Stop reading stdout. Lines that were already read may still be delivered."""
        if self._stdout.transport is not None and not self._is_stopping:
            self._stdout.pause(True)

    def resume(self) -> None:
        if self._stdout.is_paused:
            self._stdout.pause(False)
            if self._exited.done():
                self._linger_for_output(remaining_turns=2)

    async def stop(self, grace: timedelta) -> None:
        """Close stdin, then send SIGTERM, then SIGKILL, with `grace` between them. (MCP, shutdown)

        Remaining output is delivered. If this call is cancelled, SIGKILL follows at once.
        """
        self._is_stopping = True
        self.resume()
        self._close_stdin()
        try:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                if await done_within(self._exited, grace):
                    break
                self._child.signal(sign)
            if not await done_within(self._ended, _KILL_TIMEOUT + self._limits.linger):
                self._end(f"could not be ended (process {self.pid})")
        finally:
            self._child.signal(signal.SIGKILL)

    def kill(self, fault: str) -> None:
        """End the process now. Its exit is reported as usual, with this fault."""
        self._fault = fault
        self._child.signal(signal.SIGKILL)

    def _on_stdout(self, data: bytes) -> None:
        allowance = self._stdout.byte_budget
        for item in self._splitter.feed(data):
            if isinstance(item, bytes):
                if self._on_line(item):
                    allowance.give_back(len(item) + 1)
                else:
                    allowance.spend_on_noise(0)
            else:
                self._on_overlong(item)

    def _on_stdout_closed(self) -> None:
        # The end of stdout usually comes before the exit. A server that lives on without output
        # cannot answer. A server that is being stopped has its grace period for that.
        if not self._exited.done() and not self._is_stopping:
            self._close_stdin()
            linger = self._limits.linger.total_seconds()
            self._timer = self._loop.call_later(linger, self._kill_without_output)
        self._end_if_done()

    def _kill_without_output(self) -> None:
        self._fault = "closed its output, and was ended"
        self._child.signal(signal.SIGKILL)

    def _on_leader_death(self) -> None:
        if self._child.is_unexplained:
            self._fault = "was ended, because the process that guarded it was killed"
        self._exited.set_result(None)
        self._stdout.read_without_pauses()
        self._stderr.read_without_pauses()
        self._close_stdin(at_once=True)
        self._stop_timer()
        self._linger_for_output(remaining_turns=2)
        self._end_if_done()

    def _linger_for_output(self, remaining_turns: int) -> None:
        """Close the pipes after a wait.

        A grandchild in its own session may hold them open for ever. This takes two turns
        because a late uvloop runs timers before it reads. The last output of the server is
        certainly read between them.
        """
        if self._stdout.is_paused:
            return
        if remaining_turns:
            wait = self._limits.linger.total_seconds() / 2
            self._timer = self._loop.call_later(wait, self._linger_for_output, remaining_turns - 1)
        else:
            self._stdout.close()
            self._stderr.close()

    def _end_if_done(self) -> None:
        if self._exited.done() and self._stdout.is_lost and self._stderr.is_lost:
            # The server may have exited by itself just before the kill.
            was_killed = self._child.returncode == -signal.SIGKILL
            self._end((was_killed and self._fault) or _describe_status(self._child.returncode))

    def _end(self, reason: str) -> None:
        if self._ended.done():
            return
        self._stop_timer()
        self._ended.set_result(None)
        fault = find_fault(self.stderr_tail())[:_MAX_HINT_LENGTH]
        self._on_exit(f"{reason}{LAST_OUTPUT}{fault}" if fault else reason)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _close_stdin(self, *, at_once: bool = False) -> None:
        """Close stdin after pending input is written, or at once if the server cannot read it."""
        stdin = self._stdin
        if stdin is None:
            return
        if at_once and (stdin.get_write_buffer_size() or not stdin.is_closing()):
            stdin.abort()
        else:
            stdin.close()


class _OutputReader(asyncio.Protocol):
    """The reading end of one of the server's outputs."""

    def __init__(
        self, on_data: Callable[[bytes], None], on_lost: Callable[[], None], byte_budget: ByteBudget
    ) -> None:
        self.transport: asyncio.ReadTransport | None = None
        self.is_lost = False
        self.is_paused = False
        self.byte_budget = byte_budget
        self._reads_without_pauses = False
        self._is_resting = False
        self._postponed_data = b""  # read already, delivered in the next turn
        self._on_data = on_data
        self._on_lost = on_lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        self.byte_budget.spend(len(data))
        self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        if (
            len(data) > READ_CHUNK_BYTES
            and not self._reads_without_pauses
            and self.transport is not None
        ):
            # The data may hold thousands of small messages. Other tasks run between the portions.
            self._postponed_data, data = data[READ_CHUNK_BYTES:], data[:READ_CHUNK_BYTES]
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._resume_delivery)
        self._on_data(data)
        if (
            self.byte_budget.is_exhausted
            and not self._reads_without_pauses
            and not self._postponed_data
        ):
            self._pause_briefly()

    def _resume_delivery(self) -> None:
        """Deliver the postponed data, then continue to read unless reading is paused."""
        if self.is_paused or not self._postponed_data:
            return
        data, self._postponed_data = self._postponed_data, b""
        self._deliver(data)
        if not (self._postponed_data or self._is_resting or self.is_paused):
            self.pause(False)

    def pause(self, paused: bool) -> None:
        self.is_paused = paused
        if self.transport is None or self.transport.is_closing():
            return
        if paused:
            self.transport.pause_reading()
        elif self._postponed_data:
            asyncio.get_running_loop().call_soon(self._resume_delivery)
        else:
            self.transport.resume_reading()

    def _pause_briefly(self) -> None:
        """Pause reading during a flood: the full pipe blocks the server, and others go on."""
        loop = asyncio.get_running_loop()
        seconds = self.byte_budget.pause_seconds(loop.time())
        if seconds and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            self._is_resting = True
            loop.call_later(seconds, self._wake)

    def read_without_pauses(self) -> None:
        """Read the remaining output without pauses, because the server writes no more."""
        self._reads_without_pauses = True
        self._wake()

    def _wake(self) -> None:
        self._is_resting = False
        if not self.is_paused:
            self.pause(False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._postponed_data:
            self._on_data(self._postponed_data)
        self.is_lost = True
        self._on_lost()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


async def done_within(future: asyncio.Future[None], wait: timedelta) -> bool:
    await asyncio.wait([future], timeout=wait.total_seconds())
    return future.done()


def _describe_status(status: int | None) -> str:
    if status is None or status >= 0:
        return f"exited with status {status}"
    try:
        return f"ended by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"ended by signal {-status}"
