"""Who may send an envelope into a topic, and who is given it. (MCPx §4.2, §6.3, §6.4; D-37, D-54)

Rule 1: whoever says that it is somebody else is refused, and so is the gateway's own in its name.
Rule 2: what decides is the kind and who it is from; the payload is not read.
Rule 3: a member that takes everything is given everything; one that takes what concerns it is
        given broadcasts, what names it, and what follows from what it said itself. (D-39)
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple

from comity.rules.capabilities import Capabilities
from comity.rules.kinds import is_reserved
from comity.rules.trails import Trail
from comity.wire.envelope import PROTOCOL, REJECT, RESPONSE, WITHDRAW, Envelope

_TOPIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
LATER_KINDS: Final = frozenset({REJECT, WITHDRAW})


class Mode(StrEnum):
    """What a member wants to be given."""

    ALL = "all"
    DIRECTED = "directed"


class Access(StrEnum):
    """Who may join a topic: everybody who is recognised, or who was granted something in it;
    of a private one nobody else is told that it exists."""

    PUBLIC = "public"
    RESTRICTED = "restricted"
    PRIVATE = "private"


class Violation(StrEnum):
    """What a `system/error` is about."""

    CAPABILITY = "capability_violation"
    RESERVED = "reserved_kind"
    IDENTITY = "auth_violation"
    INVALID = "invalid_envelope"
    DUPLICATE = "duplicate_id"
    UNASKED = "unasked_response"
    STRICT = "unknown_kind"
    RATE = "rate_limited"
    UNREACHABLE = "unreachable"
    MISMATCH = "kind_mismatch"


class Refusal(NamedTuple):
    """Why an envelope goes no further."""

    error: Violation
    message: str


def is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None


def why_not(
    envelope: Envelope, sender: str, may: Capabilities, trail: Trail, *, is_strict: bool = True
) -> Refusal | None:
    """Why a member's envelope is not passed on; None where it is."""
    if envelope.sender != sender:
        return Refusal(Violation.IDENTITY, f"'from' must be {sender!r}, which is who you are here")
    refusal = _why_not_said(envelope.kind, may, is_strict=is_strict)
    if refusal is not None:
        return refusal
    if envelope.id in trail:
        return Refusal(Violation.DUPLICATE, "this id was used before; give each envelope its own")
    is_answer = envelope.kind.partition(":")[0] == RESPONSE
    if is_answer and (because := trail.why_not_answer(envelope)):
        return Refusal(Violation.UNASKED, because)
    return None


def _why_not_said(kind: str, may: Capabilities, *, is_strict: bool) -> Refusal | None:
    is_later = is_strict and kind.partition(":")[0] in LATER_KINDS
    # The usual case first: nothing covers what is the gateway's own.
    if may.cover(kind) and not is_later:
        return None
    if is_reserved(kind):
        return Refusal(Violation.RESERVED, "only the gateway says what begins with 'system/'")
    if is_later:
        return Refusal(
            Violation.STRICT, f"{kind!r} is no kind of {PROTOCOL}, and off in this topic"
        )
    return Refusal(Violation.CAPABILITY, f"None of your capabilities covers '{kind}'")


def receives(envelope: Envelope, member: str, mode: Mode, concerned: frozenset[str]) -> bool:
    """Whether a member is given an envelope of its topic."""
    if mode is Mode.ALL or not envelope.to:
        return True
    return member in envelope.to or member in concerned
