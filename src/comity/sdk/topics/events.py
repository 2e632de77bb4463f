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
    """What a member said; `envelope` is as it came, and its `sender` was verified at the door."""

    envelope: Envelope

    @property
    def id(self) -> str:
        return self.envelope.id

    @property
    def sender(self) -> str:
        return self.envelope.sender

    @property
    def to(self) -> tuple[str, ...]:
        """Whom it is for; empty where it is for all."""
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
    """Somebody asks somebody to do something; one without `rpc_id` is a notification."""

    method: str
    params: Payload
    rpc_id: Id | None = None

    @property
    def is_notification(self) -> bool:
        return self.rpc_id is None


@dataclass(frozen=True, slots=True)
class Response(MemberMessage):
    """What came of a request. `asked` is the kind of that request, None where nobody here saw it:
    such an orphan is shown and never acted on. (D-42)"""

    result: Payload | None = None
    error: Payload | None = None
    asked: EnvelopeKind | None = None

    @property
    def is_orphan(self) -> bool:
        return self.asked is None


@dataclass(frozen=True, slots=True)
class Proposal(MemberMessage):
    """What somebody would have done, and may not do itself."""

    method: str
    params: Payload


@dataclass(frozen=True, slots=True)
class Rejection(MemberMessage):
    """Somebody says no to a proposal; a kind of later versions. (D-46)"""

    proposal: rules.TrackedProposal
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Withdrawal(MemberMessage):
    """A proposer wants it no more; a kind of later versions. (D-46)"""

    proposal: rules.TrackedProposal
    reason: str = ""


@dataclass(frozen=True, slots=True)
class UnknownKindMessage(MemberMessage):
    """A kind that this version of the protocol does not know."""

    payload: Payload


@dataclass(frozen=True, slots=True)
class MemberFulfilment:
    """A request that fulfils a proposal that was seen here, told after the request itself.

    One that is not first should not be carried out (D-56); one that is not as proposed was changed
    by whoever fulfils.
    """

    request: Request
    proposal: rules.TrackedProposal
    is_first: bool = True
    is_as_proposed: bool = True


@dataclass(frozen=True, slots=True)
class Welcome:
    """Who we are, what we may send from now on, and who else is there."""

    id: str
    capabilities: tuple[str, ...]
    others: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Presence:
    """Somebody came or went; of somebody who came, what it may send."""

    event: str
    id: str
    capabilities: tuple[str, ...] = ()

    @property
    def has_come(self) -> bool:
        return self.event == JOIN


@dataclass(frozen=True, slots=True)
class EnvelopeRefusal:
    """The gateway did not pass on what we sent; `id` is that of the envelope."""

    id: str
    error: str
    message: str
    attempted_kind: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """What became of a proposal or a call, or that it waits for a person; `about` is its id."""

    about: str
    notice: str
    message: str = ""
    ask: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing will come of it any more."""
        return self.notice in _OVER


@dataclass(frozen=True, slots=True)
class MissedEnvelopes:
    """Envelopes that we were not given, or did not take in time; ids where they are known."""

    count: int
    first: str = ""
    last: str = ""
    because: str = ""


@dataclass(frozen=True, slots=True)
class MemberMisbehaviour:
    """What was dropped, and why; `count` is how often its sender did such a thing.

    The sender is empty where the envelope could not even be read.
    """

    sender: str
    because: str
    id: str = ""
    kind: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class DisconnectionEvent:
    """The gateway cannot be reached just now; it is tried again."""

    because: str


@dataclass(frozen=True, slots=True)
class ReconnectionEvent:
    """We are in the topic again; `attempts` is how many it took."""

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
_SLOW: Final = "they were taken too slowly here"


class ParticipantEventStream[E]:
    """Those of the wanted types from now on; iterate over it, and close it when done.

    Whoever takes them too slowly loses the oldest, and finds a `Missed` in their place if it wants
    those, or whatever the types are.
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
        """All that waits, without waiting for more."""
        lost = [self._notice()] if self._lost_count else []
        found = [*lost, *(event for event, _ in self._waiting)]
        self._waiting.clear()
        self._bytes = 0
        return found

    def close(self) -> None:
        """No more events; those that wait are given up."""
        self._waiting.clear()
        self._bytes = 0
        self.end()

    def end(self) -> None:
        """No more events than those that wait already."""
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
