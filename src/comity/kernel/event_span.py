"""Events across nodes: whoever follows at one node hears of what happens at all of them.

Rule 1: each node says what is followed there, when that changes and whenever somebody may have
        missed it; so nothing is sent that nobody wants.
Rule 2: a server that one node alone runs is subscribed to by that node, for all. What other servers
        tell is heard at each node by itself.
Rule 3: it is best effort: while a node cannot be heard, what happens there is lost to the others.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from comity.kernel.chores import Chores
from comity.kernel.event_ears import ANSWER_SECONDS
from comity.kernel.event_servers import EventServers
from comity.kernel.events import Events, Following, Found
from comity.kernel.peers import Peers
from comity.ports.clustering import Bus, Heard, Interest
from comity.rules.events import covers
from comity.rules.standard_channels import STANDARD
from comity.wire import event_span
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.event_span import Happened, Has, Wants
from comity.wire.events import ALL, Event

log = logging.getLogger(__name__)

GATHER_SECONDS: Final = 0.05
PATIENCE_SECONDS: Final = ANSWER_SECONDS + 1.0
MOST_NAMES: Final = 512
"""A node that follows more than so many names is told everything."""


class EventSpan:
    """The way of events between this node and the others."""

    def __init__(self, bus: Bus, peers: Peers, events: Events, servers: EventServers) -> None:
        self._bus = bus
        self._peers = peers
        self._events = events
        self._servers = servers
        self._me = peers.me.id
        self._elsewhere: dict[str, tuple[str, ...]] = {}
        self._known: dict[str, Found] = {}
        self._announced: tuple[str, ...] = ()
        self._is_gathering = False
        self._interests: list[Interest] = []
        self._chores = Chores("events at other nodes")

    async def open(self) -> None:
        self._interests = [
            await self._bus.subscribe(self._subject("told"), self._told),
            await self._bus.subscribe(self._subject("wanted"), self._wanted),
        ]
        self._events.span = self._say
        self._events.beyond.append(self)
        self._events.switches.append(lambda _: self._gather())
        self._bus.watch(self._changed)
        self._peers.watch(self._appeared)

    async def close(self) -> None:
        self._events.span = None
        self._chores.cancel()
        for interest in self._interests:
            await interest.close()

    # What is wanted here

    async def find(self, names: Sequence[str], following: Following) -> Found:
        """Ask every node for what is followed here now, and wait for each, but not for ever."""
        del names, following
        found: dict[str, list[str]] = {}
        waited_for = {peer.node.id for peer in self._peers}
        if not waited_for:
            return found
        all_here = asyncio.Event()

        def hear(heard: Heard) -> None:
            has = _read(heard)
            if not isinstance(has, Has):
                return
            self._known[has.node] = has.found
            for server, channels in has.found.items():
                found.setdefault(server, []).extend(channels)
            waited_for.discard(has.node)
            if not waited_for:
                all_here.set()

        await self._ask(hear, all_here)
        return found

    async def _ask(self, hear: Callable[[Heard], None], all_here: asyncio.Event) -> None:
        try:
            inbox = self._bus.inbox()
            interest = await self._bus.subscribe(inbox, hear)
        except Unavailable as error:
            log.info("other nodes cannot be asked for channels: %s", error)
            return
        try:
            self._announce(inbox)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await all_here.wait()
        except (TimeoutError, Unavailable) as error:
            log.info("not all nodes say which channels they have: %s", error or "in time")
        finally:
            await interest.close()

    def forget(self, following: Following) -> None:
        """What is followed here is told anew with every change."""

    def known(self) -> Found:
        return {server: names for found in self._known.values() for server, names in found.items()}

    def _names(self) -> tuple[str, ...]:
        names = tuple(sorted(self._events.wanted()))
        return names if len(names) <= MOST_NAMES else (ALL,)

    def _gather(self) -> None:
        """Changes within a moment are told as one."""
        if not self._is_gathering and self._names() != self._announced:
            self._is_gathering = True
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell)

    def _tell(self) -> None:
        self._is_gathering = False
        try:
            self._announce()
        except Unavailable as error:
            # It is told again as soon as somebody can hear it.
            log.debug("other nodes do not hear what is followed here: %s", error)

    def _announce(self, reply: str = "") -> None:
        names = self._names()
        wants = event_span.encode(Wants(self._me, names))
        self._bus.publish(self._subject("wanted"), wants, reply)
        self._announced = names

    # What is wanted elsewhere

    def _wanted(self, heard: Heard) -> None:
        wants = _read(heard)
        if not isinstance(wants, Wants) or wants.node == self._me:
            return
        self._note(wants.node, wants.names)
        self._chores.start(self._find(wants, heard.reply), at_once=True)

    def _note(self, node: str, names: tuple[str, ...]) -> None:
        if names:
            self._elsewhere[node] = names
        else:
            self._elsewhere.pop(node, None)
        self._events.want_elsewhere(bool(self._elsewhere))

    async def _find(self, wants: Wants, reply: str) -> None:
        beyond = [name for name in wants.names if name not in STANDARD]
        found = await self._servers.find_for_node(beyond, wants.node)
        if not reply:
            return
        has = Has(self._me, {server: tuple(names) for server, names in found.items()})
        try:
            self._bus.publish(reply, event_span.encode(has))
        except Unavailable as error:
            log.debug("a node cannot be answered: %s", error)

    def _say(self, event: Event) -> None:
        """Tell the others, if one of them wants it and does not hear it by itself."""
        if event.source and not self._servers.is_only_here(event.source):
            return
        wanted = self._elsewhere.values()
        if not any(covers(name, event.channel) for names in wanted for name in names):
            return
        try:
            said = event_span.encode(event_span.happened(self._me, event))
            self._bus.publish(self._subject("told"), said)
        except (Unavailable, MalformedMessage) as error:
            log.debug("other nodes do not hear of %s: %s", event.channel, error)

    def _told(self, heard: Heard) -> None:
        said = _read(heard)
        if isinstance(said, Happened) and said.node != self._me:
            self._events.arrived(said.event())

    # Whom can be heard

    def _appeared(self, node: str, is_alive: bool) -> None:
        if is_alive:
            self._tell()
            return
        self._known.pop(node, None)
        self._note(node, ())
        self._chores.start(self._find(Wants(node, ()), ""))

    def _changed(self, is_connected: bool) -> None:
        if is_connected:
            self._tell()

    def _subject(self, what: str) -> str:
        return f"{self._peers.prefix}.events.{what}"


def _read(heard: Heard) -> event_span.Spanned | None:
    try:
        return event_span.decode(heard.data)
    except MalformedMessage as error:
        log.warning("%s", error)
        return None
