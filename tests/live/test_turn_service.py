"""Who takes turns: each once, one of a conversation at a time, whoever dies meanwhile."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest

from comity.errors import UPSTREAM_DOWN, MalformedMessage, Unavailable
from comity.inference.messages import (
    Content,
    FinishReason,
    ModelInfo,
    TokenUsage,
    text_of,
    to_text_content,
)
from comity.inference.model import (
    InferenceRequest,
    ModelCompletion,
    OnPiece,
    ReplyChunk,
    ToolResult,
    ToolUse,
)
from comity.live.hooks.service import (
    ActiveHooks,
    AfterInferenceHooks,
    BeforeInferenceHooks,
    TurnDepth,
)
from comity.live.host import LiveHost
from comity.live.settings import TurnSettings
from comity.live.turns.model import (
    OutputContext,
    TurnCause,
    TurnOrigin,
    TurnRequest,
    TurnState,
    TurnStore,
)
from comity.live.turns.runner import OfferedTools, TurnDependencies, TurnTools
from comity.live.turns.service import TurnTiming, TurnWorker
from comity.mcp.actors import Actor
from tests.pace import here
from tests.support.inline_store import inline_records

INFO = ModelInfo("m-1", "test", 100_000, ("tools",))
type Says = Callable[[InferenceRequest], Any]
"""What the model replies, perhaps in a while; what it raises is raised."""


def reply(text: str = "", *uses: ToolUse) -> ModelCompletion:
    return ModelCompletion(to_text_content(text), FinishReason.END, TokenUsage(10, 2), "m-1", uses)


class Script:
    """An engine that says what it is told to."""

    def __init__(self, says: Says) -> None:
        self._says = says
        self.asked: list[InferenceRequest] = []

    def info(self, server: str = "", feature: str = "", conversation: str = "") -> ModelInfo:
        return INFO

    async def infer(
        self, request: InferenceRequest, on_chunk: OnPiece | None = None
    ) -> ModelCompletion:
        self.asked.append(request)
        found = self._says(request)
        answer = found if isinstance(found, ModelCompletion) else await found
        if on_chunk is not None:
            on_chunk(ReplyChunk(text_of(answer.content)))
        return answer


@dataclass
class Remembering:
    """Places that remember what was said, each once for a turn, as real ones do."""

    said: dict[tuple[str, str], Content] = field(default_factory=dict[tuple[str, str], Content])
    pieces: list[tuple[str, int, str]] = field(default_factory=list[tuple[str, int, str]])
    thoughts: list[str] = field(default_factory=list[str])
    problem: Callable[[OutputContext], None] = lambda _: None

    def candidates(self) -> Sequence[str]:
        return [place for _, place in self.said]

    def show_chunk(self, context: OutputContext, index: int, delta: str) -> None:
        self.pieces.append((context.place, index, delta))

    async def deliver(self, context: OutputContext, content: Content) -> None:
        self.problem(context)
        self.said.setdefault((context.inference, context.place), content)

    async def show_thinking(self, context: OutputContext, text: str) -> None:
        self.thoughts.append(text)


class Tools:
    """No tools but one that counts how often it is used."""

    def __init__(self, uses: Callable[[ToolUse], Any] | None = None) -> None:
        self.used: list[ToolUse] = []
        self._uses = uses

    async def offered(self, actor: Actor) -> OfferedTools:
        return OfferedTools((), {})

    async def use(
        self, actor: Actor, offered: OfferedTools, use: ToolUse, awaiting: object
    ) -> ToolResult:
        self.used.append(use)
        if self._uses is not None:
            await self._uses(use)
        return ToolResult(use.id, to_text_content(f"used {use.name}"))


@dataclass
class House:
    """One node, or several that have their records and places in common."""

    says: Says = lambda _: reply("words")
    records: TurnStore = field(default_factory=lambda: inline_records().topic_messages)
    places: Remembering = field(default_factory=Remembering)
    bounds: TurnSettings = field(default_factory=TurnSettings)
    tools: Tools = field(default_factory=Tools)
    hosting: LiveHost = field(default_factory=LiveHost)
    pace: TurnTiming = field(
        default_factory=lambda: TurnTiming(poll_interval=timedelta(milliseconds=20))
    )

    def __post_init__(self) -> None:
        self.engine = Script(self.says)

    def taker(self) -> TurnWorker:
        watch = ActiveHooks()
        company = TurnDependencies(
            self.records,
            BeforeInferenceHooks(self.hosting, watch, self.bounds),
            AfterInferenceHooks(self.hosting, watch, self.bounds),
            cast("TurnTools", self.tools),
            TurnDepth(),
            lambda text: text.replace("SECRET", "[hidden]"),
            lambda party: Actor(party) if party else None,
            lambda: self.engine,
            lambda: self.places,
            self.bounds,
        )
        return TurnWorker(company, self.hosting.audit, self.pace)


def errand(key: str = "k", conversation: str = "c", *places: str, **cause: Any) -> TurnRequest:
    why = TurnCause(TurnOrigin.PUSH, key, "agent:host", **cause)
    return TurnRequest(why, conversation, to_text_content("hello"), say_in=places or ("topic:t",))


QUICK = TurnTiming(poll_interval=timedelta(milliseconds=20), lease=timedelta(seconds=2))


@asynccontextmanager
async def running(house: House, node: str = "n") -> AsyncGenerator[TurnWorker]:
    taker = house.taker()
    work = asyncio.ensure_future(taker.runner.run(node))
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
        taken = await taker.start(errand("k", "c", "topic:a", "topic:b"))
        assert taken.is_new
        assert await taker.wait_for_output(taken.inference) == "words"
        again = await taker.start(errand("k", "other"))
        assert (again.inference, again.is_new) == (taken.inference, False)
        assert again.conversation == "c"
        assert await taker.wait_for_output(again.inference) == "words"
    assert {place for _, place in house.places.said} == {"topic:a", "topic:b"}
    assert len(house.engine.asked) == 1


async def test_one_that_is_away_is_tried_again_and_then_has_failed() -> None:
    left = [2]

    def says(_: InferenceRequest) -> ModelCompletion:
        left[0] -= 1
        if left[0] >= 0:
            raise Unavailable("away", UPSTREAM_DOWN, timedelta(milliseconds=1))
        return reply("at last")

    house = House(says, pace=QUICK)
    async with running(house) as taker:
        taken = await taker.start(errand())
        assert await taker.wait_for_output(taken.inference) == "at last"
        left[0] = 100
        taken = await taker.start(errand("k2"))
        with pytest.raises(Unavailable, match="away"):
            await taker.wait_for_output(taken.inference)
        kept = await house.records.get(taken.inference)
        assert kept is not None
        assert (kept.state, kept.attempts) == (TurnState.FAILED, 3)


async def test_what_is_refused_is_not_tried_again() -> None:
    def says(_: InferenceRequest) -> ModelCompletion:
        raise MalformedMessage("never SECRET")

    house = House(says)
    async with running(house) as taker:
        taken = await taker.start(errand())
        with pytest.raises(Unavailable, match=r"never \[hidden\]"):
            await taker.wait_for_output(taken.inference)
    assert len(house.engine.asked) == 1


async def test_a_bug_fails_its_turn_and_no_other() -> None:
    def says(asked: InferenceRequest) -> ModelCompletion:
        if asked.conversation == "bad":
            raise ZeroDivisionError
        return reply("fine")

    house = House(says)
    async with running(house) as taker:
        bad, good = [await taker.start(errand(each, each)) for each in ("bad", "good")]
        assert await taker.wait_for_output(good.inference) == "fine"
        with pytest.raises(Unavailable, match="the host failed"):
            await taker.wait_for_output(bad.inference)


async def test_who_is_not_heard_of_loses_its_turn_and_writes_nothing_of_it() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    texts = iter(["of the one that slept", "of the other"])

    async def slow(text: str) -> ModelCompletion:
        if "slept" in text:
            begun.set()
            await go_on.wait()
        return reply(text)

    house = House(lambda _: slow(next(texts)), pace=QUICK)
    asleep = house.taker()
    asleep.runner._keep_claim = _silent  # type: ignore[method-assign]  # it does not say that it lives
    taken = await asleep.start(errand())
    await asleep.runner.start_due_jobs()
    await begun.wait()
    async with running(house, "other") as taker:
        assert await taker.wait_for_output(taken.inference) == "of the other"
        go_on.set()
        await asleep.runner.finish()
    assert [text_of(each) for each in house.places.said.values()] == ["of the other"]
    kept = await house.records.get(taken.inference)
    assert kept is not None
    assert text_of(kept.said) == "of the other"
    await asleep.stop()


async def _silent(*_: object) -> None:
    """Renews no claim."""


async def test_words_that_were_decided_go_out_though_their_node_died_before() -> None:
    refuses = [True]

    def problem(_: OutputContext) -> None:
        if refuses[0]:
            raise Unavailable("not now")

    patient = TurnSettings(max_attempts=1000)
    house = House(places=Remembering(problem=problem), pace=QUICK, bounds=patient)
    async with running(house) as taker:
        taken = await taker.start(errand())
        while (kept := await house.records.get(taken.inference)) is None or (
            kept.state is not TurnState.DECIDED
        ):
            await asyncio.sleep(0.01)
    refuses[0] = False
    async with running(house, "other") as taker:
        assert await taker.wait_for_output(taken.inference) == "words"
    assert len(house.engine.asked) == 1
    assert len(house.places.said) == 1


async def test_a_place_that_never_takes_words_fails_the_turn_and_holds_up_no_other() -> None:
    def problem(saying: OutputContext) -> None:
        if saying.place == "topic:gone":
            raise MalformedMessage("no such topic")

    house = House(places=Remembering(problem=problem), pace=QUICK)
    async with running(house) as taker:
        taken = await taker.start(errand("a", "c", "topic:gone", "topic:t"))
        after = await taker.start(errand("b", "c"))
        with pytest.raises(Unavailable, match="no such topic"):
            await taker.wait_for_output(taken.inference)
        assert await taker.wait_for_output(after.inference) == "words"
    assert (taken.inference, "topic:t") in house.places.said


async def test_a_tool_is_used_once_though_its_node_dies_meanwhile() -> None:
    used = asyncio.Event()

    async def hangs(_: ToolUse) -> None:
        used.set()
        await asyncio.Event().wait()

    def says(asked: InferenceRequest) -> ModelCompletion:
        if any(step.results for step in asked.prompt.steps):
            return reply("who knows")
        return reply("let me", ToolUse("u1", "rake", {}))

    house = House(says, tools=Tools(hangs), pace=QUICK)
    async with running(house) as taker:
        taken = await taker.start(errand())
        await used.wait()
    async with running(house, "other") as taker:
        assert await taker.wait_for_output(taken.inference) == "let me\n\nwho knows"
    assert len(house.tools.used) == 1
    (result,) = house.engine.asked[-1].prompt.steps[-1].results
    assert "unknown" in text_of(result.content)


async def test_of_many_turns_on_nodes_that_come_and_go_each_is_said_once() -> None:
    chance = random.Random(8)  # noqa: S311 (nothing secret)

    async def says(_: InferenceRequest) -> ModelCompletion:
        await asyncio.sleep(chance.random() / 50)
        return reply("words")

    house = House(says, pace=QUICK, bounds=TurnSettings(max_attempts=1000))
    causes = [f"k{number}" for number in range(200)]
    begun: list[str] = []

    async def begin_all(taker: TurnWorker) -> None:
        for key in chance.sample(causes, len(causes)):
            taken = await taker.start(errand(key, f"c{int(key[1:]) % 20}"))
            begun.append(taken.inference)

    for number in range(6):
        async with running(house, f"n{number}") as one, running(house, f"m{number}") as two:
            await asyncio.gather(begin_all(one), begin_all(two))
            await asyncio.sleep(chance.random() / 5)
    async with running(house, "last") as taker:
        for each in set(begun):
            assert await taker.wait_for_output(each) == "words"
    assert len(set(begun)) == len(causes)
    assert set(Counter(inference for inference, _ in house.places.said).values()) == {1}
    assert len(house.places.said) == len(causes)
    indices = Counter[str]()
    for each in await house.records.page(limit=1000):
        indices[each.conversation] += each.index
    assert set(indices.values()) == {sum(range(10))}


async def test_what_was_said_long_ago_is_forgotten() -> None:
    house = House(pace=QUICK, bounds=TurnSettings(retention=timedelta(microseconds=1)))
    async with running(house) as taker:
        taken = await taker.start(errand())
        await taker.wait_for_output(taken.inference)
    async with running(house, "later") as taker:
        while (kept := await house.records.get(taken.inference)) is not None and kept.said:
            await asyncio.sleep(0.01)
    assert (await house.taker().start(errand())).is_new is False


async def test_a_turn_that_nobody_knows_cannot_be_waited_for() -> None:
    taker = House().taker()
    with pytest.raises(Unavailable, match="no turn"):
        await taker.wait_for_output("inf_none")
    with pytest.raises(Unavailable, match="no turn"):
        await taker.wait_for_progress("inf_none", 0, timedelta(0))
