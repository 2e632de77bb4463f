"""The audit log read again: as entries about a call, and as an export."""

from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
import pytest

from comity.app.records import RecordStores
from comity.approvals.model import ApprovalKind, ApprovalRequest
from comity.approvals.service import find_by_id_or_prefix
from comity.audit import export
from comity.audit.chain import AuditFilter, AuditRecord, ChainCheckpoint, ChainSegment
from comity.audit.events import AuditEvent, AuditType, body_of
from comity.audit.export import AuditReader, ExportCursor
from comity.audit.signing import is_valid_signature
from comity.audit.verify import ExportVerifier, VerificationReport
from comity.errors import MalformedMessage
from tests.support.cases import loop_over
from tests.support.inline_store import inline_records
from tests.support.journals_rules import BEGAN, Journal, chained, event, signed

AT = datetime(2026, 11, 15, 8, 30, 1, 234567, UTC)
LINE = AuditRecord(
    *("node", 7, AT, "0af7", "c-1", "TOOL_EXECUTED", "agent:ci", "files", "read", "SUCCESS"),
    '{"said":"ü"}'.encode(),
    bytes(range(32)),
)
CHECKPOINT = ChainCheckpoint(
    "node", 7, bytes(32), AT.replace(microsecond=234000), "ab", b"\x01\x02"
)
SEGMENT = ChainSegment("node", 1, 7, bytes(32), bytes(range(32)), AT.replace(microsecond=234000))


def test_an_entry_holds_its_body_letter_by_letter() -> None:
    row = export.row_of(export.encode_entry(LINE))
    assert row.body.encode() == LINE.body
    assert row.hash == LINE.hash.hex()
    assert (row.node, row.seq, row.at) == ("node", 7, "2026-11-15T08:30:01.234Z")
    assert (row.trace, row.call, row.type, row.actor) == LINE[3:7]
    assert (row.server, row.tool, row.result) == LINE[7:10]


def test_a_body_that_is_no_text_is_shown_as_one_that_is_not_what_it_was() -> None:
    row = export.row_of(export.encode_entry(LINE._replace(body=b"\xff")))
    assert row.body.encode() != b"\xff"


def test_checkpoints_and_segments_come_back_as_they_were() -> None:
    checkpoint = export.row_of(export.checkpoint_line(CHECKPOINT)).checkpoint
    segment = export.row_of(export.segment_line(SEGMENT)).segment
    assert checkpoint is not None
    assert segment is not None
    assert export.checkpoint_of(checkpoint) == CHECKPOINT
    assert export.segment_of(segment) == SEGMENT


def test_header_and_end_say_so() -> None:
    header = export.row_of(export.encode_header(AT, ["a", "b"]))
    assert header.comity_audit_log == export.VERSION
    assert msgspec.json.decode(export.encode_header(AT, ["a", "b"]))["nodes"] == ["a", "b"]
    assert export.row_of(export.end_line(12)).end == 12


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b'{"seq":-1}', b'{"seq":1e400}', b'{"seq":18446744073709551616}', b"\xff", b"{"],
)
def test_what_is_no_line_of_an_export_is_refused(line: bytes) -> None:
    with pytest.raises(MalformedMessage):
        export.row_of(line)


def test_a_checkpoint_of_nonsense_is_refused() -> None:
    row = export.row_of(export.checkpoint_line(CHECKPOINT)).checkpoint
    assert row is not None
    row.hash = "no digits"
    with pytest.raises(MalformedMessage):
        export.checkpoint_of(row)
    sealed = export.row_of(export.segment_line(SEGMENT)).segment
    assert sealed is not None
    sealed.sealed_at = "yesterday"
    with pytest.raises(MalformedMessage):
        export.segment_of(sealed)


NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
TRACE, OTHER = "a" * 32, "b" * 32
ASK = "0" * 26


@pytest.fixture
async def records() -> RecordStores:
    records = inline_records()
    await records.open()
    return records


async def _keep(records: RecordStores, journal: Journal) -> None:
    await records.audit_log.open(journal.lines[0].node)
    await records.audit_log.append(journal.lines)
    for checkpoint in journal.checkpoints:
        await records.audit_log.add_checkpoint(checkpoint)
    await records.audit_log.close()


async def _proved(read: AuditReader) -> VerificationReport:
    proof = ExportVerifier(is_valid_signature)
    async for line in read.export():
        proof.take(line)
    return proof.finish()


