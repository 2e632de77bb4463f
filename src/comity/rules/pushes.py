"""Where a push goes by an operator's rows, and how words and names are made of what it holds.

Rule 1: the first row counts that names its server and its feature set; without one nothing follows.
Rule 2: a push never chooses a conversation of others: where its own words are part of the name,
        so is its server.
Rule 3: what a template takes over is bounded, and what is not there is nothing.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple, cast

import msgspec

from comity.rules.backoff import Backoff
from comity.rules.live_policy import covers
from comity.wire.inbound_hooks import HookKind
from comity.wire.pushes import KeptPush, Push, PushState, Route

LONGEST_FIELD: Final = 2_000
LONGEST_TEXT: Final = 20_000
LONGEST_NAME: Final = 200
MOST_FIELDS: Final = 50
AGAIN: Final = Backoff(timedelta(seconds=1), timedelta(minutes=5))
_FIELD: Final = re.compile(r"\{([^{}\x00-\x1f]{1,200})\}")
_NAMED: Final = frozenset({"event", "server", "feature", "type"})


class Row(NamedTuple):
    """What an operator decides of some pushes; the conversation of its route may be a template."""

    server: str
    feature: str
    route: Route


@dataclass(frozen=True, slots=True)
class HookRow:
    """What an operator decides of one webhook that comes in at /hooks/NAME."""

    name: str
    kind: HookKind
    secret_file: str
    route: Route
    header: str = ""
    algorithm: str = "sha256"
    # Where its event's id stands, and what is told of it; empty as its kind has it, and its body.
    id: str = ""
    content: str = ""


def route_of(rows: Iterable[Row], push: Push) -> Route | None:
    """Where a push goes; None where no row names it."""
    for row in rows:
        if row.server in ("*", push.server) and covers(row.feature, push.feature):
            return settled(row.route, push, push.origin)
    return None


def settled(route: Route, push: Push, fields: object) -> Route:
    """The route of one push, with the name of its conversation filled in."""
    if not is_template(route.conversation):
        return route
    said = filled(route.conversation, push, fields)
    plain = "".join(each if each.isprintable() else " " for each in said).strip()
    name = f"{push.server}/{plain or push.id}"
    if len(name) > LONGEST_NAME:
        # Shortened it might be another's.
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]
        name = f"{name[: LONGEST_NAME - 17]}-{digest}"
    return replace(route, conversation=name)


# Templates: `{/a/b}` is a JSON pointer, `{event}`, `{server}`, `{feature}` and `{type}` are names.


def is_template(text: str) -> bool:
    return _FIELD.search(text) is not None


def why_no_template(text: str) -> str:
    """What is wrong with a template; empty for nothing."""
    fields = _FIELD.findall(text)
    if len(fields) > MOST_FIELDS:
        return f"has more than {MOST_FIELDS} fields"
    if any(field not in _NAMED and not field.startswith("/") for field in fields):
        return "has a field that is no pointer, as {/a/b}, nor {event}, {server} or {feature}"
    return ""


def filled(template: str, push: Push, fields: object) -> str:
    """A template with what stands there in its place."""
    names = {
        "event": push.id,
        "server": push.server,
        "feature": push.feature,
        "type": str(push.origin.get("type", "")),
    }

    def put(found: re.Match[str]) -> str:
        field = found[1]
        return names[field] if field in names else words(at(fields, field))

    return _FIELD.sub(put, template)[:LONGEST_TEXT]


def at(value: object, pointer: str) -> object:
    """What stands at a JSON pointer; None where nothing does. (RFC 6901)"""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = cast("Mapping[str, object]", value).get(name)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            items = cast("Sequence[object]", value)
            place = int(name) if name.isascii() and name.isdigit() and len(name) < 10 else -1
            value = items[place] if 0 <= place < len(items) else None
        else:
            return None
    return value


def words(value: object) -> str:
    """A value as it is read; what is more than a word as JSON."""
    if value is None:
        return ""
    said = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return said if len(said) <= LONGEST_FIELD else f"{said[:LONGEST_FIELD]}\N{HORIZONTAL ELLIPSIS}"


# What becomes of a push that could not be done.


@dataclass(frozen=True, slots=True)
class Patience:
    """How often something is tried again, and for how long."""

    again: Backoff = AGAIN
    retry_for: timedelta = timedelta(days=1)


def done(kept: KeptPush, inference: str, now: datetime) -> KeptPush:
    return replace(
        kept,
        state=PushState.DONE,
        attempts=kept.attempts + 1,
        inference=inference,
        last_error="",
        done_at=now,
    )


def failed(kept: KeptPush, because: str, now: datetime) -> KeptPush:
    """It cannot be done, however often it is tried."""
    tried = replace(kept, attempts=kept.attempts + 1, last_error=because[:300])
    return replace(tried, state=PushState.FAILED, done_at=now)


def tried(
    kept: KeptPush, because: str, now: datetime, patience: Patience, chance: float
) -> KeptPush:
    """It could not be done now: it is due again later, until it was tried for long enough."""
    if now - kept.received_at >= patience.retry_for:
        return failed(kept, because, now)
    attempts = kept.attempts + 1
    due_at = now + patience.again.delay(attempts, chance)
    return replace(kept, attempts=attempts, last_error=because[:300], due_at=due_at)
