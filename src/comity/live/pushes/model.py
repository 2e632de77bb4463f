"""Push events, their routes, and the verification of inbound webhooks."""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec
from msgspec import Raw, Struct

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.events.webhooks.model import (
    WEBHOOK_ID,
    WEBHOOK_SIGNATURE,
    WEBHOOK_TIMESTAMP,
)
from comity.inference.messages import Content, content_in
from comity.mcp import jsonrpc
from comity.storage.values import check_name, clean_words, to_optional_utc, to_utc
from comity.toolkit.jobs import JobOutcome, JobState, QueuedJob, WorkClaim, WorkQueue
from comity.toolkit.patterns import covers_feature
from comity.toolkit.resilience import RetrySchedule

PUSH: Final = "push/event"
MAX_ID_LENGTH: Final = 200
WEBHOOK_SERVER_PREFIX: Final = "hook:"
"""The prefix of the names of inbound webhooks, which take the place of a server's name."""


@dataclass(frozen=True, slots=True)
class Push:
    """An event. Its server and its id identify it permanently. (D-99)"""

    server: str
    id: str
    at: datetime
    content: Content
    feature: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def key(self) -> str:
        """The key of the event, also as the cause of a turn. No server id contains a `/`."""
        return f"push:{self.server}/{self.id}"


class PushTarget(StrEnum):
    """The effect of a push."""

    NOTHING = "nothing"
    EVENTS = "events"
    TOPIC = "topic"
    WEBHOOKS = "webhooks"
    TURN = "turn"


@dataclass(frozen=True, slots=True)
class PushRoute:
    """The target of one push. `place` is the topic. The other fields are for turns."""

    to: PushTarget
    place: str = ""
    conversation: str = ""
    principal: str = ""
    reply_to: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.to}:{self.place}" if self.place else str(self.to)


@dataclass(frozen=True, slots=True)
class StoredPush:
    """An admitted push, its route and its progress.

    The content is deleted once the push is done.
    """

    push: Push
    route: PushRoute
    received_at: datetime
    due_at: datetime
    number: int = 0
    state: JobState = JobState.WAITING
    attempts: int = 0
    inference: str = ""
    last_error: str = ""
    done_at: datetime | None = None


class _PushPayload(Struct):
    content: Raw


class _PushParams(Struct):
    set: str = msgspec.field(name="featureSet")
    id: str = msgspec.field(name="eventId")
    timestamp: str
    payload: _PushPayload
    origin: dict[str, Any] | None = None


def push_in(server: str, params: Raw) -> Push:
    """Decode an event from a server. Raises MalformedMessage."""
    jsonrpc.decode_value(params)
    try:
        found = jsonrpc.decode_shape(params, _PushParams)
        at = datetime.fromisoformat(found.timestamp)
    except (msgspec.DecodeError, ValueError) as problem:
        raise MalformedMessage(f"{PUSH}: {problem!s:.200}", INVALID_PARAMS) from None
    if not 0 < len(found.id) <= MAX_ID_LENGTH or not found.id.isprintable():
        raise MalformedMessage(
            f"{PUSH}: eventId has 1 to {MAX_ID_LENGTH} characters", INVALID_PARAMS
        )
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    content = content_in(found.payload.content, "payload.content")
    return Push(server, found.id, at, content, found.set, found.origin or {})


def build_push_result(inference: str = "") -> dict[str, object]:
    return {"accepted": True, **({"inferenceId": inference} if inference else {})}


def build_push_refusal(reason: str, inference: str = "") -> dict[str, object]:
    """Return the answer for a push that a policy refuses.

    A server that may not push at all gets an error instead. (D-60) For a duplicate, `inference` is
    the turn of the first copy.
    """
    told = {"inferenceId": inference} if inference else {}
    return {"accepted": False, "reason": reason, **told}


TOLERANCE: Final = timedelta(minutes=5)
MIN_SECRET_BYTES: Final = 16
SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # how those of Standard Webhooks begin
BODY_ID_SOURCE: Final = "body"
HEADER_ID_PREFIX: Final = "header:"
ALGORITHMS: Final = ("sha256", "sha384", "sha512")

