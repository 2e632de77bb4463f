"""Scripted servers: they answer, ask, report wrong things, and crash, as the test wants."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from comity.errors import Unavailable
from comity.mcp import jsonrpc
from comity.mcp.protocol import STANDALONE, UNKNOWN, Era, Stream
from comity.sessions.upstream import TransportListener
from comity.telemetry.tracing import Headers
from tests.kit.clock import happens

LEGACY: Final = "2025-11-25"
MODERN: Final = "2026-07-28"

type Json = dict[str, Any]
type ToolReply = object | Callable[[Json], object]
"""The result of a tool, or what makes it from the arguments of a call."""

DONE: Final[Json] = {"content": [{"type": "text", "text": "done"}]}
_METHOD_NOT_FOUND: Final[Json] = {"code": -32601, "message": "Method not found"}
_CALL: Final = "tools/call"
_CANCELLED: Final = "notifications/cancelled"


def text_result(text: str) -> Json:
    """The result of a tool that is one text."""
    return {"content": [{"type": "text", "text": text}]}


@dataclass(frozen=True, slots=True)
class ServerCall:
    """One tool call that a scripted server got, and the ways to answer it."""

    id: int
    params: Json
    headers: dict[str, str]
    transport: "ScriptedTransport"

    def answers(self, result: object = None) -> None:
        self.transport.send_answer(self.id, {"result": DONE if result is None else result})

    def fails(self, code: int, message: str, *, status: int = 200) -> None:
        error = {"code": code, "message": message}
        self.transport.send_answer(self.id, {"error": error}, status)

    def wants(self, inputs: object = None, state: object = None) -> None:
        """A modern server needs input, or time, before it can answer."""
        self.answers(input_required(inputs, state))

    async def asks(self, method: str, params: object) -> Json:
        """A legacy server asks amid the call. The answer is the client's, or that of a person."""
        question = self.transport.send_question(method, params, self.id)
        answers = self.transport.answers
        await happens(lambda: question in answers)
        return answers[question]

    def progresses(self, done: float, total: float | None = None) -> None:
        """Report progress to the token of the call. Nothing is sent for a call without one."""
        token = self.params.get("_meta", {}).get("progressToken")
        if token is not None:
            params = {"progressToken": token, "progress": done}
            params |= {} if total is None else {"total": total}
            self.transport.send_message(
                {"method": "notifications/progress", "params": params}, self.id
            )

    @property
    def is_withdrawn(self) -> bool:
        """Whether the gateway needs no answer any more."""
        return self.id in self.transport.cancelled or self.id in self.transport.dropped


def input_required(inputs: object = None, state: object = None) -> Json:
    """The result of a modern server that needs input before it can answer."""
    members = {"inputRequests": inputs, "requestState": state}
    return {"resultType": "input_required"} | {
        name: value for name, value in members.items() if value is not None
    }


class ScriptedServer:
    """A server of either version. A tool without a reply is answered by the test, in its time."""

    def __init__(
        self,
        name: str = "",
        *,
        version: str = MODERN,
        tools: Sequence[str | Json] = ("t",),
        process: bool = False,
        replies: Mapping[str, object] | None = None,
    ) -> None:
        self.name, self.version, self.starts_process = name, version, process
        self.transports: list[ScriptedTransport] = []
        self.calls: list[ServerCall] = []
        self.send_error: Unavailable | None = None
        self.tool_replies: dict[str, ToolReply] = {}
        self.replies: dict[str, object] = {**_greeting(version), "tools/list": {}}
        self._set_tools(tools)
        self.replies |= replies or {}

    async def called(self, count: int = 1) -> ServerCall:
        """The tool call of that number, once it is here."""
        await happens(lambda: len(self.calls) >= count)
        return self.calls[count - 1]

    def answers(self, tool: str, reply: ToolReply) -> None:
        """From now on each call of the tool gets this reply at once."""
        self.tool_replies[tool] = reply

    def changes_tools(self, *tools: str | Json) -> None:
        """The server has these tools from now on, and announces the change."""
        self._set_tools(tools)
        for transport in self.open_transports:
            transport.send_message({"method": "notifications/tools/list_changed"})

    def crashes(self, reason: str = "exit status 1") -> None:
        for transport in self.open_transports:
            transport.is_open = False
            transport.listener.on_closed(reason)

    @property
    def open_transports(self) -> "list[ScriptedTransport]":
        return [transport for transport in self.transports if transport.is_open]

    def create_transport(self, era: Era) -> "ScriptedTransport":
        """Open another connection of the gateway, which takes the server for a factory of them."""
        self.transports.append(ScriptedTransport(self))
        return self.transports[-1]

    def _set_tools(self, tools: Iterable[str | Json]) -> None:
        definitions = [
            {"name": tool, "inputSchema": {"type": "object"}} if isinstance(tool, str) else tool
            for tool in tools
        ]
        lasting = {"ttlMs": 3_600_000, "cacheScope": "public"} if self.version >= MODERN else {}
        self.replies["tools/list"] = {"tools": definitions, **lasting}


