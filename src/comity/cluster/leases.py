"""Leases decide which node runs a server that must run only once."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Final

from comity.cluster.bus import Lease, LeaseStore
from comity.cluster.nodes import ClusterMembers
from comity.errors import CUT_OFF, SERVER_NOT_READY, Unavailable
from comity.toolkit.background import BackgroundTasks

log = logging.getLogger(__name__)

SOON: Final = timedelta(seconds=1)
RENEW_FRACTION: Final = 1 / 3
"""When a held lease is renewed."""
DOUBT_FRACTION: Final = 1 / 2
"""When the node stops relying on a lease that was not renewed."""
EXPIRY_FRACTION: Final = 3 / 4
_UNKNOWN: Final = "which node runs what cannot be found out"
_TRY_AGAIN: Final = 1 / 12
"""The constants from `RENEW_FRACTION` to `_TRY_AGAIN` are fractions of a lease's lifetime."""


type Moved = Callable[[], Coroutine[None, None, None]]


class ServerLocation:
    """The node that runs one server, as far as this node knows."""

    def __init__(
        self,
        server: str,
        lifetime: float,
        now: Callable[[], float],
        on_moved: Moved | None = None,
        may_bid: Callable[[], bool] = lambda: True,
    ) -> None:
        self.server = server
        # The lease that this node holds, or the other node that holds it.
        self.lease: Lease | None = None
        self.other_node: str | None = None
        self.is_known = asyncio.Event()
        self.check_requested = asyncio.Event()
        # Ends the server here, starts it here, or connects to another node.
        self.on_moved = on_moved
        # Whether this node is willing to run the server.
        self.may_bid = may_bid
        self._lifetime = lifetime
        self._now = now
        self._asked_at = 0.0

    @property
    def is_here(self) -> bool:
        """Whether this node may run the server now."""
        return self.lease is not None and self.seconds_left(DOUBT_FRACTION) > 0

    def seconds_left(self, part: float) -> float:
        """Return the seconds until this fraction of the lease's lifetime has passed."""
        return self._asked_at + part * self._lifetime - self._now()

    def require(self, lease: Lease) -> None:
        """Raise Unavailable unless this is still the lease by which the server runs here."""
        if self.lease is not lease or not self.is_here:
            raise Unavailable(
                f"this node may no longer run server {self.server!r}", SERVER_NOT_READY, SOON
            )

    def set_held(self, lease: Lease, asked_at: float) -> bool:
        """Note that this node holds the lease since `asked_at`. Return whether that is new."""
        is_new = self.lease != lease
        self._asked_at = asked_at
        if is_new:
            self.lease, self.other_node = lease, None
        self.is_known.set()
        return is_new

    def set_other_holder(self, node: str | None) -> bool:
        """Note that another node, or no node, holds the lease. Return whether that is new."""
        is_new = self.lease is not None or self.other_node != node
        self.lease, self.other_node = None, node
        if node is None:
            self.is_known.clear()
        else:
            self.is_known.set()
        return is_new