GITHUB_SIGNATURE: Final = b"x-hub-signature-256"
GITHUB_DELIVERY: Final = "x-github-delivery"
GITHUB_EVENT: Final = b"x-github-event"
GITLAB_TOKEN: Final = b"x-gitlab-token"
GITLAB_KEY: Final = "idempotency-key"
GITLAB_UUID: Final = "x-gitlab-event-uuid"
GITLAB_EVENT: Final = b"x-gitlab-event"

type HeaderMapping = Mapping[bytes, bytes]
"""Headers by their lowercase names."""


class WebhookKind(StrEnum):
    """The scheme by which a webhook is signed."""

    GITHUB = "github"
    GITLAB = "gitlab"
    STANDARD = "standard"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True, repr=False)
class WebhookSignature:
    """The kind and the secrets of a webhook. Several secrets are valid during a rotation.

    `header` and `algorithm` are for the plain kind: the HMAC of the body in hexadecimal or Base64,
    with an optional prefix such as `sha256=`.
    """

    kind: WebhookKind
    secrets: tuple[bytes, ...]
    header: str = ""
    algorithm: str = "sha256"


def is_signed(
    signing: WebhookSignature, headers: HeaderMapping, body: bytes, now: datetime
) -> bool:
    """Whether the request is signed with one of the secrets."""
    match signing.kind:
        case WebhookKind.GITHUB:
            shown = headers.get(GITHUB_SIGNATURE, b"")
            made = [_hex("sha256", secret, body) for secret in signing.secrets]
            return _matches_any([shown], [b"sha256=" + each for each in made])
        case WebhookKind.GITLAB:
            # compare_digest reveals whether the lengths differ. Digests have equal lengths.
            shown = _digest(headers.get(GITLAB_TOKEN, b""))
            return _matches_any([shown], [_digest(secret) for secret in signing.secrets])
        case WebhookKind.STANDARD:
            return _is_standard(signing.secrets, headers, body, now)
        case WebhookKind.PLAIN:
            return _is_plain(signing, headers, body)


def _is_standard(
    secrets: Iterable[bytes], headers: HeaderMapping, body: bytes, now: datetime
) -> bool:
    id = headers.get(WEBHOOK_ID.encode(), b"")
    at = headers.get(WEBHOOK_TIMESTAMP.encode(), b"")
    signed = b"%b.%b.%b" % (id, at, body)
    made = [
        b"v1," + base64.b64encode(hmac.digest(_key(secret), signed, "sha256")) for secret in secrets
    ]
    shown = headers.get(WEBHOOK_SIGNATURE.encode(), b"").split(b" ")[:16]
    return _matches_any(shown, made) and bool(id) and _is_recent(at, now)


def _is_recent(at: bytes, now: datetime) -> bool:
    if not at.isdigit() or len(at) > 12:
        return False
    return abs(now.timestamp() - int(at)) <= TOLERANCE.total_seconds()


def _is_plain(signing: WebhookSignature, headers: HeaderMapping, body: bytes) -> bool:
    shown = headers.get(signing.header.encode(), b"").strip()
    shown = shown.removeprefix(signing.algorithm.encode() + b"=")
    made = [hmac.digest(secret, body, signing.algorithm) for secret in signing.secrets]
    in_digits = [each.hex().encode() for each in made]
    # `|` evaluates both sides, so the time does not reveal the encoding that matched.
    return _matches_any([shown.lower()], in_digits) | _matches_any(
        [shown], map(base64.b64encode, made)
    )


def _matches_any(shown: Iterable[bytes], made: Iterable[bytes]) -> bool:
    """Whether any pair matches. All pairs are compared, so the time does not reveal which one."""
    wanted, found = list(made), False
    for each in shown:
        for one in wanted:
            found |= hmac.compare_digest(each, one)
    return found


def _hex(algorithm: str, secret: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, body, algorithm).hex().encode()


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _key(secret: bytes) -> bytes:
    """Decode a secret of the form `whsec_...`. Other secrets are used as they are."""
    if not secret.startswith(SECRET_PREFIX.encode()):
        return secret
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX.encode()), validate=True)
    except binascii.Error:
        return secret


