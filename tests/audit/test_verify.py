"""Every tampering with the audit log is found, and an untouched one passes."""

import random
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from comity.audit import export as exported
from comity.audit.chain import GENESIS, AuditRecord, ChainSegment, entry_hash
from comity.audit.events import AuditEvent, AuditType, body_of
from comity.audit.export import ExportRow
from comity.audit.signing import is_valid_signature
from comity.audit.verify import (
    COMMIT_ENTRIES,
    MAX_FINDINGS,
    ChainDefect,
    ChainVerifier,
    CheckpointInterval,
    ExportVerifier,
    FindingKind,
    VerificationReport,
    name_of,
)
from comity.errors import MalformedMessage
from tests.support.journals_rules import (
    BEGAN,
    DEEDS,
    OTHER,
    PUBLIC,
    Journal,
    chained,
    event,
    export,
    rewrite,
    signed,
)

WHOLE = Journal.of(120)
SECOND = timedelta(seconds=1)


def prove(lines: Iterable[bytes], **known: Any) -> VerificationReport:
    proof = ExportVerifier(is_valid_signature, **known)
    for line in lines:
        proof.take(line)
    return proof.finish()


def test_the_untouched_journal_is_whole() -> None:
    report = prove(export(WHOLE), trusted=[PUBLIC], outside=WHOLE.checkpoints)
    assert report.is_whole
    assert (report.entries, report.checkpoints) == (120, 24)
    (node,) = report.nodes
    assert (node.first, node.last, node.signed_to, node.keys) == (1, 120, 120, (PUBLIC,))


def test_every_one_of_a_thousand_tamperings_is_found_and_the_first_entry_named() -> None:
    found: Counter[str] = Counter()
    for seed in range(1000):
        forged = DEEDS[seed % len(DEEDS)](WHOLE, random.Random(seed))  # noqa: S311  # no secret is drawn
        # The outside checkpoint is the last: what a forger with the store in hand cannot reach.
        report = prove(export(forged.journal), outside=WHOLE.checkpoints[-1:], trusted=[PUBLIC])
        assert report.findings, (seed, forged.deed)
        first = report.findings[0]
        assert first.kind in forged.kinds, (seed, forged.deed, first)
        assert first.seq <= forged.last, (seed, forged.deed, first)
        assert forged.first <= first.seq, (seed, forged.deed, first)
        found[forged.deed] += 1
    assert found == dict.fromkeys(("alter", "delete", "insert", "swap", "cut"), 200)


def test_several_nodes_in_one_export_are_proved_each_for_itself() -> None:
    other = Journal.of(30, node="node-2")
    assert prove(export(WHOLE, other)).is_whole
    other.lines[6] = other.lines[6]._replace(body=b'{"a":1}')
    report = prove(export(WHOLE, other))
    assert [(each.node, each.seq) for each in report.findings] == [("node-2", 7)]
    assert [node.signed_to for node in report.nodes] == [120, 30]


def test_columns_that_disagree_with_the_body_are_a_finding() -> None:
    lines = list(WHOLE.lines)
    lines[2] = lines[2]._replace(actor="agent:somebody-else")
    lines[5] = lines[5]._replace(at=BEGAN)
    report = prove(export(Journal(lines, WHOLE.checkpoints)))
    assert [(each.kind, each.seq) for each in report.findings] == [
        (FindingKind.COLUMNS, 3),
        (FindingKind.COLUMNS, 6),
    ]


def test_columns_that_are_shortened_are_not() -> None:
    long = event(1)
    told = AuditEvent(long.type, "agent:" + "x" * 500, long.at, details={})
    lines = chained([(told, body_of(told))], "node-1", bytes(32), 1)
    lines[0] = lines[0]._replace(actor=lines[0].actor[:256])
    assert prove(export(Journal(lines, [signed(lines[0])]))).is_whole


