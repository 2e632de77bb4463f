"""Envelopes of a topic, checked on the way in and built on the way out. (MCPx §3, §4.3)"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple, cast
from uuid import uuid4

import msgspec

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.mcp.actors import GATEWAY
from comity.mcp.jsonrpc import MAX_ID_BYTES, Id
from comity.sdk.topics.events import (
    Chat,
    EnvelopeRefusal,
    Event,
    MemberMisbehaviour,
    MissedEnvelopes,
    Notice,
    Payload,
    Presence,
    Proposal,
    Rejection,
    Request,
    Response,
    UnknownKindMessage,
    Welcome,
    Withdrawal,
)
from comity.sdk.topics.state import (
    BoundedOwnerCache,
    EnvelopeHistory,
    EnvelopeSummary,
    MemberProposalTracker,
)
from comity.topics import envelope as wire
from comity.topics.envelope import (
    Envelope,
    EnvelopeHeader,
    EnvelopeKind,
    EnvelopeLimits,
    is_reserved,
    mismatch_reason,
    of_payload,
    parse_kind,
)
from comity.topics.rules import LATER_KINDS, ProposalEvent, TopicCapabilities, is_capability

MOST_CAPABILITIES: Final = 1_000
_SHOWN: Final = 1_000

type Member = tuple[str, tuple[str, ...]]


def from_gateway(envelope: Envelope, payload: Payload, me: str) -> Event | str | None:
    """The event in an envelope of the gateway, a reason why it is invalid, or None.

    None means that the envelope is for another participant.
    """
    read = _READ.get(envelope.kind)
    if read is None:
        return "the gateway sends no such kind"
    if me and envelope.to and me not in envelope.to:
        return None
    if envelope.kind != wire.WELCOME and not me:
        return "the gateway spoke before its welcome"
    return read(envelope, payload)


def _welcome(envelope: Envelope, payload: Payload) -> Event | str:
    you, others = _member(payload.get("you")), payload.get("participants", [])
    if you is None or not isinstance(others, list):
        return "a welcome needs you and participants"
    if envelope.to and you[0] not in envelope.to:
        return "the welcome is for another participant"
    members = [_member(each) for each in cast("list[object]", others)]
    known = dict(each for each in members if each is not None and each[0] != you[0])
    return Welcome(you[0], you[1], known)


def _presence(envelope: Envelope, payload: Payload) -> Event | str:
    event, who = payload.get("event"), _member(payload.get("participant"))
    if event not in (wire.JOIN, wire.LEAVE) or who is None:
        return "presence needs an event and a participant"
    return Presence(str(event), *who)


def _error(envelope: Envelope, payload: Payload) -> Event | str:
    error, message = payload.get("error"), payload.get("message", "")
    if not isinstance(error, str) or not isinstance(message, str):
        return "an error has a name and a message"
    attempted = payload.get("attempted_kind", "")
    return EnvelopeRefusal(
        envelope.correlation_id, error[:_SHOWN], message[:_SHOWN], str(attempted)[:_SHOWN]
    )


def _notice(envelope: Envelope, payload: Payload) -> Event | str:
    notice, message = payload.get("notice"), payload.get("message", "")
    if not isinstance(notice, str) or not isinstance(message, str):
        return "a notice has a name and a message"
    ask = str(payload.get("approval") or "")
    return Notice(envelope.correlation_id, notice[:_SHOWN], message[:_SHOWN], ask[:_SHOWN])


def _missed(envelope: Envelope, payload: Payload) -> Event | str:
    count = payload.get("count")
    if type(count) is not int or count < 0:
        return "count must be a number of envelopes"
    first, last, reason = (
        str(payload.get(name) or "")[:_SHOWN] for name in ("first", "last", "reason")
    )
    return MissedEnvelopes(count, first, last, reason)


def _member(value: object) -> Member | None:
    if not isinstance(value, dict):
        return None
    said = cast("dict[str, object]", value)
    id, listed = said.get("id"), said.get("capabilities")
    if not isinstance(id, str) or not id or not isinstance(listed, list | None):
        return None
    given = cast("list[object]", listed or [])[:MOST_CAPABILITIES]
    return id, tuple(each for each in given if isinstance(each, str) and is_capability(each))


_READ: Final[dict[str, Callable[[Envelope, Payload], Event | str]]] = {
    wire.WELCOME: _welcome,
    wire.PRESENCE: _presence,
    wire.ERROR: _error,
    wire.NOTICE: _notice,
    wire.MISSED: _missed,
}


RECEIVED: Final = EnvelopeLimits(envelope_bytes=4 * 1024 * 1024)
"""The limit for reading. A gateway may allow larger envelopes than this SDK sends."""

MOST_SENDERS: Final = 1_000
FORMATS: Final = ("plain", "markdown")
_MAX_ID_LENGTH: Final = 256
_READING_SHOWN: Final = 200


class PendingMemberRequest(NamedTuple):
    """A request of ours that waits for its answer."""

    step: EnvelopeSummary
    rpc_id: Id


type Read = Event | str
"""The event in an envelope, or the reason why it is invalid."""


class ParticipantEnvelopeReader:
    """Reads the envelopes to one participant, in the order in which they arrive."""

    def __init__(self, following: MemberProposalTracker, *, has_later_kinds: bool = False) -> None:
        self.me = ""
        self.seen = EnvelopeHistory()
        self.following = following
        self.asked: dict[str, PendingMemberRequest] = {}
        self._counts: BoundedOwnerCache[int] = BoundedOwnerCache(
            MOST_SENDERS, MOST_SENDERS * _MAX_ID_LENGTH * 2
        )
        self._of_family: dict[str, Callable[[Envelope, Payload], Read]] = {
            wire.CHAT: _chat,
            wire.REQUEST: _request,
            wire.RESPONSE: self._response,
            wire.PROPOSAL: _proposal,
        }
        if has_later_kinds:
            self._of_family |= {wire.REJECT: self._ending, wire.WITHDRAW: self._ending}

    @property
    def reputation(self) -> Mapping[str, int]:
        """The number of dropped envelopes of each sender."""
        return {sender: self._counts.get(sender) or 0 for sender in self._counts}

    def read(self, data: bytes) -> list[Event]:
        """The events of one frame: usually one, and none for the echo of our own envelope."""
        try:
            envelope = wire.decode_envelope(data, RECEIVED)
            payload = cast("dict[str, object]", msgspec.json.decode(envelope.payload))
        except MalformedMessage as error:
            return [self.blame("", str(error), *wire.identify_envelope(data))]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return [self.blame("", "the payload cannot be read")]
        if envelope.sender == GATEWAY:
            return self._given(envelope, from_gateway(envelope, payload, self.me))
        # Before the welcome no member is known. Envelopes of this connection are known by their id
        # when they come back. Our earlier envelopes are in the history, and are events as others'.
        return self._from_member(envelope, payload) if self.me else []

    def said(self, envelope: Envelope) -> None:
        """Remember an envelope that we send."""
        self.seen.add(envelope)

    def blame(self, sender: str, because: str, id: str = "", kind: str = "") -> MemberMisbehaviour:
        count = (self._counts.get(sender) or 0) + 1
        self._counts.put(sender, count)
        return MemberMisbehaviour(sender, because[:_READING_SHOWN], id, kind, count)

    def _from_member(self, envelope: Envelope, payload: Payload) -> list[Event]:
        if is_reserved(envelope.kind):
            return self._given(envelope, "only the gateway may send this kind")
        before = self.seen.get(envelope.id)
        if before is not None:
            # The same sender repeats it after a cut; another sender tries to use its id.
            taken = before.sender != envelope.sender
            return self._given(envelope, "another sender used this id before") if taken else []
        read = self._of_family.get(parse_kind(envelope.kind).family, _other)(envelope, payload)
        events = self._given(envelope, read)
        if not isinstance(read, str):
            self.seen.add(envelope)
            events += self._followed(read)
        return events

    def _given(self, envelope: Envelope, read: Read | None) -> list[Event]:
        if read is None:
            return []
        if isinstance(read, str):
            return [self.blame(envelope.sender, read, envelope.id, envelope.kind)]
        return [read]

    def _followed(self, event: Event) -> list[Event]:
        if isinstance(event, Proposal):
            self.following.begin(event)
        elif isinstance(event, Request):
            fulfilment = self.following.fulfilled_by(event)
            return [] if fulfilment is None else [fulfilment]
        elif isinstance(event, Response):
            self.following.answered_by(event)
        return []

    def _response(self, envelope: Envelope, payload: Payload) -> Read:
        mine = self.asked.get(envelope.correlation_id)
        step = mine.step if mine is not None else self.seen.get(envelope.correlation_id)
        reason = _why_no_answer(envelope, payload, step)
        if reason:
            return reason
        if mine is not None and not _is_same_id(payload.get("id"), mine.rpc_id):
            return "its payload has another id than the request"
        result, error = (_object(payload.get(name)) for name in ("result", "error"))
        if result is None and error is None:
            return "a result and an error are objects"
        if error is not None and not _is_error(error):
            return "an error has a code and a message"
        return Response(envelope, result, error, None if step is None else step.kind)

    def _ending(self, envelope: Envelope, payload: Payload) -> Read:
        reason = payload.get("reason", "")
        if not isinstance(reason, str):
            return "reason is a text"
        is_rejection = envelope.kind == wire.REJECT
        happened = ProposalEvent.REJECTION if is_rejection else ProposalEvent.WITHDRAWAL
        if self.following.get(envelope.correlation_id) is None:
            return UnknownKindMessage(envelope, payload)
        ended = self.following.ended(envelope.correlation_id, happened, envelope.sender)
        if ended is None:
            return "the sender may not end this proposal, or it has ended"
        return (Rejection if is_rejection else Withdrawal)(envelope, ended, reason)


def _chat(envelope: Envelope, payload: Payload) -> Read:
    text, form = payload.get("text"), payload.get("format", FORMATS[0])
    if not isinstance(text, str):
        return "a chat has a text"
    if form not in FORMATS:
        return f"the format of a chat is one of {', '.join(FORMATS)}"
    return Chat(envelope, text, str(form))


def _request(envelope: Envelope, payload: Payload) -> Read:
    reason = mismatch_reason(parse_kind(envelope.kind), payload)
    params = _object(payload.get("params", {}))
    if reason or params is None:
        return reason or "params are an object"
    if "id" not in payload:
        return Request(envelope, str(payload["method"]), params)
    rpc_id = payload["id"]
    if not _is_id(rpc_id):
        return "the id of a request is a text or a whole number"
    return Request(envelope, str(payload["method"]), params, cast("Id", rpc_id))


def _proposal(envelope: Envelope, payload: Payload) -> Read:
    reason = mismatch_reason(parse_kind(envelope.kind), payload)
    params = _object(payload.get("params", {}))
    if reason or params is None:
        return reason or "params are an object"
    return Proposal(envelope, str(payload["method"]), params)


def _other(envelope: Envelope, payload: Payload) -> Read:
    return UnknownKindMessage(envelope, payload)


def _why_no_answer(envelope: Envelope, payload: Payload, step: EnvelopeSummary | None) -> str:
    """The reason why a response is invalid; empty if it is valid."""
    if not envelope.correlation_id:
        return "a response must name its request in correlation_id"
    asked: EnvelopeKind | None = None if step is None else step.kind
    if step is not None and step.kind.family != wire.REQUEST:
        return "its correlation_id names no request"
    if step is not None and not step.may_be_answered_by(envelope.sender):
        return "it answers a request that was not addressed to it"
    if payload.get("jsonrpc") != "2.0":
        return "the payload is no JSON-RPC 2.0 message"
    return mismatch_reason(parse_kind(envelope.kind), payload, asked)


def _object(value: object) -> Payload | None:
    return cast("Payload", value) if isinstance(value, dict) else None


def _is_id(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_ID_LENGTH
    return type(value) is int and abs(value) <= MAX_ID_BYTES


def _is_same_id(one: object, other: Id) -> bool:
    return type(one) is type(other) and one == other


def _is_error(error: Payload) -> bool:
    return type(error.get("code")) is int and isinstance(error.get("message"), str)


JSONRPC: Final = "2.0"

type Recipients = str | Iterable[str] | None


@dataclass(frozen=True, slots=True)
class EnvelopeDraft:
    """An envelope to send: kind, payload, recipients and correlation."""

    kind: str
    payload: Payload
    to: tuple[str, ...] = ()
    correlation_id: str = ""


def recipients_of(to: Recipients) -> tuple[str, ...]:
    if to is None:
        return ()
    return (to,) if isinstance(to, str) else tuple(dict.fromkeys(to))


def draft_chat(
    text: str, to: Recipients = None, form: str = "plain", reply_to: str = ""
) -> EnvelopeDraft:
    return EnvelopeDraft(wire.CHAT, {"text": text, "format": form}, recipients_of(to), reply_to)


def draft_request(
    method: str, params: Payload, rpc_id: Id | None, to: Recipients, fulfils: str = ""
) -> EnvelopeDraft:
    """A request; without an id it is a notification."""
    payload: dict[str, object] = {"jsonrpc": JSONRPC, "method": method, "params": params}
    if rpc_id is not None:
        payload["id"] = rpc_id
    return EnvelopeDraft(kind_of(wire.REQUEST, method, params), payload, recipients_of(to), fulfils)


def draft_proposal(method: str, params: Payload, to: Recipients) -> EnvelopeDraft:
    payload = {"method": method, "params": params}
    return EnvelopeDraft(kind_of(wire.PROPOSAL, method, params), payload, recipients_of(to))


def draft_response(asked: Request, body: Mapping[str, object], proposer: str = "") -> EnvelopeDraft:
    """The answer to a request: `body` has its result or its error."""
    kind = str(asked.kind._replace(family=wire.RESPONSE))
    payload = {"jsonrpc": JSONRPC, "id": asked.rpc_id, **body}
    to = (asked.sender, proposer) if proposer else (asked.sender,)
    return EnvelopeDraft(kind, payload, recipients_of(to), asked.id)


def kind_of(family: str, method: str, params: Payload) -> str:
    """The kind of a request or proposal, without a context that is no valid part of a kind."""
    if not method or ":" in method:
        raise MalformedMessage(f"{method!r:.80} is no method: name one as tools/call")
    found = of_payload(family, {"method": method, "params": dict(params)})
    can_be_held = found.context.isascii() and found.context.isprintable()
    if not can_be_held or " " in found.context or len(str(found)) > wire.LIMITS.kind_characters:
        found = EnvelopeKind(family, method)
    return str(found)


def why_not(kind: str, may: TopicCapabilities, *, has_later_kinds: bool) -> Exception | None:
    """The error for a kind that this participant may not send, or None."""
    if is_reserved(kind):
        return MalformedMessage(f"{kind!r:.80} is the gateway's own; send a chat or an mcp/ kind")
    if kind in LATER_KINDS and not has_later_kinds:
        return PermissionError(
            f"{kind} is no kind of {wire.PROTOCOL}: where the topic allows it, join with "
            "Options(has_later_kinds=True)"
        )
    if may.allows(kind):
        return None
    other = f"{wire.PROPOSAL}{kind.removeprefix(wire.REQUEST)}"
    if kind.startswith(f"{wire.REQUEST}:") and may.allows(other):
        advice = "propose it instead, or let request() do so"
    else:
        advice = "ask an operator of the topic to grant it"
    return PermissionError(f"you lack the capability for {kind!r:.200}: {advice}")


def seal_envelope(draft: EnvelopeDraft, sender: str) -> tuple[Envelope, bytes]:
    """Encode an envelope and decode it again as a check. Raises MalformedMessage."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    heading = EnvelopeHeader(str(uuid4()), now, draft.to, draft.correlation_id)
    try:
        data = wire.encode_envelope(wire.build_envelope(heading, sender, draft.kind, draft.payload))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        reason = f"this cannot be encoded as JSON: {error}"
        raise MalformedMessage(reason, INVALID_PARAMS) from None
    return wire.decode_envelope(data), data
