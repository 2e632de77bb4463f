"""Servers that are ended for what they use: nothing for too long, or more memory than they may.

What follows is a row of `rules.restarts`: one that was idle starts again when it is used, one that
took too much has failed. (MGP §11.4, D-22)
"""

import logging
import time
from collections.abc import Callable

from comity.kernel.chores import Chores
from comity.kernel.servers import Server, Servers
from comity.kernel.underway import Underway
from comity.ports.reaching import Measured
from comity.wire.lifecycle import Reason, State

log = logging.getLogger(__name__)


class ServerLimits:
    """Looks at every server once in a while, as far as its operator set it a bound."""

    def __init__(
        self, servers: Servers, underway: Underway, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._servers = servers
        self._underway = underway
        self._now = now
        # How often each was used when that was last looked at, and when it was other than before.
        self._used: dict[str, tuple[int, float]] = {}
        self._retiring: set[str] = set()
        self._chores = Chores("servers that use too little or too much")

    def look(self, patience: float) -> None:
        for server in self._servers:
            if server.state is not State.CONNECTED or server.name in self._retiring:
                self._used.pop(server.name, None)
                continue
            reason = self._why(server)
            if reason is not None:
                self._retiring.add(server.name)
                self._chores.start(self._retire(server, reason))

    async def settle(self) -> None:
        """Until all are ended that were to be."""
        await self._chores.finish()

    def _why(self, server: Server) -> Reason | None:
        options = server.options
        if options.most_memory and self._memory(server) > options.most_memory:
            return Reason.RESOURCE_LIMIT
        # What other nodes use of it is not counted here.
        is_alone = options.restarts_elsewhere is None
        idle = options.stop_when_idle.total_seconds() if is_alone else 0
        return Reason.IDLE_TIMEOUT if idle and self._unused_for(server) >= idle else None

    def _unused_for(self, server: Server) -> float:
        now, used = self._now(), self._times_used(server)
        before, since = self._used.get(server.name, (-1, now))
        if server.pulse.calls or used != before:
            since = now
        self._used[server.name] = (used, since)
        return now - since

    def _times_used(self, server: Server) -> int:
        found = self._underway.count().at(server.name).summed()
        return sum(sum(tally.outcomes.values()) for tally in found)

    def _memory(self, server: Server) -> int:
        """Of the process that all share; one that is a session's own ends with that."""
        shared = server.reached.own or server.reached.modern
        carrier = None if shared is None else shared.link.carrier
        return carrier.memory() if isinstance(carrier, Measured) else 0

    async def _retire(self, server: Server, reason: Reason) -> None:
        try:
            log.info("server %r is ended: %s", server.name, reason)
            await server.retire(reason)
        finally:
            self._retiring.discard(server.name)
