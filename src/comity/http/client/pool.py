"""The pool of HTTP connections to all servers, with a queue for each origin."""

import asyncio
import ssl
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple, Self
from weakref import WeakSet

from comity.errors import EXHAUSTED, UPSTREAM_DOWN, Unavailable
from comity.http.client.connection import (
    HttpClientConnection,
    HttpClientRequest,
    HttpHeadRequest,
    ResponseReader,
)
from comity.http.client.dial import (
    ChooseProxy,
    Find,
    HttpOrigin,
    HttpProxy,
    OriginDialler,
    header_line,
    request_head,
)


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The limits of a pool. Each one applies to one origin."""

    connections: int = 1024
    idle: int = 128
    waiting: int = 1024
    waiting_bytes: int = 64 * 1024 * 1024
    connect_timeout: timedelta = timedelta(seconds=10)
    # Node and uvicorn close a connection after five idle seconds. A request sent at that moment
    # has an unknown outcome, so the pool closes it first.
    idle_time: timedelta = timedelta(seconds=4)


class OriginLoad(NamedTuple):
    """The present connections to an origin by kind, and the requests that wait for one."""

    busy: int
    idle: int
    opening: int
    waiting: int


class OriginPool:
    """The connections to one origin. Idle ones are reused last in, first out; requests queue."""

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

    def __init__(self, dialler: OriginDialler, limits: PoolLimits, closed: bool) -> None:
        self._dialler = dialler
        self._origin = str(dialler.origin)
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._closed = closed
        self._connections: set[HttpClientConnection] = set()
        self._idle: dict[HttpClientConnection, None] = {}  # in the order of release
        self._generation = 0  # cheaper than reading the clock for every release
        self._waiting: OrderedDict[HttpClientRequest, None] = OrderedDict()
        self._waiting_bytes = 0
        # An attempt is for one request that is sent again, or (None) for any waiting request.
        self._openings: dict[
            asyncio.Task[HttpClientConnection | Unavailable], HttpClientRequest | None
        ] = {}
        self._open_for_anyone = 0

    def dispatch(self, request: HttpClientRequest) -> None:
        """Write the request to an idle connection, or queue it."""
        idle = self._idle
        while idle:
            connection, _ = idle.popitem()
            # A failed transport is closing for a moment before `connection_lost` is called.
            if not connection.transport.is_closing():
                connection.begin(request)
                return
        self._enqueue(request)

    def release(self, connection: HttpClientConnection) -> None:
        if self._waiting:
            connection.begin(self._take_longest_waiting())
        elif len(self._idle) < self._limits.idle:
            connection.idle_generation = self._generation
            self._idle[connection] = None
        else:
            connection.close()

    def lost(self, connection: HttpClientConnection, again: HttpClientRequest | None) -> None:
        self._connections.discard(connection)
        self._idle.pop(connection, None)
        if again is not None:
            if self._closed:
                again.fail(_closing())
            else:
                self._start_opening(again)
        self._open_as_needed()

    def apply_pause(self, request: HttpClientRequest) -> None:
        """Do nothing: the connection checks the pause when it begins to read."""

    def drop(self, request: HttpClientRequest) -> None:
        if request in self._waiting:
            del self._waiting[request]
            self._waiting_bytes -= len(request.payload)

    @property
    def is_deserted(self) -> bool:
        return not (self._connections or self._openings or self._waiting)

    @property
    def load(self) -> OriginLoad:
        idle = len(self._idle)
        busy = len(self._connections) - idle
        return OriginLoad(busy, idle, len(self._openings), len(self._waiting))

    def expire(self) -> None:
        """Close connections that have been idle since before the previous call."""
        self._generation += 1
        for connection in [c for c in self._idle if c.idle_generation < self._generation - 1]:
            del self._idle[connection]
            connection.close()

    def close(self) -> list[asyncio.Future[None]]:
        """Fail all requests. Each returned future completes when a connection has closed."""
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

    def _enqueue(self, request: HttpClientRequest) -> None:
        # A refusal is scheduled, because the sender does not hold its request object yet.
        if self._closed:
            self._loop.call_soon(request.fail, _closing())
        elif (
            len(self._waiting) >= self._limits.waiting
            or self._waiting_bytes + len(request.payload) > self._limits.waiting_bytes
        ):
            self._loop.call_soon(request.fail, self._overrun())
        else:
            self._waiting[request] = None
            self._waiting_bytes += len(request.payload)
            self._open_as_needed()

    def _take_longest_waiting(self) -> HttpClientRequest:
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

    def _start_opening(self, only_for: HttpClientRequest | None) -> None:
        task = self._loop.create_task(self._open())
        self._openings[task] = only_for
        task.add_done_callback(self._opened)

    async def _open(self) -> HttpClientConnection | Unavailable:
        try:
            async with asyncio.timeout(self._limits.connect_timeout.total_seconds()):
                return await self._dialler.dial(lambda: HttpClientConnection(self, self._origin))
        except Unavailable as error:
            return error
        except (OSError, ValueError) as error:  # ValueError: a host that cannot be a name
            unreachable = self._unreachable(_worded(error))
            # Webhooks distinguish a refused connection from an untrusted certificate.
            unreachable.__cause__ = error
            return unreachable

    def _opened(self, task: asyncio.Task[HttpClientConnection | Unavailable]) -> None:
        only_for = self._openings.pop(task)
        if only_for is None:
            self._open_for_anyone -= 1
        if task.cancelled():
            return
        outcome = task.result()
        if isinstance(outcome, HttpClientConnection):
            outcome = self._admitted(outcome)
        if isinstance(outcome, Unavailable):
            self._fail_opening(outcome, only_for)
        elif only_for is None or only_for.is_settled:
            self.release(outcome)
        else:
            outcome.begin(only_for)

    def _admitted(self, connection: HttpClientConnection) -> HttpClientConnection | Unavailable:
        if self._closed:
            connection.transport.abort()
            return _closing()
        if connection.transport.is_closing():
            return self._unreachable("it closed the connection, or sent data before a request")
        self._connections.add(connection)
        return connection

    def _fail_opening(self, error: Unavailable, only_for: HttpClientRequest | None) -> None:
        if only_for is not None:
            victims = [only_for]
        else:
            # While another connection is open or opening, it may still serve the other requests.
            alone = not self._connections and not self._openings
            count = len(self._waiting) if alone else min(1, len(self._waiting))
            victims = [self._take_longest_waiting() for _ in range(count)]
        for sending in victims:
            sending.fail(error)
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


__all__ = [
    "HttpClientRequest",
    "HttpConnectionPool",
    "HttpOrigin",
    "HttpProxy",
    "PoolLimits",
    "ResponseReader",
    "header_line",
    "request_head",
]

_DEFAULT_LIMITS = PoolLimits()
_FAREWELL_SECONDS = 1.0
_BODY_NOT_EXPECTED = (b"GET ", b"DELETE ", b"HEAD ", b"OPTIONS ")


class HttpConnectionPool:
    """The connections of one process to all HTTP servers."""

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        limits: PoolLimits = _DEFAULT_LIMITS,
        choose_proxy: ChooseProxy | None = None,
        find: Find | None = None,
    ) -> None:
        if tls is not None:
            tls.set_alpn_protocols(["http/1.1"])
        self._tls = tls
        self._limits = limits
        self._choose_proxy = choose_proxy
        self._find = find
        self._lanes: dict[HttpOrigin, OriginPool] = {}
        # A timer keeps a pool alive while it has connections.
        self._parts: WeakSet[HttpConnectionPool] = WeakSet()
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def send(
        self,
        origin: HttpOrigin,
        head: bytes,
        body: bytes,
        reader: ResponseReader,
        *,
        may_repeat: bool = False,
    ) -> HttpClientRequest:
        """Send one request. `head` is whole lines (see `request_head`), without a length.

        With `may_repeat`, a request is sent once more on a fresh connection if a reused one closed
        without any byte of an answer. Without it, the request fails and its outcome is unknown.
        """
        lane = self._lanes.get(origin) or self._new_lane(origin)
        if self._choose_proxy is not None and origin.scheme == "http":
            proxy = self._choose_proxy(origin)
            head = head if proxy is None else proxy.absolute_form(origin, head)
        if body or not head.startswith(_BODY_NOT_EXPECTED):
            payload = b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)
            sending = HttpClientRequest(lane, payload, reader, may_repeat)
        else:
            kind = HttpHeadRequest if head.startswith(b"HEAD ") else HttpClientRequest
            sending = kind(lane, head + b"\r\n", reader, may_repeat)
        lane.dispatch(sending)
        return sending

    def like(self, find: Find) -> "HttpConnectionPool":
        """Return a pool with the same limits and proxies, whose connections `find` may refuse."""
        return HttpConnectionPool(self._tls, self._limits, self._choose_proxy, find)

    def separate(self) -> "HttpConnectionPool":
        """Return a pool with connections of its own, which this pool counts and closes."""
        part = HttpConnectionPool(self._tls, self._limits, self._choose_proxy, self._find)
        part._closed = self._closed
        self._parts.add(part)
        return part

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def loads(self) -> dict[HttpOrigin, OriginLoad]:
        """Return the present load of each origin."""
        found = {origin: lane.load for origin, lane in self._lanes.items()}
        for part in self._parts:
            for origin, load in part.loads().items():
                before = found.get(origin, OriginLoad(0, 0, 0, 0))
                found[origin] = OriginLoad(*map(sum, zip(before, load, strict=True)))
        return found

    async def close(self) -> None:
        """Fail all requests and close every connection. Later requests fail too."""
        leaving = self._begin_closing()
        if leaving:
            await asyncio.wait(leaving, timeout=_FAREWELL_SECONDS)

    def _begin_closing(self) -> list[asyncio.Future[None]]:
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        leaving = [future for lane in self._lanes.values() for future in lane.close()]
        for part in self._parts:
            leaving += part._begin_closing()
        return leaving

    def _new_lane(self, origin: HttpOrigin) -> OriginPool:
        proxy = None if self._choose_proxy is None else self._choose_proxy(origin)
        way = OriginDialler(origin, self._tls, proxy)
        way = way if self._find is None else replace(way, find=self._find)
        lane = OriginPool(way, self._limits, self._closed)
        self._lanes[origin] = lane
        if self._sweeping is None and not self._closed:
            self._sweep_later()
        return lane

    def _sweep_later(self) -> None:
        # A connection is closed at the second sweep after its release: within the idle time.
        period = self._limits.idle_time.total_seconds() / 2
        self._sweeping = asyncio.get_running_loop().call_later(period, self._sweep)

    def _sweep(self) -> None:
        for lane in self._lanes.values():
            lane.expire()
        deserted = [origin for origin, lane in self._lanes.items() if lane.is_deserted]
        for origin in deserted:
            del self._lanes[origin]
        self._sweeping = None
        if self._lanes:
            self._sweep_later()
