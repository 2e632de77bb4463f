"""A store as a large installation has it: parties, a key for each, and ten grants for each.

What is written is what an operator's commands would write, through the same records; only the keys
are drawn here, so that the load can show them.
"""

import contextlib
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from comity.app.records import RecordStores, open_store
from comity.approvals.model import ApprovalKind, ApprovalRequest, new_request_id
from comity.identity.keys import mint_key
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import CALL
from comity.policy.grants import Effect, Grant

GRANTS_EACH = 10
TARGET = "stub/echo"
_SERVERS = 200
_AT_ONCE = 5_000
_A_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, repr=False)
class Realm:
    """One store with its pepper, and the keys of the first parties in it."""

    store: str
    pepper: str
    parties: int
    keys: tuple[str, ...]
    # How risky its operator says the tool is. Dangerous calls wait for the audit log.
    risk: str = "moderate"

    @property
    def grants(self) -> int:
        return self.parties * GRANTS_EACH


def party(order: int) -> str:
    return f"agent:{order:05}"


@contextlib.asynccontextmanager
async def records(store: str) -> AsyncGenerator[RecordStores]:
    opened = open_store(store)
    await opened.open()
    try:
        yield opened
    finally:
        await opened.close()


async def settle(store: str, parties: int, callers: int) -> Realm:
    """Fills an empty store."""
    pepper = secrets.token_hex(32)
    async with records(store) as kept:
        for first in range(0, parties, _AT_ONCE):
            some = range(first, min(parties, first + _AT_ONCE))
            await kept.parties.put(*(Principal(party(order)) for order in some))
            await kept.grants.put(*(grant for order in some for grant in _grants(order)))
        keys = [await _key(kept, pepper, order) for order in range(callers)]
    return Realm(store, pepper, parties, tuple(keys))


async def ask(realm: Realm, count: int) -> None:
    """Leave this many questions open in a store."""
    now = datetime.now(UTC)
    async with records(realm.store) as kept:
        for number in range(count):
            asked = ApprovalRequest(
                *(
                    new_request_id(now, number.to_bytes(10)),
                    ApprovalKind.CONFIRM,
                    party(number),
                    "stub",
                ),
                *("other", f"{number:064x}", f"{party(number)} wants to call stub__other"),
                *({"tool": "stub__other", "arguments": {"n": number}}, now, now + _A_DAY),
            )
            await kept.approval_requests.open(asked)


def _grants(order: int) -> list[Grant]:
    """One is what the load calls; the others are of the same kind, about other servers' tools."""
    others = [
        Grant(
            party(order),
            CALL,
            f"server-{(order + each) % _SERVERS}/tool-{each}",
            Effect.DENY if each == 1 else Effect.ALLOW,
        )
        for each in range(1, GRANTS_EACH)
    ]
    return [Grant(party(order), CALL, TARGET, Effect.ALLOW), *others]


async def _key(kept: RecordStores, pepper: str, order: int) -> str:
    now = datetime.now(UTC)
    shown, key = mint_key(pepper.encode(), ApiKey("", party(order), b"", created_at=now))
    await kept.keys.put(key, now)
    return shown
