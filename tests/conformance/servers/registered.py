"""Functions that `comity tools serve` offers, for the tests of the registry's face."""

import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from comity.rules.signatures import Constraints

__all__ = ["FinancialAnalyzer", "big", "crash", "echo", "settle", "wait"]


class Analysis(StrEnum):
    TECHNICAL = "technical"
    FUNDAMENTAL = "fundamental"
    SENTIMENT = "sentiment"


@dataclass
class Report:
    ticker_symbol: str
    score: float
    analysis_type: Analysis


def FinancialAnalyzer(  # noqa: N802 - the name that the registry's document gives it
    ticker_symbol: Annotated[str, Constraints(min_length=1, max_length=5, pattern="^[A-Z]{1,5}$")],
    period_days: Annotated[int, Constraints(min_value=1, max_value=365)],
    analysis_type: Analysis = Analysis.TECHNICAL,
) -> Report:
    """Analyzes stock data and returns investment recommendations

    Args:
        ticker_symbol: Stock ticker symbol (e.g., AAPL)
        period_days: Historical analysis period in days
        analysis_type: Type of analysis
    """
    return Report(ticker_symbol, period_days / 365, analysis_type)


def settle(
    amount: float,
    final: bool,
    way: Literal["cash", "card"] = "cash",
    notes: Annotated[list[str], Constraints(max_items=3)] | None = None,
) -> dict[str, float]:
    """Settles an account."""
    return {"amount": amount if final else 0.0}


def echo(text: str) -> str:
    """Says it again."""
    return text


def big(kilobytes: Annotated[int, Constraints(min_value=1, max_value=3000)]) -> str:
    """Says much."""
    return "x" * (1024 * kilobytes)


def crash() -> None:
    """Fails."""
    raise RuntimeError("it broke")


def wait() -> None:
    """Never ends."""
    threading.Event().wait()
