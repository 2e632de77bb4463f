"""All connections to one HTTP origin, and the requests that wait for one of them."""

import asyncio
import ssl
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from comity.adapters.upstream.connection import Connection
from comity.adapters.upstream.dialling import Dialler
from comity.adapters.upstream.sending import Sending
from comity.wire.errors import EXHAUSTED, UPSTREAM_DOWN, Unavailable


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How much one origin may hold of us; each figure is for one origin."""

    connections: int = 1024
    idle: int = 128
    waiting: int = 1024
    waiting_bytes: int = 64 * 1024 * 1024
    connect_timeout: timedelta = timedelta(seconds=10)
    # Node and uvicorn hang up after five idle seconds. A request that meets that moment has an
    # unknown outcome, so we hang up first.
    idle_time: timedelta = timedelta(seconds=4)


class Load(NamedTuple):
    """What an origin holds of us now: connections of each kind, and requests without one."""

    busy: int
    idle: int
    opening: int
    waiting: int


class Lane:
    """One origin's connections: idle ones are taken last in first out, waiting is in order."""

    __slots__ = (
        "_closed",
        "_connections",
        "_dialler",
        "_generation",
        "_idle",
        "_limits",
        "_loop",
        "_open_for_anyone",
        "_openings",
        "_origin",
        "_waiting",
        "_waiting_bytes",
    )

    def __init__(self, dialler: Dialler, limits: PoolLimits, closed: bool) -> None:
        self._dialler = dialler
        self._origin = str(dialler.origin)
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._closed = closed
        self._connections: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # in the order of release
        self._generation = 0  # cheaper than a look at the clock for every release
        self._waiting: OrderedDict[Sending, None] = OrderedDict()
        self._waiting_bytes = 0
        # An attempt is for the one request that is sent again, or (None) for whoever waits.
        self._openings: dict[asyncio.Task[Connection | Unavailable], Sending | None] = {}
        self._open_for_anyone = 0

    def dispatch(self, sending: Sending) -> None:
        """Write the request to an idle connection, or have it wait for one."""
        idle = self._idle
        while idle:
            connection, _ = idle.popitem()
            # A transport that failed is closing for a moment before we are told.
            if not connection.transport.is_closing():
                connection.begin(sending)
                return
        self._enqueue(sending)

    def release(self, connection: Connection) -> None:
        if self._waiting:
            connection.begin(self._take_longest_waiting())
        elif len(self._idle) < self._limits.idle:
            connection.idle_generation = self._generation
            self._idle[connection] = None
        else:
            connection.close()

    def lost(self, connection: Connection, again: Sending | None) -> None:
        self._connections.discard(connection)
        self._idle.pop(connection, None)
        if again is not None:
            if self._closed:
                again.fail(_closing())
            else:
                self._start_opening(again)
        self._open_as_needed()

    def apply_pause(self, sending: Sending) -> None:
        """Nothing to read yet; the connection will look when it begins."""

    def drop(self, sending: Sending) -> None:
        if sending in self._waiting:
            del self._waiting[sending]
            self._waiting_bytes -= len(sending.payload)

    @property
    def is_deserted(self) -> bool:
        return not (self._connections or self._openings or self._waiting)

    @property
    def load(self) -> Load:
        idle = len(self._idle)
        busy = len(self._connections) - idle
        return Load(busy, idle, len(self._openings), len(self._waiting))

    def expire(self) -> None:
        """Hang up on what has been idle since before the last time this was called."""
        self._generation += 1
        for connection in [c for c in self._idle if c.idle_generation < self._generation - 1]:
            del self._idle[connection]
            connection.close()

    def close(self) -> list[asyncio.Future[None]]:
        """Fail whatever is under way; the futures are done when its connections are gone."""
        self._closed = True
        self._idle.clear()
        stranded = [sending for sending in self._openings.values() if sending is not None]
        for opening in self._openings:
            opening.cancel()
        while self._waiting:
            stranded.append(self._take_longest_waiting())
        for sending in stranded:
            sending.fail(_closing())
        leaving: list[asyncio.Future[None]] = []
        for connection in list(self._connections):
            connection.farewell = self._loop.create_future()
            leaving.append(connection.farewell)
            connection.fail(_closing())
        return leaving

    def _enqueue(self, sending: Sending) -> None:
        # A refusal comes later, not now: the sender does not hold its `Sending` yet.
        if self._closed:
            self._loop.call_soon(sending.fail, _closing())
        elif (
            len(self._waiting) >= self._limits.waiting
            or self._waiting_bytes + len(sending.payload) > self._limits.waiting_bytes
        ):
            self._loop.call_soon(sending.fail, self._overrun())
        else:
            self._waiting[sending] = None
            self._waiting_bytes += len(sending.payload)
            self._open_as_needed()

    def _take_longest_waiting(self) -> Sending:
        sending, _ = self._waiting.popitem(last=False)
        self._waiting_bytes -= len(sending.payload)
        return sending

    def _open_as_needed(self) -> None:
        if (
            self._open_for_anyone < len(self._waiting)
            and len(self._connections) + len(self._openings) < self._limits.connections
        ):
            self._open_for_anyone += 1
            self._start_opening(None)

    def _start_opening(self, only_for: Sending | None) -> None:
        task = self._loop.create_task(self._open())
        self._openings[task] = only_for
        task.add_done_callback(self._opened)

    async def _open(self) -> Connection | Unavailable:
        try:
            async with asyncio.timeout(self._limits.connect_timeout.total_seconds()):
                return await self._dialler.dial(lambda: Connection(self, self._origin))
        except Unavailable as error:
            return error
        except (OSError, ValueError) as error:  # ValueError: a host that cannot be a name
            return self._unreachable(_worded(error))

    def _opened(self, task: asyncio.Task[Connection | Unavailable]) -> None:
        only_for = self._openings.pop(task)
        if only_for is None:
            self._open_for_anyone -= 1
        if task.cancelled():
            return
        outcome = task.result()
        if isinstance(outcome, Connection):
            outcome = self._admitted(outcome)
        if isinstance(outcome, Unavailable):
            self._fail_opening(outcome, only_for)
        elif only_for is None or only_for.is_settled:
            self.release(outcome)
        else:
            outcome.begin(only_for)

    def _admitted(self, connection: Connection) -> Connection | Unavailable:
        if self._closed:
            connection.transport.abort()
            return _closing()
        if connection.transport.is_closing():
            return self._unreachable("it hung up, or spoke before it was asked")
        self._connections.add(connection)
        return connection

    def _fail_opening(self, because: Unavailable, only_for: Sending | None) -> None:
        if only_for is not None:
            victims = [only_for]
        else:
            # While something else is open or opening, the others may still be served by that.
            alone = not self._connections and not self._openings
            count = len(self._waiting) if alone else min(1, len(self._waiting))
            victims = [self._take_longest_waiting() for _ in range(count)]
        for sending in victims:
            sending.fail(because)
        self._open_as_needed()

    def _unreachable(self, why: str) -> Unavailable:
        return Unavailable(
            f"{self._origin} cannot be reached ({why}); nothing was sent. Check that the server is "
            "running and that its URL is right",
            UPSTREAM_DOWN,
        )

    def _overrun(self) -> Unavailable:
        return Unavailable(
            f"too many requests already wait for a connection to {self._origin}; nothing was sent. "
            "Try again later",
            EXHAUSTED,
        )


def _closing() -> Unavailable:
    return Unavailable(
        "the gateway is closing its connections; whether the request was carried out is unknown"
    )


def _worded(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no connection in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    return getattr(error, "strerror", None) or type(error).__name__
