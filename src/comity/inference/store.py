"""The SQL store of budgets and spending, and its tables."""

from collections.abc import Sequence
from datetime import date
from typing import Any, Final

from sqlalchemy import BigInteger, Column, ColumnElement, Date, Table, Text, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from comity.inference.messages import TokenUsage
from comity.inference.model import BudgetAccount, BudgetAmounts, BudgetLimit, SpendRecord
from comity.storage import values
from comity.storage.database import METADATA, DatabaseBackend, Row, SqlDatabase

_COUNTS: Final = (
    *("spent_tokens", "spent_money", "held_tokens", "held_money"),
    *("raised_tokens", "raised_money"),
)

BUDGET_ACCOUNTS: Final = Table(
    "comity_budget_accounts",
    METADATA,
    Column("day", Date, primary_key=True),
    Column("account", Text, primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in _COUNTS),
)
SPENDING: Final = Table(
    "comity_spending",
    METADATA,
    Column("day", Date, primary_key=True),
    *(Column(name, Text, primary_key=True) for name in ("party", "feature", "model")),
    *(
        Column(name, BigInteger, nullable=False)
        for name in ("input_tokens", "output_tokens", "money", "requests")
    ),
)


_NOTHING: Final[Row] = {
    f"{what}_{unit}": 0 for what in ("spent", "held", "raised") for unit in ("tokens", "money")
}


class SqlBudgets:
    """Stores budget accounts and spending in SQL (`comity.inference.model.BudgetStore`)."""

    def __init__(self, database: SqlDatabase, backend: DatabaseBackend) -> None:
        self._database = database
        self._backend = backend

    async def hold(
        self, day: date, limits: Sequence[BudgetLimit], maximum: BudgetAmounts
    ) -> BudgetAccount | None:
        async with self._database.beside() as connection:
            # All transactions lock accounts in the same order, which prevents deadlocks.
            for bound in sorted(limits, key=lambda each: each.account):
                short = await self._hold(connection, day, bound, maximum)
                if short is not None:
                    # The rollback releases what the other accounts already hold.
                    await connection.rollback()
                    return short
        return None

    async def _hold(
        self, connection: AsyncConnection, day: date, limit: BudgetLimit, maximum: BudgetAmounts
    ) -> BudgetAccount | None:
        name = values.clean_words(limit.account)
        await self._begin(connection, day, name)
        held = (
            update(BUDGET_ACCOUNTS)
            .where(*_is(day, name), *_has(limit, maximum))
            .values(
                held_tokens=BUDGET_ACCOUNTS.c.held_tokens + maximum.tokens,
                held_money=BUDGET_ACCOUNTS.c.held_money + maximum.money,
            )
        )
        is_held = (await connection.execute(held)).rowcount
        return None if is_held else await _account(connection, day, name)

    async def settle(
        self, day: date, accounts: Sequence[str], amounts: BudgetAmounts, spent: SpendRecord
    ) -> None:
        settled = {
            "held_tokens": BUDGET_ACCOUNTS.c.held_tokens - amounts.tokens,
            "held_money": BUDGET_ACCOUNTS.c.held_money - amounts.money,
            "spent_tokens": BUDGET_ACCOUNTS.c.spent_tokens + spent.usage.input + spent.usage.output,
            "spent_money": BUDGET_ACCOUNTS.c.spent_money + spent.money,
        }
        async with self._database.beside() as connection:
            for name in sorted(accounts):
                where = _is(day, values.clean_words(name))
                await connection.execute(update(BUDGET_ACCOUNTS).where(*where).values(settled))
            await connection.execute(self._add(spent))

    async def raise_by(self, day: date, account: str, more: BudgetAmounts) -> BudgetAccount:
        name = values.clean_words(account)
        raised = {
            "raised_tokens": BUDGET_ACCOUNTS.c.raised_tokens + more.tokens,
            "raised_money": BUDGET_ACCOUNTS.c.raised_money + more.money,
        }
        async with self._database.beside() as connection:
            await self._begin(connection, day, name)
            await connection.execute(update(BUDGET_ACCOUNTS).where(*_is(day, name)).values(raised))
            return await _account(connection, day, name)

    async def accounts(self, day: date) -> Sequence[BudgetAccount]:
        wanted = (
            select(BUDGET_ACCOUNTS)
            .where(BUDGET_ACCOUNTS.c.day == day)
            .order_by(BUDGET_ACCOUNTS.c.account)
        )
        async with self._database.reading() as connection:
            return [_read(row) for row in await connection.execute(wanted)]

    async def spending_on(self, day: date) -> Sequence[SpendRecord]:
        wanted = select(SPENDING).where(SPENDING.c.day == day)
        wanted = wanted.order_by(*SPENDING.primary_key.columns)
        async with self._database.reading() as connection:
            rows = await connection.execute(wanted)
            return [_spent(row) for row in rows]

    async def prune(self, before: date) -> int:
        async with self._database.beside() as connection:
            gone = [
                await connection.execute(delete(table).where(table.c.day < before))
                for table in (BUDGET_ACCOUNTS, SPENDING)
            ]
        return sum(each.rowcount for each in gone)

    async def _begin(self, connection: AsyncConnection, day: date, name: str) -> None:
        """Create the row of an account and day unless it exists."""
        new = self._backend.insert(BUDGET_ACCOUNTS).on_conflict_do_nothing()
        await connection.execute(new, [{"day": day, "account": name, **_NOTHING}])

    def _add(self, spent: SpendRecord) -> Any:
        new = self._backend.insert(SPENDING).values(
            day=spent.day,
            party=values.clean_words(spent.party),
            feature=values.clean_words(spent.feature),
            model=values.clean_words(spent.model),
            input_tokens=spent.usage.input,
            output_tokens=spent.usage.output,
            money=spent.money,
            requests=spent.requests,
        )
        counted = ("input_tokens", "output_tokens", "money", "requests")
        return new.on_conflict_do_update(
            index_elements=SPENDING.primary_key,
            set_={name: SPENDING.c[name] + new.excluded[name] for name in counted},
        )


def _is(day: date, name: str) -> tuple[ColumnElement[bool], ...]:
    return BUDGET_ACCOUNTS.c.day == day, BUDGET_ACCOUNTS.c.account == name


def _has(bound: BudgetLimit, maximum: BudgetAmounts) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    for unit, limit in (("tokens", bound.tokens), ("money", bound.money)):
        if limit is not None:
            taken = BUDGET_ACCOUNTS.c[f"spent_{unit}"] + BUDGET_ACCOUNTS.c[f"held_{unit}"]
            most_of_it: int = getattr(maximum, unit)
            found.append(taken + most_of_it <= BUDGET_ACCOUNTS.c[f"raised_{unit}"] + limit)
    return found


async def _account(connection: AsyncConnection, day: date, name: str) -> BudgetAccount:
    row = (await connection.execute(select(BUDGET_ACCOUNTS).where(*_is(day, name)))).one()
    return _read(row)


def _read(row: Sequence[Any]) -> BudgetAccount:
    day, account, *counts = row
    spent_tokens, spent_money, held_tokens, held_money, raised_tokens, raised_money = counts
    return BudgetAccount(
        account,
        day,
        BudgetAmounts(spent_tokens, spent_money),
        BudgetAmounts(held_tokens, held_money),
        BudgetAmounts(raised_tokens, raised_money),
    )


def _spent(row: Sequence[Any]) -> SpendRecord:
    day, party, feature, model, read, said, money, requests = row
    return SpendRecord(day, party, feature, model, TokenUsage(read, said), money, requests)