async def test_an_export_of_several_nodes_is_whole_whatever_the_pages(
    records: RecordStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node, size in (("one", 30), ("two", 25), ("two~2", 7)):
        await _keep(records, Journal.of(size, node=node))
    for size in (1, 3, 10, 25, 1000):
        monkeypatch.setattr(export, "AT_ONCE", size)
        report = await _proved(AuditReader(records.audit_log))
        assert report.is_whole, report.findings
        assert [(each.node, each.last, each.signed_to) for each in report.nodes] == [
            ("one", 30, 30),
            ("two", 25, 25),
            ("two~2", 7, 7),
        ]


async def test_what_is_added_meanwhile_breaks_nothing(
    records: RecordStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "AT_ONCE", 10)
    whole = Journal.of(30, node="one")
    await records.audit_log.open("one")
    await records.audit_log.append(whole.lines[:15])
    await records.audit_log.add_checkpoint(whole.checkpoints[0])
    # What came after the first signature is younger than the next one has to be.
    read = AuditReader(records.audit_log, clock=lambda: BEGAN + timedelta(seconds=18))
    proof = ExportVerifier(is_valid_signature)
    part = await read.part(None)
    for number in range(15, 30):
        for line in part.lines:
            proof.take(line)
        await records.audit_log.append([whole.lines[number]])
        for checkpoint in whole.checkpoints:
            if checkpoint.seq == number + 1:
                await records.audit_log.add_checkpoint(checkpoint)
        if part.next is None:
            break
        part = await read.part(part.next)
    while part.next is not None:
        part = await read.part(part.next)
        for line in part.lines:
            proof.take(line)
    assert proof.finish().is_whole


async def test_what_was_sealed_is_in_its_place(records: RecordStores) -> None:
    events = [*(event(number) for number in range(1, 20))]
    events.append(AuditEvent(AuditType.SEGMENT_SEALED, "system:gateway", NOW, details={"last": 12}))
    lines = chained([(each, body_of(each)) for each in events], "one", bytes(32), 1)
    await _keep(records, Journal(lines, [signed(lines[4]), signed(lines[-1])]))
    segment = ChainSegment("one", 1, 12, bytes(32), lines[11].hash, NOW)
    await records.audit_log.drop(segment)
    report = await _proved(AuditReader(records.audit_log))
    assert report.is_whole, report.findings
    assert (report.nodes[0].sealed, report.nodes[0].first) == (12, 13)


async def test_a_place_that_is_nowhere_ends_at_once(records: RecordStores) -> None:
    await _keep(records, Journal.of(3, node="one"))
    part = await AuditReader(records.audit_log).part(ExportCursor("zzz", 5, 3))
    assert part.next is None
    assert len(part.lines) == 1


def _event(
    type: AuditType, seconds: int, trace: str, call: str = "", **details: object
) -> AuditEvent:
    at = NOW + timedelta(seconds=seconds)
    return AuditEvent(type, "agent:ci", at, trace=trace, call=call, details=details)


@pytest.fixture
async def told(records: RecordStores) -> AuditReader:
    """A call that waited for an answer in one trace, and used it in another."""
    events = [
        _event(AuditType.APPROVAL_REQUESTED, 0, TRACE, approval=ASK),
        _event(AuditType.KEY_ISSUED, 1, "c" * 32),
        _event(AuditType.APPROVAL_ANSWERED, 2, TRACE, approval=ASK),
        _event(AuditType.CALL_INTENDED, 3, OTHER, "run-1", answered_by=ASK),
        _event(AuditType.TOOL_EXECUTED, 4, OTHER, "run-1"),
    ]
    lines = chained([(each, body_of(each)) for each in events], "one", bytes(32), 1)
    await _keep(records, Journal(lines, []))
    await records.approval_requests.open(
        ApprovalRequest(
            *(
                ASK,
                ApprovalKind.CONFIRM,
                "agent:ci",
                "files",
                "write",
                "d" * 64,
                "Write?",
                {"path": "x"},
            ),
            *(datetime.now(UTC), datetime.now(UTC) + timedelta(hours=1)),
            trace=TRACE,
        )
    )
    return AuditReader(
        records.audit_log,
        records.approval_requests,
        partial(find_by_id_or_prefix, records.approval_requests),
    )


TRACE_AS_UUID = "-".join((OTHER[:8], OTHER[8:12], OTHER[12:16], OTHER[16:20], OTHER[20:])).upper()


@loop_over(
    ("name", "found"),
    [
        (OTHER, [1, 3, 4, 5]),
        (TRACE_AS_UUID, [1, 3, 4, 5]),
        ("run-1", [1, 3, 4, 5]),
        *((name, [1, 3]) for name in (ASK, ASK[:4], ASK[:8], ASK[:8].upper(), ASK[:-1])),
    ],
)
async def test_entries_about_a_trace_a_call_or_a_request_are_found(
    told: AuditReader, name: str, found: list[int]
) -> None:
    assert [line.seq for line in await told.about(name)] == found


async def test_an_entry_that_names_the_beginning_of_an_id_leads_nowhere(
    told: AuditReader, records: RecordStores
) -> None:
    testimony = _event(AuditType.TOOL_EXECUTED, 5, "e" * 32, "run-2", answered_by=ASK[:8])
    line = chained([(testimony, body_of(testimony))], "two", bytes(32), 1)
    await _keep(records, Journal(line, []))
    assert [(line.node, line.seq) for line in await told.about("run-2")] == [("two", 1)]


async def test_a_beginning_that_several_asks_share_is_refused(
    told: AuditReader, records: RecordStores
) -> None:
    await records.approval_requests.open(
        ApprovalRequest(
            *(
                f"{ASK[:-1]}z",
                ApprovalKind.CONFIRM,
                "agent:ci",
                "files",
                "write",
                "e" * 64,
                "?",
                {"a": 1},
            ),
            *(datetime.now(UTC), datetime.now(UTC) + timedelta(hours=1)),
        )
    )
    with pytest.raises(MalformedMessage, match="several approval requests begin with"):
        await told.about(ASK[:8])
    assert [line.seq for line in await told.about(ASK)] == [1, 3]


@pytest.mark.parametrize("name", ["", "nothing", ASK[:3], "f" * 32, "1" * 26])
async def test_where_nothing_is_that_is_said(told: AuditReader, name: str) -> None:
    with pytest.raises(MalformedMessage, match="the audit log has no entry"):
        await told.about(name)


async def test_entries_are_found(told: AuditReader) -> None:
    found = await told.find(AuditFilter(types=(AuditType.KEY_ISSUED,)), 10)
    assert [line.seq for line in found] == [2]
