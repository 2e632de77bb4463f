"""The lists of the console with many records: the queries use an index, and answers are bounded.

The whole form fills SQLite with 1,000,000 audit entries and 10,000 open approval requests.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.dialects import sqlite

from comity.app.records import RecordStores
from comity.approvals.model import ApprovalFilter, ApprovalState
from comity.approvals.service import OPEN_STATES
from comity.approvals.store import matching_requests
from comity.audit.chain import AuditFilter
from comity.audit.store import sought_for
from tests.pace import at_length, here
from tests.scale.console_records import START, add_requests, new_store, opened

pytestmark = pytest.mark.timeout(at_length(900, 300))

ENTRIES = at_length(1_000_000, 5_000)
REQUESTS = at_length(10_000, 300)
PAGE = 100
SECONDS = 1.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with all the records."""
    url = new_store(tmp_path_factory.mktemp("console"), ENTRIES)
    with ThreadPoolExecutor(1) as apart:  # a loop may be running in this thread
        apart.submit(asyncio.run, add_requests(url, REQUESTS)).result()
    return url


@pytest.fixture
async def records(url: str) -> AsyncGenerator[RecordStores]:
    async with opened(url) as store:
        yield store


AUDIT_FILTERS = [
    (AuditFilter(newest_first=True), "by_time"),
    (AuditFilter(actor="agent:7", newest_first=True), "by_actor"),
    (AuditFilter(server="server-7", newest_first=True), "by_server"),
    (AuditFilter(server="server-7", tool="tool-7", newest_first=True), "by_server"),
    (AuditFilter(results=("BLOCKED",), newest_first=True), "by_result"),
    (AuditFilter(types=("dev.comity.key_issued",), newest_first=True), "by_type"),
    (AuditFilter(trace=f"{7:032x}"), "by_trace"),
    (
        AuditFilter(
            actor="agent:7",
            newest_first=True,
            after=(START + timedelta(seconds=ENTRIES // 2), "n-scale", 1),
        ),
        "by_actor",
    ),
]


async def plan_of(records: RecordStores, statement: Any) -> str:
    written = statement.limit(PAGE).compile(
        dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}
    )
    database: Any = records.approval_requests._database  # pyright: ignore[reportPrivateUsage]
    async with database.reading() as connection:
        explained = text("EXPLAIN QUERY PLAN " + str(written).replace(":", "\\:"))
        return " | ".join(str(row[3]) for row in await connection.execute(explained))


@pytest.mark.parametrize(("criteria", "index"), AUDIT_FILTERS)
async def test_a_page_of_the_audit_log_walks_along_an_index(
    records: RecordStores, criteria: AuditFilter, index: str
) -> None:
    plan = await plan_of(records, sought_for(criteria, PAGE))
    assert f"comity_audit_entries_{index}" in plan, plan
    # A trace has a few entries; all others are read in the order of the index.
    assert "TEMP B-TREE" not in plan or index == "by_trace", plan
    before = time.monotonic()
    page = await records.audit_log.find(criteria, PAGE)
    took = time.monotonic() - before
    assert page
    assert took < here(SECONDS), (index, took)


@pytest.mark.parametrize(
    ("criteria", "index"),
    [
        (ApprovalFilter(OPEN_STATES), "by_state"),
        (ApprovalFilter(OPEN_STATES, newest_first=True), "by_state"),
        (ApprovalFilter((ApprovalState.DENIED,), asker="agent:7"), "by_"),
        (ApprovalFilter(asker="agent:7", server="server-7", tool="write"), "by_asker"),
        (ApprovalFilter(OPEN_STATES, text="agent:7"), "by_state"),
    ],
)
async def test_a_page_of_open_requests_uses_an_index_and_counts_all(
    records: RecordStores, criteria: ApprovalFilter, index: str
) -> None:
    plan = await plan_of(records, matching_requests(criteria))
    assert f"comity_approvals_{index}" in plan, plan
    before = time.monotonic()
    page = await records.approval_requests.find(criteria, PAGE)
    total = await records.approval_requests.count_matches(criteria)
    took = time.monotonic() - before
    assert len(page) == min(PAGE, total)
    assert took < here(SECONDS), took


async def test_the_pages_of_open_requests_hold_each_request_once(records: RecordStores) -> None:
    seen: list[str] = []
    criteria = ApprovalFilter(OPEN_STATES, newest_first=True)
    while page := await records.approval_requests.find(criteria, 250):
        seen += [each.id for each in page]
        criteria = ApprovalFilter(OPEN_STATES, newest_first=True, after=page[-1].id)
    assert len(seen) == len(set(seen)) == REQUESTS
    assert seen == sorted(seen, reverse=True)
