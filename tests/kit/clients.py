"""Scripted clients of both protocol versions. They speak HTTP to the application of a gateway."""

import asyncio
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from comity.http.asgi import Message, Receive, Scope, Send
from comity.mcp.framing import SseParser
from comity.mcp.refusals import REFUSAL_KEY
from tests.kit.clock import happens
from tests.kit.servers import MODERN, Json

HOST: Final = "127.0.0.1:2664"
CLIENT_INFO: Final[Json] = {"name": "kit", "version": "1"}
_META: Final = "io.modelcontextprotocol"
_CANCELLED: Final = "notifications/cancelled"
_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"

_CONNECTION: Final[Json] = {
    "type": "http",
    "http_version": "1.1",
    "scheme": "http",
    "root_path": "",
    "client": ("127.0.0.1", 9),
    "server": ("127.0.0.1", 2664),
    "extensions": {},
}


class Application(Protocol):
    """What serves HTTP: the application of a gateway."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Exchange:
    """One HTTP request, and the messages of its response as they come."""

    def __init__(
        self, app: Application, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> None:
        self.status, self.is_done = 0, False
        self.headers: dict[str, str] = {}
        self.messages: list[Json] = []
        self.event_ids: list[str] = []
        self.body = b""
        self._parser = SseParser()
        self._request: bytes | None = body
        self._is_left = asyncio.Event()
        target, _, query = path.partition("?")
        pairs = {"host": HOST, "content-length": str(len(body)), **headers}
        scope: Scope = {
            **_CONNECTION,
            "method": method,
            "path": target,
            "raw_path": target.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
            "state": {},
        }
        self._task = asyncio.ensure_future(app(scope, self._receive, self._send))

    def leave(self) -> None:
        """The connection breaks, or its client has gone."""
        self._is_left.set()

    async def next(self) -> Json:
        """The next message of the response."""
        await happens(lambda: self.messages or self.is_done)
        assert self.messages, f"no further message: {self.status} {self.body!r}"
        return self.messages.pop(0)

    async def finish(self) -> None:
        """Wait for the end of the response."""
        await happens(lambda: self.is_done or self._task.done())
        if not self.is_done:
            self._task.result()

    async def _receive(self) -> Message:
        if self._request is not None:
            body, self._request = self._request, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._is_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            pairs = message["headers"]
            self.headers = {name.decode().lower(): value.decode() for name, value in pairs}
            return
        piece: bytes = message.get("body", b"")
        if self.headers.get("content-type", "").startswith(_EVENTS):
            self._read_events(piece)
        else:
            self.body += piece
        if not message.get("more_body"):
            if self.body and self.headers.get("content-type", "").startswith(_JSON):
                self.messages.append(json.loads(self.body))
            self.is_done = True

    def _read_events(self, piece: bytes) -> None:
        if piece.startswith(b":"):
            return
        for event in self._parser.feed(piece):
            self.event_ids += [event.id] if event.id else []
            self.messages += [json.loads(event.data)] if event.data else []


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request: a result or an error, which may be a refusal of the gateway."""

    frame: Json
    status: int

    @property
    def result(self) -> Json:
        return self.frame["result"]

    @property
    def text(self) -> str:
        """The texts of a tool's result."""
        return "\n".join(each["text"] for each in self.result["content"] if each["type"] == "text")

    @property
    def error(self) -> Json:
        """The error. A refusal that is a result for a model is given as one."""
        refusal = self.frame.get("result", {}).get("_meta", {}).get(REFUSAL_KEY)
        if refusal is None:
            return self.frame["error"]
        return {"message": refusal["reason"], "data": refusal}

    @property
    def refused(self) -> str:
        """The kind of the refusal, in either form."""
        return self.error["data"]["error_type"]


@dataclass(frozen=True, slots=True)
class ApiReply:
    """The answer of the operator API."""

    status: int
    body: Any


@dataclass(slots=True)
class ClientCall:
    """A request of a client: the questions amid it, and then its answer."""

    id: int
    method: str
    params: Json
    exchange: Exchange
    cancelled_questions: list[object] = field(default_factory=list[object])
    notifications: list[Json] = field(default_factory=list[Json])

    async def question(self) -> Json:
        """The next request of the server. Notifications before it are noted."""
        while "id" not in (message := await self.exchange.next()):
            self._note(message)
        assert "method" in message, f"an answer instead of a question: {message}"
        return message

    async def reply(self) -> Reply:
        """The answer. Notifications before it are noted; a question before it is an error."""
        while "id" not in (message := await self.exchange.next()):
            self._note(message)
        assert "method" not in message, f"a question instead of an answer: {message}"
        await self.exchange.finish()
        return Reply(message, self.exchange.status)

    @property
    def is_open(self) -> bool:
        return not self.exchange.is_done

    def _note(self, message: Json) -> None:
        if message["method"] == _CANCELLED:
            self.cancelled_questions.append(message["params"]["requestId"])
        else:
            self.notifications.append(message)


