"""Approval requests, their states and transitions, and their store interface."""

import hashlib
from base64 import b32hexencode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from comity.mcp import jsonrpc
from comity.mcp.actors import Actor, PrincipalKind
from comity.storage.values import (
    DEPTH,
    check_name,
    clean_words,
    decode_document,
    encode_document,
    encode_names,
    refused_value,
    to_utc,
)

_EMPTY: Final[Mapping[str, object]] = MappingProxyType({})

META_KEY: Final = "dev.comity/approval"
"""The member of `_meta` that names the approval request of a message."""

ANSWER_VERB: Final = "approval/answer"
ANSWER_OWN_VERB: Final = "approval/answer_own"
"""The verbs to answer the requests of others, and one's own. Only people may have them."""


SIGN_IN_PATH: Final = "/accounts/connect/"
"""The page of a request of kind `sign_in`, where the owner of an account connects it."""

OWNER: Final = "owner"
"""The member of `about` that names the person whose account a `sign_in` request needs."""

DESCRIPTION: Final = "description"
RISK_REASONS: Final = "risk_reasons"
TOOL_FACTS: Final = frozenset({DESCRIPTION, RISK_REASONS})
"""The members of `about` with what approvers read of a tool, as it was when it was called."""

SCOPE: Final = "scope"
"""The member of `about` with the scope that a `confirm` request also approves, if it needs one."""


class ApprovalKind(StrEnum):
    """The subject of a request. `comity.approvals.kinds.KINDS` has the rules for each kind."""

    CONFIRM = "confirm"
    PERMISSION = "permission"
    INPUT = "input"
    SELECT = "select"
    NOTICE = "notice"
    SIGN_IN = "sign_in"
    REGISTRATION = "registration"
    SCOPE = "scope"
    BUDGET = "budget"
    SAMPLING = "sampling"


class ApprovalState(StrEnum):
    """The state of a request. A `consumed` one was approved and has authorised its one use."""

    PENDING = "pending"
    APPROVED = "approved"
    CONSUMED = "consumed"
    DENIED = "denied"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    DEFERRED = "deferred"