def test_a_wrong_signature_and_a_strange_key_are_findings() -> None:
    broken = WHOLE.checkpoints[3]._replace(signature=bytes(64))
    checkpoints = [*WHOLE.checkpoints[:3], broken, *WHOLE.checkpoints[4:]]
    report = prove(export(Journal(WHOLE.lines, checkpoints)))
    assert [(each.kind, each.seq) for each in report.findings] == [(FindingKind.SIGNATURE, 40)]
    strange = [*WHOLE.checkpoints[:3], signed(WHOLE.lines[39], OTHER)]
    report = prove(export(Journal(WHOLE.lines, strange)))
    assert [(each.kind, each.seq) for each in report.findings] == [(FindingKind.KEY, 40)]
    other = OTHER.public_key().public_bytes_raw().hex()
    strange.append(signed(WHOLE.lines[-1], OTHER))
    assert prove(export(Journal(WHOLE.lines, strange)), trusted=[PUBLIC, other]).is_whole
    untrusted = prove(export(WHOLE), trusted=[other])
    assert {each.kind for each in untrusted.findings} == {FindingKind.KEY}


def test_a_node_that_is_named_after_its_key_takes_no_other() -> None:
    own = Journal.of(20, node=name_of(PUBLIC))
    assert prove(export(own)).is_whole
    beside = Journal.of(20, node=f"{name_of(PUBLIC)}~2")
    assert prove(export(own, beside)).is_whole
    false = Journal(own.lines, [signed(own.lines[-1], OTHER)])
    assert prove(export(false)).findings[0].kind is FindingKind.KEY


def test_who_signs_the_rewritten_chain_anew_is_found_by_the_outside_checkpoint() -> None:
    events = [event(number, "rewritten") for number in range(1, 121)]
    lines = chained([(each, body_of(each)) for each in events], "node-1", bytes(32), 1)
    forged = Journal(lines, [signed(lines[-1], OTHER)])
    assert prove(export(forged)).is_whole, "nothing in it says otherwise"
    kinds = {each.kind for each in prove(export(forged), outside=WHOLE.checkpoints).findings}
    assert kinds == {FindingKind.KEY, FindingKind.ALTERED}


def test_what_was_sealed_is_not_missed() -> None:
    segment = ChainSegment("node-1", 1, 50, bytes(32), WHOLE.lines[49].hash, BEGAN)
    rest = export(Journal(WHOLE.lines[50:], WHOLE.checkpoints[5:]))
    sealed = [
        rest[0],
        exported.segment_line(segment),
        exported.checkpoint_line(WHOLE.checkpoints[4]),
    ]
    report = prove([*sealed, *rest[1:]], outside=WHOLE.checkpoints)
    assert report.is_whole
    (node,) = report.nodes
    assert (node.sealed, node.first, node.entries) == (50, 51, 70)
    assert prove(rest).findings[0].kind is FindingKind.REMOVED


def test_an_entry_that_says_what_was_sealed_vouches_for_it() -> None:
    events = [event(number) for number in range(1, 11)]
    sealed, less = (
        AuditEvent(
            AuditType.SEGMENT_SEALED, "system:gateway", BEGAN, details={"first": 1, "last": last}
        )
        for last in (7, 6)
    )
    for end in (sealed, less, event(11)):
        told = [*events, end]
        lines = chained([(each, body_of(each)) for each in told], "node-1", bytes(32), 1)
        segment = ChainSegment("node-1", 1, 7, bytes(32), lines[6].hash, BEGAN)
        rest = export(Journal(lines[7:], [signed(lines[-1])]))
        report = prove([rest[0], exported.segment_line(segment), *rest[1:]])
        assert report.is_whole is (end is sealed)


@pytest.mark.parametrize("trusted", [[PUBLIC], []], ids=["with the key", "without a key"])
@pytest.mark.parametrize("kept", [0, 4, 11])
def test_entries_that_stay_unsigned_are_a_finding(kept: int, trusted: list[str]) -> None:
    shown = Journal(WHOLE.lines, WHOLE.checkpoints[:kept])
    report = prove(export(shown), trusted=trusted, interval=CheckpointInterval(10, SECOND))
    assert [(each.kind, each.seq) for each in report.findings] == [
        (FindingKind.UNSIGNED, 10 * kept + 1)
    ]
    assert (report.is_whole, report.is_only_unsigned) == (False, True)
    assert (report.signed, report.unsigned) == (10 * kept, 120 - 10 * kept)


def test_entries_that_a_gateway_had_no_time_to_sign_are_no_finding() -> None:
    shown = Journal(WHOLE.lines, WHOLE.checkpoints[:-2])
    report = prove(export(shown), trusted=[PUBLIC])
    assert report.is_whole
    assert (report.signed, report.unsigned) == (100, 20)


