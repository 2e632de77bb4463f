"""The HTTP endpoints of the tool registry, and their error format."""

import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, Raw

from comity.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOTHING_HERE,
    MalformedMessage,
    Unavailable,
)
from comity.gateway import streams
from comity.http import asgi
from comity.http.asgi import ACTOR, JSON_TYPE, UNSHOWN, HttpEndpoint, Receive, Scope, Send
from comity.identity.http_auth import AuthMember
from comity.mcp import jsonrpc, protocol, refusals
from comity.mcp.actors import ANONYMOUS, Actor
from comity.mcp.framing import encode_event
from comity.mcp.jsonrpc import ErrorBody, Frame, FrameLimits, Id
from comity.mcp.refusals import Refusal, RefusedRequest, RegistryContext
from comity.registry.service import CATALOGUE, EXPORT, OPENAPI, SPOKEN, VALIDATE, RegistryService
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.telemetry.tracing import PARENT_HEADER, trace_context_in

TOOLS: Final = "/tools"
BENEATH: Final = "/tools/"
OPENAPI_PATH: Final = "/openapi.json"
RESOURCES: Final = "/resources"
READ_PATH: Final = "/resources/read"
REGISTRY_PATHS: Final = frozenset({TOOLS, OPENAPI_PATH, RESOURCES, READ_PATH})
PIECE_BYTES: Final = 64 * 1024
_FRESH: Final = (b"cache-control", b"no-store")
_RETRIED: Final = frozenset({429, 503})


def is_at_registry(path: str) -> bool:
    """Return whether a path belongs to the registry and uses its error format."""
    return path in REGISTRY_PATHS or path.startswith(BENEATH)


