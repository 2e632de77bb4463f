"""Asks in a database: it refuses by itself what may not be, and finds by an index what is."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from comity.approvals.model import (
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.approvals.store import NOTICE_JOBS, SqlAsks
from comity.errors import Unavailable
from comity.storage import postgres, schema, sqlite
from comity.storage.database import ASKS, DatabaseBackend, SqlDatabase, map_database_errors
from comity.storage.work_queue import SqlWorkQueue
from tests.architecture.sources import ROOT
from tests.cluster.postgres import a_postgres
from tests.contracts.stores import a_database

pytestmark = pytest.mark.integration

PROCESSES = 4
AT_ONCE = 15
"""Sixty in all."""

ROUNDS = int(os.environ.get("COMITY_RACES", "3"))
PATIENCE = 150.0
NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
FAR = NOW + timedelta(days=3_650)
ANA = "person:ana@example.org"
ASK = ApprovalRequest(
    "0a", ApprovalKind.CONFIRM, ANA, "files", "delete", "d1", "may it?", {}, NOW, FAR
)


@asynccontextmanager
async def at_sqlite(folder: Path) -> AsyncGenerator[str]:
    yield f"sqlite:///{folder / 'records.db'}"


@asynccontextmanager
async def at_postgres(_: Path) -> AsyncGenerator[str]:
    async with a_database() as url:
        yield url


@asynccontextmanager
async def at_a_postgres_of_its_own(_: Path) -> AsyncGenerator[str]:
    """One that can take a connection for each of sixty, and nobody else is disturbed."""
    with a_postgres() as server:
        yield server.url


def product_at(url: str) -> DatabaseBackend:
    return (sqlite if url.startswith("sqlite") else postgres).product(url)


@pytest.fixture(params=[at_sqlite, at_postgres])
async def product(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[DatabaseBackend]:
    async with request.param(tmp_path) as url:
        made = product_at(url)
        await schema.upgrade_schema(made.engine)
        yield made
        await made.close()


def asks_in(product: DatabaseBackend) -> SqlAsks:
    database = SqlDatabase(product, lambda: None)
    return SqlAsks(database, SqlWorkQueue(database, product, NOTICE_JOBS))


@pytest.fixture
def asks(product: DatabaseBackend) -> SqlAsks:
    return asks_in(product)


async def run_on(product: DatabaseBackend, statement: str, **values: object) -> None:
    async with product.engine.begin() as connection:
        await connection.execute(text(statement), values)


PUT_ANSWER = (
    "INSERT INTO comity_approval_answers"
    " (ask, said_by, number, asker, own, verdict, said_at, reason, content)"
    " VALUES (:ask, :said_by, 1, :asker, :own, 'accept', CURRENT_TIMESTAMP, '', '{}')"
)


@pytest.mark.parametrize(
    ("asker", "own"), [(ANA, False), (ANA, True), ("agent:other", False)], ids=str
)
async def test_the_database_itself_refuses_an_answer_of_the_askers_own(
    product: DatabaseBackend, asks: SqlAsks, asker: str, own: bool
) -> None:
    await asks.open(ASK)
    # Neither as it is, nor by a lie about who asked or what it may.
    with pytest.raises(IntegrityError):
        await run_on(product, PUT_ANSWER, ask="0a", said_by=ANA, asker=asker, own=own)
    assert await asks.get("0a") == ASK


async def test_the_database_lets_nobody_become_another_asker_once_it_was_answered(
    product: DatabaseBackend, asks: SqlAsks
) -> None:
    await asks.open(replace(ASK, quorum=2))
    await asks.answer(
        "0a", ApprovalAnswer("person:bea@example.org", ApprovalDecision.ACCEPT, NOW), FAR
    )
    for change in ("own = (1 = 1)", "asker = 'agent:other'"):
        with pytest.raises(IntegrityError):
            await run_on(product, f"UPDATE comity_approvals SET {change}")  # noqa: S608


@pytest.mark.parametrize("change", ["call = 'a'", "state = 'consumed'", "quorum = 0"])
async def test_the_database_itself_keeps_a_used_ask_and_its_call_together(
    product: DatabaseBackend, asks: SqlAsks, change: str
) -> None:
    await asks.open(ASK)
    with pytest.raises(IntegrityError):
        await run_on(product, f"UPDATE comity_approvals SET {change}")  # noqa: S608


async def test_the_database_itself_has_one_live_ask_for_a_digest(
    product: DatabaseBackend, asks: SqlAsks
) -> None:
    await asks.open(ASK)
    await asks.end("0a", ApprovalState.WITHDRAWN, NOW)
    await asks.open(replace(ASK, id="0b"))
    with pytest.raises(IntegrityError):
        await run_on(product, "UPDATE comity_approvals SET state = 'approved' WHERE id = '0a'")


async def test_what_was_written_stays_when_the_power_goes(product: DatabaseBackend) -> None:
    """Also where a database was set to be quick."""
    if product.tells:
        name = product.engine.sync_engine.dialect.identifier_preparer.quote
        async with product.engine.begin() as connection:
            own = (await connection.execute(text("SELECT current_database()"))).scalar_one()
            quick = f"ALTER DATABASE {name(own)} SET synchronous_commit = off"
            await connection.execute(text(quick))
        await product.engine.dispose()
    asked = "SHOW synchronous_commit" if product.tells else "PRAGMA synchronous"
    async with product.engine.connect() as connection:
        found = (await connection.execute(text(asked))).scalar_one()
    assert found in ("on", 2)


async def test_a_store_with_no_connection_to_spare_is_unavailable() -> None:
    """Whoever waits too long for one is told so, and may try again."""
    with pytest.raises(Unavailable, match="does not answer"):
        async with map_database_errors():
            raise NoConnectionFree("no connection became free in time")


type Place = Callable[[Path], Any]


@pytest.mark.parametrize(
    ("place", "stores"),
    [(at_sqlite, 1), (at_postgres, 1), (at_a_postgres_of_its_own, AT_ONCE)],
    ids=["sqlite", "postgres", "postgres, each with a connection of its own"],
)
@pytest.mark.timeout(PATIENCE + 30)
async def test_of_sixty_executors_in_four_processes_one_succeeds(
    place: Place, stores: int, tmp_path: Path
) -> None:
    async with place(tmp_path) as url, asyncio.timeout(PATIENCE):
        product = product_at(url)
        await schema.upgrade_schema(product.engine)
        asks = asks_in(product)
        async with racers(url, stores) as said:
            for number in range(ROUNDS):
                ask = replace(ASK, id=f"{number:04}", digest=f"d{number}", asker="agent:ci")
                await asks.open(ask)
                assert await asks.answer(
                    ask.id, ApprovalAnswer(ANA, ApprovalDecision.ACCEPT, NOW), FAR
                )
                calls = await said(ask.id)
                assert len(calls) == 1
                used = await asks.get(ask.id)
                assert used is not None
                assert (used.state, [used.call]) == (ApprovalState.CONSUMED, calls)
        await product.close()


@asynccontextmanager
async def racers(url: str, stores: int) -> AsyncGenerator[Callable[[str], Any]]:
    """Processes that all try to use the same ask, once each of them is ready."""
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.racing"),
            *(url, f"p{number}", str(stores), str(AT_ONCE)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        for number in range(PROCESSES)
    ]

    async def line_of(process: asyncio.subprocess.Process) -> bytes:
        assert process.stdout is not None
        return await process.stdout.readline()

    async def said(id: str) -> list[str]:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{id}\n".encode())
        lines = await asyncio.gather(*map(line_of, processes))
        return [call for line in lines for call in json.loads(line)]

    try:
        assert [await line_of(process) for process in processes] == [b"ready\n"] * PROCESSES
        yield said
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()


MANY = 10_000


async def _filled(product: DatabaseBackend) -> None:
    """Ten thousand that are open, and three times as many that have ended."""
    own: dict[str, Any] = {column.name: "" for column in ASKS.columns}
    own |= {"kind": "confirm", "about": "{}", "options": "[]", "quorum": 1, "own": False}
    own |= {"created_at": NOW, "schema": None, "ended_at": None}
    states = (*["pending"] * 8, "deferred", "approved", *["consumed"] * 10, *["expired"] * 20)
    rows: list[dict[str, Any]] = []
    for number in range(4 * MANY):
        state = states[number % 40]
        call = f"call-{number}" if state == "consumed" else ""
        expires = NOW + timedelta(seconds=number)
        named = {"id": f"{number:06}", "digest": f"d{number}", "asker": "agent:ci"}
        rows.append({**own, **named, "state": state, "call": call, "expires_at": expires})
    async with product.engine.begin() as connection:
        for first in range(0, len(rows), 1_000):
            await connection.execute(insert(ASKS), rows[first : first + 1_000])
        await connection.execute(text("ANALYZE"))


async def test_what_is_wanted_of_ten_thousand_open_asks_is_found_by_an_index(
    product: DatabaseBackend, asks: SqlAsks
) -> None:
    await _filled(product)
    plans: list[str] = []
    explain = "EXPLAIN " if product.tells else "EXPLAIN QUERY PLAN "
    begins = ("SELECT", "UPDATE comity_approvals")

    def explained(connection: Connection, statement: str, values: Any) -> None:
        rows = connection.exec_driver_sql(explain + statement, values)
        plans.append("\n".join(" ".join(map(str, row)) for row in rows))

    def watched(connection: Any, _: Any, statement: str, values: Any, *__: Any) -> None:
        if "comity_approvals" in statement and statement.startswith(begins):
            explained(connection, statement, values)

    open_ones = (ApprovalState.PENDING, ApprovalState.DEFERRED)
    event.listen(product.engine.sync_engine, "before_cursor_execute", watched)
    assert len(await asks.page(open_ones, "020000")) == 250
    assert len(await asks.page((), "020000")) == 250
    assert await asks.count(open_ones) == MANY * 9 // 10
    assert len(await asks.expire(NOW + timedelta(seconds=60))) == 20
    assert await asks.find_latest("d0") == await asks.get("000000")
    assert await asks.consume("000009", "call-1", NOW) is None
    assert await asks.release("000010", "call-10") is not None
    assert await asks.open(replace(ASK, digest="d000"))
    event.remove(product.engine.sync_engine, "before_cursor_execute", watched)

    assert len(plans) >= 12
    whole = "Seq Scan on comity_approvals" if product.tells else "SCAN comity_approvals"
    assert [plan for plan in plans if whole in plan] == []
