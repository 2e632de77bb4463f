"""Webhooks: where may be posted to, how it is signed, and what follows from an answer. (0042)

Rule 1: a place is public, spoken to in TLS at a port that was named; what is not so an operator has
        named by its host. That holds for the address that is connected to, each time.
Rule 2: only a 2xx is an answer. Nothing is followed: a redirection is a failure as others are.
Rule 3: events go out one after the other. While a place fails, its oldest event is tried again,
        ever more seldom; one that failed three times lets the others pass.
Rule 4: what was tried for the whole span has failed, and stays where people see it.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from comity.rules import addresses
from comity.rules.backoff import Backoff
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.mcp_events import LONGEST_URL, Named
from comity.wire.webhooks import (
    OF_SUBSCRIPTION,
    WEBHOOK_ID,
    WEBHOOK_SIGNATURE,
    WEBHOOK_TIMESTAMP,
    Place,
    Problem,
)

SECRET: Final = "whsec_"  # noqa: S105  # how every one begins
LEAST_SECRET: Final = 24
MOST_SECRET: Final = 64
PATIENT: Final = 3
AGAIN: Final = Backoff(timedelta(seconds=5), timedelta(hours=1))
MOST_BODY: Final = 256 * 1024
SHORTEST: Final = timedelta(minutes=1)
"""The shortest time for which a subscription is granted."""

GONE: Final = 410
TOO_LARGE: Final = 413


class Verdict(StrEnum):
    """What an answer means."""

    DELIVERED = "delivered"
    AGAIN = "again"
    NEVER = "never"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Places:
    """Where may be posted to, beside the public network: hosts that an operator named."""

    hosts: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset({443})


def place(url: str, places: Places) -> Place:
    """Where a URL leads. Raises MalformedMessage with what is wrong with it."""
    if not (url.isascii() and url.isprintable()) or set(url) & set(' \\"<>^`{|}#'):
        raise _wrong("it holds signs that readers of URLs treat differently")
    if len(url) > LONGEST_URL:
        raise _wrong(f"it has over {LONGEST_URL} characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _wrong("it cannot be read") from None
    if host is None or "@" in parts.netloc:
        raise _wrong("it must name a host, and no user before it")
    problem, _ = addresses.host_problem(host, places.hosts)
    if problem is not None:
        raise _wrong(problem)
    plain = addresses.plain_host(host) or host
    is_named = addresses.is_among(plain, places.hosts)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_named):
        raise _wrong("it must begin with https://")
    port = (443 if parts.scheme == "https" else 80) if port is None else port
    if not is_named and port not in places.ports:
        ports = ", ".join(str(each) for each in sorted(places.ports))
        raise _wrong(f"its port must be one of {ports}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Place(parts.scheme, plain.strip("[]"), port, path, is_named)


def address_problem(where: Place, answers: Sequence[str]) -> str | None:
    """Why nothing is connected to, by what its host is just now."""
    if where.is_named:
        return None if answers else "its host cannot be resolved"
    return addresses.answers_problem(answers)


def secret_of(text: str) -> bytes:
    """The bytes that posts are signed with; raises MalformedMessage."""
    try:
        found = base64.b64decode(text.removeprefix(SECRET), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not text.startswith(SECRET) or not LEAST_SECRET <= len(found) <= MOST_SECRET:
        because = f"delivery.secret must be {SECRET} and base64 of 24 to 64 random bytes"
        raise MalformedMessage(because, INVALID_PARAMS)
    return found


def secret_text(secret: bytes) -> str:
    return SECRET + base64.b64encode(secret).decode()


def heading(
    secrets: Iterable[bytes], subscription: str, id: str, at: datetime, body: bytes
) -> Mapping[str, str]:
    """What stands above a post: Standard Webhooks, with one signature for each secret."""
    moment = str(int(at.timestamp()))
    signed = f"{id}.{moment}.".encode() + body
    made = (hmac.digest(secret, signed, hashlib.sha256) for secret in secrets)
    return {
        WEBHOOK_ID: id,
        WEBHOOK_TIMESTAMP: moment,
        WEBHOOK_SIGNATURE: " ".join(f"v1,{base64.b64encode(each).decode()}" for each in made),
        OF_SUBSCRIPTION: subscription,
    }


def subscription_id(party: str, url: str, named: Named) -> str:
    """The same for the same party, place and events; it opens nothing."""
    whole = msgspec.json.encode([party, url, named.name, named.arguments], order="deterministic")
    return f"sub_{hashlib.sha256(whole).hexdigest()[:32]}"


def until(lasts: timedelta | None, now: datetime, longest: timedelta) -> datetime:
    """When a subscription ends that is not renewed."""
    return now + min(max(lasts or longest, SHORTEST), longest)


def verdict(status: int) -> Verdict:
    """What becomes of a post that was answered so."""
    if 200 <= status < 300:
        return Verdict.DELIVERED
    return {GONE: Verdict.GONE, TOO_LARGE: Verdict.NEVER}.get(status, Verdict.AGAIN)


def problem_of(status: int) -> Problem:
    """What a status that is no success is called."""
    families = {3: Problem.STATUS_3XX, 4: Problem.STATUS_4XX, 5: Problem.STATUS_5XX}
    return families.get(status // 100, Problem.NO_HTTP)


def echoes(body: bytes, challenge: str) -> bool:
    """Whether a place has said back what it was asked to: that it wants to be posted to."""
    try:
        said = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    found = said.get("challenge")
    return isinstance(found, str) and hmac.compare_digest(found.encode(), challenge.encode())


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often a post is tried, for how long, and when a place that never answers is given up."""

    again: Backoff = AGAIN
    span: timedelta = timedelta(days=3)
    disable_after: timedelta = timedelta(days=5)


class Next(NamedTuple):
    """When a post is tried again (None: never), and until when its place is left alone."""

    due_at: datetime | None
    rest_until: datetime


class Tried(NamedTuple):
    """How often one post failed, how often its place did in a row, and since when it waits."""

    attempts: int
    failures: int
    since: datetime


def after_failure(
    schedule: Schedule,
    tried: Tried,
    now: datetime,
    chance: float,
    asked: timedelta = timedelta(0),
) -> Next:
    """What follows from one more failure; `asked` is how long the place wants to be left alone."""
    alone = max(schedule.again.delay(tried.failures, chance), min(asked, schedule.again.longest))
    rest = now + alone
    if now - tried.since >= schedule.span:
        return Next(None, rest)
    if tried.attempts < PATIENT:
        return Next(rest, rest)
    return Next(rest + schedule.again.delay(tried.attempts - PATIENT + 1, chance), rest)


def is_given_up(schedule: Schedule, failing_since: datetime | None, now: datetime) -> bool:
    """Whether a place has failed for so long that nothing more is posted to it."""
    return failing_since is not None and now - failing_since >= schedule.disable_after


def _wrong(because: str) -> MalformedMessage:
    return MalformedMessage(f"delivery.url cannot be posted to: {because}", INVALID_PARAMS)
