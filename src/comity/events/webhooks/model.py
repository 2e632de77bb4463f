"""Model of webhooks: targets, signatures, retries, subscriptions and their messages."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct

from comity.errors import INVALID_PARAMS, MODE_UNSUPPORTED, MalformedMessage
from comity.events.model import EventChannel, GatewayEvent, Severity, is_channel, is_pattern
from comity.mcp import jsonrpc
from comity.secrets.model import context_of
from comity.storage.values import (
    NAME_BYTES,
    UNNAMEABLE,
    check_name,
    clean_words,
    refused_value,
    to_optional_utc,
    to_utc,
)
from comity.toolkit.jobs import QueuedJob, WorkQueue
from comity.toolkit.resilience import RetrySchedule
from comity.toolkit.text import format_timestamp
from comity.validation import network

SUBSCRIBE: Final = "events/subscribe"
"""The verb of the permission to have events posted to `webhooks/HOST`."""

PLACES: Final = "webhooks"
"""The server part in the target of such a grant. The host is the tool part."""

WEBHOOK_ID: Final = "webhook-id"
WEBHOOK_TIMESTAMP: Final = "webhook-timestamp"
WEBHOOK_SIGNATURE: Final = "webhook-signature"
SUBSCRIPTION_ID_HEADER: Final = "x-mcp-subscription-id"


class WebhookState(StrEnum):
    """Whether Comity delivers messages.

    A subscription that failed for a long time is disabled until an operator or its owner acts.
    """

    ACTIVE = "active"
    DISABLED = "disabled"


class DeliveryProblem(StrEnum):
    """Why a message was not delivered, in the terms of the draft, followed by Comity's own.

    No value contains output of the receiver, which would tell a subscriber about internal hosts.
    """

    REFUSED = "connection_refused"
    TIMEOUT = "timeout"
    TLS = "tls_error"
    STATUS_4XX = "http_4xx"
    STATUS_5XX = "http_5xx"
    CHALLENGE = "challenge_failed"
    STATUS_3XX = "http_3xx"
    NO_HTTP = "no_http"
    FORBIDDEN = "address_refused"
    SECRET = "secret_unreadable"  # noqa: S105  # a word for people
    KEY_SERVICE = "key_service_down"


def secret_context(id: str) -> str:
    """Return the context in which the secrets of a subscription are sealed."""
    return context_of("webhook", id)


class WebhookTarget(NamedTuple):
    """A parsed URL without ambiguity. `is_named` tells whether an operator listed the host."""

    scheme: str
    host: str
    port: int
    path: str
    is_named: bool

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.scheme == "https" else 80
        return host if self.port == usual else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, repr=False)
class WebhookSubscription:
    """A subscription of one principal, delivered to one URL.

    `sealed` holds its encrypted secrets, the newest first. The previous secret is valid until
    `rotated_until`. `credential` identifies the credential of the principal. `failures` counts
    consecutive failures.
    """

    id: str
    party: str
    credential: str
    url: str
    name: str
    least: Severity
    created_at: datetime
    expires_at: datetime | None
    sealed: tuple[bytes, ...] = ()
    rotated_until: datetime | None = None
    state: WebhookState = WebhookState.ACTIVE
    failures: int = 0
    failing_since: datetime | None = None
    last_error: str = ""
    delivered_at: datetime | None = None
    waiting: int = 0
    failed: int = 0
    dropped: int = 0

    def __repr__(self) -> str:
        return f"Subscription({self.id!r} of {self.party!r})"


@dataclass(frozen=True, slots=True)
class WebhookMessage:
    """One event for one subscription. `number` is assigned by the store, in order of writing."""

    subscription: str
    event: str
    body: bytes
    at: datetime
    due_at: datetime
    number: int = 0
    attempts: int = 0
    failed: bool = False
    last_error: str = ""


CAPABILITY: Final[Mapping[str, object]] = {"listChanged": False}
WEBHOOK: Final = "webhook"
MODES: Final = (WEBHOOK, "poll")
OURS: Final = "dev.comity/"
"""Prefix of Comity's members in `_meta`, since the draft has neither severity nor server."""

