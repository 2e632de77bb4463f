"""API keys: their format, creation, rotation, and when each was last used."""

import hashlib
import hmac
import logging
import re
import secrets
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, Protocol

from comity.audit.events import AuditType
from comity.audit.log import MAX_NAMES_IN_EVENT, AuditLog
from comity.errors import (
    CREDENTIAL_EXPIRED,
    INVALID_PARAMS,
    NOTHING_HERE,
    UNAUTHENTICATED,
    MalformedMessage,
    Unavailable,
)
from comity.identity.principals import (
    ApiKey,
    KeyStore,
    Principal,
    PrincipalStore,
    checked_groups,
)
from comity.mcp.actors import (
    ADMIN_READ,
    ADMIN_WRITE,
    CALL,
    GROUP_PREFIX,
    LIST,
    READ,
    PrincipalKind,
    kind_of,
)
from comity.storage.changes import PAGE
from comity.toolkit.text import format_timestamp, has_hidden

PREFIX: Final = "cmty"
ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH: Final = 11
SECRET_LENGTH: Final = 43

_CHECK_LENGTH: Final = 6
_FORM: Final = re.compile(rb"cmty_[a-z0-9]{1,16}_([0-9A-Za-z]{11})_[0-9A-Za-z]{43}[0-9A-Za-z]{6}")
_ENVIRONMENT: Final = re.compile(r"[a-z0-9]{1,16}")
_PRINCIPAL_ID: Final = re.compile(r"[^*\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,256}")
_TOOL_PERMISSION: Final = re.compile(r"(ToolInvoke|ToolRead)\((\S{1,256})\)")
_VERB_PERMISSION: Final = re.compile(r"([A-Za-z0-9_.*/-]{1,128}) (\S{1,256})")
_PLAIN: Final = {
    "ToolsListAll": (LIST, "*"),
    "AdminRead": (ADMIN_READ, "*"),
    "AdminWrite": (ADMIN_WRITE, "*"),
}
_NAMING: Final = {"ToolInvoke": CALL, "ToolRead": READ}
_DUMMY: Final = bytes(32)


class PresentedKey(NamedTuple):
    """A well-formed key of a request, not yet verified."""

    id: str
    whole: bytes

    def __repr__(self) -> str:
        return f"Shown({self.id!r})"


def format_key(environment: str, key_id: str, secret: str) -> str:
    """Assemble a key from its parts. The caller draws id and secret at random."""
    if not _ENVIRONMENT.fullmatch(environment):
        raise ValueError("the environment of a key is 1 to 16 of a-z and 0-9")
    body = f"{PREFIX}_{environment}_{key_id}_{secret}"
    return body + _checksum(body.encode()).decode()


def looks_like_key(credential: bytes) -> bool:
    """Whether a credential has the prefix of Comity's keys, well-formed or not."""
    return credential.startswith(b"cmty_")


def parse_key(credential: bytes) -> PresentedKey | None:
    """Parse a key. Returns None for a malformed key, which then needs no look-up."""
    form = _FORM.fullmatch(credential)
    if form is None or _checksum(credential[:-_CHECK_LENGTH]) != credential[-_CHECK_LENGTH:]:
        return None
    return PresentedKey(form[1].decode(), credential)


def mac_of_key(pepper: bytes, whole: bytes) -> bytes:
    """Return the MAC of a key for storage.

    It is useless without the pepper, which is kept elsewhere.
    """
    return hmac.digest(pepper, whole, hashlib.sha256)


def verify_key(
    pepper: bytes, presented_key: PresentedKey, known: ApiKey | None, now: datetime
) -> ApiKey:
    """Return the stored key if the presented key matches and is valid now.

    Raises MalformedMessage otherwise.
    """
    # An unknown id costs the same comparison as a known one, so that timing reveals no ids.
    expected = _DUMMY if known is None else known.mac
    is_right = hmac.compare_digest(mac_of_key(pepper, presented_key.whole), expected)
    if known is None or not is_right:
        raise MalformedMessage(UNKNOWN, UNAUTHENTICATED)
    if known.revoked_at is not None and known.revoked_at <= now:
        raise MalformedMessage("this key was revoked; ask for another", UNAUTHENTICATED)
    if known.expires_at is not None and known.expires_at <= now:
        raise MalformedMessage("this key has expired; ask for another", CREDENTIAL_EXPIRED)
    if known.not_before is not None and known.not_before > now:
        raise MalformedMessage("this key does not count yet", UNAUTHENTICATED)
    return known


