"""A hundred servers of which five are sick: the others answer everything, and nobody waits.

Time is told as a ratio to a crowd without the sick, in rounds that alternate, each the best of its
rounds: whatever else the machine does slows both alike and decides nothing.
"""

import asyncio
import itertools
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.interop.crowds import (
    SECONDS,
    Caller,
    Entry,
    Frame,
    Gateway,
    ModernCaller,
    Posting,
    calling,
    heard,
    light,
    refusal,
    serving,
)
from tests.interop.processes import operator_headers
from tests.pace import at_length
from tests.support.figures import Tell

pytestmark = pytest.mark.timeout(600)

WELL = [f"well-{number}" for number in range(at_length(95, 45))]
ILLNESSES = ("hangs", "floods", "garbage", "bad_schema", "crashes")
TOOLS = ("say", "meet", "hold")
CALLS = at_length(5_000, 2_000)
ROUNDS = at_length(5, 3)
MOST_ROUNDS = 15
"""On a machine that is busy with other things it takes longer to see the best of both."""

MOST_RATIO = 1.6
"""The goal is 1.2; beyond this a sick server was waited for, and no longer a busy machine."""


def well() -> dict[str, Entry]:
    return {name: light(name) for name in WELL}


def with_the_sick() -> dict[str, Entry]:
    return {**well(), **{illness: light(illness, illness) for illness in ILLNESSES}}


async def time_to_the_whole_list(folder: Path, servers: dict[str, Entry]) -> float:
    with serving(folder, servers) as gateway:
        async with calling(gateway.door()) as caller:
            await caller.until_listed(f"{name}__{tool}" for name in WELL for tool in TOOLS)
            return time.monotonic() - gateway.began


async def test_five_sick_servers_keep_nobody_waiting_for_the_list(
    tmp_path: Path, tell: Tell
) -> None:
    alone, among, ratio = list[float](), list[float](), MOST_RATIO + 1
    while len(alone) < ROUNDS or (ratio > MOST_RATIO and len(alone) < MOST_ROUNDS):
        number = len(alone)
        alone.append(await time_to_the_whole_list(tmp_path / f"{number}-well", well()))
        among.append(await time_to_the_whole_list(tmp_path / f"{number}-sick", with_the_sick()))
        ratio = min(among) / min(alone)
    tell(f"the whole list after {min(alone):.2f} s, beside the sick after {min(among):.2f} s")
    tell(f"that is {ratio:.2f} of it; rounds {_rounds(alone)} and {_rounds(among)}")
    assert ratio <= MOST_RATIO


def _rounds(seconds: list[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in seconds)


async def test_the_other_ninety_five_answer_every_one_of_five_thousand_calls_at_once(
    tmp_path: Path, tell: Tell
) -> None:
    with serving(tmp_path, with_the_sick()) as gateway:
        async with AsyncExitStack() as stack, asyncio.timeout(SECONDS * 3):
            eras = [Caller] * 4 + [ModernCaller] * 4
            callers = [
                await stack.enter_async_context(calling(gateway.door(), era)) for era in eras
            ]
            await callers[0].until_listed(f"{name}__{tool}" for name in WELL for tool in TOOLS)
            sick = asyncio.ensure_future(call_the_sick(callers[0]))
            began = time.monotonic()
            answers = await call_all(callers)
            tell(f"{len(answers)} calls at once answered in {time.monotonic() - began:.1f} s")
            assert await sick == {"crashes", "bad_schema"}
        await no_call_is_left(gateway)
    for (name, number), answer in answers.items():
        assert heard(answer)["heard"]["n"] == number, answer
        assert heard(answer)["by"] == name, answer


async def call_all(callers: list[Caller]) -> dict[tuple[str, int], Frame]:
    """Each server answers only when all of its calls have come, so all are under way at once."""
    asked = [(WELL[number % len(WELL)], number) for number in range(CALLS)]
    of = Counter(name for name, _ in asked)
    posting, whose = Posting(), itertools.cycle(callers)
    answers = await asyncio.gather(
        *(
            posting.call(next(whose), f"{name}__meet", n=number, of=of[name])
            for name, number in asked
        )
    )
    return dict(zip(asked, answers, strict=True))


async def call_the_sick(caller: Caller) -> set[str]:
    """Who of them answered at all; what is refused is refused with a reason and what to do."""
    answered = set[str]()
    for illness in ("hangs", "garbage", "bad_schema", "crashes"):
        for number in range(30):
            answer = await caller.call(f"{illness}__say", n=number)
            refused = refusal(answer)
            if refused is None:
                assert heard(answer)["heard"] == {"n": number}
                answered.add(illness)
            else:
                assert {"error_type", "reason", "retryable"} <= set(refused), refused
    return answered


async def no_call_is_left(gateway: Gateway) -> None:
    async with calling(gateway.door()) as caller, asyncio.timeout(SECONDS):
        url = f"{gateway.origin}/api/status"
        while True:
            async with caller.http.get(url, headers=operator_headers(gateway.origin)) as reply:
                if (await reply.json())["calls"] == 0:
                    return
            await asyncio.sleep(0.05)
