"""The servers behind the gateway: started at once, watched, and started again when they fail.

A server is reached by links: the gateway's own, over which its offers are read; one for each
session where links are cheap (HTTP); and one shared by many sessions where each would cost a
process (stdio).
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import Raw

from comity.kernel.catalog import Catalog, Kind
from comity.kernel.links import Link
from comity.kernel.listing import CHANGED_BY, Listing, envelope
from comity.kernel.sessions import Session
from comity.kernel.sharing import Sharers
from comity.ports import Reach, SchemaJudge
from comity.rules.backoff import Backoff
from comity.rules.lifecycle import Happened, after
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    EXHAUSTED,
    SERVER_NOT_READY,
    UNSUPPORTED_VERSION,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import LIMITS, UNSET, Limits
from comity.wire.lifecycle import State
from comity.wire.mcp import Era

log = logging.getLogger(__name__)

MOST_TERMS: Final = 16
EVERY_KIND: Final = tuple(Kind)
NEEDS: Final = {
    Kind.TOOL: "tools",
    Kind.PROMPT: "prompts",
    Kind.RESOURCE: "resources",
    Kind.TEMPLATE: "resources",
}
STANDARD_TERMS: Final[Mapping[str, object]] = {
    "roots": {"listChanged": True},
    "sampling": {"context": {}, "tools": {}},
    "elicitation": {"form": {}, "url": {}},
}
"""What a shared link declares: any client may sit behind it, and each is asked only what it can."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How one server is treated, as far as the kernel is concerned."""

    own_process_for_each_session: bool = False
    start_within: timedelta = timedelta(seconds=60)
    backoff: Backoff = field(default_factory=Backoff)
    limits: Limits = LIMITS


