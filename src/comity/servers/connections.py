"""All connections to one server: shared, and for one session or call."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import Raw

from comity.catalog.listing import (
    GATEWAY_INFO,
    UI_EXTENSIONS,
    CatalogReader,
    CatalogRefresher,
    gateway_envelope,
)
from comity.errors import EXHAUSTED, SERVER_NOT_READY, MalformedMessage, Unavailable
from comity.mcp import jsonrpc, mcpl, protocol
from comity.mcp.actors import Actor, Authority
from comity.mcp.jsonrpc import LIMITS, UNSET, Frame, FrameLimits
from comity.mcp.mgp import (
    SERVER_EXTENSIONS,
    MgpExtension,
    MgpStatement,
    declare_mgp,
    decode_statement,
    negotiate_terms,
    offer_extensions,
    strip_mgp,
    strip_mgp_capabilities,
    version_remark,
)
from comity.mcp.protocol import Era
from comity.policy.server_permissions import ServerIntroduction
from comity.policy.shares import PrincipalShares
from comity.servers.connection_users import ConnectionUsers, client_key
from comity.sessions.calls import Call
from comity.sessions.sessions import Session
from comity.sessions.upstream import (
    AccountTransport,
    CallStreamRelay,
    LiveHandler,
    QuestionHandler,
    ServerActivity,
    TransportAccount,
    TransportFactory,
    UpstreamConnection,
    UpstreamTransport,
)
from comity.telemetry.metrics import name_in
from comity.toolkit.background import (
    BackgroundTasks,
    PausableTimeout,
    SharedOpening,
    SharedResource,
)
from comity.toolkit.resilience import RetrySchedule

log = logging.getLogger(__name__)


MAX_PROCESSES: Final = 8
"""How many additional processes one server may have."""
MAX_PROCESSES_PER_PRINCIPAL: Final = 2
"""How many of the additional processes of a server one principal may have."""

type Gone = Callable[[UpstreamConnection, str], None]
type Open = Callable[[Gone], Coroutine[None, None, UpstreamConnection]]
"""Start another process and initialize it. The callback is called when it has ended."""


class ClientProcessPool:
    """Additional processes of one server, each for the calls of one client."""

    def __init__(self, open_connection: Open, background_tasks: BackgroundTasks) -> None:
        self._open_connection = open_connection
        self._background_tasks = background_tasks
        self._connections: SharedResource[str, UpstreamConnection] = SharedResource()
        self._shares = PrincipalShares("processes apart", "", MAX_PROCESSES_PER_PRINCIPAL)
        self._principals: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._principals)

    def take_call(self, connection: UpstreamConnection, call: Call, frame: Frame) -> bool:
        """Whether an additional process takes this call, now or once it has started."""
        pulse, params = connection.activity, frame.params
        if (
            not pulse.asking_tools
            or frame.method != protocol.CALL_TOOL
            or name_in(params) not in pulse.asking_tools
        ):
            return False
        client = client_key(call)
        if not pulse.is_crowded and all(client_key(each) == client for each in connection.callers):
            self._end_idle()
            return False
        if "task" in frame.parameters:
            # Later requests about the task go to the shared process, so the task must run there.
            return False
        if client not in self._principals and not self._acquire(
            client, call.client_stream.actor.party
        ):
            log.info(
                "server %r: no further process is available; a call shares one", connection.server
            )
            return False
        self._background_tasks.start(self._send(client, call, frame), at_once=True)
        return True

    async def close(self) -> None:
        for connection in self._connections.clear():
            await connection.close()
        for client in list(self._principals):
            self._release(client)

    async def _send(self, client: str, call: Call, frame: Frame) -> None:
        try:
            connection = await self._connections.get(client, lambda: self._open_for_client(client))
            connection.send_call(call, frame)
        except (Unavailable, MalformedMessage) as error:
            call.fail(error)

    async def _open_for_client(self, client: str) -> UpstreamConnection:
        def gone(connection: UpstreamConnection, because: str) -> None:
            self._connections.forget(client)
            self._release(client)

        try:
            return await self._open_connection(gone)
        except BaseException:
            self._release(client)
            raise

    def _acquire(self, client: str, principal: str) -> bool:
        if len(self._principals) >= MAX_PROCESSES:
            self._end_idle()
        if len(self._principals) >= MAX_PROCESSES or not self._shares.acquire(principal):
            return False
        self._principals[client] = principal
        return True

    def _release(self, client: str) -> None:
        principal = self._principals.pop(client, None)
        if principal is not None:
            self._shares.release(principal)

    def _end_idle(self) -> None:
        for client, connection in self._connections.take_idle(
            lambda connection: not connection.callers
        ):
            self._release(client)
            self._background_tasks.start(connection.close())


MAX_ACTOR_CONNECTIONS: Final = 1_000
"""How many actors may have a modern connection of their own before idle ones are closed."""
MAX_EXTENDED_CONNECTIONS: Final = 16
"""How many connections for extended capabilities one server may have."""
_EMPTY_OBJECT: Final = Raw(b"{}")
UNSUBSCRIBE_TIMEOUT_SECONDS: Final = 10.0
"""How long the server may take to answer `resources/unsubscribe` after a session ended."""
STANDARD_CAPABILITIES: Final[Mapping[str, Mapping[str, object]]] = {
    "roots": {"listChanged": True},
    "sampling": {"context": {}, "tools": {}},
    "elicitation": {"form": {}, "url": {}},
    "extensions": UI_EXTENSIONS,
}
"""The capabilities of a shared connection. Each client is asked only what it supports."""

STAND_IN_CAPABILITIES: Final[Mapping[str, object]] = {"elicitation": {"form": {}}}
"""The elicitation capability that is declared when people answer instead of the client."""

OFFERED_CAPABILITIES: Final = declare_mgp({}, offer_extensions(SERVER_EXTENSIONS))
"""The extensions that every server is offered. Plain servers ignore them. (MGP §1.3)"""


@dataclass(slots=True)
class SharedConnection:
    """A connection, and the sessions that share it."""

    connection: UpstreamConnection
    users: ConnectionUsers


type Make = Callable[[Callable[[UpstreamConnection, str], None]], SharedConnection]
type Introduce = Callable[[UpstreamConnection, Raw], Raw]
"""Adapts a client's `initialize` parameters to the server, on a connection of the client's kind."""


class SharedConnections:
    """The connections to one server that clients with the same extended capabilities share."""

    def __init__(
        self,
        name: str,
        timeout: timedelta,
        make_connection: Make,
        initialize_params: Introduce = lambda _, hello: hello,
    ) -> None:
        self._name = name
        self._timeout = timeout
        self._make_connection = make_connection
        self._initialize_params = initialize_params
        self._connection_by_terms: dict[bytes, SharedConnection] = {}
        self._opening: SharedOpening[bytes, SharedConnection] = SharedOpening()
        self._waiting_sessions: dict[bytes, list[Session]] = {}
        self._background_tasks = BackgroundTasks(f"server {name!r}")

    async def find_or_open(self, session: Session, plain: SharedConnection) -> SharedConnection:
        """Return the connection that this session shares. The first session opens it."""
        terms = extended_terms(session)
        shared = plain if terms is None else self._connection_by_terms.get(terms)
        if terms is not None and (shared is None or not shared.connection.is_open):
            shared = await self._open_once(terms, session)
        assert shared is not None
        self._attach(shared, session)
        return shared

    def private_connection_of(self, session: Session) -> UpstreamConnection | None:
        """Return the connection of a session if all sessions that share it are of one principal."""
        terms = extended_terms(session)
        shared = None if terms is None else self._connection_by_terms.get(terms)
        if shared is None or session not in shared.users:
            return None
        is_private = all(each.party == session.party for each in shared.users.sessions)
        return shared.connection if is_private else None

    @property
    def all_users(self) -> list[ConnectionUsers]:
        return [shared.users for shared in self._connection_by_terms.values()]

    def reattach(self, session: Session, plain: SharedConnection) -> None:
        """Attach a session to a new connection, unless it has extended capabilities."""
        if extended_terms(session) is None:
            self._attach(plain, session)

    async def close(self) -> None:
        held, opening = list(self._connection_by_terms.values()), self._opening.cancel()
        self._connection_by_terms.clear()
        self._waiting_sessions.clear()
        ends = (shared.connection.close() for shared in held)
        await asyncio.gather(*ends, *opening, return_exceptions=True)

    async def _open_once(self, terms: bytes, session: Session) -> SharedConnection:
        is_full = len(self._connection_by_terms) + len(self._opening) >= MAX_EXTENDED_CONNECTIONS
        if is_full and terms not in self._opening:
            raise Unavailable(f"too many kinds of clients use server {self._name!r}", EXHAUSTED)
        self._waiting_sessions.setdefault(terms, []).append(session)
        return await self._opening.wait_for(
            terms,
            lambda: self._open(terms, session),
            lambda: Unavailable(f"server {self._name!r} is starting again", SERVER_NOT_READY),
        )

    async def _open(self, terms: bytes, session: Session) -> SharedConnection:
        try:
            shared = self._make_connection(lambda _connection, _because: self._drop(terms))
            await shared.connection.begin(
                self._timeout, self._initialize_params(shared.connection, session.initialize_params)
            )
            here = [each for each in self._waiting_sessions.get(terms, ()) if not each.is_closed]
            if not here:
                await shared.connection.close()
                raise Unavailable("the client went away")
        finally:
            self._waiting_sessions.pop(terms, None)
        self._connection_by_terms[terms] = shared
        for each in here:
            self._attach(shared, each)
        return shared

    def _attach(self, shared: SharedConnection, session: Session) -> None:
        if session.is_closed:
            raise Unavailable("the session has ended")
        session.shared_connections[self._name] = shared.connection
        if session not in shared.users:
            # The server may have restarted, and then the former shared connection is gone.
            leave = session.on_close.pop(self, None)
            if leave is not None:
                leave()
            shared.users.attach(session)
            session.on_close[self] = lambda: self._detach(shared, session)

    def _detach(self, shared: SharedConnection, session: Session) -> None:
        """Detach a session: unsubscribe from unused resources, and close an unused connection."""
        for uri in shared.users.detach(session):
            self._background_tasks.start(_unsubscribe(shared.connection, uri))
        idle = [terms for terms, held in self._connection_by_terms.items() if held is shared]
        if idle and not len(shared.users):
            self._drop(idle[0])
            self._background_tasks.start(shared.connection.close())

    def _drop(self, terms: bytes) -> None:
        self._connection_by_terms.pop(terms, None)


def build_initialize_params(
    terms: Mapping[str, object], live: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return the gateway's `initialize` parameters. `live` holds its MCPL capabilities."""
    more = {} if live is None else {"experimental": {mcpl.KEY: live}}
    return {
        "protocolVersion": protocol.LATEST_HANDSHAKE,
        "capabilities": {**terms, **more, **OFFERED_CAPABILITIES},
        "clientInfo": GATEWAY_INFO,
    }


