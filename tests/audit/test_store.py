"""The audit log in a database: one writer, no change, answers by an index, never in doubt."""

import asyncio
import re
import sqlite3
import stat
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from comity.app.records import RecordStores
from comity.audit import chain, chain_writer
from comity.audit import store as store_module
from comity.audit.chain import AuditFilter, AuditRecord, ChainHead, ChainSegment
from comity.audit.chain_writer import HEADS, SqliteChain
from comity.audit.events import AuditType
from comity.audit.store import SqlAuditLog
from comity.errors import Misconfigured, Unavailable
from comity.storage import postgres, sqlite
from tests.contracts.stores import run_on
from tests.contracts.test_journal_store import (
    CALL,
    NOW,
    OPENED,
    TRACE,
    a_call,
    after,
    an_intent,
    chained,
    several,
)
from tests.storage.test_postgres import CUT
from tests.support.inline_store import inline_parts
from tests.support.opened_stores import Store

pytestmark = pytest.mark.integration


THE_NEXT = (
    "INSERT INTO comity_audit_entries SELECT node, seq + 1, at, trace, call, type, actor, "
    "server, tool, result, body, hash FROM comity_audit_entries ORDER BY seq DESC LIMIT 1"
)
LONG = 30.0


async def written(records: RecordStores, count: int) -> list[AuditRecord]:
    lines = chained(await records.audit_log.open("n"), *several(count))
    await records.audit_log.append(lines)
    return lines


async def test_who_comes_second_gets_a_chain_beside(store: Store) -> None:
    one, two, three = [(await store.open()).audit_log for _ in range(3)]
    assert [(await each.open("n")).node for each in (one, two, three)] == ["n", "n~2", "n~3"]
    await two.append(chained(ChainHead("n~2", 0, chain.GENESIS), CALL))
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
    one, two, three = [(await store.open()).audit_log for _ in range(3)]
    doubted: dict[str, bytes] = {}
    for each, call in ((one, "a"), (two, "b"), (three, "c")):
        opened = chained(await each.open("n"), OPENED, an_intent(call))
        await each.append(opened)
        doubted[call] = opened[1].body
    await one.close()
    await three.close()
    four = (await store.open()).audit_log
    head = await four.open("n")
    # The second one is there, and knows itself what becomes of its calls.
    assert (head.node, head.doubtful) == ("n", (doubted["a"], doubted["c"]))
    unknown = [a_call(call=call, type=AuditType.OUTCOME_UNKNOWN) for call in ("a", "c")]
    await four.append(chained(head, OPENED, *unknown))
    await two.close()
    head = await (await store.open()).audit_log.open("n")
    assert (head.node, head.doubtful) == ("n~2", (doubted["b"],))


async def test_calls_that_are_under_way_are_not_doubted_by_their_own_process(
    in_postgres: Store,
) -> None:
    records, other = await in_postgres.open(), await in_postgres.open()
    lines = chained(await records.audit_log.open("n"), OPENED, an_intent("a"))
    await records.audit_log.append(lines)
    await run_on(in_postgres.url, CUT)
    with pytest.raises(Unavailable):
        await records.audit_log.append(chained(after(lines), CALL))
    # Another was faster, and has gone again.
    assert (await other.audit_log.open("n")).doubtful == (lines[1].body,)
    assert await records.audit_log.open("n") == ChainHead("n~2", 0, chain.GENESIS)
    await other.audit_log.close()
    assert (await records.audit_log.open("n")).doubtful == ()


