"""20 principals at their limits, one of them hostile: the other 19 are served as without it.

The hostile one floods calls, sessions, streams, parked calls and wrong credentials, from the same
address as the others. Rounds with it and without it take turns at one gateway, so that a busy
machine is slow for both. In CI only counts are compared, and no time.
"""

import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.processes import running
from tests.pace import at_length
from tests.scale.principals import PARKED, REQUESTS, SECONDS, STREAMS, Governed, Sender, governed
from tests.support.figures import Tell

pytestmark = pytest.mark.timeout(at_length(900, 300))

GOOD = [f"agent:good-{number}" for number in range(19)]
HOSTILE = "agent:hostile"
CALLS = at_length(40, 4)
FEWEST_ROUNDS, MOST_ROUNDS = at_length((5, 25), (1, 1))
MOST_RATIO = 1.3


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Governed]:
    with governed(tmp_path_factory.mktemp("principals"), [*GOOD, HOSTILE]) as found:
        yield found


async def served(sender: Sender, who: str) -> None:
    """One ordinary call, which nobody's limit refuses."""
    while True:
        status, _, body = await sender.call("plain", who)
        # A gateway that got no processor for a while asks its store again before it judges.
        if b'"policy_unknown"' not in body:
            break
    answer = json.loads(body)
    assert status == 200, (status, body)
    assert answer["result"]["content"][0]["text"].isdigit(), answer


async def called(house: Governed, calls: int) -> list[float]:
    """Each good principal has as many calls in flight as it may; how long each call took."""
    took: list[float] = []
    senders = [
        (Sender(house.gateway.origin, house.keys[who]), who)
        for who in GOOD
        for _ in range(REQUESTS)
    ]

    async def call(sender: Sender, who: str) -> None:
        for _ in range(calls):
            began = time.perf_counter()
            await served(sender, who)
            took.append(time.perf_counter() - began)

    try:
        async with asyncio.timeout(SECONDS * 2):
            # Connections are opened before anything is measured: clients keep theirs.
            await asyncio.gather(*(served(sender, who) for sender, who in senders))
            await asyncio.gather(*(call(sender, who) for sender, who in senders))
    finally:
        for sender, _ in senders:
            sender.close()
    assert len(took) == len(GOOD) * REQUESTS * calls
    return took


def beside_the_hostile_one(house: Governed, calls: int) -> tuple[list[float], dict[str, Any]]:
    """The same while the hostile principal floods; and what that one was given meanwhile."""
    command = [sys.executable, "-m", "tests.scale.hostile"]
    with running([*command, house.gateway.origin, house.keys[HOSTILE]]) as program:
        program.wait_for_line("^flooding$")
        took = asyncio.run(called(house, calls))
        os.kill(program.pid, signal.SIGTERM)
        return took, json.loads(program.wait_for_line(r"^\{.*\}$").group(0))


def test_a_hostile_principal_at_its_limits_takes_nothing_from_the_others(
    house: Governed, tell: Tell
) -> None:
    asyncio.run(called(house, 1))
    without: list[float] = []
    beside: list[float] = []
    while len(beside) < FEWEST_ROUNDS or (ratio_of(beside, without) > MOST_RATIO and more(beside)):
        without.append(p99(asyncio.run(called(house, CALLS))))
        took, given = beside_the_hostile_one(house, CALLS)
        beside.append(p99(took))
        # It was heard, and given its share of everything and no more.
        assert given["calls 200"] > 0, given
        assert given["guesses 429"] > 0, given
        assert given.get("streams at most", 0) <= STREAMS, given
        assert given.get("parked", 0) <= PARKED, given
    ratio = ratio_of(beside, without)
    tell(
        f"p99 of 19 principals beside a hostile one {statistics.median(beside) * 1000:.1f} ms, "
        f"without it {statistics.median(without) * 1000:.1f} ms: {ratio:.2f} times, "
        f"{len(without)} rounds each"
    )
    assert at_length(ratio, 0.0) <= MOST_RATIO, (without, beside)


def ratio_of(beside: list[float], without: list[float]) -> float:
    return statistics.median(beside) / statistics.median(without)


def more(rounds: list[float]) -> bool:
    return len(rounds) < MOST_ROUNDS


def p99(took: list[float]) -> float:
    return sorted(took)[len(took) * 99 // 100]
