"""The table `[store]`: the settings of the database."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.config.fields import UrlField, setting

STORE_URL: Final = UrlField(
    "[store]",
    r"^(memory|sqlite:///[^?]+|postgres(ql)?://.+)?$",
    "must be as sqlite:///comity.db or postgresql://user@host:5432/database, or be memory",
)
MEMORY: Final = "memory"
"""The `url` of a temporary store that ends with the gateway."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    # The URL may hold a password.
    url: str = setting(
        "",
        "The database; unset, a SQLite file in the state folder; `memory` forgets it at the end.",
        STORE_URL.kind,
        is_secret=True,
    )
    policy_max_staleness: timedelta = setting(
        timedelta(seconds=30),
        "How long Comity decides calls by the last known grants while the store does not answer.",
    )
