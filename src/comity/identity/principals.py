"""Principals and API keys, and the stores that hold them."""

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Protocol

from comity.errors import Misconfigured
from comity.mcp.actors import GROUP_PREFIX, PrincipalKind
from comity.storage.changes import PAGE
from comity.storage.values import (
    MAX_STORED_NUMBER,
    check_name,
    clean_words,
    refused_value,
    to_optional_utc,
)
from comity.toolkit.text import has_hidden


@dataclass(frozen=True, slots=True)
class Principal:
    """A stored principal: an agent, a person or a server."""

    id: str
    kind: PrincipalKind = PrincipalKind.AGENT
    label: str = ""
    disabled: bool = False
    created_by: str = ""
    created_at: datetime | None = None
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class ApiKey:
    """The record of an API key. It suffices to recognise the key, not to use it."""

    id: str
    party: str
    mac: bytes
    label: str = ""
    permissions: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    requests_per_hour: int | None = None
    created_by: str = ""
    created_at: datetime | None = None
    not_before: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used: datetime | None = None

    def __repr__(self) -> str:
        return f"Key({self.id!r} of {self.party!r})"


class PrincipalStore(Protocol):
    async def put(self, *parties: Principal) -> None: ...
    async def get(self, party: str) -> Principal | None: ...

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[Principal]:
        """Return principals in a stable order, beginning after the id `after`."""
        ...

    async def change(
        self, party: str, change: Callable[[Principal | None], Principal | None]
    ) -> Principal | None:
        """Replace a principal by what `change` makes of it, in one transaction.

        Without a principal from `change`, nothing is written. Returns what is stored afterwards.
        """
        ...

    async def remove(self, party: str) -> bool:
        """Delete a principal, its keys and its sessions. Its grants remain without effect."""
        ...


class KeyStore(Protocol):
    """Store of keys. At most two keys of a principal are active: one, and its successor."""

    async def put(self, key: ApiKey, at: datetime) -> None:
        """Write or update a key. Raises Misconfigured if it would be the third active key."""
        ...

    async def put_first(self, key: ApiKey) -> bool:
        """Write a key unless the store has one already, and return whether it did."""
        ...

    async def get(self, key: str) -> ApiKey | None: ...

    async def list_of_party(self, party: str) -> Sequence[ApiKey]: ...

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[ApiKey]: ...

    async def revoke(self, key: str, at: datetime) -> bool:
        """Revoke a key, and return whether it was active. The record remains."""
        ...

    async def touch(self, used: Mapping[str, datetime]) -> None:
        """Write when keys were last used. This counts as no change that other nodes must load."""
        ...


PERMISSIONS: Final = 1_000


ACTIVE_KEYS: Final = 2


"""One key and its successor, so that a rotation never needs a third."""


MAX_GROUPS: Final = 200
MAX_GROUP_LENGTH: Final = 200


def checked_groups(names: Iterable[str]) -> tuple[str, ...]:
    """Return the groups of a principal, sorted and without duplicates. Raises MalformedMessage.

    Two forms of the same character count as one, so that a grant finds its group. Names that only
    look alike, and names in another case, are different groups.
    """
    found = {checked_group(name) for name in names}
    if len(found) > MAX_GROUPS:
        raise refused_value(f"a principal has at most {MAX_GROUPS} groups")
    return tuple(sorted(found))


def checked_group(name: str) -> str:
    """Return the name of a group in its stored form. Raises MalformedMessage."""
    if len(name) <= MAX_GROUP_LENGTH:
        check_name(name, "a group's name")
        normal = unicodedata.normalize("NFC", name)
        if normal == normal.strip() and "*" not in normal and not has_hidden(normal):
            return normal
    raise refused_value(
        f"a group's name has 1 to {MAX_GROUP_LENGTH} characters, without blanks around them, "
        "without stars and without invisible characters"
    )


def checked_principal(found: Principal) -> Principal:
    check_name(found.id, "a principal's id")
    if has_hidden(found.id):
        raise refused_value("a principal's id holds invisible characters")
    if found.id.startswith(GROUP_PREFIX):
        raise refused_value(f"a principal's id cannot begin with {GROUP_PREFIX}")
    return replace(
        found,
        label=clean_words(found.label),
        created_by=clean_words(found.created_by),
        created_at=to_optional_utc(found.created_at),
        groups=checked_groups(found.groups),
    )


def checked_key(api_key: ApiKey) -> ApiKey:
    check_name(api_key.id, "a key's id")
    check_name(api_key.party, "the principal of a key")
    if len(api_key.permissions) > PERMISSIONS or not 0 < len(api_key.mac) <= 64:
        raise refused_value(f"a key has at most {PERMISSIONS} permissions, and a MAC")
    for limit in (api_key.requests_per_minute, api_key.requests_per_hour):
        if limit is not None and not 0 <= limit <= MAX_STORED_NUMBER:
            raise refused_value("a key's limit must be a number that is not negative")
    return replace(
        api_key,
        label=clean_words(api_key.label),
        permissions=tuple(check_name(each, "a key's permission") for each in api_key.permissions),
        created_by=clean_words(api_key.created_by),
        created_at=to_optional_utc(api_key.created_at),
        not_before=to_optional_utc(api_key.not_before),
        expires_at=to_optional_utc(api_key.expires_at),
        revoked_at=to_optional_utc(api_key.revoked_at),
        last_used=to_optional_utc(api_key.last_used),
    )


def is_active_key(api_key: ApiKey, at: datetime) -> bool:
    """Whether a key is valid now, or will become valid."""
    return api_key.revoked_at is None and (api_key.expires_at is None or api_key.expires_at > at)


def refuse_third_key(new: ApiKey, present: Iterable[ApiKey], at: datetime) -> None:
    """Raise Misconfigured if the principal already has two active keys."""
    active = [each for each in present if each.id != new.id and is_active_key(each, at)]
    if is_active_key(new, at) and len(active) >= ACTIVE_KEYS:
        ids = " and ".join(each.id for each in active[:ACTIVE_KEYS])
        raise Misconfigured(
            f"{new.party} has {ACTIVE_KEYS} keys in use already, {ids}; revoke one of them first"
        )