MAX_URL_LENGTH: Final = 2048
MAX_CURSOR_LENGTH: Final = 128
MOST_EVENTS: Final = 100
MAX_MS: Final = 10**12
NEXT_POLL_MS: Final = 5_000
_INPUT: Final[Mapping[str, object]] = {
    "type": "object",
    "properties": {
        "min_severity": {
            "enum": list(Severity),
            "description": "leave out what matters less than this",
        }
    },
    "additionalProperties": False,
}
_PAYLOAD: Final[Mapping[str, object]] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class EventSelector:
    """The selected events: a channel, a pattern or everything, and the minimum severity."""

    name: str
    least: Severity = Severity.DEBUG

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments in canonical form, without defaults."""
        return {} if self.least is Severity.DEBUG else {"min_severity": self.least}


@dataclass(frozen=True, slots=True, repr=False)
class SubscribeParams:
    """The params of `events/subscribe`. `secret` is None if the gateway should choose one.

    `lasts` is the requested duration, or None if the client requests none or no end.
    """

    named: EventSelector
    url: str
    secret: str | None
    lasts: timedelta | None

    def __repr__(self) -> str:
        return f"Subscribing({self.named!r})"


@dataclass(frozen=True, slots=True)
class PollParams:
    """The params of `events/poll`. Without a `cursor`, polling begins now."""

    named: EventSelector
    cursor: str | None
    most: int


class _EventArguments(Struct, forbid_unknown_fields=True):
    min_severity: Severity | None = None


class _EventParams(Struct):
    name: str
    arguments: _EventArguments | None = None


class _WebhookDeliveryParams(Struct):
    url: str
    mode: str = WEBHOOK
    secret: str | None = None


class _WebhookSubscribeParams(_EventParams, kw_only=True, rename={"ttl_ms": "ttlMs"}):
    delivery: _WebhookDeliveryParams
    ttl_ms: int | None = None


class _EventPollParams(_EventParams, rename={"most": "maxEvents"}):
    cursor: str | None = None
    most: int = MOST_EVENTS


def decode_subscribe_params(params: Mapping[str, Raw]) -> SubscribeParams:
    """Decode the params of `events/subscribe`. Raises MalformedMessage."""
    said = _read(params, _WebhookSubscribeParams)
    if said.delivery.mode != WEBHOOK:
        reason = "events/subscribe is for webhooks; to poll, use events/poll"
        raise MalformedMessage(reason, MODE_UNSUPPORTED)
    if said.ttl_ms is not None and said.ttl_ms <= 0:
        raise MalformedMessage("ttlMs must be a number of milliseconds, or null", INVALID_PARAMS)
    lasts = None if said.ttl_ms is None else timedelta(milliseconds=min(said.ttl_ms, MAX_MS))
    return SubscribeParams(_selector(said), _url(said.delivery.url), said.delivery.secret, lasts)


def decode_unsubscribe_params(params: Mapping[str, Raw]) -> tuple[EventSelector, str]:
    """Decode the selected events and the URL of a subscription. Raises MalformedMessage."""
    said = _read(params, _WebhookSubscribeParams)
    return _selector(said), _url(said.delivery.url)


def decode_poll_params(params: Mapping[str, Raw]) -> PollParams:
    """Decode the params of `events/poll`. Raises MalformedMessage."""
    said = _read(params, _EventPollParams)
    if said.cursor is not None and len(said.cursor) > MAX_CURSOR_LENGTH:
        raise MalformedMessage("this cursor is invalid", INVALID_PARAMS)
    return PollParams(_selector(said), said.cursor, min(max(said.most, 1), MOST_EVENTS))


def describe_channel(channel: EventChannel) -> dict[str, object]:
    """Describe a channel for `events/list`."""
    return {
        "name": channel.name,
        "description": channel.description,
        "delivery": list(MODES),
        "inputSchema": _INPUT,
        "payloadSchema": channel.schema or _PAYLOAD,
        "_meta": {f"{OURS}severity": channel.severity},
    }


def to_occurrence(event: GatewayEvent, cursor: str | None = None) -> dict[str, object]:
    """Build the form of an event that all delivery modes share."""
    ours: dict[str, object] = {f"{OURS}severity": event.severity}
    if event.source:
        ours[f"{OURS}server"] = event.source
    return {
        "eventId": event.id,
        "name": event.channel,
        "timestamp": format_timestamp(event.at),
        "data": event.data,
        "cursor": cursor,
        "_meta": ours,
    }


def build_subscribe_result(
    id: str, until: datetime | None, status: Mapping[str, object]
) -> dict[str, object]:
    """Build the result of a subscription.

    Delivery cannot resume at a position, so there is no cursor.
    """
    return {
        "id": id,
        "refreshBefore": None if until is None else format_timestamp(until),
        "cursor": None,
        "truncated": False,
        **({"deliveryStatus": status} if status else {}),
    }


def build_poll_result(
    found: Sequence[Mapping[str, object]], cursor: str, *, is_truncated: bool, has_more: bool
) -> dict[str, object]:
    """Build the result of a poll."""
    return {
        "events": list(found),
        "cursor": cursor,
        "truncated": is_truncated,
        "hasMore": has_more,
        "nextPollMs": NEXT_POLL_MS,
    }


def _selector(said: _EventParams) -> EventSelector:
    if not (is_channel(said.name) or is_pattern(said.name)):
        reason = "name must be a channel as tool.completed, a family as tool.*, or *"
        raise MalformedMessage(reason, INVALID_PARAMS)
    least = None if said.arguments is None else said.arguments.min_severity
    return EventSelector(said.name, least or Severity.DEBUG)


def _url(text: str) -> str:
    if not 0 < len(text) <= MAX_URL_LENGTH:
        reason = f"delivery.url must have 1 to {MAX_URL_LENGTH} characters"
        raise MalformedMessage(reason, INVALID_PARAMS)
    return text


def _read[T](params: Mapping[str, Raw], kind: type[T]) -> T:
    known = {name: jsonrpc.decode_value(raw) for name, raw in params.items() if name != "_meta"}
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"{error}"[:300], INVALID_PARAMS) from None


SECRET: Final = "whsec_"  # noqa: S105  # how every one begins
MIN_SECRET: Final = 24
MAX_SECRET: Final = 64
PATIENT: Final = 3
RETRIES: Final = RetrySchedule(
    timedelta(seconds=5), timedelta(hours=1), give_up_after=timedelta(days=3)
)
MAX_BODY: Final = 256 * 1024
SHORTEST: Final = timedelta(minutes=1)
"""The minimum duration of a subscription."""

GONE: Final = 410
TOO_LARGE: Final = 413


class DeliveryVerdict(StrEnum):
    """The meaning of a receiver's response."""

    DELIVERED = "delivered"
    AGAIN = "again"
    NEVER = "never"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The hosts that an operator permits in addition to the public network."""

    hosts: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset({443})


def parse_target(url: str, allowed_hosts: AllowedHosts) -> WebhookTarget:
    """Parse and check a URL. Raises MalformedMessage with the reason."""
    if not (url.isascii() and url.isprintable()) or set(url) & set(' \\"<>^`{|}#'):
        raise _wrong("it holds signs that readers of URLs treat differently")
    if len(url) > MAX_URL_LENGTH:
        raise _wrong(f"it has over {MAX_URL_LENGTH} characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _wrong("it cannot be read") from None
    if host is None or "@" in parts.netloc:
        raise _wrong("it must name a host, and no user before it")
    problem, _ = network.host_problem(host, allowed_hosts.hosts)
    if problem is not None:
        raise _wrong(problem)
    plain = network.plain_host(host) or host
    is_named = network.is_among(plain, allowed_hosts.hosts)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_named):
        raise _wrong("it must begin with https://")
    port = (443 if parts.scheme == "https" else 80) if port is None else port
    if not is_named and port not in allowed_hosts.ports:
        ports = ", ".join(str(each) for each in sorted(allowed_hosts.ports))
        raise _wrong(f"its port must be one of {ports}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookTarget(parts.scheme, plain.strip("[]"), port, path, is_named)


def address_problem(target: WebhookTarget, answers: Sequence[str]) -> str | None:
    """Return why Comity may not connect to the resolved addresses, or None."""
    if target.is_named:
        return None if answers else "its host cannot be resolved"
    return network.answers_problem(answers)


def secret_of(text: str) -> bytes:
    """Decode the secret that signs messages. Raises MalformedMessage."""
    try:
        found = base64.b64decode(text.removeprefix(SECRET), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not text.startswith(SECRET) or not MIN_SECRET <= len(found) <= MAX_SECRET:
        reason = f"delivery.secret must be {SECRET} and base64 of 24 to 64 random bytes"
        raise MalformedMessage(reason, INVALID_PARAMS)
    return found


def secret_text(secret: bytes) -> str:
    return SECRET + base64.b64encode(secret).decode()


def build_signature_headers(
    secrets: Iterable[bytes], subscription: str, id: str, at: datetime, body: bytes
) -> Mapping[str, str]:
    """Build the headers of Standard Webhooks, with one signature for each secret."""
    moment = str(int(at.timestamp()))
    signed = f"{id}.{moment}.".encode() + body
    made = (hmac.digest(secret, signed, hashlib.sha256) for secret in secrets)
    return {
        WEBHOOK_ID: id,
        WEBHOOK_TIMESTAMP: moment,
        WEBHOOK_SIGNATURE: " ".join(f"v1,{base64.b64encode(each).decode()}" for each in made),
        SUBSCRIPTION_ID_HEADER: subscription,
    }


def subscription_id(party: str, url: str, named: EventSelector) -> str:
    """Return the id for a principal, URL and event selection. Knowledge of it grants no access."""
    whole = msgspec.json.encode([party, url, named.name, named.arguments], order="deterministic")
    return f"sub_{hashlib.sha256(whole).hexdigest()[:32]}"


def subscription_expiry(
    lifetime: timedelta | None, now: datetime, max_duration: timedelta
) -> datetime:
    """Return when a subscription ends unless it is renewed."""
    return now + min(max(lifetime or max_duration, SHORTEST), max_duration)


def delivery_verdict(status: int) -> DeliveryVerdict:
    """Return what a response status means for a message."""
    if 200 <= status < 300:
        return DeliveryVerdict.DELIVERED
    return {GONE: DeliveryVerdict.GONE, TOO_LARGE: DeliveryVerdict.NEVER}.get(
        status, DeliveryVerdict.AGAIN
    )


def problem_of(status: int) -> DeliveryProblem:
    """Return the problem for an unsuccessful status."""
    families = {
        3: DeliveryProblem.STATUS_3XX,
        4: DeliveryProblem.STATUS_4XX,
        5: DeliveryProblem.STATUS_5XX,
    }
    return families.get(status // 100, DeliveryProblem.NO_HTTP)


def is_challenge_echo(body: bytes, challenge: str) -> bool:
    """Whether a receiver returned the challenge, and so agrees to receive messages."""
    try:
        said = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    found = said.get("challenge")
    return isinstance(found, str) and hmac.compare_digest(found.encode(), challenge.encode())


class NextAttempt(NamedTuple):
    """When to retry a message (None: never), and until when to pause the receiver."""

    due_at: datetime | None
    rest_until: datetime


class AttemptHistory(NamedTuple):
    """The failures of one message, the consecutive failures of its receiver, and its age."""

    attempts: int
    failures: int
    since: datetime


def after_failure(
    schedule: RetrySchedule,
    history: AttemptHistory,
    now: datetime,
    chance: float,
    asked: timedelta = timedelta(0),
) -> NextAttempt:
    """Return the next attempt after a failure. `asked` is the pause that the receiver requests."""
    alone = max(schedule.delay(history.failures, chance), min(asked, schedule.max_delay))
    rest = now + alone
    if schedule.is_exhausted(history.attempts, now - history.since):
        return NextAttempt(None, rest)
    if history.attempts < PATIENT:
        return NextAttempt(rest, rest)
    return NextAttempt(rest + schedule.delay(history.attempts - PATIENT + 1, chance), rest)


def is_given_up(disable_after: timedelta, failing_since: datetime | None, now: datetime) -> bool:
    """Whether a receiver has failed for so long that Comity posts nothing more to it."""
    return failing_since is not None and now - failing_since >= disable_after


def _wrong(reason: str) -> MalformedMessage:
    return MalformedMessage(f"delivery.url cannot be posted to: {reason}", INVALID_PARAMS)


PAGE: Final = 250


class JournalCursor(NamedTuple):
    """How far an audit chain has been searched for events before and after a step."""

    chain: str
    seen: int
    upto: int


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of a claim: the subscription and each message that was tried.

    `delivered` holds numbers of messages, and `tried` holds changed messages. No node tries again
    before `rest_until`.
    """

    subscription: WebhookSubscription
    at: datetime
    delivered: tuple[int, ...] = ()
    tried: tuple[WebhookMessage, ...] = ()
    rest_until: datetime | None = None


