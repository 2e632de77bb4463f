"""The links to one server: the gateway's own, those of sessions, and those that many share.

Over HTTP a link is cheap, so each session has its own. A stdio server is one process, whatever era
its clients speak: where it shakes hands, clients of the modern era come over the bridge.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from msgspec import Raw

from comity.kernel.apart import Apart
from comity.kernel.chores import Chores
from comity.kernel.freshness import Freshness
from comity.kernel.links import Link
from comity.kernel.listing import Listing, envelope
from comity.kernel.once import Once
from comity.kernel.patience import Patience
from comity.kernel.permits import Meeting
from comity.kernel.pulse import Live, Pulse, Questions, Streams
from comity.kernel.sessions import Session
from comity.kernel.sharing import Sharers
from comity.kernel.terms import (
    STANDARD_TERMS,
    Shared,
    SharedLinks,
    greeting,
    plain_terms,
    speaks_live,
    with_live,
    with_stand_in,
)
from comity.ports import Reach
from comity.rules.backoff import Backoff
from comity.rules.negotiation import TO_SERVERS, agree, remark
from comity.wire import features, jsonrpc, mcp
from comity.wire.errors import SERVER_NOT_READY, MalformedMessage, Unavailable
from comity.wire.jsonrpc import LIMITS, UNSET, Frame, Limits
from comity.wire.mcp import Era
from comity.wire.negotiation import Extension, Statement, silenced, stated

log = logging.getLogger(__name__)

PROBE_SECONDS: Final = 10.0
MOST_BRIDGES: Final = 256
BOTH_ERAS: Final = frozenset(Era)


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How a server may be spoken to."""

    eras: frozenset[Era] = BOTH_ERAS
    own_process_for_each_session: bool = False
    start_within: timedelta = timedelta(seconds=60)
    backoff: Backoff = field(default_factory=Backoff)
    limits: Limits = LIMITS
    # What its operator wrote of it before anybody had met it. (MGP §15.3)
    declared: Statement | None = None
    # Who decides what it may do, once it has said what it needs. (MGP §3)
    meet: Callable[[Meeting], Awaitable[None]] | None = None
    # Who puts before people what it asks of them.
    questions: Questions | None = None
    # Who passes on what its calls tell before their end.
    streaming: Streams | None = None
    # Who is its host, where it does more than answer.
    live: Live | None = None


