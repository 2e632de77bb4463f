"""Who takes turns: each once, one of a conversation at a time, whoever dies meanwhile."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from comity.kernel.live.parts import Inferring, Saying
from comity.kernel.live.turns import Pace, TurnTaker
from comity.ports.conversations import State
from comity.ports.models import Reply, ToolUse
from comity.rules.turns import Bounds
from comity.wire.contents import text_of
from comity.wire.errors import UPSTREAM_DOWN, MalformedMessage, Unavailable
from tests.kernel.live.turn_house import House, Remembering, Tools, errand, reply
from tests.pace import here

QUICK = Pace(look=timedelta(milliseconds=20), lease=timedelta(seconds=2))


@asynccontextmanager
async def running(house: House, node: str = "n") -> AsyncGenerator[TurnTaker]:
    taker = house.taker()
    work = asyncio.ensure_future(taker.run(node))
    try:
        async with asyncio.timeout(here(60)):
            yield taker
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await taker.stop()


async def test_what_was_begun_is_said_in_all_its_places_once() -> None:
    house = House()
    async with running(house) as taker:
        taken = await taker.begin(errand("k", "c", "topic:a", "topic:b"))
        assert taken.is_new
        assert await taker.finished(taken.inference) == "words"
        again = await taker.begin(errand("k", "other"))
        assert (again.inference, again.is_new) == (taken.inference, False)
        assert again.conversation == "c"
        assert await taker.finished(again.inference) == "words"
    assert {place for _, place in house.places.said} == {"topic:a", "topic:b"}
    assert len(house.engine.asked) == 1


async def test_turns_are_taken_though_nobody_who_began_them_is_there() -> None:
    house = House()
    taken = await house.taker().begin(errand())
    async with running(house, "other") as taker:
        assert await taker.finished(taken.inference) == "words"


async def test_one_that_is_away_is_tried_again_and_then_has_failed() -> None:
    left = [2]

    def says(_: Inferring) -> Reply:
        left[0] -= 1
        if left[0] >= 0:
            raise Unavailable("away", UPSTREAM_DOWN, timedelta(milliseconds=1))
        return reply("at last")

    house = House(says, pace=QUICK)
    async with running(house) as taker:
        taken = await taker.begin(errand())
        assert await taker.finished(taken.inference) == "at last"
        left[0] = 100
        taken = await taker.begin(errand("k2"))
        with pytest.raises(Unavailable, match="away"):
            await taker.finished(taken.inference)
        kept = await house.records.get(taken.inference)
        assert kept is not None
        assert (kept.state, kept.attempts) == (State.FAILED, 3)


async def test_what_is_refused_is_not_tried_again() -> None:
    def says(_: Inferring) -> Reply:
        raise MalformedMessage("never SECRET")

    house = House(says)
    async with running(house) as taker:
        taken = await taker.begin(errand())
        with pytest.raises(Unavailable, match=r"never \[hidden\]"):
            await taker.finished(taken.inference)
    assert len(house.engine.asked) == 1


async def test_a_bug_fails_its_turn_and_no_other() -> None:
    def says(asked: Inferring) -> Reply:
        if asked.conversation == "bad":
            raise ZeroDivisionError
        return reply("fine")

    house = House(says)
    async with running(house) as taker:
        bad, good = [await taker.begin(errand(each, each)) for each in ("bad", "good")]
        assert await taker.finished(good.inference) == "fine"
        with pytest.raises(Unavailable, match="the host failed"):
            await taker.finished(bad.inference)


async def test_who_is_not_heard_of_loses_its_turn_and_writes_nothing_of_it() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    texts = iter(["of the one that slept", "of the other"])

    async def slow(text: str) -> Reply:
        if "slept" in text:
            begun.set()
            await go_on.wait()
        return reply(text)

    house = House(lambda _: slow(next(texts)), pace=QUICK)
    asleep = house.taker()
    asleep._is_still_ours = _yes  # type: ignore[method-assign]  # it does not say that it lives
    taken = await asleep.begin(errand())
    await asleep.look()
    await begun.wait()
    async with running(house, "other") as taker:
        assert await taker.finished(taken.inference) == "of the other"
        go_on.set()
        await asleep.finish()
    assert [text_of(each) for each in house.places.said.values()] == ["of the other"]
    kept = await house.records.get(taken.inference)
    assert kept is not None
    assert text_of(kept.said) == "of the other"
    await asleep.stop()


async def _yes(_: object) -> bool:
    return True


async def test_words_that_were_decided_go_out_though_their_node_died_before() -> None:
    refuses = [True]

    def problem(_: Saying) -> None:
        if refuses[0]:
            raise Unavailable("not now")

    house = House(places=Remembering(problem=problem), pace=QUICK)
    async with running(house) as taker:
        taken = await taker.begin(errand())
        while (kept := await house.records.get(taken.inference)) is None or (
            kept.state is not State.DECIDED
        ):
            await asyncio.sleep(0.01)
    refuses[0] = False
    async with running(house, "other") as taker:
        assert await taker.finished(taken.inference) == "words"
    assert len(house.engine.asked) == 1
    assert len(house.places.said) == 1


async def test_a_place_that_never_takes_words_fails_the_turn_and_holds_up_no_other() -> None:
    def problem(saying: Saying) -> None:
        if saying.place == "topic:gone":
            raise MalformedMessage("no such topic")

    house = House(places=Remembering(problem=problem), pace=QUICK)
    async with running(house) as taker:
        taken = await taker.begin(errand("a", "c", "topic:gone", "topic:t"))
        after = await taker.begin(errand("b", "c"))
        with pytest.raises(Unavailable, match="no such topic"):
            await taker.finished(taken.inference)
        assert await taker.finished(after.inference) == "words"
    assert (taken.inference, "topic:t") in house.places.said


async def test_a_tool_is_used_once_though_its_node_dies_meanwhile() -> None:
    used = asyncio.Event()

    async def hangs(_: ToolUse) -> None:
        used.set()
        await asyncio.Event().wait()

    def says(asked: Inferring) -> Reply:
        if any(step.results for step in asked.prompt.steps):
            return reply("who knows")
        return reply("let me", ToolUse("u1", "rake", {}))

    house = House(says, tools=Tools(hangs), pace=QUICK)
    async with running(house) as taker:
        taken = await taker.begin(errand())
        await used.wait()
    async with running(house, "other") as taker:
        assert await taker.finished(taken.inference) == "let me\n\nwho knows"
    assert len(house.tools.used) == 1
    (result,) = house.engine.asked[-1].prompt.steps[-1].results
    assert "not known" in text_of(result.content)


async def test_of_many_turns_on_nodes_that_come_and_go_each_is_said_once() -> None:
    chance = random.Random(8)  # noqa: S311 (nothing secret)

    async def says(_: Inferring) -> Reply:
        await asyncio.sleep(chance.random() / 50)
        return reply("words")

    house = House(says, pace=QUICK, bounds=replace(Bounds(), attempts=1000))
    causes = [f"k{number}" for number in range(200)]
    begun: list[str] = []

    async def begin_all(taker: TurnTaker) -> None:
        for key in chance.sample(causes, len(causes)):
            taken = await taker.begin(errand(key, f"c{int(key[1:]) % 20}"))
            begun.append(taken.inference)

    for number in range(6):
        async with running(house, f"n{number}") as one, running(house, f"m{number}") as two:
            await asyncio.gather(begin_all(one), begin_all(two))
            await asyncio.sleep(chance.random() / 5)
    async with running(house, "last") as taker:
        for each in set(begun):
            assert await taker.finished(each) == "words"
    assert len(set(begun)) == len(causes)
    assert set(Counter(inference for inference, _ in house.places.said).values()) == {1}
    assert len(house.places.said) == len(causes)
    indices = Counter[str]()
    for each in await house.records.page(limit=1000):
        indices[each.conversation] += each.index
    assert set(indices.values()) == {sum(range(10))}


async def test_what_was_said_long_ago_is_forgotten() -> None:
    house = House(pace=replace(QUICK, kept=timedelta(microseconds=1)))
    async with running(house) as taker:
        taken = await taker.begin(errand())
        await taker.finished(taken.inference)
    async with running(house, "later") as taker:
        while (kept := await house.records.get(taken.inference)) is not None and kept.said:
            await asyncio.sleep(0.01)
    assert (await house.taker().begin(errand())).is_new is False


async def test_a_turn_that_nobody_knows_cannot_be_waited_for() -> None:
    taker = House().taker()
    with pytest.raises(Unavailable, match="no turn"):
        await taker.finished("inf_none")
    with pytest.raises(Unavailable, match="no turn"):
        await taker.so_far("inf_none", 0, timedelta(0))
