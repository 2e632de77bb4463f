"""What is kept of budgets: held all or nothing, never beyond a bound, settled once; each store."""

import asyncio
from datetime import date

from comity.app.records import RecordStores
from comity.inference.messages import TokenUsage
from comity.inference.model import BudgetAmounts, BudgetLimit, SpendRecord
from tests.contracts.stores import Open

DAY = date(2026, 3, 1)
NEXT = date(2026, 3, 2)


def spent(read: int, said: int, money: int = 0, model: str = "fast") -> SpendRecord:
    return SpendRecord(DAY, "agent:a", "memory.x", model, TokenUsage(read, said), money, 1)


async def test_what_is_held_is_held_in_every_account(records: RecordStores) -> None:
    budgets = records.budgets
    bounds = [BudgetLimit("b", 100), BudgetLimit("a", None, 500)]
    assert await budgets.hold(DAY, bounds, BudgetAmounts(60, 200)) is None
    assert [(each.account, each.held) for each in await budgets.accounts(DAY)] == [
        ("a", BudgetAmounts(60, 200)),
        ("b", BudgetAmounts(60, 200)),
    ]
    assert await budgets.accounts(NEXT) == []


async def test_where_one_account_is_short_nothing_is_held_in_any(records: RecordStores) -> None:
    budgets = records.budgets
    assert await budgets.hold(DAY, [BudgetLimit("a", 100)], BudgetAmounts(60)) is None
    short = await budgets.hold(
        DAY, [BudgetLimit("0", 1_000), BudgetLimit("a", 100)], BudgetAmounts(50)
    )
    assert short is not None
    assert (short.account, short.held) == ("a", BudgetAmounts(60))
    held = {each.account: each.held.tokens for each in await budgets.accounts(DAY)}
    assert held.get("0", 0) == 0


async def test_a_bound_can_be_used_to_its_last_token_and_cent(records: RecordStores) -> None:
    budgets = records.budgets
    assert await budgets.hold(DAY, [BudgetLimit("a", 100, 50)], BudgetAmounts(100, 50)) is None
    assert await budgets.hold(DAY, [BudgetLimit("a", 100, 50)], BudgetAmounts(1, 0)) is not None
    assert await budgets.hold(DAY, [BudgetLimit("a", 200, 50)], BudgetAmounts(1, 1)) is not None
    assert await budgets.hold(DAY, [BudgetLimit("a", 200, 50)], BudgetAmounts(1, 0)) is None


async def test_what_was_spent_takes_the_place_of_what_was_held(records: RecordStores) -> None:
    budgets = records.budgets
    await budgets.hold(DAY, [BudgetLimit("a", 100)], BudgetAmounts(90, 9))
    await budgets.settle(DAY, ["a"], BudgetAmounts(90, 9), spent(10, 5, 3))
    (account,) = await budgets.accounts(DAY)
    assert (account.spent, account.held) == (BudgetAmounts(15, 3), BudgetAmounts())
    assert await budgets.hold(DAY, [BudgetLimit("a", 100)], BudgetAmounts(85)) is None


async def test_what_was_spent_is_added_up_by_party_feature_and_model(records: RecordStores) -> None:
    budgets = records.budgets
    for each in (spent(10, 5, 3), spent(1, 1, 1), spent(7, 0, 0, "slow")):
        await budgets.settle(DAY, [], BudgetAmounts(), each)
    assert await budgets.spending_on(DAY) == [
        SpendRecord(DAY, "agent:a", "memory.x", "fast", TokenUsage(11, 6), 4, 2),
        SpendRecord(DAY, "agent:a", "memory.x", "slow", TokenUsage(7, 0), 0, 1),
    ]
    assert await budgets.spending_on(NEXT) == []


async def test_a_raised_bound_counts_on_its_day_alone(records: RecordStores) -> None:
    budgets = records.budgets
    await budgets.hold(DAY, [BudgetLimit("a", 10)], BudgetAmounts(10))
    raised = await budgets.raise_by(DAY, "a", BudgetAmounts(5, 7))
    assert (raised.raised, raised.held) == (BudgetAmounts(5, 7), BudgetAmounts(10))
    assert await budgets.hold(DAY, [BudgetLimit("a", 10)], BudgetAmounts(5)) is None
    assert await budgets.hold(DAY, [BudgetLimit("a", 10)], BudgetAmounts(1)) is not None
    assert await budgets.hold(NEXT, [BudgetLimit("a", 10)], BudgetAmounts(11)) is not None


async def test_of_many_at_once_no_more_are_let_than_there_is_room_for(again: Open) -> None:
    first, second = await again(), await again()
    bounds = [BudgetLimit("a", 1_000), BudgetLimit("b", 700)]

    async def hold(number: int) -> bool:
        records = (first, second)[number % 2]
        order = bounds if number % 3 else bounds[::-1]
        return await records.budgets.hold(DAY, order, BudgetAmounts(50)) is None

    held = await asyncio.gather(*(hold(number) for number in range(40)))
    assert sum(held) == 14
    assert {each.held.tokens for each in await first.budgets.accounts(DAY)} == {700}


async def test_old_days_are_forgotten(records: RecordStores) -> None:
    budgets = records.budgets
    await budgets.hold(DAY, [BudgetLimit("a", 10)], BudgetAmounts(1))
    await budgets.settle(DAY, ["a"], BudgetAmounts(1), spent(1, 0))
    await budgets.hold(NEXT, [BudgetLimit("a", 10)], BudgetAmounts(1))
    assert await budgets.prune(NEXT) == 2
    assert await budgets.accounts(DAY) == []
    assert len(await budgets.accounts(NEXT)) == 1
