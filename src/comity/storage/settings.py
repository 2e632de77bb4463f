"""The table `[store]`: the settings of the database."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.config.fields import UrlField, setting

STORE_URL: Final = UrlField(
    "[store]",
    "COMITY_STORE_URL",
    r"^(sqlite:///[^?]+|postgres(ql)?://.+)?$",
    "must be as sqlite:///comity.db or postgresql://user@host:5432/database",
)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    # The URL may hold a password.
    url: str = setting(
        "",
        "The database; without one, Comity keeps everything in memory and forgets it at the end.",
        STORE_URL.kind,
        is_secret=True,
    )
    snapshot_max_age: timedelta = setting(
        timedelta(seconds=30),
        "How long Comity decides calls by the last known grants while the store does not answer.",
    )
