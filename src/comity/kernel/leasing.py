"""Which node runs a server that only one may run: whoever holds its lease, and no longer.

Rule 1: a node counts its lease from when it asked for it, by its own clock, so it knows of the end
        before anybody else can take it. Past half of the lifetime without an answer it lets go; by
        three quarters what it ran has ended, one way or another.
Rule 2: whoever is told a token passes it on with each call, so that what the server works on can
        refuse a holder of before.
Rule 3: what cannot be known is taken for the worse: without an answer nobody begins.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Final

from comity.kernel.chores import Chores
from comity.kernel.peers import Peers
from comity.ports.clustering import Lease, Leases
from comity.wire.errors import CUT_OFF, SERVER_NOT_READY, Unavailable

log = logging.getLogger(__name__)

SOON: Final = timedelta(seconds=1)
RENEW_AT: Final = 1 / 3
DOUBT_AT: Final = 1 / 2
OVER_AT: Final = 3 / 4
_UNKNOWN: Final = "which node runs what cannot be found out"
_TRY_AGAIN: Final = 1 / 12
"""Parts of a lease's lifetime."""


class Place:
    """Where one server runs, as far as this node knows."""

    def __init__(self, server: str, lifetime: float, now: Callable[[], float]) -> None:
        self.server = server
        # What this node holds, and which other node does.
        self.lease: Lease | None = None
        self.elsewhere: str | None = None
        self.is_known = asyncio.Event()
        self.poked = asyncio.Event()
        # Who ends what runs here, starts it here, or turns to another node.
        self.moved: Callable[[], Coroutine[None, None, None]] | None = None
        self.bids: Callable[[], bool] = lambda: True
        self._lifetime = lifetime
        self._now = now
        self._asked_at = 0.0

    @property
    def is_here(self) -> bool:
        """Whether this node may run it now."""
        return self.lease is not None and self.left(DOUBT_AT) > 0

    def left(self, part: float) -> float:
        """How many seconds remain until so much of the lifetime has passed."""
        return self._asked_at + part * self._lifetime - self._now()

    def require(self, lease: Lease) -> None:
        """Raise Unavailable unless this is still the lease by which the server runs here."""
        if self.lease is not lease or not self.is_here:
            raise Unavailable(
                f"this node may not run server {self.server!r} any more", SERVER_NOT_READY, SOON
            )

    def hold(self, lease: Lease, asked_at: float) -> bool:
        """Note that this node holds it since it asked; whether that is new."""
        is_new = self.lease != lease
        self._asked_at = asked_at
        if is_new:
            self.lease, self.elsewhere = lease, None
        self.is_known.set()
        return is_new

    def is_held_by(self, node: str | None) -> bool:
        """Note that another node holds it, or that nobody does; whether that is new."""
        is_new = self.lease is not None or self.elsewhere != node
        self.lease, self.elsewhere = None, node
        if node is None:
            self.is_known.clear()
        else:
            self.is_known.set()
        return is_new


