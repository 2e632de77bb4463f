"""A client of the HTTP doors that says exactly what it is told, and reads replies as they come."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast

from comity.app.gateway import GatewayParts, assemble_gateway
from comity.app.settings import ServerSettings
from comity.cli.api_client import find_gateway_by_url
from comity.http.connection import ListenerLimits
from comity.identity.authentication import IdentityDirectory
from comity.mcp.framing import SseParser
from tests.support.listening import Application, Listening, Peer, listening
from tests.support.settings import settings_with

type Frame = dict[str, Any]
type Pairs = Iterable[tuple[str, str]]

SECONDS = 60.0
OPERATOR_TOKEN = "visitors-operator-token"
LATEST = "2025-11-25"
MODERN = "2026-07-28"
BOTH = "application/json, text/event-stream"
ENVELOPE: Frame = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass
class Event:
    """One event of a stream; a comment has nothing but its text."""

    id: str | None = None
    data: bytes = b""
    retry: int | None = None
    comment: str | None = None

    @property
    def frame(self) -> Frame:
        return json.loads(self.data)


class Reply:
    """One response, of which the body may still be coming."""

    def __init__(self, status: int, headers: dict[str, str], peer: Peer) -> None:
        self.status = status
        self.headers = headers
        self.peer = peer
        self._parser = SseParser()
        self._events: list[Event] = []

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "") == "text/event-stream"

    async def body(self) -> bytes:
        """The whole of it, however it is framed."""
        async with asyncio.timeout(SECONDS):
            if "content-length" in self.headers:
                return await self.peer.reader.readexactly(int(self.headers["content-length"]))
            pieces: list[bytes] = []
            while piece := await self._chunk():
                pieces.append(piece)
            return b"".join(pieces)

    async def json(self) -> Frame:
        return json.loads(await self.body())

    async def event(self) -> Event:
        """The next event; raises EOFError where the stream ends instead."""
        async with asyncio.timeout(SECONDS):
            while not self._events:
                piece = await self._chunk()
                if not piece:
                    raise EOFError
                if piece.startswith(b":"):
                    self._events.append(Event(comment=piece[1:].decode().strip()))
                    continue
                found = self._parser.feed(piece)
                self._events += [Event(each.id, each.data, each.retry) for each in found]
        return self._events.pop(0)

    async def events(self) -> list[Event]:
        """Every event up to the stream's end."""
        found: list[Event] = []
        try:
            while True:
                found.append(await self.event())
        except EOFError:
            return found

    async def frames(self) -> list[Frame]:
        """Every message of the reply, whichever way it came."""
        if not self.is_stream:
            return [await self.json()]
        return [event.frame for event in await self.events() if event.data]

    def leave(self) -> None:
        self.peer.writer.transport.abort()

    async def _chunk(self) -> bytes:
        try:
            size = int(await self.peer.reader.readuntil(b"\r\n"), 16)
            piece = await self.peer.reader.readexactly(size + 2)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        return piece[:-2]