@dataclass(slots=True)
class Client:
    """A client of one protocol version: a session of the legacy one, or modern requests."""

    app: Application
    path: str
    version: str
    headers: dict[str, str]
    capabilities: Json
    _ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    @property
    def is_modern(self) -> bool:
        return self.version >= MODERN

    async def initialize(self) -> None:
        """Begin the session of a legacy client. A modern client has none."""
        if self.is_modern:
            return
        params = {
            "protocolVersion": self.version,
            "capabilities": self.capabilities,
            "clientInfo": CLIENT_INFO,
        }
        call = self.begin("initialize", params)
        reply = await call.reply()
        assert "result" in reply.frame, f"no session: {reply.status} {reply.frame}"
        self.headers["mcp-session-id"] = call.exchange.headers["mcp-session-id"]
        self.headers["mcp-protocol-version"] = reply.result["protocolVersion"]
        await self._notify({"method": "notifications/initialized"})

    def begin(self, method: str, params: Json | None = None) -> ClientCall:
        """Send a request, and return at once."""
        call_id, params, headers = next(self._ids), dict(params or {}), dict[str, str]()
        if self.is_modern:
            headers = {"mcp-protocol-version": self.version, "mcp-method": method}
            if name := params.get("uri" if method == "resources/read" else "name"):
                headers["mcp-name"] = name
            params["_meta"] = self._envelope() | params.get("_meta", {})
        frame = {"id": call_id, "method": method, "params": params}
        return ClientCall(call_id, method, params, self.send(frame, **headers))

    def begin_call(self, tool: str, arguments: Json | None = None, **members: object) -> ClientCall:
        """Send the call of a tool, and return at once. `members` are others of its params."""
        return self.begin("tools/call", {"name": tool, "arguments": arguments or {}, **members})

    async def request(self, method: str, params: Json | None = None) -> Reply:
        return await self.begin(method, params).reply()

    async def call_tool(self, tool: str, arguments: Json | None = None) -> Reply:
        return await self.begin_call(tool, arguments).reply()

    async def answer(
        self, question: Json, result: object = None, *, error: Json | None = None
    ) -> None:
        """Answer a question that came amid a call, as legacy clients do."""
        outcome = {"result": result} if error is None else {"error": error}
        await self._notify({"id": question["id"], **outcome})

    async def retry(self, call: ClientCall, answers: Json) -> ClientCall:
        """Make a call again with the answers to the questions of its reply, as modern clients do.

        The reply of the call must have come.
        """
        result = (await call.reply()).result
        assert result["resultType"] == "input_required", result
        params = {**call.params, "inputResponses": answers}
        if "requestState" in result:
            params["requestState"] = result["requestState"]
        return self.begin(call.method, params)

    async def cancel(self, call: ClientCall) -> None:
        """Withdraw a call: by a notification, or, in the modern version, by leaving."""
        if self.is_modern:
            call.exchange.leave()
        else:
            await self._notify({"method": _CANCELLED, "params": {"requestId": call.id}})

    def resume(self, call: ClientCall, after: str) -> ClientCall:
        """The stream of a call breaks, and the client comes back for what follows this event."""
        call.exchange.leave()
        resumed = self.send({}, "GET", accept=_EVENTS, **{"last-event-id": after})
        return ClientCall(call.id, call.method, call.params, resumed)

    async def leave(self) -> None:
        """End the session of a legacy client."""
        if not self.is_modern:
            await self.send({}, "DELETE").finish()

    def send(self, frame: Json, http_method: str = "POST", **headers: str) -> Exchange:
        """Send one HTTP request as it is given."""
        fields = {"content-type": _JSON, "accept": f"{_JSON}, {_EVENTS}", **self.headers, **headers}
        body = json.dumps({"jsonrpc": "2.0", **frame}).encode() if frame else b""
        return Exchange(self.app, http_method, self.path, fields, body)

    def _envelope(self) -> Json:
        return {
            f"{_META}/protocolVersion": self.version,
            f"{_META}/clientCapabilities": self.capabilities,
            f"{_META}/clientInfo": CLIENT_INFO,
        }

    async def _notify(self, frame: Json) -> None:
        exchange = self.send(frame)
        await exchange.finish()
        assert exchange.status == 202, (exchange.status, exchange.messages or exchange.body)


@dataclass(frozen=True, slots=True)
class ApiClient:
    """Sends requests to the operator API with one credential."""

    app: Application
    headers: Mapping[str, str]

    async def request(self, method: str, path: str, body: object = None) -> ApiReply:
        data = b"" if body is None else json.dumps(body).encode()
        fields = {"content-type": _JSON, "accept": _JSON, **self.headers}
        exchange = Exchange(self.app, method, path, fields, data)
        await exchange.finish()
        return ApiReply(exchange.status, exchange.messages[0] if exchange.messages else None)
