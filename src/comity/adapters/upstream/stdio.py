"""MCP over stdio as a client: a process, one line a message, one stream for all. (MCP §3.1)"""

import logging
from collections.abc import Sequence
from datetime import timedelta

from comity.adapters.upstream.command import Command
from comity.adapters.upstream.memory import held_by
from comity.adapters.upstream.process import ServerProcess
from comity.ports import Carrier, Headers, Receiver
from comity.wire import jsonrpc
from comity.wire.errors import Unavailable
from comity.wire.jsonrpc import Frame
from comity.wire.lines import Overlong
from comity.wire.mcp import UNKNOWN, Era, Stream

log = logging.getLogger(__name__)

GRACE = timedelta(seconds=2)


class StdioReach:
    """A server that is a command to run."""

    costs_a_process = True

    def __init__(self, name: str, command: Command) -> None:
        self._name = name
        self._command = command

    def carrier(self, era: Era) -> Carrier:
        return StdioCarrier(self._name, self._command)


class StdioCarrier:
    """One run of the command. The first request it hears fixes its era."""

    tells_streams_apart = False

    def __init__(self, name: str, command: Command) -> None:
        self._name = name
        self._command = command
        self._process: ServerProcess | None = None
        self._receiver: Receiver

    async def open(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._process = await ServerProcess.start(
            self._command, self._on_line, receiver.closed, self._on_overlong
        )

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        if self._process is None:
            raise Unavailable(f"server {self._name!r} has not been started")
        self._process.send(jsonrpc.encode(frame))

    def memory(self) -> int:
        """How many bytes its processes hold."""
        return 0 if self._process is None else held_by(self._process.pid)

    def speaks(self, version: str) -> None:
        """Nothing on this transport repeats the version."""

    def listen(self) -> None:
        """What nobody asked for comes on the one stream there is."""

    def pause(self, stream: Stream) -> None:
        """Other callers share the stream, so it is never paused for one of them."""

    def resume(self, stream: Stream) -> None: ...

    def abandon(self, stream: Stream) -> None: ...

    async def close(self) -> None:
        if self._process is not None:
            await self._process.stop(GRACE)

    @property
    def ended_well(self) -> bool:
        return self._process is not None and self._process.returncode == 0

    def hints(self) -> Sequence[str]:
        return self._process.stderr_tail() if self._process is not None else ()

    def _on_line(self, line: bytes) -> bool:
        if line[:1] != b"{":
            # Servers print greetings to stdout; that is a mistake of theirs, and no message.
            log.info("server %r printed something that is no message", self._name)
            return False
        return self._receiver.heard(line, UNKNOWN, 200)

    def _on_overlong(self, line: Overlong) -> None:
        log.warning("server %r: a line over the limit was dropped", self._name)
        answered = jsonrpc.answers_from(line.beginning)
        if answered is not None:
            because = Unavailable("the server's answer is larger than a message may be")
            self._receiver.stream_ended(answered, because)
