"""Functions that `comity dev serve-functions` offers, for the tests of the registry's face."""

import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from comity.catalog.signatures import ValueConstraints

__all__ = ["TideForecast", "big", "crash", "echo", "settle", "wait"]


class Datum(StrEnum):
    MEAN = "mean"
    LOWEST = "lowest"
    HIGHEST = "highest"


@dataclass
class Report:
    harbour: str
    score: float
    datum: Datum


def TideForecast(  # noqa: N802 - names of tools may be in any case
    harbour: Annotated[str, ValueConstraints(min_length=1, max_length=5, pattern="^[A-Z]{1,5}$")],
    days: Annotated[int, ValueConstraints(min_value=1, max_value=365)],
    datum: Datum = Datum.MEAN,
) -> Report:
    """Says when the water of a harbour is high

    Args:
        harbour: The harbour, in capitals
        days: How many days from today
        datum: Above which level
    """
    return Report(harbour, days / 365, datum)


def settle(
    amount: float,
    final: bool,
    way: Literal["cash", "card"] = "cash",
    notes: Annotated[list[str], ValueConstraints(max_items=3)] | None = None,
) -> dict[str, float]:
    """Settles an account."""
    return {"amount": amount if final else 0.0}


def echo(text: str) -> str:
    """Says it again."""
    return text


def big(kilobytes: Annotated[int, ValueConstraints(min_value=1, max_value=3000)]) -> str:
    """Says much."""
    return "x" * (1024 * kilobytes)


def crash() -> None:
    """Fails."""
    raise RuntimeError("it broke")


def wait() -> None:
    """Never ends."""
    threading.Event().wait()
