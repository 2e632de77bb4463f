"""`rules/proof_chain.py`: where one chain breaks first, and what was done there."""

import pytest

from comity.rules.chain import GENESIS, link
from comity.rules.proof_chain import ChainProof, Finding, Kind
from comity.wire.exported import Row
from comity.wire.journal import Line, Segment
from tests.rules.journals import BEGAN, Journal, signed

WHOLE = Journal.of(12, every=4)


def _proved(lines: list[Line], journal: Journal = WHOLE) -> tuple[list[Finding], ChainProof]:
    found: list[Finding] = []
    chain = ChainProof("node-1", found.append)
    for checkpoint in journal.checkpoints:
        chain.check(checkpoint)
    for line in lines:
        chain.take(Row(seq=line.seq, hash=line.hash.hex()), line.body)
    chain.finish()
    return found, chain


def _told(lines: list[Line]) -> list[tuple[Kind, int]]:
    return [(each.kind, each.seq) for each in _proved(lines)[0]]


def test_a_whole_chain_is_proved_to_its_last_signature() -> None:
    found, chain = _proved(WHOLE.lines)
    assert found == []
    assert (chain.first, chain.seq, chain.entries, chain.signed_to) == (1, 12, 12, 12)


def test_the_last_may_have_no_signature_yet() -> None:
    found, chain = _proved(WHOLE.lines, Journal(WHOLE.lines, WHOLE.checkpoints[:2]))
    assert found == []
    assert (chain.seq, chain.signed_to) == (12, 8)


def test_an_altered_body_is_named_and_the_rest_goes_on() -> None:
    lines = list(WHOLE.lines)
    lines[4] = lines[4]._replace(body=b"{}")
    lines[8] = lines[8]._replace(hash=bytes(32))
    assert _told(lines) == [(Kind.ALTERED, 5), (Kind.ALTERED, 9)]


def test_the_last_entry_is_looked_at_too() -> None:
    lines = [*WHOLE.lines[:-1], WHOLE.lines[-1]._replace(body=b"{}")]
    assert _told(lines) == [(Kind.ALTERED, 12)]


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_missing_is_named_from_the_first_on(count: int) -> None:
    lines = list(WHOLE.lines)
    del lines[4 : 4 + count]
    found, _ = _proved(lines)
    assert [(each.kind, each.seq) for each in found] == [(Kind.REMOVED, 5)]
    assert found[0].words.startswith("is missing" if count == 1 else "to 7 are missing")


def test_who_renumbers_what_is_left_is_found_out_all_the_same() -> None:
    lines = [*WHOLE.lines[:4], *(line._replace(seq=line.seq - 2) for line in WHOLE.lines[6:])]
    assert _told(lines)[0] == (Kind.REMOVED, 5)


def test_an_entry_that_was_put_in_is_named_before_and_behind_the_real_one() -> None:
    made_up = WHOLE.lines[4]._replace(body=b'{"made":"up"}')
    honest = made_up._replace(hash=link(WHOLE.lines[3].hash, b"node-1", 5, made_up.body))
    for false in (made_up, honest):
        assert _told([*WHOLE.lines[:4], false, *WHOLE.lines[4:]])[0] == (Kind.INSERTED, 5)
        assert _told([*WHOLE.lines[:5], false, *WHOLE.lines[5:]])[0] == (Kind.INSERTED, 5)
        moved = [line._replace(seq=line.seq + 1) for line in WHOLE.lines[4:]]
        assert _told([*WHOLE.lines[:4], false, *moved])[0] == (Kind.INSERTED, 5)


@pytest.mark.parametrize("other", [5, 9])
def test_entries_that_changed_places_are_named(other: int) -> None:
    lines = list(WHOLE.lines)
    lines[4], lines[other] = lines[other], lines[4]
    kinds = {(each.kind, each.seq) for each in _proved(lines)[0]}
    assert (Kind.REORDERED, 5) in kinds
    renumbered = [line._replace(seq=seq) for seq, line in enumerate(lines, 1)]
    assert _told(renumbered)[0][1] == 5


