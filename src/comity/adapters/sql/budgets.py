"""Budgets in SQL: one statement for each account holds what there is, or nothing."""

from collections.abc import Sequence
from datetime import date
from typing import Any, Final

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from comity.adapters.sql.database import Database, Product, Row
from comity.adapters.sql.tables_budgets import BUDGET_ACCOUNTS as ACCOUNTS
from comity.adapters.sql.tables_budgets import SPENDING
from comity.ports.budgets import Account, Amounts, Bound, Spent
from comity.rules import keeping
from comity.wire.inference import Usage

_NOTHING: Final[Row] = {
    f"{what}_{unit}": 0 for what in ("spent", "held", "raised") for unit in ("tokens", "money")
}


class SqlBudgets:
    def __init__(self, database: Database, product: Product) -> None:
        self._database = database
        self._product = product

    async def hold(self, day: date, bounds: Sequence[Bound], most: Amounts) -> Account | None:
        async with self._database.beside() as connection:
            # In one order for everybody: two that need the same accounts never block each other
            # for good.
            for bound in sorted(bounds, key=lambda each: each.account):
                short = await self._hold(connection, day, bound, most)
                if short is not None:
                    # Nothing is held in the others either.
                    await connection.rollback()
                    return short
        return None

    async def _hold(
        self, connection: AsyncConnection, day: date, bound: Bound, most: Amounts
    ) -> Account | None:
        name = keeping.words(bound.account)
        await self._begin(connection, day, name)
        held = (
            update(ACCOUNTS)
            .where(*_is(day, name), *_has(bound, most))
            .values(
                held_tokens=ACCOUNTS.c.held_tokens + most.tokens,
                held_money=ACCOUNTS.c.held_money + most.money,
            )
        )
        is_held = (await connection.execute(held)).rowcount
        return None if is_held else await _account(connection, day, name)

    async def settle(self, day: date, accounts: Sequence[str], held: Amounts, spent: Spent) -> None:
        settled = {
            "held_tokens": ACCOUNTS.c.held_tokens - held.tokens,
            "held_money": ACCOUNTS.c.held_money - held.money,
            "spent_tokens": ACCOUNTS.c.spent_tokens + spent.usage.input + spent.usage.output,
            "spent_money": ACCOUNTS.c.spent_money + spent.money,
        }
        async with self._database.beside() as connection:
            for name in sorted(accounts):
                where = _is(day, keeping.words(name))
                await connection.execute(update(ACCOUNTS).where(*where).values(settled))
            await connection.execute(self._add(spent))

    async def raise_by(self, day: date, account: str, more: Amounts) -> Account:
        name = keeping.words(account)
        raised = {
            "raised_tokens": ACCOUNTS.c.raised_tokens + more.tokens,
            "raised_money": ACCOUNTS.c.raised_money + more.money,
        }
        async with self._database.beside() as connection:
            await self._begin(connection, day, name)
            await connection.execute(update(ACCOUNTS).where(*_is(day, name)).values(raised))
            return await _account(connection, day, name)

    async def accounts(self, day: date) -> Sequence[Account]:
        wanted = select(ACCOUNTS).where(ACCOUNTS.c.day == day).order_by(ACCOUNTS.c.account)
        async with self._database.reading() as connection:
            return [_read(row) for row in await connection.execute(wanted)]

    async def spent(self, day: date) -> Sequence[Spent]:
        wanted = select(SPENDING).where(SPENDING.c.day == day)
        wanted = wanted.order_by(*SPENDING.primary_key.columns)
        async with self._database.reading() as connection:
            rows = await connection.execute(wanted)
            return [_spent(row) for row in rows]

    async def prune(self, before: date) -> int:
        async with self._database.beside() as connection:
            gone = [
                await connection.execute(delete(table).where(table.c.day < before))
                for table in (ACCOUNTS, SPENDING)
            ]
        return sum(each.rowcount for each in gone)

    async def _begin(self, connection: AsyncConnection, day: date, name: str) -> None:
        """Have a row for this account and day, whoever makes it."""
        new = self._product.insert(ACCOUNTS).on_conflict_do_nothing()
        await connection.execute(new, [{"day": day, "account": name, **_NOTHING}])

    def _add(self, spent: Spent) -> Any:
        new = self._product.insert(SPENDING).values(
            day=spent.day,
            party=keeping.words(spent.party),
            feature=keeping.words(spent.feature),
            model=keeping.words(spent.model),
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
    return ACCOUNTS.c.day == day, ACCOUNTS.c.account == name


def _has(bound: Bound, most: Amounts) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    for unit, limit in (("tokens", bound.tokens), ("money", bound.money)):
        if limit is not None:
            taken = ACCOUNTS.c[f"spent_{unit}"] + ACCOUNTS.c[f"held_{unit}"]
            most_of_it: int = getattr(most, unit)
            found.append(taken + most_of_it <= ACCOUNTS.c[f"raised_{unit}"] + limit)
    return found


async def _account(connection: AsyncConnection, day: date, name: str) -> Account:
    row = (await connection.execute(select(ACCOUNTS).where(*_is(day, name)))).one()
    return _read(row)


def _read(row: Sequence[Any]) -> Account:
    day, account, *counts = row
    spent_tokens, spent_money, held_tokens, held_money, raised_tokens, raised_money = counts
    return Account(
        account,
        day,
        Amounts(spent_tokens, spent_money),
        Amounts(held_tokens, held_money),
        Amounts(raised_tokens, raised_money),
    )


def _spent(row: Sequence[Any]) -> Spent:
    day, party, feature, model, read, said, money, requests = row
    return Spent(day, party, feature, model, Usage(read, said), money, requests)