def is_key_active(key: ApiKey, now: datetime) -> bool:
    """Whether a key is valid now."""
    return (
        (key.revoked_at is None or key.revoked_at > now)
        and (key.expires_at is None or key.expires_at > now)
        and (key.not_before is None or key.not_before <= now)
    )


UNKNOWN: Final = "unknown credentials"


def bounds_of(permissions: Iterable[str]) -> tuple[tuple[str, str], ...] | None:
    """Return the verbs and targets that a key is restricted to, or None if it is unrestricted.

    A permission is written in the terms of the registry (`ToolInvoke(search)`, `ToolsListAll`), or
    like a grant, as a verb and a target (`tools/call files/*`). An unreadable permission permits
    nothing.
    """
    written = tuple(permissions)
    if not written:
        return None
    return tuple(bound for each in written if (bound := bound_in(each)) is not None)


def bound_in(permission: str) -> tuple[str, str] | None:
    """Parse one permission, or return None if it is unreadable."""
    if permission in _PLAIN:
        return _PLAIN[permission]
    named = _TOOL_PERMISSION.fullmatch(permission)
    if named is not None:
        return _NAMING[named[1]], _target(named[2])
    written = _VERB_PERMISSION.fullmatch(permission)
    return None if written is None else (written[1], written[2])


def _target(tool: str) -> str:
    """Return a tool as a target:

    `server/tool`, `server__tool`, or the tool's name on any server.
    """
    if "/" in tool or tool == "*":
        return tool
    server, separator, name = tool.partition("__")
    return f"{server}/{name}" if separator and server and name else f"*/{tool}"


def _checksum(body: bytes) -> bytes:
    number, digits = zlib.crc32(body), bytearray(_CHECK_LENGTH)
    for place in range(_CHECK_LENGTH - 1, -1, -1):
        number, digit = divmod(number, 62)
        digits[place] = _DIGITS[digit]
    return bytes(digits)


_DIGITS: Final = ALPHABET.encode()


ENVIRONMENT: Final = "live"


def mint_key(pepper: bytes, api_key: ApiKey, environment: str = ENVIRONMENT) -> tuple[str, ApiKey]:
    """Create a key. Returns the key itself, for its holder only, and its record.

    `api_key` holds all other fields of the record.
    """
    key_id, secret = _draw(ID_LENGTH), _draw(SECRET_LENGTH)
    whole = format_key(environment, key_id, secret)
    return whole, replace(api_key, id=key_id, mac=mac_of_key(pepper, whole.encode()))


def _draw(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


log = logging.getLogger(__name__)

type Clock = Callable[[], datetime]
type Refresh = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, repr=False)
class IssuedKey:
    """A new key. Comity holds the whole key only at this moment."""

    whole: str
    record: ApiKey


async def _no_refresh() -> None:
    """The refresh function for a store without a snapshot."""


class KeyringStores(Protocol):
    """Where keys and their principals are stored."""

    @property
    def parties(self) -> PrincipalStore: ...
    @property
    def keys(self) -> KeyStore: ...


