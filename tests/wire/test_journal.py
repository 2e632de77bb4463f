"""An entry is found by what its event says."""

from datetime import UTC, datetime

from comity.wire.audit import Event, Type, body_of
from comity.wire.journal import Checkpoint, Line, Segment, line_of
from comity.wire.parties import PartyKind

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def test_an_entry_repeats_what_it_is_found_by() -> None:
    named = (Type.TOOL_BLOCKED, "agent:ci", NOW, PartyKind.AGENT)
    event = Event(*named, "files", "delete", "BLOCKED", "0" * 32, "call-1")
    line = line_of(event, "node-1", 7, body_of(event), b"h" * 32)
    assert line == Line(
        node="node-1",
        seq=7,
        at=NOW,
        trace="0" * 32,
        call="call-1",
        type="TOOL_BLOCKED",
        actor="agent:ci",
        server="files",
        tool="delete",
        result="BLOCKED",
        body=body_of(event),
        hash=b"h" * 32,
    )


def test_a_checkpoint_is_not_signed_until_it_is() -> None:
    assert Checkpoint("node-1", 7, b"h", NOW, "00").signature == b""


def test_a_segment_says_what_came_before_it() -> None:
    sealed = Segment("node-1", 1, 7, bytes(32), b"h" * 32, NOW)
    assert (sealed.first, sealed.last, sealed.before) == (1, 7, bytes(32))
