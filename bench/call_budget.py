"""Counts what one warm `tools/call` costs: Python and C calls, tasks, futures, decodes, encodes.

The gateway runs in this process between two transports that are only lists of bytes. Nothing waits
and no timer runs, so that the same code always gives the same figures.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, Final
from unittest.mock import patch

import msgspec
from uvicorn.server import ServerState

from bench.stub import respond
from comity.app.gateway import GatewayParts, assemble_gateway
from comity.app.settings_reader import ConfigSource
from comity.http.client.dial import OriginDialler
from comity.http.connection import HttpServerConnection, ListenerGuard, ListenerLimits
from comity.http.server import uvicorn_config
from comity.mcp.mgp import ServerLifecycleState

WARM_CALLS: Final = 40
SECONDS: Final = 60.0
MODERN_META: Final = (
    b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    b'"io.modelcontextprotocol/clientInfo":{"name":"b","version":"1"},'
    b'"io.modelcontextprotocol/clientCapabilities":{}}'
)
type Counts = dict[str, int]


class ByteTransport(asyncio.Transport):
    """A transport that keeps the bytes written to it. Its other methods do nothing."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 9), "sockname": ("127.0.0.1", 1)})
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class UpstreamBytes(ByteTransport):
    """The transport to the stub. While `is_quick` is set, the stub answers at once."""

    is_quick = True

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol

    def write(self, data: Any) -> None:
        super().write(data)
        if UpstreamBytes.is_quick:
            asyncio.get_running_loop().call_soon(self.answer)

    def answer(self) -> None:
        payload = self.written.pop()
        self.protocol.data_received(response_to(payload))


def response_to(payload: bytes) -> bytes:
    head, _, body = payload.partition(b"\r\n\r\n")
    return respond(head.lower(), body)


class CallCounter:
    """Counts calls while it is on, by `sys.monitoring`."""

    TOOL = sys.monitoring.PROFILER_ID

    def __init__(self) -> None:
        self.functions: Counter[CodeType] = Counter()
        self.counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def on(self) -> Generator[None]:
        monitoring = sys.monitoring
        events = monitoring.events
        monitoring.use_tool_id(self.TOOL, "comity call budget")
        monitoring.register_callback(self.TOOL, events.PY_START, self._on_start)
        monitoring.register_callback(self.TOOL, events.CALL, self._on_call)
        monitoring.set_events(self.TOOL, events.PY_START | events.CALL)
        try:
            yield
        finally:
            monitoring.set_events(self.TOOL, 0)
            monitoring.free_tool_id(self.TOOL)

    def _on_start(self, code: CodeType, _: int) -> None:
        if "/bench/" not in code.co_filename:
            self.functions[code] += 1

    def _on_call(self, code: CodeType, _: int, called: object, first: object) -> None:
        if "/bench/" in code.co_filename or isinstance(called, FunctionType | MethodType):
            return
        self.counts["c_calls"] += 1
        name, owner = getattr(called, "__name__", ""), getattr(called, "__self__", first)
        if name == "decode" and isinstance(owner, msgspec.json.Decoder):
            self.counts["decodes"] += 1
        elif name == "encode" and isinstance(owner, msgspec.json.Encoder):
            self.counts["encodes"] += 1
        elif called in (msgspec.json.encode, msgspec.json.decode):
            self.counts["encodes" if called is msgspec.json.encode else "decodes"] += 1
        elif called is asyncio.Task or name == "create_task":
            self.counts["tasks"] += 1
        elif name == "create_future":
            self.counts["futures"] += 1

    def result(self) -> Counts:
        kinds = ("c_calls", "tasks", "futures", "decodes", "encodes")
        return {"python": sum(self.functions.values())} | {k: self.counts[k] for k in kinds}


@dataclass(frozen=True, slots=True)
class BudgetPath:
    """One way of a call through the gateway."""

    name: str
    config: str
    is_modern: bool = True
    path: bytes = b"/servers/stub/mcp"
    tool: bytes = b"echo"


_SERVER = '[[servers]]\nid = "stub"\nurl = "http://127.0.0.1:9/mcp"\nera = "{era}"\n'
_SAFE = '[servers.tools.echo]\nrisk = "safe"\n'
_STORE = '[store]\nurl = "sqlite:///{folder}/comity.db"\n'
PATHS: Final = (
    BudgetPath("relay modern", _SERVER.format(era="modern")),
    BudgetPath("relay legacy", _SERVER.format(era="handshake"), is_modern=False),
    BudgetPath("store modern", _STORE + _SERVER.format(era="modern") + _SAFE),
    BudgetPath("merged modern", _SERVER.format(era="modern"), path=b"/mcp", tool=b"stub__echo"),
    BudgetPath("bridge to legacy", _SERVER.format(era="handshake")),
)


