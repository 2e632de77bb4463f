"""The envelope of a topic: what is said to whom, in a frame that everybody reads alike. (MCPx §3)

Rule 1: members are given the very bytes that were sent, so what is read here must be what everybody
        else reads: a member that stands twice, or in another spelling, is refused.
Rule 2: the payload is an object, and nothing more is known of it here. (MCPx §4.2)
Rule 3: an envelope that is encoded again never becomes longer. Where it is as long as before, it
        has no white space, escapes, unknown or doubled members, and needs no closer look.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from comity.wire import jsonrpc
from comity.wire.errors import INVALID_REQUEST, MalformedMessage

PROTOCOL: Final = "mcpx/v0.1"
CHAT: Final = "chat"
REQUEST: Final = "mcp/request"
RESPONSE: Final = "mcp/response"
PROPOSAL: Final = "mcp/proposal"
REJECT: Final = "mcp/reject"
WITHDRAW: Final = "mcp/withdraw"
"""What later versions of the document have; known here, and off unless a topic has them. (D-46)"""

WELCOME: Final = "system/welcome"
PRESENCE: Final = "system/presence"
ERROR: Final = "system/error"
MISSED: Final = "system/missed"
"""Ours: how many envelopes a member was not given because it took them too slowly, or was away."""

NOTICE: Final = "system/notice"
"""Ours: what became of somebody's proposal or call, or that it waits for a person."""

JOIN: Final = "join"
LEAVE: Final = "leave"

MOST_ADDRESSED: Final = 1_000
LONGEST_MOMENT: Final = 64
MOST_BESIDE: Final = 16_384
"""So many bytes may be members that nobody knows here, and escapes: each costs its readers."""