class Leasing:
    """Every server that only one node may run."""

    def __init__(self, leases: Leases, peers: Peers, now: Callable[[], float]) -> None:
        self._leases = leases
        self._peers = peers
        self._now = now
        self._lifetime = leases.lifetime.total_seconds()
        self._places: dict[str, Place] = {}
        self._chores: dict[str, Chores] = {}
        self._probing = Chores("leases")
        self._moves = Chores("what moves between nodes")
        self._is_started = False
        peers.watch(self._peer_changed)

    @property
    def lifetime(self) -> float:
        return self._lifetime

    def __iter__(self) -> Iterator[Place]:
        return iter(list(self._places.values()))

    def place(self, server: str) -> Place:
        """Where a server of that name runs; from now on that is looked after."""
        if server not in self._places:
            self._places[server] = Place(server, self._lifetime, self._now)
            if self._is_started:
                self._keep(server)
        return self._places[server]

    async def start(self) -> None:
        """Find out for each who runs it, as far as that is known soon; then look after them."""
        self._is_started = True
        async with asyncio.TaskGroup() as first:
            for place in self._places.values():
                first.create_task(self.look(place))
        for server in self._places:
            self._keep(server)
        self._probing.start(self._probe())

    async def forget(self, server: str) -> None:
        """A server is there no more: let another have it."""
        place, chores = self._places.pop(server, None), self._chores.pop(server, None)
        if chores is not None:
            chores.cancel()
            await chores.finish()
        if place is not None:
            await self._give_up(place)

    async def close(self) -> None:
        """Let the others have all that this node held; what ran here has ended before."""
        self._probing.cancel()
        await self._moves.finish()
        for server in list(self._places):
            await self.forget(server)

    async def _probe(self) -> None:
        """Ask after nothing: a node that holds nothing is to notice as well that it is cut off."""
        while True:
            try:
                async with asyncio.timeout(self._lifetime * RENEW_AT):
                    await self._leases.holder(_name(""))
                self._peers.doubt("")
            except (Unavailable, TimeoutError) as error:
                self._peers.doubt(_UNKNOWN)
                log.debug("leases cannot be asked after: %s", error)
            await asyncio.sleep(self._lifetime * RENEW_AT)

    async def look(self, place: Place) -> None:
        """Take the lease, or renew it, or learn who has it; and do what follows from that."""
        held, asked_at = place.lease, self._now()
        try:
            async with asyncio.timeout(self._patience(place)):
                is_new = await self._ask(place, asked_at)
            self._peers.doubt("")
        except (Unavailable, TimeoutError) as error:
            self._peers.doubt(_UNKNOWN)
            log.info("the lease of %r is in doubt: %s", place.server, error or "no answer came")
            is_new = held is not None and not place.is_here and place.is_held_by(None)
        if is_new:
            self._note(place, held)
            if place.moved is not None:
                # It may take its time; what is held has to be renewed meanwhile.
                self._moves.start(place.moved(), at_once=True)

    async def _ask(self, place: Place, asked_at: float) -> bool:
        if place.lease is not None:
            if await self._leases.renew(place.lease):
                return place.hold(place.lease, asked_at)
            return place.is_held_by(None)
        taken = None
        if place.bids():
            taken = await self._leases.take(_name(place.server), self._peers.me.id)
        if taken is not None:
            # It may be one of before, of which some time is over.
            asked_at = self._now()
            is_held = await self._leases.renew(taken)
            return place.hold(taken, asked_at) if is_held else place.is_held_by(None)
        found = await self._leases.holder(_name(place.server))
        # What this node holds by an answer that was lost comes to its end by itself.
        another = found is not None and found.holder != self._peers.me.id
        return place.is_held_by(found.holder if found is not None and another else None)

    def _patience(self, place: Place) -> float:
        if place.lease is None:
            return self._lifetime * RENEW_AT
        return max(0.0, min(self._lifetime * RENEW_AT, place.left(DOUBT_AT)))

    def _note(self, place: Place, before: Lease | None) -> None:
        if place.lease is not None:
            self._peers.runs[place.server] = place.lease.token
            log.info("server %r is run by this node, by lease %d", place.server, place.lease.token)
        else:
            self._peers.runs.pop(place.server, None)
            if before is not None:
                log.warning("server %r is not run by this node any more", place.server)

    def _keep(self, server: str) -> None:
        chores = self._chores[server] = Chores(f"the lease of {server!r}")
        chores.start(self._look_after(self._places[server]))

    async def _look_after(self, place: Place) -> None:
        while True:
            try:
                async with asyncio.timeout(self._pause(place)):
                    await place.poked.wait()
            except TimeoutError:
                pass
            place.poked.clear()
            await self.look(place)

    def _pause(self, place: Place) -> float:
        """Until it is to be asked again: soon, where an answer is missing."""
        soon = self._lifetime * _TRY_AGAIN
        if place.lease is not None:
            return min(max(place.left(RENEW_AT), soon), max(place.left(DOUBT_AT), 0.0))
        is_well = place.elsewhere is not None and self._peers.is_alive(place.elsewhere)
        return self._lifetime * RENEW_AT if is_well else soon

    async def _give_up(self, place: Place) -> None:
        lease = place.lease
        place.is_held_by(None)
        self._peers.runs.pop(place.server, None)
        if lease is None:
            return
        try:
            async with asyncio.timeout(SOON.total_seconds()):
                await self._leases.give_up(lease)
        except (Unavailable, TimeoutError) as error:
            log.info("the lease of %r ends by itself: %s", place.server, error)

    def _peer_changed(self, node: str, is_alive: bool) -> None:
        """Whoever is gone holds nothing for long."""
        if not is_alive:
            for place in self._places.values():
                if place.elsewhere == node:
                    place.poked.set()


def nowhere(server: str) -> Unavailable:
    return Unavailable(f"no node that can be reached runs server {server!r}", CUT_OFF, SOON)


def _name(server: str) -> str:
    return f"server.{server}"