@dataclass
class Visitor:
    """Someone who comes to the doors of one gateway; each request on a connection of its own."""

    place: Listening
    parts: GatewayParts
    path: str = "/servers/up/mcp"
    session: dict[str, str] = field(default_factory=dict[str, str])
    # The operator token of a gateway in local mode; shown where only operators come in, or always.
    token: str = ""
    is_operator: bool = False

    async def send(
        self, method: str, headers: Pairs = (), body: bytes = b"", path: str | None = None
    ) -> Reply:
        """One request as it is told; Host and length are added where they are not said."""
        peer = await self.place.connect()
        lines = [f"{method} {path or self.path} HTTP/1.1"]
        pairs = list(headers)
        names = {name.lower() for name, _ in pairs}
        if "host" not in names:
            pairs.insert(0, ("host", self.place.address.removeprefix("http://")))
        operates = self.is_operator or (path or self.path).startswith(("/api/", "/admin/"))
        if self.token and operates and "authorization" not in names:
            pairs.append(("authorization", f"Bearer {self.token}"))
        if body and not names & {"content-length", "transfer-encoding"}:
            pairs.append(("content-length", str(len(body))))
        lines += [f"{name}: {value}" for name, value in pairs]
        peer.say("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        return await read_head(peer)

    async def post(self, frame: object, accept: str = BOTH, **more: str) -> Reply:
        """A message of the handshake era in this visitor's session."""
        headers = {"content-type": "application/json", "accept": accept, **self.session}
        headers.update({name.replace("_", "-"): value for name, value in more.items()})
        return await self.send("POST", headers.items(), json.dumps(frame).encode())

    async def get(self, last: str | None = None) -> Reply:
        headers = {"accept": "text/event-stream", **self.session}
        if last is not None:
            headers["last-event-id"] = last
        return await self.send("GET", headers.items())

    async def greet(self, version: str = LATEST, capabilities: object = None) -> Frame:
        """Shake hands; the session is remembered, and the whole answer given back."""
        params = {
            "protocolVersion": version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "visitor", "version": "1"},
        }
        reply = await self.post(request(0, "initialize", params))
        assert reply.status == 200, await reply.body()
        self.session = {"mcp-session-id": reply.headers["mcp-session-id"]}
        self.session["mcp-protocol-version"] = version
        (answer,) = await reply.frames()
        assert (await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})).status
        return answer["result"]

    async def call(self, tool: str, named: object = 1, accept: str = BOTH) -> Reply:
        params: Frame = {"name": tool, "arguments": {}}
        return await self.post(request(named, "tools/call", params), accept)

    async def call_modern(self, tool: str, named: object = 1, **headers: str) -> Reply:
        params = {"name": tool, "arguments": {}, "_meta": ENVELOPE}
        told = {"mcp-name": tool, **headers}
        return await self.ask_modern("tools/call", params, named, **told)

    async def ask_modern(
        self, method: str, params: Frame | None = None, named: object = 1, **headers: str
    ) -> Reply:
        """A request of the modern era, its envelope and headers in order unless told otherwise."""
        said = {
            "content-type": "application/json",
            "accept": BOTH,
            "mcp-protocol-version": MODERN,
            "mcp-method": method,
            **headers,
        }
        frame = request(named, method, {"_meta": ENVELOPE} if params is None else params)
        return await self.send("POST", said.items(), json.dumps(frame).encode())

    def other(self, path: str | None = None) -> "Visitor":
        """Somebody else at the same gateway."""
        return replace(self, path=path or self.path, session={})


async def read_head(peer: Peer) -> Reply:
    async with asyncio.timeout(SECONDS):
        head = await peer.reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(": ") for line in lines if line)
    return Reply(int(first.split()[1]), {name.lower(): value for name, _, value in pairs}, peer)


def request(named: object, method: str, params: object = None) -> Frame:
    frame: Frame = {"jsonrpc": "2.0", "id": named, "method": method}
    return frame if params is None else {**frame, "params": params}


@asynccontextmanager
async def visiting(
    *servers: ServerSettings,
    limits: ListenerLimits | None = None,
    register: IdentityDirectory | None = None,
    waits: bool = True,
    **chosen: Any,
) -> AsyncGenerator[Visitor]:
    """A gateway before these servers, on a real socket.

    With `waits`, each of the servers was tried before.
    """
    settings = settings_with(servers=servers, **chosen)
    async with (
        assemble_gateway(settings, register, OPERATOR_TOKEN) as parts,
        listening(cast("Application", parts.http_app), limits) as place,
    ):
        if waits:
            await parts.servers.wait_for_first_starts(timedelta(seconds=SECONDS))
        token = OPERATOR_TOKEN if settings.identity.mode == "local" else ""
        yield Visitor(place, parts, token=token)


@asynccontextmanager
async def visiting_at(origin: str) -> AsyncGenerator[Visitor]:
    """Someone at the doors of a gateway that is another process."""
    elsewhere = cast("asyncio.Task[None]", asyncio.get_running_loop().create_future())
    place = Listening(origin, elsewhere)
    try:
        record = find_gateway_by_url(origin)
        yield Visitor(
            place, cast("GatewayParts", None), token="" if record is None else record.token
        )
    finally:
        for peer in place.peers:
            peer.writer.transport.abort()
        await asyncio.sleep(0)


def at(url: str, name: str = "up", headers: Mapping[str, str] | None = None) -> ServerSettings:
    """A server that is reached over HTTP."""
    return ServerSettings(name, name, "http", url=url, headers=headers or {})