class KeyAdmin:
    """Manages the keys and principals of the store."""

    def __init__(
        self,
        stores: KeyringStores,
        pepper: bytes,
        refresh: Refresh = _no_refresh,
        clock: Clock = lambda: datetime.now(UTC),
        *,
        audit: AuditLog | None = None,
    ) -> None:
        self._stores = stores
        self._pepper = pepper
        self._refresh = refresh
        self._clock = clock
        # Receives the changes of keys and principals.
        self.audit = audit

    async def create(self, by: str, api_key: ApiKey) -> IssuedKey:
        """Create a key for a principal, and the principal itself if it does not exist.

        Raises MalformedMessage if the request is invalid.
        """
        now = self._clock()
        party = _party_id(api_key.party)
        for permission in api_key.permissions:
            if bound_in(permission) is None:
                raise MalformedMessage(f"{permission!r:.80} {PERMISSION_RULE}", INVALID_PARAMS)
        if api_key.expires_at is not None and api_key.expires_at <= now:
            raise MalformedMessage("expires_at is in the past", INVALID_PARAMS)
        if await self._stores.parties.get(party) is None:
            await self.add(by, Principal(party, kind_of(party)))
        return await self._make(replace(api_key, created_by=by, created_at=now), now)

    async def create_first(self, by: str, api_key: ApiKey) -> IssuedKey | None:
        """Create the first key of the store, and its principal. Return None if there is a key.

        If several nodes start at once, one of them gets the key.
        """
        now = self._clock()
        party = _party_id(api_key.party)
        draft = replace(api_key, created_by=by, created_at=now)
        whole, record = mint_key(self._pepper, draft)
        if not await self._stores.keys.put_first(record):
            return None
        if await self._stores.parties.get(party) is None:
            await self.add(by, Principal(party, kind_of(party)))
        return await self._issued(whole, record)

    async def rotate(self, by: str, key_id: str, grace: timedelta) -> IssuedKey:
        """Create another key like this one. The old key remains valid for the grace period."""
        now = self._clock()
        old = await self._get(key_id)
        like = replace(
            old, created_by=by, created_at=now, not_before=None, revoked_at=None, last_used=None
        )
        if grace <= timedelta(0):
            await self._stores.keys.revoke(key_id, now)
            self._record_revoked(by, old)
            return await self._make(like, now, key_id)
        # Create the new key first: if two keys are active already, this fails and changes nothing.
        made = await self._make(like, now, key_id)
        ends = now + grace if old.expires_at is None else min(old.expires_at, now + grace)
        await self._stores.keys.put(replace(old, expires_at=ends), now)
        self._record_revoked(by, old, ends)
        await self._refresh()
        return made

    async def revoke(self, by: str, key_id: str) -> ApiKey:
        key = await self._get(key_id)
        if await self._stores.keys.revoke(key_id, self._clock()):
            self._record_revoked(by, key)
            log.info("%s: revoked key %s", by, key_id)
        await self._refresh()
        return await self._get(key_id)

    async def keys(self, party: str = "", after: str = "", limit: int = PAGE) -> Sequence[ApiKey]:
        if party:
            return await self._stores.keys.list_of_party(party)
        return await self._stores.keys.page(after, limit)

    async def add(self, by: str, party: Principal) -> Principal:
        """Create a principal. Raises MalformedMessage if it exists."""
        _party_id(party.id)
        if await self._stores.parties.get(party.id) is not None:
            raise MalformedMessage(f"{party.id!r:.80} exists already", INVALID_PARAMS)
        added = replace(party, created_by=by, created_at=self._clock())
        await self._stores.parties.put(added)
        await self._refresh()
        self._record_change(by, added, "added")
        log.info("%s: added principal %s", by, party.id)
        return added

    async def disable(self, by: str, party_id: str, disabled: bool) -> Principal:
        """Disable or enable a principal. Disabling ends its sessions; keys and grants remain.

        Raises MalformedMessage if the principal does not exist.
        """
        changed = await self._change(party_id, lambda party: replace(party, disabled=disabled))
        change = "disabled" if disabled else "enabled"
        self._record_change(by, changed, change)
        log.info("%s: %s principal %s", by, change, party_id)
        return changed

    async def change_groups(
        self, by: str, party_id: str, add: Iterable[str], remove: Iterable[str]
    ) -> Principal:
        """Add a principal to groups, and remove it from others.

        Raises MalformedMessage if the principal does not exist, or if a group is invalid.
        """
        added, removed = checked_groups(add), checked_groups(remove)

        def with_groups(party: Principal) -> Principal:
            return replace(party, groups=(*(set(party.groups) - set(removed)), *added))

        changed = await self._change(party_id, with_groups)
        self._record_change(by, changed, "groups changed", groups=list(changed.groups))
        log.info("%s: changed the groups of principal %s", by, party_id)
        return changed

    async def delete(self, by: str, party_id: str) -> Principal:
        """Delete a principal and its keys. Its grants remain without effect.

        Raises MalformedMessage if the principal does not exist.
        """
        party = await self._stores.parties.get(party_id)
        if party is None or not await self._stores.parties.remove(party_id):
            raise _no_principal(party_id)
        await self._refresh()
        self._record_change(by, party, "deleted")
        log.info("%s: deleted principal %s", by, party_id)
        return party

    async def groups(self) -> Mapping[str, Sequence[str]]:
        """Return the members of each group, from the records of the principals."""
        members: dict[str, list[str]] = {}
        after = ""
        while page := await self._stores.parties.page(after):
            for party in page:
                for group in party.groups:
                    members.setdefault(group, []).append(party.id)
            after = page[-1].id
        return dict(sorted(members.items()))

    async def _change(self, party_id: str, change: Callable[[Principal], Principal]) -> Principal:
        changed = await self._stores.parties.change(
            party_id, lambda known: None if known is None else change(known)
        )
        if changed is None:
            raise _no_principal(party_id)
        await self._refresh()
        return changed

    async def parties(self, after: str = "", limit: int = PAGE) -> Sequence[Principal]:
        return await self._stores.parties.page(after, limit)

    async def _make(self, api_key: ApiKey, now: datetime, replaces: str = "") -> IssuedKey:
        whole, record = mint_key(self._pepper, api_key)
        await self._stores.keys.put(record, now)
        return await self._issued(whole, record, replaces)

    async def _issued(self, whole: str, record: ApiKey, replaces: str = "") -> IssuedKey:
        self._record_issued(record, replaces)
        await self._refresh()
        log.info("%s: created key %s of %s", record.created_by, record.id, record.party)
        return IssuedKey(whole, record)

    def _record_issued(self, key: ApiKey, replaces: str) -> None:
        if self.audit is None:
            return
        details: dict[str, object] = {
            "key": key.id,
            "principal": key.party,
            "permissions": list(key.permissions[:MAX_NAMES_IN_EVENT]),
            "expires_at": None if key.expires_at is None else format_timestamp(key.expires_at),
        }
        if replaces:
            details["replaces"] = replaces
        untrusted = {"label": key.label}
        self.audit.record(
            AuditType.KEY_ISSUED, key.created_by, details=details, untrusted=untrusted
        )

    def _record_revoked(self, by: str, key: ApiKey, valid_until: datetime | None = None) -> None:
        """Record that a key is no longer valid, or ceases to be valid at a given time."""
        if self.audit is not None:
            details: dict[str, object] = {"key": key.id, "principal": key.party}
            if valid_until is not None:
                details["counts_until"] = format_timestamp(valid_until)
            self.audit.record(AuditType.KEY_REVOKED, by, details=details)

    def _record_change(self, by: str, party: Principal, change: str, **more: object) -> None:
        if self.audit is not None:
            details = {"principal": party.id, "kind": party.kind, "change": change, **more}
            self.audit.record(AuditType.PRINCIPAL_CHANGED, by, details=details)

    async def _get(self, key_id: str) -> ApiKey:
        key = await self._stores.keys.get(key_id)
        if key is None:
            raise MalformedMessage(f"there is no key {key_id!r:.80}", NOTHING_HERE)
        return key


