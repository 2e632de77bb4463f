"""The events that a participant receives, and the streams that deliver them."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from comity.mcp.jsonrpc import Id
from comity.topics import rules
from comity.topics.envelope import JOIN, Envelope, EnvelopeKind, parse_kind

type Payload = Mapping[str, object]

_OVER: Final = frozenset(
    {"declined", "cancelled", "expired", "withdrawn", "denied", "unsaid", "dismounted"}
)


@dataclass(frozen=True, slots=True)
class MemberMessage:
    """A message of a member. The gateway verified the `sender` of the `envelope`."""

    envelope: Envelope

    @property
    def id(self) -> str:
        return self.envelope.id

    @property
    def sender(self) -> str:
        return self.envelope.sender

    @property
    def to(self) -> tuple[str, ...]:
        """The recipients; empty for all members."""
        return self.envelope.to

    @property
    def correlation_id(self) -> str:
        return self.envelope.correlation_id

    @property
    def kind(self) -> EnvelopeKind:
        return parse_kind(self.envelope.kind)


@dataclass(frozen=True, slots=True)
class Chat(MemberMessage):
    text: str
    format: str = "plain"


@dataclass(frozen=True, slots=True)
class Request(MemberMessage):
    """A request of one member to others; without an `rpc_id` it is a notification."""

    method: str
    params: Payload
    rpc_id: Id | None = None

    @property
    def is_notification(self) -> bool:
        return self.rpc_id is None


@dataclass(frozen=True, slots=True)
class Response(MemberMessage):
    """The response to a request. `asked` is the kind of that request.

    It is None for an orphan, whose request was not seen here. The SDK delivers an orphan as an
    event and does not act on it. (D-42)
    """

    result: Payload | None = None
    error: Payload | None = None
    asked: EnvelopeKind | None = None

    @property
    def is_orphan(self) -> bool:
        return self.asked is None


@dataclass(frozen=True, slots=True)
class Proposal(MemberMessage):
    """A request that a member proposes, because it may not send it itself."""

    method: str
    params: Payload


@dataclass(frozen=True, slots=True)
class Rejection(MemberMessage):
    """A member rejects a proposal; a kind of later versions. (D-46)"""

    proposal: rules.TrackedProposal
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Withdrawal(MemberMessage):
    """A proposer withdraws its proposal; a kind of later versions. (D-46)"""

    proposal: rules.TrackedProposal
    reason: str = ""


@dataclass(frozen=True, slots=True)
class UnknownKindMessage(MemberMessage):
    """A kind that this version of the protocol does not know."""

    payload: Payload


@dataclass(frozen=True, slots=True)
class MemberFulfilment:
    """A request that fulfils a proposal that was seen here; it follows the request itself.

    A fulfilment that is not the first should not run. (D-56) If it is not as proposed, the
    fulfiller changed the parameters.
    """

    request: Request
    proposal: rules.TrackedProposal
    is_first: bool = True
    is_as_proposed: bool = True


@dataclass(frozen=True, slots=True)
class Welcome:
    """The id and the capabilities of this participant, and the other members."""

    id: str
    capabilities: tuple[str, ...]
    others: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Presence:
    """A member joined or left; `capabilities` are those of a member that joined."""

    event: str
    id: str
    capabilities: tuple[str, ...] = ()

    @property
    def has_come(self) -> bool:
        return self.event == JOIN


@dataclass(frozen=True, slots=True)
class EnvelopeRefusal:
    """The gateway refused an envelope of this participant; `id` is its id."""

    id: str
    error: str
    message: str
    attempted_kind: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """The status of a proposal or a call, such as waiting for a person; `about` is its id."""

    about: str
    notice: str
    message: str = ""
    ask: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the proposal or call has ended without a result."""
        return self.notice in _OVER


@dataclass(frozen=True, slots=True)
class MissedEnvelopes:
    """Envelopes that did not arrive, or were not taken in time, with the ids if known."""

    count: int
    first: str = ""
    last: str = ""
    because: str = ""


@dataclass(frozen=True, slots=True)
class MemberMisbehaviour:
    """A dropped envelope and the reason; `count` is the number of drops of its sender.

    The sender is empty if the envelope could not be read.
    """

    sender: str
    because: str
    id: str = ""
    kind: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class DisconnectionEvent:
    """The connection is lost; the participant tries to connect again."""

    because: str


@dataclass(frozen=True, slots=True)
class ReconnectionEvent:
    """The participant is in the topic again, after so many attempts."""

    attempts: int


type Event = (
    Chat
    | Request
    | Response
    | Proposal
    | Rejection
    | Withdrawal
    | UnknownKindMessage
    | MemberFulfilment
    | Welcome
    | Presence
    | EnvelopeRefusal
    | Notice
    | MissedEnvelopes
    | MemberMisbehaviour
    | DisconnectionEvent
    | ReconnectionEvent
)


MOST_EVENTS: Final = 1_000
MOST_BYTES: Final = 16 * 1024 * 1024
_SLOW: Final = "the participant read events too slowly"


class ParticipantEventStream[E]:
    """Future events of the wanted types; iterate over it, and close it when done.

    When too many events wait, the oldest are dropped. The stream then yields a `MissedEnvelopes`,
    whichever types are wanted.
    """

    def __init__(
        self, wanted: tuple[type[E], ...], forget: Callable[["ParticipantEventStream[Any]"], None]
    ) -> None:
        self._wanted = wanted
        self._forget = forget
        self._waiting: deque[tuple[E, int]] = deque()
        self._bytes = 0
        self._lost: list[str] = []
        self._lost_count = 0
        self._is_over = False
        self._news = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E | MissedEnvelopes:
        while True:
            if self._lost_count:
                return self._notice()
            if self._waiting:
                event, weight = self._waiting.popleft()
                self._bytes -= weight
                return event
            if self._is_over:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()

    def taken(self) -> list[E | MissedEnvelopes]:
        """Take all events that wait, without waiting for more."""
        lost = [self._notice()] if self._lost_count else []
        found = [*lost, *(event for event, _ in self._waiting)]
        self._waiting.clear()
        self._bytes = 0
        return found

    def close(self) -> None:
        """End the stream, and drop the events that wait."""
        self._waiting.clear()
        self._bytes = 0
        self.end()

    def end(self) -> None:
        """End the stream after the events that already wait."""
        self._is_over = True
        self._forget(self)
        self._news.set()

    def give(self, event: Event) -> None:
        if not isinstance(event, self._wanted):
            return
        weight = _weight(event)
        self._waiting.append((event, weight))
        self._bytes += weight
        while len(self._waiting) > MOST_EVENTS or self._bytes > MOST_BYTES:
            lost, lighter = self._waiting.popleft()
            self._bytes -= lighter
            self._lost_count += 1
            self._lost = [*self._lost[:1], _id(lost)]
        self._news.set()

    def _notice(self) -> MissedEnvelopes:
        notice = MissedEnvelopes(self._lost_count, self._lost[0], self._lost[-1], _SLOW)
        self._lost, self._lost_count = [], 0
        return notice


def _weight(event: object) -> int:
    said = event.request if isinstance(event, MemberFulfilment) else event
    return len(bytes(said.envelope.payload)) + 1_000 if isinstance(said, MemberMessage) else 1_000


def _id(event: object) -> str:
    return event.id if isinstance(event, MemberMessage) else ""