@dataclass(slots=True)
class Shared:
    """A link with those who share it."""

    link: Link
    sharers: Sharers


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
        self._listing = listing
        self._options = options
        self._own: Shared | None = None
        self._by_terms: dict[bytes, Shared] = {}
        self._gone = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._modern_probe: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Start, watch, and start again after ever longer waits; ends only when cancelled."""
        failures = 0
        while True:
            self._happen(Happened.STARTED)
            try:
                async with asyncio.timeout(self._options.start_within.total_seconds()):
                    await self._start()
                failures = 0
                self._happen(Happened.SHOOK_HANDS)
                self.tried.set()
                await self._gone.wait()
            except (Unavailable, MalformedMessage) as error:
                self.reason = str(error)
            except TimeoutError:
                self.reason = f"not ready within {self._options.start_within}"
            failures += 1
            self._happen(Happened.FAILED)
            self.tried.set()
            log.warning("server %r: %s", self.name, self.reason)
            await self._let_go()
            pause = self._options.backoff.delay(failures, random.random())  # noqa: S311  # no secret
            await asyncio.sleep(pause.total_seconds())
            self._happen(Happened.ASKED_TO_RESTART)

    async def stop(self) -> None:
        """End every link; the way MCP says for its transport."""
        self._happen(Happened.ASKED_TO_STOP)
        await self._let_go()
        self._happen(Happened.EMPTIED)

    def require(self, era: Era) -> None:
        """Raise Unavailable, at once and with its reason, unless calls of this era can be made."""
        if self.state is not State.CONNECTED:
            why = f": {self.reason}" if self.reason else ""
            raise Unavailable(f"server {self.name!r} is {self.state}{why}", SERVER_NOT_READY)
        if era not in self.eras:
            raise Unavailable(f"server {self.name!r} does not speak {era} MCP", UNSUPPORTED_VERSION)

    async def link_for(self, session: Session) -> tuple[Link, Sharers | None]:
        """The link a session's calls go out on, and who shares it, if anybody does."""
        if not self._reach.costs_a_process or self._options.own_process_for_each_session:
            return await session.link_to(self.name, lambda: self._open_for(session)), None
        shared = await self._shared_for(session)
        if session not in shared.sharers:
            shared.sharers.attach(session)
            session.farewells.append(lambda: self._detach(shared, session))
        session.shared[self.name] = shared.link
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
        await asyncio.shield(self._modern_probe)

    async def _start(self) -> None:
        self._gone.clear()
        self.eras.clear()
        refusals: list[str] = []
        if not self._reach.costs_a_process:
            await self._start_modern()
        try:
            await self._start_handshake()
        except (Unavailable, MalformedMessage) as error:
            refusals.append(str(error))
        if self._reach.costs_a_process and not self.eras:
            await self._start_modern()
        if not self.eras:
            raise Unavailable("; ".join(refusals) or "speaks no era of MCP")
        await self._read_offers()

    async def _start_handshake(self) -> None:
        shared = self._new_shared(Era.HANDSHAKE, self._changed, self._lost)
        try:
            await shared.link.open()
            # Over HTTP each session has a link of its own and this one only reads the lists.
            terms = STANDARD_TERMS if self._reach.costs_a_process else {}
            self.hello = await shared.link.greet(_greeting(terms))
        except BaseException:
            await shared.link.close()
            raise
        self._own = shared
        self.eras.add(Era.HANDSHAKE)

    async def _start_modern(self) -> None:
        shared = self._new_shared(Era.MODERN, None, self._lost_modern)
        headers = ((mcp.METHOD_HEADER, mcp.DISCOVER.encode()),)
        try:
            await shared.link.open()
            answer = await shared.link.request(mcp.DISCOVER, {"_meta": envelope()}, headers)
        except (Unavailable, MalformedMessage) as error:
            log.debug("server %r does not speak the modern era: %s", self.name, error)
            answer = None
        if answer is None or answer.result is UNSET or not _offers_modern(answer.result):
            await shared.link.close()
            return
        self.modern, self.discovered = shared, answer.result
        self.eras.add(Era.MODERN)

    async def _read_offers(self) -> None:
        """Read all lists over whichever era is there, and be told when they change."""
        if self._own is not None:
            declared = _declared(self.hello.get("capabilities"))
            await self._listing.read(self._own.link, Era.HANDSHAKE, _kinds(declared))
            self._own.link.carrier.listen()
        elif self.modern is not None and self.discovered is not None:
            declared = _declared(jsonrpc.members(self.discovered).get("capabilities"))
            await self._listing.read(self.modern.link, Era.MODERN, _kinds(declared))

    def _changed(self, method: str) -> None:
        if self._own is not None:
            self._spawn(self._reread(self._own.link, CHANGED_BY[method]))

    async def _reread(self, link: Link, kinds: tuple[Kind, ...]) -> None:
        try:
            await self._listing.read(link, Era.HANDSHAKE, kinds)
        except (Unavailable, MalformedMessage) as error:
            log.warning("server %r: its list could not be read again: %s", self.name, error)

    async def _open_for(self, session: Session) -> Link:
        """A link of the session's own; who opens it also greets."""
        link = Link(self.name, self._reach.carrier(Era.HANDSHAKE), session, self._options.limits)
        await link.open()
        return link

    async def _shared_for(self, session: Session) -> Shared:
        self.require(Era.HANDSHAKE)
        terms = _extended_terms(session)
        if terms is None:
            assert self._own is not None
            return self._own
        shared = self._by_terms.get(terms)
        if shared is not None and shared.link.is_open:
            return shared
        if len(self._by_terms) >= MOST_TERMS:
            raise Unavailable(f"too many kinds of clients use server {self.name!r}", EXHAUSTED)
        shared = self._new_shared(Era.HANDSHAKE, None, lambda _, __: self._drop_terms(terms))
        self._by_terms[terms] = shared
        try:
            await shared.link.open()
            await shared.link.greet(session.hello)
        except BaseException:
            self._drop_terms(terms)
            await shared.link.close()
            raise
        return shared

    def _detach(self, shared: Shared, session: Session) -> None:
        for uri in shared.sharers.detach(session):
            self._spawn(_unsubscribe(shared.link, uri))
        idle = [terms for terms, held in self._by_terms.items() if held is shared]
        if idle and not len(shared.sharers):
            self._drop_terms(idle[0])
            self._spawn(shared.link.close())

    def _drop_terms(self, terms: bytes) -> None:
        self._by_terms.pop(terms, None)

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
        held = [self._own, self.modern, *self._by_terms.values()]
        self._own = self.modern = self._modern_probe = None
        self._by_terms.clear()
        await asyncio.gather(*(shared.link.close() for shared in held if shared is not None))

    def _happen(self, happened: Happened) -> None:
        following = after(self.state, happened)
        if following is not None:
            self.state = following
            if following is State.CONNECTED:
                self.reason = ""

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


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

    async def first_tries(self) -> None:
        """Until every server has either connected or failed its first start."""
        await asyncio.gather(*(server.tried.wait() for server in self._all.values()))

    def start(self) -> None:
        self._running = [asyncio.ensure_future(server.run()) for server in self._all.values()]

    async def stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.gather(*(server.stop() for server in self._all.values()))


def _greeting(terms: Mapping[str, object]) -> dict[str, object]:
    return {
        "protocolVersion": mcp.LATEST_HANDSHAKE,
        "capabilities": terms,
        "clientInfo": {"name": "comity", "version": "0.1.0"},
    }


def _declared(capabilities: Raw | None) -> dict[str, Raw]:
    try:
        return {} if capabilities is None else jsonrpc.members(capabilities)
    except MalformedMessage:
        return {}


def _kinds(declared: Mapping[str, Raw]) -> tuple[Kind, ...]:
    """What is worth asking for: a server is not asked for what it does not have. (MCP §4.1)"""
    return tuple(kind for kind in EVERY_KIND if NEEDS[kind] in declared)


def _offers_modern(discovered: Raw) -> bool:
    versions = jsonrpc.members(discovered).get("supportedVersions")
    return versions is None or mcp.LATEST_MODERN in str(jsonrpc.value(versions))


def _extended_terms(session: Session) -> bytes | None:
    """A key for what the client declared beyond plain MCP, or None if it declared no more."""
    beyond = {
        name: value
        for name, raw in session.capabilities.items()
        if name not in STANDARD_TERMS and (value := jsonrpc.value(raw)) not in ({}, None)
    }
    if not beyond:
        return None
    whole = {name: jsonrpc.value(raw) for name, raw in session.capabilities.items()}
    return msgspec.json.encode([session.version, whole], order="sorted")


async def _unsubscribe(link: Link, uri: str) -> None:
    try:
        await link.request(mcp.UNSUBSCRIBE, {"uri": uri})
    except Unavailable as error:
        log.debug("server %r: %s", link.server, error)
