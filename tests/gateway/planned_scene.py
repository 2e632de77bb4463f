"""Two gateways with equal settings: one plans calls and shares heads, the other does neither."""

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from bench.call_driver import ByteTransport
from comity.app.gateway import GatewayParts, assemble_gateway
from comity.app.settings import Settings
from comity.app.settings_reader import ConfigSource
from comity.audit.events import AuditEvent
from comity.http import asgi
from comity.http.client.dial import OriginDialler
from comity.http.fast_path import Continuation, FastPathRequest, RequestHead
from comity.mcp import jsonrpc
from comity.mcp.mgp import ServerLifecycleState
from tests.gateway.planned_requests import (
    LEGACY,
    MODERN,
    SESSION,
    HeaderPairs,
    Request,
    RequestWriter,
)
from tests.mcp.tool_call_frames import find_no_tool_call, meaning_of
from tests.support.credentials import GivenOut

SECONDS: Final = 60.0

CONFIG: Final = """
[identity]
mode = "required"
[policy]
approval_policy = "auto_approve"
[approvals]
client_wait = "1ms"
request_ttl = "30d"
max_open_per_principal = 10000
[[servers]]
id = "stub"
url = "http://127.0.0.1:1{gateway}/mcp"
protocol = "2026-07-28"
[servers.tools.echo]
risk = "safe"
[servers.tools.add]
risk = "moderate"
[servers.tools.drop]
risk = "dangerous"
[[servers]]
id = "old"
url = "http://127.0.0.1:2{gateway}/mcp"
protocol = "2025-11-25"
[servers.tools.echo]
risk = "safe"
[servers.tools.add]
risk = "moderate"
[[grants]]
subject = "agent:all"
target = "*"
[[grants]]
subject = "agent:all"
target = "stub__drop"
[[grants]]
subject = "agent:some"
target = "stub__echo"
[[grants]]
subject = "agent:some"
target = "old__add"
effect = "ask"
[[grants]]
subject = "agent:some"
target = "stub__add"
effect = "deny"
[[forbid]]
subject = "agent:*"
target = "*/forbidden"
reason = "it is not for agents"
"""

TOOLS: Final = {
    "echo": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "add": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "number", "minimum": 0}},
        "additionalProperties": False,
    },
    "drop": {"type": "object", "properties": {"path": {"type": "string"}}},
    "forbidden": {"type": "object"},
    "any": {"type": "object"},
}
_STAMP: Final = {
    "resultType": "complete",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "stub", "version": "1"}},
}


def _result_of(method: str, params: dict[str, Any]) -> dict[str, object] | None:
    if method == "initialize":
        said = {"name": "stub", "version": "1"}
        return {"protocolVersion": LEGACY, "capabilities": {"tools": {}}, "serverInfo": said}
    if method == "server/discover":
        return {"supportedVersions": [MODERN], "capabilities": {"tools": {}}, "ttlMs": 60000}
    if method == "tools/list":
        listed = [{"name": name, "inputSchema": schema} for name, schema in TOOLS.items()]
        return {"tools": listed, "ttlMs": 60000, "cacheScope": "public"}
    if method == "tools/call" and params.get("name") in TOOLS:
        text = json.dumps(params.get("arguments"), sort_keys=True)
        return {"content": [{"type": "text", "text": text}]}
    return {} if method == "ping" else None


def respond(payload: bytes) -> bytes:
    """Return the HTTP response of the server to one request."""
    head, _, body = payload.partition(b"\r\n\r\n")
    if not head.startswith(b"POST "):
        return b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n"
    asked = json.loads(body)
    if "id" not in asked or "method" not in asked:
        return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
    answer: dict[str, object] = {"jsonrpc": "2.0", "id": asked["id"]}
    found = _result_of(asked["method"], asked.get("params") or {})
    if found is None:
        answer["error"] = {"code": -32601, "message": "Method not found"}
    else:
        answer["result"] = found | (_STAMP if MODERN.encode() in head else {})
    data = json.dumps(answer).encode()
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: one\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(data), data)
    )


