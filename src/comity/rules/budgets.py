"""What parties may spend on models in a day, in tokens and money. (MCPL §13.1)

Rule 1: every budget that covers a party and a feature set counts; the tightest decides.
Rule 2: an account is one budget of one party on one day (UTC), unless all share it.
Rule 3: what a request may cost at most is held before it is sent, and replaced by what it did cost.
        What nobody settled stays held for that day: it may have been spent.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, Literal, NamedTuple

from comity.rules.live_policy import covers as feature_covers
from comity.rules.patterns import covers
from comity.wire.inference import Usage

MILLION: Final = 1_000_000
type OnExceeded = Literal["ask", "refuse"]


class Amount(NamedTuple):
    """Tokens, and money in millionths."""

    tokens: int = 0
    money: int = 0

    def plus(self, other: "Amount") -> "Amount":
        return Amount(self.tokens + other.tokens, self.money + other.money)

    def minus(self, other: "Amount") -> "Amount":
        return Amount(self.tokens - other.tokens, self.money - other.money)


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent in a day; None is no bound. `party` and `feature` may be patterns."""

    party: str = "*"
    feature: str = "*"
    tokens: int | None = None
    money: int | None = None
    on_exceeded: OnExceeded = "ask"
    # One account for all whom it covers, and not one for each of them.
    shared: bool = False

    @property
    def name(self) -> str:
        return f"{self.party}|{self.feature}"

    def account(self, party: str) -> str:
        return f"{self.name}|{'' if self.shared else party}"


class Price(NamedTuple):
    """Of a million tokens, in money; None is unknown."""

    input: float | None = None
    output: float | None = None


NOTHING: Final = Amount()
UNPRICED: Final = Price()


def covering(budgets: Iterable[Budget], party: str, feature: str) -> list[Budget]:
    """All that count for this, in a fixed order: who takes several takes them so."""
    found = (
        each
        for each in budgets
        if covers(each.party, party)
        and (each.feature == "*" or feature_covers(each.feature, feature))
    )
    return sorted(found, key=lambda each: each.account(party))


def cost(usage: Usage, price: Price) -> int:
    """In millionths; what has no price costs nothing."""
    exact = usage.input * (price.input or 0.0) + usage.output * (price.output or 0.0)
    # A million tokens cost the price, so a token costs as many millionths; parts are rounded up.
    return -int(-exact // 1)


def spent(usage: Usage, price: Price) -> Amount:
    return Amount(usage.input + usage.output, cost(usage, price))


def day_of(now: datetime) -> date:
    return now.astimezone(UTC).date()


def opens_again(day: date) -> datetime:
    """When the next day begins."""
    return datetime.combine(day + timedelta(days=1), time(), UTC)
