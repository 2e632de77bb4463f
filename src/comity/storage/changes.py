"""The feed of changes of a store, and the wait for the next change."""

from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

PAGE: Final = 250


"""How many records one page holds. A longer page would delay the calls between two pages."""


class RecordKind(StrEnum):
    """The kind of record that a change is about."""

    GRANTS = "grants"
    PARTIES = "parties"
    KEYS = "keys"
    PINS = "pins"
    REGISTRATIONS = "registrations"
    ASKS = "asks"
    WEBHOOKS = "webhooks"
    SESSIONS = "sessions"
    ACCOUNTS = "accounts"


class RecordChange(NamedTuple):
    """A change of records of one kind.

    `whose` is the subject of grants, or the id of a principal, key, session, account or approval
    request. For an accepted definition or registry entry, it is the server. It is empty if so many
    records changed that a reader should read all records of the kind again.
    """

    what: RecordKind
    whose: str


class ChangeBatch(NamedTuple):
    """The changes after a version, or None if the store no longer remembers them all."""

    version: int
    changes: tuple[RecordChange, ...] | None


class ChangeFeed(Protocol):
    """Reports the changes of all processes that use the store."""

    async def count_changes(self) -> int:
        """Return how many changes of the store this process has noticed, after a look for more.

        While the number stays the same, nothing in the store has changed. Never raises: a store
        that does not answer may have changed.
        """
        ...

    async def since(self, version: int) -> ChangeBatch:
        """Return the changes after that version, and the version that they lead to."""
        ...

    async def wait_for_change(self, timeout: timedelta) -> bool:
        """Wait for the notice of a change, about `timeout` at most. Return whether there was one.

        Never raises.
        """
        ...