def test_an_altered_number_is_told_from_a_hole() -> None:
    lines = list(WHOLE.lines)
    lines[4] = lines[4]._replace(seq=40)
    assert _told(lines) == [(Kind.ALTERED, 5)]


def test_a_chain_that_was_rewritten_is_not_what_was_signed() -> None:
    lines = list(WHOLE.lines)
    lines[5] = lines[5]._replace(body=b'{"made":"up"}')
    for at in range(5, 12):
        own = link(lines[at - 1].hash, b"node-1", at + 1, lines[at].body)
        lines[at] = lines[at]._replace(hash=own)
    found, chain = _proved(lines)
    assert [(each.kind, each.seq) for each in found] == [(Kind.ALTERED, 5)]
    assert "to 8 are not what was signed" in found[0].words
    assert chain.signed_to == 4


def test_a_tail_that_was_cut_is_missed_by_a_checkpoint() -> None:
    assert _told(WHOLE.lines[:9]) == [(Kind.CUT, 10)]
    assert _told([]) == [(Kind.CUT, 1)]


NUMBERS = [0, 2**63 - 1, 1, 0] * 3
SEALED = Segment("node-1", 1, 8, GENESIS, WHOLE.lines[7].hash, BEGAN)


def _after_seal(
    segment: Segment, *, is_signed: bool = False, vouched_to: int = 0, end: int = 12
) -> list[Finding]:
    found: list[Finding] = []
    chain = ChainProof("node-1", found.append)
    chain.seal(segment)
    if is_signed:
        chain.check(signed(WHOLE.lines[7]))
    for line in WHOLE.lines[8:end]:
        chain.take(Row(seq=line.seq, hash=line.hash.hex()), line.body)
    chain.vouch(vouched_to)
    if end == 12:
        chain.check(WHOLE.checkpoints[-1])
    chain.finish()
    return found


def test_what_was_sealed_may_be_gone_if_what_is_signed_says_so() -> None:
    assert _after_seal(SEALED, is_signed=True) == []
    assert _after_seal(SEALED, vouched_to=8) == []
    assert _after_seal(SEALED, vouched_to=30) == []


def test_a_seal_alone_explains_nothing() -> None:
    for vouched_to in (0, 7):
        found = _after_seal(SEALED, vouched_to=vouched_to)
        assert [(each.kind, each.seq) for each in found] == [(Kind.REMOVED, 1)]
        assert "nothing signed says so" in found[0].words


def test_where_nothing_is_signed_a_seal_is_as_good_as_the_rest() -> None:
    assert _after_seal(SEALED, end=10) == []


def test_segments_follow_one_another() -> None:
    found: list[Finding] = []
    chain = ChainProof("node-1", found.append)
    chain.seal(Segment("node-1", 1, 3, GENESIS, WHOLE.lines[2].hash, BEGAN))
    chain.seal(Segment("node-1", 4, 8, WHOLE.lines[2].hash, WHOLE.lines[7].hash, BEGAN))
    for line in WHOLE.lines[8:]:
        chain.take(Row(seq=line.seq, hash=line.hash.hex()), line.body)
    chain.check(WHOLE.checkpoints[-1])
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
def test_a_seal_that_does_not_fit_explains_nothing(segment: Segment) -> None:
    assert _after_seal(segment, vouched_to=8)
    assert _after_seal(segment, is_signed=True)


def test_a_seal_whose_entries_are_still_there_changes_nothing() -> None:
    found: list[Finding] = []
    chain = ChainProof("node-1", found.append)
    for line in WHOLE.lines[:8]:
        chain.take(Row(seq=line.seq, hash=line.hash.hex()), line.body)
    chain.seal(SEALED)
    for line in WHOLE.lines[8:]:
        chain.take(Row(seq=line.seq, hash=line.hash.hex()), line.body)
    chain.finish()
    assert found == []


def test_numbers_that_nobody_writes_break_nothing() -> None:
    wild = [line._replace(seq=seq) for line, seq in zip(WHOLE.lines, NUMBERS, strict=True)]
    assert _told(wild)
    assert _told([line._replace(hash=b"") for line in WHOLE.lines])
