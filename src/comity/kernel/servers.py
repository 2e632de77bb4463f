"""The servers behind the gateway: started at once, watched, and started again when they fail.

A server is reached by links: the gateway's own, over which its offers are read; one for each
session where links are cheap (HTTP); and one shared by many sessions where each would cost a
process (stdio).
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from msgspec import Raw

from comity.kernel.catalog import Catalog
from comity.kernel.freshness import Freshness
from comity.kernel.links import Link
from comity.kernel.listing import Listing, envelope
from comity.kernel.sessions import Session
from comity.kernel.sharing import Sharers
from comity.kernel.terms import STANDARD_TERMS, Shared, SharedLinks, greeting
from comity.ports import Reach, SchemaJudge
from comity.rules.backoff import Backoff
from comity.rules.lifecycle import Happened, after
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    SERVER_NOT_READY,
    UNSUPPORTED_VERSION,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import LIMITS, UNSET, Limits
from comity.wire.lifecycle import State
from comity.wire.mcp import Era

log = logging.getLogger(__name__)

FIRST_TRY_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How one server is treated, as far as the kernel is concerned."""

    own_process_for_each_session: bool = False
    start_within: timedelta = timedelta(seconds=60)
    backoff: Backoff = field(default_factory=Backoff)
    limits: Limits = LIMITS