def is_live_host(hello: Raw) -> bool:
    """Whether a client is an MCPL host, which negotiates with the server on its own."""
    return mcpl.mcpl_member_in(jsonrpc.decode_members(hello).get("capabilities")) is not None


def without_live_capability(capabilities: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the capabilities without the MCPL entry that handshakes carry."""
    left = {**capabilities}
    inside = jsonrpc.decode_members(left.get("experimental", _EMPTY_OBJECT))
    if inside.pop(mcpl.KEY, None) is not None:
        left["experimental"] = jsonrpc.to_raw(inside)
        if not inside:
            del left["experimental"]
    return left


def with_live_capability(hello: Raw) -> Raw:
    """Return a client's `initialize` parameters with scopes and state for calls. (MCPL §7, §8)"""
    said = jsonrpc.decode_members(hello)
    declared = jsonrpc.decode_members(said.get("capabilities", _EMPTY_OBJECT))
    inside = jsonrpc.decode_members(declared.get("experimental", _EMPTY_OBJECT))
    more = {**inside, mcpl.KEY: mcpl.OFFERED_TO_CALLERS}
    return jsonrpc.to_raw({**said, "capabilities": {**declared, "experimental": more}})


def plain_terms(capabilities: Mapping[str, object]) -> dict[str, object]:
    """Return the plain MCP part of a client's capabilities, in a normalized form."""
    terms: dict[str, object] = {}
    for name, parts in STANDARD_CAPABILITIES.items():
        said = capabilities.get(name)
        if isinstance(said, dict):
            # The gateway sends no change notifications for modern clients between two requests.
            terms[name] = {part: {} for part in parts if part in said and part != "listChanged"}
    return terms


def with_stand_ins(hello: Raw, stand_ins: Mapping[str, object]) -> Raw:
    """Return a client's `initialize` parameters with the capabilities that stand-ins provide."""
    said = jsonrpc.decode_members(hello)
    declared = jsonrpc.decode_members(said.get("capabilities", _EMPTY_OBJECT))
    capabilities = {**stand_ins, **declared}
    return jsonrpc.to_raw({**said, "capabilities": capabilities})


def extended_terms(session: Session) -> bytes | None:
    """Return a key for the capabilities beyond plain MCP, or None if the client declared none."""
    said = session.capabilities
    # A client of the endpoint for all servers speaks MGP with the gateway, not with each server.
    plain = (
        without_live_capability(strip_mgp_capabilities(said)) if session.sees_all_servers else said
    )
    declared = {name: jsonrpc.decode_value(raw) for name, raw in plain.items()}
    if not any(
        said not in ({}, None)
        for name, said in declared.items()
        if name not in STANDARD_CAPABILITIES
    ):
        return None
    return msgspec.json.encode([session.version, declared], order="sorted")


async def _unsubscribe(connection: UpstreamConnection, uri: str) -> None:
    with contextlib.suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(UNSUBSCRIBE_TIMEOUT_SECONDS):
            await connection.request(protocol.UNSUBSCRIBE, {"uri": uri})


PROBE_TIMEOUT_SECONDS: Final = 10.0
MAX_BRIDGE_CONNECTIONS: Final = 256
"""How many bridge connections one server may have before idle ones are closed."""
BOTH_ERAS: Final = frozenset(Era)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Options for the connections to a server."""

    eras: frozenset[Era] = BOTH_ERAS
    own_process_for_each_session: bool = False
    start_timeout: timedelta = timedelta(seconds=60)
    backoff: RetrySchedule = field(default_factory=RetrySchedule)
    limits: FrameLimits = LIMITS
    # What the operator declared about the server before its first connection. (MGP §15.3)
    declared: MgpStatement | None = None
    # Decides what the server may do, after it said what it needs. (MGP §3)
    on_introduction: Callable[[ServerIntroduction], Awaitable[None]] | None = None
    # Shows the server's questions to people.
    question_handler: QuestionHandler | None = None
    # Relays the partial results of calls before their end.
    stream_relay: CallStreamRelay | None = None
    # The MCPL host of a server that does more than answer calls.
    live_handler: LiveHandler | None = None
    # Gives the account of an actor, or of the gateway itself, if the server may demand a sign-in.
    account_for: Callable[[Actor | None], TransportAccount] | None = None


class ServerConnections:
    """The present connections to one server."""

    def __init__(
        self,
        name: str,
        transport_factory: TransportFactory,
        catalog_reader: CatalogReader,
        options: ConnectionOptions,
        require: Callable[[], None],
        activity: ServerActivity | None = None,
    ) -> None:
        self.name = name
        self.eras: set[Era] = set()
        self.initialize_result: dict[str, Raw] = {}
        self.discover_result: dict[str, Raw] = {}
        self._modern_capabilities: Raw | None = None
        self.mgp_statement: MgpStatement | None = None
        self.own_connection: SharedConnection | None = None
        self.own_modern_connection: SharedConnection | None = None
        # Whether each actor has an account of its own at the server, at present.
        self._has_own_accounts = False
        self._modern_by_actor: dict[Authority, SharedConnection] = {}
        self.disconnected = asyncio.Event()
        self.disconnect_reason = ""
        self.has_exited_cleanly = False
        self.activity = activity or ServerActivity()
        self.activity.question_handler, self.activity.stream_relay = (
            options.question_handler,
            options.stream_relay,
        )
        self.activity.live_handler = options.live_handler
        self._detached_sessions: set[Session] = set()
        self._transport_factory = transport_factory
        self._options = options
        self._require = require
        terms = (self._make_for_terms, self.initialize_params_for)
        self._shared_by_terms = SharedConnections(name, options.start_timeout, *terms)
        self._bridges: SharedResource[bytes, SharedConnection] = SharedResource()
        self._background_tasks = BackgroundTasks(f"server {name!r}")
        self._client_processes = ClientProcessPool(
            self._open_client_process, self._background_tasks
        )
        # At most half of the time, so that the other era can be tried too.
        self._probe_seconds = min(PROBE_TIMEOUT_SECONDS, options.start_timeout.total_seconds() / 2)
        self._catalog_refresher = CatalogRefresher(
            name, catalog_reader, self._list_connection, options.start_timeout, options.backoff
        )

    @property
    def declared(self) -> MgpStatement | None:
        return self._options.declared

    @property
    def starts_process(self) -> bool:
        return self._transport_factory.starts_process

    @property
    def protocol_versions(self) -> list[str]:
        """The latest version of each protocol that the server speaks, for people."""
        return sorted(era.latest_version for era in self.eras)

    @property
    def _stand_ins(self) -> Mapping[str, object]:
        """Capabilities that are declared for every client, because people answer in its place."""
        return (
            {}
            if self._options.question_handler is None
            else self._options.question_handler.provided_capabilities
        )

    async def start(self, timeout: PausableTimeout | None = None) -> None:
        """Open the gateway's own connections and read the server's lists. Raises Unavailable."""
        self.disconnected.clear()
        self.has_exited_cleanly = False
        refusals: list[str] = []
        if Era.MODERN in self._options.eras and not self._transport_factory.starts_process:
            await self._start_modern()
        if Era.HANDSHAKE in self._options.eras:
            try:
                await self._start_handshake()
            except (Unavailable, MalformedMessage) as error:
                refusals.append(str(error))
        if (
            Era.MODERN in self._options.eras
            and self.own_modern_connection is None
            and self.own_connection is None
        ):
            await self._start_modern()
        if self.own_connection is None and self.own_modern_connection is None:
            raise Unavailable("; ".join(refusals) or "does not support the configured MCP version")
        # Set only now: the former catalog entries stay listed while the server starts again.
        found = {Era.HANDSHAKE: self.own_connection, Era.MODERN: self.own_modern_connection}
        self.eras = {era for era, shared in found.items() if shared is not None}
        if (
            self.own_modern_connection is not None
            and self.own_modern_connection.connection.live_handler
            and not _is_live(self.own_connection)
        ):
            self.own_modern_connection.connection.live_handler.on_connected(
                self.own_modern_connection.connection, self._modern_capabilities
            )
        if self.own_modern_connection is not None and self.own_connection is None:
            await self._on_introduction(self.own_modern_connection.connection)
        await self._read_lists(timeout or PausableTimeout())
        self._reattach_sessions()

    def _reattach_sessions(self) -> None:
        """Attach the sessions of a lost connection to the new one, and tell them that it is new."""
        left_behind, self._detached_sessions = self._detached_sessions, set()
        for session in left_behind:
            if self.own_connection is not None and not session.is_closed:
                self._shared_by_terms.reattach(session, self.own_connection)
                session.on_session_renewed(self.own_connection.connection)

    async def close_shared(self) -> None:
        """Close every connection that does not belong to one session."""
        self._catalog_refresher.stop()
        held = [
            shared
            for shared in (self.own_connection, self.own_modern_connection)
            if shared is not None
        ]
        held += self._bridges.clear()
        held += self._modern_by_actor.values()
        self._modern_by_actor = {}
        for sharers in (*self._shared_by_terms.all_users, *(shared.users for shared in held)):
            self._detached_sessions |= sharers.sessions
        self.own_connection = self.own_modern_connection = None
        for shared in held:
            shared.users.on_subscriptions_lost()
        others = self._shared_by_terms.close(), self._client_processes.close()
        await asyncio.gather(*others, *(shared.connection.close() for shared in held))

    async def connection_for(
        self, session: Session, *, is_initialized: bool
    ) -> tuple[UpstreamConnection, ConnectionUsers | None]:
        """Return the connection for a session's calls, and its users if it is shared.

        A connection of one session is initialized here, unless the client does that itself.
        """
        if not self._transport_factory.starts_process or self._options.own_process_for_each_session:
            return await session.connection_to(
                self.name, lambda: self._open_for_session(session, is_initialized)
            ), None
        own = self.require_own()
        before = session.shared_connections.get(self.name)
        shared = await self._shared_by_terms.find_or_open(session, own)
        if session.log_level is not None and shared.connection is not before:
            await shared.connection.set_level(shared.users.lowest_level())
        return shared.connection, shared.users

    def private_connection_of(self, session: Session) -> UpstreamConnection | None:
        """Return the open connection that only the principal of a session uses, or None."""
        connection = session.own_connections.get(
            self.name
        ) or self._shared_by_terms.private_connection_of(session)
        return connection if connection is not None and connection.is_open else None

    def set_own_accounts(self, has_own_accounts: bool) -> None:
        """Set whether each actor has an account of its own at the server."""
        self._has_own_accounts = has_own_accounts

    def modern_connection(self, actor: Actor | None = None) -> UpstreamConnection:
        """Return the modern connection for an actor. Raise Unavailable if there is none.

        All actors share one, unless each has an account of its own at the server.
        """
        own = self.own_modern_connection
        if own is None or own.connection.is_closed:
            self._require()
            raise Unavailable(f"server {self.name!r} is starting again", SERVER_NOT_READY)
        if not self._has_own_accounts or actor is None:
            return own.connection
        return self._modern_connection_of(actor, own.connection)

    def _modern_connection_of(self, actor: Actor, own: UpstreamConnection) -> UpstreamConnection:
        """Return the connection with the account of an actor. It needs no handshake."""
        key = actor.authority
        kept = self._modern_by_actor.get(key)
        if kept is not None and not kept.connection.is_closed:
            return kept.connection
        if len(self._modern_by_actor) >= MAX_ACTOR_CONNECTIONS:
            self._close_idle_actors()

        def lost(connection: UpstreamConnection, because: str) -> None:
            self._modern_by_actor.pop(key, None)

        shared = self._make_shared(
            Era.MODERN, self._catalog_refresher.on_some_lists_changed, lost, actor
        )
        shared.connection.mgp = own.mgp
        shared.connection.live_handler = own.live_handler
        assert isinstance(shared.connection.transport, AccountTransport)
        shared.connection.open_at_once(shared.connection.transport)
        self._modern_by_actor[key] = shared
        return shared.connection

    def _close_idle_actors(self) -> None:
        idle = [key for key, held in self._modern_by_actor.items() if not held.connection.callers]
        for key in idle:
            self._background_tasks.start(self._modern_by_actor.pop(key).connection.close())

    async def bridge_connection(
        self, capabilities: Mapping[str, object], actor: Actor
    ) -> UpstreamConnection:
        """Return a handshake connection for a principal's modern clients with these capabilities.

        Over HTTP the server gets exactly these, and its session serves this principal only. A
        process gets all capabilities of MCP, and a client that lacks one refuses the question.
        """
        own = self.require_own()
        if self._transport_factory.starts_process:
            return own.connection
        terms = {**self._stand_ins, **plain_terms(capabilities)}
        key = jsonrpc.to_json((actor.authority, terms))
        held = await self._bridges.get(key, lambda: self._open_bridge(key, terms, actor))
        for idle in self._bridges.take_excess_idle(
            MAX_BRIDGE_CONNECTIONS, lambda shared: not shared.connection.callers
        ):
            self._background_tasks.start(idle.connection.close())
        if not held.connection.is_open:
            # The connection was lost while it opened, before `lost` could remove it.
            self._bridges.forget(key)
        return held.connection

    def require_own(self) -> SharedConnection:
        self._require()
        if self.own_connection is None:
            raise Unavailable(f"server {self.name!r} is starting again", SERVER_NOT_READY)
        return self.own_connection

    async def _open_bridge(
        self, key: bytes, terms: Mapping[str, object], actor: Actor
    ) -> SharedConnection:
        def lost(connection: UpstreamConnection, because: str) -> None:
            self._bridges.forget(key)

        return await self._open_for_calls(lost, terms, actor=actor)

    async def _open_client_process(
        self, gone: Callable[[UpstreamConnection, str], None]
    ) -> UpstreamConnection:
        """Start another process for the calls of one client."""
        level = None if self.own_connection is None else self.own_connection.connection.log_level
        return (await self._open_for_calls(gone, STANDARD_CAPABILITIES, level)).connection

    async def _open_for_calls(
        self,
        gone: Callable[[UpstreamConnection, str], None],
        terms: Mapping[str, object],
        level: str | None = None,
        actor: Actor | None = None,
    ) -> SharedConnection:
        shared = self._make_shared(
            Era.HANDSHAKE, self._catalog_refresher.on_some_lists_changed, gone, actor
        )
        shared.connection.live_handler = self._live_for_calls
        live = None if shared.connection.live_handler is None else mcpl.OFFERED_TO_CALLERS
        await shared.connection.begin(
            self._options.start_timeout, build_initialize_params(terms, live), level
        )
        return shared

    @property
    def _live_for_calls(self) -> LiveHandler | None:
        """The MCPL host for connections that are not the gateway's own. None for a plain server."""
        own = None if self.own_connection is None else self.own_connection.connection
        return own.live_handler if own is not None and own.is_open else None

    async def _start_handshake(self) -> None:
        shared = self._make_shared(
            Era.HANDSHAKE, self._catalog_refresher.on_list_changed, self._on_connection_lost
        )
        shared.connection.on_initialized_result, shared.connection.live_handler = (
            self._on_introduction,
            self._options.live_handler,
        )
        live = None if self._options.live_handler is None else mcpl.OFFERED
        # Over HTTP each session has its own connection, and this one only reads the lists. Some
        # servers list tools that ask back only to clients that can be asked.
        await shared.connection.begin(
            self._options.start_timeout, build_initialize_params(STANDARD_CAPABILITIES, live)
        )
        self.own_connection, self.initialize_result = (
            shared,
            self._store_statements(shared.connection.initialize_result or {}),
        )
        if self._transport_factory.starts_process:
            shared.connection.send_apart = self._client_processes.take_call

    async def _start_modern(self) -> None:
        """Ask the server whether it speaks the modern protocol. No answer in time counts as no."""
        shared = self._make_shared(
            Era.MODERN, self._catalog_refresher.on_some_lists_changed, self._on_connection_lost
        )
        headers = ((protocol.METHOD_HEADER, protocol.DISCOVER.encode()),)
        try:
            async with asyncio.timeout(self._probe_seconds):
                await shared.connection.open()
                answer = await shared.connection.request(
                    protocol.DISCOVER, {"_meta": gateway_envelope()}, headers
                )
            found = {} if answer.result is UNSET else jsonrpc.decode_members(answer.result)
            if answer.result is not UNSET and _supports_modern(found):
                shared.connection.store_mgp_terms(found)
                if mcpl.declared_in(found.get("capabilities")) is not None:
                    shared.connection.live_handler = self._options.live_handler
                self._modern_capabilities = found.get("capabilities")
                self.own_modern_connection, self.discover_result = (
                    shared,
                    self._store_statements(found),
                )
        except (Unavailable, MalformedMessage, TimeoutError) as error:
            log.debug("Server %r does not support MCP 2026-07-28: %s", self.name, error)
        finally:
            if self.own_modern_connection is not shared:
                await shared.connection.close()

    async def _on_introduction(self, connection: UpstreamConnection) -> None:
        """Have the permissions of the server decided, and tell it if it negotiated `security`."""
        if self._options.on_introduction is None:
            return
        is_modern = (
            self.own_modern_connection is not None
            and connection is self.own_modern_connection.connection
        )
        said = (
            self.mgp_statement
            if is_modern
            else decode_statement((connection.initialize_result or {}).get("capabilities"))
        )
        spoken = None if connection.mgp is None else said

        async def speak(method: str, params: Mapping[str, object]) -> Frame:
            if not is_modern:
                return await connection.request(method, params)
            headers = ((protocol.METHOD_HEADER, method.encode()),)
            return await connection.request(
                method, {**params, "_meta": gateway_envelope()}, headers
            )

        can_be_told = (
            connection.mgp is not None and MgpExtension.SECURITY in connection.mgp.extensions
        )
        await self._options.on_introduction(
            ServerIntroduction(self.name, spoken, speak if can_be_told else None)
        )

    def _store_statements(self, result: dict[str, Raw]) -> dict[str, Raw]:
        """Keep what the server declares of MGP and MCPL, and return the rest for clients."""
        found = decode_statement(result.get("capabilities"))
        self.mgp_statement = None if negotiate_terms(found, SERVER_EXTENSIONS) is None else found
        strange = version_remark(found)
        if strange is not None:
            log.warning("server %r %s", self.name, strange)
        return mcpl.strip_mcpl(strip_mgp(result))

    async def _read_lists(self, timeout: PausableTimeout) -> None:
        """Read all lists over the available era, and subscribe to their changes."""
        said = self.initialize_result if self.own_connection is not None else self.discover_result
        await self._catalog_refresher.read(said.get("capabilities"), timeout)
        if self.own_modern_connection is not None:
            # A server of both eras may announce a change in only one of them.
            self._catalog_refresher.listen(self.own_modern_connection.connection)

    def _list_connection(self) -> tuple[UpstreamConnection, Era] | None:
        if self.own_connection is not None:
            return self.own_connection.connection, Era.HANDSHAKE
        return (
            (self.own_modern_connection.connection, Era.MODERN)
            if self.own_modern_connection is not None
            else None
        )

    async def _open_for_session(self, session: Session, is_initialized: bool) -> UpstreamConnection:
        self._require()
        transport, limits = (
            self._transport_factory.create_transport(Era.HANDSHAKE),
            self._options.limits,
        )
        self._set_account(transport, session.actor)
        connection = UpstreamConnection(self.name, transport, session, limits, self.activity)
        connection.on_list_changed = self._catalog_refresher.on_some_lists_changed
        connection.is_for_plain_clients = session.sees_all_servers and session.mgp is None
        hello = session.initialize_params if is_initialized else None
        if hello is not None and self._stand_ins:
            hello = with_stand_ins(hello, self._stand_ins)
        if hello is not None:
            hello = self.initialize_params_for(
                connection, hello, is_for_all_servers=session.sees_all_servers
            )
        await connection.begin(self._options.start_timeout, hello, session.log_level)
        return connection

    def initialize_params_for(
        self, connection: UpstreamConnection, hello: Raw, *, is_for_all_servers: bool = False
    ) -> Raw:
        """Return a client's `initialize` parameters for a live server, with scopes and state.

        An MCPL host negotiates with its server directly. A client of the endpoint for all servers
        cannot, because there the gateway is the host.
        """
        live = self._live_for_calls
        if live is None or (is_live_host(hello) and not is_for_all_servers):
            return hello
        connection.live_handler = live
        return with_live_capability(hello)

    def _make_for_terms(self, gone: Callable[[UpstreamConnection, str], None]) -> SharedConnection:
        return self._make_shared(Era.HANDSHAKE, self._catalog_refresher.on_some_lists_changed, gone)

    def _make_shared(
        self,
        era: Era,
        changed: Callable[[str], None],
        gone: Callable[[UpstreamConnection, str], None],
        actor: Actor | None = None,
    ) -> SharedConnection:
        sharers = ConnectionUsers(changed, gone)
        transport, limits = self._transport_factory.create_transport(era), self._options.limits
        self._set_account(transport, actor)
        connection = UpstreamConnection(self.name, transport, sharers, limits, self.activity)
        connection.on_list_changed = changed
        return SharedConnection(connection, sharers)

    def _set_account(self, transport: UpstreamTransport, actor: Actor | None) -> None:
        """Let a transport carry the tokens of an actor, or of the gateway for the lists."""
        account_for = self._options.account_for
        if (
            account_for is not None
            and isinstance(transport, AccountTransport)
            and not transport.has_fixed_credentials
        ):
            transport.account = account_for(actor)

    def _on_connection_lost(self, connection: UpstreamConnection, reason: str) -> None:
        """Handle the loss of an own connection. Without another era, the server is gone."""
        self.has_exited_cleanly = connection.transport.has_exited_cleanly
        if self.own_connection is not None and self.own_connection.connection is connection:
            self.disconnect_reason = reason
            self.disconnected.set()
        elif (
            self.own_modern_connection is not None
            and self.own_modern_connection.connection is connection
        ):
            self.own_modern_connection = None
            if self.own_connection is None:
                self.disconnect_reason = reason
                self.disconnected.set()


def _supports_modern(discovered: Mapping[str, Raw]) -> bool:
    versions = discovered.get("supportedVersions")
    return versions is None or protocol.LATEST_MODERN in str(jsonrpc.decode_value(versions))


def _is_live(shared: SharedConnection | None) -> bool:
    return shared is not None and shared.connection.live_handler is not None