_KNOWN: Final = frozenset(
    {"protocol", "id", "ts", "from", "to", "kind", "correlation_id", "payload"}
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a stranger's envelope is read at all. (D-55)"""

    envelope_bytes: int = 1024 * 1024
    depth: int = 64
    id_characters: int = 256
    kind_characters: int = 1_024


LIMITS: Final = Limits()
_EMPTY: Final = Raw(b'""')


class Envelope(Struct, frozen=True, omit_defaults=True, rename={"sender": "from"}):
    """One envelope, as far as a gateway reads it."""

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


class _Broken(Struct):
    id: Raw = _EMPTY
    kind: Raw = _EMPTY


class _Read(Struct, rename={"sender": "from"}):
    """The same as it is read: some write null for what they leave out."""

    protocol: str
    id: str
    sender: str
    kind: str
    payload: Raw
    to: tuple[str, ...] | None = ()
    correlation_id: str | None = ""
    ts: str | None = ""


_decoder: Final = msgspec.json.Decoder(Envelope)
_lenient: Final = msgspec.json.Decoder(_Read)
_members: Final = msgspec.json.Decoder(dict[str, Raw])
_broken: Final = msgspec.json.Decoder(_Broken)
_encoder: Final = msgspec.json.Encoder()


def decode(data: bytes, limits: Limits = LIMITS) -> Envelope:
    """Read one envelope; raises MalformedMessage with what is wrong in words."""
    size = len(data)
    if size > limits.envelope_bytes:
        raise _unreadable(f"the envelope is over {limits.envelope_bytes} bytes")
    try:
        # What stays raw is not looked at by the decoder, and its bytes are sent on.
        if not data.isascii():
            data.decode()
        envelope = _read(data)
        # Each level takes two brackets, so a short envelope cannot be deep.
        excess = jsonrpc.excess(data, limits.depth) if size > 2 * limits.depth else ""
    except msgspec.ValidationError as error:
        raise _unreadable(f"not an envelope: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _unreadable("not valid JSON, or nested too deep") from None
    because = excess or _why_not(envelope, limits)
    if not because and len(_encoder.encode(envelope)) != size:
        because = _ambiguous(data)
    if because:
        raise _unreadable(because)
    return envelope


def _read(data: bytes) -> Envelope:
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError:
        read = _lenient.decode(data)
    return Envelope(
        *(read.protocol, read.id, read.sender, read.kind, read.payload),
        *(read.to or (), read.correlation_id or "", read.ts or ""),
    )


def _why_not(envelope: Envelope, limits: Limits) -> str:
    """What is wrong with an envelope of the right shape; empty where nothing is."""
    if envelope.protocol != PROTOCOL:
        return f"protocol must be {PROTOCOL!r}"
    if memoryview(envelope.payload)[0] != ord("{"):
        return "payload must be an object"
    if not _is_kind(envelope.kind, limits.kind_characters):
        return "kind must be printable ASCII without white space"
    if envelope.ts and not _is_name(envelope.ts, LONGEST_MOMENT):
        return f"ts must be at most {LONGEST_MOMENT} printable characters"
    return _misnamed(envelope, limits.id_characters)


def _misnamed(envelope: Envelope, most: int) -> str:
    if not _is_name(envelope.id, most):
        return f"id must be 1 to {most} printable characters"
    if envelope.correlation_id and not _is_name(envelope.correlation_id, most):
        return f"correlation_id must be at most {most} printable characters"
    if len(envelope.to) > MOST_ADDRESSED or not all(_is_name(each, most) for each in envelope.to):
        return f"to must name at most {MOST_ADDRESSED} participants"
    return ""


def _is_name(text: str, most: int) -> bool:
    return 0 < len(text) <= most and text.isprintable()


def _is_kind(text: str, most: int) -> bool:
    return 0 < len(text) <= most and text.isascii() and text.isprintable() and " " not in text


def _ambiguous(data: bytes) -> str:
    """What another reader may read otherwise: a member that stands twice, or spelt otherwise."""
    compact = msgspec.json.format(data, indent=-1)
    if len(compact) - len(_encoder.encode(_read(compact))) > MOST_BESIDE:
        return f"over {MOST_BESIDE} bytes beside what an envelope holds, or one of it twice"
    names = _members.decode(compact)
    if len(_encoder.encode(names)) != len(compact):
        return "a member stands twice, or its name is written in escapes"
    foreign = next((name for name in names.keys() - _KNOWN if name.casefold() in _KNOWN), "")
    return f"{foreign!r} is spelt {foreign.casefold()!r}" if foreign else ""


def _unreadable(because: str) -> MalformedMessage:
    return MalformedMessage(because, INVALID_REQUEST)


def named(data: bytes) -> tuple[str, str]:
    """The id and the kind by which a refused envelope calls itself, as far as they can be told:
    so that its sender knows which one is meant."""
    try:
        found = _broken.decode(data)
        id, kind = (jsonrpc.text(each) or "" for each in (found.id, found.kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MalformedMessage):
        return "", ""
    return (id if _is_name(id, 256) else ""), (kind if _is_kind(kind, 1_024) else "")


def encode(envelope: Envelope) -> bytes:
    return _encoder.encode(envelope)


@dataclass(frozen=True, slots=True)
class Heading:
    """What an envelope of the gateway's own begins with: its id, its moment, whom it is for."""

    id: str
    ts: str
    to: tuple[str, ...] = ()
    correlation_id: str = ""


def written(heading: Heading, sender: str, kind: str, payload: Mapping[str, Any]) -> Envelope:
    """An envelope made here."""
    raw = Raw(_encoder.encode(payload))
    return Envelope(
        *(PROTOCOL, heading.id, sender, kind, raw),
        to=heading.to,
        correlation_id=heading.correlation_id,
        ts=heading.ts,
    )


def participant(id: str, capabilities: Iterable[str] | None = None) -> dict[str, object]:
    """A participant as welcome and presence tell of it."""
    told: dict[str, object] = {"id": id}
    return told if capabilities is None else {**told, "capabilities": list(capabilities)}


@lru_cache(16_384)
def described(id: str, capabilities: tuple[str, ...]) -> Raw:
    """The same as it is written: each welcome tells of everybody again, and few of them change."""
    return Raw(_encoder.encode(participant(id, capabilities)))


def welcome(you: Raw, others: Sequence[Raw]) -> dict[str, object]:
    return {"you": you, "participants": others}


def presence(event: str, of: Mapping[str, object]) -> dict[str, object]:
    return {"event": event, "participant": of}


def missed(count: int, first: str, last: str, because: str) -> dict[str, object]:
    """`first` and `last` are the ids of envelopes; empty where nobody can know them."""
    return {"count": count, "first": first, "last": last, "because": because}
