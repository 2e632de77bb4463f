"""The journal: what happened is queued, chained and committed in groups, and told once it is kept.

Rule 1: whoever needs an entry kept before it goes on waits for the commit that has it; one commit
        serves all who came while the last one ran.
Rule 2: the rest is committed within a moment (`linger`). What is not kept yet is bounded: at the
        bound, calls are refused; no entry is ever dropped.
Rule 3: a commit whose fate is unknown is looked up before it is tried again, so that no entry is
        kept twice. What an earlier run left in doubt is written down as unknown, first of all.
Rule 4: what is told to others was kept before. (D-34)
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from comity.ports.journaling import Head, JournalStore
from comity.rules import chain, keeping
from comity.rules.backoff import Backoff
from comity.wire.audit import Event, Result, Type, body_of, event_of, stamp
from comity.wire.errors import JOURNAL_AWAY, MalformedMessage, Misconfigured, Unavailable
from comity.wire.journal import Line, line_of
from comity.wire.parties import GATEWAY

log = logging.getLogger(__name__)

AT_ONCE: Final = 2_000
"""How many entries one commit takes; more would hold up those who came first."""

AGAIN: Final = Backoff(timedelta(milliseconds=50), timedelta(seconds=1))
RETRY_AFTER: Final = timedelta(seconds=2)

type Clock = Callable[[], datetime]
type Listener = Callable[[Event], None]
type Committed = Callable[[Sequence[Line]], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """How long an entry may wait to be kept, and how many may wait."""

    linger: timedelta = timedelta(milliseconds=50)
    patience: timedelta = timedelta(seconds=5)
    most_waiting: int = 10_000


@dataclass(slots=True)
class _Batch:
    """What goes into one commit, and who waits for it."""

    events: list[Event] = field(default_factory=list[Event])
    waiters: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])
    impatient: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])


class Journal:
    """One node's chain: entries are noted here, and kept by the store."""

    def __init__(
        self,
        store: JournalStore,
        node: str,
        pace: Pace | None = None,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self.store = store
        self.node = node
        self.clock = clock
        self.listeners: list[Listener] = []
        # Told at once, before anything is kept: for those who go by what happens, and tell nobody.
        self.noted: list[Listener] = []
        self.committed: list[Committed] = []
        # Whether the store outlives this process: for one that does not, nobody has to wait.
        self.is_lasting = True
        # What earlier runs left in doubt: the intents of calls that may have run.
        self.doubted: list[Callable[[Sequence[Event]], None]] = []
        self._pace = pace or Pace()
        self._batch = _Batch()
        self._waiting = 0
        self._head: Head | None = None
        self._stirred = asyncio.Event()
        self._urgent = asyncio.Event()
        self._taken: set[str] = set()
        self._failing_since: float | None = None
        self._is_closing = False

    @property
    def is_open(self) -> bool:
        return self._head is not None

    @property
    def head(self) -> Head | None:
        return self._head

    @property
    def waiting(self) -> int:
        """How many entries are not kept yet."""
        return self._waiting

    @property
    def has_room(self) -> bool:
        return self._waiting < self._pace.most_waiting

    def note(self, event: Event) -> None:
        """Have an entry kept within a moment; one that is of no trace gets one of its own."""
        if not event.trace:
            event = replace(event, trace=secrets.token_hex(16))
        self._batch.events.append(event)
        self._waiting += 1
        for hear in self.noted:
            _tell(hear, event)
        if not self._stirred.is_set():
            self._stirred.set()

    def write(self, event: Event) -> asyncio.Future[None]:
        """Have an entry kept as soon as can be; done once it is, however long that takes."""
        self.note(event)
        self._urgent.set()
        waiter = asyncio.get_running_loop().create_future()
        self._batch.waiters.append(waiter)
        return waiter

    def insist(self, event: Event) -> asyncio.Future[None]:
        """The same, for somebody who does nothing without it: fails if the store stays away.

        The entry stays in the queue all the same; what follows says that nothing was done.
        """
        self.note(event)
        self._urgent.set()
        waiter = asyncio.get_running_loop().create_future()
        if self._is_away():
            waiter.set_exception(self.away())
        else:
            self._batch.impatient.append(waiter)
        return waiter

    def away(self) -> Unavailable:
        return Unavailable(
            "what happens cannot be written down just now, so nothing that must be is done",
            JOURNAL_AWAY,
            RETRY_AFTER,
        )

    @asynccontextmanager
    async def kept(self) -> AsyncGenerator[None]:
        """Keep what is noted, until the way out; then keep the rest, if the store lets us."""
        writing = asyncio.ensure_future(self._keep_on())
        self.note(Event(Type.JOURNAL_OPENED, GATEWAY, self.clock()))
        try:
            yield
        finally:
            self.note(Event(Type.JOURNAL_CLOSED, GATEWAY, self.clock()))
            self._is_closing = True
            self._stirred.set()
            self._urgent.set()
            with suppress(TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(self._pace.patience.total_seconds()):
                    await writing
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            if self._waiting:
                log.error("the journal lacks %d entries: its store is away", self._waiting)
            await self.store.close()

    async def flush(self) -> None:
        """Until everything that was noted is kept."""
        if self._waiting:
            waiter = asyncio.get_running_loop().create_future()
            self._batch.waiters.append(waiter)
            self._stirred.set()
            self._urgent.set()
            await waiter

    async def _keep_on(self) -> None:
        while not (self._is_closing and not self._batch.events and not self._batch.waiters):
            await self._gather()
            batch, self._batch = self._batch, _Batch()
            self._split(batch)
            await self._commit(batch)

    async def _gather(self) -> None:
        """Wait for something to keep, and a moment longer where nobody is in a hurry."""
        await self._stirred.wait()
        if not self._urgent.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.linger.total_seconds()):
                    await self._urgent.wait()
        self._stirred.clear()
        self._urgent.clear()

    def _split(self, batch: _Batch) -> None:
        """Leave for the next commit what is too much for one; its waiters wait for the last."""
        rest = batch.events[AT_ONCE:]
        if rest:
            del batch.events[AT_ONCE:]
            self._batch.events[:0] = rest
            self._batch.waiters[:0], batch.waiters = batch.waiters, []
            self._batch.impatient[:0], batch.impatient = batch.impatient, []
            self._stirred.set()
            self._urgent.set()

    async def _commit(self, batch: _Batch) -> None:
        """Try until it is kept. A commit of unknown fate is looked up first."""
        failures, lines = 0, list[Line]()
        while True:
            try:
                if self._head is None:
                    self._head = await self._open(batch)
                    if lines and await self._has(lines[-1]):
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
                # A bug here must not end the journal: whoever waits goes on waiting.
                failures += 1
                log.exception("keeping the journal ended in a bug")
            self._head = None
            await asyncio.sleep(AGAIN.delay(failures, 0.5).total_seconds())
        self._succeed(batch, lines)

    async def _open(self, batch: _Batch) -> Head:
        head = await self.store.open(self.node)
        if head.node not in self._taken:
            # What is open in a chain that was ours before are calls of ours, under way.
            self._taken.add(head.node)
            self._doubt(head, batch)
        return head

    async def _has(self, line: Line) -> bool:
        """Whether a commit got through of which we were not told so."""
        found = await self.store.page(line.node, line.seq - 1, 1)
        return bool(found) and found[0].hash == line.hash

    def _chain(self, head: Head, events: Sequence[Event]) -> list[Line]:
        node, previous, seq, lines = head.node.encode(), head.hash, head.seq, list[Line]()
        for event in events:
            body = _body(event)
            seq += 1
            previous = chain.link(previous, node, seq, body)
            lines.append(line_of(event, head.node, seq, body, previous))
        return lines

    def _succeed(self, batch: _Batch, lines: Sequence[Line]) -> None:
        if self._failing_since is not None:
            log.warning("the journal is kept again")
            self._failing_since = None
        if lines and self._head is not None and self._head.node == lines[-1].node:
            self._head = Head(lines[-1].node, lines[-1].seq, lines[-1].hash)
        self._waiting -= len(batch.events)
        for waiter in (*batch.waiters, *batch.impatient):
            if not waiter.done():
                waiter.set_result(None)
        for hear in self.committed:
            hear(lines)
        for listener in self.listeners:
            for event in batch.events:
                _tell(listener, event)

    def _fail(self, batch: _Batch, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
            log.error("the journal cannot be kept just now: %s", error)
        if self._is_away():
            # Whoever was to do something after this does nothing.
            for waiter in (*batch.impatient, *self._batch.impatient):
                if not waiter.done():
                    waiter.set_exception(self.away())
            batch.impatient.clear()
            self._batch.impatient.clear()

    def _is_away(self) -> bool:
        if self._failing_since is None:
            return False
        failing = asyncio.get_running_loop().time() - self._failing_since
        return failing >= self._pace.patience.total_seconds()

    def _doubt(self, head: Head, batch: _Batch) -> None:
        """Write down, before anything else, which calls may or may not have run. (design §4)"""
        intents = [event for body in head.doubtful if (event := _read(body)) is not None]
        if not intents:
            return
        log.warning("%d calls of an earlier run have an unknown outcome", len(intents))
        batch.events[:0] = [_unknown(intent, self.clock()) for intent in intents]
        self._waiting += len(intents)
        for hear in self.doubted:
            hear(intents)


def _body(event: Event) -> bytes:
    """An entry that cannot be written must not keep all others from being kept."""
    try:
        return body_of(event)
    except (msgspec.EncodeError, TypeError, ValueError, RecursionError, OverflowError):
        log.exception("an entry of type %s cannot be written as it is", event.type)
        names = (event.actor, event.server, event.tool, event.trace, event.call)
        actor, server, tool, trace, call = (keeping.words(name) for name in names)
        bare = replace(event, actor=actor, server=server, tool=tool, trace=trace, call=call)
        return body_of(replace(bare, details={"unreadable": True}))


def _unknown(intent: Event, at: datetime) -> Event:
    details = {"intended_at": stamp(intent.at), "outcome": "unknown"}
    return replace(intent, type=Type.OUTCOME_UNKNOWN, result=Result.UNKNOWN, at=at, details=details)


def _read(body: bytes) -> Event | None:
    try:
        return event_of(body)
    except MalformedMessage:
        log.error("an entry of the journal cannot be read; `comity journal verify` says which")  # noqa: TRY400  # the entry is what is wrong, not this code
        return None


def _tell(listener: Listener, event: Event) -> None:
    try:
        listener(event)
    except Exception:
        log.exception("who listens to the journal failed")