async def test_a_chain_that_another_went_on_with_is_opened_again(store: Store) -> None:
    """As after a lock that was lost unseen: the number is taken."""
    records = await store.open()
    lines = await written(records, 2)
    for count in (1, 20):
        head = after(lines)
        (theirs,) = chained(head, a_call(actor="another"))
        await store.run(
            "INSERT INTO comity_audit_entries SELECT node, :seq, at, trace, call, type, actor, "
            "server, tool, result, :body, :hash FROM comity_audit_entries WHERE seq = 1",
            seq=theirs.seq,
            body=theirs.body,
            hash=theirs.hash,
        )
        with pytest.raises(Misconfigured, match="must be reopened"):
            await records.audit_log.append(chained(head, *several(count)))
        with pytest.raises(Misconfigured, match="must be reopened"):
            await records.audit_log.append(chained(after([theirs]), CALL))
        assert await records.audit_log.open("n") == after([theirs])
        lines = chained(after([theirs]), *several(count))
        await records.audit_log.append(lines)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE comity_audit_entries SET actor = 'nobody' WHERE seq = 2",
        "DELETE FROM comity_audit_entries WHERE seq = 3",
        "DELETE FROM comity_audit_entries",
        "TRUNCATE comity_audit_entries",
    ],
)
async def test_no_entry_is_altered_or_removed(store: Store, statement: str) -> None:
    if store.is_file and statement.startswith("TRUNCATE"):
        pytest.skip("SQLite has no such statement")
    records = await store.open()
    lines = await written(records, 3)
    await records.audit_log.drop(ChainSegment("n", 1, 1, chain.GENESIS, lines[0].hash, NOW))
    with pytest.raises(DBAPIError, match="the audit log is append-only"):
        await store.run(statement)
    assert await records.audit_log.page("n") == lines[1:]


async def test_a_segment_goes_in_pieces_and_is_on_record_as_far_as_it_is_gone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "AT_ONCE", 4)
    records = await store.open()
    lines = await written(records, 12)
    segment = ChainSegment("n", 1, 10, chain.GENESIS, lines[9].hash, NOW)
    await records.audit_log.drop(segment._replace(last=3, hash=lines[2].hash))
    await records.audit_log.drop(segment)
    assert await records.audit_log.page("n") == lines[10:]
    assert await records.audit_log.segments("n") == [segment]


async def test_a_writer_that_was_given_up_is_not_in_the_way_of_a_reader(store: Store) -> None:
    one, two = await store.open(), await store.open()
    lines = await written(one, 3)
    assert await two.audit_log.page("n") == lines
    await one.close()
    assert await two.audit_log.open("n") == after(lines)


async def test_an_append_that_nobody_waits_for_is_there_or_not(store: Store) -> None:
    records = await store.open()
    lines = await written(records, 2)
    for _ in range(10):
        more = chained(after(lines), *several(20))
        appending = asyncio.ensure_future(records.audit_log.append(more))
        await asyncio.sleep(0)
        appending.cancel()
        await asyncio.gather(appending, return_exceptions=True)
        with pytest.raises(Misconfigured):
            await records.audit_log.append(more)
        async with asyncio.timeout(LONG):
            head = await records.audit_log.open("n")
        assert head in (after(lines), after(more))
        lines = lines if head == after(lines) else more
        # It is as it was said to be, also a while later.
        assert (await records.audit_log.page("n", after=head.seq)) == []


async def test_a_cut_connection_is_unavailable_until_it_is_opened_again(
    in_postgres: Store,
) -> None:
    records = await in_postgres.open()
    lines = await written(records, 2)
    await run_on(in_postgres.url, CUT)
    more = chained(after(lines), *several(20))
    with pytest.raises(Unavailable, match="does not answer"):
        await records.audit_log.append(more)
    with pytest.raises(Misconfigured, match="must be reopened"):
        await records.audit_log.append(more)
    assert await records.audit_log.open("n") == after(lines)
    await records.audit_log.append(more)
    assert await records.audit_log.page("n") == [*lines, *more]


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
            await records.audit_log.append(chained(after(lines), *several(count)))
        # What we waited for is still undecided; our own chain is ours again.
        assert await records.audit_log.open("n") == after(lines)
        await blocker.rollback()
    assert await records.audit_log.page("n") == lines
    more = chained(after(lines), *several(count))
    await records.audit_log.append(more)
    assert await records.audit_log.page("n") == [*lines, *more]