class WebhookStore(Protocol):
    @property
    def jobs(self) -> WorkQueue:
        """The work queue, with one job for each subscription with waiting messages.

        The key of a job is the id of the subscription.
        """
        ...

    async def put(self, subscription: WebhookSubscription) -> None:
        """Write a subscription, or renew the end, the secrets and the state of an existing one.

        Its waiting messages and their history remain.
        """
        ...

    async def get(self, id: str) -> WebhookSubscription | None: ...

    async def list_of_party(self, party: str) -> Sequence[WebhookSubscription]: ...

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[WebhookSubscription]:
        """Return subscriptions in order of id, beginning after `after`."""
        ...

    async def remove(self, id: str) -> bool:
        """Delete a subscription and its waiting messages."""
        ...

    async def initialize_marks(self) -> None:
        """Without any subscription, mark every audit chain as searched to its end."""
        ...

    async def marks(self) -> Mapping[str, int]: ...

    async def add(
        self, messages: Sequence[WebhookMessage], maximum: int, cursor: JournalCursor | None = None
    ) -> bool:
        """Store messages, up to `maximum` for each subscription.

        Further messages are only counted as dropped. Returns False without any change if another
        node has moved the mark.
        """
        ...

    async def due(self, id: str, now: datetime, limit: int) -> Sequence[WebhookMessage]:
        """Return the due messages in order of writing."""
        ...

    async def settle(self, job: QueuedJob, result: DeliveryResult) -> bool:
        """Write the result of a claim and end it. Returns False if the claim has been lost."""
        ...

    async def postpone(self, job: QueuedJob, due_at: datetime) -> bool:
        """End a claim without a result. Returns False if the claim has been lost."""
        ...

    async def posts(self, id: str, after: int = 0, limit: int = PAGE) -> Sequence[WebhookMessage]:
        """Return the waiting and failed messages, by number."""
        ...

    async def retry(self, id: str, now: datetime) -> int:
        """Queue all failed messages again, and activate the subscription. Returns their number."""
        ...

    async def prune(self, now: datetime, remembered: datetime) -> Sequence[WebhookSubscription]:
        """Delete ended subscriptions, and delivered messages from before `remembered`."""
        ...


