"""Sessions of handshake clients: what each declared, its streams, and the links it uses.

A session id is a random name, never a proof of who asks. What a server says outside of any call
waits, bounded, until the client opens its stream, instead of being lost.
"""

import asyncio
import logging
import secrets
import sys
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping

from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.links import Link
from comity.kernel.outbox import Outbox
from comity.kernel.question import Errand, Question
from comity.kernel.replay import Replay
from comity.kernel.shares import AGAIN_AFTER, Shares
from comity.rules import tasks
from comity.rules.conversation import Answer, Conversation, Notice, Withdrawal
from comity.rules.negotiation import Terms, agree
from comity.wire import jsonrpc
from comity.wire.errors import EXHAUSTED, Unavailable
from comity.wire.jsonrpc import Frame
from comity.wire.mcp import LATEST_HANDSHAKE, LIST_CHANGES, RESOURCE_UPDATED, UNKNOWN
from comity.wire.negotiation import NOTICE_PREFIX, Statement, stated

log = logging.getLogger(__name__)

STREAMS_KEPT = 16
"""How many begun streams of a session can still be resumed."""


ABOUT_THE_SERVER = LIST_CHANGES | {RESOURCE_UPDATED}


class Session:
    """One handshake client, from `initialize` to the end of its transport."""

    __slots__ = (
        "_opening",
        "_standalone",
        "attached",
        "capabilities",
        "closed",
        "conversation",
        "door",
        "farewells",
        "greeted",
        "hello",
        "id",
        "info",
        "level",
        "links",
        "mgp",
        "next_stream",
        "party",
        "reads",
        "sees_all_servers",
        "shared",
        "streams",
        "tasks",
        "used",
        "version",
    )

    def __init__(self, door: str, now: float, party: str = "") -> None:
        self.id = secrets.token_hex(16)
        self.door = door
        self.party = party
        self.tasks = tasks.PLAIN_NAMES
        self.used = now
        self.version = LATEST_HANDSHAKE
        self.hello: Raw = jsonrpc.to_raw({})
        self.capabilities: dict[str, Raw] = {}
        self.info: Raw | None = None
        self.conversation: Conversation[Errand] = Conversation(limit=1024)
        self.links: dict[str, Link] = {}
        self.shared: dict[str, Link] = {}
        self.level: str | None = None
        self.mgp: Terms | None = None
        self.closed = False
        self.greeted = False
        self.attached = 0
        self.sees_all_servers = False
        # Whether its party may read what is at a URI; set by the desk that greeted it.
        self.reads: Callable[[str], bool] | None = None
        self.farewells: dict[object, Callable[[], None]] = {}
        self.next_stream = 0
        self.streams: OrderedDict[int, Replay] | None = None
        self._standalone: Outbox | None = None
        self._opening: dict[str, asyncio.Task[Link]] | None = None

    @property
    def standalone(self) -> Outbox:
        """Where what belongs to no call waits; made when first needed."""
        if self._standalone is None or self._standalone.final:
            self._standalone = Outbox()
        return self._standalone

    def begin_stream(self, outbox: Outbox, number: int | None = None) -> Replay:
        """Keep a stream so that it can be taken up again; the oldest ones are let go."""
        if self.streams is None:
            self.streams = OrderedDict()
        if number is None:
            self.next_stream += 1
            number = self.next_stream
        replay = self.streams[number] = Replay(number, outbox)
        if 0 in self.streams:
            self.streams.move_to_end(0)
        while len(self.streams) > STREAMS_KEPT:
            self.streams.popitem(last=False)
        return replay

    def standing_stream(self) -> Replay:
        """The stream of what belongs to no call, number 0."""
        found = self.streams.get(0) if self.streams is not None else None
        if found is not None and not found.outbox.final:
            return found
        begun = self.begin_stream(self.standalone, 0)
        if found is not None:
            # No two events of a session bear the same id. (MCP §3.2)
            begun.sent = found.sent
        return begun

    def introduce(self, params: Mapping[str, Raw]) -> None:
        """Note what the client said of itself in `initialize`. (MCP §4.1)"""
        self.hello = jsonrpc.to_raw(params)
        self.info = params.get("clientInfo")
        declared = params.get("capabilities")
        self.capabilities = {} if declared is None else jsonrpc.members(declared)

    def agree(self, hello: Mapping[str, Raw]) -> None:
        """Note what the client negotiated with one server, which answered it. (MGP §2.4)"""
        said = self._says_of_mgp()
        offered = frozenset[str]() if said is None else said.extensions
        self.mgp = None if said is None else agree(stated(hello.get("capabilities")), offered)

    @property
    def speaks_mgp_with_servers(self) -> bool:
        """Whether it does so itself; at the door of all servers it speaks MGP with the gateway."""
        return not self.sees_all_servers and self._says_of_mgp() is not None

    def _says_of_mgp(self) -> Statement | None:
        return stated(jsonrpc.to_raw(self.capabilities))

    @property
    def waits(self) -> bool:
        """Whether a call of the client's is open; a question to it, which it may never answer,
        does not count."""
        return len(self.conversation) > len(self.conversation.waiting)

    def may_be_asked(self, capability: str) -> bool:
        return capability in self.capabilities

    def tell(self, frame: Frame) -> None:
        """Say something on the standalone stream; a client that never listens loses the rest."""
        if self.reads is not None and frame.method == RESOURCE_UPDATED:
            uri = jsonrpc.text(jsonrpc.params_of(frame).get("uri"))
            if not self.reads(uri or ""):
                return
        if not self.standalone.put(jsonrpc.encode(frame)):
            log.info("session of %s reads nothing; a notice to it is lost", self.door)

    def hear(self, frame: Frame) -> Frame | None:
        """Take what the client says that is no request; gives back a notice for the server."""
        found = self.conversation.hear(frame, UNKNOWN)
        if isinstance(found, Answer):
            found.errand.answered(found.frame, 200)
        elif isinstance(found, Withdrawal):
            found.errand.withdraw(found.reason)
        elif isinstance(found, Notice):
            if found.amid is None:
                return found.frame
            found.amid.told(found.frame)
        else:
            log.debug("session of %s: a stray message", self.door)
        return None

    def told(self, link: Link, frame: Frame) -> None:
        call = _latest_call(link)
        if call is not None and frame.method not in ABOUT_THE_SERVER:
            call.told(frame)
            return
        if str(frame.method).startswith(NOTICE_PREFIX) and not self.speaks_mgp_with_servers:
            # What a server says of itself is for the gateway, which has its own eyes. (D-21)
            log.debug("server %r: nobody agreed to be told %s", link.server, frame.method)
        elif not self.sees_all_servers:
            self.tell(frame)
        elif frame.method == tasks.STATUS and frame.params is not jsonrpc.UNSET:
            named = tasks.rename(
                frame.params, lambda task: self.tasks.public(self.party, link.server, task)
            )
            self.tell(jsonrpc.with_params(frame, named))
        elif frame.method not in LIST_CHANGES:
            # Changes of lists are told when the merged catalog has changed.
            self.tell(frame)

    def asked(self, link: Link, question: Question, frame: Frame) -> None:
        call = _latest_call(link)
        if call is not None:
            call.asked(question, frame)
        else:
            question.put_to(self, frame, self.standalone)

    def renewed(self, link: Link) -> None:
        """The server began anew. Who sees all servers is told of it with the catalog."""
        log.info("server %r began anew for a session", link.server)
        if not self.sees_all_servers:
            for change in link.changes():
                self.tell(change)

    def gone(self, link: Link, because: str) -> None:
        if self.links.get(link.server) is link:
            del self.links[link.server]

    async def link_to(
        self, server: str, open_link: Callable[[], Coroutine[None, None, Link]]
    ) -> Link:
        """The session's own link to a server, opened at the first need and once."""
        link = self.links.get(server)
        if link is not None and link.is_open:
            return link
        if self.closed:
            raise Unavailable("the session has ended")
        if self._opening is None:
            self._opening = {}
        task = self._opening.get(server)
        if task is None:
            task = self._opening[server] = asyncio.ensure_future(self._open(server, open_link))
            task.add_done_callback(lambda task: self._opened(server, task))
        # Whoever waits may be cancelled; the link is the session's all the same.
        await asyncio.wait([task])
        if task.cancelled():
            raise Unavailable("the session has ended")
        return task.result()

    async def _open(
        self, server: str, open_link: Callable[[], Coroutine[None, None, Link]]
    ) -> Link:
        link = self.links[server] = await open_link()
        return link

    def _opened(self, server: str, task: asyncio.Task[Link]) -> None:
        if self._opening is not None:
            self._opening.pop(server, None)
        if not task.cancelled():
            # Those who waited may all be gone; a failure is then nobody's.
            task.exception()

    async def close(self) -> None:
        """End every link of its own and every stream; whoever waits on this client is told."""
        self.closed = True
        asked, taken = self.conversation.close()
        for errand in asked:
            errand.failed(Unavailable("the client went away"))
        for errand in taken:
            errand.withdraw(None)
        if self._standalone is not None:
            self._standalone.end()
        for farewell in self.farewells.values():
            farewell()
        self.farewells.clear()
        opening = list((self._opening or {}).values())
        for task in opening:
            task.cancel()
        links = list(self.links.values())
        self.links.clear()
        ends = (link.close() for link in links)
        await asyncio.gather(*ends, *opening, return_exceptions=True)