# The id and the type of an event.

_DEFAULT_ID_SOURCES: Final[Mapping[WebhookKind, tuple[str, ...]]] = {
    WebhookKind.GITHUB: (f"{HEADER_ID_PREFIX}{GITHUB_DELIVERY}",),
    # GitLab keeps the first one across retries. Versions before 17.4 do not send it.
    WebhookKind.GITLAB: (
        f"{HEADER_ID_PREFIX}{GITLAB_KEY}",
        f"{HEADER_ID_PREFIX}{GITLAB_UUID}",
        BODY_ID_SOURCE,
    ),
    WebhookKind.STANDARD: (f"{HEADER_ID_PREFIX}{WEBHOOK_ID}",),
    WebhookKind.PLAIN: (BODY_ID_SOURCE,),
}
_EVENT_TYPE_HEADERS: Final[Mapping[WebhookKind, bytes]] = {
    WebhookKind.GITHUB: GITHUB_EVENT,
    WebhookKind.GITLAB: GITLAB_EVENT,
}


def default_id_sources(kind: WebhookKind) -> tuple[str, ...]:
    """Return where a kind of webhook puts the event id. The first one present counts."""
    return _DEFAULT_ID_SOURCES[kind]


def header_of(headers: HeaderMapping, name: str) -> str:
    return headers.get(name.lower().encode(), b"").decode("latin-1").strip()


def type_of(kind: WebhookKind, headers: HeaderMapping) -> str:
    """Return the sender's name for the type of event. Empty if the kind has no such header."""
    said = headers.get(_EVENT_TYPE_HEADERS.get(kind, b""), b"").decode("latin-1")
    return said[:100] if said.isprintable() else ""


def digest_of(body: bytes) -> str:
    return f"sha256-{hashlib.sha256(body).hexdigest()}"


MAX_FIELD_LENGTH: Final = 2_000
MAX_TEXT_LENGTH: Final = 20_000
MAX_NAME_LENGTH: Final = 200
MAX_FIELDS: Final = 50
RETRIES: Final = RetrySchedule(
    timedelta(seconds=1), timedelta(minutes=5), give_up_after=timedelta(days=1)
)
_FIELD_PATTERN: Final = re.compile(r"\{([^{}\x00-\x1f]{1,200})\}")
_NAMED_FIELDS: Final = frozenset({"event", "server", "feature", "type"})


class PushRouteRule(NamedTuple):
    """An operator's rule for pushes. The conversation of its route may be a template."""

    server: str
    feature: str
    route: PushRoute


@dataclass(frozen=True, slots=True)
class InboundWebhookConfig:
    """An operator's configuration of a webhook at /hooks/NAME."""

    name: str
    kind: WebhookKind
    secret_file: str
    route: PushRoute
    header: str = ""
    algorithm: str = "sha256"
    # The location of the event id and a template for the content. The defaults are the location for
    # the kind and the whole body.
    id: str = ""
    content: str = ""


def route_of(rows: Iterable[PushRouteRule], push: Push) -> PushRoute | None:
    """Return the route of a push. None if no rule covers it."""
    for row in rows:
        if row.server in ("*", push.server) and covers_feature(row.feature, push.feature):
            return resolve_route(row.route, push, push.origin)
    return None


def resolve_route(route: PushRoute, push: Push, fields: object) -> PushRoute:
    """Return the route of one push, with the template of its conversation filled in."""
    if not is_template(route.conversation):
        return route
    said = fill_template(route.conversation, push, fields)
    plain = "".join(each if each.isprintable() else " " for each in said).strip()
    name = f"{push.server}/{plain or push.id}"
    if len(name) > MAX_NAME_LENGTH:
        # A name that is only truncated could collide with another one.
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]
        name = f"{name[: MAX_NAME_LENGTH - 17]}-{digest}"
    return replace(route, conversation=name)


# Templates: `{/a/b}` is a JSON pointer, `{event}`, `{server}`, `{feature}` and `{type}` are names.


