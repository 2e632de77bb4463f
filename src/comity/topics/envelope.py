"""Envelopes of MCPx, their kinds, and the MCP requests inside them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct, UnsetType

from comity.errors import INVALID_REQUEST, MalformedMessage
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.jsonrpc import UNSET, Frame

PROTOCOL: Final = "mcpx/v0.1"
CHAT: Final = "chat"
REQUEST: Final = "mcp/request"
RESPONSE: Final = "mcp/response"
PROPOSAL: Final = "mcp/proposal"
REJECT: Final = "mcp/reject"
WITHDRAW: Final = "mcp/withdraw"
"""Kinds of later versions of the document. They are off unless a topic enables them. (D-46)"""

WELCOME: Final = "system/welcome"
PRESENCE: Final = "system/presence"
ERROR: Final = "system/error"
MISSED: Final = "system/missed"
"""Comity's own kind: the number of envelopes that a slow or absent member has missed."""

NOTICE: Final = "system/notice"
"""Comity's own kind: the state of a proposal or call, for example that it awaits approval."""

JOIN: Final = "join"
LEAVE: Final = "leave"

MAX_RECIPIENTS: Final = 1_000
MAX_TIMESTAMP_LENGTH: Final = 64
MAX_UNKNOWN_BYTES: Final = 16_384
"""The maximum size of unknown members and escapes in an envelope. Every reader pays for them."""

_KNOWN_MEMBERS: Final = frozenset(
    {"protocol", "id", "ts", "from", "to", "kind", "correlation_id", "payload"}
)


@dataclass(frozen=True, slots=True)
class EnvelopeLimits:
    """Limits on the envelopes of members. (D-55)"""

    envelope_bytes: int = 1024 * 1024
    depth: int = 64
    id_characters: int = 256
    kind_characters: int = 1_024


LIMITS: Final = EnvelopeLimits()
_EMPTY: Final = Raw(b'""')


class Envelope(Struct, frozen=True, omit_defaults=True, rename={"sender": "from"}):
    """The parts of an envelope that the gateway reads."""

    protocol: str
    id: str
    sender: str
    kind: str
    payload: Raw
    to: tuple[str, ...] = ()
    correlation_id: str = ""
    ts: str = ""

    @property
    def is_for_all(self) -> bool:
        return not self.to


class _PartialEnvelope(Struct):
    id: Raw = _EMPTY
    kind: Raw = _EMPTY


class _LenientEnvelope(Struct, rename={"sender": "from"}):
    """An envelope as it arrives. Some clients write null for omitted members."""

    protocol: str
    id: str
    sender: str
    kind: str
    payload: Raw
    to: tuple[str, ...] | None = ()
    correlation_id: str | None = ""
    ts: str | None = ""


_decoder: Final = msgspec.json.Decoder(Envelope)
_lenient: Final = msgspec.json.Decoder(_LenientEnvelope)
_members: Final = msgspec.json.Decoder(dict[str, Raw])
_broken: Final = msgspec.json.Decoder(_PartialEnvelope)
_encoder: Final = msgspec.json.Encoder()


