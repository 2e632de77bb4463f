"""The journal in a database: held by one, refused to change, found by an index, never in doubt."""

import asyncio
import stat
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError

from comity.adapters.sql import journal, postgres, sqlite, sqlite_chain
from comity.adapters.sql.records import SqlRecords
from comity.ports.journaling import Head
from comity.rules import chain
from comity.wire.audit import Type
from comity.wire.errors import Misconfigured, Unavailable
from comity.wire.journal import Line, Segment
from tests.adapters.sql.opened_stores import Store
from tests.adapters.test_postgres import CUT
from tests.contracts.stores import run_on
from tests.contracts.test_journal_store import (
    CALL,
    NOW,
    OPENED,
    a_call,
    after,
    an_intent,
    chained,
    several,
)

THE_NEXT = (
    "INSERT INTO comity_journal SELECT node, seq + 1, at, trace, call, type, actor, server, tool, "
    "result, body, hash FROM comity_journal ORDER BY seq DESC LIMIT 1"
)
LONG = 30.0


async def written(records: SqlRecords, count: int) -> list[Line]:
    lines = chained(await records.journal.open("n"), *several(count))
    await records.journal.append(lines)
    return lines


async def test_who_comes_second_gets_a_chain_beside(store: Store) -> None:
    one, two, three = [(await store.open()).journal for _ in range(3)]
    assert [(await each.open("n")).node for each in (one, two, three)] == ["n", "n~2", "n~3"]
    await two.append(chained(Head("n~2", 0, chain.GENESIS), CALL))
    # Who has one keeps it, also when another has become free.
    await one.close()
    assert (await two.open("n")).node == "n~2"
    assert (await one.open("n")).node == "n"
    assert (await one.open("other")).node == "other"
    assert (await three.open("n")).node == "n~3"
    assert await one.nodes() == ["n~2"]


async def test_what_is_doubtful_of_an_abandoned_chain_is_told_to_whoever_comes(
    store: Store,
) -> None:
    """Who wrote it may come back under another name, or never."""
    one, two, three = [(await store.open()).journal for _ in range(3)]
    doubted: dict[str, bytes] = {}
    for each, call in ((one, "a"), (two, "b"), (three, "c")):
        opened = chained(await each.open("n"), OPENED, an_intent(call))
        await each.append(opened)
        doubted[call] = opened[1].body
    await one.close()
    await three.close()
    four = (await store.open()).journal
    head = await four.open("n")
    # The second one is there, and knows itself what becomes of its calls.
    assert (head.node, head.doubtful) == ("n", (doubted["a"], doubted["c"]))
    unknown = [a_call(call=call, type=Type.OUTCOME_UNKNOWN) for call in ("a", "c")]
    await four.append(chained(head, OPENED, *unknown))
    await two.close()
    head = await (await store.open()).journal.open("n")
    assert (head.node, head.doubtful) == ("n~2", (doubted["b"],))


async def test_calls_that_are_under_way_are_not_doubted_by_their_own_process(
    in_postgres: Store,
) -> None:
    records, other = await in_postgres.open(), await in_postgres.open()
    lines = chained(await records.journal.open("n"), OPENED, an_intent("a"))
    await records.journal.append(lines)
    await run_on(in_postgres.url, CUT)
    with pytest.raises(Unavailable):
        await records.journal.append(chained(after(lines), CALL))
    # Another was faster, and has gone again.
    assert (await other.journal.open("n")).doubtful == (lines[1].body,)
    assert await records.journal.open("n") == Head("n~2", 0, chain.GENESIS)
    await other.journal.close()
    assert (await records.journal.open("n")).doubtful == ()


async def test_a_chain_that_another_went_on_with_is_opened_again(store: Store) -> None:
    """As after a lock that was lost unseen: the number is taken."""
    records = await store.open()
    lines = await written(records, 2)
    for count in (1, 20):
        head = after(lines)
        (theirs,) = chained(head, a_call(actor="another"))
        await store.run(
            "INSERT INTO comity_journal SELECT node, :seq, at, trace, call, type, actor, server, "
            "tool, result, :body, :hash FROM comity_journal WHERE seq = 1",
            seq=theirs.seq,
            body=theirs.body,
            hash=theirs.hash,
        )
        with pytest.raises(Misconfigured, match="opened again"):
            await records.journal.append(chained(head, *several(count)))
        with pytest.raises(Misconfigured, match="opened again"):
            await records.journal.append(chained(after([theirs]), CALL))
        assert await records.journal.open("n") == after([theirs])
        lines = chained(after([theirs]), *several(count))
        await records.journal.append(lines)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE comity_journal SET actor = 'nobody' WHERE seq = 2",
        "DELETE FROM comity_journal WHERE seq = 3",
        "DELETE FROM comity_journal",
        "TRUNCATE comity_journal",
    ],
)
async def test_no_entry_is_altered_or_removed(store: Store, statement: str) -> None:
    if store.is_file and statement.startswith("TRUNCATE"):
        pytest.skip("SQLite has no such statement")
    records = await store.open()
    lines = await written(records, 3)
    await records.journal.drop(Segment("n", 1, 1, chain.GENESIS, lines[0].hash, NOW))
    with pytest.raises(DBAPIError, match="the journal is only ever added to"):
        await store.run(statement)
    assert await records.journal.page("n") == lines[1:]


