"""The journal as every store keeps it: in order, whole, exact, and never altered."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.app.records import RecordStores
from comity.audit import chain
from comity.audit.chain import (
    AuditFilter,
    AuditRecord,
    ChainCheckpoint,
    ChainHead,
    ChainSegment,
    line_of,
)
from comity.audit.events import AuditEvent, AuditType, body_of
from comity.errors import MalformedMessage, Misconfigured
from tests.contracts.stores import Open

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
TRACE = "0af7651916cd43dd8448eb211c80319c"
_SAID: dict[str, Any] = {
    "type": AuditType.TOOL_EXECUTED,
    "actor": "agent:ci",
    "at": NOW,
    "server": "files",
    "tool": "read",
    "trace": TRACE,
}
OPENED = AuditEvent(AuditType.AUDIT_LOG_OPENED, "gateway", NOW)
HOSTILE = {
    "nul": "a\0b",
    "half": "\ud800",
    "long": "x" * 10_000,
    "wide": "\U0001f600" * 2_000,
    "quotes": "'; DROP TABLE x --",
    "escape": "\x1b[2J\r\n",
}
WORDS = ("trace", "call", "type", "actor", "server", "tool", "result")


def a_call(**said: Any) -> AuditEvent:
    return AuditEvent(**_SAID | said)


def an_intent(call: str) -> AuditEvent:
    return a_call(type=AuditType.CALL_INTENDED, result="PENDING", call=call)


CALL = a_call()


def chained(head: ChainHead, *events: AuditEvent) -> list[AuditRecord]:
    lines, previous = list[AuditRecord](), head.hash
    for seq, event in enumerate(events, head.seq + 1):
        body = body_of(event)
        previous = chain.entry_hash(previous, head.node.encode(), seq, body)
        lines.append(line_of(event, head.node, seq, body, previous))
    return lines


def after(lines: Sequence[AuditRecord]) -> ChainHead:
    return ChainHead(lines[-1].node, lines[-1].seq, lines[-1].hash)


def several(count: int) -> list[AuditEvent]:
    return [a_call(at=NOW + timedelta(seconds=each)) for each in range(count)]


async def written(records: RecordStores, *events: AuditEvent, node: str = "n") -> list[AuditRecord]:
    lines = chained(await records.audit_log.open(node), *events)
    await records.audit_log.append(lines)
    return lines


async def test_an_empty_chain_begins_at_the_beginning(records: RecordStores) -> None:
    assert await records.audit_log.open("n") == ChainHead("n", 0, chain.GENESIS)
    assert await records.audit_log.nodes() == []


async def test_entries_come_back_as_they_were_written(records: RecordStores, again: Open) -> None:
    lines = await written(records, *several(3))
    more = chained(after(lines), a_call(call="c-1", details={"é": [None, "\0"]}))
    await records.audit_log.append(more)
    await records.audit_log.append([])
    other = (await again()).audit_log
    assert await other.page("n") == [*lines, *more]
    assert all(type(each.body) is bytes is type(each.hash) for each in await other.page("n"))
    assert await other.nodes() == ["n"]


async def test_a_chain_goes_on_where_it_ended(records: RecordStores, again: Open) -> None:
    lines = await written(records, *several(3))
    await records.audit_log.close()
    other = await again()
    assert await other.audit_log.open("n") == after(lines)
    more = chained(after(lines), CALL)
    await other.audit_log.append(more)
    assert await other.audit_log.page("n") == [*lines, *more]


async def test_a_chain_can_be_opened_again_while_it_is_open(records: RecordStores) -> None:
    lines = await written(records, *several(3))
    assert await records.audit_log.open("n") == after(lines)
    await records.audit_log.append(chained(after(lines), CALL))
    assert (await records.audit_log.open("n")).seq == 4


async def test_a_chain_is_read_page_by_page(records: RecordStores) -> None:
    lines = await written(records, *several(7))
    assert await records.audit_log.page("n", limit=3) == lines[:3]
    assert await records.audit_log.page("n", after=3, limit=3) == lines[3:6]
    assert await records.audit_log.page("n", after=7) == []
    assert await records.audit_log.page("m") == []


@pytest.mark.parametrize("first", [0, 1, 3, 5])
async def test_a_number_that_is_not_the_next_is_refused(records: RecordStores, first: int) -> None:
    lines = await written(records, *several(3))
    wrong = chained(ChainHead("n", first - 1, chain.GENESIS), *several(2))
    with pytest.raises(Misconfigured, match="the chain must be reopened"):
        await records.audit_log.append(wrong)
    assert await records.audit_log.page("n") == lines
    more = chained(await records.audit_log.open("n"), CALL)
    await records.audit_log.append(more)
    assert await records.audit_log.page("n") == [*lines, *more]


async def test_a_batch_with_a_gap_or_of_two_chains_is_refused_whole(records: RecordStores) -> None:
    one, two, three = chained(await records.audit_log.open("n"), *several(3))
    for wrong in ([one, three], [one, one], [two, one], [one, two._replace(node="m"), three]):
        with pytest.raises(Misconfigured):
            await records.audit_log.append(wrong)
        await records.audit_log.open("n")
    assert await records.audit_log.page("n") == []


async def test_nothing_is_added_to_a_chain_that_was_not_opened(records: RecordStores) -> None:
    with pytest.raises(Misconfigured, match="opened"):
        await records.audit_log.append(chained(ChainHead("m", 0, chain.GENESIS), CALL))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
async def test_no_word_of_a_stranger_keeps_an_entry_out(records: RecordStores, text: str) -> None:
    plain = chained(await records.audit_log.open("n"), *several(len(WORDS)))
    lines = [each._replace(**{word: text}) for each, word in zip(plain, WORDS, strict=True)]
    await records.audit_log.append(lines)
    assert await records.audit_log.page("n") == [chain.to_stored_record(each) for each in lines]
    for word in ("trace", "call", "actor", "server", "tool"):
        (found,) = await records.audit_log.find(replace(AuditFilter(), **{word: text}))
        assert found.seq == WORDS.index(word) + 1
    (found,) = await records.audit_log.find(AuditFilter(types=(text,)))
    assert found.seq == WORDS.index("type") + 1
    (found,) = await records.audit_log.find(AuditFilter(results=(text,)))
    assert found.seq == WORDS.index("result") + 1


async def test_a_body_is_kept_byte_by_byte(records: RecordStores) -> None:
    bodies = (b"", b"\0", bytes(range(256)), b"\xff" * 100_000, b"\\x00", b"\\N\n")
    empty = chained(await records.audit_log.open("n"), *several(len(bodies)))
    lines = [each._replace(body=body) for each, body in zip(empty, bodies, strict=True)]
    await records.audit_log.append(lines)
    assert await records.audit_log.page("n") == lines


@pytest.mark.parametrize("node", ["", "a\0", "\ud800", "x" * 2_000], ids=range(4))
async def test_a_node_must_have_a_name(records: RecordStores, node: str) -> None:
    with pytest.raises(MalformedMessage):
        await records.audit_log.open(node)
    assert await records.audit_log.page(node) == []
    assert await records.audit_log.checkpoints(node) == []
    assert await records.audit_log.segments(node) == []


async def test_entries_of_all_chains_are_found_by_time(records: RecordStores, again: Open) -> None:
    early, late = a_call(at=NOW), a_call(at=NOW + timedelta(microseconds=1))
    one = await written(records, early, late)
    two = await written(await again(), early, late, node="m")
    expected = [two[0], one[0], two[1], one[1]]
    assert await records.audit_log.find(AuditFilter()) == expected
    assert await records.audit_log.find(AuditFilter(newest_first=True)) == expected[::-1]
    assert await records.audit_log.find(AuditFilter(), limit=3) == expected[:3]


@pytest.mark.parametrize("newest_first", [False, True])
async def test_what_is_found_is_read_page_by_page(
    records: RecordStores, newest_first: bool
) -> None:
    # Several of one moment: a page may end between them.
    events = [a_call(at=NOW + timedelta(seconds=each // 4)) for each in range(11)]
    lines = await written(records, *events)
    sought, seen = AuditFilter(newest_first=newest_first), list[AuditRecord]()
    while page := await records.audit_log.find(sought, limit=3):
        seen += page
        sought = replace(sought, after=(page[-1].at, page[-1].node, page[-1].seq))
    assert seen == (lines[::-1] if newest_first else lines)


@pytest.mark.parametrize("newest_first", [False, True])
async def test_entries_of_several_results_are_read_in_one_order(
    records: RecordStores, newest_first: bool
) -> None:
    results = ("BLOCKED", "SUCCESS", "FAILURE", "FAILURE", "PENDING", "BLOCKED", "UNKNOWN")
    events = [
        a_call(at=NOW + timedelta(seconds=each // 3), result=results[each % len(results)])
        for each in range(20)
    ]
    lines = await written(records, *events)
    expected = [each for each in lines if each.result in ("BLOCKED", "FAILURE")]
    sought, seen = AuditFilter(results=("BLOCKED", "FAILURE")), list[AuditRecord]()
    sought = replace(sought, newest_first=newest_first)
    while page := await records.audit_log.find(sought, limit=2):
        assert len(page) <= 2
        seen += page
        sought = replace(sought, after=(page[-1].at, page[-1].node, page[-1].seq))
    assert seen == (expected[::-1] if newest_first else expected)


@pytest.mark.parametrize(
    "sought",
    [
        AuditFilter(trace="1" * 32),
        AuditFilter(call="c-1"),
        AuditFilter(actor="agent:x"),
        AuditFilter(server="web"),
        AuditFilter(tool="write"),
        AuditFilter(types=(AuditType.TOOL_BLOCKED, "unknown")),
        AuditFilter(results=("BLOCKED",)),
        AuditFilter(since=NOW + timedelta(seconds=1)),
        AuditFilter(trace="1" * 32, actor="agent:x", types=(AuditType.TOOL_BLOCKED,), since=NOW),
    ],
    ids=range(9),
)
async def test_entries_are_found_by_each_of_their_words(
    records: RecordStores, sought: AuditFilter
) -> None:
    wanted = AuditEvent(
        AuditType.TOOL_BLOCKED,
        "agent:x",
        NOW + timedelta(seconds=1),
        server="web",
        tool="write",
        result="BLOCKED",
        trace="1" * 32,
        call="c-1",
    )
    lines = await written(records, CALL, wanted, CALL)
    assert await records.audit_log.find(sought) == [lines[1]]
    assert await records.audit_log.find(replace(sought, until=NOW)) == []
    assert await records.audit_log.find(replace(sought, actor="nobody")) == []


async def test_an_interval_has_its_beginning_and_not_its_end(records: RecordStores) -> None:
    lines = await written(records, *several(4))
    sought = AuditFilter(since=NOW + timedelta(seconds=1), until=NOW + timedelta(seconds=3))
    assert await records.audit_log.find(sought) == lines[1:3]


async def test_intents_without_an_outcome_are_doubtful_once(
    records: RecordStores, again: Open
) -> None:
    lines = await written(
        records,
        an_intent("of an earlier run"),
        OPENED,
        *(an_intent(call) for call in ("a", "b", "c", "d", "e", "f", "g")),
        a_call(call="a"),
        a_call(call="b", type=AuditType.TOOL_BLOCKED),
        a_call(call="c", type=AuditType.VALIDATION_FAILED),
        a_call(call="d", type=AuditType.CODE_REJECTED),
        a_call(call="e", type=AuditType.OUTCOME_UNKNOWN),
        a_call(call="f", type=AuditType.CALL_RETRIED),
    )
    await records.audit_log.close()
    other = (await again()).audit_log
    head = await other.open("n")
    assert head == (*after(lines)[:3], (lines[7].body, lines[8].body))
    # This process knows of its own calls what became of them, or has been told.
    assert (await other.open("n")).doubtful == ()


async def test_without_an_opening_the_whole_chain_may_be_doubtful(
    records: RecordStores, again: Open
) -> None:
    lines = await written(records, an_intent("a"), CALL)
    await records.audit_log.close()
    assert (await (await again()).audit_log.open("n")).doubtful == (lines[0].body,)


async def test_an_outcome_counts_in_whatever_chain_it_stands(
    records: RecordStores, again: Open
) -> None:
    await written(records, OPENED, an_intent("a"))
    await records.audit_log.close()
    await written(await again(), a_call(call="a"), node="m")
    assert (await (await again()).audit_log.open("n")).doubtful == ()


async def test_checkpoints_are_kept_in_order(records: RecordStores, again: Open) -> None:
    kept = [ChainCheckpoint("n", seq, b"h", NOW, "00ff", b"\0s") for seq in (3, 1, 2)]
    for each in kept:
        await records.audit_log.add_checkpoint(each)
    await records.audit_log.add_checkpoint(kept[0])
    other = (await again()).audit_log
    assert await other.checkpoints("n") == [kept[1], kept[2], kept[0]]
    assert await other.checkpoints("n", after=2) == [kept[0]]
    assert await other.checkpoints("m") == []
    # A chain that was removed whole is still missed.
    assert await other.nodes() == ["n"]


async def test_a_sealed_segment_goes_and_stays_on_record(
    records: RecordStores, again: Open
) -> None:
    lines = await written(records, *several(6))
    segment = ChainSegment("n", 1, 4, chain.GENESIS, lines[3].hash, NOW)
    await records.audit_log.drop(segment)
    await records.audit_log.drop(segment)
    other = (await again()).audit_log
    assert await other.page("n") == lines[4:]
    assert await other.segments("n") == [segment]
    assert await other.segments("m") == []
    await records.audit_log.append(chained(after(lines), CALL))


async def test_a_chain_of_which_everything_is_sealed_goes_on(
    records: RecordStores, again: Open
) -> None:
    lines = await written(records, *several(3))
    await records.audit_log.drop(ChainSegment("n", 1, 3, chain.GENESIS, lines[2].hash, NOW))
    await records.audit_log.close()
    other = (await again()).audit_log
    assert await other.open("n") == after(lines)
    assert await other.nodes() == ["n"]
    await other.append(chained(after(lines), CALL))


async def test_a_segment_that_is_not_of_this_chain_is_refused(records: RecordStores) -> None:
    lines = await written(records, *several(3))
    for wrong in (
        ChainSegment("n", 1, 2, chain.GENESIS, lines[2].hash, NOW),
        ChainSegment("n", 1, 4, chain.GENESIS, lines[2].hash, NOW),
        ChainSegment("m", 1, 2, chain.GENESIS, lines[1].hash, NOW),
    ):
        with pytest.raises(Misconfigured, match="segment"):
            await records.audit_log.drop(wrong)
    assert await records.audit_log.page("n") == lines
    assert await records.audit_log.segments("n") == []