def test_an_old_export_with_an_unsigned_end_is_judged_by_when_it_was_made() -> None:
    lines = export(Journal(WHOLE.lines, WHOLE.checkpoints[:-2]))
    later = exported.encode_header(BEGAN + timedelta(hours=1), ["node-1"])
    assert [each.kind for each in prove([later, *lines[1:]]).findings] == [FindingKind.UNSIGNED]


def test_more_unsigned_entries_than_a_gateway_leaves_are_a_finding() -> None:
    interval = CheckpointInterval(10, timedelta(hours=1))
    big = Journal.of(10 + 2 * COMMIT_ENTRIES + 1, every=10)
    assert prove(export(Journal(big.lines, big.checkpoints[:1])), interval=interval).is_whole
    report = prove(export(Journal(big.lines, [])), interval=interval)
    assert [(each.kind, each.seq) for each in report.findings] == [(FindingKind.UNSIGNED, 1)]


def test_nothing_is_called_whole_where_nothing_is_signed() -> None:
    report = prove(export(Journal(WHOLE.lines[:3], [])))
    assert (report.findings, report.is_whole) == ((), False)


@pytest.mark.parametrize("at", ["", "yesterday", "2026-11-15T08:00:00"])
def test_unsigned_entries_that_cannot_be_dated_are_a_finding(at: str) -> None:
    header, *rest = export(Journal(WHOLE.lines[:3], []))
    undated = header.replace(b"2026-11-15T08:00:00.000Z", at.encode())
    kinds = [each.kind for each in prove([undated, *rest]).findings]
    assert kinds == ([FindingKind.UNSIGNED] if at else [])


@pytest.mark.parametrize("trusted", [[PUBLIC], []], ids=["with the key", "without a key"])
def test_every_rewritten_tail_is_found(trusted: list[str]) -> None:
    for seed in range(300):
        forged = rewrite(WHOLE, random.Random(seed))  # noqa: S311  # no secret is drawn
        report = prove(export(forged.journal), trusted=trusted)
        (finding,) = report.findings
        assert (finding.kind, finding.seq) == (FindingKind.UNSIGNED, forged.first), seed
        assert not report.is_whole


def test_a_call_whose_end_is_not_told_is_no_finding() -> None:
    events = [
        AuditEvent(AuditType.CALL_INTENDED, "agent:ci", BEGAN, call="c-1"),
        AuditEvent(AuditType.TOOL_EXECUTED, "agent:ci", BEGAN, call="c-1"),
        AuditEvent(AuditType.CALL_INTENDED, "agent:ci", BEGAN, call="c-2"),
    ]
    lines = chained([(each, body_of(each)) for each in events], "node-1", bytes(32), 1)
    report = prove(export(Journal(lines, [signed(lines[-1])])))
    assert report.is_whole
    assert report.open_calls == ("c-2",)


def test_an_export_that_stops_before_its_end_is_told_so() -> None:
    assert prove(export(WHOLE)[:-1]).findings[0].kind is FindingKind.CUT
    counted = prove(export(Journal(WHOLE.lines[:100], WHOLE.checkpoints[:10]), end=120))
    assert [each.kind for each in counted.findings] == [FindingKind.CUT]


def test_what_cannot_be_read_is_told_line_by_line_and_what_is_no_export_at_all_is_refused() -> None:
    lines = export(WHOLE)
    lines[5] = b"\xff{"
    report = prove(lines)
    assert (FindingKind.UNREADABLE, "line 6 cannot be read") in {
        (each.kind, each.words) for each in report.findings
    }
    for odd in (
        b"{}",
        b'{"checkpoint":{"node":"n","seq":1,"hash":"x","at":"","key":"","signature":""}}',
    ):
        report = prove([lines[0], odd, exported.end_line(0)])
        assert report.findings[0].kind is FindingKind.UNREADABLE
    for first in (b"", b"{}", b'{"comity_audit_log":2}', b"\x00"):
        with pytest.raises(MalformedMessage):
            prove([first])


def test_findings_are_bounded() -> None:
    lines = [line._replace(actor="agent:other") for line in WHOLE.lines]
    report = prove(export(Journal(lines, WHOLE.checkpoints)))
    assert len(report.findings) == MAX_FINDINGS
    assert report.more == 120 - MAX_FINDINGS


