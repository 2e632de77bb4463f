"""The audit log: it builds events, queues them and commits them to a hash chain."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Final, TypedDict, Unpack

import msgspec
from msgspec.structs import replace

from comity.audit import chain
from comity.audit.chain import AuditRecord, AuditStore, ChainHead, line_of
from comity.audit.events import AuditEvent, AuditResult, AuditType, body_of, event_of
from comity.errors import AUDIT_LOG_AWAY, MalformedMessage, Misconfigured, Unavailable
from comity.mcp.actors import GATEWAY, Actor, kind_of
from comity.storage import values
from comity.telemetry.tracing import new_trace_id
from comity.toolkit.resilience import RetrySchedule
from comity.toolkit.text import format_timestamp

log = logging.getLogger(__name__)

AT_ONCE: Final = 2_000
"""How many events one commit takes. A larger one would delay the first of them."""

AGAIN: Final = RetrySchedule(timedelta(milliseconds=50), timedelta(seconds=1))
RETRY_AFTER: Final = timedelta(seconds=2)

MAX_NAMES_IN_EVENT: Final = 100
"""How many tools or permissions one event names. For the others it gives the number."""

MAX_EVENTS_AT_ONCE: Final = 100
WINDOW: Final = timedelta(seconds=10)
LEFT_OUT: Final = "left_out"
"""The member of `details` that counts earlier events of the same kind that were not recorded."""

_NO_DETAILS: Final[Mapping[str, object]] = MappingProxyType({})

type Clock = Callable[[], datetime]
type Redact = Callable[[object], object]
type Listener = Callable[[AuditEvent], None]
type Committed = Callable[[Sequence[AuditRecord]], None]


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """How long an event may wait for its commit, and how many may wait.

    After `timeout` without a commit, the store counts as away.
    """

    linger: timedelta = timedelta(milliseconds=50)
    timeout: timedelta = timedelta(seconds=5)
    most_waiting: int = 10_000


class AuditFacts(TypedDict, total=False):
    """The optional members of an event, besides its type, actor and time."""

    server: str
    tool: str
    result: AuditResult
    trace: str
    # The attempt that an intent and its outcome have in common.
    call: str
    details: Mapping[str, object]


@dataclass(slots=True)
class _AuditBatch:
    """The events of one commit, and the futures that wait for it."""

    events: list[AuditEvent] = field(default_factory=list[AuditEvent])
    waiters: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])
    impatient: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])


class AuditLog:
    """The audit log of one node: it builds events, queues them and commits them to the store.

    A domain calls `record` where something happens. Where nothing may follow before the event is
    durable, it passes `event(...)` to `write` or `insist` and awaits the result.
    """

    def __init__(
        self,
        store: AuditStore,
        node: str,
        settings: CommitSettings | None = None,
        clock: Clock = partial(datetime.now, UTC),  # noqa: B008  # it is called for every event
        redact: Redact = lambda value: value,
        *,
        is_durable: bool = True,
    ) -> None:
        self.store = store
        self.node = node
        self.clock = clock
        self.redact = redact
        # Clients and servers can repeat some events at will.
        self.rate_limit = AuditRateLimit(clock)
        self.listeners: list[Listener] = []
        # Called at once, before the commit. They must not show the event to anybody.
        self.event_listeners: list[Listener] = []
        self.commit_listeners: list[Committed] = []
        # Whether the store outlives this process. Otherwise nothing waits for a commit.
        self.is_durable = is_durable
        # Called with the intents of an earlier run whose calls may have run.
        self.doubt_listeners: list[Callable[[Sequence[AuditEvent]], None]] = []
        self._settings = settings or CommitSettings()
        self._batch = _AuditBatch()
        # How many events are not committed yet, and how many may be. Each call compares them.
        self.uncommitted_count = 0
        self.most_waiting = self._settings.most_waiting
        # For the metrics: the committed events, and the commits that failed.
        self.committed_count = 0
        self.failure_count = 0
        self._head: ChainHead | None = None
        self._wakeup = asyncio.Event()
        self._flush_requested = asyncio.Event()
        self._taken: set[str] = set()
        self._failing_since: float | None = None
        self._is_closing = False

    @property
    def is_open(self) -> bool:
        return self._head is not None

    @property
    def head(self) -> ChainHead | None:
        return self._head

    @property
    def has_room(self) -> bool:
        return self.uncommitted_count < self.most_waiting

    def event(  # the facts one by one: `**facts` costs each call a microsecond
        self,
        type: AuditType,
        actor: Actor | str,
        *,
        server: str = "",
        tool: str = "",
        result: AuditResult = AuditResult.SUCCESS,
        trace: str = "",
        call: str = "",
        details: Mapping[str, object] = _NO_DETAILS,
        untrusted: Mapping[str, object] = _NO_DETAILS,
    ) -> AuditEvent:
        """Build an event of this moment.

        `untrusted` are details that hold text from outside: their secrets are removed.
        """
        if untrusted:
            clean = {name: self.redact(value) for name, value in untrusted.items()}
            details = {**clean, **details}
        if isinstance(actor, str):
            party, kind = actor, kind_of(actor)
        else:
            party, kind = actor.party, actor.kind
        return AuditEvent(
            type, party, self.clock(), kind, server, tool, result, trace, call, details
        )

    def record(
        self,
        type: AuditType,
        actor: Actor | str,
        *,
        rate_key: str = "",
        if_room: bool = False,
        untrusted: Mapping[str, object] = _NO_DETAILS,
        **facts: Unpack[AuditFacts],
    ) -> None:
        """Build an event and commit it within a moment.

        With a `rate_key`, a `WINDOW` has at most `MAX_EVENTS_AT_ONCE` events of this type, result
        and key. The next event after it has the number of those that were left out. With
        `if_room`, the event is left out while the queue is full.
        """
        if if_room and not self.has_room:
            return
        if rate_key:
            result = facts.get("result", AuditResult.SUCCESS)
            left_out = self.rate_limit.admit(_rate_name(type, result, rate_key))
            if left_out is None:
                return
            if left_out:
                facts["details"] = {**facts.get("details", _NO_DETAILS), LEFT_OUT: left_out}
        self.enqueue(self.event(type, actor, untrusted=untrusted, **facts))

    def forget_rate(self, rate_key: str) -> None:
        """Drop the counts of a source of events that is gone."""
        for type in AuditType:
            for result in AuditResult:
                self.rate_limit.forget(_rate_name(type, result, rate_key))

    def enqueue(self, event: AuditEvent) -> None:
        """Queue an event for the next commit. An event without a trace gets a new one."""
        if not event.trace:
            event = replace(event, trace=new_trace_id())
        events = self._batch.events
        events.append(event)
        self.uncommitted_count += 1
        for hear in self.event_listeners:
            _call_listener(hear, event)
        if len(events) == 1:
            # The first event of a batch wakes the writer; it takes the later ones as well.
            self._wakeup.set()

    def write(self, event: AuditEvent) -> asyncio.Future[None]:
        """Commit an event soon. The future is done once it is durable, however long that takes."""
        self.enqueue(event)
        self._flush_requested.set()
        waiter = asyncio.get_running_loop().create_future()
        self._batch.waiters.append(waiter)
        return waiter

    def insist(self, event: AuditEvent) -> asyncio.Future[None]:
        """The same, but the future fails if the store stays away.

        It is for a caller that must not act without the event. The event stays in the queue; a
        later event says that nothing was done.
        """
        self.enqueue(event)
        self._flush_requested.set()
        waiter = asyncio.get_running_loop().create_future()
        if self._is_unavailable():
            waiter.set_exception(self.unavailable_error())
        else:
            self._batch.impatient.append(waiter)
        return waiter

    def unavailable_error(self) -> Unavailable:
        return Unavailable(
            "the audit log cannot be written; calls that must be recorded are refused",
            AUDIT_LOG_AWAY,
            RETRY_AFTER,
        )

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        """Commit events until the exit. Then commit the rest, if the store is there."""
        writing = asyncio.ensure_future(self._keep_on())
        self.record(AuditType.AUDIT_LOG_OPENED, GATEWAY)
        try:
            yield
        finally:
            self.record(AuditType.AUDIT_LOG_CLOSED, GATEWAY)
            self._is_closing = True
            self._wakeup.set()
            self._flush_requested.set()
            with suppress(TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(self._settings.timeout.total_seconds()):
                    await writing
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            if self.uncommitted_count:
                log.error(
                    "%d audit entries could not be written: store unavailable",
                    self.uncommitted_count,
                )
            await self.store.close()

    async def flush(self) -> None:
        """Wait until every queued event is committed."""
        if self.uncommitted_count:
            waiter = asyncio.get_running_loop().create_future()
            self._batch.waiters.append(waiter)
            self._wakeup.set()
            self._flush_requested.set()
            await waiter

    async def _keep_on(self) -> None:
        while not (self._is_closing and not self._batch.events and not self._batch.waiters):
            await self._gather()
            batch, self._batch = self._batch, _AuditBatch()
            self._split(batch)
            await self._commit(batch)

    async def _gather(self) -> None:
        """Wait for an event, and a moment longer for others if none is urgent."""
        await self._wakeup.wait()
        if not self._flush_requested.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.linger.total_seconds()):
                    await self._flush_requested.wait()
        self._wakeup.clear()
        self._flush_requested.clear()

    def _split(self, batch: _AuditBatch) -> None:
        """Leave what is too much for one commit to the next. All waiters wait for the last one."""
        rest = batch.events[AT_ONCE:]
        if rest:
            del batch.events[AT_ONCE:]
            self._batch.events[:0] = rest
            self._batch.waiters[:0], batch.waiters = batch.waiters, []
            self._batch.impatient[:0], batch.impatient = batch.impatient, []
            self._wakeup.set()
            self._flush_requested.set()

    async def _commit(self, batch: _AuditBatch) -> None:
        """Try until the batch is committed. After an error, look first whether it is."""
        failures, lines = 0, list[AuditRecord]()
        while True:
            try:
                if self._head is None:
                    self._head = await self._open(batch)
                    if lines and await self._has(self._head, lines[-1]):
                        break
                    lines = []
                lines = lines or self._chain(self._head, batch.events)
                if lines:
                    await self.store.append(lines)
                break
            except (Unavailable, Misconfigured) as error:
                failures += 1
                self._fail(batch, error)
            except Exception:
                # A bug here must not end the log. The waiters go on waiting.
                failures += 1
                log.exception("The audit log writer failed")
            self._head = None
            await asyncio.sleep(AGAIN.delay(failures, 0.5).total_seconds())
        self._on_commit_success(batch, lines)

    async def _open(self, batch: _AuditBatch) -> ChainHead:
        head = await self.store.open(self.node)
        if head.node not in self._taken:
            # In a chain that was ours before, the open intents are calls in flight.
            self._taken.add(head.node)
            self._doubt(head, batch)
        return head

    async def _has(self, head: ChainHead, record: AuditRecord) -> bool:
        """Whether a commit succeeded although it reported an error."""
        if head.node == record.node and head.seq <= record.seq:
            # The writer has just read the head of its own chain. Another connection may still see
            # the store as it was before the commit, and the batch would be written twice.
            return (head.seq, head.hash) == (record.seq, record.hash)
        found = await self.store.page(record.node, record.seq - 1, 1)
        return bool(found) and found[0].hash == record.hash

    def _chain(self, head: ChainHead, events: Sequence[AuditEvent]) -> list[AuditRecord]:
        node, previous, seq, lines = head.node.encode(), head.hash, head.seq, list[AuditRecord]()
        for event in events:
            try:
                body = body_of(event)
            except (msgspec.EncodeError, TypeError, ValueError, RecursionError, OverflowError):
                # It must not block all others.
                log.exception("An audit entry of type %s cannot be encoded", event.type)
                body = _readable_body(event)
            seq += 1
            previous = chain.entry_hash(previous, node, seq, body)
            lines.append(line_of(event, head.node, seq, body, previous))
        return lines

    def _on_commit_success(self, batch: _AuditBatch, records: Sequence[AuditRecord]) -> None:
        if self._failing_since is not None:
            log.warning("The audit log is written again")
            self._failing_since = None
        if records and self._head is not None and self._head.node == records[-1].node:
            self._head = ChainHead(records[-1].node, records[-1].seq, records[-1].hash)
        self.uncommitted_count -= len(batch.events)
        self.committed_count += len(batch.events)
        for waiter in (*batch.waiters, *batch.impatient):
            if not waiter.done():
                waiter.set_result(None)
        for hear in self.commit_listeners:
            hear(records)
        for listener in self.listeners:
            for event in batch.events:
                _call_listener(listener, event)

    def _fail(self, batch: _AuditBatch, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        self.failure_count += 1
        if self._failing_since is None:
            self._failing_since = now
            log.error("The audit log cannot be written: %s", error)
        if self._is_unavailable():
            # The callers that wait for these events must not act.
            for waiter in (*batch.impatient, *self._batch.impatient):
                if not waiter.done():
                    waiter.set_exception(self.unavailable_error())
            batch.impatient.clear()
            self._batch.impatient.clear()

    def _is_unavailable(self) -> bool:
        if self._failing_since is None:
            return False
        failing = asyncio.get_running_loop().time() - self._failing_since
        return failing >= self._settings.timeout.total_seconds()

    def _doubt(self, head: ChainHead, batch: _AuditBatch) -> None:
        """Record first which calls of an earlier run may have run. (design §4)"""
        intents = [event for body in head.doubtful if (event := _read(body)) is not None]
        if not intents:
            return
        log.warning("%d calls of an earlier run have an unknown outcome", len(intents))
        batch.events[:0] = [_unknown_outcome(intent, self.clock()) for intent in intents]
        self.uncommitted_count += len(intents)
        for hear in self.doubt_listeners:
            hear(intents)


def _rate_name(type: AuditType, result: AuditResult, rate_key: str) -> str:
    return f"{type} {result} {rate_key}"


def _readable_body(event: AuditEvent) -> bytes:
    """Encode an event that cannot be encoded as it is."""
    names = (event.actor, event.server, event.tool, event.trace, event.call)
    actor, server, tool, trace, call = (values.clean_words(name) for name in names)
    bare = replace(event, actor=actor, server=server, tool=tool, trace=trace, call=call)
    return body_of(replace(bare, details={"unreadable": True}))


def _unknown_outcome(intent: AuditEvent, at: datetime) -> AuditEvent:
    details = {"intended_at": format_timestamp(intent.at), "outcome": "unknown"}
    return replace(
        intent, type=AuditType.OUTCOME_UNKNOWN, result=AuditResult.UNKNOWN, at=at, details=details
    )


def _read(body: bytes) -> AuditEvent | None:
    try:
        return event_of(body)
    except MalformedMessage:
        log.error("An audit entry cannot be read; `comity audit verify` shows which")  # noqa: TRY400  # the entry is what is wrong, not this code
        return None


def _call_listener(listener: Listener, event: AuditEvent) -> None:
    try:
        listener(event)
    except Exception:
        log.exception("A listener of the audit log failed")


@dataclass(slots=True)
class _EventCount:
    since: datetime
    taken: int = 0
    left_out: int = 0


class AuditRateLimit:
    """Limits how many events of one name are recorded in a window, and counts the others."""

    def __init__(
        self, clock: Clock, maximum: int = MAX_EVENTS_AT_ONCE, window: timedelta = WINDOW
    ) -> None:
        self._clock = clock
        self._maximum = maximum
        self._window = window
        self._counts: dict[str, _EventCount] = {}

    def admit(self, name: str) -> int | None:
        """Take one event. Gives how many were left out before it; None if it is left out too."""
        now = self._clock()
        count = self._counts.setdefault(name, _EventCount(now))
        if now - count.since >= self._window:
            count.since, count.taken = now, 0
        if count.taken >= self._maximum:
            count.left_out += 1
            return None
        count.taken += 1
        left_out, count.left_out = count.left_out, 0
        return left_out

    def count_omitted(self, name: str, number: int = 1) -> None:
        """Count events that are left out for another reason."""
        self._counts.setdefault(name, _EventCount(self._clock())).left_out += number

    def forget(self, name: str) -> None:
        self._counts.pop(name, None)
