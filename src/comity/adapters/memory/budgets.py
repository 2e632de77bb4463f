"""Budgets in memory: for tests, and for one node that keeps nothing beyond its end."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from comity.ports.budgets import Account, Amounts, Bound, Spent


class MemoryBudgets:
    def __init__(self) -> None:
        self._accounts: dict[tuple[date, str], Account] = {}
        self._spent: dict[tuple[date, str, str, str], Spent] = {}

    async def hold(self, day: date, bounds: Sequence[Bound], most: Amounts) -> Account | None:
        for bound in bounds:
            account = self._account(day, bound.account)
            if not _has(account, bound, most):
                return account
        for bound in bounds:
            account = self._account(day, bound.account)
            self._put(account._replace(held=_plus(account.held, most)))
        return None

    async def settle(self, day: date, accounts: Sequence[str], held: Amounts, spent: Spent) -> None:
        tokens = Amounts(spent.usage.input + spent.usage.output, spent.money)
        for name in accounts:
            account = self._account(day, name)
            left = _plus(account.held, held, -1)
            self._put(account._replace(held=left, spent=_plus(account.spent, tokens)))
        key = (spent.day, spent.party, spent.feature, spent.model)
        before = self._spent.get(key)
        if before is not None:
            spent = replace(
                spent,
                usage=before.usage + spent.usage,
                money=before.money + spent.money,
                requests=before.requests + spent.requests,
            )
        self._spent[key] = spent

    async def raise_by(self, day: date, account: str, more: Amounts) -> Account:
        found = self._account(day, account)
        self._put(found._replace(raised=_plus(found.raised, more)))
        return self._account(day, account)

    async def accounts(self, day: date) -> Sequence[Account]:
        return [each for (of, _), each in sorted(self._accounts.items()) if of == day]

    async def spent(self, day: date) -> Sequence[Spent]:
        return [each for key, each in sorted(self._spent.items()) if key[0] == day]

    async def prune(self, before: date) -> int:
        accounts = [key for key in self._accounts if key[0] < before]
        spent = [key for key in self._spent if key[0] < before]
        for key in accounts:
            del self._accounts[key]
        for old in spent:
            del self._spent[old]
        return len(accounts) + len(spent)

    def _account(self, day: date, name: str) -> Account:
        return self._accounts.get((day, name)) or Account(name, day)

    def _put(self, account: Account) -> None:
        self._accounts[account.day, account.account] = account


def _plus(one: Amounts, other: Amounts, times: int = 1) -> Amounts:
    return Amounts(one.tokens + times * other.tokens, one.money + times * other.money)


def _has(account: Account, bound: Bound, most: Amounts) -> bool:
    taken = _plus(_plus(account.spent, account.held), most)
    if bound.tokens is not None and taken.tokens > bound.tokens + account.raised.tokens:
        return False
    return bound.money is None or taken.money <= bound.money + account.raised.money
