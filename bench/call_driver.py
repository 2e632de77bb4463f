"""Runs a gateway in this process between transports that are only lists of bytes.

`CallDriver` makes calls, and counts what a call does. Nothing that is counted waits for a timer or
for another process, so the same code always gives the same figures.
"""

import asyncio
import contextlib
import gc
import os
import re
import sys
import time
import types
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import msgspec
import uvloop

from bench import stub
from bench.bodies import PLAIN, Body
from bench.call_counter import CallCounter
from bench.eras import (
    FIRST_CALL,
    VERSION_BY_ERA,
    CallTemplate,
    Era,
    call_bodies,
    http_headers,
    initialize_body,
    initialized_body,
)
from bench.realm import settle
from comity.app.gateway import GatewayParts, assemble_gateway
from comity.app.settings_reader import ConfigSource
from comity.http.client.dial import OriginDialler
from comity.http.connection import HttpServerConnection, ListenerGuard, ListenerLimits
from comity.mcp.mgp import ServerLifecycleState

WARM_CALLS: Final = 40
SECONDS: Final = 600.0
_LENGTH: Final = re.compile(rb"content-length: \d+")
_decode_request: Final = msgspec.json.Decoder(stub.Request).decode

type Upstreams = list["UpstreamBytes"]


class ByteTransport(asyncio.Transport):
    """A transport that keeps the bytes written to it. Its other methods do nothing."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 9), "sockname": ("127.0.0.1", 1)})
        self.written: list[bytes] = []
        self.protocol: Any = None
        self._is_closed = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self._is_closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self.protocol is not None:
                asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


class UpstreamBytes(ByteTransport):
    """The transport to the stub. While `is_quick` is set, the stub answers at once."""

    is_quick = True

    def __init__(self, respond: Callable[[bytes], bytes]) -> None:
        super().__init__()
        self._respond = respond
        # What receives the answers: the same connection, or the other pipe.
        self.receive: Callable[[bytes], None] = lambda _: None

    def write(self, data: Any) -> None:
        super().write(data)
        if UpstreamBytes.is_quick:
            asyncio.get_running_loop().call_soon(self.answer)

    def answer(self) -> None:
        self.receive(self.take_answer())

    def take_answer(self) -> bytes:
        return self._respond(self.written.pop())


class PipeLoop(uvloop.Loop):
    """An event loop whose pipes are byte transports."""

    async def connect_write_pipe(self, protocol_factory: Any, pipe: Any) -> Any:
        return pipe, protocol_factory()

    async def connect_read_pipe(self, protocol_factory: Any, pipe: Any) -> Any:
        pipe.protocol = protocol_factory()
        pipe.protocol.connection_made(pipe)
        return pipe, pipe.protocol


class StubProcess:
    """The stub as a server process that is none. It ends when its stdin is closed."""

    kind = "group"
    is_unexplained = False

    def __init__(self, stdin: UpstreamBytes) -> None:
        self.pid = os.getpid()
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = stdin, ByteTransport(), ByteTransport()
        stdin.receive = self._say
        stdin.protocol = self
        self._tell_death: Callable[[], None] = lambda: None

    def _say(self, data: bytes) -> None:
        self.stdout.protocol.data_received(data)

    def on_death(self, callback: Callable[[], None]) -> None:
        self._tell_death = callback

    def connection_lost(self, _: object) -> None:
        self.signal(0)

    def signal(self, sign: int) -> None:
        if self.returncode is None:
            self.returncode = -sign
            self._tell_death()
            self.stdout.close()
            self.stderr.close()


@dataclass(frozen=True, slots=True)
class CallPath:
    """One way of a call through the gateway, and how large the gateway around it is."""

    name: str
    era: Era = "modern"
    server_era: Era = "modern"
    body: Body = PLAIN
    is_merged: bool = False
    is_stdio: bool = False
    # Through a view, which renames the tool, and may fix an argument.
    is_view: bool = False
    fixed: str = ""
    # Store, API key and grant.
    is_governed: bool = False
    has_limit: bool = False
    has_store: bool = False
    risk: str = "moderate"
    # The audit log waits for many calls before it commits.
    is_batched: bool = False
    servers: int = 1
    tools_per_server: int = 1
    principals: int = 1
    sessions: int = 0

    @property
    def is_durable(self) -> bool:
        return self.risk == "dangerous"

    @property
    def tool(self) -> str:
        if self.is_view:
            return "say"
        return "stub__echo" if self.is_merged else "echo"

    def config(self, store: str) -> str:
        lines = ['[audit]\nflush_interval = "20s"'] if self.is_batched else []
        if self.sessions:
            lines.append("[limits]\nmax_sessions_per_principal = 20_000")
        if self.is_governed:
            lines.append('[identity]\nmode = "required"')
        if self.has_limit:
            lines.append('[[limits.rates]]\nrate = "10000000/m"')
        if self.is_governed or self.has_store:
            lines.append(f'[store]\nurl = "{store}"')
        for number in range(self.servers):
            name = "stub" if number == 0 else f"server-{number}"
            where = f'url = "http://127.0.0.1:9/{name}/mcp"'
            if self.is_stdio:
                where = f'command = "{sys.executable}"'
            version = VERSION_BY_ERA[self.server_era]
            lines.append(f'[[servers]]\nid = "{name}"\n{where}\nprotocol = "{version}"')
            if number == 0:
                approval = 'require_approval = "never"' if self.is_durable else ""
                lines.append(f'[servers.tools.echo]\nrisk = "{self.risk}"\n{approval}')
        if self.is_view:
            lines.append('[[views]]\nname = "team"\n[[views.tools]]\ntool = "stub/echo"')
            lines.append('name = "say"')
            lines.append(f"arguments = {{ {self.fixed} = true }}" if self.fixed else "")
        return "\n".join(lines)


@dataclass(slots=True)
class CallDriver:
    """One client connection to a gateway whose servers are stubs."""

    parts: GatewayParts
    path: CallPath
    upstreams: Upstreams
    key: str = ""
    client: ByteTransport = field(default_factory=ByteTransport)
    connection: asyncio.Protocol = field(init=False)
    _template: CallTemplate = field(init=False)
    _session: str | None = None
    _number: int = FIRST_CALL

    async def open(self) -> None:
        """Open the sessions, and make the warm calls."""
        self.connection = client_connection(self.parts, self.client)
        if self.path.era == "handshake":
            self._session = await self._initialize()
            for _ in range(self.path.sessions):
                await self._initialize()
            # The other sessions would have connections of their own.
            self.connection = client_connection(self.parts, self.client)
        headers = http_headers(self.path.era, "tools/call", self.path.tool, self._session)
        bodies = call_bodies(self.path.era, self.path.tool, self.path.body)
        self._template = CallTemplate.cut(*(self._request(each, headers) for each in bodies))
        for _ in range(WARM_CALLS):
            found = await self._answer(self._call())
            if b'"result"' not in found:
                raise SystemExit(f"{self.path.name}: the call failed: {found!r}")

    async def _initialize(self) -> str:
        hello = self._request(
            initialize_body(), http_headers("handshake", "initialize", None, None)
        )
        head = (await self._answer(hello)).partition(b"\r\n\r\n")[0].lower().decode()
        session = dict(line.split(": ", 1) for line in head.split("\r\n")[1:])["mcp-session-id"]
        note = http_headers("handshake", "notifications/initialized", None, session)
        await self._answer(self._request(initialized_body(), note))
        return session

    async def _answer(self, request: bytes) -> bytes:
        self.client.written.clear()
        self.connection.data_received(request)
        await _until(self._has_answer)
        return b"".join(self.client.written)

    def _call(self) -> bytes:
        self._number += 1
        return self._template.numbered(self._number)

    def _request(self, body: bytes, headers: dict[str, str]) -> bytes:
        where = "/mcp" if self.path.is_merged else "/servers/stub/mcp"
        where = "/views/team/mcp" if self.path.is_view else where
        lines = [f"POST {where} HTTP/1.1", "Host: 127.0.0.1:2664"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body

    async def count(self, counter: CallCounter) -> None:
        """Count one call, from the bytes of its request to the bytes of its answer.

        The audit log commits the events of deferred calls later. `count_audit` counts that. A
        durable call waits for two commits, and they are counted with it.
        """
        await self._settle()
        request = self._call()
        with _slow_stub():
            with counter.on():
                self.connection.data_received(request)
                await _until(self._has_asked)
            asked = self._asked()
            answer = asked.take_answer()
            with counter.on():
                asked.receive(answer)
                await _until(self._has_answer)
            self._check()

    async def count_audit(self, counter: CallCounter, calls: int) -> int:
        """Count how the audit log commits the events of so many calls. Gives their number.

        The number varies if the log begins to commit before all calls are made.
        """
        await self._settle()
        audit_log = self.parts.audit_log_components.audit_log
        with _slow_stub():
            for _ in range(calls):
                self.connection.data_received(self._call())
                await _until(self._has_asked)
                self._asked().answer()
                self._check()
                self.client.written.clear()
        events = audit_log.uncommitted_count
        flushed = asyncio.ensure_future(audit_log.flush())
        with counter.on():
            await _until(flushed.done)
        return events

    async def blocks(self) -> int:
        """How many blocks of memory a call holds while it waits for its server."""
        await self._settle()
        request = self._call()
        with _slow_stub():
            before = sys.getallocatedblocks()
            self.connection.data_received(request)
            await _until(self._has_asked)
            held = sys.getallocatedblocks() - before
            self._asked().answer()
            await _until(self._has_answer)
            self._check()
        return held

    async def _settle(self) -> None:
        """Commit what is pending, and forget what was written."""
        await self.parts.audit_log_components.audit_log.flush()
        self.client.written.clear()
        for upstream in self.upstreams:
            upstream.written.clear()

    def _has_asked(self) -> bool:
        return any(each.written for each in self.upstreams)

    def _has_answer(self) -> bool:
        return bool(self.client.written)

    def _asked(self) -> UpstreamBytes:
        asked = [each for each in self.upstreams if each.written]
        if len(asked) != 1:
            said = f"{len(asked)} requests went to servers at once: {self.client.written!r}"
            raise SystemExit(f"{self.path.name}: {said}")
        return asked[0]

    def _check(self) -> None:
        if not self.client.written or b'"result"' not in self.client.written[0]:
            raise SystemExit(f"{self.path.name}: no answer came: {self.client.written!r}")


def client_connection(parts: GatewayParts, transport: asyncio.Transport) -> asyncio.Protocol:
    """The server's end of a connection from a client."""
    limits = ListenerLimits()
    app = parts.http_app
    connection = HttpServerConnection(ListenerGuard(limits, app, app.serve))
    connection.connection_made(transport)
    return connection


