"""The journal as every store keeps it: in order, whole, exact, and never altered."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.ports import Records
from comity.ports.journaling import Head, Sought
from comity.rules import chain
from comity.wire.audit import Event, Type, body_of
from comity.wire.errors import MalformedMessage, Misconfigured
from comity.wire.journal import Checkpoint, Line, Segment, line_of
from tests.contracts.stores import Open

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
TRACE = "0af7651916cd43dd8448eb211c80319c"
_SAID: dict[str, Any] = {
    "type": Type.TOOL_EXECUTED,
    "actor": "agent:ci",
    "at": NOW,
    "server": "files",
    "tool": "read",
    "trace": TRACE,
}
OPENED = Event(Type.JOURNAL_OPENED, "gateway", NOW)
HOSTILE = {
    "nul": "a\0b",
    "half": "\ud800",
    "long": "x" * 10_000,
    "wide": "\U0001f600" * 2_000,
    "quotes": "'; DROP TABLE x --",
    "escape": "\x1b[2J\r\n",
}
WORDS = ("trace", "call", "type", "actor", "server", "tool", "result")


def a_call(**said: Any) -> Event:
    return Event(**_SAID | said)


def an_intent(call: str) -> Event:
    return a_call(type=Type.CALL_INTENDED, result="PENDING", call=call)


CALL = a_call()


def chained(head: Head, *events: Event) -> list[Line]:
    lines, previous = list[Line](), head.hash
    for seq, event in enumerate(events, head.seq + 1):
        body = body_of(event)
        previous = chain.link(previous, head.node.encode(), seq, body)
        lines.append(line_of(event, head.node, seq, body, previous))
    return lines


def after(lines: Sequence[Line]) -> Head:
    return Head(lines[-1].node, lines[-1].seq, lines[-1].hash)


def several(count: int) -> list[Event]:
    return [a_call(at=NOW + timedelta(seconds=each)) for each in range(count)]


async def written(records: Records, *events: Event, node: str = "n") -> list[Line]:
    lines = chained(await records.journal.open(node), *events)
    await records.journal.append(lines)
    return lines


async def test_an_empty_chain_begins_at_the_beginning(records: Records) -> None:
    assert await records.journal.open("n") == Head("n", 0, chain.GENESIS)
    assert await records.journal.nodes() == []


async def test_entries_come_back_as_they_were_written(records: Records, again: Open) -> None:
    lines = await written(records, *several(3))
    more = chained(after(lines), a_call(call="c-1", details={"é": [None, "\0"]}))
    await records.journal.append(more)
    await records.journal.append([])
    other = (await again()).journal
    assert await other.page("n") == [*lines, *more]
    assert all(type(each.body) is bytes is type(each.hash) for each in await other.page("n"))
    assert await other.nodes() == ["n"]


async def test_a_chain_goes_on_where_it_ended(records: Records, again: Open) -> None:
    lines = await written(records, *several(3))
    await records.journal.close()
    other = await again()
    assert await other.journal.open("n") == after(lines)
    more = chained(after(lines), CALL)
    await other.journal.append(more)
    assert await other.journal.page("n") == [*lines, *more]


async def test_a_chain_can_be_opened_again_while_it_is_open(records: Records) -> None:
    lines = await written(records, *several(3))
    assert await records.journal.open("n") == after(lines)
    await records.journal.append(chained(after(lines), CALL))
    assert (await records.journal.open("n")).seq == 4


async def test_a_chain_is_read_page_by_page(records: Records) -> None:
    lines = await written(records, *several(7))
    assert await records.journal.page("n", limit=3) == lines[:3]
    assert await records.journal.page("n", after=3, limit=3) == lines[3:6]
    assert await records.journal.page("n", after=7) == []
    assert await records.journal.page("m") == []


@pytest.mark.parametrize("first", [0, 1, 3, 5])
async def test_a_number_that_is_not_the_next_is_refused(records: Records, first: int) -> None:
    lines = await written(records, *several(3))
    wrong = chained(Head("n", first - 1, chain.GENESIS), *several(2))
    with pytest.raises(Misconfigured, match="opened again"):
        await records.journal.append(wrong)
    assert await records.journal.page("n") == lines
    more = chained(await records.journal.open("n"), CALL)
    await records.journal.append(more)
    assert await records.journal.page("n") == [*lines, *more]


async def test_a_batch_with_a_gap_or_of_two_chains_is_refused_whole(records: Records) -> None:
    one, two, three = chained(await records.journal.open("n"), *several(3))
    for wrong in ([one, three], [one, one], [two, one], [one, two._replace(node="m"), three]):
        with pytest.raises(Misconfigured):
            await records.journal.append(wrong)
        await records.journal.open("n")
    assert await records.journal.page("n") == []


async def test_nothing_is_added_to_a_chain_that_was_not_opened(records: Records) -> None:
    with pytest.raises(Misconfigured, match="opened"):
        await records.journal.append(chained(Head("m", 0, chain.GENESIS), CALL))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
async def test_no_word_of_a_stranger_keeps_an_entry_out(records: Records, text: str) -> None:
    plain = chained(await records.journal.open("n"), *several(len(WORDS)))
    lines = [each._replace(**{word: text}) for each, word in zip(plain, WORDS, strict=True)]
    await records.journal.append(lines)
    assert await records.journal.page("n") == [chain.kept(each) for each in lines]
    for word in ("trace", "call", "actor", "server", "tool", "result"):
        (found,) = await records.journal.find(replace(Sought(), **{word: text}))
        assert found.seq == WORDS.index(word) + 1
    (found,) = await records.journal.find(Sought(types=(text,)))
    assert found.seq == WORDS.index("type") + 1


async def test_a_body_is_kept_byte_by_byte(records: Records) -> None:
    bodies = (b"", b"\0", bytes(range(256)), b"\xff" * 100_000, b"\\x00", b"\\N\n")
    empty = chained(await records.journal.open("n"), *several(len(bodies)))
    lines = [each._replace(body=body) for each, body in zip(empty, bodies, strict=True)]
    await records.journal.append(lines)
    assert await records.journal.page("n") == lines


@pytest.mark.parametrize("node", ["", "a\0", "\ud800", "x" * 2_000], ids=range(4))
async def test_a_node_must_have_a_name(records: Records, node: str) -> None:
    with pytest.raises(MalformedMessage):
        await records.journal.open(node)
    assert await records.journal.page(node) == []
    assert await records.journal.checkpoints(node) == []
    assert await records.journal.segments(node) == []


async def test_entries_of_all_chains_are_found_by_time(records: Records, again: Open) -> None:
    early, late = a_call(at=NOW), a_call(at=NOW + timedelta(microseconds=1))
    one = await written(records, early, late)
    two = await written(await again(), early, late, node="m")
    expected = [two[0], one[0], two[1], one[1]]
    assert await records.journal.find(Sought()) == expected
    assert await records.journal.find(Sought(newest_first=True)) == expected[::-1]
    assert await records.journal.find(Sought(), limit=3) == expected[:3]


@pytest.mark.parametrize("newest_first", [False, True])
async def test_what_is_found_is_read_page_by_page(records: Records, newest_first: bool) -> None:
    # Several of one moment: a page may end between them.
    events = [a_call(at=NOW + timedelta(seconds=each // 4)) for each in range(11)]
    lines = await written(records, *events)
    sought, seen = Sought(newest_first=newest_first), list[Line]()
    while page := await records.journal.find(sought, limit=3):
        seen += page
        sought = replace(sought, after=(page[-1].at, page[-1].node, page[-1].seq))
    assert seen == (lines[::-1] if newest_first else lines)


@pytest.mark.parametrize(
    "sought",
    [
        Sought(trace="1" * 32),
        Sought(call="c-1"),
        Sought(actor="agent:x"),
        Sought(server="web"),
        Sought(tool="write"),
        Sought(types=(Type.TOOL_BLOCKED, "unknown")),
        Sought(result="BLOCKED"),
        Sought(since=NOW + timedelta(seconds=1)),
        Sought(trace="1" * 32, actor="agent:x", types=(Type.TOOL_BLOCKED,), since=NOW),
    ],
    ids=range(9),
)
async def test_entries_are_found_by_each_of_their_words(records: Records, sought: Sought) -> None:
    wanted = Event(
        Type.TOOL_BLOCKED,
        "agent:x",
        NOW + timedelta(seconds=1),
        server="web",
        tool="write",
        result="BLOCKED",
        trace="1" * 32,
        call="c-1",
    )
    lines = await written(records, CALL, wanted, CALL)
    assert await records.journal.find(sought) == [lines[1]]
    assert await records.journal.find(replace(sought, until=NOW)) == []
    assert await records.journal.find(replace(sought, actor="nobody")) == []


async def test_an_interval_has_its_beginning_and_not_its_end(records: Records) -> None:
    lines = await written(records, *several(4))
    sought = Sought(since=NOW + timedelta(seconds=1), until=NOW + timedelta(seconds=3))
    assert await records.journal.find(sought) == lines[1:3]


async def test_intents_without_an_outcome_are_doubtful_once(records: Records, again: Open) -> None:
    lines = await written(
        records,
        an_intent("of an earlier run"),
        OPENED,
        *(an_intent(call) for call in ("a", "b", "c", "d", "e", "f", "g")),
        a_call(call="a"),
        a_call(call="b", type=Type.TOOL_BLOCKED),
        a_call(call="c", type=Type.VALIDATION_FAILED),
        a_call(call="d", type=Type.CODE_REJECTED),
        a_call(call="e", type=Type.OUTCOME_UNKNOWN),
        a_call(call="f", type=Type.CALL_RETRIED),
    )
    await records.journal.close()
    other = (await again()).journal
    head = await other.open("n")
    assert head == (*after(lines)[:3], (lines[7].body, lines[8].body))
    # This process knows of its own calls what became of them, or has been told.
    assert (await other.open("n")).doubtful == ()


async def test_without_an_opening_the_whole_chain_may_be_doubtful(
    records: Records, again: Open
) -> None:
    lines = await written(records, an_intent("a"), CALL)
    await records.journal.close()
    assert (await (await again()).journal.open("n")).doubtful == (lines[0].body,)


async def test_an_outcome_counts_in_whatever_chain_it_stands(records: Records, again: Open) -> None:
    await written(records, OPENED, an_intent("a"))
    await records.journal.close()
    await written(await again(), a_call(call="a"), node="m")
    assert (await (await again()).journal.open("n")).doubtful == ()


async def test_checkpoints_are_kept_in_order(records: Records, again: Open) -> None:
    kept = [Checkpoint("n", seq, b"h", NOW, "00ff", b"\0s") for seq in (3, 1, 2)]
    for each in kept:
        await records.journal.keep(each)
    await records.journal.keep(kept[0])
    other = (await again()).journal
    assert await other.checkpoints("n") == [kept[1], kept[2], kept[0]]
    assert await other.checkpoints("n", after=2) == [kept[0]]
    assert await other.checkpoints("m") == []
    # A chain that was removed whole is still missed.
    assert await other.nodes() == ["n"]


async def test_a_sealed_segment_goes_and_stays_on_record(records: Records, again: Open) -> None:
    lines = await written(records, *several(6))
    segment = Segment("n", 1, 4, chain.GENESIS, lines[3].hash, NOW)
    await records.journal.drop(segment)
    await records.journal.drop(segment)
    other = (await again()).journal
    assert await other.page("n") == lines[4:]
    assert await other.segments("n") == [segment]
    assert await other.segments("m") == []
    await records.journal.append(chained(after(lines), CALL))


async def test_a_chain_of_which_everything_is_sealed_goes_on(records: Records, again: Open) -> None:
    lines = await written(records, *several(3))
    await records.journal.drop(Segment("n", 1, 3, chain.GENESIS, lines[2].hash, NOW))
    await records.journal.close()
    other = (await again()).journal
    assert await other.open("n") == after(lines)
    assert await other.nodes() == ["n"]
    await other.append(chained(after(lines), CALL))


async def test_a_segment_that_is_not_of_this_chain_is_refused(records: Records) -> None:
    lines = await written(records, *several(3))
    for wrong in (
        Segment("n", 1, 2, chain.GENESIS, lines[2].hash, NOW),
        Segment("n", 1, 4, chain.GENESIS, lines[2].hash, NOW),
        Segment("m", 1, 2, chain.GENESIS, lines[1].hash, NOW),
    ):
        with pytest.raises(Misconfigured, match="segment"):
            await records.journal.drop(wrong)
    assert await records.journal.page("n") == lines
    assert await records.journal.segments("n") == []
