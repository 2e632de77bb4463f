"""Budgets of `[[budgets]]`: what parties may spend on models in a day. (MCPL §13.1)"""

from collections.abc import Mapping
from typing import Any, Final

from comity.config.kinds import TRUTH, Kind, number, one_of, table_of
from comity.config.members import all_of, amount, members_of, shaped
from comity.rules.budgets import MILLION, Budget
from comity.rules.documents import Written

MOST_BUDGETS: Final = 1_000
_MEMBERS: Final[Mapping[str, tuple[Kind, str]]] = {
    "party": (
        shaped(r"[^\s|]{1,200}", "agent:ci, server:memory or agent:*"),
        "whose, as server:memory or agent:*; everybody's unless given",
    ),
    "feature": (
        shaped(r"\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(\.\*)?", "memory.retrieval or memory.*"),
        "for which feature set; any unless given",
    ),
    "tokens_per_day": (number(0, 10**12), "tokens of one day (UTC), read and said"),
    "money_per_day": (amount(10**9), "money of one day, as models are priced"),
    "on_exceeded": (one_of("ask", "refuse"), "whether people are asked for more; ask unless given"),
    "shared": (TRUTH, "whether all whom it covers have it together, and not each"),
}


def _budget(entry: Written) -> Budget:
    said: dict[str, Any] = members_of(entry, _MEMBERS)
    tokens, money = said.pop("tokens_per_day", None), said.pop("money_per_day", None)
    if tokens is None and money is None:
        raise entry.wrong("needs tokens_per_day or money_per_day")
    return Budget(**said, tokens=tokens, money=None if money is None else round(money * MILLION))


def _budgets(written: Written) -> tuple[object, ...]:
    found = all_of(_budget, MOST_BUDGETS)(written)
    names = [each.name for each in found]
    for each, entry in zip(found, written.items(), strict=True):
        if names.count(each.name) > 1:
            raise entry.wrong("the same party and feature stand here twice; keep one")
    return found


BUDGETS: Final = Kind(_budgets, {"type": "array", "items": table_of(_MEMBERS)})
