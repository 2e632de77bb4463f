"""The gateway's own part of MGP at the door of all servers: who is there, and how they fare.

It answers for itself what MGP asks of a server, and tells of every change of a server's state those
who agreed to be told. What a server tells of itself goes no further. (MGP §11, §15.2, D-21)

Rule 1: everybody hears only of the servers that are for it to know.
Rule 2: the gateway is healthy where all of them are connected, unhealthy where there are some and
        each of them is in error, and degraded otherwise, as it is on its way to its end.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from msgspec import Raw

from comity.kernel.audit import Notices
from comity.kernel.catalog import Kind
from comity.kernel.gate import Gate
from comity.kernel.own_life import OwnLife
from comity.kernel.own_methods import Asked, OwnMethods
from comity.kernel.servers import Server, Servers, Transition
from comity.kernel.sessions import Session
from comity.kernel.underway import Underway
from comity.rules.discovery import Filter, Listed
from comity.rules.negotiation import TO_CLIENTS, TO_SERVERS, Terms, agree, offer, remark
from comity.wire import jsonrpc, lifecycle
from comity.wire.lifecycle import Reason, State, Status
from comity.wire.negotiation import LIST_SERVERS, Extension, declare, stated, without
from comity.wire.parties import Actor

log = logging.getLogger(__name__)

OURSELVES: Final = "system:gateway"
_TO_SERVERS: Final = {"mgp": jsonrpc.to_raw(offer(TO_SERVERS))}


class Presence:
    """What is known of the servers, for clients that speak MGP with the gateway."""

    def __init__(self, servers: Servers, gate: Gate, underway: Underway) -> None:
        self._servers = servers
        self._gate = gate
        self._underway = underway
        self._began = asyncio.get_running_loop().time()
        self._listening: dict[Session, Actor] = {}
        # What a server is offered of MGP where only a plain client is there to hear it.
        self.for_plain: Mapping[str, Raw] = {}
        # Who tells of all else that happens, where it is written down.
        self.audit: Notices | None = None
        # What is known of this process, and who may end it.
        self.own: OwnLife | None = None
        self._is_leaving = False
        servers.watch(self.changed)

    def __len__(self) -> int:
        return len(self._listening)

    def agree(self, session: Session) -> Raw:
        """Speak of MGP with a client, whose servers hear only what the gateway says. (D-95)"""
        asked = jsonrpc.to_raw(session.capabilities)
        said = stated(asked)
        session.mgp = agree(said, TO_CLIENTS)
        strange = remark(said)
        if strange is not None:
            log.warning("a client %s", strange)
        # With a plain client's calls a server speaks plainly too, where it can tell them apart.
        offered = self.for_plain if session.mgp is None else _TO_SERVERS
        session.capabilities = {**without(session.capabilities), **offered}
        hello = jsonrpc.members(session.hello)
        session.hello = jsonrpc.to_raw({**hello, "capabilities": session.capabilities})
        return asked

    def attach(self, session: Session, actor: Actor) -> None:
        """Tell a session of changes from now on, if it agreed to that."""
        if session.mgp is not None and Extension.LIFECYCLE in session.mgp.extensions:
            self._listening[session] = actor
            session.farewells[self] = lambda: self._forget(session)
        if self.audit is not None:
            self.audit.attach(session, actor)

    def _forget(self, session: Session) -> None:
        self._listening.pop(session, None)

    def join(self, methods: OwnMethods) -> None:
        """Have the gateway's own answers given at the door of all servers."""
        methods.add(LIST_SERVERS, Extension.DISCOVERY, self._list)
        methods.add(lifecycle.HEALTH_PING, Extension.LIFECYCLE, self._ping)
        methods.add(lifecycle.HEALTH_STATUS, Extension.LIFECYCLE, self._status)
        methods.add(lifecycle.SHUTDOWN, Extension.LIFECYCLE, self._shut_down)

    def changed(self, step: Transition) -> None:
        """A server went from one state to another: say so to whoever listens and may know it."""
        notice = lifecycle.changed(step.server, step.previous, step.state, step.reason, step.at)
        for session, actor in self._listening.items():
            if self._gate.tells(actor, step.server):
                session.tell(notice)

    def leave(self) -> None:
        """The gateway itself is going: say so to whoever listens, once."""
        if self._is_leaving:
            return
        self._is_leaving = True
        reason = Reason.KERNEL_SHUTDOWN if self.own is None else self.own.reason
        steps = (OURSELVES, State.CONNECTED, State.DRAINING, reason, datetime.now(UTC))
        for session in self._listening:
            session.tell(lifecycle.changed(*steps))

    def _known(self, actor: Actor) -> list[Server]:
        within = self._gate.in_sight(actor)
        found = self._servers if within is None else map(self._servers.get, sorted(within))
        return [each for each in found if each is not None and self._gate.knows(actor, each.name)]

    async def _list(self, asked: Asked) -> dict[str, object]:
        wanted, actor = Filter.parse(asked.params), asked.actor
        listed = [self._listed(actor, server) for server in self._known(actor)]
        return {"servers": [each.shown() for each in listed if wanted.lets_through(each)]}

    def _listed(self, actor: Actor, server: Server) -> Listed:
        reached = server.reached
        return Listed(
            server.name,
            server.state,
            tuple(self._gate.names(actor, Kind.TOOL, server.name)),
            met=bool(reached.hello or reached.discovered),
            said=reached.stated,
            declared=reached.declared,
        )

    async def _ping(self, asked: Asked) -> dict[str, object]:
        return {
            "status": self._health(self._known(asked.actor)),
            "timestamp": lifecycle.moment(datetime.now(UTC)),
            "uptime_secs": self._uptime(),
            "server_id": OURSELVES,
        }

    async def _status(self, asked: Asked) -> dict[str, object]:
        known = self._known(asked.actor)
        tools = {s.name: self._gate.count(asked.actor, Kind.TOOL, s.name) for s in known}
        there = {server.name: server.state is State.CONNECTED for server in known}
        return {
            "status": self._health(known),
            "uptime_secs": self._uptime(),
            "tools_available": sum(count for name, count in tools.items() if there[name]),
            "tools_total": sum(tools.values()),
            # The question itself is one that waits.
            "pending_requests": len(self._underway) - 1,
            "resources": {} if self.own is None else self.own.resources(asked.actor),
            "checks": there,
        }

    async def _shut_down(self, asked: Asked) -> dict[str, object]:
        """Others are served here too: few can end the gateway, and only where that is wanted."""
        pending, own = len(self._underway) - 1, self.own
        if own is None or not own.may_end(asked.actor):
            return {"accepted": False, "pending_requests": pending, "estimated_drain_ms": 0}
        own.begin_end(asked.actor, lifecycle.shutdown_in(asked.params), asked.call.trace)
        return {
            "accepted": True,
            "pending_requests": pending,
            "estimated_drain_ms": own.drain_ms(pending),
        }

    def _health(self, known: Iterable[Server]) -> Status:
        states = {server.state for server in known}
        if states == {State.ERROR}:
            return Status.UNHEALTHY
        whole = states <= {State.CONNECTED} and not self._is_leaving
        return Status.HEALTHY if whole else Status.DEGRADED

    def _uptime(self) -> int:
        return int(asyncio.get_running_loop().time() - self._began)


def with_mgp(
    capabilities: Mapping[str, Mapping[str, object]], terms: Terms | None, asked: Raw
) -> Mapping[str, Mapping[str, object]]:
    """Answer who spoke of MGP with what was agreed on; nobody else hears of it. (MGP §2.4)"""
    if terms is None:
        return capabilities
    return declare(capabilities, offer(terms.extensions, {"server_id": OURSELVES}), asked)
