"""A desk of the kernel over scripted servers, and clients of both eras that speak to it."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec

from comity.catalog.catalog import Catalog
from comity.gateway.all_servers import AllServersEndpoint, GatewayInfo
from comity.gateway.era_bridge import EraBridge, ParkedCalls
from comity.gateway.one_server import McpEndpoint, ServerEndpoint
from comity.gateway.pipeline import CallGate
from comity.gateway.subscriptions import ListSubscriptions
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import ANONYMOUS, Actor
from comity.mcp.eras import UNKEYED_TASK_IDS
from comity.mcp.jsonrpc import Frame
from comity.mcp.mgp import ServerLifecycleState
from comity.servers.service import ServerService
from comity.servers.supervisor import ServerOptions
from comity.sessions.calls import ActiveCalls, Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session, SessionStore
from comity.telemetry.tracing import Headers
from tests.support.carriers import AnySchema, Clock, Params, Script, result_of, until
from tests.support.refused import refusal_in
from tests.support.server_house import options

MODERN: Params = {
    protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
    protocol.CLIENT_CAPABILITIES: {},
}


class Asked:
    """One request a client made, and what came into its outbox."""

    def __init__(self, outbox: ClientStream, asking: asyncio.Task[Call]) -> None:
        self.outbox = outbox
        self.asking = asking

    async def answer(self) -> Frame:
        async with asyncio.timeout(10):
            await self.asking
            await self.outbox.wait_until_final()
        return jsonrpc.decode_frame(self.outbox.take()[-1])

    async def result(self) -> Params:
        return result_of(await self.answer())

    async def error(self) -> jsonrpc.ErrorBody:
        error = refusal_in(await self.answer())
        assert error is not None
        return error

    async def refusal(self) -> Params:
        """What a program can read of why it was not done."""
        return msgspec.convert((await self.error()).data, Params)


class Front:
    """Everything behind a door: servers that are started, a desk, sessions, a clock."""

    def __init__(
        self,
        scripts: dict[str, Script],
        judge: AnySchema | None = None,
        how: ServerOptions | None = None,
        make_gate: Callable[[Catalog], CallGate] = CallGate,
    ) -> None:
        self.scripts = scripts
        self.clock = Clock()
        self.catalog = Catalog()
        self.servers = ServerService(self.catalog, judge or AnySchema())
        self.underway = ActiveCalls(self.clock, 60, 300, 600)
        self.sessions = SessionStore(self.clock, 100, 1000)
        for name, script in scripts.items():
            self.servers.add(name, script, how or options())
        self.parking = ParkedCalls(self.clock, max_calls=4)
        self.bridge = EraBridge(self.catalog, self.parking)
        self.call_gate = make_gate(self.catalog)
        self.subscriptions = ListSubscriptions(self.servers, self.call_gate)
        self.info = GatewayInfo(self.servers, {"name": "comity", "version": "0"})
        self.desk: McpEndpoint
        self._ids = itertools.count(1)

    def ask(
        self,
        session: Session,
        method: str,
        params: object = jsonrpc.UNSET,
        actor: Actor = ANONYMOUS,
    ) -> Asked:
        frame = jsonrpc.make_request(next(self._ids), method, params)
        outbox = ClientStream()
        outbox.actor = actor
        return Asked(
            outbox, asyncio.ensure_future(self.desk.handle_request(session, frame, outbox))
        )

    def handle_modern_request(
        self,
        method: str,
        params: Params | None = None,
        headers: Headers = (),
        actor: Actor = ANONYMOUS,
    ) -> Asked:
        frame = jsonrpc.make_request(next(self._ids), method, {"_meta": MODERN, **(params or {})})
        outbox = ClientStream()
        outbox.actor = actor
        heads = headers or ((protocol.METHOD_HEADER, method.encode()),)
        return Asked(
            outbox, asyncio.ensure_future(self.desk.handle_modern_request(frame, outbox, heads))
        )

    async def client(self, actor: Actor = ANONYMOUS, /, **capabilities: object) -> Session:
        """A handshake client that was greeted."""
        session = self.sessions.begin("", actor.party, actor=actor)
        hello = {"protocolVersion": protocol.LATEST_HANDSHAKE, "capabilities": capabilities}
        await self.ask(session, protocol.INITIALIZE, hello, actor).result()
        self.desk.handle_message(session, jsonrpc.make_notification(protocol.INITIALIZED), actor)
        assert session.is_initialized
        return session

    async def ready(self) -> None:
        self.servers.start()
        await until(lambda: self.servers.is_every_server_tried)


@asynccontextmanager
async def one_server(
    script: Script,
    judge: AnySchema | None = None,
    how: ServerOptions | None = None,
    make_gate: Callable[[Catalog], CallGate] = CallGate,
) -> AsyncGenerator[Front]:
    """The door to one server, named `srv`."""
    front = Front({"srv": script}, judge, how, make_gate)
    server = front.servers.get("srv")
    assert server is not None
    front.desk = ServerEndpoint(
        server,
        front.call_gate,
        front.underway,
        front.bridge,
        front.subscriptions,
        UNKEYED_TASK_IDS,
    )
    async with _started(front):
        assert server.state is ServerLifecycleState.CONNECTED
        yield front


@asynccontextmanager
async def all_servers(
    scripts: dict[str, Script],
    judge: AnySchema | None = None,
    how: ServerOptions | None = None,
    make_gate: Callable[[Catalog], CallGate] = CallGate,
) -> AsyncGenerator[Front]:
    front = Front(scripts, judge, how, make_gate)
    front.desk = AllServersEndpoint(
        front.servers,
        front.call_gate,
        front.underway,
        front.bridge,
        front.subscriptions,
        front.info,
    )
    async with _started(front):
        yield front


@asynccontextmanager
async def _started(front: Front) -> AsyncGenerator[None]:
    await front.ready()
    try:
        yield
    finally:
        async with asyncio.timeout(10):
            await front.sessions.close()
            await front.servers.stop()