def _latest_call(link: Link) -> Call | None:
    """What a server without streams is most likely speaking of: the client's latest open call."""
    if link.carrier.tells_streams_apart:
        return None
    calls = link.callers
    return calls[-1] if calls else None


class Sessions:
    """Every session of this node, found by its id, ended when idle or when there are too many.

    Rule 1: whoever has its share and begins another session loses its own idlest one.
    Rule 2: where all places are taken, the largest holder loses its idlest one to a smaller holder.
    """

    def __init__(
        self, now: Callable[[], float], most: int, idle_seconds: float, each: int | None = None
    ) -> None:
        self.now = now
        # The event streams of clients, in sessions or beside them.
        self.streams = Shares("streams", "max_streams_per_principal", sys.maxsize)
        self.tasks = tasks.PLAIN_NAMES
        # How sessions are named, where a name must tell other nodes at which one they are.
        self.name: Callable[[], str] | None = None
        self._most = most
        self._idle_seconds = idle_seconds
        self._open: dict[str, Session] = {}
        self._shares = Shares("sessions", "max_sessions_per_principal", each or most)
        # The sessions of each principal; the one whose last request is the oldest stands first.
        self._of: dict[str, OrderedDict[str, Session]] = {}
        self._nudged = now()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._open.values()))

    def begin(self, door: str, party: str = "") -> Session:
        """Raises Unavailable where there is no room, and none can be made."""
        if self._shares.is_full(party):
            self._let_idlest_go(party, self._shares.problem())
        elif len(self._open) >= self._most:
            self._make_room(party)
        self._shares.take(party)
        session = Session(door, self.now(), party)
        session.tasks = self.tasks
        session.id = session.id if self.name is None else self.name()
        self._open[session.id] = session
        self._of.setdefault(party, OrderedDict())[session.id] = session
        return session

    def _make_room(self, party: str) -> None:
        """The largest holder gives a place up to who holds fewer."""
        full = Unavailable(
            "too many sessions are open on this node; close some", EXHAUSTED, AGAIN_AFTER
        )
        largest = max(self._of, key=self._shares.of)
        if self._shares.of(largest) <= self._shares.of(party) + 1:
            raise full
        self._let_idlest_go(largest, full, even_busy=True)

    def _let_idlest_go(
        self, party: str, otherwise: Unavailable, *, even_busy: bool = False
    ) -> None:
        """End the idlest session of a holder; raise `otherwise` where all of them are in use."""
        held = self._of[party].values()
        idle = (each for each in held if not each.attached and not each.waits)
        found = next(idle, next(iter(held)) if even_busy else None)
        if found is None:
            raise otherwise
        log.info("the idlest session of %s is ended: it has %d", party, len(held))
        self._forget(found)
        self._start(found.close())

    def find(self, session_id: str, door: str, party: str = "") -> Session | None:
        """The session of that name at that door, marked as used; to others there is none."""
        session = self._open.get(session_id)
        if session is None or session.door != door or session.party != party:
            return None
        session.used = self.now()
        self._of[party].move_to_end(session_id)
        return session

    async def end(self, session: Session) -> None:
        if session.id in self._open:
            self._forget(session)
            await session.close()

    def _forget(self, session: Session) -> None:
        del self._open[session.id]
        held = self._of[session.party]
        del held[session.id]
        if not held:
            del self._of[session.party]
        self._shares.give(session.party)

    def _start(self, ending: Coroutine[None, None, None]) -> None:
        """End a session while nobody waits for that."""
        task = asyncio.ensure_future(ending)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def look(self, patience: float) -> None:
        """End what has been idle for too long; a session with work or a stream open is not idle.

        A standing stream is nudged once in `patience` seconds, so that no proxy takes it for dead.
        """
        now = self.now()
        horizon = now - self._idle_seconds
        nudging = now - self._nudged > patience
        self._nudged = now if nudging else self._nudged
        for session in list(self._open.values()):
            if session.attached:
                session.used = now
                if nudging:
                    session.standalone.nudge()
            elif session.waits:
                # Idle time begins where the last call ends, however long that one took.
                session.used = now
            elif session.used < horizon:
                self._start(self.end(session))

    def end_streams(self) -> None:
        """The gateway is about to end: let no standing stream hold that up."""
        for session in self:
            session.standalone.end()

    async def close(self) -> None:
        await asyncio.gather(*(self.end(session) for session in self), *self._closing)
