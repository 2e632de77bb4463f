"""How tool servers are reached, and what is told of calls: needs of the kernel, each small."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from comity.wire.errors import Unavailable
from comity.wire.jsonrpc import Frame
from comity.wire.mcp import Era, Stream
from comity.wire.traces import Context

type Headers = tuple[tuple[bytes, bytes], ...]

type Describe = Callable[[str], Mapping[str, str]]
"""How a server is reached (`transport` and `reached`, its host and port), by its name."""


class Receiver(Protocol):
    """Who hears what a carrier brings. Called on the event loop; must not block."""

    def heard(self, data: bytes, stream: Stream, status: int) -> bool:
        """One message arrived; `status` is the HTTP status it came with, or 200.

        Whether it belongs to a call: what belongs to none may come in floods.
        """
        ...

    def stream_opened(self, stream: Stream) -> None:
        """The answer to a question comes as a stream of messages, not as one."""
        ...

    def stream_ended(self, stream: Stream, because: Unavailable | None) -> None:
        """No more will come on this stream."""
        ...

    def stream_suspended(self, stream: Stream) -> None:
        """The server closed the stream for now; the rest will come when it is taken up again."""
        ...

    def awaits(self, stream: Stream) -> bool:
        """Whether the question that opened this stream is still without an answer."""
        ...

    def renewed(self) -> None:
        """The server had forgotten this link; it was made again, and what it knew is lost."""
        ...

    def faltered(self, because: str, in_a_call: bool) -> None:
        """The server hung up, could not be reached, or failed as a whole, in a call or beside."""
        ...

    def closed(self, because: str) -> None:
        """The link is gone; called once, and never by `Carrier.close` itself."""
        ...


class Carrier(Protocol):
    """How frames reach one tool server, and come back."""

    @property
    def tells_streams_apart(self) -> bool:
        """Whether each message comes on a stream that names its question (HTTP), or not (stdio)."""
        ...

    async def open(self, receiver: Receiver) -> None:
        """Make ready to send; raises Unavailable with what to check."""
        ...

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        """Send one message; a question names the stream it opens. Raises Unavailable."""
        ...

    def speaks(self, version: str) -> None:
        """The protocol version that was negotiated."""
        ...

    def listen(self) -> None:
        """Open the stream for what nobody asked for, where the transport has one."""
        ...

    def pause(self, stream: Stream) -> None:
        """The reader of this stream is slow: take no more from the server for it."""
        ...

    def resume(self, stream: Stream) -> None: ...

    def abandon(self, stream: Stream) -> None:
        """Nobody waits for this stream any more."""
        ...

    async def close(self) -> None:
        """End the link the way its transport says; never raises."""
        ...

    @property
    def ended_well(self) -> bool:
        """Whether the server left by itself, as one does whose work is done."""
        ...

    def hints(self) -> Sequence[str]:
        """The server's last words (its error output), for people."""
        ...


@runtime_checkable
class Measured(Protocol):
    """A carrier that knows how much its server uses, because it runs it."""

    def memory(self) -> int:
        """How many bytes its processes hold; 0 where that cannot be known."""
        ...


class Reach(Protocol):
    """How one configured server can be reached: makes a carrier whenever a link is needed."""

    @property
    def costs_a_process(self) -> bool:
        """Whether each link starts a process, so that links are worth sharing."""
        ...

    def carrier(self, era: Era) -> Carrier: ...


class Ending(NamedTuple):
    """How a call ended. No word of it is a client's: server, method and tool are known here."""

    server: str
    method: str
    tool: str
    outcome: str
    answer: Frame | None


class Trace(Protocol):
    """One call as a part of a trace."""

    @property
    def context(self) -> Context | None:
        """Where in the trace the call stands, where there is a trace."""
        ...

    def onward(
        self, frame: Frame, headers: Headers, server: str, in_headers: bool
    ) -> tuple[Frame, Headers]:
        """The request as it goes out to a server, of whose transport headers may be a part."""
        ...

    def ended(self, ending: Ending) -> None: ...


class Tracer(Protocol):
    """Who keeps a record of every call; asked at its beginning, so it must be quick."""

    def begin(self, frame: Frame, told: Trace | None, session: str, version: str) -> Trace:
        """`told` is what the transport named; `session` is empty in the modern era."""
        ...

    async def close(self) -> None:
        """Let go of what is not told yet, after a bounded while."""
        ...


class SchemaJudge(Protocol):
    """Says which of a stranger's JSON Schemas cannot be used, without ever blocking the loop."""

    async def faults(self, schemas: Mapping[str, object]) -> dict[str, str]:
        """Why each unusable schema is so, by the name it was given under."""
        ...
