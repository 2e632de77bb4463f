"""The inference service against a real model server: circuits, fallbacks, deadlines, budgets."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.errors import UPSTREAM_DOWN, UPSTREAM_SLOW, Unavailable
from comity.inference.budgets import BudgetService, most_tokens
from comity.inference.messages import ContentBlock, text_of, to_text_content
from comity.inference.model import (
    Budget,
    BudgetAmounts,
    ConversationStep,
    InferenceRequest,
    ModelChoice,
    ModelPrompt,
    ModelRoute,
    ModelSpec,
    ModelTool,
    Price,
    ReplyChunk,
    RouteQuery,
)
from comity.inference.providers.registry import make_model
from comity.inference.service import (
    CIRCUIT_REST,
    InferenceService,
    ModelRouter,
    ModelSlot,
    RoutingConfig,
)
from comity.toolkit.resilience import MAX_FAILURES
from tests.live.model_server import ModelServer, serving
from tests.live.model_speech import Said
from tests.pace import here
from tests.support.inline_store import inline_records

HELLO = ModelPrompt((ConversationStep("user", to_text_content("Hello")),), max_tokens=50)
ASKED = InferenceRequest(HELLO, "agent:a", "inf_1", feature="x.y")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Stage:
    """An engine with a first model and one to fall back on, each on a server of its own."""

    def __init__(self, first: ModelServer, second: ModelServer, *budgets: Budget) -> None:
        self.first, self.second = first, second
        self.now = NOW
        self.records = inline_records().budgets
        self.spending = BudgetService(self.records, budgets, self.clock)
        seats = {
            name: ModelSlot(
                make_model(ModelSpec(name, "openai", name, server.url + "/v1")), Price(1, 2)
            )
            for name, server in (("one", first), ("two", second))
        }
        plan = RoutingConfig(default="one", fallbacks=["two"])
        self.engine = InferenceService(seats, plan, self.spending, clock=self.clock)

    def clock(self) -> datetime:
        return self.now

    async def infer(self, asked: InferenceRequest = ASKED, on_piece: Any = None) -> str:
        async with asyncio.timeout(here(60)):
            return text_of((await self.engine.infer(asked, on_piece)).content)

    async def held(self) -> BudgetAmounts:
        (account,) = await self.records.accounts(NOW.date())
        return account.held


@asynccontextmanager
async def staged(*budgets: Budget) -> AsyncGenerator[Stage]:
    async with serving() as first, serving() as second:
        stage = Stage(first, second, *budgets)
        yield stage
        await stage.engine.close()


async def test_a_model_that_always_fails_is_left_alone_for_a_while() -> None:
    async with staged() as it:
        it.first.answer = lambda _: Said(status=400 + 101)
        it.second.answer = lambda _: Said("from the other")
        while it.engine.seconds_until_retry("one") is None:
            assert await it.infer() == "from the other"
        asked = len(it.first.requests)
        assert asked >= MAX_FAILURES
        assert await it.infer() == "from the other"
        assert len(it.first.requests) == asked
        it.now += CIRCUIT_REST
        it.first.answer = lambda _: Said("well again")
        assert await it.infer() == "well again"
        assert it.engine.seconds_until_retry("one") is None


async def test_where_everybody_rests_it_is_said_for_how_long() -> None:
    async with staged() as it:
        for server in (it.first, it.second):
            server.answer = lambda _: Said(status=503)
        while it.engine.seconds_until_retry("two") is None:
            with pytest.raises(Unavailable):
                await it.infer()
        with pytest.raises(Unavailable) as told:
            await it.infer()
        assert told.value.fault is UPSTREAM_DOWN
        assert told.value.retry_after == CIRCUIT_REST


async def test_a_model_that_refuses_one_thing_is_asked_the_next() -> None:
    async with staged() as it:
        it.first.answer = lambda _: Said(status=400)
        for _ in range(MAX_FAILURES + 2):
            await it.infer()
        assert it.engine.seconds_until_retry("one") is None


async def test_a_model_that_takes_too_long_is_not_waited_for() -> None:
    async with staged(Budget(tokens=10_000)) as it:
        it.first.add(Said("late", hold=True))
        it.second.answer = lambda _: Said("in time")
        it.engine.deadline = timedelta(seconds=here(4))
        assert await it.infer() == "in time"
        assert it.first.abandoned <= 1
        # The other may have read it all: that is paid.
        spent = {each.model: each.usage for each in await it.records.spending_on(NOW.date())}
        assert spent["one"].input > 0
        assert await it.held() == BudgetAmounts()


async def test_who_was_slow_and_has_no_second_says_so() -> None:
    async with staged() as it:
        it.first.add(Said("late", hold=True))
        it.second.add(Said("late", hold=True))
        it.engine.deadline = timedelta(milliseconds=300)
        with pytest.raises(Unavailable) as told:
            await it.infer()
        assert told.value.fault is UPSTREAM_SLOW


async def test_as_much_is_held_as_it_may_cost_and_no_longer_than_it_takes() -> None:
    async with staged(Budget(tokens=10_000)) as it:
        it.first.add(Said("x", hold=True, usage=(3, 4)))
        asking = asyncio.ensure_future(it.infer())
        async with asyncio.timeout(here(30)):
            await it.first.came.wait()
        assert (await it.held()).tokens == most_tokens(HELLO) + 50
        it.first.release()
        await asking
        (account,) = await it.records.accounts(NOW.date())
        assert (account.spent, account.held) == (BudgetAmounts(7, 11), BudgetAmounts())


async def test_who_is_cancelled_holds_nothing_any_more() -> None:
    async with staged(Budget(tokens=10_000)) as it:
        it.first.add(Said("one two three four", hold_after=1))
        heard: list[ReplyChunk] = []
        asking = asyncio.ensure_future(it.infer(on_piece=heard.append))
        async with asyncio.timeout(here(30)):
            while not heard:
                await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await it.first.left.wait()
        (account,) = await it.records.accounts(NOW.date())
        assert account.held == BudgetAmounts()
        assert 0 < account.spent.tokens < 60


async def test_a_new_day_is_a_new_budget() -> None:
    async with staged(Budget(tokens=100, on_exceeded="refuse")) as it:
        it.first.answer = lambda _: Said("x", usage=(40, 20))
        assert await it.infer() == "x"
        with pytest.raises(Unavailable) as told:
            await it.infer()
        assert told.value.retry_after == timedelta(hours=12)
        it.now += timedelta(hours=12)
        assert await it.infer() == "x"


async def test_what_begins_before_midnight_counts_on_the_day_before() -> None:
    async with staged(Budget(tokens=1_000)) as it:
        it.first.add(Said("x", hold=True, usage=(3, 4)))
        asking = asyncio.ensure_future(it.infer())
        async with asyncio.timeout(here(30)):
            await it.first.came.wait()
        it.now += timedelta(days=1)
        it.first.release()
        await asking
        (account,) = await it.records.accounts(NOW.date())
        assert (account.spent.tokens, account.held.tokens) == (7, 0)
        assert await it.records.accounts(it.now.date()) == []


def test_all_that_is_given_counts_towards_its_length() -> None:
    tool = ModelTool("t", "d" * 100, {"type": "object", "x": "y" * 100})
    picture = ConversationStep(
        "user", (ContentBlock("image", data="x" * 10_000, mime="image/png"),)
    )
    empty = most_tokens(ModelPrompt(()))
    assert most_tokens(HELLO) > empty
    assert most_tokens(ModelPrompt((), to_text_content("x" * 1_000))) >= empty + 500
    assert most_tokens(ModelPrompt((), tools=(tool,))) >= empty + 100
    assert empty + 2_000 <= most_tokens(ModelPrompt((picture,))) < empty + 3_000


def test_only_fallbacks_follow_the_model_that_was_chosen() -> None:
    plan = RoutingConfig(
        [ModelRoute("a", feature="x.*"), ModelRoute("b", feature="*")], "c", ["d", "a", "nobody"]
    )
    routing = ModelRouter(plan, dict.fromkeys("abcd", 1_000))
    assert routing.chain(RouteQuery(feature="x.y")) == [
        ModelChoice("a", "route: feature x.*"),
        ModelChoice("d", "fallback"),
    ]


def test_a_pin_yields_to_what_the_operator_said_and_to_what_is_too_long() -> None:
    plan = RoutingConfig([ModelRoute("b", conversation="c2")], "a")
    routing = ModelRouter(plan, {"a": 1_000, "b": 10_000})
    for conversation in ("c1", "c2"):
        routing.pin(RouteQuery(conversation=conversation), "a")
    assert routing.chain(RouteQuery(conversation="c1")) == [ModelChoice("a", "conversation c1")]
    assert routing.chain(RouteQuery(conversation="c2"))[0].model == "b"
    routing.pin(RouteQuery(conversation="c3"), "a")
    assert routing.chain(RouteQuery(conversation="c3", tokens=5_000))[0].reason == "default"