def echo_server(name: str = "echo", **options: Any) -> ScriptedServer:
    """A server whose one tool `say` answers with the text that it gets."""
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    server = ScriptedServer(name, tools=[{"name": "say", "inputSchema": schema}], **options)
    server.answers("say", lambda arguments: text_result(arguments.get("text", "")))
    return server


class ScriptedTransport:
    """One connection of the gateway to a scripted server, with all that came over it."""

    has_exited_cleanly = False
    listener: TransportListener

    def __init__(self, server: ScriptedServer) -> None:
        self.server, self.is_open = server, False
        self.has_separate_streams = not server.starts_process
        self.cancelled: list[object] = []
        self.dropped: list[object] = []
        self.answers: dict[str, Json] = {}
        """What the gateway answered to the questions of the server."""

    # The server's end.

    def send_message(self, message: Json, amid: int | None = None, status: int = 200) -> None:
        stream: Stream = UNKNOWN
        if self.has_separate_streams:
            stream = STANDALONE if amid is None else amid
        if self.is_open:
            data = json.dumps({"jsonrpc": "2.0", **message}).encode()
            self.listener.on_message(data, stream, status)

    def send_answer(self, id: int, outcome: Json, status: int = 200) -> None:
        self.send_message({"id": id, **outcome}, id, status)

    def send_question(self, method: str, params: object, amid: int) -> str:
        question = f"question-{amid}-{len(self.answers) + 1}"
        self.send_message({"id": question, "method": method, "params": params}, amid)
        return question

    def _receive(self, message: Json, headers: dict[str, str]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method is None:
            self.answers[message["id"]] = message
        elif method == _CANCELLED:
            self.cancelled.append(params["requestId"])
        elif method == _CALL:
            call = ServerCall(message["id"], params, headers, self)
            self.server.calls.append(call)
            self._answer_call(call)
        elif "id" in message and method in self.server.replies:
            self.send_answer(message["id"], {"result": self.server.replies[method]})
        elif method in ("initialize", "server/discover"):
            self.send_answer(message["id"], {"error": _METHOD_NOT_FOUND})

    def _answer_call(self, call: ServerCall) -> None:
        reply = self.server.tool_replies.get(call.params["name"])
        if reply is not None:
            call.answers(reply(call.params.get("arguments", {})) if callable(reply) else reply)

    # The gateway's end.

    async def open(self, listener: TransportListener) -> None:
        self.listener, self.is_open = listener, True

    def send(self, frame: jsonrpc.Frame, stream: Stream, headers: Headers = ()) -> None:
        if self.server.send_error is not None:
            raise self.server.send_error
        # The message goes the way of its bytes, and the server reads it in a turn of its own.
        message = json.loads(jsonrpc.encode_frame(frame))
        fields = {name.decode(): value.decode() for name, value in dict(headers).items()}
        asyncio.get_running_loop().call_soon(self._receive, message, fields)

    def drop_stream(self, stream: Stream) -> None:
        self.dropped.append(stream)

    async def close(self) -> None:
        self.is_open = False

    def set_version(self, version: str) -> None: ...
    def listen(self) -> None: ...
    def pause(self, stream: Stream) -> None: ...
    def resume(self, stream: Stream) -> None: ...
    def stderr_lines(self) -> Sequence[str]:
        return ()


def _greeting(version: str) -> dict[str, object]:
    capabilities = {"capabilities": {"tools": {"listChanged": True}, "logging": {}}}
    if version >= MODERN:
        modern = {"supportedVersions": [version], "resultType": "complete", **capabilities}
        return {"server/discover": modern}
    identity = {"protocolVersion": version, "serverInfo": {"name": "scripted", "version": "1"}}
    return {"initialize": {**identity, **capabilities}, "logging/setLevel": {}}
