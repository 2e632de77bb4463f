"""A gateway that a stdio client started ends when it is not used."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

import pytest

from comity.app.processes.idle_shutdown import (
    IdleShutdownApp,
    acquire_gateway,
    is_gateway_in_use,
    retire_gateway,
)

pytestmark = pytest.mark.timeout(60)


def test_client_holds_its_gateway(tmp_path: Path) -> None:
    record = tmp_path / "2664.json"
    record.touch()
    held = acquire_gateway(record)
    assert held is not None
    assert is_gateway_in_use(record)
    assert not retire_gateway(record)
    os.close(held)
    assert not is_gateway_in_use(record)
    assert retire_gateway(record)
    assert acquire_gateway(record) is None


@pytest.mark.parametrize("has_record", [True, False])
async def test_gateway_that_is_not_used_ends_with_and_without_its_record(
    tmp_path: Path, has_record: bool
) -> None:
    record = tmp_path / "2664.json"
    if has_record:
        record.touch()
    ended = asyncio.Event()
    app = IdleShutdownApp(None, lambda: False)
    app.watch(record, timedelta(seconds=0.2), ended.set)
    async with asyncio.timeout(30):
        await ended.wait()
    app.close()
