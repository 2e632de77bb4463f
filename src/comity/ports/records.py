"""What is kept for good: who takes part, what is granted, what was accepted, and what changed.

Rule 1: every change of what a node keeps in memory makes `version` greater, in the order in which
        the changes came about; a reader that knows a version can ask what came after it.
Rule 2: a write is refused before it is tried where a store could not keep it: MalformedMessage for
        what cannot be written down, Misconfigured for what may not be. `rules.keeping` says which.
Rule 3: a store that does not answer raises Unavailable.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from comity.ports.asking import AskRecords
from comity.ports.budgets import BudgetRecords
from comity.ports.conversations import ConversationRecords
from comity.ports.incoming import IncomingRecords
from comity.ports.journaling import JournalStore
from comity.ports.pushes import PushRecords
from comity.ports.states import StateRecords
from comity.ports.webhooks import WebhookRecords
from comity.wire.grants import Grant, Where
from comity.wire.parties import Key, Party
from comity.wire.pins import Pin, Registration

PAGE: Final = 250
"""How many records are read at once; more would hold up the calls between two pages."""


class Kept(StrEnum):
    """What a change can be about."""

    GRANTS = "grants"
    PARTIES = "parties"
    KEYS = "keys"
    PINS = "pins"
    REGISTRATIONS = "registrations"
    ASKS = "asks"
    WEBHOOKS = "webhooks"


class Change(NamedTuple):
    """Something of one kind is other than it was.

    `whose` is the subject of grants, the id of a party, key or ask, the server of a pin or entry;
    empty where so many changed at once that all of this kind are better read again.
    """

    what: Kept
    whose: str


class News(NamedTuple):
    """What came after a version that somebody knew; None for more than is remembered."""

    version: int
    changes: tuple[Change, ...] | None


class GrantRecords(Protocol):
    """At most one grant for a subject, a verb, a target and, where it has one, a condition."""

    async def put(self, *grants: Grant) -> tuple[Grant, ...]:
        """Write these, each in the place of one about the same; gives them with their ids."""
        ...

    async def revoke(self, subject: str, verb: str, target: str, where: Where = None) -> bool:
        """Whether there was one."""
        ...

    async def get(
        self, subject: str, verb: str, target: str, where: Where = None
    ) -> Grant | None: ...

    async def page(
        self, after: str = "", limit: int = PAGE, subjects: Collection[str] | None = None
    ) -> Sequence[Grant]:
        """By id, from the one after that id on; all, or those of some subjects."""
        ...


class PartyRecords(Protocol):
    async def put(self, *parties: Party) -> None: ...
    async def get(self, party: str) -> Party | None: ...

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[Party]:
        """In some order that does not change, from the one after that id on."""
        ...

    async def remove(self, party: str) -> bool:
        """With its keys; its grants stay, and name nobody."""
        ...


class KeyRecords(Protocol):
    """At most two keys of a party can be used at once: one, and the one that follows it."""

    async def put(self, key: Key, at: datetime) -> None:
        """Write a new key, or others of its fields. Misconfigured where it would be the third."""
        ...

    async def get(self, key: str) -> Key | None: ...

    async def of(self, party: str) -> Sequence[Key]: ...

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[Key]: ...

    async def revoke(self, key: str, at: datetime) -> bool:
        """Whether it was in use until now; the record stays."""
        ...

    async def touch(self, used: Mapping[str, datetime]) -> None:
        """When keys were last used; no change that anybody has to hear of."""
        ...


class PinRecords(Protocol):
    async def put(self, *pins: Pin) -> None: ...
    async def get(self, server: str, tool: str) -> Pin | None: ...
    async def of(self, server: str) -> Sequence[Pin]: ...

    async def remove(self, server: str, tool: str = "") -> bool:
        """One, or all of a server's."""
        ...


class RegistrationRecords(Protocol):
    async def put(self, registration: Registration) -> None: ...
    async def get(self, server: str) -> Registration | None: ...
    async def all(self) -> Sequence[Registration]: ...
    async def remove(self, server: str) -> bool: ...


class ChangeFeed(Protocol):
    """What has changed, whoever changed it."""

    async def since(self, version: int) -> News:
        """All that came after that version, and the version that it leads to."""
        ...

    async def stirred(self, within: timedelta) -> None:
        """Until something may have changed, but not longer; never raises."""
        ...


class Records(Protocol):
    """All of them, in one store."""

    @property
    def grants(self) -> GrantRecords: ...
    @property
    def parties(self) -> PartyRecords: ...
    @property
    def keys(self) -> KeyRecords: ...
    @property
    def pins(self) -> PinRecords: ...
    @property
    def registrations(self) -> RegistrationRecords: ...
    @property
    def asks(self) -> AskRecords: ...
    @property
    def webhooks(self) -> WebhookRecords: ...
    @property
    def budgets(self) -> BudgetRecords: ...
    @property
    def states(self) -> StateRecords: ...
    @property
    def pushes(self) -> PushRecords: ...
    @property
    def incoming(self) -> IncomingRecords: ...
    @property
    def conversations(self) -> ConversationRecords: ...
    @property
    def journal(self) -> JournalStore: ...
    @property
    def changes(self) -> ChangeFeed: ...

    async def open(self) -> None:
        """See that the store can be used: Unavailable, or Misconfigured with what to do."""
        ...

    async def close(self) -> None: ...