class ServerTransport(ByteTransport):
    """The transport to a server, which answers each request in the next round of the loop."""

    def __init__(self, protocol: asyncio.Protocol, sent: list[bytes]) -> None:
        super().__init__()
        self._protocol = protocol
        self._sent = sent

    def write(self, data: Any) -> None:
        payload = bytes(data)
        self._sent.append(payload)
        answer = respond(payload)
        asyncio.get_running_loop().call_soon(self._protocol.data_received, answer)


@dataclass
class Lane:
    """The connection of one client: it keeps what is written to it."""

    address: str
    news: asyncio.Event
    written_data: bytes = b""
    continuation: Continuation | None = None

    def written(self, request: FastPathRequest, data: bytes) -> None:
        self.written_data += data
        self.news.set()

    def continued(self, request: FastPathRequest, continuation: Continuation) -> None:
        self.continuation = continuation
        self.news.set()


@dataclass
class AsgiAnswer:
    """The answer of an ASGI application, without headers that only describe the connection."""

    news: asyncio.Event
    status: int = 0
    body: bytes = b""
    session: bytes = b"none"

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.session = dict(message["headers"]).get(b"mcp-session-id", b"none")
        else:
            self.body += message.get("body", b"")
        self.news.set()


@dataclass(frozen=True)
class Exchange:
    """What came of one request: the answer, what the servers were sent, what was recorded."""

    status: int
    body: str
    sent: tuple[tuple[str, str], ...]
    events: tuple[tuple[object, ...], ...]
    is_fast: bool = field(compare=False)


_TRACE: Final = re.compile(r"\b[0-9a-f]{32}\b")
_TASK: Final = re.compile(r"~:[0-9a-f]{16}:")
_ASK: Final = re.compile(r"\b[0-9a-v]{26}\b")
_TIME: Final = re.compile(
    r"[0-9.]+ seconds|\"retry_after_ms\":[0-9]+|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(Z|[+]00:00)"
)
_PORT: Final = re.compile(r"(?<=127\.0\.0\.1):[12][01]")
_UNEQUAL_DETAILS: Final = ("duration_ms", "expires_at", "request_id")


def normalised(text: str) -> str:
    """Return a text without times, trace ids, and ids of tasks and approval requests."""
    return _TIME.sub("<time>", _TASK.sub("", _ASK.sub("<ask>", _TRACE.sub("<trace>", text))))


def described(event: AuditEvent) -> tuple[object, ...]:
    details = {name: each for name, each in event.details.items() if name not in _UNEQUAL_DETAILS}
    said = (event.type, event.result, event.actor, event.kind, event.server, event.tool)
    return (*map(str, said), bool(event.call), normalised(json.dumps(details, default=str)))


