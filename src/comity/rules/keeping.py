"""What can be written down for good, and what may be: the same for every store. (F12)

A database refuses a NUL or half a surrogate pair, and would fail in the middle of a write that a
stranger provoked. So names with such characters are refused before, and words that people read
are made harmless.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, cast

from comity.rules import conditions, granting
from comity.rules.asks import NEVER_OWN
from comity.wire import jsonrpc
from comity.wire.asks import Answer, Ask, State
from comity.wire.errors import INVALID_PARAMS, MalformedMessage, Misconfigured
from comity.wire.grants import Grant, Source, Where
from comity.wire.parties import Key, Party
from comity.wire.pins import Pin, Registration
from comity.wire.pushes import KeptPush
from comity.wire.webhooks import Post, Subscription

NAME_BYTES: Final = 1_024
"""Two of them fit into one entry of a database's index."""

WORDS_LENGTH: Final = 4_000
DOCUMENT_BYTES: Final = 4 * 1024 * 1024
ASK_DOCUMENT_BYTES: Final = 64 * 1024
"""What an ask is about, what an answer to it must look like, and what was filled in: of each."""

DEPTH: Final = 100
QUORUM: Final = 100
PERMISSIONS: Final = 1_000
TOLD_AT_ONCE: Final = 1_000
ACTIVE_KEYS: Final = 2
"""One key, and the one that follows it: a rotation never needs a third."""

_UNNAMEABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNREADABLE: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_MOST: Final = 2**53


def name(text: str, what: str) -> str:
    """A name as it stands; raises MalformedMessage where it cannot be one."""
    if _UNNAMEABLE.search(text):
        raise _refused(f"{what} holds a control character, or half a character")
    if not 0 < len(text.encode()) <= NAME_BYTES:
        raise _refused(f"{what} must have 1 to {NAME_BYTES} bytes")
    return text


def is_name(text: str) -> bool:
    """Whether anything kept can have this name."""
    return not _UNNAMEABLE.search(text) and 0 < len(text.encode()) <= NAME_BYTES


def words(text: str) -> str:
    """What is only read by people: shortened, and without what no database takes."""
    return _UNREADABLE.sub("\N{REPLACEMENT CHARACTER}", text[:WORDS_LENGTH])


def moment(at: datetime | None) -> datetime | None:
    """The same moment in UTC."""
    return None if at is None else certain(at)


def certain(at: datetime) -> datetime:
    """The same moment in UTC, where there must be one."""
    if at.tzinfo is None:
        raise _refused("a time must say its zone")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise _refused("a time must be between the years 1 and 9999") from None


def grant(found: Grant) -> Grant:
    """A grant with the id that it has in every store."""
    name(found.subject, "a grant's subject")
    name(found.verb, "a grant's verb")
    name(found.target, "a grant's target")
    where = granting.condition(found)
    return replace(
        found,
        id=grant_id(found.subject, found.verb, found.target, where),
        where=where,
        source=Source.RECORDS,
        granted_by=words(found.granted_by),
        justification=words(found.justification),
        granted_at=moment(found.granted_at),
        expires_at=moment(found.expires_at),
    )


def grant_id(subject: str, verb: str, target: str, where: Where = None) -> str:
    """From what makes it the only one: a digest, since an index cannot hold three long names."""
    # No name holds a NUL, so nothing else is written the same.
    named = f"{subject}\0{verb}\0{target}".encode(errors="surrogatepass")
    if where is not None:
        named += b"\0" + conditions.canonical(where)
    return hashlib.sha256(named).hexdigest()[:40]


def party(found: Party) -> Party:
    name(found.id, "a party's id")
    return replace(
        found,
        label=words(found.label),
        created_by=words(found.created_by),
        created_at=moment(found.created_at),
    )


def key(found: Key) -> Key:
    name(found.id, "a key's id")
    name(found.party, "a key's party")
    if len(found.permissions) > PERMISSIONS or not 0 < len(found.mac) <= 64:
        raise _refused(f"a key has at most {PERMISSIONS} permissions, and a MAC")
    for limit in (found.requests_per_minute, found.requests_per_hour):
        if limit is not None and not 0 <= limit <= _MOST:
            raise _refused("a key's limit must be a number that is not negative")
    return replace(
        found,
        label=words(found.label),
        permissions=tuple(name(each, "a key's permission") for each in found.permissions),
        created_by=words(found.created_by),
        created_at=moment(found.created_at),
        not_before=moment(found.not_before),
        expires_at=moment(found.expires_at),
        revoked_at=moment(found.revoked_at),
        last_used=moment(found.last_used),
    )


def pin(found: Pin) -> Pin:
    name(found.server, "a pin's server")
    name(found.tool, "a pin's tool")
    name(found.digest, "a pin's digest")
    if len(found.definition) > DOCUMENT_BYTES:
        raise _refused(f"a definition has at most {DOCUMENT_BYTES} bytes")
    return replace(
        found, accepted_by=words(found.accepted_by), accepted_at=moment(found.accepted_at)
    )


def registration(found: Registration) -> Registration:
    name(found.server, "a server's id")
    document(found.entry)
    return replace(
        found,
        created_by=words(found.created_by),
        created_at=moment(found.created_at),
        justification=words(found.justification),
    )


