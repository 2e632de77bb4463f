"""What a participant is told of: what the others said, what the gateway said, what befell itself.

Everything here has been checked before it is told (`comity.sdk.reading`); texts and values are
still a stranger's own, and are shown or acted on with that in mind.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from comity.rules import proposals
from comity.rules.kinds import Kind, parse
from comity.wire.envelope import JOIN, Envelope
from comity.wire.jsonrpc import Id

type Payload = Mapping[str, object]

_OVER: Final = frozenset(
    {"declined", "cancelled", "expired", "withdrawn", "denied", "unsaid", "dismounted"}
)


@dataclass(frozen=True, slots=True)
class Said:
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
    def kind(self) -> Kind:
        return parse(self.envelope.kind)


@dataclass(frozen=True, slots=True)
class Chat(Said):
    text: str
    format: str = "plain"


@dataclass(frozen=True, slots=True)
class Request(Said):
    """Somebody asks somebody to do something; one without `rpc_id` is a notification."""

    method: str
    params: Payload
    rpc_id: Id | None = None

    @property
    def is_notification(self) -> bool:
        return self.rpc_id is None


@dataclass(frozen=True, slots=True)
class Response(Said):
    """What came of a request. `asked` is the kind of that request, None where nobody here saw it:
    such an orphan is shown and never acted on. (D-42)"""

    result: Payload | None = None
    error: Payload | None = None
    asked: Kind | None = None

    @property
    def is_orphan(self) -> bool:
        return self.asked is None


@dataclass(frozen=True, slots=True)
class Proposal(Said):
    """What somebody would have done, and may not do itself."""

    method: str
    params: Payload


@dataclass(frozen=True, slots=True)
class Rejection(Said):
    """Somebody says no to a proposal; a kind of later versions. (D-46)"""

    proposal: proposals.Proposal
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Withdrawal(Said):
    """A proposer wants it no more; a kind of later versions. (D-46)"""

    proposal: proposals.Proposal
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Other(Said):
    """A kind that this version of the protocol does not know."""

    payload: Payload


@dataclass(frozen=True, slots=True)
class Fulfilment:
    """A request that fulfils a proposal that was seen here, told after the request itself.

    One that is not first should not be carried out (D-56); one that is not as proposed was changed
    by whoever fulfils.
    """

    request: Request
    proposal: proposals.Proposal
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
class Refused:
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
class Missed:
    """Envelopes that we were not given, or did not take in time; ids where they are known."""

    count: int
    first: str = ""
    last: str = ""
    because: str = ""


@dataclass(frozen=True, slots=True)
class Misbehaviour:
    """What was dropped, and why; `count` is how often its sender did such a thing.

    The sender is empty where the envelope could not even be read.
    """

    sender: str
    because: str
    id: str = ""
    kind: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The gateway cannot be reached just now; it is tried again."""

    because: str


@dataclass(frozen=True, slots=True)
class Reconnected:
    """We are in the topic again; `attempts` is how many it took."""

    attempts: int


type Event = (
    Chat
    | Request
    | Response
    | Proposal
    | Rejection
    | Withdrawal
    | Other
    | Fulfilment
    | Welcome
    | Presence
    | Refused
    | Notice
    | Missed
    | Misbehaviour
    | Disconnected
    | Reconnected
)