class HttpReply(NamedTuple):
    """The response of a receiver. `again_in` is the pause that the receiver requests."""

    status: int
    again_in: timedelta = timedelta(0)
    body: bytes = b""


class WebhookSender(Protocol):
    """Posts a message once, in bounded time, and only to its target."""

    async def post(
        self, target: WebhookTarget, heading: Mapping[str, str], body: bytes, maximum: int = 0
    ) -> HttpReply | DeliveryProblem:
        """Post a body. Returns the response with `maximum` bytes at most, or the problem."""
        ...


def checked_subscription(found: WebhookSubscription) -> WebhookSubscription:
    for text, what in ((found.id, "id"), (found.party, "principal"), (found.name, "event")):
        check_name(text, f"a webhook's {what}")
    if len(found.url) > 8 * NAME_BYTES or UNNAMEABLE.search(found.url):
        raise refused_value("a webhook's URL is too long, or holds a control character")
    return replace(
        found,
        credential=clean_words(found.credential),
        last_error=clean_words(found.last_error),
        created_at=to_utc(found.created_at),
        expires_at=to_optional_utc(found.expires_at),
        rotated_until=to_optional_utc(found.rotated_until),
    )


def checked_message(found: WebhookMessage) -> WebhookMessage:
    """Return a message with checked fields."""
    check_name(found.event, "an event's id")
    at, due_at = to_utc(found.at), to_utc(found.due_at)
    return replace(found, at=at, due_at=due_at, last_error=clean_words(found.last_error))
