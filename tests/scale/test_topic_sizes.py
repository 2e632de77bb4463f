"""What one topic, one member and one remembered envelope take, and that other topics cost nothing.

Memory is counted by the interpreter, so that a busy machine changes nothing; cost is the processor
time of this process, in turns with topics and without.
"""

import asyncio
import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from bench.crowd import Crowd, envelope
from bench.topic_servers import Server, comity
from comity.mcp.actors import LOCAL, Actor
from comity.topics.rules import (
    MAX_REMEMBERED_TRAILS,
    DeliveryMode,
    TopicAccess,
    TopicCapabilities,
    TopicEntitlement,
)
from comity.topics.service import TopicGrantSource, TopicLimits, TopicService
from comity.topics.topic import TopicMember, TopicMessage, TopicSettings
from tests.support.figures import Tell

TOPICS = 2_000
MOST_OF_A_TOPIC = 8_192
MOST_OF_A_SEAT = 4_096
MOST_OF_A_STEP = 1_024
MOST_OF_A_MEMBER = 64 * 1024
ROUNDS = 11
MOST_RATIO = 1.5
"""What looks at each topic would cost a thousand times more; a busy core, half more."""


@dataclass
class Counting:
    """Where a member is given things: they are counted, and not kept."""

    given: int = 0
    last: bytes = field(default=b"", repr=False)

    def deliver(self, message: TopicMessage) -> bool:
        self.given += 1
        self.last = message.text
        return True

    def end(self, code: int, reason: str) -> None:
        raise AssertionError(reason)


class Everybody(TopicService):
    """Topics in which everybody may everything, without a store of grants."""

    def __init__(self) -> None:
        terms = TopicSettings(TopicAccess.PUBLIC, ("mcp/*", "chat"), max_members=100_000)
        bounds = TopicLimits(topics=100_000)
        super().__init__(cast("TopicGrantSource", None), lambda _: terms, bounds, time.monotonic)
        self.may = TopicEntitlement(
            TopicCapabilities(terms.default_capabilities), is_admitted=True, until=None
        )

    def entitlement_of(self, topic: str, actor: Actor) -> TopicEntitlement:
        return self.may

    async def seat(self, topic: str, name: str) -> TopicMember:
        actor = Actor(f"local:{name}", LOCAL.kind, LOCAL.credential)
        return await self.join(topic, actor, DeliveryMode.ALL, Counting())


def taken(do: Callable[[], Any]) -> int:
    """Bytes that are in memory for what was done."""
    gc.collect()
    tracemalloc.start()
    try:
        do()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_topic_with_one_member_and_what_it_remembers_are_small(tell: Tell) -> None:
    topics = Everybody()

    async def open_them() -> None:
        for number in range(TOPICS):
            await topics.seat(f"topic-{number}", f"m{number}")

    async def sit_down() -> None:
        for number in range(TOPICS // 4):
            await topics.seat("crowded", f"n{number}")

    of_topic = taken(lambda: asyncio.run(open_them())) / TOPICS
    of_seat = taken(lambda: asyncio.run(sit_down())) / (TOPICS // 4)
    seat = asyncio.run(topics.seat("told", "m0"))

    def talk() -> None:
        for number in range(MAX_REMEMBERED_TRAILS + 500):
            topics.receive("told", seat, envelope(number))

    of_step = taken(talk) / MAX_REMEMBERED_TRAILS
    tell(
        f"a topic with a member takes {of_topic:.0f} bytes, one more member {of_seat:.0f}, "
        f"one remembered envelope {of_step:.0f}"
    )
    assert of_topic < MOST_OF_A_TOPIC
    assert of_seat < MOST_OF_A_SEAT
    assert of_step < MOST_OF_A_STEP


def test_what_is_said_costs_the_same_however_many_other_topics_there_are(tell: Tell) -> None:
    async def filled(topics: int) -> tuple[Everybody, TopicMember]:
        found = Everybody()
        for number in range(topics):
            await found.seat(f"topic-{number}", f"m{number}")
        seat = await found.seat("talk", "m0")
        for number in range(1, 10):
            await found.seat("talk", f"m{number}")
        return found, seat

    async def both() -> list[tuple[Everybody, TopicMember]]:
        return [await filled(TOPICS), await filled(0)]

    pair = asyncio.run(both())
    found: list[float] = []
    for turn in range(ROUNDS):
        texts = [envelope(turn * 300 + number) for number in range(300)]
        costs: list[float] = []
        for topics, seat in pair:
            began = time.process_time()
            for text in texts:
                topics.receive("talk", seat, text)
            costs.append(time.process_time() - began)
        found.append(costs[0] / costs[1])
    ratio = statistics.median(found)
    tell(f"with {TOPICS} other topics an envelope costs {ratio:.2f} times as much")
    assert ratio < MOST_RATIO


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with comity(tmp_path_factory.mktemp("sizes")) as found:
        yield found


@pytest.mark.timeout(120)
def test_an_idle_member_takes_little_memory_of_the_gateway(server: Server, tell: Tell) -> None:
    members = 400
    crowds = [Crowd(server.to(f"idle-{number}"), server.cpu) for number in range(5)]
    try:
        crowds[0].grow(members // 4)
        before = server.memory()
        for crowd in crowds[1:]:
            crowd.grow(members // 4)
        each = (server.memory() - before) / members
    finally:
        for crowd in crowds:
            crowd.close()
    tell(f"an idle member takes {each / 1024:.1f} KB of the gateway's memory")
    assert each < MOST_OF_A_MEMBER
