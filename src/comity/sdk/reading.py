"""Every envelope is doubted until it is what it says; what fails is dropped and told. (MCPx §4.3)

Rule 1: nothing is told, remembered or acted on before all of it was checked.
Rule 2: a kind is true to its payload in METHOD and CONTEXT; a response to the kind it answers.
Rule 3: only the gateway speaks of the system, and it speaks of nothing else.
Rule 4: who sends what is dropped is counted, in a table that cannot be made to grow.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, cast

import msgspec

from comity.rules.kinds import Kind, is_reserved, mismatch, parse
from comity.rules.proposals import Happened
from comity.sdk.bounded import Bounded
from comity.sdk.events import (
    Chat,
    Event,
    Misbehaviour,
    Other,
    Payload,
    Proposal,
    Rejection,
    Request,
    Response,
    Withdrawal,
)
from comity.sdk.following import Following
from comity.sdk.gateway_words import from_gateway
from comity.sdk.seen import Seen, Step
from comity.wire import envelope as wire
from comity.wire.envelope import Envelope, Limits
from comity.wire.errors import MalformedMessage
from comity.wire.jsonrpc import LARGEST_ID, Id
from comity.wire.parties import GATEWAY

RECEIVED: Final = Limits(envelope_bytes=4 * 1024 * 1024)
"""A gateway may be set to let members send more than we would; this is the most we read."""

MOST_SENDERS: Final = 1_000
FORMATS: Final = ("plain", "markdown")
_LONGEST_ID: Final = 256
_SHOWN: Final = 200


class Asked(NamedTuple):
    """A request of ours that waits for its answer."""

    step: Step
    rpc_id: Id


type Read = Event | str
"""What an envelope is, or why it is nothing."""


class Reading:
    """All that one participant is sent, in the order in which it comes."""

    def __init__(self, following: Following, *, has_later_kinds: bool = False) -> None:
        self.me = ""
        self.seen = Seen()
        self.following = following
        self.asked: dict[str, Asked] = {}
        self._counts: Bounded[int] = Bounded(MOST_SENDERS, MOST_SENDERS * _LONGEST_ID * 2)
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
        """How often each sender sent what had to be dropped."""
        return {sender: self._counts.get(sender) or 0 for sender in self._counts}

    def read(self, data: bytes) -> list[Event]:
        """What follows from one frame: usually one event, none for our own echo."""
        try:
            envelope = wire.decode(data, RECEIVED)
            payload = cast("dict[str, object]", msgspec.json.decode(envelope.payload))
        except MalformedMessage as error:
            return [self.blame("", str(error), *wire.named(data))]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return [self.blame("", "the payload cannot be read")]
        if envelope.sender == GATEWAY:
            return self._given(envelope, from_gateway(envelope, payload, self.me))
        # Before the welcome nobody is anybody. What we say here is known by its id when it comes
        # back; what we said before we came is in the history of a topic, and is told like others'.
        return self._from_member(envelope, payload) if self.me else []

    def said(self, envelope: Envelope) -> None:
        """Remember what we say ourselves."""
        self.seen.add(envelope)

    def blame(self, sender: str, because: str, id: str = "", kind: str = "") -> Misbehaviour:
        count = (self._counts.get(sender) or 0) + 1
        self._counts.put(sender, count)
        return Misbehaviour(sender, because[:_SHOWN], id, kind, count)

    def _from_member(self, envelope: Envelope, payload: Payload) -> list[Event]:
        if is_reserved(envelope.kind):
            return self._given(envelope, "only the gateway may send this kind")
        before = self.seen.get(envelope.id)
        if before is not None:
            # Given again after a cut, it is no news; from another, it is an attempt.
            taken = before.sender != envelope.sender
            return self._given(envelope, "its id is another's") if taken else []
        read = self._of_family.get(parse(envelope.kind).family, _other)(envelope, payload)
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
        because = _why_no_answer(envelope, payload, step)
        if because:
            return because
        if mine is not None and not _is_same_id(payload.get("id"), mine.rpc_id):
            return "its payload answers another id than the request has"
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
        happened = Happened.REJECTION if is_rejection else Happened.WITHDRAWAL
        if self.following.get(envelope.correlation_id) is None:
            return Other(envelope, payload)
        ended = self.following.ended(envelope.correlation_id, happened, envelope.sender)
        if ended is None:
            return "this proposal is not its to end, or is over"
        return (Rejection if is_rejection else Withdrawal)(envelope, ended, reason)


def _chat(envelope: Envelope, payload: Payload) -> Read:
    text, form = payload.get("text"), payload.get("format", FORMATS[0])
    if not isinstance(text, str):
        return "a chat has a text"
    if form not in FORMATS:
        return f"the format of a chat is one of {', '.join(FORMATS)}"
    return Chat(envelope, text, str(form))


def _request(envelope: Envelope, payload: Payload) -> Read:
    because = mismatch(parse(envelope.kind), payload)
    params = _object(payload.get("params", {}))
    if because or params is None:
        return because or "params are an object"
    if "id" not in payload:
        return Request(envelope, str(payload["method"]), params)
    rpc_id = payload["id"]
    if not _is_id(rpc_id):
        return "the id of a request is a text or a whole number"
    return Request(envelope, str(payload["method"]), params, cast("Id", rpc_id))


def _proposal(envelope: Envelope, payload: Payload) -> Read:
    because = mismatch(parse(envelope.kind), payload)
    params = _object(payload.get("params", {}))
    if because or params is None:
        return because or "params are an object"
    return Proposal(envelope, str(payload["method"]), params)


def _other(envelope: Envelope, payload: Payload) -> Read:
    return Other(envelope, payload)


def _why_no_answer(envelope: Envelope, payload: Payload, step: Step | None) -> str:
    """Why a response cannot be one, whoever waits for it; empty where it can."""
    if not envelope.correlation_id:
        return "a response names the request it answers in correlation_id"
    asked: Kind | None = None if step is None else step.kind
    if step is not None and step.kind.family != wire.REQUEST:
        return "what it answers is no request"
    if step is not None and not step.may_be_answered_by(envelope.sender):
        return "it answers a request that was not addressed to it"
    if payload.get("jsonrpc") != "2.0":
        return "the payload is no JSON-RPC 2.0 message"
    return mismatch(parse(envelope.kind), payload, asked)


def _object(value: object) -> Payload | None:
    return cast("Payload", value) if isinstance(value, dict) else None


def _is_id(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_ID
    return type(value) is int and abs(value) <= LARGEST_ID


def _is_same_id(one: object, other: Id) -> bool:
    return type(one) is type(other) and one == other


def _is_error(error: Payload) -> bool:
    return type(error.get("code")) is int and isinstance(error.get("message"), str)
