"""Accepted definitions: counted at once, written down soon, and read before anything counts."""

import asyncio
from collections.abc import Sequence

import pytest

from comity.adapters.memory.records import MemoryRecords
from comity.kernel.pinned import Pinned
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.pins import Pin


def pin(tool: str, digest: str = "d", by: str = "system:gateway") -> Pin:
    return Pin("srv", tool, digest, b'{"name":"x"}', by)


class Store:
    """Records that fail when they are told to."""

    def __init__(self) -> None:
        self.kept = MemoryRecords().pins
        self.trouble: Exception | None = None
        self.writes: list[int] = []

    async def put(self, *pins: Pin) -> None:
        self._fail()
        self.writes.append(len(pins))
        await self.kept.put(*pins)

    async def get(self, server: str, tool: str) -> Pin | None:
        self._fail()
        return await self.kept.get(server, tool)

    async def of(self, server: str) -> Sequence[Pin]:
        self._fail()
        return await self.kept.of(server)

    async def remove(self, server: str, tool: str = "") -> bool:
        return await self.kept.remove(server, tool)

    def _fail(self) -> None:
        if self.trouble is not None:
            raise self.trouble


async def settled(pinned: Pinned) -> None:
    async with asyncio.timeout(10):
        await pinned.settle()


async def test_what_is_accepted_counts_at_once_and_is_written_in_few_goes() -> None:
    store = Store()
    pinned = Pinned(store)
    await pinned.load("srv")
    for number in range(450):
        pinned.accept(pin(f"t{number}"))
    accepted = pinned.get("srv", "t7")
    assert accepted is not None
    assert (accepted.digest, await pinned.definition("srv", "t7")) == ("d", b'{"name":"x"}')
    await settled(pinned)
    assert store.writes == [200, 200, 50]
    assert await pinned.definition("srv", "t7") == b'{"name":"x"}'
    assert await pinned.definition("srv", "none") is None


async def test_another_start_knows_what_was_accepted_before() -> None:
    store = Store()
    await store.put(pin("a", "old"))
    pinned = Pinned(store)
    assert not pinned.is_known("srv")
    await pinned.load("srv")
    assert pinned.is_known("srv")
    assert pinned.of("srv")["a"].digest == "old"
    await store.put(pin("a", "new"))
    await pinned.load("srv")
    assert pinned.of("srv")["a"].digest == "old"
    await pinned.load("srv", again=True)
    assert pinned.of("srv")["a"].digest == "new"


async def test_a_store_that_is_away_is_written_to_when_it_is_back() -> None:
    store = Store()
    pinned = Pinned(store)
    await pinned.load("srv")
    store.trouble = Unavailable("away")
    pinned.accept(pin("a"))
    await settled(pinned)
    assert await store.kept.get("srv", "a") is None
    with pytest.raises(Unavailable):
        await pinned.load("other")
    assert not pinned.is_known("other")
    store.trouble = None
    await pinned.load("srv", again=True)
    assert pinned.get("srv", "a") is not None
    pinned.look()
    await settled(pinned)
    assert await store.kept.get("srv", "a") is not None
    pinned.look()
    pinned.stop()


async def test_what_no_store_keeps_counts_until_the_next_start() -> None:
    store = Store()
    pinned = Pinned(store)
    await pinned.load("srv")
    store.trouble = MalformedMessage("too long")
    pinned.accept(pin("a"))
    await settled(pinned)
    assert pinned.get("srv", "a") is not None
    store.trouble = None
    pinned.look()
    assert store.writes == []


async def test_what_a_person_accepts_is_written_before_it_counts() -> None:
    store = Store()
    pinned = Pinned(store)
    store.trouble = Unavailable("away")
    with pytest.raises(Unavailable):
        await pinned.accept_now([pin("a", by="person:ana")])
    assert pinned.get("srv", "a") is None
    store.trouble = None
    await pinned.accept_now([pin("a", by="person:ana")])
    accepted = pinned.get("srv", "a")
    assert accepted is not None
    assert accepted.by == "person:ana"
