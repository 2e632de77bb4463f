"""Admits each push and inbound webhook once, and carries out its effect."""

import asyncio
import logging
import secrets
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, cast

import msgspec

from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.cluster.bus import FirstSeenStore
from comity.errors import (
    INVALID_PARAMS,
    UPSTREAM_DOWN,
    MalformedMessage,
    Misconfigured,
    Unavailable,
)
from comity.events.bus import EventBus
from comity.events.model import GatewayEvent, Severity
from comity.events.standard_channels import PUSHED
from comity.inference.messages import text_of, to_text_content, to_wire
from comity.live.audit import LiveAuditEntry, record_entry
from comity.live.host import LiveMessage
from comity.live.pushes import model as rules
from comity.live.pushes.model import (
    BODY_ID_SOURCE,
    HEADER_ID_PREFIX,
    MAX_ID_LENGTH,
    MAX_TEXT_LENGTH,
    PUSH,
    RETRIES,
    WEBHOOK_SERVER_PREFIX,
    HeaderMapping,
    Push,
    PushAdmission,
    PushRoute,
    PushRouteRule,
    PushStore,
    PushTarget,
    StoredPush,
    WebhookKind,
    WebhookSignature,
    build_push_refusal,
    build_push_result,
    default_id_sources,
    digest_of,
    fill_template,
    header_of,
    is_signed,
    push_in,
    resolve_pointer,
    resolve_route,
    route_of,
    type_of,
)
from comity.live.turns.model import TurnCause, TurnOrigin, TurnRequest, TurnStarter
from comity.mcp import jsonrpc
from comity.mcp.actors import GATEWAY, PrincipalKind
from comity.policy.risk import SERVER_SUBJECT_PREFIX
from comity.toolkit.jobs import JobOutcome, JobState, QueuedJob
from comity.toolkit.resilience import RateLimit, RateLimiter, RetrySchedule
from comity.toolkit.text import format_timestamp
from comity.toolkit.work_queue import RunnerSettings, WorkQueueRunner
from comity.topics import envelope as wire
from comity.topics.envelope import EnvelopeHeader
from comity.topics.service import TopicService
from comity.topics.topic import Now, TopicMessage

log = logging.getLogger(__name__)

POLL_INTERVAL: Final = timedelta(seconds=1)
LEASE: Final = timedelta(seconds=30)
DEADLINE: Final = timedelta(seconds=10)
"""The timeout of one effect. It is well below the lease, so that two nodes rarely run the same."""

MAX_ACTIVE: Final = 64
"""The number of pushes that a node works on at once. Any node may claim the others."""

PRUNE_INTERVAL: Final = timedelta(minutes=10)

type Effect = Callable[[StoredPush], Awaitable[str]]
"""Carries out a push and returns the id of the turn that it starts, if any.

Raises Unavailable if a retry may help, and MalformedMessage if not.
"""


@dataclass(frozen=True, slots=True)
class PushTimeouts:
    """The timeouts and retries of pushes."""

    lease: timedelta = LEASE
    deadline: timedelta = DEADLINE
    poll_interval: timedelta = POLL_INTERVAL
    retention: timedelta = timedelta(days=30)
    retries: RetrySchedule = RETRIES


