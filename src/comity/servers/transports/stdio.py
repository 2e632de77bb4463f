"""The stdio transport: messages as lines of a server process's stdin and stdout."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from comity.errors import Unavailable
from comity.mcp import jsonrpc
from comity.mcp.framing import OverlongLine
from comity.mcp.jsonrpc import Frame
from comity.mcp.protocol import UNKNOWN, Era, Stream
from comity.servers.process.process import ServerCommand, ServerProcess, memory_of
from comity.servers.sandbox.refusals import SPACED_TOOL_ERROR, TOOL_ERROR, RefusalHints
from comity.servers.sandbox.service import SandboxRun
from comity.sessions.upstream import TransportListener, UpstreamTransport
from comity.telemetry.tracing import Headers

log = logging.getLogger(__name__)

STOP_GRACE = timedelta(seconds=2)

type Confine = Callable[[ServerCommand], Awaitable[SandboxRun]]
"""Prepares the sandbox of a server, before each of its starts."""


type CommandSource = ServerCommand | Callable[[], Awaitable[ServerCommand]]
"""The command of a server, or a function that checks and returns it at each start."""


class StdioTransportFactory:
    """Creates stdio transports: each runs the command of a server."""

    starts_process = True

    def __init__(self, name: str, command: CommandSource, confine: Confine | None = None) -> None:
        self._name = name
        self._command = command
        self._confine = confine

    def create_transport(self, era: Era) -> UpstreamTransport:
        return StdioTransport(self._name, self._command, self._confine)


class StdioTransport:
    """One run of the command. The first request that the server receives fixes its era."""

    has_separate_streams = False

    def __init__(self, name: str, command: CommandSource, confine: Confine | None = None) -> None:
        self._name = name
        self._command = command
        self._confine = confine
        self._process: ServerProcess | None = None
        self._sandbox: SandboxRun | None = None
        self._hints: RefusalHints | None = None
        self._listener: TransportListener

    async def open(self, listener: TransportListener) -> None:
        self._listener = listener
        command, on_closed = self._command, listener.on_closed
        if not isinstance(command, ServerCommand):
            command = await command()
        if self._confine is not None:
            self._sandbox = await self._confine(command)
            command, on_closed = self._sandbox.command, self._on_confined_exit
            self._hints = self._sandbox.hints
        try:
            self._process = await ServerProcess.start(
                command, self._on_line, on_closed, self._on_overlong
            )
        except BaseException:
            await self._leave_sandbox()
            raise
        if self._sandbox is not None:
            self._sandbox.on_started(self._process.kill)

    def _on_confined_exit(self, reason: str) -> None:
        assert self._sandbox is not None
        if self.has_exited_cleanly:
            self._listener.on_closed(reason)
            return
        self._listener.on_closed(self._sandbox.describe_end(reason, self.stderr_lines()))

    async def _leave_sandbox(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        if self._process is None:
            raise Unavailable(f"server {self._name!r} has not been started")
        self._process.send(jsonrpc.encode_frame(frame))

    def memory(self) -> int:
        """Return how many bytes the server's processes hold."""
        return 0 if self._process is None else memory_of(self._process.pid)

    def set_version(self, version: str) -> None:
        """Do nothing: no message on this transport repeats the version."""

    def listen(self) -> None:
        """Do nothing: unsolicited messages arrive on the only stream there is."""

    def pause(self, stream: Stream) -> None:
        """Do nothing: other callers share the stream, so one of them cannot pause it."""

    def resume(self, stream: Stream) -> None: ...

    def drop_stream(self, stream: Stream) -> None: ...

    async def close(self) -> None:
        try:
            if self._process is not None:
                await self._process.stop(STOP_GRACE)
        finally:
            await self._leave_sandbox()

    @property
    def has_exited_cleanly(self) -> bool:
        return self._process is not None and self._process.returncode == 0

    def stderr_lines(self) -> Sequence[str]:
        lines = self._process.stderr_tail() if self._process is not None else []
        # A server that waits for a refused connection says nothing about it.
        refusal = "" if self._hints is None else self._hints.connection_refusal
        return [*lines, refusal] if refusal else lines

    def _on_line(self, line: bytes) -> bool:
        if line[:1] != b"{":
            # Some servers wrongly print greetings to stdout. These lines are not messages.
            log.info("Server %r printed a line that is not a message", self._name)
            return False
        if self._hints is not None and (TOOL_ERROR in line or SPACED_TOOL_ERROR in line):
            line = self._hints.explain_response(line)
        return self._listener.on_message(line, UNKNOWN, 200)

    def _on_overlong(self, line: OverlongLine) -> None:
        log.warning("server %r: a line over the limit was dropped", self._name)
        answered = jsonrpc.answers_from(line.beginning)
        if answered is not None:
            reason = Unavailable("the server's answer is larger than a message may be")
            self._listener.on_stream_ended(answered, reason)
