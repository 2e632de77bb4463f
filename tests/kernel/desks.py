"""A desk of the kernel over scripted servers, and clients of both eras that speak to it."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from comity.kernel.bridge import Bridge
from comity.kernel.call import Call
from comity.kernel.catalog import Catalog
from comity.kernel.forwarding import Desk, OneServer
from comity.kernel.gate import Gate
from comity.kernel.outbox import Outbox
from comity.kernel.parking import Parking
from comity.kernel.servers import ServerOptions, Servers
from comity.kernel.sessions import Session, Sessions
from comity.kernel.subscribing import Subscriptions
from comity.kernel.switchboard import AllServers
from comity.kernel.underway import Underway
from comity.ports import Headers
from comity.wire import jsonrpc, mcp
from comity.wire.jsonrpc import Frame
from comity.wire.lifecycle import State
from tests.kernel.carriers import AnySchema, Clock, Params, Script, result_of, until
from tests.kernel.refused import refusal_in
from tests.kernel.server_house import options

MODERN: Params = {mcp.PROTOCOL_VERSION: mcp.LATEST_MODERN, mcp.CLIENT_CAPABILITIES: {}}


class Asked:
    """One request a client made, and what came into its outbox."""

    def __init__(self, outbox: Outbox, asking: asyncio.Task[Call]) -> None:
        self.outbox = outbox
        self.asking = asking

    async def answer(self) -> Frame:
        async with asyncio.timeout(10):
            await self.asking
            await self.outbox.until_final()
        return jsonrpc.decode(self.outbox.take()[-1])

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
    ) -> None:
        self.scripts = scripts
        self.clock = Clock()
        self.catalog = Catalog()
        self.gate = Gate(self.catalog)
        self.servers = Servers(self.catalog, judge or AnySchema())
        self.underway = Underway(self.clock, 60, 300)
        self.sessions = Sessions(self.clock, 100, 1000)
        for name, script in scripts.items():
            self.servers.add(name, script, how or options())
        self.parking = Parking(self.clock, most=4)
        self.bridge = Bridge(self.catalog, self.parking)
        self.gate = Gate(self.catalog)
        self.subscriptions = Subscriptions(self.servers, self.gate)
        self.desk: Desk
        self._ids = itertools.count(1)

    def ask(self, session: Session, method: str, params: object = jsonrpc.UNSET) -> Asked:
        frame = jsonrpc.request(next(self._ids), method, params)
        outbox = Outbox()
        return Asked(outbox, asyncio.ensure_future(self.desk.ask(session, frame, outbox)))

    def ask_modern(self, method: str, params: Params | None = None, headers: Headers = ()) -> Asked:
        frame = jsonrpc.request(next(self._ids), method, {**(params or {}), "_meta": MODERN})
        outbox = Outbox()
        heads = headers or ((mcp.METHOD_HEADER, method.encode()),)
        return Asked(outbox, asyncio.ensure_future(self.desk.ask_modern(frame, outbox, heads)))

    async def client(self, **capabilities: object) -> Session:
        """A handshake client that was greeted."""
        session = self.sessions.begin("")
        hello = {"protocolVersion": mcp.LATEST_HANDSHAKE, "capabilities": capabilities}
        await self.ask(session, mcp.INITIALIZE, hello).result()
        self.desk.hear(session, jsonrpc.notification(mcp.INITIALIZED))
        assert session.greeted
        return session

    async def ready(self) -> None:
        self.servers.start()
        await until(lambda: self.servers.all_tried)


@asynccontextmanager
async def one_server(
    script: Script, judge: AnySchema | None = None, how: ServerOptions | None = None
) -> AsyncGenerator[Front]:
    """The door to one server, named `srv`."""
    front = Front({"srv": script}, judge, how)
    server = front.servers.get("srv")
    assert server is not None
    front.desk = OneServer(server, front.gate, front.underway, front.bridge, front.subscriptions)
    async with _started(front):
        assert server.state is State.CONNECTED
        yield front


@asynccontextmanager
async def all_servers(
    scripts: dict[str, Script],
    judge: AnySchema | None = None,
    how: ServerOptions | None = None,
) -> AsyncGenerator[Front]:
    front = Front(scripts, judge, how)
    about = {"name": "comity", "version": "0"}
    front.desk = AllServers(
        front.servers, front.gate, front.underway, front.bridge, front.subscriptions, about
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