class ApprovalDecision(StrEnum):
    """The decision of one approver."""

    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"
    DEFER = "defer"


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """The answer of one approver."""

    by: str
    verdict: ApprovalDecision
    at: datetime
    reason: str = ""
    content: Mapping[str, object] = _EMPTY
    """The fields and the choice of the approver."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A question to people. `digest` binds its answer to exactly one subject.

    `about` is what people read. It has passed redaction and holds no secret. `schema` and `options`
    say what an answer must hold where it is more than yes or no. `own` is whether the asker may
    answer it. `quorum` is how many people must accept. `expires_at` is the end of the time to
    answer and, once the request is accepted, the end of the approval.
    """

    id: str
    kind: ApprovalKind
    asker: str
    server: str
    tool: str
    digest: str
    message: str
    about: Mapping[str, object]
    created_at: datetime
    expires_at: datetime
    state: ApprovalState = ApprovalState.PENDING
    quorum: int = 1
    own: bool = False
    trace: str = ""
    options: tuple[str, ...] = ()
    schema: Mapping[str, object] | None = None
    answers: tuple[ApprovalAnswer, ...] = ()
    call: str = ""
    """The call that consumed the approval."""
    ended_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        return self.state in (ApprovalState.PENDING, ApprovalState.DEFERRED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDraft:
    """A question that a domain has. `ApprovalService` makes an `ApprovalRequest` of it.

    The members are those of the request. `open_for` replaces the usual time to answer.
    """

    kind: ApprovalKind
    asker: str
    digest: str
    message: str
    about: Mapping[str, object]
    server: str = ""
    tool: str = ""
    quorum: int = 1
    own: bool = False
    trace: str = ""
    options: tuple[str, ...] = ()
    schema: Mapping[str, object] | None = None
    open_for: timedelta | None = None


class ApprovalEvent(StrEnum):
    """An event that changes the state of a request."""

    APPROVED = "approved"
    DENIED = "denied"
    CANCELLED = "cancelled"
    DEFERRED = "deferred"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    CONSUMED = "consumed"
    RELEASED = "released"


_OPEN_STATES: Final = (ApprovalState.PENDING, ApprovalState.DEFERRED)
TRANSITIONS: Final[Mapping[tuple[ApprovalState, ApprovalEvent], ApprovalState]] = {
    **{(state, ApprovalEvent.APPROVED): ApprovalState.APPROVED for state in _OPEN_STATES},
    **{(state, ApprovalEvent.DENIED): ApprovalState.DENIED for state in _OPEN_STATES},
    **{(state, ApprovalEvent.CANCELLED): ApprovalState.CANCELLED for state in _OPEN_STATES},
    (ApprovalState.PENDING, ApprovalEvent.DEFERRED): ApprovalState.DEFERRED,
    **{
        (state, ApprovalEvent.EXPIRED): ApprovalState.EXPIRED
        for state in (*_OPEN_STATES, ApprovalState.APPROVED)
    },
    **{
        (state, ApprovalEvent.WITHDRAWN): ApprovalState.WITHDRAWN
        for state in (*_OPEN_STATES, ApprovalState.APPROVED)
    },
    (ApprovalState.APPROVED, ApprovalEvent.CONSUMED): ApprovalState.CONSUMED,
    # The call that consumed the approval never left, so the approval is valid again.
    (ApprovalState.CONSUMED, ApprovalEvent.RELEASED): ApprovalState.APPROVED,
}
LIVE_STATES: Final = (*_OPEN_STATES, ApprovalState.APPROVED)
"""The states of a request that can still authorise a call."""

EVENT_BY_END_STATE: Final[Mapping[ApprovalState, ApprovalEvent]] = {
    ApprovalState.WITHDRAWN: ApprovalEvent.WITHDRAWN,
    ApprovalState.CANCELLED: ApprovalEvent.CANCELLED,
    ApprovalState.EXPIRED: ApprovalEvent.EXPIRED,
}
"""How a request ends without an answer."""

OWN_REQUEST_TEXT: Final = (
    f"it is your own request. To approve your own requests you need the grant "
    f"{ANSWER_OWN_VERB}, or the "
    "verb * on * together with approve_own = true in [policy]"
)
NEVER_OWN_TEXT: Final = "it is your own request; another person must answer it"
RANDOM_ID_BYTES: Final = 10
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def new_request_id(at: datetime, random_bytes: bytes) -> str:
    """Return an id that sorts by time: 48 bits of milliseconds, then 80 random bits."""
    millis = max(0, (at - _EPOCH) // _MILLISECOND)
    whole = millis.to_bytes(6) + random_bytes[:RANDOM_ID_BYTES].rjust(RANDOM_ID_BYTES, b"\0")
    # Of the base 32 alphabets, only this one sorts as its bytes do.
    return b32hexencode(whole).decode().rstrip("=").lower()


def next_state(state: ApprovalState, event: ApprovalEvent) -> ApprovalState | None:
    return TRANSITIONS.get((state, event))


def states_before(event: ApprovalEvent) -> frozenset[ApprovalState]:
    """Return the states in which this can happen."""
    return frozenset(state for state, what in TRANSITIONS if what is event)


def event_of_answers(answers: Sequence[ApprovalAnswer], quorum: int) -> ApprovalEvent | None:
    """Return the event that all answers so far cause; None if more people must answer."""
    said = [answer.verdict for answer in answers]
    if ApprovalDecision.DECLINE in said:
        return ApprovalEvent.DENIED
    if ApprovalDecision.CANCEL in said:
        return ApprovalEvent.CANCELLED
    if said.count(ApprovalDecision.ACCEPT) >= quorum:
        return ApprovalEvent.APPROVED
    return ApprovalEvent.DEFERRED if said and said[-1] is ApprovalDecision.DEFER else None


def apply_event(
    request: ApprovalRequest, event: ApprovalEvent, at: datetime
) -> ApprovalRequest | None:
    """Return the request after an event; None where the event is impossible in its state."""
    state = next_state(request.state, event)
    if state is None:
        return None
    return replace(request, state=state, ended_at=None if state in LIVE_STATES else at)


def add_answer(
    request: ApprovalRequest, answer: ApprovalAnswer, until: datetime
) -> ApprovalRequest | None:
    """Return the request with one more answer; None where it takes no answer.

    A person answers once. Only a person who deferred may answer again.
    """
    if not request.is_open or request.expires_at <= answer.at:
        return None
    others = tuple(each for each in request.answers if each.by != answer.by)
    spoken = [each.verdict for each in request.answers if each.by == answer.by]
    if spoken and (spoken != [ApprovalDecision.DEFER] or answer.verdict is ApprovalDecision.DEFER):
        return None
    heard = replace(request, answers=(*others, answer))
    what = event_of_answers(heard.answers, request.quorum)
    after_it = heard if what is None else apply_event(heard, what, answer.at) or heard
    return replace(after_it, expires_at=until) if what is ApprovalEvent.APPROVED else after_it


OPERATORS_ONLY_TEXT: Final = (
    "in local mode an answer needs the operator token; use `comity approve`, or open the page by a "
    "link from `comity approvals link`"
)


MEMBER_TOOL: Final = "member"
"""Replaces the definition of a tool of a topic's member, which the gateway does not know."""


def answer_refusal_reason(
    request: ApprovalRequest, actor: Actor, *, may_answer: bool, may_answer_own: bool
) -> str | None:
    """Return why an actor cannot answer a request, or None if it can.

    The caller has evaluated the grants before.
    """
    if actor.kind is not PrincipalKind.PERSON:
        return "only a person can answer this"
    if actor.lacks_token:
        return OPERATORS_ONLY_TEXT
    if actor.party == request.asker:
        return (
            None
            if request.own and may_answer_own
            else OWN_REQUEST_TEXT
            if request.own
            else NEVER_OWN_TEXT
        )
    return (
        None
        if may_answer
        else f"you need the grant {ANSWER_VERB}{_subject_text(request)}; see `comity grants`"
    )


def describe_approvers(request: ApprovalRequest) -> str:
    """Return the approvers, described by their grant, because not every actor may see names."""
    many = "a person" if request.quorum == 1 else f"{request.quorum} people"
    return f"{many} with the grant {ANSWER_VERB}{_subject_text(request)}"


def _subject_text(request: ApprovalRequest) -> str:
    return f" for {request.server}/{request.tool}" if request.server and request.tool else ""


def call_digest(
    asker: str, server: str, tool: str, definition: str, arguments: object, key: bytes = b""
) -> str:
    """Return what an answer is bound to. The key prevents guessing the arguments."""
    whole = [asker, server, tool, definition, arguments]
    return arguments_digest(whole, key)


_encode_in_order: Final = msgspec.json.Encoder(order="deterministic").encode


def arguments_digest(arguments: object, key: bytes = b"") -> str:
    """Return the digest of the arguments of a call, to compare them without showing them."""
    return hashlib.blake2b(_encode_in_order(arguments), key=key[:64], digest_size=32).hexdigest()


PAGE_SIZE: Final = 250


@dataclass(frozen=True, slots=True)
class ApprovalFilter:
    """Which requests to find. An empty member matches all."""

    states: tuple[ApprovalState, ...] = ()
    kind: ApprovalKind | None = None
    asker: str = ""
    server: str = ""
    tool: str = ""
    # Part of the message, of the tool's name or of the asker's, in any case.
    text: str = ""
    newest_first: bool = False
    # The id of the last request of the page before.
    after: str = ""


class ApprovalStore(Protocol):
    async def open(self, request: ApprovalRequest, *, with_notice: bool = False) -> ApprovalRequest:
        """Keep a new request, or return the live one with the same digest.

        At most one live request has the same digest. This method ends an expired one.
        """
        ...

    async def get(self, id: str) -> ApprovalRequest | None: ...

    async def find_latest(self, digest: str) -> ApprovalRequest | None:
        """Return the newest request with this digest, in any state."""
        ...

    async def page(
        self, states: Collection[ApprovalState] = (), after: str = "", limit: int = PAGE_SIZE
    ) -> Sequence[ApprovalRequest]:
        """Return requests by id, which sorts by time, after this id. No states means all."""
        ...

    async def find(
        self, criteria: ApprovalFilter, limit: int = PAGE_SIZE
    ) -> Sequence[ApprovalRequest]:
        """Return the requests that match, by id."""
        ...

    async def count_matches(self, criteria: ApprovalFilter) -> int:
        """Return how many requests match, whatever the page."""
        ...

    async def count(self, states: Collection[ApprovalState]) -> int: ...

    async def answer(
        self, id: str, answer: ApprovalAnswer, until: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        """Add an answer, and take the step that follows from all answers.

        `until` is when an approval ends. Returns None if the request is not open or past its
        time, or where this person has answered already and not deferred.
        """
        ...

    async def consume(
        self, id: str, call: str, at: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        """Consume an approval for one call. Returns None for all callers but the first."""
        ...

    async def release(self, id: str, call: str) -> ApprovalRequest | None:
        """Make an approval valid again whose call never left.

        Returns None if another request with the same digest has taken its place.
        """
        ...

    async def end(
        self, id: str, state: ApprovalState, at: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        """Withdraw, cancel or expire a request that is open, or accepted and not used."""
        ...

    async def expire(
        self, at: datetime, limit: int = PAGE_SIZE, *, with_notice: bool = False
    ) -> Sequence[ApprovalRequest]:
        """End the requests that are past their time, the oldest first, and return them."""
        ...

    async def erase_content(self, id: str) -> None:
        """Delete the content of the answers. The approvers and their decisions stay."""
        ...


MAX_DOCUMENT_BYTES: Final = 64 * 1024
"""The limit of each of the documents of a request: `about`, `schema` and the content."""

MAX_QUORUM: Final = 100


def checked_request(request: ApprovalRequest) -> ApprovalRequest:
    """Return a new request as every store keeps it. Raises where it is not new."""
    if request.state is not ApprovalState.PENDING or request.answers or request.call:
        raise refused_value("a new approval request must be pending, without answers")
    if not 1 <= request.quorum <= MAX_QUORUM:
        raise refused_value(f"from 1 to {MAX_QUORUM} people must approve a request")
    for text, what in ((request.id, "id"), (request.asker, "asker"), (request.digest, "digest")):
        check_name(text, f"the {what} of an approval request")
    for text, what in (
        (request.server, "server"),
        (request.tool, "tool"),
        (request.trace, "trace"),
    ):
        check_name(text or "-", f"the {what} of an approval request")
    encode_names(request.options, MAX_DOCUMENT_BYTES)
    return replace(
        request,
        message=clean_words(request.message),
        about=check_document_size(request.about, "the subject of an approval request"),
        schema=None
        if request.schema is None
        else check_document_size(request.schema, "the schema of an approval request"),
        created_at=to_utc(request.created_at),
        expires_at=to_utc(request.expires_at),
        ended_at=None,
    )


def checked_answer(answer: ApprovalAnswer, request: ApprovalRequest) -> ApprovalAnswer:
    """Return an answer as every store keeps it. Raises for the asker's own answer. (D-98)"""
    check_name(answer.by, "who answers")
    if answer.by == request.asker and not request.own:
        raise refused_value(NEVER_OWN_TEXT)
    return replace(
        answer,
        at=to_utc(answer.at),
        reason=clean_words(answer.reason),
        content=check_document_size(answer.content, "the content of the answer"),
    )


def check_document_size(entry: Mapping[str, object], what: str) -> Mapping[str, object]:
    written = encode_document(entry, what, MAX_DOCUMENT_BYTES)
    if jsonrpc.excess_reason(written.encode(), DEPTH):
        raise refused_value(f"{what} is nested at most {DEPTH} deep")
    return decode_document(written)