class CallDriver:
    """One client connection to a gateway whose only server is the stub."""

    def __init__(
        self, parts: GatewayParts, path: BudgetPath, upstreams: list[UpstreamBytes]
    ) -> None:
        self.parts = parts
        self.upstreams = upstreams
        self._path = path
        limits = ListenerLimits()
        app = parts.http_app
        guard = ListenerGuard(limits, ServerState(), app.serve)
        self.client = ByteTransport()
        self.connection = HttpServerConnection(uvicorn_config(app, limits), guard)
        self.connection.connection_made(self.client)
        self._session = b""
        self._next = 0

    async def open(self) -> None:
        """Begin a session if the protocol version has sessions, and make the warm calls."""
        if not self._path.is_modern:
            hello = (
                b'{"jsonrpc":"2.0","id":"hi","method":"initialize","params":{"protocolVersion":'
                b'"2025-11-25","capabilities":{},"clientInfo":{"name":"b","version":"1"}}}'
            )
            head = (await self._answer(self._request(hello))).partition(b"\r\n\r\n")[0]
            lines = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
            self._session = lines[b"mcp-session-id"]
            await self._answer(
                self._request(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
            )
        for _ in range(WARM_CALLS):
            found = await self._answer(self.call())
            if b'"result"' not in found:
                raise SystemExit(f"the call failed: {found!r}")

    async def _answer(self, request: bytes) -> bytes:
        self.client.written.clear()
        self.connection.data_received(request)
        async with asyncio.timeout(SECONDS):
            while not self.client.written:
                await asyncio.sleep(0)
        return b"".join(self.client.written)

    def call(self) -> bytes:
        self._next += 1
        params = b'"name":"%b","arguments":{"text":"hello"}' % self._path.tool
        if self._path.is_modern:
            params += b"," + MODERN_META
        return self._request(
            b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{%b}}' % (self._next, params)
        )

    def _request(self, body: bytes) -> bytes:
        head = (
            b"POST %b HTTP/1.1\r\nhost: 127.0.0.1:2664\r\n"
            b"accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n"
            % self._path.path
        )
        if self._path.is_modern:
            head += (
                b"mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: %b\r\n"
                % self._path.tool
            )
        elif self._session:
            head += b"mcp-protocol-version: 2025-11-25\r\nmcp-session-id: %b\r\n" % self._session
        return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)

    async def count(self, counter: CallCounter) -> None:
        """Count one call, from the bytes of its request to the bytes of its answer.

        The audit log writes its entries later, in batches, so their writing is not counted.
        """
        UpstreamBytes.is_quick = False
        await self.parts.audit_log_components.audit_log.flush()
        self.client.written.clear()
        for upstream in self.upstreams:
            upstream.written.clear()
        request = self.call()
        with counter.on():
            self.connection.data_received(request)
        asked = [each for each in self.upstreams if each.written]
        if len(asked) != 1:
            raise SystemExit(f"{len(asked)} requests went to the server")
        answer = response_to(asked[0].written.pop())
        with counter.on():
            asked[0].protocol.data_received(answer)
        if not self.client.written or b'"result"' not in self.client.written[0]:
            raise SystemExit(f"no answer came at once: {self.client.written!r}")
        UpstreamBytes.is_quick = True


@contextlib.asynccontextmanager
async def driver(path: BudgetPath, folder: Path) -> AsyncGenerator[CallDriver]:
    config = folder / "comity.toml"
    config.write_text(path.config.replace("{folder}", str(folder)), encoding="utf-8")
    settings = ConfigSource(folder, folder, {}, config).load().settings
    upstreams: list[UpstreamBytes] = []

    async def dial(_: OriginDialler, factory: Any) -> Any:
        protocol = factory()
        transport = UpstreamBytes(protocol)
        protocol.connection_made(transport)
        upstreams.append(transport)
        return protocol

    with patch.object(OriginDialler, "dial", dial):
        async with assemble_gateway(settings) as parts:
            driven = CallDriver(parts, path, upstreams)
            await _until_ready(parts)
            await driven.open()
            yield driven


async def _until_ready(parts: GatewayParts) -> None:
    async with asyncio.timeout(SECONDS):
        while any(each.state is not ServerLifecycleState.CONNECTED for each in parts.servers):
            await asyncio.sleep(0.01)


async def measure(path: BudgetPath) -> CallCounter:
    counter = CallCounter()
    with tempfile.TemporaryDirectory() as folder:
        async with driver(path, Path(folder)) as driven:
            await driven.count(counter)
    return counter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", action="store_true", help="list the functions of each path")
    parser.add_argument("--only", default="", help="the paths whose name holds this")
    chosen = parser.parse_args()
    for path in PATHS:
        if chosen.only not in path.name:
            continue
        counter = asyncio.run(measure(path))
        said = ", ".join(f"{name} {number}" for name, number in counter.result().items())
        print(f"{path.name}: {said}")
        if chosen.functions:
            for code, times in counter.functions.most_common():
                place = "/".join(Path(code.co_filename).parts[-3:])
                print(f"  {times:3} {place}:{code.co_firstlineno} {code.co_qualname}")


if __name__ == "__main__":
    main()
