"""Records in memory: for tests, and for one node that keeps nothing beyond its end."""

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice, takewhile
from typing import Final

from comity.adapters.memory.asks import MemoryAsks
from comity.adapters.memory.budgets import MemoryBudgets
from comity.adapters.memory.conversations import MemoryConversations
from comity.adapters.memory.incoming import MemoryIncoming
from comity.adapters.memory.journal import MemoryJournal
from comity.adapters.memory.pushes import MemoryPushes
from comity.adapters.memory.shelves import Shelf
from comity.adapters.memory.states import MemoryStates
from comity.adapters.memory.webhooks import MemoryWebhooks
from comity.adapters.stirring import stirred
from comity.ports import PAGE, Change, Kept, News
from comity.rules import keeping
from comity.wire.grants import Grant, Where
from comity.wire.parties import Key, Party
from comity.wire.pins import Pin, Registration

REMEMBERED: Final = 10_000
"""How many changes are told one by one; who missed more reads everything again."""


class Changes:
    """The last changes, each with the version that it made."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._version = 0
        self._last: deque[tuple[int, Change]] = deque(maxlen=remembered)
        self._forgotten = 0
        self._stir = asyncio.Event()

    def note(self, what: Kept, whose: Iterable[str]) -> None:
        changed = keeping.told(whose)
        self._version += bool(changed)
        for each in changed:
            if len(self._last) == self._last.maxlen:
                self._forgotten = self._last[0][0]
            self._last.append((self._version, Change(what, each)))
        self._stir.set()

    async def since(self, version: int) -> News:
        if not self._forgotten <= version <= self._version:
            return News(self._version, None)
        later = takewhile(lambda noted: noted[0] > version, reversed(self._last))
        return News(self._version, tuple(dict.fromkeys(change for _, change in later)))

    async def stirred(self, within: timedelta) -> None:
        await stirred(self._stir, within)


class Grants:
    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._shelf = Shelf[Grant]()
        self._subjects: dict[str, Shelf[Grant]] = {}

    async def put(self, *grants: Grant) -> tuple[Grant, ...]:
        checked = [keeping.grant(grant) for grant in grants]
        for grant in checked:
            self._shelf.put(grant.id, grant)
            self._subjects.setdefault(grant.subject, Shelf()).put(grant.id, grant)
        self._changes.note(Kept.GRANTS, (grant.subject for grant in checked))
        return tuple(checked)

    async def revoke(self, subject: str, verb: str, target: str, where: Where = None) -> bool:
        id = keeping.grant_id(subject, verb, target, where)
        if not self._shelf.take(id):
            return False
        self._subjects[subject].take(id)
        self._changes.note(Kept.GRANTS, [subject])
        return True

    async def get(self, subject: str, verb: str, target: str, where: Where = None) -> Grant | None:
        return self._shelf.get(keeping.grant_id(subject, verb, target, where))

    async def page(
        self, after: str = "", limit: int = PAGE, subjects: Collection[str] | None = None
    ) -> Sequence[Grant]:
        if subjects is None:
            return self._shelf.page(after, limit)
        held = (self._subjects[each] for each in set(subjects) if each in self._subjects)
        merged = merge(*(each.page(after, limit) for each in held), key=lambda grant: grant.id)
        return list(islice(merged, limit))


class Keys:
    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._shelf = Shelf[Key]()

    async def put(self, key: Key, at: datetime) -> None:
        checked = keeping.key(key)
        keeping.refuse_a_third(checked, await self.of(key.party), at)
        self._shelf.put(key.id, checked)
        self._changes.note(Kept.KEYS, [key.id])

    async def get(self, key: str) -> Key | None:
        return self._shelf.get(key)

    async def of(self, party: str) -> Sequence[Key]:
        return [key for key in self._shelf.all() if key.party == party]

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[Key]:
        return self._shelf.page(after, limit)

    async def revoke(self, key: str, at: datetime) -> bool:
        found = self._shelf.get(key)
        if found is None or found.revoked_at is not None:
            return False
        self._shelf.put(key, replace(found, revoked_at=keeping.moment(at)))
        self._changes.note(Kept.KEYS, [key])
        return True

    async def touch(self, used: Mapping[str, datetime]) -> None:
        for id, at in used.items():
            found = self._shelf.get(id)
            if found is not None:
                self._shelf.put(id, replace(found, last_used=keeping.moment(at)))

    async def forget(self, party: str) -> None:
        gone = [key.id for key in await self.of(party)]
        for id in gone:
            self._shelf.take(id)
        self._changes.note(Kept.KEYS, gone)


class Parties:
    def __init__(self, changes: Changes, keys: Keys) -> None:
        self._changes = changes
        self._keys = keys
        self._shelf = Shelf[Party]()

    async def put(self, *parties: Party) -> None:
        for party in [keeping.party(each) for each in parties]:
            self._shelf.put(party.id, party)
        self._changes.note(Kept.PARTIES, (party.id for party in parties))

    async def get(self, party: str) -> Party | None:
        return self._shelf.get(party)

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[Party]:
        return self._shelf.page(after, limit)

    async def remove(self, party: str) -> bool:
        if not self._shelf.take(party):
            return False
        await self._keys.forget(party)
        self._changes.note(Kept.PARTIES, [party])
        return True


class Pins:
    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._servers: dict[str, dict[str, Pin]] = {}

    async def put(self, *pins: Pin) -> None:
        for pin in [keeping.pin(each) for each in pins]:
            self._servers.setdefault(pin.server, {})[pin.tool] = pin
        self._changes.note(Kept.PINS, (pin.server for pin in pins))

    async def get(self, server: str, tool: str) -> Pin | None:
        return self._servers.get(server, {}).get(tool)

    async def of(self, server: str) -> Sequence[Pin]:
        return list(self._servers.get(server, {}).values())

    async def remove(self, server: str, tool: str = "") -> bool:
        own = self._servers.get(server, {})
        gone = own.pop(tool, None) if tool else self._servers.pop(server, None)
        if gone is not None:
            self._changes.note(Kept.PINS, [server])
        return bool(gone)


class Registrations:
    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._shelf = Shelf[Registration]()

    async def put(self, registration: Registration) -> None:
        checked = keeping.registration(registration)
        self._shelf.put(checked.server, replace(checked, entry=keeping.kept(checked.entry)))
        self._changes.note(Kept.REGISTRATIONS, [checked.server])

    async def get(self, server: str) -> Registration | None:
        return self._shelf.get(server)

    async def all(self) -> Sequence[Registration]:
        return self._shelf.all()

    async def remove(self, server: str) -> bool:
        if not self._shelf.take(server):
            return False
        self._changes.note(Kept.REGISTRATIONS, [server])
        return True


class MemoryRecords:
    """All of them; gone when the process is."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self.changes = Changes(remembered)
        self.grants = Grants(self.changes)
        self.keys = Keys(self.changes)
        self.parties = Parties(self.changes, self.keys)
        self.pins = Pins(self.changes)
        self.registrations = Registrations(self.changes)
        self.journal = MemoryJournal()
        self.asks = MemoryAsks(self.changes.note)
        self.pushes = MemoryPushes()
        self.conversations = MemoryConversations()
        self.webhooks = MemoryWebhooks(self.changes.note, self.journal.heads)
        self.states = MemoryStates()
        self.incoming = MemoryIncoming()
        self.budgets = MemoryBudgets()

    async def open(self) -> None:
        """Nothing is in the way of memory."""

    async def close(self) -> None:
        """Nothing is kept."""
