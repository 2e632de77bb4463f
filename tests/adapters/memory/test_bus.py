"""The bus inside one process, where it differs: a switch for tests, and a node alone."""

import asyncio

import pytest

from comity.adapters.memory.bus import MOST_WAITING, Hub, MemoryBus
from comity.ports.clustering import Heard
from comity.wire.errors import Unavailable


async def _three() -> list[MemoryBus]:
    hub = Hub()
    buses = [MemoryBus(hub) for _ in range(3)]
    for bus in buses:
        await bus.open()
    return buses


async def _turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_node_alone_talks_to_nobody_and_is_content() -> None:
    bus = MemoryBus()
    heard: list[Heard] = []
    with pytest.raises(Unavailable):
        bus.publish("a", b"")
    await bus.open()
    await bus.subscribe(">", heard.append)
    bus.publish("a", b"")
    await bus.drained()
    await _turn()
    assert bus.is_connected
    assert heard == []


async def test_a_message_is_heard_after_it_was_said_and_not_meanwhile() -> None:
    one, other, _ = await _three()
    heard: list[Heard] = []
    await other.subscribe("a", heard.append)
    one.publish("a", b"1")
    assert heard == []
    await _turn()
    assert heard == [Heard("a", b"1")]


async def test_what_is_said_while_hearing_is_heard_in_a_later_turn() -> None:
    one, other, _ = await _three()
    counted: list[int] = []

    def back(heard: Heard) -> None:
        counted.append(len(heard.data))
        if len(heard.data) < 5:
            other.publish("a", heard.data + b"x")

    await other.subscribe("b", back)
    await one.subscribe("a", lambda heard: one.publish("b", heard.data + b"x"))
    one.publish("b", b"x")
    for _ in range(20):
        await asyncio.sleep(0)
    assert counted == [1, 3, 5]


async def test_a_node_that_is_cut_off_neither_says_nor_hears_anything() -> None:
    one, other, third = await _three()
    heard: dict[str, list[bytes]] = {"other": [], "third": []}
    told: list[bool] = []
    other.watch(told.append)
    await other.subscribe("a", lambda each: heard["other"].append(each.data))
    await third.subscribe("a", lambda each: heard["third"].append(each.data))
    one.publish("a", b"on its way")
    other.cut_off()
    one.publish("a", b"meanwhile")
    with pytest.raises(Unavailable):
        other.publish("a", b"")
    with pytest.raises(Unavailable):
        await other.drained()
    await _turn()
    other.rejoin()
    one.publish("a", b"after")
    await _turn()
    assert heard == {"other": [b"after"], "third": [b"on its way", b"meanwhile", b"after"]}
    assert told == [False, True]


async def test_what_waits_for_another_node_is_bounded() -> None:
    one, other, _ = await _three()
    heard: list[Heard] = []
    await other.subscribe("a", heard.append)
    large = bytes(MOST_WAITING)
    one.publish("a", large)
    with pytest.raises(Unavailable, match="too much"):
        one.publish("a", b"")
    await one.drained()
    one.publish("a", b"")
    await _turn()
    assert [len(each.data) for each in heard] == [MOST_WAITING, 0]


async def test_whoever_closes_is_heard_and_told_no_more() -> None:
    one, other, _ = await _three()
    heard: list[Heard] = []
    await other.subscribe("a", heard.append)
    one.publish("a", b"")
    await other.close()
    await other.close()
    await _turn()
    assert heard == []
    one.publish("a", b"")
