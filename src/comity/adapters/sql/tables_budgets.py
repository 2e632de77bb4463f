"""The tables of what was spent on models, and of what is held for requests under way."""

from typing import Final

from sqlalchemy import BigInteger, Column, Date, Table, Text

from comity.adapters.sql.tables import METADATA

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