PERMISSION_RULE: Final = (
    "is no permission; write ToolInvoke(server/tool), ToolRead(server/tool), ToolsListAll, "
    "AdminRead, AdminWrite, or a verb and a target, as 'tools/call files/*'"
)


def _no_principal(party_id: str) -> MalformedMessage:
    return MalformedMessage(f"there is no principal {party_id!r:.80}", NOTHING_HERE)


def _party_id(text: str) -> str:
    """Check the id of a principal. Raises MalformedMessage."""
    if (
        not _PRINCIPAL_ID.fullmatch(text)
        or text != text.strip()
        or has_hidden(text)
        or text.startswith((f"{PrincipalKind.SYSTEM}:", GROUP_PREFIX))
    ):
        raise MalformedMessage(f"{text!r:.80} cannot have a key", INVALID_PARAMS)
    return text


MOST: Final = 100_000

type Write = Callable[[Mapping[str, datetime]], Awaitable[None]]


class KeyUsage:
    """Collects when keys were last used, so that no call waits for the store."""

    def __init__(self) -> None:
        self._used_at: dict[str, datetime] = {}

    def __len__(self) -> int:
        return len(self._used_at)

    def record_use(self, key: str, at: datetime) -> None:
        self._used_at[key] = at

    async def flush(self, write: Write) -> None:
        """Write all collected times.

        If the store is unavailable, keep them for the next attempt.
        """
        noted, self._used_at = self._used_at, {}
        if not noted:
            return
        try:
            await write(noted)
        except Unavailable as error:
            log.info("The last use of keys could not be stored yet: %s", error)
            if len(noted) + len(self._used_at) <= MOST:
                self._used_at = {**noted, **self._used_at}