def test_what_is_remembered_does_not_grow_with_the_journal() -> None:
    sizes = [len(msgspec.json.encode(msgspec.to_builtins(_left(size)))) for size in (200, 2000)]
    assert sizes[1] < sizes[0] + 200


def _left(size: int) -> object:
    proof = ExportVerifier(is_valid_signature)
    for line in export(Journal.of(size, every=100)):
        proof.take(line)
    return [repr(proof._chains), repr(proof._open), repr(proof._findings)]  # pyright: ignore[reportPrivateUsage]


CHAIN = Journal.of(12, every=4)


def verify_chain(
    lines: list[AuditRecord], journal: Journal = CHAIN
) -> tuple[list[ChainDefect], ChainVerifier]:
    found: list[ChainDefect] = []
    chain = ChainVerifier("node-1", found.append)
    for checkpoint in journal.checkpoints:
        chain.check(checkpoint)
    for line in lines:
        chain.take(ExportRow(seq=line.seq, hash=line.hash.hex()), line.body)
    chain.finish()
    return found, chain


def defects_in(lines: list[AuditRecord]) -> list[tuple[FindingKind, int]]:
    return [(each.kind, each.seq) for each in verify_chain(lines)[0]]


def test_altered_body_is_named_and_the_rest_goes_on() -> None:
    lines = list(CHAIN.lines)
    lines[4] = lines[4]._replace(body=b"{}")
    lines[8] = lines[8]._replace(hash=bytes(32))
    lines[11] = lines[11]._replace(body=b"{}")
    assert defects_in(lines) == [(FindingKind.ALTERED, seq) for seq in (5, 9, 12)]


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_missing_is_named_from_the_first_on(count: int) -> None:
    lines = list(CHAIN.lines)
    del lines[4 : 4 + count]
    found, _ = verify_chain(lines)
    assert [(each.kind, each.seq) for each in found] == [(FindingKind.REMOVED, 5)]
    assert found[0].words.startswith("is missing" if count == 1 else "to 7 are missing")


def test_who_renumbers_what_is_left_is_found_out_all_the_same() -> None:
    lines = [*CHAIN.lines[:4], *(line._replace(seq=line.seq - 2) for line in CHAIN.lines[6:])]
    assert defects_in(lines)[0] == (FindingKind.REMOVED, 5)


def test_an_entry_that_was_put_in_is_named_before_and_behind_the_real_one() -> None:
    made_up = CHAIN.lines[4]._replace(body=b'{"made":"up"}')
    honest = made_up._replace(hash=entry_hash(CHAIN.lines[3].hash, b"node-1", 5, made_up.body))
    for false in (made_up, honest):
        assert defects_in([*CHAIN.lines[:4], false, *CHAIN.lines[4:]])[0] == (
            FindingKind.INSERTED,
            5,
        )
        assert defects_in([*CHAIN.lines[:5], false, *CHAIN.lines[5:]])[0] == (
            FindingKind.INSERTED,
            5,
        )
        moved = [line._replace(seq=line.seq + 1) for line in CHAIN.lines[4:]]
        assert defects_in([*CHAIN.lines[:4], false, *moved])[0] == (FindingKind.INSERTED, 5)


@pytest.mark.parametrize("other", [5, 9])
def test_entries_that_changed_places_are_named(other: int) -> None:
    lines = list(CHAIN.lines)
    lines[4], lines[other] = lines[other], lines[4]
    kinds = {(each.kind, each.seq) for each in verify_chain(lines)[0]}
    assert (FindingKind.REORDERED, 5) in kinds
    renumbered = [line._replace(seq=seq) for seq, line in enumerate(lines, 1)]
    assert defects_in(renumbered)[0][1] == 5


def test_an_altered_number_is_told_from_a_hole() -> None:
    lines = list(CHAIN.lines)
    lines[4] = lines[4]._replace(seq=40)
    assert defects_in(lines) == [(FindingKind.ALTERED, 5)]