@contextlib.contextmanager
def _slow_stub() -> Generator[None]:
    """Within this the stub answers when it is told to."""
    UpstreamBytes.is_quick = False
    try:
        yield
    finally:
        UpstreamBytes.is_quick = True


@contextlib.asynccontextmanager
async def driver(path: CallPath, folder: Path) -> AsyncGenerator[CallDriver]:
    store, key = f"sqlite:///{folder}/comity.db", ""
    with contextlib.ExitStack() as stack:
        if path.is_governed:
            realm = await settle(store, path.principals, 1)
            key = realm.keys[0]
            stack.enter_context(patch.dict(os.environ, COMITY_PEPPER=realm.pepper))
        config = folder / "comity.toml"
        config.write_text(path.config(store), encoding="utf-8")
        memory = {"DATABASE_URL": "memory"}
        settings = ConfigSource(folder, folder, memory, config, needs_trust=False).load().settings
        upstreams = stack.enter_context(_stub_upstreams(path))
        # A busy machine makes fewer calls in that time than a warm sender would.
        stack.enter_context(patch("comity.app.http.KNOWN_SECONDS", SECONDS))
        async with assemble_gateway(settings) as parts:
            driven = CallDriver(parts, path, upstreams, key)
            async with asyncio.timeout(SECONDS):
                while any(
                    each.state is not ServerLifecycleState.CONNECTED for each in parts.servers
                ):
                    await asyncio.sleep(0.01)
            await driven.open()
            with _without_garbage_collection():
                yield driven