class ServerPlacement:
    """Takes and renews the leases of all servers that only one node may run."""

    def __init__(self, leases: LeaseStore, peers: ClusterMembers, now: Callable[[], float]) -> None:
        self._leases = leases
        self._peers = peers
        self._now = now
        self._lifetime = leases.lifetime.total_seconds()
        self._locations: dict[str, ServerLocation] = {}
        self._tasks_by_server: dict[str, BackgroundTasks] = {}
        self._probe_tasks = BackgroundTasks("leases")
        self._move_tasks = BackgroundTasks("server moves between nodes")
        self._is_started = False
        peers.watch(self._on_peer_changed)

    @property
    def lifetime(self) -> float:
        return self._lifetime

    def __iter__(self) -> Iterator[ServerLocation]:
        return iter(list(self._locations.values()))

    def place(
        self,
        server: str,
        on_moved: Moved | None = None,
        may_bid: Callable[[], bool] = lambda: True,
    ) -> ServerLocation:
        """Return the location of a server, and keep it up to date from now on."""
        if server not in self._locations:
            self._locations[server] = ServerLocation(
                server, self._lifetime, self._now, on_moved, may_bid
            )
            if self._is_started:
                self._start_loop(server)
        return self._locations[server]

    async def start(self) -> None:
        """Look up the holder of each lease once, then keep all leases up to date."""
        self._is_started = True
        async with asyncio.TaskGroup() as first:
            for place in self._locations.values():
                first.create_task(self.look(place))
        for server in self._locations:
            self._start_loop(server)
        self._probe_tasks.start(self._probe())

    async def forget(self, server: str) -> None:
        """Give up the lease of a removed server, so that another node can take it."""
        place, background_tasks = (
            self._locations.pop(server, None),
            self._tasks_by_server.pop(server, None),
        )
        if background_tasks is not None:
            background_tasks.cancel()
            await background_tasks.finish()
        if place is not None:
            await self._release(place)

    async def close(self) -> None:
        """Give up all leases of this node. Its servers have ended before."""
        self._probe_tasks.cancel()
        await self._move_tasks.finish()
        for server in list(self._locations):
            await self.forget(server)

    async def _probe(self) -> None:
        """Query an unused lease. By this, a node without leases also notices that it is cut off."""
        while True:
            try:
                async with asyncio.timeout(self._lifetime * RENEW_FRACTION):
                    await self._leases.holder(_name(""))
                self._peers.doubt("")
            except (Unavailable, TimeoutError) as error:
                self._peers.doubt(_UNKNOWN)
                log.debug("leases cannot be asked after: %s", error)
            await asyncio.sleep(self._lifetime * RENEW_FRACTION)

    async def look(self, location: ServerLocation) -> None:
        """Take or renew the lease, or look up its holder, and start the resulting move."""
        held, asked_at = location.lease, self._now()
        try:
            async with asyncio.timeout(self._next_check_seconds(location)):
                is_new = await self._query_holder(location, asked_at)
            self._peers.doubt("")
        except (Unavailable, TimeoutError) as error:
            self._peers.doubt(_UNKNOWN)
            log.info(
                "The lease of %r could not be confirmed: %s",
                location.server,
                error or "no answer came",
            )
            is_new = held is not None and not location.is_here and location.set_other_holder(None)
        if is_new:
            self._publish_runs(location, held)
            if location.on_moved is not None:
                # A task, because a move may take long and the leases must be renewed meanwhile.
                self._move_tasks.start(location.on_moved(), at_once=True)

    async def _query_holder(self, location: ServerLocation, asked_at: float) -> bool:
        if location.lease is not None:
            if await self._leases.renew(location.lease):
                return location.set_held(location.lease, asked_at)
            return location.set_other_holder(None)
        taken = None
        if location.may_bid():
            taken = await self._leases.take(_name(location.server), self._peers.me.id)
        if taken is not None:
            # `take` may return an earlier lease that is partly over. The renewal restarts it.
            asked_at = self._now()
            is_held = await self._leases.renew(taken)
            return (
                location.set_held(taken, asked_at) if is_held else location.set_other_holder(None)
            )
        found = await self._leases.holder(_name(location.server))
        # A lease that this node took without receiving the answer expires by itself.
        another = found is not None and found.holder != self._peers.me.id
        return location.set_other_holder(found.holder if found is not None and another else None)

    def _next_check_seconds(self, location: ServerLocation) -> float:
        if location.lease is None:
            return self._lifetime * RENEW_FRACTION
        return max(0.0, min(self._lifetime * RENEW_FRACTION, location.seconds_left(DOUBT_FRACTION)))

    def _publish_runs(self, location: ServerLocation, before: Lease | None) -> None:
        if location.lease is not None:
            self._peers.runs[location.server] = location.lease.token
            log.info(
                "This node runs server %r, with lease %d", location.server, location.lease.token
            )
        else:
            self._peers.runs.pop(location.server, None)
            if before is not None:
                log.warning("This node no longer runs server %r", location.server)

    def _start_loop(self, server: str) -> None:
        background_tasks = self._tasks_by_server[server] = BackgroundTasks(
            f"the lease of {server!r}"
        )
        background_tasks.start(self._look_after(self._locations[server]))

    async def _look_after(self, location: ServerLocation) -> None:
        while True:
            try:
                async with asyncio.timeout(self._pause(location)):
                    await location.check_requested.wait()
            except TimeoutError:
                pass
            location.check_requested.clear()
            await self.look(location)

    def _pause(self, location: ServerLocation) -> float:
        """Return the seconds until the next query. They are few while an answer is missing."""
        soon = self._lifetime * _TRY_AGAIN
        if location.lease is not None:
            return min(
                max(location.seconds_left(RENEW_FRACTION), soon),
                max(location.seconds_left(DOUBT_FRACTION), 0.0),
            )
        is_well = location.other_node is not None and self._peers.is_alive(location.other_node)
        return self._lifetime * RENEW_FRACTION if is_well else soon

    async def _release(self, location: ServerLocation) -> None:
        lease = location.lease
        location.set_other_holder(None)
        self._peers.runs.pop(location.server, None)
        if lease is None:
            return
        try:
            async with asyncio.timeout(SOON.total_seconds()):
                await self._leases.release(lease)
        except (Unavailable, TimeoutError) as error:
            log.info(
                "The lease of %r could not be released and will expire: %s", location.server, error
            )

    def _on_peer_changed(self, node: str, is_alive: bool) -> None:
        """Query the leases of a dead node soon, because they expire shortly."""
        if not is_alive:
            for place in self._locations.values():
                if place.other_node == node:
                    place.check_requested.set()


def no_node_error(server: str) -> Unavailable:
    return Unavailable(f"no node that can be reached runs server {server!r}", CUT_OFF, SOON)


def _name(server: str) -> str:
    return f"server.{server}"