class Gateway:
    """One of both gateways, and all that it sends and records."""

    def __init__(self, parts: GatewayParts, sent: list[bytes], *, is_planned: bool) -> None:
        self.parts = parts
        self.sessions: dict[tuple[str, str], bytes] = {}
        self._sent = sent
        self._is_planned = is_planned
        self._heads: dict[tuple[bytes, HeaderPairs], RequestHead] = {}
        self._events: list[AuditEvent] = []
        log = parts.audit_log_components.audit_log
        enqueue = log.enqueue

        def note(event: AuditEvent) -> None:
            self._events.append(event)
            enqueue(event)

        log.enqueue = note
        if not is_planned:
            parts.all_servers_endpoint.call_gate.plan_cache = None

    def _head(self, path: bytes, headers: HeaderPairs) -> RequestHead:
        # The body has another length each time, but the head of a request may not say another one.
        head = self._heads.get((path, headers)) if self._is_planned else None
        if head is None:
            head = RequestHead(path, dict(headers), list(headers), True)
            self._heads[path, headers] = head
        return head

    async def begin_session(self, path: str, principal: str, key: str) -> None:
        """Begin a session of a principal, for requests of the legacy protocol version."""
        body = (
            b'{"jsonrpc":"2.0","id":"hi","method":"initialize","params":{"protocolVersion":"%b",'
            b'"capabilities":{},"clientInfo":{"name":"b","version":"1"}}}' % LEGACY.encode()
        )
        headers = (
            (b"host", b"127.0.0.1:2664"),
            (b"authorization", b"Bearer " + key.encode()),
            (b"accept", b"application/json, text/event-stream"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        )
        answer = AsgiAnswer(asyncio.Event())
        scope = asgi.scope_of(path.encode(), list(headers), "127.0.0.1")
        async with asyncio.timeout(SECONDS):
            await self.parts.http_app(scope, asgi.with_body(body, _never), answer.send)
        self.sessions[principal, path] = answer.session

    async def exchange(
        self, path: bytes, headers: HeaderPairs, body: bytes, address: str
    ) -> Exchange:
        """Send one request and return all that came of it."""
        self._sent.clear()
        self._events.clear()
        news = asyncio.Event()
        lane, answer = Lane(address, news), AsgiAnswer(news)
        head = self._head(path, headers)
        request = FastPathRequest(lane, head, body)
        with contextlib.ExitStack() as stack:
            if not self._is_planned:
                stack.enter_context(patch.object(jsonrpc, "_tool_call_in", find_no_tool_call))
            is_fast = await self._serve(request, lane, answer)
        if lane.written_data:
            answer.status = int(lane.written_data[9:12])
            answer.body = lane.written_data.partition(b"\r\n\r\n")[2]
        sent = tuple(_split(each) for each in self._sent if b'"method":"ping"' not in each)
        events = tuple(map(described, self._events))
        return Exchange(answer.status, normalised(answer.body.decode()), sent, events, is_fast)

    async def _serve(self, request: FastPathRequest, lane: Lane, answer: AsgiAnswer) -> bool:
        """Serve a request as the HTTP server does, and return whether the fast path took it."""
        head, app = request.head, self.parts.http_app
        is_fast, running = app.serve(request), None
        if not is_fast:
            scope = asgi.scope_of(head.path, head.listed, lane.address)
            whole = asgi.with_body(request.body, _never)
            running = asyncio.ensure_future(app(scope, whole, answer.send))
        async with asyncio.timeout(SECONDS):
            while not lane.written_data and (running is None or not running.done()):
                if running is None and lane.continuation is not None:
                    running = asyncio.ensure_future(lane.continuation(_never, answer.send))
                if running is not None:
                    running.add_done_callback(lambda _: answer.news.set())
                if answer.body:
                    self._leave_waiting_calls()
                await answer.news.wait()
                answer.news.clear()
        if running is not None:
            running.result()
        self._leave_waiting_calls()
        # The record of a call may come after its answer.
        for _ in range(3):
            await asyncio.sleep(0)
        return is_fast

    def _leave_waiting_calls(self) -> None:
        """Withdraw a call whose client receives progress, or polls, while a person is asked."""
        for call in self.parts.active_calls:
            if call.held_since is not None:
                call.withdraw(None)


def _split(payload: bytes) -> tuple[str, str]:
    """Return the head of a message to a server, and its body in a form without an order."""
    head, _, body = payload.partition(b"\r\n\r\n")
    meaning = json.dumps(meaning_of(body)) if body else ""
    return normalised(_PORT.sub("", head.decode("latin-1"))), normalised(meaning)


async def _never() -> dict[str, Any]:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


def _settings(folder: Path, *, is_planned: bool, has_store: bool) -> Settings:
    folder.mkdir()
    config = folder / "comity.toml"
    # Each gateway has ports of its own, by which its connections are known.
    text = CONFIG.replace("{gateway}", str(int(is_planned)))
    if has_store:
        durable = '[audit]\nsafe = "durable"\nmoderate = "durable"\n'
        text = f'[store]\nurl = "sqlite:///{folder}/comity.db"\n{durable}{text}'
    config.write_text(text, encoding="utf-8")
    memory = {"DATABASE_URL": "memory"}
    return ConfigSource(folder, folder, memory, config, needs_trust=False).load().settings


@contextlib.asynccontextmanager
async def one_gateway(
    folder: Path, given_out: GivenOut, sent: list[bytes], *, is_planned: bool, has_store: bool
) -> AsyncGenerator[Gateway]:
    settings = _settings(folder, is_planned=is_planned, has_store=has_store)
    async with assemble_gateway(settings, given_out.register) as parts:
        async with asyncio.timeout(SECONDS):
            while any(s.state is not ServerLifecycleState.CONNECTED for s in parts.servers):
                await asyncio.sleep(0.01)
        yield Gateway(parts, sent, is_planned=is_planned)


@contextlib.contextmanager
def in_process_servers() -> Generator[tuple[list[bytes], list[bytes]]]:
    """Connect the general and the planned gateway to servers in this process.

    The result is what each of them sends.
    """
    sent: tuple[list[bytes], list[bytes]] = ([], [])

    async def dial(dialler: OriginDialler, make: Callable[[], Any]) -> Any:
        protocol = make()
        protocol.connection_made(ServerTransport(protocol, sent[dialler.origin.port % 10]))
        return protocol

    with patch.object(OriginDialler, "dial", dial):
        yield sent


class Pair:
    """Both gateways, which get the same requests in the same order."""

    def __init__(self, planned: Gateway, general: Gateway) -> None:
        self.planned = planned
        self.general = general
        self.seen: Counter[str] = Counter()

    async def compare(self, request: Request) -> Exchange:
        found = await _send(self.planned, request)
        other = await _send(self.general, request)
        for name in ("status", "body", "sent", "events"):
            assert getattr(found, name) == getattr(other, name), (name, request)
        self.seen[f"status {found.status}"] += 1
        self.seen["fast" if found.is_fast else "ordinary"] += 1
        self.seen["sent" if found.sent else "not sent"] += 1
        self.seen.update(str(event[0]) for event in found.events)
        return found


async def _send(gateway: Gateway, request: Request) -> Exchange:
    session = gateway.sessions.get((request.principal, request.path.decode()), b"none")
    headers = tuple(
        (name, session if value == SESSION else value) for name, value in request.headers
    )
    return await gateway.exchange(request.path, headers, request.body, request.address)


@contextlib.asynccontextmanager
async def both_gateways(
    folder: Path, given_out: GivenOut, *, has_store: bool
) -> AsyncGenerator[Pair]:
    with in_process_servers() as sent:
        made = [
            one_gateway(
                folder / name,
                given_out,
                sent[is_planned],
                is_planned=is_planned,
                has_store=has_store,
            )
            for name, is_planned in (("planned", True), ("general", False))
        ]
        async with made[0] as planned, made[1] as general:
            yield Pair(planned, general)


async def compare_gateways(
    folder: Path, requests: int, seed: int, *, has_store: bool = False
) -> Counter[str]:
    """Send generated requests to both gateways, and return how many of each kind there were."""
    given_out = GivenOut()
    keys = {name: given_out.give(name) for name in ("agent:all", "agent:some", "agent:none")}
    keys |= {"agent:nobody": "", "agent:wrong": keys["agent:all"][:-1] + "x"}
    writer = RequestWriter(seed, keys)
    async with both_gateways(folder, given_out, has_store=has_store) as pair:
        for gateway in (pair.planned, pair.general):
            for principal in ("agent:all", "agent:some", "agent:none"):
                for path in ("/mcp", "/servers/stub/mcp", "/servers/old/mcp"):
                    await gateway.begin_session(path, principal, keys[principal])
        for _ in range(requests):
            await pair.compare(writer.request())
        cache = pair.planned.parts.all_servers_endpoint.call_gate.plan_cache
        assert cache is not None
        assert cache.plans
        assert pair.general.parts.all_servers_endpoint.call_gate.plan_cache is None
        return pair.seen


def check_coverage(seen: Counter[str], requests: int) -> None:
    """Fail if the generator lost one of its kinds."""
    for kind in ("fast", "ordinary", "sent", "not sent", "TOOL_EXECUTED", "TOOL_BLOCKED"):
        assert seen[kind] > requests // 25, (kind, seen)
    for kind in ("status 400", "status 401", "status 404", "VALIDATION_FAILED"):
        assert seen[kind] > requests // 200, (kind, seen)
    assert seen["dev.comity.approval_requested"] > 3, seen