async def test_a_file_that_is_locked_by_another_holds_up_nobody_but_the_journal(
    in_file: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    records = await in_file.open()
    lines = await written(records, 2)
    more = chained(after(lines), *several(2))
    with closing(chain_writer.open_chain_file(tmp_path / "store.db", 1)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        appending = asyncio.ensure_future(records.audit_log.append(more))
        turns = 0
        while not appending.done():
            await asyncio.sleep(0.01)
            turns += 1
        with pytest.raises(Unavailable, match="locked"):
            await appending
        assert turns > 1
    assert await records.audit_log.open("n") == after(lines)
    await records.audit_log.append(more)


async def test_a_file_of_locks_is_its_owners_alone(in_file: Store, tmp_path: Path) -> None:
    records = await in_file.open()
    await records.audit_log.open("a/../b")
    modes = _modes(tmp_path)
    assert set(modes.values()) == {0o600}
    assert len([name for name in modes if name.endswith(".lock")]) == 1


def _modes(folder: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}


def test_a_commit_of_the_journal_waits_for_the_disk(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    connection = chain_writer.open_chain_file(tmp_path / "x.db", 1)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_file_that_is_no_database_is_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.db").write_bytes(b"no database" * 100)
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*args: Any, **named: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **named))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        chain_writer.open_chain_file(tmp_path / "x.db", 1)
    (connection,) = opened
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


async def test_a_file_that_has_gone_is_unavailable_and_not_made_anew(
    in_file: Store, tmp_path: Path
) -> None:
    records = await in_file.open()
    (tmp_path / "store.db").unlink()
    with pytest.raises(Unavailable, match="unable to open"):
        await records.audit_log.open("n")
    assert not (tmp_path / "store.db").exists()


class BriefJournal(SqlAuditLog):
    """Remembers four entries, and up to four more."""

    def __init__(self) -> None:
        database, product = inline_parts()
        self.path = product.path
        super().__init__(database, SqliteChain(product.path, 0.2, remembered=4))


async def filled(store: SqlAuditLog, count: int) -> list[AuditRecord]:
    lines = chained(await store.open("n"), *several(count))
    for each in lines:
        await store.append([each])
    return lines


async def test_the_oldest_are_forgotten_and_on_record_as_a_segment() -> None:
    store = BriefJournal()
    lines = await filled(store, 10)
    assert await store.page("n") == lines[5:]
    assert await store.segments("n") == [
        ChainSegment("n", 1, 5, chain.GENESIS, lines[4].hash, lines[4].at)
    ]
    assert await store.open("n") == after(lines)
    await store.close()


async def test_entries_of_a_temporary_store_are_written_when_somebody_reads_them() -> None:
    store = BriefJournal()
    lines = await filled(store, 10)
    with closing(sqlite3.connect(store.path)) as file:
        assert file.execute("SELECT count(*) FROM comity_audit_entries").fetchone() == (0,)
        assert await store.page("n") == lines[5:]
        more = chained(after(lines), *several(2))
        await store.append(more)
        found, pages = await asyncio.gather(store.page("n"), store.page("n"))
        assert found == pages == [*lines[5:], *more]
        assert file.execute("SELECT count(*) FROM comity_audit_entries").fetchone() == (7,)
    await store.close()


async def test_entries_stay_in_memory_while_the_file_is_locked() -> None:
    store = BriefJournal()
    lines = await filled(store, 3)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            await store.page("n")
        more = chained(after(lines), *several(2))
        await store.append(more)
        blocker.execute("ROLLBACK")
    assert await store.page("n") == [*lines, *more]
    assert await store.open("n") == after([*lines, *more])
    await store.close()


async def test_an_entry_that_was_dropped_is_not_written_again() -> None:
    store = BriefJournal()
    lines = await filled(store, 10)
    await store.drop(ChainSegment("n", 6, 9, lines[4].hash, lines[8].hash, NOW))
    more = chained(after(lines), *several(5))
    await store.append(more[:1])
    assert [each.seq for each in await store.page("n")] == [10, 11]
    assert max(each.last for each in await store.segments("n")) == 9
    await store.append(more[1:])
    assert [each.seq for each in await store.page("n")] == [12, 13, 14, 15]
    assert max(each.last for each in await store.segments("n")) == 11
    await store.close()


async def test_what_is_forgotten_lengthens_what_was_dropped() -> None:
    store = BriefJournal()
    lines = await filled(store, 4)
    await store.drop(ChainSegment("n", 1, 2, chain.GENESIS, lines[1].hash, NOW))
    more = chained(after(lines), *several(8))
    await store.append(more)
    (segment,) = await store.segments("n")
    assert (segment.first, segment.last, segment.hash) == (1, 8, more[3].hash)
    assert await store.page("n") == more[4:]
    await store.close()


FILLED = 20_000


async def fill(store: Store) -> None:
    """So many entries that an index is worth it; half of them intents, with an outcome each."""
    numbers = (
        "WITH RECURSIVE numbers(i) AS "  # noqa: S608
        f"(SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < {FILLED})"
    )
    at = (
        "strftime('%Y-%m-%d %H:%M:%f', 1790000000 + i, 'unixepoch') || '000'"
        if store.is_file
        else "to_timestamp(1790000000 + i)"
    )
    digest = "hex(i * 7919)" if store.is_file else "md5(i::text)"
    await store.run(
        f"INSERT INTO comity_audit_entries {numbers} "  # noqa: S608
        f"SELECT 'n', i, {at}, {digest}, 'c' || (i / 2), "
        "CASE WHEN i % 2 = 0 THEN 'dev.comity.call_intended' ELSE 'TOOL_EXECUTED' END, "
        f"'agent:ci', 'files', 'read', 'SUCCESS', {'x' if store.is_file else ''}'00', "
        f"{'x' if store.is_file else ''}'00' FROM numbers"
    )
    await store.run("ANALYZE")


QUESTIONS = {
    "a trace": AuditFilter(trace=TRACE),
    "a trace, newest first": AuditFilter(trace=TRACE, newest_first=True),
    "a call": AuditFilter(call="c-1"),
    "the newest": AuditFilter(newest_first=True),
    "the oldest of an actor": AuditFilter(actor="agent:ci"),
    "a tool of a server": AuditFilter(server="files", tool="read", newest_first=True),
    "a rare type": AuditFilter(types=("dev.comity.key_issued",), newest_first=True),
    "failures": AuditFilter(results=("FAILURE",), newest_first=True),
    "calls that did not succeed": AuditFilter(
        results=("BLOCKED", "FAILURE"), newest_first=True, after=(NOW, "n", 500)
    ),
    "the next page": AuditFilter(after=(NOW, "n", 500)),
    "the page before": AuditFilter(after=(NOW, "n", 500), newest_first=True),
    "a short time": AuditFilter(since=NOW, until=NOW + timedelta(seconds=60)),
}


async def test_every_question_is_answered_by_an_index(store: Store) -> None:
    await fill(store)
    engine = store.product.engine
    asked = {
        name: str(
            store_module.sought_for(sought, 500).compile(
                dialect=engine.dialect, compile_kwargs={"literal_binds": True}
            )
        )
        for name, sought in QUESTIONS.items()
    }
    asked["nodes"] = str(
        store_module.nodes_known().compile(
            dialect=engine.dialect, compile_kwargs={"literal_binds": True}
        )
    )
    asked |= {f"head {each}": each.replace("$1", "'n'") for each in HEADS[:1]}
    for name, question in asked.items():
        explain = "EXPLAIN QUERY PLAN " if store.is_file else "EXPLAIN "
        async with engine.connect() as connection:
            rows = (await connection.exec_driver_sql(explain + question.replace("%%", "%"))).all()
        plan = "\n".join(str(row[-1]) for row in rows)
        whole = (
            r"SCAN comity_audit_entries$" if store.is_file else r"Seq Scan on comity_audit_entries"
        )
        assert not re.search(whole, plan, re.MULTILINE), f"{name}: {plan}"


async def test_what_is_doubtful_of_a_long_run_is_found_without_a_loop_in_a_loop(
    store: Store,
) -> None:
    await fill(store)
    records = await store.open()
    async with asyncio.timeout(LONG):
        head = await records.audit_log.open("n")
    # The last number is even, so its intent has no outcome yet.
    assert (head.seq, len(head.doubtful)) == (FILLED, 1)
