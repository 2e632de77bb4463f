"""`wire/exported.py`: a journal as lines, and back."""

from datetime import UTC, datetime

import msgspec
import pytest

from comity.wire import exported
from comity.wire.errors import MalformedMessage
from comity.wire.journal import Checkpoint, Line, Segment

AT = datetime(2026, 11, 15, 8, 30, 1, 234567, UTC)
LINE = Line(
    *("node", 7, AT, "0af7", "c-1", "TOOL_EXECUTED", "agent:ci", "files", "read", "SUCCESS"),
    '{"said":"ü"}'.encode(),
    bytes(range(32)),
)
CHECKPOINT = Checkpoint("node", 7, bytes(32), AT.replace(microsecond=234000), "ab", b"\x01\x02")
SEGMENT = Segment("node", 1, 7, bytes(32), bytes(range(32)), AT.replace(microsecond=234000))


def test_an_entry_holds_its_body_letter_by_letter() -> None:
    row = exported.row_of(exported.entry(LINE))
    assert row.body.encode() == LINE.body
    assert row.hash == LINE.hash.hex()
    assert (row.node, row.seq, row.at) == ("node", 7, "2026-11-15T08:30:01.234Z")
    assert (row.trace, row.call, row.type, row.actor) == LINE[3:7]
    assert (row.server, row.tool, row.result) == LINE[7:10]


def test_a_body_that_is_no_text_is_shown_as_one_that_is_not_what_it_was() -> None:
    row = exported.row_of(exported.entry(LINE._replace(body=b"\xff")))
    assert row.body.encode() != b"\xff"


def test_checkpoints_and_segments_come_back_as_they_were() -> None:
    checkpoint = exported.row_of(exported.checkpoint(CHECKPOINT)).checkpoint
    segment = exported.row_of(exported.segment(SEGMENT)).segment
    assert checkpoint is not None
    assert segment is not None
    assert exported.checkpoint_of(checkpoint) == CHECKPOINT
    assert exported.segment_of(segment) == SEGMENT


def test_header_and_end_say_so() -> None:
    header = exported.row_of(exported.header(AT, ["a", "b"]))
    assert header.comity_journal == exported.VERSION
    assert msgspec.json.decode(exported.header(AT, ["a", "b"]))["nodes"] == ["a", "b"]
    assert exported.row_of(exported.end(12)).end == 12


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b'{"seq":-1}', b'{"seq":1e400}', b'{"seq":18446744073709551616}', b"\xff", b"{"],
)
def test_what_is_no_line_of_an_export_is_refused(line: bytes) -> None:
    with pytest.raises(MalformedMessage):
        exported.row_of(line)


def test_a_checkpoint_of_nonsense_is_refused() -> None:
    row = exported.row_of(exported.checkpoint(CHECKPOINT)).checkpoint
    assert row is not None
    row.hash = "no digits"
    with pytest.raises(MalformedMessage):
        exported.checkpoint_of(row)
    sealed = exported.row_of(exported.segment(SEGMENT)).segment
    assert sealed is not None
    sealed.sealed_at = "yesterday"
    with pytest.raises(MalformedMessage):
        exported.segment_of(sealed)