@contextlib.contextmanager
def _without_garbage_collection() -> Generator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def _stub_upstreams(path: CallPath) -> Generator[Upstreams]:
    """Every connection and every process of a server is a stub. Gives all of them."""
    upstreams: Upstreams = []

    def respond_http(payload: bytes) -> bytes:
        head, _, body = payload.partition(b"\r\n\r\n")
        server = head.split(b"/", 2)[1]
        return _with_tools(stub.respond(head.lower(), body), server, path.tools_per_server)

    def respond_stdio(line: bytes) -> bytes:
        request = _decode_request(line)
        is_modern = path.server_era == "modern"
        return stub.answer(request, modern=is_modern) + b"\n" if request.id else b""

    async def dial(_: OriginDialler, factory: Any) -> Any:
        protocol = factory()
        transport = UpstreamBytes(respond_http)
        transport.protocol, transport.receive = protocol, protocol.data_received
        protocol.connection_made(transport)
        upstreams.append(transport)
        return protocol

    async def start_process(_: object) -> Any:
        upstreams.append(UpstreamBytes(respond_stdio))
        return StubProcess(upstreams[-1])

    with (
        patch.object(OriginDialler, "dial", dial),
        patch("comity.servers.process.process.start_process", start_process),
    ):
        yield upstreams


def _with_tools(response: bytes, server: bytes, count: int) -> bytes:
    """A list of tools with this many tools."""
    if count == 1 or b'"tools":[' not in response:
        return response
    more = b"".join(
        b'{"name":"%b-tool-%d","description":"Finds it.","inputSchema":{"type":"object"}},'
        % (server, number)
        for number in range(1, count)
    )
    head, _, body = response.replace(b'"tools":[', b'"tools":[' + more).partition(b"\r\n\r\n")
    return _LENGTH.sub(b"content-length: %d" % len(body), head) + b"\r\n\r\n" + body


async def _until(is_done: Callable[[], bool]) -> None:
    # Without `asyncio.timeout`, which would be counted.
    until = time.monotonic() + SECONDS
    while not is_done():
        if time.monotonic() > until:
            raise TimeoutError
        await _one_turn()


@types.coroutine
def _one_turn() -> Generator[None]:
    """Let the event loop run once. `asyncio.sleep` would be counted."""
    yield
