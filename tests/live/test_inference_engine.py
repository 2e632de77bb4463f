"""The engine against a real model server: circuits, fallbacks, deadlines, and what is held."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.adapters.memory.budgets import MemoryBudgets
from comity.adapters.models.registry import make_model
from comity.kernel.live.hook_watch import HookWatch
from comity.kernel.live.inferring import Inference, Seat
from comity.kernel.live.parts import Inferring
from comity.kernel.live.routing import REST, Plan, Routing
from comity.kernel.live.spending import Spending, most_tokens
from comity.ports.budgets import Amounts
from comity.ports.models import ModelSpec, Piece, Prompt, Step, ToolOffer
from comity.rules.budgets import Budget, Price
from comity.rules.circuit import MOST_FAILURES
from comity.rules.inference_routes import Choice, Route, Sought
from comity.wire.contents import Block, said, text_of
from comity.wire.errors import UPSTREAM_DOWN, UPSTREAM_SLOW, Unavailable
from tests.live.model_server import ModelServer, Said, serving
from tests.pace import here

HELLO = Prompt((Step("user", said("Hello")),), max_tokens=50)
ASKED = Inferring(HELLO, "agent:a", "inf_1", feature="x.y")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Stage:
    """An engine with a first model and one to fall back on, each on a server of its own."""

    def __init__(self, first: ModelServer, second: ModelServer, *budgets: Budget) -> None:
        self.first, self.second = first, second
        self.now = NOW
        self.records = MemoryBudgets()
        self.spending = Spending(self.records, budgets, self.clock)
        seats = {
            name: Seat(make_model(ModelSpec(name, "openai", name, server.url + "/v1")), Price(1, 2))
            for name, server in (("one", first), ("two", second))
        }
        plan = Plan(default="one", fallbacks=["two"])
        self.engine = Inference(seats, plan, self.spending, clock=self.clock)

    def clock(self) -> datetime:
        return self.now

    async def infer(self, asked: Inferring = ASKED, on_piece: Any = None) -> str:
        async with asyncio.timeout(here(60)):
            return text_of((await self.engine.infer(asked, on_piece)).content)

    async def held(self) -> Amounts:
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
        while it.engine.circuits.left("one") is None:
            assert await it.infer() == "from the other"
        asked = len(it.first.requests)
        assert asked >= MOST_FAILURES
        assert await it.infer() == "from the other"
        assert len(it.first.requests) == asked
        it.now += REST
        it.first.answer = lambda _: Said("well again")
        assert await it.infer() == "well again"
        assert it.engine.circuits.left("one") is None


async def test_where_everybody_rests_it_is_said_for_how_long() -> None:
    async with staged() as it:
        for server in (it.first, it.second):
            server.answer = lambda _: Said(status=503)
        while it.engine.circuits.left("two") is None:
            with pytest.raises(Unavailable):
                await it.infer()
        with pytest.raises(Unavailable) as told:
            await it.infer()
        assert told.value.fault is UPSTREAM_DOWN
        assert told.value.retry_after == REST


async def test_a_model_that_refuses_one_thing_is_asked_the_next() -> None:
    async with staged() as it:
        it.first.answer = lambda _: Said(status=400)
        for _ in range(MOST_FAILURES + 2):
            await it.infer()
        assert it.engine.circuits.left("one") is None


async def test_a_model_that_takes_too_long_is_not_waited_for() -> None:
    async with staged(Budget(tokens=10_000)) as it:
        it.first.add(Said("late", hold=True))
        it.second.answer = lambda _: Said("in time")
        it.engine.deadline = timedelta(seconds=here(4))
        assert await it.infer() == "in time"
        assert it.first.abandoned <= 1
        # The other may have read it all: that is paid.
        spent = {each.model: each.usage for each in await it.records.spent(NOW.date())}
        assert spent["one"].input > 0
        assert await it.held() == Amounts()


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
        assert (account.spent, account.held) == (Amounts(7, 11), Amounts())


async def test_who_is_cancelled_holds_nothing_any_more() -> None:
    async with staged(Budget(tokens=10_000)) as it:
        it.first.add(Said("one two three four", hold_after=1))
        heard: list[Piece] = []
        asking = asyncio.ensure_future(it.infer(on_piece=heard.append))
        async with asyncio.timeout(here(30)):
            while not heard:
                await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await it.first.left.wait()
        (account,) = await it.records.accounts(NOW.date())
        assert account.held == Amounts()
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
    tool = ToolOffer("t", "d" * 100, {"type": "object", "x": "y" * 100})
    picture = Step("user", (Block("image", data="x" * 10_000, mime="image/png"),))
    empty = most_tokens(Prompt(()))
    assert most_tokens(HELLO) > empty
    assert most_tokens(Prompt((), said("x" * 1_000))) >= empty + 500
    assert most_tokens(Prompt((), tools=(tool,))) >= empty + 100
    assert empty + 2_000 <= most_tokens(Prompt((picture,))) < empty + 3_000


def test_only_fallbacks_follow_the_model_that_was_chosen() -> None:
    plan = Plan([Route("a", feature="x.*"), Route("b", feature="*")], "c", ["d", "a", "nobody"])
    routing = Routing(plan, dict.fromkeys("abcd", 1_000))
    assert routing.chain(Sought(feature="x.y")) == [
        Choice("a", "route: feature x.*"),
        Choice("d", "fallback"),
    ]


def test_a_pin_yields_to_what_the_operator_said_and_to_what_is_too_long() -> None:
    plan = Plan([Route("b", conversation="c2")], "a")
    routing = Routing(plan, {"a": 1_000, "b": 10_000})
    for conversation in ("c1", "c2"):
        routing.pin(Sought(conversation=conversation), "a")
    assert routing.chain(Sought(conversation="c1")) == [Choice("a", "conversation c1")]
    assert routing.chain(Sought(conversation="c2"))[0].model == "b"
    routing.pin(Sought(conversation="c3"), "a")
    assert routing.chain(Sought(conversation="c3", tokens=5_000))[0].because == "default"


def test_a_hook_is_pending_for_its_server_and_conversation_alone() -> None:
    watch = HookWatch()
    with watch.pending("s", "c1"), watch.pending("s", "c1"):
        assert watch.is_pending("s", "c1")
        assert watch.is_pending("s")
        assert not watch.is_pending("s", "c2")
        assert not watch.is_pending("t")
    assert not watch.is_pending("s", "c1")
    assert not watch.is_pending("s")
