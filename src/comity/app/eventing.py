"""The plane of events, joined: what happens here is told to those who follow it. (MGP §13)"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from comity.app.asking import Asking
from comity.app.auditing import Auditing
from comity.app.journaling import Journaling
from comity.kernel.callback_methods import CallbackMethods
from comity.kernel.event_methods import EventMethods
from comity.kernel.event_servers import EventServers
from comity.kernel.event_sources import Sources
from comity.kernel.events import Events
from comity.kernel.grants import Judge
from comity.kernel.requesting import Requesting
from comity.kernel.servers import Servers
from comity.kernel.switchboard import AllServers


class Reconfigured(Protocol):
    """Who knows that the settings are other ones, and which servers are concerned."""

    configured: Callable[[Mapping[str, object]], None] | None


@dataclass(frozen=True, slots=True)
class Eventing:
    """Who follows what happens, and who tells of it."""

    events: Events
    sources: Sources
    servers: EventServers

    def hear(self, settings: Reconfigured, requesting: Requesting) -> None:
        """Have also told what is decided beside all calls: other settings, and other tools."""
        settings.configured = self.sources.configured
        requesting.belts.settled = self.sources.budgeted

    async def stop(self) -> None:
        """Subscribe to nothing any more; it is to end."""
        self.events.stop()
        await self.servers.stop()


def tell_events(
    journaling: Journaling,
    audit: Auditing,
    servers: Servers,
    judge: Judge,
    everything: AllServers,
    asking: Asking,
) -> Eventing:
    """Have events told, and callbacks answered, at the door of all servers."""
    CallbackMethods(asking.approvals).join(everything.methods)
    events = Events(judge, audit.counts, journaling.journal.clock)
    sources = Sources(events, journaling.journal, journaling.recorder, journaling.redact)
    servers.watch(sources.stepped)
    methods = EventMethods(events)
    methods.join(everything.methods)
    everything.subscriptions.events = methods
    return Eventing(events, sources, EventServers(events, servers))
