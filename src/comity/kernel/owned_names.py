"""Whose a name is: an id that somebody registered stays that party's, though the server is gone.

What was granted on a server is written down by its id. Would the next one who takes the id inherit
it, a name let go would be a trap for whoever was granted its tools.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from comity.kernel.grants import Clock
from comity.ports import RegistrationRecords
from comity.wire import registration
from comity.wire.errors import Unavailable
from comity.wire.pins import Registration
from comity.wire.registration import Wanted

NAMES_OF_ONE: Final = 100
"""How many names a party keeps; of more, its oldest are anybody's again."""


class OwnedNames:
    """Every name that was taken, in memory as in the records."""

    def __init__(
        self, records: RegistrationRecords, clock: Clock = lambda: datetime.now(UTC)
    ) -> None:
        self._records = records
        self._clock = clock
        self.owners: dict[str, str] = {}
        self.is_loaded = False

    async def load(self) -> Sequence[Registration]:
        """Read them all, the oldest first. Raises Unavailable."""
        found = sorted(await self._records.all(), key=_age)
        self.owners = {each.server: each.created_by for each in found}
        self.is_loaded = True
        return found

    async def changed(self) -> None:
        """Somebody wrote, here or at another node."""
        try:
            await self.load()
        except Unavailable:
            self.is_loaded = False

    async def take(self, wish: Wanted, owner: str, *, is_kept: bool) -> None:
        entry = registration.entry(wish) if is_kept else {}
        await self._write(wish.id, owner, entry, wish.justification)
        own = [id for id, each in self.owners.items() if each == owner and id != wish.id]
        for id in own[: max(0, len(own) + 1 - NAMES_OF_ONE)]:
            await self.free(id)

    async def end(self, id: str, owner: str) -> None:
        """The server is gone; its name stays."""
        await self._write(id, owner, {}, "")

    async def free(self, id: str) -> None:
        """Whoever comes next may have the name: an operator has said so."""
        self.owners.pop(id, None)
        await self._records.remove(id)

    async def _write(self, id: str, owner: str, entry: dict[str, object], why: str) -> None:
        self.owners.pop(id, None)
        self.owners[id] = owner
        await self._records.put(Registration(id, entry, owner, self._clock(), why))


def _age(found: Registration) -> tuple[float, str]:
    return (0.0 if found.created_at is None else found.created_at.timestamp()), found.server