class Server:
    """One configured server: its state, the eras it speaks, and the links to it."""

    def __init__(self, name: str, reach: Reach, listing: Listing, options: ServerOptions) -> None:
        self.name = name
        self.state = State.REGISTERED
        self.reason = ""
        self.eras: set[Era] = set()
        self.hello: dict[str, Raw] = {}
        self.discovered: Raw | None = None
        self.tried = asyncio.Event()
        self.modern: Shared | None = None
        self._reach = reach
        self._options = options
        self._own: Shared | None = None
        self._by_terms = SharedLinks(
            name, options.start_within, lambda gone: self._new_shared(Era.HANDSHAKE, None, gone)
        )
        self._gone = asyncio.Event()
        # Half of the time at most, so that the other era has its chance too.
        self._probe_seconds = min(FIRST_TRY_SECONDS, options.start_within.total_seconds() / 2)
        self._freshness = Freshness(
            name, listing, self._source, options.start_within, options.backoff
        )
        self._modern_probe: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Start, watch, and start again after ever longer waits; ends only when cancelled."""
        failures, backoff, told = 0, self._options.backoff, ""
        while True:
            self._happen(Happened.STARTED)
            try:
                async with asyncio.timeout(self._options.start_within.total_seconds()):
                    await self._start()
                self._happen(Happened.SHOOK_HANDS)
                self.tried.set()
                told = ""
                # A server that dies as soon as it has started has not recovered.
                steady = asyncio.get_running_loop().time() + backoff.longest.total_seconds()
                await self._gone.wait()
                if asyncio.get_running_loop().time() > steady:
                    failures = 0
            except (Unavailable, MalformedMessage) as error:
                self.reason = str(error)
            except TimeoutError:
                self.reason = f"not ready within {self._options.start_within}"
            failures += 1
            self._happen(Happened.FAILED)
            self.tried.set()
            # The same failure again is no news.
            if self.reason != told:
                log.warning("server %r: %s", self.name, self.reason)
            told = self.reason
            await self._let_go()
            pause = backoff.delay(failures, random.random())  # noqa: S311  # no secret
            await asyncio.sleep(pause.total_seconds())
            self._happen(Happened.ASKED_TO_RESTART)

    async def stop(self) -> None:
        """End every link; the way MCP says for its transport."""
        self._happen(Happened.ASKED_TO_STOP)
        await self._let_go()
        self._happen(Happened.EMPTIED)

    async def first_try(self) -> None:
        """Let a server that was never tried yet finish its first start, for a bounded while."""
        if not self.tried.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_TRY_SECONDS):
                    await self.tried.wait()

    def require(self, era: Era) -> None:
        """Raise Unavailable, at once and with its reason, unless calls of this era can be made."""
        if self.state is not State.CONNECTED:
            why = f": {self.reason}" if self.reason else ""
            raise Unavailable(f"server {self.name!r} is {self.state}{why}", SERVER_NOT_READY)
        if era not in self.eras:
            raise Unavailable(f"server {self.name!r} does not speak {era} MCP", UNSUPPORTED_VERSION)

    async def link_for(self, session: Session, *, greeted: bool) -> tuple[Link, Sharers | None]:
        """The link a session's calls go out on, and who shares it, if anybody does.

        A link of the session's own is greeted here, unless the client is about to do that itself.
        """
        if not self._reach.costs_a_process or self._options.own_process_for_each_session:
            return await session.link_to(self.name, lambda: self._open_for(session, greeted)), None
        self.require(Era.HANDSHAKE)
        assert self._own is not None
        before = session.shared.get(self.name)
        shared = await self._by_terms.find(session, self._own)
        if session.level is not None and shared.link is not before:
            await shared.link.set_level(shared.sharers.lowest_level())
        return shared.link, shared.sharers

    async def modern_link(self) -> Link:
        """The link for requests of the modern era; a process for it is started at first need."""
        if self.modern is None and self._reach.costs_a_process:
            await self.probe_modern()
        if self.modern is None or not self.modern.link.is_open:
            self.require(Era.MODERN)
            raise Unavailable(f"server {self.name!r} is starting again", SERVER_NOT_READY)
        return self.modern.link

    async def probe_modern(self) -> None:
        """Find out, once, whether a stdio server speaks the modern era too."""
        if self.state is not State.CONNECTED or not self._reach.costs_a_process:
            return
        if self._modern_probe is None:
            self._modern_probe = asyncio.ensure_future(self._start_modern())
        # Whoever waits may be cancelled, or the probe when the server is let go; neither ends both.
        await asyncio.wait([self._modern_probe])

    async def _start(self) -> None:
        self._gone.clear()
        refusals: list[str] = []
        if not self._reach.costs_a_process:
            await self._start_modern()
        try:
            await self._start_handshake()
        except (Unavailable, MalformedMessage) as error:
            refusals.append(str(error))
        if self._reach.costs_a_process and self._own is None:
            await self._start_modern()
        if self._own is None and self.modern is None:
            raise Unavailable("; ".join(refusals) or "speaks no era of MCP")
        # Only now: what was offered before is still listed while the server starts again.
        found = {Era.HANDSHAKE: self._own, Era.MODERN: self.modern}
        self.eras = {era for era, shared in found.items() if shared is not None}
        await self._read_offers()

    async def _start_handshake(self) -> None:
        shared = self._new_shared(Era.HANDSHAKE, self._freshness.changed, self._lost)
        # Over HTTP each session has a link of its own and this one only reads the lists.
        terms: Mapping[str, object] = STANDARD_TERMS if self._reach.costs_a_process else {}
        await shared.link.begin(self._options.start_within, greeting(terms))
        self._own, self.hello = shared, shared.link.hello or {}

    async def _start_modern(self) -> None:
        """Ask whether the server speaks the modern era; one that stays silent does not."""
        shared = self._new_shared(Era.MODERN, None, self._lost_modern)
        headers = ((mcp.METHOD_HEADER, mcp.DISCOVER.encode()),)
        try:
            async with asyncio.timeout(self._probe_seconds):
                await shared.link.open()
                answer = await shared.link.request(mcp.DISCOVER, {"_meta": envelope()}, headers)
            if answer.result is not UNSET and _offers_modern(answer.result):
                self.modern, self.discovered = shared, answer.result
        except (Unavailable, MalformedMessage, TimeoutError) as error:
            log.debug("server %r does not speak the modern era: %s", self.name, error)
        finally:
            if self.modern is shared:
                self.eras.add(Era.MODERN)
            else:
                await shared.link.close()

    async def _read_offers(self) -> None:
        """Read all lists over whichever era is there, and be told when they change."""
        if self._own is not None:
            await self._freshness.read(self.hello.get("capabilities"))
        elif self.discovered is not None:
            await self._freshness.read(jsonrpc.members(self.discovered).get("capabilities"))
        if self.modern is not None:
            # A server of both eras may tell of a change in one of them only.
            self._freshness.listen(self.modern.link)

    def _source(self) -> tuple[Link, Era] | None:
        if self._own is not None:
            return self._own.link, Era.HANDSHAKE
        return (self.modern.link, Era.MODERN) if self.modern is not None else None

    async def _open_for(self, session: Session, greeted: bool) -> Link:
        self.require(Era.HANDSHAKE)
        link = Link(self.name, self._reach.carrier(Era.HANDSHAKE), session, self._options.limits)
        hello = session.hello if greeted else None
        await link.begin(self._options.start_within, hello, session.level)
        return link

    def _new_shared(
        self,
        era: Era,
        changed: Callable[[str], None] | None,
        gone: Callable[[Link, str], None],
    ) -> Shared:
        sharers = Sharers(changed, gone)
        return Shared(
            Link(self.name, self._reach.carrier(era), sharers, self._options.limits), sharers
        )

    def _lost(self, link: Link, because: str) -> None:
        if self._own is not None and self._own.link is link:
            self.reason = " | ".join([because, *link.carrier.hints()[-3:]])
            self._gone.set()

    def _lost_modern(self, link: Link, because: str) -> None:
        if self.modern is not None and self.modern.link is link:
            self.modern = self._modern_probe = None
            if self._own is None:
                self.reason = because
                self._gone.set()

    async def _let_go(self) -> None:
        self._freshness.stop()
        if self._modern_probe is not None:
            self._modern_probe.cancel()
            await asyncio.wait([self._modern_probe])
        held = [shared for shared in (self._own, self.modern) if shared is not None]
        self._own = self.modern = self._modern_probe = None
        await asyncio.gather(self._by_terms.close(), *(shared.link.close() for shared in held))

    def _happen(self, happened: Happened) -> None:
        following = after(self.state, happened)
        if following is not None:
            self.state = following
            if following is State.CONNECTED:
                self.reason = ""


class Servers:
    """All of them, started at once."""

    def __init__(self, catalog: Catalog, judge: SchemaJudge) -> None:
        self._listing = Listing(catalog, judge)
        self._all: dict[str, Server] = {}
        self._running: list[asyncio.Task[None]] = []

    def add(self, name: str, reach: Reach, options: ServerOptions) -> Server:
        server = self._all[name] = Server(name, reach, self._listing, options)
        return server

    def __iter__(self) -> Iterator[Server]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def get(self, name: str) -> Server | None:
        return self._all.get(name)

    def speaking(self, era: Era) -> Iterable[Server]:
        return [s for s in self._all.values() if s.state is State.CONNECTED and era in s.eras]

    @property
    def all_tried(self) -> bool:
        """Whether every server has either connected or failed its first start."""
        return all(server.tried.is_set() for server in self._all.values())

    async def first_tries(self, within: timedelta) -> None:
        """Until every server has either connected or failed its first start, but not longer."""
        tries = [asyncio.ensure_future(server.tried.wait()) for server in self._all.values()]
        if tries:
            _, late = await asyncio.wait(tries, timeout=within.total_seconds())
            for task in late:
                task.cancel()

    def start(self) -> None:
        self._running = [asyncio.ensure_future(_watched(server)) for server in self._all.values()]

    async def stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.gather(*(server.stop() for server in self._all.values()))


async def _watched(server: Server) -> None:
    """Run one server; a bug of ours there is told loudly and holds up nobody else."""
    try:
        await server.run()
    except Exception:
        log.exception("the care for server %r ended in a bug", server.name)
        server.reason = "the gateway failed in caring for it; see its log"
        server.tried.set()


def _offers_modern(discovered: Raw) -> bool:
    versions = jsonrpc.members(discovered).get("supportedVersions")
    return versions is None or mcp.LATEST_MODERN in str(jsonrpc.value(versions))
