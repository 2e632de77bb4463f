"""Nothing that was promised is lost when a gateway is killed, whatever the place does meanwhile."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from comity.adapters.sql import migrating, postgres
from comity.wire.audit import as_uuid
from tests.contracts.stores import a_database
from tests.webhooks.gateways import Client, House, calling, kill
from tests.webhooks.receiving import Fault, Receiver, a_receiver

KILLS = 3
FAULTS = (
    *(Fault.NONE, Fault.ERROR, Fault.CUT, Fault.NONE, Fault.REDIRECT, Fault.SLOW_HEAD),
    *(Fault.HUGE_BODY, Fault.SILENT, Fault.NONE, Fault.HUGE_HEAD, Fault.SLOW_BODY, Fault.NO_HTTP),
)


@asynccontextmanager
async def in_sqlite(folder: Path) -> AsyncGenerator[str]:
    yield f"sqlite:///{folder / 'store.db'}"


@asynccontextmanager
async def in_postgres(_: Path) -> AsyncGenerator[str]:
    async with a_database() as url:
        fresh = postgres.product(url)
        await migrating.upgrade(fresh.engine)
        await fresh.close()
        yield url


STORES = {"sqlite": in_sqlite, "postgres": in_postgres}


def told(receiver: Receiver) -> set[str]:
    return {
        said["data"]["trace_id"] for _, said in receiver.taken if said["name"] == "tool.completed"
    }


async def one_life(house: House, receiver: Receiver, answered: list[str], life: int) -> None:
    """Start, call from several hands, and kill it amid calls and posts."""
    timeout = aiohttp.ClientTimeout(30)
    async with house.open() as (program, origin), aiohttp.ClientSession(timeout=timeout) as http:
        clients = [Client(http, origin) for _ in range(3)]
        for client in clients:
            await client.greet()
        if life == 0:
            made = await clients[0].subscribe(receiver.url)
            assert made["result"]["id"].startswith("sub_"), made
        before, until = len(answered), asyncio.Event()
        hands = [asyncio.create_task(calling(each, until, answered)) for each in clients]
        async with asyncio.timeout(60):
            while len(answered) < before + 7 + 5 * life:
                await asyncio.sleep(0.005)
        kill(program)
        until.set()
        await asyncio.gather(*hands)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("store", STORES)
async def test_every_call_that_was_answered_is_told_at_least_once_after_kills(
    tmp_path: Path, store: str
) -> None:
    answered: list[str] = []
    async with STORES[store](tmp_path) as url, a_receiver(FAULTS * 3) as receiver:
        house = House(tmp_path, url)
        for life in range(KILLS):
            await one_life(house, receiver, answered, life)
        promised = {as_uuid(trace) for trace in answered}
        assert len(promised) >= 7 * KILLS
        async with house.open():
            await receiver.until(lambda: promised <= told(receiver), 120)
    bodies: dict[str, set[str]] = {}
    for id, said in receiver.taken:
        bodies.setdefault(id, set()).add(json.dumps(said, sort_keys=True))
    # What came twice came under one name, and was the same.
    assert all(len(each) == 1 for each in bodies.values())
    traces = [s["data"]["trace_id"] for _, s in receiver.taken if s["name"] == "tool.completed"]
    ids = {id for id, said in receiver.taken if said["name"] == "tool.completed"}
    assert len(ids) == len(set(traces))
    assert receiver.trapped == 0
    assert receiver.challenged == 1


@pytest.mark.timeout(240)
async def test_what_a_dead_node_left_is_posted_by_another(tmp_path: Path) -> None:
    """Its last entries were looked through by nobody, and its claims are settled by nobody."""
    timeout = aiohttp.ClientTimeout(30)
    # The first posts hang, so that the one who dies holds a claim.
    async with in_postgres(tmp_path) as url, a_receiver([Fault.SILENT]) as receiver:
        house = House(tmp_path, url)
        async with house.open() as (dying, origin), house.open():
            async with aiohttp.ClientSession(timeout=timeout) as http:
                client = Client(http, origin)
                await client.greet()
                assert "result" in await client.subscribe(receiver.url, "tool.completed")
                traces = [await client.call()]
                await receiver.until(lambda: bool(receiver.tried))
                traces += [await client.call() for _ in range(3)]
                kill(dying)
            promised = {as_uuid(trace or "") for trace in traces}
            await receiver.until(lambda: promised <= told(receiver), 120)
        assert len({id for id, _ in receiver.taken}) == len(promised)