async def test_a_segment_goes_in_pieces_and_is_on_record_as_far_as_it_is_gone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "AT_ONCE", 4)
    records = await store.open()
    lines = await written(records, 12)
    segment = Segment("n", 1, 10, chain.GENESIS, lines[9].hash, NOW)
    await records.journal.drop(segment._replace(last=3, hash=lines[2].hash))
    await records.journal.drop(segment)
    assert await records.journal.page("n") == lines[10:]
    assert await records.journal.segments("n") == [segment]


async def test_a_writer_that_was_given_up_is_not_in_the_way_of_a_reader(store: Store) -> None:
    one, two = await store.open(), await store.open()
    lines = await written(one, 3)
    assert await two.journal.page("n") == lines
    await one.close()
    assert await two.journal.open("n") == after(lines)


async def test_an_append_that_nobody_waits_for_is_there_or_not(store: Store) -> None:
    records = await store.open()
    lines = await written(records, 2)
    for _ in range(10):
        more = chained(after(lines), *several(20))
        appending = asyncio.ensure_future(records.journal.append(more))
        await asyncio.sleep(0)
        appending.cancel()
        await asyncio.gather(appending, return_exceptions=True)
        with pytest.raises(Misconfigured):
            await records.journal.append(more)
        async with asyncio.timeout(LONG):
            head = await records.journal.open("n")
        assert head in (after(lines), after(more))
        lines = lines if head == after(lines) else more
        # It is as it was said to be, also a while later.
        assert (await records.journal.page("n", after=head.seq)) == []


async def test_a_cut_connection_is_unavailable_until_it_is_opened_again(
    in_postgres: Store,
) -> None:
    records = await in_postgres.open()
    lines = await written(records, 2)
    await run_on(in_postgres.url, CUT)
    more = chained(after(lines), *several(20))
    with pytest.raises(Unavailable, match="does not answer"):
        await records.journal.append(more)
    with pytest.raises(Misconfigured, match="opened again"):
        await records.journal.append(more)
    assert await records.journal.open("n") == after(lines)
    await records.journal.append(more)
    assert await records.journal.page("n") == [*lines, *more]


@pytest.mark.parametrize("count", [1, 20])
async def test_a_batch_that_takes_too_long_is_given_up_and_never_written_later(
    in_postgres: Store, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(postgres, "PATIENCE_SECONDS", 0.5)
    records = await in_postgres.open()
    lines = await written(records, 2)
    async with in_postgres.product.engine.connect() as blocker:
        # Whoever adds the same number waits for what becomes of this one.
        await blocker.exec_driver_sql(THE_NEXT)
        with pytest.raises(Unavailable, match="it stays silent"):
            await records.journal.append(chained(after(lines), *several(count)))
        # What we waited for is still undecided; our own chain is ours again.
        assert await records.journal.open("n") == after(lines)
        await blocker.rollback()
    assert await records.journal.page("n") == lines
    more = chained(after(lines), *several(count))
    await records.journal.append(more)
    assert await records.journal.page("n") == [*lines, *more]


async def test_a_file_that_is_locked_by_another_holds_up_nobody_but_the_journal(
    in_file: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    records = await in_file.open()
    lines = await written(records, 2)
    more = chained(after(lines), *several(2))
    with closing(sqlite_chain.connect(tmp_path / "store.db", 1)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        appending = asyncio.ensure_future(records.journal.append(more))
        turns = 0
        while not appending.done():
            await asyncio.sleep(0.01)
            turns += 1
        with pytest.raises(Unavailable, match="locked"):
            await appending
        assert turns > 1
    assert await records.journal.open("n") == after(lines)
    await records.journal.append(more)


async def test_a_file_of_locks_is_its_owners_alone(in_file: Store, tmp_path: Path) -> None:
    records = await in_file.open()
    await records.journal.open("a/../b")
    modes = _modes(tmp_path)
    assert set(modes.values()) == {0o600}
    assert len([name for name in modes if name.endswith(".lock")]) == 1


def _modes(folder: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}


def test_a_commit_of_the_journal_waits_for_the_disk(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    connection = sqlite_chain.connect(tmp_path / "x.db", 1)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


async def test_a_file_that_has_gone_is_unavailable_and_not_made_anew(
    in_file: Store, tmp_path: Path
) -> None:
    records = await in_file.open()
    (tmp_path / "store.db").unlink()
    with pytest.raises(Unavailable, match="unable to open"):
        await records.journal.open("n")
    assert not (tmp_path / "store.db").exists()