async def send_json(
    send: Send, status: int, body: bytes, retry_after_ms: int | None = None
) -> None:
    """Send one JSON body. A large body is sent in parts, at the speed of its reader."""
    headers = [JSON_TYPE, (b"content-length", b"%d" % len(body)), _FRESH]
    if retry_after_ms is not None and status in _RETRIED:
        headers.append((b"retry-after", b"%d" % -(-retry_after_ms // 1000)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    pieces = memoryview(body)
    for start in range(0, len(body), PIECE_BYTES):
        piece = bytes(pieces[start : start + PIECE_BYTES])
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def answer_error(send: Send, status: int, error: bytes, request_id: Id | None) -> None:
    """Send an error in the registry's format, for every kind of request."""
    body = jsonrpc.to_json(
        {"jsonrpc": "2.0", "id": request_id, "error": jsonrpc.decode_members(error)}
    )
    await send_json(send, status, body, _retry_after_ms(error))


async def send_refusal(
    send: Send, error: MalformedMessage | Unavailable, request_id: Id | None = None
) -> None:
    """Send a refusal that happened before a call existed."""
    fault = error.fault
    after = error.retry_after if isinstance(error, Unavailable) else None
    asked = RefusedRequest(0, "", registry=RegistryContext())
    worded = refusals.refusal_response(
        asked, Refusal(fault, str(error), after), secrets.token_hex(16)
    )
    assert worded.error is not UNSET
    status = 404 if fault is NOTHING_HERE else fault.reg_status
    await answer_error(send, status, bytes(worded.error), request_id)


async def refuse_method(send: Send, *allowed: bytes) -> None:
    await asgi.send_empty(send, 405, ((b"allow", b", ".join(allowed)),))


def _retry_after_ms(error: bytes) -> int | None:
    try:
        data = jsonrpc.error_of(jsonrpc.Frame("2.0", error=Raw(error)))
    except MalformedMessage:
        return None
    found = _member(data, "retry_after_ms")
    return found if isinstance(found, int) and found >= 0 else None


def _member(error: ErrorBody | None, name: str) -> object:
    data = None if error is None else error.data
    return data.get(name) if isinstance(data, dict) else None  # type: ignore[union-attr]  # any


QUERY_FIELDS: Final = 8
_ID: Final = 1
_READING: Final = ("GET", "HEAD")
_TOKEN: Final[Mapping[str, object]] = {"progressToken": "call"}
_whole: Final = msgspec.json.Decoder(msgspec.Raw)
_CALL: Final = b'{"jsonrpc":"2.0","id":1,"method":"%b","params":{"name":%b,"arguments":%b}}'


class RegistryApi:
    """The HTTP endpoint for all paths of the registry."""

    def __init__(
        self, registry: RegistryService, limits: FrameLimits, auth: AuthMember | None = None
    ) -> None:
        self._registry = registry
        self._limits = limits
        self._auth = auth or AuthMember()

    @property
    def endpoints(self) -> dict[str, HttpEndpoint]:
        return dict.fromkeys((*REGISTRY_PATHS, BENEATH), self)

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        path: str = scope["path"]
        is_read = scope["method"] in _READING
        if not is_read and scope["method"] != "POST":
            await refuse_method(send, *_allowed(path))
        elif path.startswith(BENEATH):
            await self._tool(scope, headers, receive, send)
        elif is_read:
            frame = _question(path, parse_query(scope["query_string"]))
            await self._send_request(frame, _outbox(scope, headers), receive, send)
        elif path == TOOLS:
            await self._speak(scope, headers, receive, send)
        else:
            await refuse_method(send, *_allowed(path))

    async def _tool(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Handle the paths of one tool: its export, a call, or a check of arguments."""
        name, _, rest = scope["path"].removeprefix(BENEATH).partition("/")
        if not name or rest not in ("", "validate"):
            raise MalformedMessage("a tool is at /tools/{tool_name}", NOTHING_HERE)
        client_stream = _outbox(scope, headers)
        if scope["method"] in _READING:
            if rest:
                await refuse_method(send, b"POST")
                return
            await self._send_request(
                jsonrpc.make_request(_ID, EXPORT, {"name": name}), client_stream, receive, send
            )
            return
        asgi.demand_json(headers.get(b"content-type", b""))
        body = await asgi.read_body(receive, headers, self._limits.frame_bytes)
        frame = await self._call(VALIDATE if rest else protocol.CALL_TOOL, name, body)
        if not rest and b"text/event-stream" in headers.get(b"accept", b""):
            await self._stream(frame, client_stream, receive, send)
        else:
            await self._send_request(frame, client_stream, receive, send)

    async def _call(self, method: str, name: str, body: bytes) -> Frame:
        """Return a call with the body as arguments, checked like any other message.

        Raises MalformedMessage if the body is not an object.
        """
        _demand_an_object(body)
        await asgi.yield_if_long(body)
        said = _CALL % (method.encode(), jsonrpc.to_json(name), body)
        # The gateway adds the envelope, so it must not count against the limits of the arguments.
        limits = self._limits
        topic = FrameLimits(
            limits.frame_bytes + len(said) - len(body), limits.depth + 2, limits.values
        )
        frame = jsonrpc.decode_frame(said, topic)
        await asgi.yield_if_long(body)
        jsonrpc.decode_members(frame.parameters["arguments"])
        return frame

    async def _speak(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Handle a JSON-RPC request in the format of the registry's specification."""
        asgi.demand_json(headers.get(b"content-type", b""))
        body = await asgi.read_body(receive, headers, self._limits.frame_bytes)
        frame, actor = jsonrpc.decode_frame(body, self._limits), _actor(scope)
        await asgi.yield_if_long(body)
        if type(frame) is not Frame or actor is UNSHOWN:
            frame, actor = await self._auth.extract(frame, actor, scope["path"])
        if frame.method is UNSET or not isinstance(frame.id, int | str):
            raise MalformedMessage("send a request with an id", INVALID_REQUEST)
        if frame.method not in SPOKEN:
            unknown = MalformedMessage(
                f"{frame.method:.80} is not supported here", METHOD_NOT_FOUND
            )
            await send_refusal(send, unknown, frame.id)
            return
        client_stream = _outbox(scope, headers)
        client_stream.actor = actor
        await self._send_request(frame, client_stream, receive, send, frame.id)

    async def _send_request(
        self,
        frame: Frame,
        client_stream: ClientStream,
        receive: Receive,
        send: Send,
        request_id: Id | None = None,
    ) -> None:
        """Send one request and write its answer; in JSON-RPC if there is an id."""
        async with self._registry.run_request(frame, client_stream) as call:
            said = await _read_answer(client_stream, receive)
            if said is None:
                return
            status, result, error = self._registry.final_answer(call, said)
        if error is not None:
            await answer_error(send, status, bytes(error), request_id)
        elif request_id is not None:
            body = jsonrpc.to_json({"jsonrpc": "2.0", "id": request_id, "result": result})
            await send_json(send, status, body)
        else:
            await send_json(send, status, _plain(call, bytes(result or b"{}")))

    async def _stream(
        self, frame: Frame, client_stream: ClientStream, receive: Receive, send: Send
    ) -> None:
        """Send one request and write its notifications and its answer as events."""
        params = {**frame.parameters, "_meta": _TOKEN}
        frame = jsonrpc.with_params(frame, jsonrpc.to_raw(params))
        async with self._registry.run_request(frame, client_stream) as call:
            await streams.stream_once(
                send, receive, client_stream, lambda data: self._event(call, data)
            )

    def _event(self, call: Call, data: bytes) -> bytes:
        said = jsonrpc.decode_members(data)
        if "method" in said:
            kind = (jsonrpc.decode_text(said["method"]) or "").rpartition("/")[2]
            return encode_event(bytes(said.get("params", b"{}")), event=kind)
        _, result, error = self._registry.final_answer(call, data)
        if error is None:
            return encode_event(bytes(result or b"{}"), event="result")
        body = {"jsonrpc": "2.0", "id": None, "error": error}
        return encode_event(jsonrpc.to_json(body), event="error")


async def _read_answer(client_stream: ClientStream, receive: Receive) -> bytes | None:
    """Return the answer, or None if the client disconnects before there is one."""
    said: list[bytes] = client_stream.take()
    watch = None if client_stream.is_final else streams.DisconnectWatcher(receive, client_stream)
    try:
        while watch is not None and not client_stream.is_final and not watch.is_disconnected:
            await client_stream.wait()
            client_stream.is_nudged = client_stream.is_suspended = False
            said = client_stream.take() or said
    finally:
        if watch is not None:
            watch.stop()
    return said[-1] if client_stream.is_final and said else None


def _question(path: str, query: dict[str, str]) -> Frame:
    """Return the registry request of a path. Raises MalformedMessage."""
    method = {
        TOOLS: CATALOGUE,
        OPENAPI_PATH: OPENAPI,
        RESOURCES: protocol.LIST_RESOURCES,
    }.get(path, protocol.READ_RESOURCE)
    if method == protocol.READ_RESOURCE and "uri" not in query:
        raise MalformedMessage("which resource? add ?uri=", INVALID_PARAMS)
    return jsonrpc.make_request(_ID, method, query)


def _plain(call: Call, result: bytes) -> bytes:
    """Return a result in the form of its path, where the cursor is named `next`."""
    if call.method != protocol.LIST_RESOURCES:
        return result
    said = jsonrpc.decode_members(result)
    following = said.pop("nextCursor", None)
    return jsonrpc.to_json(said if following is None else {**said, "next": following})


def _demand_an_object(body: bytes) -> None:
    """Check that the body is one object, without decoding its values. Raises MalformedMessage."""
    try:
        _whole.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MalformedMessage("the body is not JSON; send the arguments, or {} for none") from None
    except RecursionError:
        raise MalformedMessage("nested too deep", INVALID_REQUEST) from None
    if body.lstrip()[:1] != b"{":
        raise MalformedMessage("the body must be an object: the arguments", INVALID_PARAMS)


def _allowed(path: str) -> tuple[bytes, ...]:
    if path == TOOLS:
        return (b"GET", b"HEAD", b"POST")
    if path.startswith(BENEATH):
        return (b"POST",) if path.endswith("/validate") else (b"GET", b"HEAD", b"POST")
    return (b"GET", b"HEAD")


def parse_query(written: bytes) -> dict[str, str]:
    """Return the parameters of a query. Raises MalformedMessage if one is there twice."""
    try:
        fields = parse_qsl(
            written.decode("ascii"), keep_blank_values=True, max_num_fields=QUERY_FIELDS
        )
    except ValueError:
        raise MalformedMessage("a query that cannot be read", INVALID_PARAMS) from None
    found = dict(fields)
    if len(found) != len(fields):
        raise MalformedMessage("a parameter is there twice", INVALID_PARAMS)
    return found


def _actor(scope: Scope) -> Actor:
    return scope.get(ACTOR, ANONYMOUS)


def _outbox(scope: Scope, headers: dict[bytes, bytes]) -> ClientStream:
    client_stream = ClientStream()
    client_stream.actor = _actor(scope)
    if PARENT_HEADER in headers:
        client_stream.trace = trace_context_in(headers)
    return client_stream
