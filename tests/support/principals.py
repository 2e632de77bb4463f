"""Principals in a store, each with a key, before a gateway runs."""

from collections.abc import Iterable
from datetime import UTC, datetime

from comity.app.records import open_store
from comity.identity.keys import mint_key
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import PrincipalKind
from comity.policy.grants import Grant

INVISIBLE_NAMES = (
    *("ana\u200b", "ana\u202eevil", "an\u00ada", "ana\u200f", "ana\U000e0061", "ana\ufe0f"),
    *("a\u034fna", "\u2060ana", "ana\u3164", "ana\u180e", "\ufeffana", "ana\u2028"),
)
"""Names that a person cannot tell from `ana`."""


async def add_principals(
    store: str, pepper: str, principals: Iterable[str], *grants: Grant
) -> dict[str, str]:
    """Add the principals and the grants to the store at this URL; the key of each principal."""
    now, keys = datetime.now(UTC), dict[str, str]()
    records = open_store(store)
    await records.open()
    try:
        for principal in principals:
            whole, key = mint_key(pepper.encode(), ApiKey("", principal, b"", created_at=now))
            kind = PrincipalKind(principal.partition(":")[0])
            await records.parties.put(Principal(principal, kind))
            await records.keys.put(key, now)
            keys[principal] = whole
        await records.grants.put(*grants)
    finally:
        await records.close()
    return keys
