"""How a server is reached that only one node runs: as a process here, or through the node it is at.

Rule 1: what runs here gets its fence when it starts (in its environment) and with each call.
Rule 2: nothing is said to it that is not covered by the lease at that moment, by our own clock; a
        gateway that stood still for a while finds that out before it speaks.
Rule 3: when the lease is lost it is ended at once, and killed where it does not go in time.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from comity.kernel.leasing import OVER_AT, Place
from comity.ports import Carrier, Headers, Reach, Receiver
from comity.ports.clustering import Lease
from comity.wire import jsonrpc, mcp
from comity.wire.errors import Unavailable
from comity.wire.jsonrpc import Frame
from comity.wire.mcp import Era, Stream

log = logging.getLogger(__name__)

FENCE: Final = "dev.comity/fence"
"""Where in a call's `_meta` its server finds the token of the lease it runs by."""

FENCE_VARIABLE: Final = "COMITY_FENCE"
NODE_VARIABLE: Final = "COMITY_NODE"


class Relay(Protocol):
    """How the server is reached while another node runs it."""

    def carrier(self, era: Era) -> Carrier: ...


class Placed:
    """One server of which there is one in the whole cluster."""

    def __init__(
        self,
        place: Place,
        eras: frozenset[Era],
        here: Callable[[Lease], Reach],
        there: Relay,
    ) -> None:
        self._place = place
        self._eras = eras
        self._here = here
        self._there = there
        self._made: set[Fenced] = set()

    @property
    def costs_a_process(self) -> bool:
        return self._place.lease is not None

    def carrier(self, era: Era) -> Carrier:
        lease = self._place.lease
        if lease is None:
            return self._there.carrier(era)
        made = Fenced(self._here(lease).carrier(era), self._place, lease, self._made.discard)
        made.is_refused = era not in self._eras
        self._made.add(made)
        return made

    async def end(self) -> None:
        """End all that runs here, before anybody else may begin."""
        because = f"this node may not run server {self._place.server!r} any more"
        await asyncio.gather(*(each.end(because) for each in list(self._made)))


class Fenced:
    """A process of the server's, and the lease that it runs by."""

    def __init__(
        self, carrier: Carrier, place: Place, lease: Lease, forget: "Callable[[Fenced], object]"
    ) -> None:
        self.is_refused = False
        self._carrier = carrier
        self._place = place
        self._lease = lease
        self._forget = forget
        self._receiver: Receiver | None = None
        self._closing: asyncio.Future[None] | None = None

    @property
    def tells_streams_apart(self) -> bool:
        return self._carrier.tells_streams_apart

    @property
    def ended_well(self) -> bool:
        return self._carrier.ended_well

    async def open(self, receiver: Receiver) -> None:
        if self.is_refused:
            raise Unavailable("it may not be spoken to in this era")
        self._place.require(self._lease)
        self._receiver = receiver
        await self._carrier.open(receiver)

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        self._place.require(self._lease)
        if frame.method == mcp.CALL_TOOL:
            frame = fenced(frame, self._lease.token)
        self._carrier.send(frame, stream, headers)

    def speaks(self, version: str) -> None:
        self._carrier.speaks(version)

    def listen(self) -> None:
        self._carrier.listen()

    def pause(self, stream: Stream) -> None:
        self._carrier.pause(stream)

    def resume(self, stream: Stream) -> None:
        self._carrier.resume(stream)

    def abandon(self, stream: Stream) -> None:
        self._carrier.abandon(stream)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._carrier.close())
            self._closing.add_done_callback(lambda _: self._forget(self))
        try:
            await asyncio.wait([self._closing])
        except asyncio.CancelledError:
            # Whoever waits no longer is in a hurry: it is killed.
            self._closing.cancel()
            raise

    def hints(self) -> Sequence[str]:
        return self._carrier.hints()

    async def end(self, because: str) -> None:
        """Take no more calls, tell those who wait, and be gone before the lease is."""
        if self._receiver is not None:
            self._receiver.closed(because)
        try:
            async with asyncio.timeout(max(0.0, self._place.left(OVER_AT))):
                await self.close()
        except TimeoutError:
            log.warning("server %r does not go in time, and is killed", self._place.server)


def fenced(frame: Frame, token: int) -> Frame:
    """The call with the token of the lease under which it is made."""
    params = jsonrpc.params_of(frame)
    meta = jsonrpc.members(params["_meta"]) if "_meta" in params else {}
    told = {**params, "_meta": {**meta, FENCE: token}}
    return jsonrpc.with_params(frame, jsonrpc.to_raw(told))


def environment(lease: Lease) -> dict[str, str]:
    """What a server is told of its lease when it starts."""
    return {FENCE_VARIABLE: str(lease.token), NODE_VARIABLE: lease.holder}
