"""Where it is kept what was spent on models, and what is held for requests under way. (MCPL §13.1)

Rule 1: a hold is all there, in every account that it names, or nothing of it is; and no account is
        ever held beyond its bound, whoever else asks at the same time, on whichever node.
Rule 2: what was held is settled once, on the day on which it was held.
Rule 3: a store that does not answer raises Unavailable; then nothing may be spent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import NamedTuple, Protocol

from comity.wire.inference import Usage


class Bound(NamedTuple):
    """One account and what may be spent of it on one day; None is no bound. Money in millionths."""

    account: str
    tokens: int | None = None
    money: int | None = None


class Amounts(NamedTuple):
    tokens: int = 0
    money: int = 0


class Account(NamedTuple):
    """How an account stands on a day: spent, held, and by how much its bound was raised."""

    account: str
    day: date
    spent: Amounts = Amounts()
    held: Amounts = Amounts()
    raised: Amounts = Amounts()


@dataclass(frozen=True, slots=True)
class Spent:
    """What one party has spent on one model by one feature set on one day."""

    day: date
    party: str
    feature: str
    model: str
    usage: Usage = field(default_factory=Usage)
    money: int = 0
    requests: int = 0


class BudgetRecords(Protocol):
    async def hold(self, day: date, bounds: Sequence[Bound], most: Amounts) -> Account | None:
        """Hold so much in each account. None where it is held; else one that has not so much."""
        ...

    async def settle(self, day: date, accounts: Sequence[str], held: Amounts, spent: Spent) -> None:
        """Replace what was held by what was spent, and add that to what is known of its day."""
        ...

    async def raise_by(self, day: date, account: str, more: Amounts) -> Account:
        """Let more be spent on that day; how the account stands then."""
        ...

    async def accounts(self, day: date) -> Sequence[Account]:
        """All that were touched on a day, by name."""
        ...

    async def spent(self, day: date) -> Sequence[Spent]:
        """What was spent on a day, by party, feature set and model."""
        ...

    async def prune(self, before: date) -> int:
        """Forget days before that one; how many rows that were."""
        ...