def ask(found: Ask) -> Ask:
    """A new ask as every store keeps it: nobody has said anything yet."""
    if found.state is not State.PENDING or found.answers or found.call:
        raise _refused("a new ask is pending, and nobody has answered it")
    if not 1 <= found.quorum <= QUORUM:
        raise _refused(f"from 1 to {QUORUM} authorities must accept an ask")
    for text, what in ((found.id, "id"), (found.asker, "asker"), (found.digest, "digest")):
        name(text, f"an ask's {what}")
    for text, what in ((found.server, "server"), (found.tool, "tool"), (found.trace, "trace")):
        name(text or "-", f"an ask's {what}")
    listed(found.options, ASK_DOCUMENT_BYTES)
    return replace(
        found,
        message=words(found.message),
        about=_small(found.about, "what an ask is about"),
        schema=None if found.schema is None else _small(found.schema, "an ask's schema"),
        created_at=certain(found.created_at),
        expires_at=certain(found.expires_at),
        ended_at=None,
    )


def answer(found: Answer, to: Ask) -> Answer:
    """An authority's word as every store keeps it; one of the asker's own is none. (D-98)"""
    name(found.by, "who answers")
    if found.by == to.asker and not to.own:
        raise _refused(NEVER_OWN)
    return replace(
        found,
        at=certain(found.at),
        reason=words(found.reason),
        content=_small(found.content, "what was filled in"),
    )


def _small(entry: Mapping[str, object], what: str) -> Mapping[str, object]:
    written = document(entry, what, ASK_DOCUMENT_BYTES)
    if jsonrpc.excess(written.encode(), DEPTH):
        raise _refused(f"{what} is nested at most {DEPTH} deep")
    return read(written)


def document(
    entry: Mapping[str, object], what: str = "an entry", at_most: int = DOCUMENT_BYTES
) -> str:
    """An entry as JSON; in it a NUL is spelled out, and a long number is only digits."""
    try:
        encoded = bytes(jsonrpc.to_raw(dict(entry)))
    except (TypeError, ValueError, RecursionError):
        raise _refused(f"{what} must be plain JSON") from None
    if len(encoded) > at_most:
        raise _refused(f"{what} has at most {at_most} bytes")
    return encoded.decode()


def kept(entry: Mapping[str, object]) -> Mapping[str, object]:
    """An entry as it comes back from a store."""
    return read(document(entry))


def read(written: str) -> Mapping[str, object]:
    found = jsonrpc.value(written.encode())
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def condition(where: Where) -> str | None:
    """A grant's condition as a store keeps it."""
    return None if where is None else conditions.canonical(where).decode()


def read_condition(written: str | None) -> Where:
    """One that cannot be read is still one: it covers nothing, and its grant allows nothing."""
    try:
        return None if written is None else read(written)
    except MalformedMessage:
        return {}


def listed(names: Iterable[str], at_most: int = DOCUMENT_BYTES) -> str:
    try:
        encoded = bytes(jsonrpc.to_raw(list(names)))
    except ValueError:
        raise _refused("a name in a list holds half a character") from None
    if len(encoded) > at_most:
        raise _refused(f"a list has at most {at_most} bytes")
    return encoded.decode()


def read_list(written: str) -> tuple[str, ...]:
    found = jsonrpc.value(written.encode())
    return tuple(map(str, cast("list[object]", found))) if isinstance(found, list) else ()


def webhook(found: Subscription) -> Subscription:
    for text, what in ((found.id, "id"), (found.party, "party"), (found.name, "event")):
        name(text, f"a webhook's {what}")
    if len(found.url) > 8 * NAME_BYTES or _UNNAMEABLE.search(found.url):
        raise _refused("a webhook's URL is too long, or holds a control character")
    return replace(
        found,
        credential=words(found.credential),
        last_error=words(found.last_error),
        created_at=certain(found.created_at),
        expires_at=moment(found.expires_at),
        rotated_until=moment(found.rotated_until),
    )


def post(found: Post) -> Post:
    """What waits to be posted."""
    name(found.event, "an event's id")
    at, due_at = certain(found.at), certain(found.due_at)
    return replace(found, at=at, due_at=due_at, last_error=words(found.last_error))


def push(found: KeptPush) -> KeptPush:
    """What a server pushed, and where it goes."""
    name(found.push.server, "a push's server")
    name(found.push.id, "a push's id")
    name(found.push.feature or "-", "a push's feature set")
    return replace(
        found,
        push=replace(found.push, at=certain(found.push.at)),
        received_at=certain(found.received_at),
        due_at=certain(found.due_at),
        done_at=moment(found.done_at),
        inference=words(found.inference),
        last_error=words(found.last_error),
    )


def is_active(found: Key, at: datetime) -> bool:
    """Whether it can be used now, or some day, as things stand."""
    return found.revoked_at is None and (found.expires_at is None or found.expires_at > at)


def refuse_a_third(new: Key, present: Iterable[Key], at: datetime) -> None:
    """Raises Misconfigured where its party has two keys in use already."""
    active = [each for each in present if each.id != new.id and is_active(each, at)]
    if is_active(new, at) and len(active) >= ACTIVE_KEYS:
        ids = " and ".join(each.id for each in active[:ACTIVE_KEYS])
        raise Misconfigured(
            f"{new.party} has {ACTIVE_KEYS} keys in use already, {ids}; revoke one of them first"
        )


def told(whose: Iterable[str]) -> tuple[str, ...]:
    """Who is named in the news of one change; one empty name stands for too many to name."""
    changed = tuple(dict.fromkeys(whose))
    return changed if len(changed) <= TOLD_AT_ONCE else ("",)


def _refused(because: str) -> MalformedMessage:
    return MalformedMessage(because, INVALID_PARAMS)