class PushWorker:
    """Carries out pushes that any node has admitted, at this node."""

    def __init__(
        self,
        store: PushStore,
        effects: Mapping[PushTarget, Effect],
        audit: AuditLog | None,
        clock: Callable[[], datetime],
        timeouts: PushTimeouts | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self._effects = effects
        self._audit = audit
        self._timeouts = timeouts or PushTimeouts()
        # For callers that wait for the turn that a push starts.
        self._inferences: dict[int, asyncio.Future[str]] = {}
        self.runner = WorkQueueRunner(
            "pushes",
            store.jobs,
            self._handle,
            RunnerSettings(
                MAX_ACTIVE,
                lease=self._timeouts.lease,
                poll_interval=self._timeouts.poll_interval,
                prune_interval=PRUNE_INTERVAL,
            ),
            clock=clock,
            prune=self._prune,
        )

    def start(self, job: QueuedJob) -> asyncio.Future[str]:
        """Start work on a push that this node has claimed. The future yields the id of its turn."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._inferences[job.number] = future
        self.runner.start(job)
        return future

    async def _prune(self, now: datetime) -> None:
        await self.store.prune(now - self._timeouts.retention)

    async def _handle(self, job: QueuedJob) -> None:
        future = self._inferences.pop(job.number, None)
        try:
            kept = self.store.read(job)
            outcome = await self._attempt(kept)
            if await self.store.settle(job, outcome):
                self._record_outcome(kept, outcome)
            if future is not None and not future.done():
                future.set_result(outcome.result)
        finally:
            if future is not None:
                future.cancel()

    async def _attempt(self, stored_push: StoredPush) -> JobOutcome:
        try:
            async with asyncio.timeout(self._timeouts.deadline.total_seconds()):
                inference = await self._effects[stored_push.route.to](stored_push)
        except TimeoutError:
            reason = f"{stored_push.route.to} took too long"
        except Unavailable as problem:
            reason = str(problem)
        except (MalformedMessage, Misconfigured) as problem:
            return JobOutcome(JobState.FAILED, self.clock(), str(problem)[:300])
        except Exception:
            log.exception("Processing of a push failed")
            reason = "a bug of the gateway's; see its log"
        else:
            return JobOutcome(JobState.DONE, self.clock(), result=inference)
        chance = secrets.randbelow(1000) / 1000
        return rules.outcome_of_failure(
            stored_push, reason, self.clock(), self._timeouts.retries, chance
        )

    def _record_outcome(self, stored_push: StoredPush, outcome: JobOutcome) -> None:
        """Record success or final failure in the audit log. A retry is only logged."""
        server, error = stored_push.push.server, outcome.last_error
        if outcome.state is JobState.WAITING:
            log.info("a push of %r is tried again: %s", server, error)
            return
        is_done = outcome.state is JobState.DONE
        deed = LiveAuditEntry(
            server,
            feature=stored_push.push.feature,
            inference=outcome.result,
            outcome="ok" if is_done else error,
            by=GATEWAY,
            details={
                "event": stored_push.push.id,
                "to": str(stored_push.route),
                "attempts": stored_push.attempts,
            },
        )
        if is_done:
            record_entry(self._audit, AuditType.PUSH_COMPLETED, deed)
        else:
            log.warning("a push of %r has failed: %s", server, error)
            record_entry(self._audit, AuditType.PUSH_FAILED, deed, AuditResult.FAILURE)


ANSWER_SECONDS: Final = 5.0
"""How long an answer waits for the turn that a push starts. The push is already stored."""

SERVER_RATE_LIMIT: Final = RateLimit(600, 60.0, 600)
DUPLICATE: Final = "duplicate: an event of this id was accepted before"
NO_ROUTE: Final = "no route for this event"
QUEUE_FULL: Final = "too many events of this server wait already; send it again later"


@dataclass(frozen=True, slots=True)
class PushSettings:
    """An operator's limits for pushes: rates, size and queue length."""

    server_rate: RateLimit | None = SERVER_RATE_LIMIT
    feature_set_rate: RateLimit | None = None
    max_bytes: int = 256 * 1024
    max_waiting: int = 10_000
    # Whether the store is persistent and shared by all nodes.
    is_durable: bool = True


class PushService:
    """Admits pushes at this node."""

    def __init__(
        self,
        rows: Sequence[PushRouteRule],
        worker: PushWorker,
        audit: AuditLog | None,
        options: PushSettings | None = None,
        now: Now | None = None,
        *,
        firsts: FirstSeenStore | None = None,
    ) -> None:
        self.worker = worker
        self.settings = options or PushSettings()
        # A store that all nodes share and that knows of an event before the database does.
        self.first_seen = firsts
        self._route_rules = tuple(rows)
        self._audit = audit
        self._limiter = RateLimiter(now or asyncio.get_running_loop().time)

    async def answer(self, message: LiveMessage) -> Mapping[str, object]:
        """Answer `push/event`. Raises MalformedMessage and Unavailable."""
        server = message.live_server.server
        feature = "" if message.feature is None else message.feature.name
        if len(message.params) > self.settings.max_bytes:
            most = self.settings.max_bytes
            raise MalformedMessage(f"{PUSH}: an event has at most {most} bytes", INVALID_PARAMS)
        if server.startswith(WEBHOOK_SERVER_PREFIX):
            raise MalformedMessage(f"{PUSH}: no server is called so", INVALID_PARAMS)
        if reason := self.rate_refusal(server, feature):
            return build_push_refusal(reason)
        push = push_in(server, message.params)
        route = route_of(self._route_rules, push)
        if route is None:
            self.record_refusal(push.server, push.feature, NO_ROUTE)
            return build_push_refusal(NO_ROUTE)
        found = await self.admit(push, route)
        if found is None:
            return build_push_refusal(QUEUE_FULL)
        if not found.is_new:
            return build_push_refusal(DUPLICATE, found.stored_push.inference)
        return build_push_result(await self.start_and_wait(found))

    def rate_refusal(self, server: str, feature: str) -> str:
        """Return why a push is over a rate limit.

        Empty if it is not, and then the push is counted.
        """
        rates = {
            server: self.settings.server_rate,
            f"{server}/{feature}": self.settings.feature_set_rate,
        }
        wait = self._limiter.take({key: rate for key, rate in rates.items() if rate is not None})
        if not wait:
            return ""
        self.record_refusal(server, feature, "rate")
        return f"rate: too many events; try again in {wait:.1f} s"

    async def admit(self, push: Push, route: PushRoute) -> PushAdmission | None:
        """Store a push with its route unless it exists. Return None if too many are waiting."""
        known = await self._find_duplicate(push, route)
        if known is not None:
            return PushAdmission(known, is_new=False)
        now = self.worker.clock()
        kept = StoredPush(push, route, now, now)
        if route.to is PushTarget.NOTHING:
            kept = StoredPush(push, route, now, now, state=JobState.DONE, done_at=now)
        with self.worker.runner.reserve() as claim:
            found = await self.worker.store.add(kept, claim, self.settings.max_waiting)
        if found is None:
            self.record_refusal(push.server, push.feature, "crowded")
        elif found.is_new:
            details = {"event": push.id, "to": str(route)}
            deed = LiveAuditEntry(push.server, PUSH, push.feature, details=details)
            record_entry(self._audit, AuditType.PUSH_RECEIVED, deed)
        return found

    async def start_and_wait(self, admission: PushAdmission) -> str:
        """Start a new push and return the id of its turn.

        Empty if the turn does not start in time.
        """
        inference = self.start(admission)
        if inference is None or admission.stored_push.route.to is not PushTarget.TURN:
            return ""
        with suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.shield(inference)
        return ""

    def start(self, admission: PushAdmission) -> asyncio.Future[str] | None:
        """Start a new push without waiting. Return None if this node has not claimed it."""
        return None if admission.job is None else self.worker.start(admission.job)

    def record_refusal(self, server: str, feature: str, reason: str) -> None:
        deed = LiveAuditEntry(server, PUSH, feature, outcome=reason.partition(":")[0])
        record_entry(
            self._audit, AuditType.PUSH_REFUSED, deed, AuditResult.BLOCKED, is_limited=True
        )

    async def _find_duplicate(self, push: Push, route: PushRoute) -> StoredPush | None:
        """Return the stored push if another node saw this event first."""
        if self.first_seen is None:
            return None
        try:
            if await self.first_seen.is_first(push.key):
                return None
        except Unavailable:
            if not self.settings.is_durable:
                raise
            return None
        found = await self.worker.store.get(push.server, push.id)
        if found is None and not self.settings.is_durable:
            now = self.worker.clock()
            return StoredPush(push, route, now, now)
        # The node that saw it first may have crashed before it stored the push. Then this copy
        # counts.
        return found


_ENVELOPE_NAMESPACE: Final = uuid.UUID("6f1f6f0e-6f43-4f0a-9a38-0d0b8a2c5a11")
"""The namespace from which the ids of envelopes are derived."""

type TurnStarterGetter = Callable[[], TurnStarter | None]


def build_effects(
    events: EventBus, topics: TopicService, turns: TurnStarterGetter, party: str = ""
) -> Mapping[PushTarget, Effect]:
    """Return the effect of each target. `party` is the default principal of turns."""

    async def nothing(_: StoredPush) -> str:
        return ""

    return {
        PushTarget.NOTHING: nothing,
        PushTarget.EVENTS: PushToEvents(events).publish,
        PushTarget.WEBHOOKS: PushToEvents(events).post,
        PushTarget.TOPIC: PushToTopic(topics).post,
        PushTarget.TURN: PushToTurn(turns, party).start_turn,
    }


class PushToEvents:
    """Publishes pushes as gateway events, and to subscribed webhooks."""

    def __init__(self, events: EventBus) -> None:
        self._events = events

    async def publish(self, stored_push: StoredPush) -> str:
        """Publish to current subscribers without retries, and to webhooks through their queue."""
        event = event_of(stored_push)
        await self._post(event)
        self._events.publish(event)
        return ""

    async def post(self, stored_push: StoredPush) -> str:
        await self._post(event_of(stored_push))
        return ""

    async def _post(self, event: GatewayEvent) -> None:
        if self._events.post is None:
            raise Unavailable("webhook subscriptions are not loaded yet", UPSTREAM_DOWN)
        await self._events.post(event)


def event_of(stored_push: StoredPush) -> GatewayEvent:
    """Return the gateway event of a push. Its server and its id identify it. (D-99)"""
    push = stored_push.push
    data: dict[str, object] = {"server_id": push.server, "event_id": push.id}
    data |= {"feature_set": push.feature} if push.feature else {}
    data |= {"timestamp": format_timestamp(push.at), "origin": dict(push.origin)}
    data["content"] = to_wire(push.content)
    about = (push.server, "", "", push.server)
    return GatewayEvent(push.id, PUSHED, stored_push.received_at, Severity.INFO, data, *about)


def author_of(push: Push) -> str:
    """Return the principal that is the author of a push."""
    if push.server.startswith(WEBHOOK_SERVER_PREFIX):
        return f"{PrincipalKind.SYSTEM}:{push.server}"
    return f"{SERVER_SUBJECT_PREFIX}{push.server}"


class PushToTopic:
    """Posts pushes to topics, on every node where the topic has members."""

    def __init__(self, topics: TopicService) -> None:
        self._topics = topics

    async def post(self, stored_push: StoredPush) -> str:
        push, topic = stored_push.push, stored_push.route.place
        room = await self._topics.open(topic)
        id = str(uuid.uuid5(_ENVELOPE_NAMESPACE, push.key))
        if id in room.trail:
            # A process that crashed before it recorded the outcome has already posted it.
            return ""
        payload: dict[str, Any] = {
            "text": text_of(push.content),
            "format": "plain",
            "source": {"server": push.server, "event": push.id, "feature_set": push.feature},
        }
        heading = EnvelopeHeader(id, format_timestamp(stored_push.received_at), (), "")
        envelope = wire.build_envelope(heading, author_of(push), wire.CHAT, payload)
        data = wire.encode_envelope(envelope)
        wire.decode_envelope(data, room.settings.limits)
        said = TopicMessage(data, envelope)
        if room.remote_topic is not None:
            # Other nodes come first. If they cannot be reached, the retry repeats the post for all.
            room.remote_topic.send(topic, said)
        room.deliver(said)
        return ""


class PushToTurn:
    """Starts turns for pushes."""

    def __init__(self, turns: TurnStarterGetter, party: str) -> None:
        self._turn_starter = turns
        self._party = party

    async def start_turn(self, stored_push: StoredPush) -> str:
        turns = self._turn_starter()
        if turns is None:
            raise Unavailable("no model is configured; add one to [[models]]", UPSTREAM_DOWN)
        push, route = stored_push.push, stored_push.route
        if not push.content:
            raise MalformedMessage("a push without content begins no turn", INVALID_PARAMS)
        server = "" if push.server.startswith(WEBHOOK_SERVER_PREFIX) else push.server
        cause = TurnCause(
            TurnOrigin.PUSH, push.key, route.principal or self._party, server, push.feature
        )
        errand = TurnRequest(
            cause, route.conversation, push.content, author_of(push), route.reply_to
        )
        return (await turns.start(errand)).inference


MAX_BODY_DEPTH: Final = 64


@dataclass(frozen=True, slots=True, repr=False)
class InboundWebhook:
    """An inbound webhook with its secrets."""

    name: str
    signing: WebhookSignature
    route: PushRoute
    id: str = ""
    content: str = ""

    @property
    def server(self) -> str:
        return f"{WEBHOOK_SERVER_PREFIX}{self.name}"


class WebhookOutcome(StrEnum):
    """The outcome of a webhook request."""

    KEPT = "kept"
    KNOWN = "known"
    UNSIGNED = "unsigned"
    TOO_MANY = "too many"


class InboundWebhooks:
    """All configured inbound webhooks."""

    def __init__(self, hooks: Iterable[InboundWebhook], pushes: PushService) -> None:
        self._hooks = {each.name: each for each in hooks}
        self._pushes = pushes
        # Requests for unknown webhooks are checked against this, so that they take as long as
        # others.
        self._dummy_signature = WebhookSignature(WebhookKind.GITHUB, (secrets.token_bytes(32),))

    @property
    def max_bytes(self) -> int:
        return self._pushes.settings.max_bytes

    async def receive(self, name: str, headers: HeaderMapping, body: bytes) -> WebhookOutcome:
        """Verify and store a webhook request. Raises MalformedMessage and Unavailable."""
        hook = self._hooks.get(name)
        signing = self._dummy_signature if hook is None else hook.signing
        is_right = is_signed(signing, headers, body, self._pushes.worker.clock())
        if hook is None:
            # The answer does not reveal which webhooks exist to a sender that cannot sign.
            return WebhookOutcome.UNSIGNED
        if not is_right:
            self._pushes.record_refusal(hook.server, "", "unsigned")
            return WebhookOutcome.UNSIGNED
        if self._pushes.rate_refusal(hook.server, ""):
            return WebhookOutcome.TOO_MANY
        push, fields = self._push(hook, headers, body)
        found = await self._pushes.admit(push, resolve_route(hook.route, push, fields))
        if found is None:
            return WebhookOutcome.TOO_MANY
        if not found.is_new:
            return WebhookOutcome.KNOWN
        # The push is stored, so the sender does not wait for its effect.
        self._pushes.start(found)
        return WebhookOutcome.KEPT

    def _push(
        self, hook: InboundWebhook, headers: HeaderMapping, body: bytes
    ) -> tuple[Push, object]:
        fields = _decode_body(body)
        kind = hook.signing.kind
        origin: dict[str, object] = {"hook": hook.name}
        if type := type_of(kind, headers):
            origin["type"] = type
        now = self._pushes.worker.clock()
        push = Push(hook.server, _event_id(hook, headers, body, fields), now, (), "", origin)
        template = hook.content
        text = fill_template(template, push, fields) if template else _body_text(fields)
        return replace(push, content=to_text_content(text)), fields


def _decode_body(body: bytes) -> object:
    if reason := jsonrpc.excess_reason(body, MAX_BODY_DEPTH):
        raise MalformedMessage(reason, INVALID_PARAMS)
    found = jsonrpc.decode_value(body)
    if not isinstance(found, dict | list):
        raise MalformedMessage("the body is no JSON object or array", INVALID_PARAMS)
    return cast("object", found)


def _event_id(hook: InboundWebhook, headers: HeaderMapping, body: bytes, fields: object) -> str:
    """Return the event id from the first location that has one. Raises MalformedMessage."""
    for place in (hook.id,) if hook.id else default_id_sources(hook.signing.kind):
        id = _event_id_from(place, headers, body, fields)
        if id and (len(id) > MAX_ID_LENGTH or not id.isprintable()):
            raise MalformedMessage(
                f"an event's id has 1 to {MAX_ID_LENGTH} characters", INVALID_PARAMS
            )
        if id:
            return id
    raise MalformedMessage("it has no event id", INVALID_PARAMS)


def _event_id_from(place: str, headers: HeaderMapping, body: bytes, fields: object) -> str:
    if place == BODY_ID_SOURCE:
        return digest_of(body)
    if place.startswith(HEADER_ID_PREFIX):
        return header_of(headers, place.removeprefix(HEADER_ID_PREFIX))
    found = resolve_pointer(fields, place)
    is_word = isinstance(found, str | int) and not isinstance(found, bool)
    return str(found) if is_word else ""


def _body_text(fields: object) -> str:
    written = msgspec.json.encode(fields).decode()
    is_long = len(written) > MAX_TEXT_LENGTH
    return f"{written[:MAX_TEXT_LENGTH]}\N{HORIZONTAL ELLIPSIS}" if is_long else written
