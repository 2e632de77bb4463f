"""What all links to one server tell of it together, and the bar that none of them lets calls past.

A server has many links: the gateway's own, and those of sessions. Each of them notices by itself
when the server answers, hangs up or cannot be reached; only all of them together know whether it
lives, and whether anybody still waits for it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.question import Client, Errand, Question
from comity.ports import Headers
from comity.rules.circuit import Circuit, Passed, after
from comity.rules.conversation import Conversation
from comity.rules.negotiation import Terms
from comity.wire.jsonrpc import Frame
from comity.wire.mcp import LISTEN


class Held(Protocol):
    """A link, as far as it counts here."""

    @property
    def callers(self) -> Sequence[Call]: ...
    def renewed(self) -> None: ...
    async def close(self) -> None: ...


class Speaking(Protocol):
    """A link, as far as it takes to answer what a server asks on it."""

    @property
    def server(self) -> str: ...
    @property
    def conversation(self) -> Conversation[Errand]: ...
    @property
    def mgp(self) -> Terms | None: ...
    @property
    def hello(self) -> Mapping[str, Raw] | None:
        """What the server said in its handshake; the modern era has none."""
        ...

    def tell(self, frame: Frame) -> None: ...
    async def request(self, method: str, params: object, headers: Headers = ...) -> Frame: ...


class Questions(Protocol):
    """Who puts before people what a server asks of them amid a call."""

    @property
    def stand_ins(self) -> Mapping[str, object]:
        """What is answered though a client did not say that it can be asked, by capability."""
        ...

    def called_back(self, link: Speaking, frame: Frame, amid: Errand | None) -> bool:
        """Whether a callback is taken care of; else it is for whoever else it may concern."""
        ...

    def instead(self, question: Question, frame: Frame) -> bool:
        """Whether people are asked what a client cannot be asked."""
        ...


class Streams(Protocol):
    """Who passes on what the server tells of calls before their end. (MGP §12)"""

    def attend(self, link: Speaking, call: Call, frame: Frame) -> Frame:
        """A call as it goes out. Raises MalformedMessage."""
        ...

    def heard(self, server: str, frame: Frame, amid: Errand | None) -> bool:
        """Whether a notice belongs to a call that streams."""
        ...

    def stops(self, link: Speaking, errand: Errand | None, told: Frame) -> bool:
        """Whether the server hears in MGP's words that nobody waits; `told` is how MCP says it."""
        ...

    def cancel(self, client: Client | None, by: Call, frame: Frame) -> dict[str, object]:
        """The answer to a cancellation. Raises MalformedMessage."""
        ...


class Live(Protocol):
    """Who deals with what MCPL adds to a link on which the gateway agreed on it. (MCPL §4)"""

    def carries(self, link: "LiveLink", call: Call, frame: Frame, headers: Headers) -> bool:
        """Whether a call is sent later, with what belongs to it: `link.send` does that."""
        ...

    def answered(self, link: "LiveLink", errand: Errand, frame: Frame, status: int) -> bool:
        """Whether an answer is given later: `errand.answered` does that."""
        ...

    def asked(
        self, link: "LiveLink", question: Question, frame: Frame, amid: Errand | None
    ) -> bool:
        """Whether a request of the server's is one for its host; then it is answered."""
        ...

    def told(self, link: "LiveLink", frame: Frame) -> bool:
        """Whether a notice of the server's is one for its host."""
        ...

    def greeted(self, link: "LiveLink", capabilities: Raw | None) -> None:
        """A link is open on which the server, with these capabilities, may do more."""
        ...


class LiveLink(Speaking, Protocol):
    """A link, as far as MCPL needs it."""

    @property
    def is_open(self) -> bool: ...
    async def request(
        self,
        method: str,
        params: object,
        headers: Headers = ...,
        on_told: Callable[[Frame], None] | None = ...,
    ) -> Frame: ...

    def send(self, call: Call, frame: Frame, headers: Headers) -> None:
        """Send a request as it is; its answer finds the call. Raises Unavailable."""
        ...


class Pulse:
    """The signs of life of one server."""

    __slots__ = (
        *("_failed_after", "bar", "circuit", "falters", "heard", "links", "on_falter"),
        *("asking", "is_crowded", "live", "notices", "questions", "streaming"),
    )

    def __init__(self, on_falter: Callable[[str], None] | None = None) -> None:
        self.on_falter = on_falter
        # Set while no call may go out: it raises why.
        self.bar: Callable[[], None] | None = None
        # How many messages have come; counting costs a call less than looking at a clock.
        self.heard = 0
        self.falters = 0
        self.circuit = Circuit()
        self.links: set[Held] = set()
        # Who hears what the server tells of its own accord, where that was agreed on. (MGP §6, §13)
        self.notices: dict[str, Callable[[Speaking, Frame], None]] = {}
        self.questions: Questions | None = None
        # Who is the host of servers that do more than answer.
        self.live: Live | None = None
        # Who passes on what calls tell before their end.
        self.streaming: Streams | None = None
        # Tools that have asked without naming their call, and whether nobody knew whose it was.
        self.asking: set[str] = set()
        self.is_crowded = False
        self._failed_after = 0

    @property
    def calls(self) -> list[Call]:
        """The clients' calls under way; who only listens waits for nothing."""
        waiting = (call for link in self.links for call in link.callers)
        return [call for call in waiting if call.method != LISTEN]

    def falter(self, because: str, *, in_a_call: bool) -> None:
        """The server hung up, could not be reached, or failed as a whole."""
        self.falters += 1
        if in_a_call:
            if self.heard != self._failed_after:
                self.pass_on(Passed.ANSWERED)
                self._failed_after = self.heard
            self.pass_on(Passed.FAILED)
        if self.on_falter is not None:
            self.on_falter(because)

    def pass_on(self, passed: Passed) -> None:
        """Let the circuit follow what has happened."""
        self.circuit = after(self.circuit, passed)