def test_a_chain_that_was_rewritten_is_not_what_was_signed() -> None:
    lines = list(CHAIN.lines)
    lines[5] = lines[5]._replace(body=b'{"made":"up"}')
    for at in range(5, 12):
        own = entry_hash(lines[at - 1].hash, b"node-1", at + 1, lines[at].body)
        lines[at] = lines[at]._replace(hash=own)
    found, chain = verify_chain(lines)
    assert [(each.kind, each.seq) for each in found] == [(FindingKind.ALTERED, 5)]
    assert "to 8 are not what was signed" in found[0].words
    assert chain.signed_to == 4


def test_a_tail_that_was_cut_is_missed_by_a_checkpoint() -> None:
    assert defects_in(CHAIN.lines[:9]) == [(FindingKind.CUT, 10)]
    assert defects_in([]) == [(FindingKind.CUT, 1)]


NUMBERS = [0, 2**63 - 1, 1, 0] * 3
SEALED = ChainSegment("node-1", 1, 8, GENESIS, CHAIN.lines[7].hash, BEGAN)


def _after_seal(
    segment: ChainSegment, *, is_signed: bool = False, vouched_to: int = 0, end: int = 12
) -> list[ChainDefect]:
    found: list[ChainDefect] = []
    chain = ChainVerifier("node-1", found.append)
    chain.seal(segment)
    if is_signed:
        chain.check(signed(CHAIN.lines[7]))
    for line in CHAIN.lines[8:end]:
        chain.take(ExportRow(seq=line.seq, hash=line.hash.hex()), line.body)
    chain.vouch(vouched_to)
    if end == 12:
        chain.check(CHAIN.checkpoints[-1])
    chain.finish()
    return found


def test_what_was_sealed_may_be_gone_if_what_is_signed_says_so() -> None:
    assert _after_seal(SEALED, is_signed=True) == []
    assert _after_seal(SEALED, vouched_to=8) == []
    assert _after_seal(SEALED, vouched_to=30) == []


def test_a_seal_alone_explains_nothing() -> None:
    for vouched_to in (0, 7):
        found = _after_seal(SEALED, vouched_to=vouched_to)
        assert [(each.kind, each.seq) for each in found] == [(FindingKind.REMOVED, 1)]
        assert "without a signature" in found[0].words


def test_where_nothing_is_signed_a_seal_is_as_good_as_the_rest() -> None:
    assert _after_seal(SEALED, end=10) == []


def test_segments_follow_one_another() -> None:
    found: list[ChainDefect] = []
    chain = ChainVerifier("node-1", found.append)
    chain.seal(ChainSegment("node-1", 1, 3, GENESIS, CHAIN.lines[2].hash, BEGAN))
    chain.seal(ChainSegment("node-1", 4, 8, CHAIN.lines[2].hash, CHAIN.lines[7].hash, BEGAN))
    for line in CHAIN.lines[8:]:
        chain.take(ExportRow(seq=line.seq, hash=line.hash.hex()), line.body)
    chain.check(CHAIN.checkpoints[-1])
    chain.vouch(8)
    chain.finish()
    assert (found, chain.sealed, chain.first) == ([], 8, 9)


@pytest.mark.parametrize(
    "segment",
    [
        SEALED._replace(before=bytes(31) + b"1"),
        SEALED._replace(hash=bytes(32)),
        SEALED._replace(first=2),
        SEALED._replace(last=7),
    ],
)
def test_a_seal_that_does_not_fit_explains_nothing(segment: ChainSegment) -> None:
    assert _after_seal(segment, vouched_to=8)
    assert _after_seal(segment, is_signed=True)


def test_a_seal_whose_entries_are_still_there_changes_nothing() -> None:
    found: list[ChainDefect] = []
    chain = ChainVerifier("node-1", found.append)
    for line in CHAIN.lines[:8]:
        chain.take(ExportRow(seq=line.seq, hash=line.hash.hex()), line.body)
    chain.seal(SEALED)
    for line in CHAIN.lines[8:]:
        chain.take(ExportRow(seq=line.seq, hash=line.hash.hex()), line.body)
    chain.finish()
    assert found == []


def test_numbers_that_nobody_writes_break_nothing() -> None:
    wild = [line._replace(seq=seq) for line, seq in zip(CHAIN.lines, NUMBERS, strict=True)]
    assert defects_in(wild)
    assert defects_in([line._replace(hash=b"") for line in CHAIN.lines])
