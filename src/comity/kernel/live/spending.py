"""What may be spent on models: held before a request goes out, settled when it has come back.

Rule 1: nothing is asked of a model whose cost at most is not held in every budget that counts.
Rule 2: what has failed costs what it may have cost: nothing that was refused, all that was heard.
Rule 3: where a budget is used up, people are asked for more if its operator wants that, once for
        each account and day; whoever waits goes on when they agree. (design §1)
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final, Protocol

from comity.ports.budgets import Account, Amounts, Bound, BudgetRecords, Spent
from comity.ports.models import Prompt
from comity.rules.budgets import Amount, Budget, Price, covering, day_of, opens_again, spent
from comity.wire.contents import Content
from comity.wire.errors import BUDGET_EXCEEDED, Unavailable
from comity.wire.inference import Usage

log = logging.getLogger(__name__)

BYTES_PER_TOKEN: Final = 2
"""So few only where hardly a word is known: what is held is rather too much than too little."""

STEP_TOKENS: Final = 16
MEDIA_TOKENS: Final = 2_000
SETTLE_TRIES: Final = 3

type Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class Spender:
    """Who pays, for what, to which model."""

    party: str
    feature: str
    model: str


@dataclass(frozen=True, slots=True)
class Short:
    """A budget that has not so much left."""

    budget: Budget
    account: Account
    wanted: Amount
    spender: Spender


class AskMore(Protocol):
    """Who asks people for more."""

    async def ask(self, short: Short) -> bool:
        """Whether more may be spent now. Raises Unavailable with what is waited for."""
        ...


@dataclass(slots=True)
class Held:
    """What is held for one request; settled once."""

    spender: Spender
    day: date
    accounts: tuple[str, ...]
    amount: Amount
    is_settled: bool = field(default=False)


class Spending:
    def __init__(
        self,
        records: BudgetRecords,
        budgets: Sequence[Budget] = (),
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self.records = records
        self.budgets = tuple(budgets)
        self.clock = clock
        self.asks: AskMore | None = None
        # Who hears that a budget was used up.
        self.exceeded: list[Callable[[Short], None]] = []

    async def hold(self, spender: Spender, amount: Amount) -> Held:
        """Hold that much for a request. Raises Unavailable."""
        while True:
            day = day_of(self.clock())
            found = covering(self.budgets, spender.party, spender.feature)
            by_account = {each.account(spender.party): each for each in found}
            bounds = [Bound(name, each.tokens, each.money) for name, each in by_account.items()]
            short = None
            if bounds:
                short = await self.records.hold(day, bounds, Amounts(*amount))
            if short is None:
                return Held(spender, day, tuple(by_account), amount)
            await self._more(Short(by_account[short.account], short, amount, spender))

    async def settle(self, held: Held, usage: Usage, price: Price) -> Amount:
        """What it did cost. What cannot be written down stays held, which is never too little."""
        amount = spent(usage, price)
        if held.is_settled:
            return amount
        held.is_settled = True
        by = held.spender
        used = Spent(held.day, by.party, by.feature, by.model, usage, amount.money, 1)
        for left in reversed(range(SETTLE_TRIES)):
            try:
                await self.records.settle(held.day, held.accounts, Amounts(*held.amount), used)
                break
            except Unavailable as error:
                log.warning("what %s spent could not be written down: %s", by.party, error)
                if left:
                    await asyncio.sleep(0.2)
        return amount

    async def _more(self, short: Short) -> None:
        for hear in self.exceeded:
            hear(short)
        asks = self.asks if short.budget.on_exceeded == "ask" and _can_help(short) else None
        if asks is None or not await asks.ask(short):
            raise used_up(short, self.clock())


def used_up(short: Short, now: datetime, also: str = "") -> Unavailable:
    """That nothing is left of a budget, and when there will be."""
    again = opens_again(short.account.day)
    because = (
        f"the budget of {short.spender.party} for {short.budget.feature} is used up for today; "
        f"it opens again at {again:%Y-%m-%dT%H:%MZ}{also}"
    )
    return Unavailable(because, BUDGET_EXCEEDED, max(again - now, timedelta(seconds=1)))


def _can_help(short: Short) -> bool:
    """A budget of nothing is a prohibition, and nobody is asked about it."""
    return short.budget.tokens != 0 and short.budget.money != 0


def most_tokens(prompt: Prompt) -> int:
    """How many tokens a prompt is at most, as far as its length tells."""
    size = _size(prompt.system)
    media = 0
    for step in prompt.steps:
        contents = [step.content, *(each.content for each in step.results)]
        size += sum(_size(each) for each in contents) + STEP_TOKENS * BYTES_PER_TOKEN
        size += sum(len(str(each.arguments).encode()) + len(each.name) for each in step.uses)
        media += sum(bool(block.data) for each in contents for block in each)
    for tool in prompt.tools:
        size += len(str(tool.schema).encode()) + len(tool.description.encode()) + len(tool.name)
        size += STEP_TOKENS * BYTES_PER_TOKEN
    return size // BYTES_PER_TOKEN + STEP_TOKENS + media * MEDIA_TOKENS


def most_of(prompt: Prompt, price: Price) -> Amount:
    """What a request costs at most."""
    return spent(Usage(most_tokens(prompt), prompt.max_tokens), price)


def _size(content: Content) -> int:
    return sum(len(block.text.encode()) + len(block.uri) for block in content)