def is_template(text: str) -> bool:
    return _FIELD_PATTERN.search(text) is not None


def template_problem(text: str) -> str:
    """Return what is wrong with a template. Empty if it is valid."""
    fields = _FIELD_PATTERN.findall(text)
    if len(fields) > MAX_FIELDS:
        return f"has more than {MAX_FIELDS} fields"
    if any(field not in _NAMED_FIELDS and not field.startswith("/") for field in fields):
        return "has a field that is no pointer, as {/a/b}, nor {event}, {server} or {feature}"
    return ""


def fill_template(template: str, push: Push, fields: object) -> str:
    """Return the template with all fields filled in."""
    names = {
        "event": push.id,
        "server": push.server,
        "feature": push.feature,
        "type": str(push.origin.get("type", "")),
    }

    def put(found: re.Match[str]) -> str:
        field = found[1]
        return names[field] if field in names else value_text(resolve_pointer(fields, field))

    return _FIELD_PATTERN.sub(put, template)[:MAX_TEXT_LENGTH]


def resolve_pointer(value: object, pointer: str) -> object:
    """Return the value at a JSON pointer, or None. (RFC 6901)"""
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


def value_text(value: object) -> str:
    """Return a value as text. Values other than strings become JSON."""
    if value is None:
        return ""
    said = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return (
        said
        if len(said) <= MAX_FIELD_LENGTH
        else f"{said[:MAX_FIELD_LENGTH]}\N{HORIZONTAL ELLIPSIS}"
    )


# Retries.


def outcome_of_failure(
    stored_push: StoredPush, reason: str, now: datetime, schedule: RetrySchedule, chance: float
) -> JobOutcome:
    """Return the outcome of a failed attempt: a retry, or failure once retries are exhausted."""
    if schedule.is_exhausted(stored_push.attempts, now - stored_push.received_at):
        return JobOutcome(JobState.FAILED, now, reason[:300])
    due_at = now + schedule.delay(stored_push.attempts, chance)
    return JobOutcome(JobState.WAITING, due_at, reason[:300])


PUSH_PAGE: Final = 100


class PushAdmission(NamedTuple):
    """The stored push. `is_new` is false if it was stored before.

    `job` is set if this node has claimed the push.
    """

    stored_push: StoredPush
    is_new: bool
    job: QueuedJob | None = None


class PushStore(Protocol):
    """Stores pushes as jobs of a work queue."""

    @property
    def jobs(self) -> WorkQueue: ...

    async def add(
        self, stored_push: StoredPush, claim: WorkClaim | None, max_waiting: int
    ) -> PushAdmission | None:
        """Store a push unless it exists.

        Return None if too many pushes of its server are waiting.
        """
        ...

    async def get(self, server: str, id: str) -> StoredPush | None: ...

    def read(self, job: QueuedJob) -> StoredPush:
        """Return the push of a job."""
        ...

    async def settle(self, job: QueuedJob, outcome: JobOutcome) -> bool:
        """Store the outcome of a claim and end it. Return False if the claim was lost."""
        ...

    async def page(
        self, before: int = 0, limit: int = PUSH_PAGE, server: str = ""
    ) -> Sequence[StoredPush]:
        """Return pushes before this number, newest first, of one server or all."""
        ...

    async def count_by_state(self) -> Mapping[JobState, int]: ...

    async def retry(self, number: int, now: datetime) -> bool:
        """Queue a failed push again. Return False if there is none."""
        ...

    async def prune(self, ended_before: datetime) -> int:
        """Delete pushes that ended before then, and return how many."""
        ...


def checked_push(found: StoredPush) -> StoredPush:
    """Return a push that can be stored. Raises MalformedMessage."""
    check_name(found.push.server, "a push's server")
    check_name(found.push.id, "a push's id")
    check_name(found.push.feature or "-", "a push's feature set")
    return replace(
        found,
        push=replace(found.push, at=to_utc(found.push.at)),
        received_at=to_utc(found.received_at),
        due_at=to_utc(found.due_at),
        done_at=to_optional_utc(found.done_at),
        inference=clean_words(found.inference),
        last_error=clean_words(found.last_error),
    )
