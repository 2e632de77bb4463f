"""With many entries in it, a journal is read by its indices, and opened without a scan of all."""

import asyncio
import re
from datetime import timedelta

from comity.adapters.sql import journal
from comity.adapters.sql.chain import HEADS
from comity.ports.journaling import Sought
from tests.adapters.sql.opened_stores import Store
from tests.contracts.test_journal_store import NOW, TRACE

FILLED = 20_000
LONG = 30.0


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
        f"INSERT INTO comity_journal {numbers} SELECT 'n', i, {at}, {digest}, 'c' || (i / 2), "  # noqa: S608
        "CASE WHEN i % 2 = 0 THEN 'dev.comity.call_intended' ELSE 'TOOL_EXECUTED' END, "
        f"'agent:ci', 'files', 'read', 'SUCCESS', {'x' if store.is_file else ''}'00', "
        f"{'x' if store.is_file else ''}'00' FROM numbers"
    )
    await store.run("ANALYZE")


QUESTIONS = {
    "a trace": Sought(trace=TRACE),
    "a trace, newest first": Sought(trace=TRACE, newest_first=True),
    "a call": Sought(call="c-1"),
    "the newest": Sought(newest_first=True),
    "the oldest of an actor": Sought(actor="agent:ci"),
    "the next page": Sought(after=(NOW, "n", 500)),
    "the page before": Sought(after=(NOW, "n", 500), newest_first=True),
    "a short time": Sought(since=NOW, until=NOW + timedelta(seconds=60)),
}


async def test_every_question_is_answered_by_an_index(store: Store) -> None:
    await fill(store)
    engine = store.product.engine
    asked = {
        name: str(
            journal.sought_for(sought)
            .limit(500)
            .compile(dialect=engine.dialect, compile_kwargs={"literal_binds": True})
        )
        for name, sought in QUESTIONS.items()
    }
    asked["nodes"] = str(
        journal.nodes_known().compile(
            dialect=engine.dialect, compile_kwargs={"literal_binds": True}
        )
    )
    asked |= {f"head {each}": each.replace("$1", "'n'") for each in HEADS[:1]}
    for name, question in asked.items():
        explain = "EXPLAIN QUERY PLAN " if store.is_file else "EXPLAIN "
        async with engine.connect() as connection:
            rows = (await connection.exec_driver_sql(explain + question.replace("%%", "%"))).all()
        plan = "\n".join(str(row[-1]) for row in rows)
        whole = r"SCAN comity_journal$" if store.is_file else r"Seq Scan on comity_journal"
        assert not re.search(whole, plan, re.MULTILINE), f"{name}: {plan}"


async def test_what_is_doubtful_of_a_long_run_is_found_without_a_loop_in_a_loop(
    store: Store,
) -> None:
    await fill(store)
    records = await store.open()
    async with asyncio.timeout(LONG):
        head = await records.journal.open("n")
    # The last number is even, so its intent has no outcome yet.
    assert (head.seq, len(head.doubtful)) == (FILLED, 1)
