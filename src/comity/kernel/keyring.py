"""Keys given out, taken back and replaced, and the parties that hold them. (D-89, D-97)

Rule 1: a key is shown once, to whoever asked for it; what is kept recognises it and no more.
Rule 2: whoever asks is written down as who did it.
Rule 3: a change is in force on this node before it is answered.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from comity.kernel.key_audit import KeyAudit
from comity.kernel.minting import mint
from comity.ports import PAGE, KeyRecords, PartyRecords
from comity.rules import granting
from comity.rules.keys import bound_in
from comity.wire.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.wire.parties import Key, Party, PartyKind

log = logging.getLogger(__name__)

type Clock = Callable[[], datetime]
type Refresh = Callable[[], Awaitable[None]]

_KINDS: Final = {f"{kind}:": kind for kind in (PartyKind.PERSON, PartyKind.SERVER)}


@dataclass(frozen=True, slots=True, repr=False)
class NewKey:
    """A key that has just been made: the only time at which it is whole."""

    whole: str
    record: Key


async def _nothing() -> None:
    """No snapshot stands beside the records."""


class KeyringStores(Protocol):
    """Where keys and their principals are stored."""

    @property
    def parties(self) -> PartyRecords: ...
    @property
    def keys(self) -> KeyRecords: ...


class Keyring:
    """The keys and parties of the records, for whoever may administer them."""

    def __init__(
        self,
        records: KeyringStores,
        pepper: bytes,
        refresh: Refresh = _nothing,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self._records = records
        self._pepper = pepper
        self._refresh = refresh
        self._clock = clock
        # Who writes down what is done here, beside the log.
        self.audit: KeyAudit | None = None

    async def create(self, by: str, wanted: Key) -> NewKey:
        """A new key for a party, which comes to be known by it where it was not."""
        now = self._clock()
        party = _party_id(wanted.party)
        for permission in wanted.permissions:
            if bound_in(permission) is None:
                raise MalformedMessage(f"{permission!r:.80} {PERMISSION_RULE}", INVALID_PARAMS)
        if wanted.expires_at is not None and wanted.expires_at <= now:
            raise MalformedMessage("expires_at is in the past", INVALID_PARAMS)
        if await self._records.parties.get(party) is None:
            await self.add(by, Party(party, kind_of(party)))
        return await self._make(replace(wanted, created_by=by, created_at=now), now)

    async def rotate(self, by: str, key_id: str, grace: timedelta) -> NewKey:
        """Another key like this one, which counts for some time more."""
        now = self._clock()
        old = await self._get(key_id)
        like = replace(
            old, created_by=by, created_at=now, not_before=None, revoked_at=None, last_used=None
        )
        if grace <= timedelta(0):
            await self._records.keys.revoke(key_id, now)
            self._revoked(by, old)
            return await self._make(like, now, key_id)
        # Made first: where two keys count already, nothing is changed.
        made = await self._make(like, now, key_id)
        ends = now + grace if old.expires_at is None else min(old.expires_at, now + grace)
        await self._records.keys.put(replace(old, expires_at=ends), now)
        self._revoked(by, old, ends)
        await self._refresh()
        return made

    async def revoke(self, by: str, key_id: str) -> Key:
        key = await self._get(key_id)
        if await self._records.keys.revoke(key_id, self._clock()):
            self._revoked(by, key)
            log.info("%s: revoked key %s", by, key_id)
        await self._refresh()
        return await self._get(key_id)

    async def keys(self, party: str = "", after: str = "", limit: int = PAGE) -> Sequence[Key]:
        if party:
            return await self._records.keys.of(party)
        return await self._records.keys.page(after, limit)

    async def add(self, by: str, party: Party) -> Party:
        """A party that is not known yet; raises MalformedMessage where it is."""
        _party_id(party.id)
        if await self._records.parties.get(party.id) is not None:
            raise MalformedMessage(f"{party.id!r:.80} is known already", INVALID_PARAMS)
        added = replace(party, created_by=by, created_at=self._clock())
        await self._records.parties.put(added)
        await self._refresh()
        self._changed(by, added, "added")
        log.info("%s: added party %s", by, party.id)
        return added

    async def disable(self, by: str, party_id: str, disabled: bool) -> Party:
        """Let a party in no more, or again; its keys and grants stay as they are."""
        party = await self._records.parties.get(party_id)
        if party is None:
            raise MalformedMessage(f"there is no party {party_id!r:.80}", NOTHING_HERE)
        changed = replace(party, disabled=disabled)
        await self._records.parties.put(changed)
        await self._refresh()
        change = "disabled" if disabled else "enabled"
        self._changed(by, changed, change)
        log.info("%s: %s party %s", by, change, party_id)
        return changed

    async def parties(self, after: str = "", limit: int = PAGE) -> Sequence[Party]:
        return await self._records.parties.page(after, limit)

    async def _make(self, wanted: Key, now: datetime, replaces: str = "") -> NewKey:
        whole, record = mint(self._pepper, wanted)
        await self._records.keys.put(record, now)
        if self.audit is not None:
            self.audit.issued(record.created_by, record, replaces)
        await self._refresh()
        log.info("%s: made key %s of %s", record.created_by, record.id, record.party)
        return NewKey(whole, record)

    def _revoked(self, by: str, key: Key, counts_until: datetime | None = None) -> None:
        if self.audit is not None:
            self.audit.revoked(by, key, counts_until)

    def _changed(self, by: str, party: Party, change: str) -> None:
        if self.audit is not None:
            self.audit.party_changed(by, party, change)

    async def _get(self, key_id: str) -> Key:
        key = await self._records.keys.get(key_id)
        if key is None:
            raise MalformedMessage(f"there is no key {key_id!r:.80}", NOTHING_HERE)
        return key


PERMISSION_RULE: Final = (
    "is no permission; write ToolInvoke(server/tool), ToolRead(server/tool), ToolsListAll, "
    "AdminRead, AdminWrite, or a verb and a target, as 'tools/call files/*'"
)


def kind_of(party: str) -> PartyKind:
    """What a party is by its name; an agent, where that does not tell."""
    return next(
        (kind for start, kind in _KINDS.items() if party.startswith(start)), PartyKind.AGENT
    )


def _party_id(text: str) -> str:
    """Raises MalformedMessage where nobody could have this id."""
    if granting.subject(text) == "*" or text.startswith(f"{PartyKind.SYSTEM}:"):
        raise MalformedMessage(f"{text!r:.80} is nobody who could hold a key", INVALID_PARAMS)
    return text