class Reached:
    """One server as it is reached just now."""

    def __init__(
        self,
        name: str,
        reach: Reach,
        listing: Listing,
        options: LinkOptions,
        require: Callable[[], None],
        pulse: Pulse | None = None,
    ) -> None:
        self.name = name
        self.eras: set[Era] = set()
        self.hello: dict[str, Raw] = {}
        self.discovered: dict[str, Raw] = {}
        self._said_modern: Raw | None = None
        self.stated: Statement | None = None
        self.own: Shared | None = None
        self.modern: Shared | None = None
        self.gone = asyncio.Event()
        self.why = ""
        self.left = False
        self.pulse = pulse or Pulse()
        self.pulse.questions, self.pulse.streaming = options.questions, options.streaming
        self.pulse.live = options.live
        self._left_behind: set[Session] = set()
        self._reach = reach
        self._options = options
        self._require = require
        terms = (self._new_by_terms, self.introduced)
        self._by_terms = SharedLinks(name, options.start_within, *terms)
        self._bridges: Once[bytes, Shared] = Once()
        self._chores = Chores(f"server {name!r}")
        self._apart = Apart(self._open_apart, self._chores)
        # Half of the time at most, so that the other era has its chance too.
        self._probe_seconds = min(PROBE_SECONDS, options.start_within.total_seconds() / 2)
        self._freshness = Freshness(
            name, listing, self._source, options.start_within, options.backoff
        )

    @property
    def declared(self) -> Statement | None:
        return self._options.declared

    @property
    def costs_a_process(self) -> bool:
        return self._reach.costs_a_process

    @property
    def _stand_ins(self) -> Mapping[str, object]:
        """What its clients can be asked, whatever they declare: others answer for them."""
        return {} if self._options.questions is None else self._options.questions.stand_ins

    async def start(self, patience: Patience | None = None) -> None:
        """Open the gateway's own links and read what is offered. Raises Unavailable."""
        self.gone.clear()
        self.left = False
        refusals: list[str] = []
        if Era.MODERN in self._options.eras and not self._reach.costs_a_process:
            await self._start_modern()
        if Era.HANDSHAKE in self._options.eras:
            try:
                await self._start_handshake()
            except (Unavailable, MalformedMessage) as error:
                refusals.append(str(error))
        if Era.MODERN in self._options.eras and self.modern is None and self.own is None:
            await self._start_modern()
        if self.own is None and self.modern is None:
            raise Unavailable(
                "; ".join(refusals) or "speaks no era of MCP that it may be spoken to in"
            )
        # Only now: what was offered before is still listed while the server starts again.
        found = {Era.HANDSHAKE: self.own, Era.MODERN: self.modern}
        self.eras = {era for era, shared in found.items() if shared is not None}
        if self.modern is not None and self.modern.link.live and not _is_live(self.own):
            self.modern.link.live.greeted(self.modern.link, self._said_modern)
        if self.modern is not None and self.own is None:
            await self._met(self.modern.link)
        await self._read_offers(patience or Patience())
        self._rejoin()

    def _rejoin(self) -> None:
        """Those who shared a link that was lost share the new one, and learn that it is new."""
        left_behind, self._left_behind = self._left_behind, set()
        for session in left_behind:
            if self.own is not None and not session.closed:
                self._by_terms.share_again(session, self.own)
                session.renewed(self.own.link)

    async def let_go(self) -> None:
        """End every link that is not a session's own."""
        self._freshness.stop()
        held = [shared for shared in (self.own, self.modern) if shared is not None]
        held += self._bridges.clear()
        for sharers in (*self._by_terms.sharers, *(shared.sharers for shared in held)):
            self._left_behind |= sharers.sessions
        self.own = self.modern = None
        for shared in held:
            shared.sharers.forgotten()
        others = self._by_terms.close(), self._apart.close()
        await asyncio.gather(*others, *(shared.link.close() for shared in held))

    async def link_for(self, session: Session, *, greeted: bool) -> tuple[Link, Sharers | None]:
        """The link a session's calls go out on, and who shares it, if anybody does.

        A link of the session's own is greeted here, unless the client is about to do that itself.
        """
        if not self._reach.costs_a_process or self._options.own_process_for_each_session:
            return await session.link_to(self.name, lambda: self._open_for(session, greeted)), None
        own = self.own_link()
        before = session.shared.get(self.name)
        shared = await self._by_terms.find(session, own)
        if session.level is not None and shared.link is not before:
            await shared.link.set_level(shared.sharers.lowest_level())
        return shared.link, shared.sharers

    def modern_link(self) -> Link:
        """The link for requests of the modern era, where the server speaks it."""
        if self.modern is None or not self.modern.link.is_open:
            self._require()
            raise Unavailable(f"server {self.name!r} is starting again", SERVER_NOT_READY)
        return self.modern.link

    async def bridge_link(self, capabilities: Mapping[str, object], party: str = "") -> Link:
        """The handshake link for modern clients of one party that can do what these can.

        Over HTTP a server is told exactly that, and its session is nobody else's; a process hears
        of all that MCP has, and whoever cannot be asked refuses for itself.
        """
        own = self.own_link()
        if self._reach.costs_a_process:
            return own.link
        terms = {**self._stand_ins, **plain_terms(capabilities)}
        key = jsonrpc.to_json((party, terms))
        held = await self._bridges.get(key, lambda: self._open_bridge(key, terms))
        for idle in self._bridges.beyond(MOST_BRIDGES, lambda shared: not shared.link.callers):
            self._chores.start(idle.link.close())
        if not held.link.is_open:
            # Lost in the moment in which it was opened, when nobody could yet forget it.
            self._bridges.forget(key)
        return held.link

    def own_link(self) -> Shared:
        self._require()
        if self.own is None:
            raise Unavailable(f"server {self.name!r} is starting again", SERVER_NOT_READY)
        return self.own

    async def _open_bridge(self, key: bytes, terms: Mapping[str, object]) -> Shared:
        def lost(link: Link, because: str) -> None:
            self._bridges.forget(key)

        return await self._open_for_calls(lost, terms)

    async def _open_apart(self, gone: Callable[[Link, str], None]) -> Link:
        """Another process, for calls of one client."""
        level = None if self.own is None else self.own.link.level
        return (await self._open_for_calls(gone, STANDARD_TERMS, level)).link

    async def _open_for_calls(
        self,
        gone: Callable[[Link, str], None],
        terms: Mapping[str, object],
        level: str | None = None,
    ) -> Shared:
        shared = self._new_shared(Era.HANDSHAKE, self._freshness.changed_for_some, gone)
        shared.link.live = self._live_for_calls
        live = None if shared.link.live is None else features.OFFERED_TO_CALLERS
        await shared.link.begin(self._options.start_within, greeting(terms, live), level)
        return shared

    @property
    def _live_for_calls(self) -> Live | None:
        """Who attends to calls on links that are not the gateway's own; nobody, if it is plain."""
        own = None if self.own is None else self.own.link
        return own.live if own is not None and own.is_open else None

    async def _start_handshake(self) -> None:
        shared = self._new_shared(Era.HANDSHAKE, self._freshness.changed, self._lost)
        shared.link.on_hello, shared.link.live = self._met, self._options.live
        live = None if self._options.live is None else features.OFFERED
        # Over HTTP each session has a link of its own and this one only reads the lists; but some
        # servers list what asks back only to those who can be asked.
        await shared.link.begin(self._options.start_within, greeting(STANDARD_TERMS, live))
        self.own, self.hello = shared, self._noted(shared.link.hello or {})
        if self._reach.costs_a_process:
            shared.link.apart = self._apart.takes

    async def _start_modern(self) -> None:
        """Ask whether the server speaks the modern era; one that stays silent does not."""
        shared = self._new_shared(Era.MODERN, self._freshness.changed_for_some, self._lost)
        headers = ((mcp.METHOD_HEADER, mcp.DISCOVER.encode()),)
        try:
            async with asyncio.timeout(self._probe_seconds):
                await shared.link.open()
                answer = await shared.link.request(mcp.DISCOVER, {"_meta": envelope()}, headers)
            found = {} if answer.result is UNSET else jsonrpc.members(answer.result)
            if answer.result is not UNSET and _offers_modern(found):
                shared.link.agree(found)
                if features.declared_in(found.get("capabilities")) is not None:
                    shared.link.live = self._options.live
                self._said_modern = found.get("capabilities")
                self.modern, self.discovered = shared, self._noted(found)
        except (Unavailable, MalformedMessage, TimeoutError) as error:
            log.debug("server %r does not speak the modern era: %s", self.name, error)
        finally:
            if self.modern is not shared:
                await shared.link.close()

    async def _met(self, link: Link) -> None:
        """Have it decided what the server may do; it can be told so where it speaks of that."""
        if self._options.meet is None:
            return
        is_modern = self.modern is not None and link is self.modern.link
        said = self.stated if is_modern else stated((link.hello or {}).get("capabilities"))
        spoken = None if link.mgp is None else said

        async def speak(method: str, params: Mapping[str, object]) -> Frame:
            if not is_modern:
                return await link.request(method, params)
            headers = ((mcp.METHOD_HEADER, method.encode()),)
            return await link.request(method, {**params, "_meta": envelope()}, headers)

        can_be_told = link.mgp is not None and Extension.SECURITY in link.mgp.extensions
        await self._options.meet(Meeting(self.name, spoken, speak if can_be_told else None))

    def _noted(self, said: dict[str, Raw]) -> dict[str, Raw]:
        """Keep what the server says of MGP and MCPL, and give the rest, which is for everybody."""
        found = stated(said.get("capabilities"))
        self.stated = None if agree(found, TO_SERVERS) is None else found
        strange = remark(found)
        if strange is not None:
            log.warning("server %r %s", self.name, strange)
        return features.silenced(silenced(said))

    async def _read_offers(self, patience: Patience) -> None:
        """Read all lists over whichever era is there, and be told when they change."""
        said = self.hello if self.own is not None else self.discovered
        await self._freshness.read(said.get("capabilities"), patience)
        if self.modern is not None:
            # A server of both eras may tell of a change in one of them only.
            self._freshness.listen(self.modern.link)

    def _source(self) -> tuple[Link, Era] | None:
        if self.own is not None:
            return self.own.link, Era.HANDSHAKE
        return (self.modern.link, Era.MODERN) if self.modern is not None else None

    async def _open_for(self, session: Session, greeted: bool) -> Link:
        self._require()
        carrier, limits = self._reach.carrier(Era.HANDSHAKE), self._options.limits
        link = Link(self.name, carrier, session, limits, self.pulse)
        link.on_change = self._freshness.changed_for_some
        link.is_for_plain = session.sees_all_servers and session.mgp is None
        hello = session.hello if greeted else None
        if hello is not None and self._stand_ins:
            hello = with_stand_in(hello, self._stand_ins)
        if hello is not None:
            hello = self.introduced(link, hello, among_all=session.sees_all_servers)
        await link.begin(self._options.start_within, hello, session.level)
        return link

    def introduced(self, link: Link, hello: Raw, *, among_all: bool = False) -> Raw:
        """What a client says of itself to a live server, which may go by scopes and state then.

        A host of MCPL agrees with its server on its own; whoever stands at the door of all servers
        cannot, for there the gateway is the host.
        """
        live = self._live_for_calls
        if live is None or (speaks_live(hello) and not among_all):
            return hello
        link.live = live
        return with_live(hello)

    def _new_by_terms(self, gone: Callable[[Link, str], None]) -> Shared:
        return self._new_shared(Era.HANDSHAKE, self._freshness.changed_for_some, gone)

    def _new_shared(
        self, era: Era, changed: Callable[[str], None], gone: Callable[[Link, str], None]
    ) -> Shared:
        sharers = Sharers(changed, gone)
        carrier, limits = self._reach.carrier(era), self._options.limits
        link = Link(self.name, carrier, sharers, limits, self.pulse)
        link.on_change = changed
        return Shared(link, sharers)

    def _lost(self, link: Link, because: str) -> None:
        """A link of the gateway's own has ended; without another era, so has the server."""
        self.left = link.carrier.ended_well
        if self.own is not None and self.own.link is link:
            self.why = because
            self.gone.set()
        elif self.modern is not None and self.modern.link is link:
            self.modern = None
            if self.own is None:
                self.why = because
                self.gone.set()


def _offers_modern(discovered: Mapping[str, Raw]) -> bool:
    versions = discovered.get("supportedVersions")
    return versions is None or mcp.LATEST_MODERN in str(jsonrpc.value(versions))


def _is_live(shared: Shared | None) -> bool:
    return shared is not None and shared.link.live is not None
