"""Records for the lists of the console: audit entries and open approval requests in SQLite."""

import secrets
import shutil
import sqlite3
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from comity.app.records import RecordStores, open_store
from comity.approvals.model import (
    RANDOM_ID_BYTES,
    ApprovalKind,
    ApprovalRequest,
    new_request_id,
)
from tests.support.inline_store import migrated_file

START = datetime(2026, 3, 1, tzinfo=UTC)
_RESULTS = ("SUCCESS", "SUCCESS", "SUCCESS", "FAILURE", "BLOCKED")


def new_store(folder: Path, entries: int) -> str:
    """Make a store with so many audit entries, and return its URL."""
    path = folder / "comity.db"
    shutil.copyfile(migrated_file(), path)
    statement = "INSERT INTO comity_audit_entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.executemany(statement, _audit_rows(entries))
    return f"sqlite:///{path}"


def _audit_rows(entries: int) -> Iterator[tuple[Any, ...]]:
    for seq in range(1, entries + 1):
        at = (START + timedelta(seconds=seq)).isoformat(sep=" ", timespec="microseconds")
        yield (
            "n-scale",
            seq,
            at.removesuffix("+00:00"),
            f"{seq // 4:032x}",
            f"call-{seq}" if seq % 2 else "",
            "TOOL_EXECUTED" if seq % 10 else "dev.comity.key_issued",
            f"agent:{seq % 500}",
            f"server-{seq % 1000}",
            f"tool-{seq % 100}",
            _RESULTS[seq % len(_RESULTS)],
            b"{}",
            b"\0" * 32,
        )


async def add_requests(url: str, requests: int) -> None:
    """Open so many approval requests in the store at this URL."""
    async with opened(url) as records:
        for number in range(requests):
            at = datetime.now(UTC) - timedelta(milliseconds=requests - number)
            await records.approval_requests.open(_request_of(number, at))


def _request_of(number: int, at: datetime) -> ApprovalRequest:
    return ApprovalRequest(
        id=new_request_id(at, secrets.token_bytes(RANDOM_ID_BYTES)),
        kind=ApprovalKind.CONFIRM,
        asker=f"agent:{number % 50}",
        server=f"server-{number % 100}",
        tool="write",
        digest=f"digest {number}",
        message=f"agent:{number % 50} wants to call write",
        about={"tool": "write", "risk": "moderate", "arguments": {"path": f"/reports/{number}"}},
        created_at=at,
        expires_at=at + timedelta(days=1),
    )


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[RecordStores]:
    store = open_store(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