def decode_envelope(data: bytes, limits: EnvelopeLimits = LIMITS) -> Envelope:
    """Parse one envelope. Raises MalformedMessage with a readable reason."""
    size = len(data)
    if size > limits.envelope_bytes:
        raise _invalid_envelope(f"the envelope is over {limits.envelope_bytes} bytes")
    try:
        # The decoder does not check raw parts as UTF-8, and their bytes are forwarded unchanged.
        if not data.isascii():
            data.decode()
        envelope = _read(data)
        # Each level takes two brackets, so a short envelope cannot be too deep.
        excess = jsonrpc.excess_reason(data, limits.depth) if size > 2 * limits.depth else ""
    except msgspec.ValidationError as error:
        raise _invalid_envelope(f"not an envelope: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _invalid_envelope("not valid JSON, or nested too deep") from None
    reason = excess or _envelope_problem(envelope, limits)
    if not reason and len(_encoder.encode(envelope)) != size:
        reason = _ambiguity(data)
    if reason:
        raise _invalid_envelope(reason)
    return envelope


def reread_envelope(data: bytes) -> Envelope:
    """Parse an envelope that a node of this cluster has checked before."""
    return _read(data)


def _read(data: bytes) -> Envelope:
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError:
        read = _lenient.decode(data)
    return Envelope(
        read.protocol,
        read.id,
        read.sender,
        read.kind,
        read.payload,
        read.to or (),
        read.correlation_id or "",
        read.ts or "",
    )


def _envelope_problem(envelope: Envelope, limits: EnvelopeLimits) -> str:
    """Return what is wrong with an envelope of the right shape, or an empty text."""
    if envelope.protocol != PROTOCOL:
        return f"protocol must be {PROTOCOL!r}"
    if memoryview(envelope.payload)[0] != ord("{"):
        return "payload must be an object"
    if not _is_kind(envelope.kind, limits.kind_characters):
        return "kind must be printable ASCII without white space"
    if envelope.ts and not _is_name(envelope.ts, MAX_TIMESTAMP_LENGTH):
        return f"ts must be at most {MAX_TIMESTAMP_LENGTH} printable characters"
    return _name_problem(envelope, limits.id_characters)


def _name_problem(envelope: Envelope, maximum: int) -> str:
    if not _is_name(envelope.id, maximum):
        return f"id must be 1 to {maximum} printable characters"
    if envelope.correlation_id and not _is_name(envelope.correlation_id, maximum):
        return f"correlation_id must be at most {maximum} printable characters"
    if len(envelope.to) > MAX_RECIPIENTS or not all(
        _is_name(each, maximum) for each in envelope.to
    ):
        return f"to must name at most {MAX_RECIPIENTS} participants"
    return ""


def _is_name(text: str, maximum: int) -> bool:
    return 0 < len(text) <= maximum and text.isprintable()


def _is_kind(text: str, maximum: int) -> bool:
    return 0 < len(text) <= maximum and text.isascii() and text.isprintable() and " " not in text


def _ambiguity(data: bytes) -> str:
    """Return why other parsers may read the envelope differently, or an empty text.

    Causes are a repeated member and a member with another spelling.
    """
    compact = msgspec.json.format(data, indent=-1)
    if len(compact) - len(_encoder.encode(_read(compact))) > MAX_UNKNOWN_BYTES:
        return f"over {MAX_UNKNOWN_BYTES} bytes beside what an envelope holds, or one of it twice"
    names = _members.decode(compact)
    if len(_encoder.encode(names)) != len(compact):
        return "a member is duplicated, or its name has escapes"
    foreign = next(
        (name for name in names.keys() - _KNOWN_MEMBERS if name.casefold() in _KNOWN_MEMBERS), ""
    )
    return f"{foreign!r} is spelt {foreign.casefold()!r}" if foreign else ""


def _invalid_envelope(reason: str) -> MalformedMessage:
    return MalformedMessage(reason, INVALID_REQUEST)


def identify_envelope(data: bytes) -> tuple[str, str]:
    """Return the id and the kind that a refused envelope claims, as far as they are readable.

    The error message names them, so that the sender recognises its envelope.
    """
    try:
        found = _broken.decode(data)
        id, kind = (jsonrpc.decode_text(each) or "" for each in (found.id, found.kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MalformedMessage):
        return "", ""
    return (id if _is_name(id, 256) else ""), (kind if _is_kind(kind, 1_024) else "")


def encode_envelope(envelope: Envelope) -> bytes:
    return _encoder.encode(envelope)


@dataclass(frozen=True, slots=True)
class EnvelopeHeader:
    """The header of an envelope that the gateway creates: id, time, recipients and correlation."""

    id: str
    ts: str
    to: tuple[str, ...] = ()
    correlation_id: str = ""


def build_envelope(
    heading: EnvelopeHeader, sender: str, kind: str, payload: Mapping[str, Any]
) -> Envelope:
    """Build an envelope of the gateway."""
    raw = Raw(_encoder.encode(payload))
    return Envelope(
        PROTOCOL,
        heading.id,
        sender,
        kind,
        raw,
        to=heading.to,
        correlation_id=heading.correlation_id,
        ts=heading.ts,
    )


def describe_participant(id: str, capabilities: Iterable[str] | None = None) -> dict[str, object]:
    """Describe a participant for the welcome and presence messages."""
    told: dict[str, object] = {"id": id}
    return told if capabilities is None else {**told, "capabilities": list(capabilities)}


@lru_cache(16_384)
def encode_participant(id: str, capabilities: tuple[str, ...]) -> Raw:
    """Return the encoded description of a participant.

    It is cached, because each welcome repeats all participants and few of them change.
    """
    return Raw(_encoder.encode(describe_participant(id, capabilities)))


def build_welcome(you: Raw, others: Sequence[Raw]) -> dict[str, object]:
    return {"you": you, "participants": others}


def build_presence(event: str, of: Mapping[str, object]) -> dict[str, object]:
    return {"event": event, "participant": of}


def build_missed_notice(count: int, first: str, last: str, reason: str) -> dict[str, object]:
    """Build the payload of a missed notice.

    `first` and `last` are envelope ids, or empty if unknown.
    """
    return {"count": count, "first": first, "last": last, "reason": reason}


_RESERVED: Final = ("system", "presence")
_FAMILIES: Final = frozenset({REQUEST, RESPONSE, PROPOSAL})
CONTEXT_OF: Final = {
    protocol.CALL_TOOL: "name",
    protocol.GET_PROMPT: "name",
    protocol.READ_RESOURCE: "uri",
    protocol.SUBSCRIBE: "uri",
    protocol.UNSUBSCRIBE: "uri",
    protocol.RESOURCE_UPDATED: "uri",
}
"""The parameter that is the context of each method. Other methods have no context."""


class EnvelopeKind(NamedTuple):
    """The parts of a kind, which is written as `family:method:context`."""

    family: str
    method: str = ""
    context: str = ""

    def __str__(self) -> str:
        return ":".join(part for part in self if part)


def parse_kind(kind: str) -> EnvelopeKind:
    """Split a kind into its parts. A kind that is not MCP's is a family of its own."""
    family, _, rest = kind.partition(":")
    if family not in _FAMILIES:
        return EnvelopeKind(kind)
    method, _, context = rest.partition(":")
    return EnvelopeKind(family, method, context)


def is_reserved(kind: str) -> bool:
    """Whether only the gateway may send this kind."""
    folded = kind.casefold()
    return any(
        folded.startswith(name) and folded[len(name) : len(name) + 1] in ("", "/", ":")
        for name in _RESERVED
    )


def of_payload(family: str, payload: Mapping[str, object]) -> EnvelopeKind:
    """Return the kind of a request or proposal with this payload."""
    method = payload.get("method")
    if not isinstance(method, str):
        return EnvelopeKind(family)
    params = payload.get("params")
    name = CONTEXT_OF.get(method)
    if name is None or not isinstance(params, dict):
        return EnvelopeKind(family, method)
    context = cast("dict[str, object]", params).get(name)
    return EnvelopeKind(family, method, context if isinstance(context, str) else "")


def mismatch_reason(
    kind: EnvelopeKind, payload: Mapping[str, object], asked: EnvelopeKind | None = None
) -> str:
    """Return why a payload does not match its kind, or an empty text.

    `asked` is the kind of the request that a response answers. A response has no method of its own,
    so it is checked against that kind.
    """
    if kind.family == RESPONSE:
        return _response_problem(kind, payload, asked)
    if kind.family not in (REQUEST, PROPOSAL):
        return ""
    found = of_payload(kind.family, payload)
    if not found.method or found.method != kind.method:
        return f"the kind is for {kind.method!r}, the payload for {found.method!r}"
    if kind.context and found.context != kind.context:
        return f"the kind is for {kind.context!r}, the payload for {found.context!r}"
    if kind.family == REQUEST and payload.get("jsonrpc") != "2.0":
        return "the payload is no JSON-RPC 2.0 message"
    return ""


def _response_problem(
    kind: EnvelopeKind, payload: Mapping[str, object], asked: EnvelopeKind | None
) -> str:
    if ("result" in payload) == ("error" in payload):
        return "a response holds either a result or an error"
    if asked is not None and (kind.method, kind.context or asked.context) != asked[1:]:
        return f"it answers {asked}, but its kind is for {kind}"
    return ""


METHOD_PARAMS: Final[Mapping[str, tuple[str, ...]]] = {
    protocol.CALL_TOOL: ("name", "arguments"),
    protocol.GET_PROMPT: ("name", "arguments"),
    protocol.READ_RESOURCE: ("uri",),
    protocol.SUBSCRIBE: ("uri",),
    protocol.UNSUBSCRIBE: ("uri",),
    protocol.COMPLETE: ("ref", "argument", "context"),
    protocol.LIST_TOOLS: ("cursor",),
    protocol.LIST_PROMPTS: ("cursor",),
    protocol.LIST_RESOURCES: ("cursor",),
    protocol.LIST_TEMPLATES: ("cursor",),
}
"""The methods that a server in a topic accepts, and the parameters that are forwarded."""

AUTHORIZED_METHODS: Final = frozenset(
    {protocol.CALL_TOOL, protocol.GET_PROMPT, protocol.READ_RESOURCE}
)
"""The methods that concern one catalog entry, which grants can name."""
_TRACES: Final = ("traceparent", "tracestate", "baggage")
MODERN_META: Final[Mapping[str, object]] = {
    protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
    # A call in a topic declares no client capabilities: its sender is only one of many readers.
    protocol.CLIENT_CAPABILITIES: {},
    protocol.CLIENT_INFO: {"name": "comity-topic", "version": "1"},
}
# The characters that a kind may contain unchanged. Others are percent-encoded.
_PLAIN: Final = "".join(chr(code) for code in range(33, 127) if chr(code) != "%")


def request_in(envelope: Envelope) -> Frame:
    """Return the request in an envelope. Raises MalformedMessage if it does not match the kind."""
    frame = jsonrpc.decode_frame(bytes(envelope.payload), jsonrpc.FROM_CLIENTS)
    if frame.method is UNSET:
        raise MalformedMessage("the payload is no request", INVALID_REQUEST)
    _check(envelope.kind, {"jsonrpc": "2.0", "method": frame.method}, frame.params)
    return frame


def proposed_in(envelope: Envelope) -> Frame:
    """Return what a proposal proposes, as a request without an id. Raises MalformedMessage."""
    found = jsonrpc.decode_members(envelope.payload)
    method = jsonrpc.decode_text(found.get("method"))
    if method is None:
        raise MalformedMessage("the payload proposes no method", INVALID_REQUEST)
    params = found.get("params", UNSET)
    _check(envelope.kind, {"method": method}, params)
    return Frame("2.0", UNSET, method, params)


def _check(kind: str, fields: dict[str, object], params: Raw | UnsetType) -> None:
    if params is not UNSET:
        fields["params"] = jsonrpc.decode_value(params)
        if not isinstance(fields["params"], dict):
            raise MalformedMessage("params must be an object", INVALID_REQUEST)
    reason = mismatch_reason(parse_kind(kind), fields)
    if reason:
        raise MalformedMessage(reason, INVALID_REQUEST)


def whole_kind(family: str, frame: Frame) -> str:
    """Return the kind of a request or proposal with its context, even if the sender omitted it."""
    named = of_payload(family, {"method": frame.method, "params": decode_params(frame)})
    return str(EnvelopeKind(family, named.method, quote_context(named.context)))


def quote_context(context: str) -> str:
    return quote(context, safe=_PLAIN)


def context_of(frame: Frame) -> str:
    return of_payload(REQUEST, {"method": frame.method, "params": decode_params(frame)}).context


def decode_params(frame: Frame) -> dict[str, object]:
    """Return the decoded parameters. Parameters that are no object become an empty dict."""
    found = None if frame.params is UNSET else jsonrpc.decode_value(frame.params)
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def to_modern_request(frame: Frame) -> Frame:
    """Return the request in the modern form, with only the parameters that the method defines."""
    params = frame.parameters
    kept = {name: params[name] for name in METHOD_PARAMS[str(frame.method)] if name in params}
    meta = eras.meta_of(params)
    traces = {name: meta[name] for name in _TRACES if jsonrpc.decode_text(meta.get(name))}
    said = {**kept, "_meta": {**traces, **MODERN_META}}
    return Frame("2.0", frame.id, frame.method, jsonrpc.to_raw(said))


def to_common_answer(answer: Frame, method: str) -> Frame:
    """Return the answer without members that only one protocol version has.

    Raises MalformedMessage.
    """
    return answer if answer.result is UNSET else eras.handshake_result(answer, method)


def response_kind(kind: str) -> str:
    """Return the kind of a response, which has the method and the context of the request."""
    return str(parse_kind(kind)._replace(family=RESPONSE))


def is_fulfilment(request: str, proposal: str) -> bool:
    """Whether a request of one kind fulfils a proposal of the other."""
    asked, proposed = parse_kind(request), parse_kind(proposal)
    if asked.family != REQUEST or proposed.family != PROPOSAL or asked.method != proposed.method:
        return False
    return not (asked.context and proposed.context) or asked.context == proposed.context
