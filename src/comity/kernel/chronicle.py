"""What the journal keeps of topics: who came, what was asked and proposed, what was refused. (D-48)

Rule 1: of an envelope its heading is kept, and never a word of its payload.
Rule 2: the conversation is not kept: of chat nothing, unless an operator wants it.
Rule 3: what a member can bring about as often as it likes is bounded, being refused as well as
        coming and going; of the rest only the number is kept.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from comity.kernel.audit_recorder import LEFT_OUT, Bound, kind_of
from comity.kernel.journal import Journal
from comity.kernel.seats import Seat
from comity.rules.topics import Refusal
from comity.wire.audit import Event, Result, Type
from comity.wire.envelope import CHAT, Envelope

_MOST_TOLD: Final = 20


class Kept(StrEnum):
    """Of which envelopes the journal keeps the heading."""

    NONE = "none"
    MCP = "mcp"
    ALL = "all"


class TopicChronicle:
    """Writes down what happens in topics."""

    def __init__(self, journal: Journal, kept: Kept = Kept.MCP) -> None:
        self._journal = journal
        self._kept = kept
        self._bound = Bound(journal.clock)

    def said(self, topic: str, envelope: Envelope) -> None:
        if self._kept is Kept.ALL or (self._kept is Kept.MCP and envelope.kind != CHAT):
            self._note(Type.TOPIC_SAID, envelope.sender, topic, _heading(envelope))

    def refused(self, topic: str, seat: Seat, envelope: Envelope | None, why: Refusal) -> None:
        details = {} if envelope is None else _heading(envelope)
        details |= {"error": str(why.error), "message": why.message[:200]}
        self._note_bounded(Type.TOPIC_REFUSED, seat.party, topic, details)

    def joined(self, topic: str, seat: Seat) -> None:
        details = {"capabilities": list(seat.may.listed), "connection": seat.connection}
        self._note_bounded(Type.TOPIC_JOINED, seat.party, topic, details)

    def left(self, topic: str, party: str) -> None:
        self._note_bounded(Type.TOPIC_LEFT, party, topic, {})

    def _note_bounded(
        self, type: Type, party: str, topic: str, details: Mapping[str, object]
    ) -> None:
        left_out = self._bound.take(f"{type} {party}")
        if left_out is None:
            return
        if left_out:
            details = {**details, LEFT_OUT: left_out}
        result = Result.BLOCKED if type is Type.TOPIC_REFUSED else Result.SUCCESS
        self._note(type, party, topic, details, result)

    def _note(
        self,
        type: Type,
        party: str,
        topic: str,
        details: Mapping[str, object],
        result: Result = Result.SUCCESS,
    ) -> None:
        if self._journal.has_room:
            told = {"topic": topic, **details}
            at = self._journal.clock()
            self._journal.note(Event(type, party, at, kind_of(party), result=result, details=told))


def _heading(envelope: Envelope) -> dict[str, object]:
    told: dict[str, object] = {"envelope": envelope.id, "kind": envelope.kind[:256]}
    if envelope.to:
        told["to"] = list(envelope.to[:_MOST_TOLD])
    if envelope.correlation_id:
        told["correlation_id"] = envelope.correlation_id
    return told
