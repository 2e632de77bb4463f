"""What the connections of one listener share: who is here, and who owes what by when.

Deadlines stand in queues that one timer sweeps; no connection and no request has its own.
"""

import asyncio
import ipaddress
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from itertools import takewhile
from typing import Final, Protocol, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from comity.rules.forwarded import TrustedProxies
from comity.surfaces.express import Serve
from comity.wire.exposition import Family

GUARD: Final = "guard"
"""Where the state of a request's scope holds the guard of its listener."""
HANDED: Final = "comity.connection"
"""Where a scope holds the connection of a request that asks for an upgrade."""
BODY_SECONDS: Final = 1.0
"""How long a short body is waited for before the application is told of its request."""

type Due[T] = dict[T, float]
"""Until when each has time; every time in a queue is as long, so the first is due first."""


class Held(Protocol):
    """A connection, as far as it can be late."""

    @property
    def transport(self) -> asyncio.Transport: ...
    @property
    def flow(self) -> FlowControl: ...
    def refuse(self, status: HTTPStatus, because: str) -> None: ...
    def leave_to_asgi(self) -> None: ...


class Upgraded(asyncio.Protocol):
    """Who reads and writes on a connection that is no longer HTTP."""

    def shutdown(self) -> None:
        """End it as its own protocol says."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of one listener its peers may hold."""

    connections: int = 20_000
    connections_per_address: int = 1_000
    # A reverse proxy, on the same machine or a trusted one, speaks for everybody behind it.
    uncounted_addresses: frozenset[str] = frozenset({"127.0.0.1", "::1"})
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    header_time: timedelta = timedelta(seconds=10)
    # How long a peer may leave its side of the connection full.
    send_time: timedelta = timedelta(seconds=30)
    header_bytes: int = 64 * 1024
    url_bytes: int = 8 * 1024
    keep_alive: timedelta = timedelta(seconds=75)
    grace: timedelta = timedelta(seconds=5)


class Guard:
    """What the connections of one listener share: who is here, and who still owes a head."""

    def __init__(self, limits: Limits, state: ServerState, serve: Serve | None = None) -> None:
        self.limits = limits
        self.state = state
        self.serve = serve
        self.emptied = asyncio.Event()
        self.admitted = 0
        self.refused: Counter[HTTPStatus] = Counter()
        # Every deadline is the same length, so the order of insertion is the order of expiry.
        self.heads_due: Due[Held] = {}
        self.reads_due: Due[Held] = {}
        self.bodies_due: Due[Held] = {}
        self.requests_due: Due[Held] = {}
        self._held_by: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()
        self._header_seconds = limits.header_time.total_seconds()
        self._send_seconds = limits.send_time.total_seconds()
        self._idle_seconds = limits.keep_alive.total_seconds()

    def admit(self, source: str, address: str = "") -> bool:
        """Count a connection; whether it may stay."""
        self.admitted += 1
        held = self._held_by[source] = self._held_by.get(source, 0) + 1
        limits = self.limits
        within = held <= limits.connections_per_address or source in limits.uncounted_addresses
        crowded = len(self.state.connections) > limits.connections
        return not crowded and (within or limits.proxies.trusts(address))

    def release(self, source: str) -> None:
        held = self._held_by[source] - 1
        if held:
            self._held_by[source] = held
        else:
            del self._held_by[source]
        if not self.state.connections:
            self.emptied.set()

    def families(self) -> list[Family]:
        """How many are here, came, and were sent away before anybody heard them."""
        refused = [((("status", str(status.value)),), n) for status, n in self.refused.items()]
        return [
            Family(
                "comity_connections",
                "gauge",
                "Open connections of clients.",
                [((), len(self.state.connections))],
            ),
            Family(
                "comity_connections_total",
                "counter",
                "Connections that clients have opened.",
                [((), self.admitted)],
            ),
            Family(
                "comity_connections_refused_total",
                "counter",
                "Connections closed for what was said on them, or for their number, by status.",
                refused,
            ),
        ]

    def expect_head(self, connection: Held) -> None:
        self.heads_due[connection] = self._loop.time() + self._header_seconds

    def expect_body(self, connection: Held) -> None:
        self.bodies_due.setdefault(connection, self._loop.time() + BODY_SECONDS)

    def expect_request(self, connection: Held) -> None:
        self.requests_due[connection] = self._loop.time() + self._idle_seconds

    def forget(self, connection: Held) -> None:
        for due in (self.heads_due, self.reads_due, self.bodies_due, self.requests_due):
            due.pop(connection, None)

    def expect_reading(self, connection: Held) -> None:
        self.reads_due[connection] = self._loop.time() + self._send_seconds

    async def sweep(self) -> None:
        """Close what owes a head for too long, and what nobody reads, or reads the end of."""
        pause = min(1.0, self._header_seconds / 4)
        unread: dict[Held, int] = {}
        next_look_at_closing = self._loop.time() + self._header_seconds
        while True:
            await asyncio.sleep(pause)
            now = self._loop.time()
            self._close_late_heads(now)
            for connection in _late(self.reads_due, now):
                connection.transport.abort()
            for connection in _late(self.bodies_due, now):
                connection.leave_to_asgi()
            for connection in _late(self.requests_due, now):
                connection.transport.close()
            if now >= next_look_at_closing:
                unread = self._abort_stuck(unread)
                next_look_at_closing = now + self._header_seconds

    def _close_late_heads(self, now: float) -> None:
        for connection in _late(self.heads_due, now):
            if connection.flow.read_paused:
                # We are the one not reading (requests are queued before this one).
                self.expect_head(connection)
            else:
                connection.refuse(HTTPStatus.REQUEST_TIMEOUT, "The request's head came too slowly.")

    def _abort_stuck(self, unread_before: dict[Held, int]) -> dict[Held, int]:
        """A closed transport lives until its last byte is read; a peer that never reads, forever.

        Returns what is unread now, for the next look.
        """
        unread: dict[Held, int] = {}
        for connection in cast("set[Held]", self.state.connections):
            if connection.transport.is_closing():
                unread[connection] = connection.transport.get_write_buffer_size()
        for connection, size in unread.items():
            if size >= unread_before.get(connection, size + 1):
                connection.transport.abort()
        return unread


def _late(due: Due[Held], now: float) -> list[Held]:
    """Take out whatever is past its time; the first to come is the first to be due."""
    late = [connection for connection, _ in takewhile(lambda item: item[1] <= now, due.items())]
    for connection in late:
        del due[connection]
    return late


def source_of(address: str) -> str:
    """Whom an address stands for when connections are counted: of IPv6, the whole /64."""
    if ":" not in address:
        return address
    parsed = ipaddress.IPv6Address(address.partition("%")[0])
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if parsed.is_loopback:
        return str(parsed)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
