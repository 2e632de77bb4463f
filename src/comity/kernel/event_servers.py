"""What servers tell, heard at their links and passed on as theirs. (MGP §13.3, D-99)

Rule 1: a server is subscribed to on the gateway's own link, and only for what somebody follows who
        may know that server.
Rule 2: what a server tells is its word: it bears the server's name, stands on no channel of the
        gateway's own, and was asked for. Everything else is dropped.
Rule 3: a server that tells too much is cut off for a while, and whoever may know it is told so.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.kernel.chores import Chores
from comity.kernel.event_ears import Ear
from comity.kernel.events import Events, Following, Found
from comity.kernel.pulse import Speaking
from comity.kernel.servers import Server, Servers, Transition
from comity.kernel.terms import Shared
from comity.rules.event_wants import MOST_WANTED, Wants
from comity.rules.events import id_of, severity_of
from comity.rules.standard_channels import CUT_OFF, STANDARD
from comity.wire.errors import MalformedMessage
from comity.wire.events import NOTICE, Event, Told, told_in
from comity.wire.jsonrpc import Frame
from comity.wire.lifecycle import State
from comity.wire.negotiation import Extension

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Flood:
    """How much a server may tell in a while, and how long nobody hears it after more."""

    most: int = 1_000
    window: timedelta = timedelta(seconds=10)
    pause: timedelta = timedelta(seconds=60)


FLOOD: Final = Flood()


class _Source:
    """One server that is there and can be subscribed to."""

    def __init__(self, name: str, shared: Shared, *, is_modern: bool) -> None:
        self.name = name
        self.shared = shared
        self.is_modern = is_modern
        self.ears: dict[str, Ear] = {}
        self.is_cut_off = False
        self._since = 0.0
        self._told = 0

    def takes(self, now: float, flood: Flood) -> bool:
        """Whether one more is within bounds."""
        if now - self._since >= flood.window.total_seconds():
            self._since, self._told = now, 0
        self._told += 1
        return self._told <= flood.most

    def hears(self, told: Told) -> bool:
        return any(ear.hears(told.subscription, told.channel) for ear in self.ears.values())

    def ear(self, name: str) -> Ear:
        found = self.ears.get(name)
        if found is None:
            found = self.ears[name] = Ear(self.shared, name, is_modern=self.is_modern)
        return found

    def close(self) -> None:
        for ear in self.ears.values():
            ear.close()
        self.ears.clear()


class EventServers:
    """Every server whose events somebody follows."""

    def __init__(self, events: Events, servers: Servers, flood: Flood = FLOOD) -> None:
        self._events = events
        self._servers = servers
        self._flood = flood
        self._wants = Wants[Following]()
        # What other nodes want of servers that run here alone.
        self._wants_elsewhere = Wants[str](most_of_party=MOST_WANTED)
        self.is_only_here: Callable[[str], bool] = lambda _: False
        self._sources: dict[str, _Source] = {}
        self._chores = Chores("what servers tell")
        servers.watch(self._stepped)
        events.beyond.append(self)

    def __len__(self) -> int:
        return sum(len(source.ears) for source in self._sources.values())

    async def find(self, names: Sequence[str], following: Following) -> Found:
        admitted = self._wants.add(names, following, following.actor.party)
        known = [s for s in self._sources.values() if self._events.knows(following.actor, s.name)]
        return await self._found(known, admitted)

    async def find_for_node(self, names: Sequence[str], node: str) -> Found:
        """All that another node wants of the servers that run here alone."""
        dropped = self._wants_elsewhere.drop(node)
        admitted = self._wants_elsewhere.add(names, node, node)
        if dropped:
            self._give_up()
        here = [each for each in self._sources.values() if self.is_only_here(each.name)]
        return await self._found(here, admitted)

    def forget(self, following: Following) -> None:
        if self._wants.drop(following):
            self._give_up()

    def known(self) -> Found:
        return {
            source.name: [channel for ear in source.ears.values() for channel in ear.channels]
            for source in self._sources.values()
        }

    async def stop(self) -> None:
        self._chores.cancel()
        ears = [ear for source in self._sources.values() for ear in source.ears.values()]
        self._sources.clear()
        await asyncio.gather(*(ear.closed() for ear in ears))

    async def _found(self, sources: Sequence[_Source], names: Sequence[str]) -> Found:
        ears = [
            (source.name, source.ear(name))
            for source in sources
            for name in names
            if not source.is_cut_off
        ]
        found: dict[str, list[str]] = {}
        for (server, _), channels in zip(
            ears, await asyncio.gather(*(ear.found() for _, ear in ears)), strict=True
        ):
            found.setdefault(server, []).extend(channels)
        return found

    def _give_up(self) -> None:
        for source in self._sources.values():
            for name in [each for each in source.ears if not self._is_wanted(source, each)]:
                source.ears.pop(name).close()

    def _is_wanted(self, source: _Source, name: str) -> bool:
        knows = self._events.knows
        if any(knows(each.actor, source.name) for each in self._wants.of(name)):
            return True
        return name in self._wants_elsewhere and self.is_only_here(source.name)

    def _stepped(self, step: Transition) -> None:
        server = self._servers.get(step.server)
        if step.state is State.CONNECTED and server is not None:
            self._end(step.server)
            self._begin(server)
        elif step.state is not State.DRAINING:
            self._end(step.server)

    def _begin(self, server: Server) -> None:
        shared = server.reached.own or server.reached.modern
        terms = None if shared is None else shared.link.mgp
        if shared is None or terms is None or Extension.BIDIRECTIONAL not in terms.extensions:
            return
        source = _Source(server.name, shared, is_modern=server.reached.own is None)
        self._sources[server.name] = source
        server.pulse.notices[NOTICE] = self._heard
        self._listen(source)

    def _listen(self, source: _Source) -> None:
        """Subscribe to all that is wanted of a server that has just come."""
        for name in (*self._wants, *self._wants_elsewhere):
            if self._is_wanted(source, name):
                source.ear(name)

    def _end(self, name: str) -> None:
        source = self._sources.pop(name, None)
        if source is not None:
            source.close()

    def _heard(self, link: Speaking, frame: Frame) -> None:
        """A server tells something; whatever it says, nothing is raised."""
        source = self._sources.get(link.server)
        if source is None or source.is_cut_off or source.shared.link is not link:
            return
        if not source.takes(asyncio.get_running_loop().time(), self._flood):
            self._cut_off(source)
            return
        try:
            told = told_in(frame.params)
        except MalformedMessage as error:
            log.info("server %r: %s", link.server, error)
            return
        if told.channel in STANDARD or not source.hears(told):
            log.info("server %r tells of %s unasked", link.server, told.channel)
            return
        at, severity = told.at(self._events.clock()), severity_of(told.severity)
        name, server = id_of(told), link.server
        event = Event(name, told.channel, at, severity, told.data, server, source=server)
        self._events.publish(event)

    def _cut_off(self, source: _Source) -> None:
        source.is_cut_off = True
        source.close()
        seconds = self._flood.pause.total_seconds()
        log.warning(
            "server %r tells more than %d events in %s; for %d s nobody hears it",
            *(source.name, self._flood.most, self._flood.window, seconds),
        )
        self._events.tell(CUT_OFF, {"server_id": source.name}, source.name)
        self._chores.start(self._resume(source))

    async def _resume(self, source: _Source) -> None:
        await asyncio.sleep(self._flood.pause.total_seconds())
        source.is_cut_off = False
        if self._sources.get(source.name) is source:
            self._listen(source)
