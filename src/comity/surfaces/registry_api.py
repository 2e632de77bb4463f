"""The registry's face: tools over plain HTTP, their catalogue, and OpenAPI. (REG, D-86)

`GET /tools`, `GET` and `POST /tools/{tool_name}`, `POST /tools/{tool_name}/validate`,
`GET /openapi.json`, `GET /resources`, `GET /resources/read?uri=`, and JSON-RPC at `POST /tools`.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET

from comity.kernel.call import Call
from comity.kernel.outbox import Outbox
from comity.kernel.registry import CATALOGUE, EXPORT, OPENAPI, SPOKEN, VALIDATE, Registry
from comity.kernel.tracing import named_in
from comity.surfaces import doorway, registry_words, streams
from comity.surfaces.auth_member import AuthMember
from comity.surfaces.doorway import Receive, Scope, Send
from comity.surfaces.gateway import ACTOR, Door
from comity.surfaces.reception import UNSHOWN
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOTHING_HERE,
    MalformedMessage,
)
from comity.wire.jsonrpc import Frame, Id, Limits
from comity.wire.parties import NOBODY, Actor
from comity.wire.sse import encode_event
from comity.wire.traces import PARENT_HEADER

QUERY_FIELDS: Final = 8
_ID: Final = 1
_READING: Final = ("GET", "HEAD")
_TOKEN: Final[Mapping[str, object]] = {"progressToken": "call"}
_whole: Final = msgspec.json.Decoder(msgspec.Raw)
_CALL: Final = b'{"jsonrpc":"2.0","id":1,"method":"%b","params":{"name":%b,"arguments":%b}}'


class RegistryApi:
    """The one door of the registry's paths."""

    def __init__(self, registry: Registry, limits: Limits, auth: AuthMember | None = None) -> None:
        self._registry = registry
        self._limits = limits
        self._auth = auth or AuthMember()

    @property
    def doors(self) -> dict[str, Door]:
        return dict.fromkeys((*registry_words.AT_REGISTRY, registry_words.BENEATH), self)

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        path: str = scope["path"]
        is_read = scope["method"] in _READING
        if not is_read and scope["method"] != "POST":
            await registry_words.refuse_method(send, *_allowed(path))
        elif path.startswith(registry_words.BENEATH):
            await self._tool(scope, headers, receive, send)
        elif is_read:
            frame = _question(path, _query(scope["query_string"]))
            await self._tell(frame, _outbox(scope, headers), receive, send)
        elif path == registry_words.TOOLS:
            await self._speak(scope, headers, receive, send)
        else:
            await registry_words.refuse_method(send, *_allowed(path))

    async def _tool(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """One tool: what it is, whether arguments would pass, what it gives."""
        name, _, rest = scope["path"].removeprefix(registry_words.BENEATH).partition("/")
        if not name or rest not in ("", "validate"):
            raise MalformedMessage("a tool is at /tools/{tool_name}", NOTHING_HERE)
        outbox = _outbox(scope, headers)
        if scope["method"] in _READING:
            if rest:
                await registry_words.refuse_method(send, b"POST")
                return
            await self._tell(jsonrpc.request(_ID, EXPORT, {"name": name}), outbox, receive, send)
            return
        doorway.demand_json(headers.get(b"content-type", b""))
        body = await doorway.read_body(receive, headers, self._limits.frame_bytes)
        frame = await self._call(VALIDATE if rest else mcp.CALL_TOOL, name, body)
        if not rest and b"text/event-stream" in headers.get(b"accept", b""):
            await self._stream(frame, outbox, receive, send)
        else:
            await self._tell(frame, outbox, receive, send)

    async def _call(self, method: str, name: str, body: bytes) -> Frame:
        """The body as a call's arguments, looked at as closely as any message."""
        _demand_an_object(body)
        await doorway.breathe(body)
        said = _CALL % (method.encode(), jsonrpc.to_json(name), body)
        # What stands around the arguments is ours, and takes none of their room.
        limits = self._limits
        room = Limits(limits.frame_bytes + len(said) - len(body), limits.depth + 2, limits.values)
        frame = jsonrpc.decode(said, room)
        await doorway.breathe(body)
        jsonrpc.members(frame.parameters["arguments"])
        return frame

    async def _speak(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """JSON-RPC, as the registry's document has it."""
        doorway.demand_json(headers.get(b"content-type", b""))
        body = await doorway.read_body(receive, headers, self._limits.frame_bytes)
        frame, actor = jsonrpc.decode(body, self._limits), _actor(scope)
        await doorway.breathe(body)
        if type(frame) is not Frame or actor is UNSHOWN:
            frame, actor = await self._auth.take(frame, actor, scope["path"])
        if frame.method is UNSET or not isinstance(frame.id, int | str):
            raise MalformedMessage("send a request with an id", INVALID_REQUEST)
        if frame.method not in SPOKEN:
            unknown = MalformedMessage(f"{frame.method:.80} is not said here", METHOD_NOT_FOUND)
            await registry_words.refuse(send, unknown, frame.id)
            return
        outbox = _outbox(scope, headers)
        outbox.actor = actor
        await self._tell(frame, outbox, receive, send, frame.id)

    async def _tell(
        self,
        frame: Frame,
        outbox: Outbox,
        receive: Receive,
        send: Send,
        request_id: Id | None = None,
    ) -> None:
        """One question, one answer; with an id, in JSON-RPC."""
        async with self._registry.asking(frame, outbox) as call:
            said = await _last_word(outbox, receive)
            if said is None:
                return
            status, result, error = self._registry.concluded(call, said)
        if error is not None:
            await registry_words.answer_error(send, status, bytes(error), request_id)
        elif request_id is not None:
            body = jsonrpc.to_json({"jsonrpc": "2.0", "id": request_id, "result": result})
            await registry_words.answer(send, status, body)
        else:
            await registry_words.answer(send, status, _plain(call, bytes(result or b"{}")))

    async def _stream(self, frame: Frame, outbox: Outbox, receive: Receive, send: Send) -> None:
        """The same as events: what is told amid the call as it comes, and its end."""
        params = {**jsonrpc.params_of(frame), "_meta": _TOKEN}
        frame = jsonrpc.with_params(frame, jsonrpc.to_raw(params))
        async with self._registry.asking(frame, outbox) as call:
            await streams.stream_once(send, receive, outbox, lambda data: self._event(call, data))

    def _event(self, call: Call, data: bytes) -> bytes:
        said = jsonrpc.members(data)
        if "method" in said:
            kind = (jsonrpc.text(said["method"]) or "").rpartition("/")[2]
            return encode_event(bytes(said.get("params", b"{}")), event=kind)
        _, result, error = self._registry.concluded(call, data)
        if error is None:
            return encode_event(bytes(result or b"{}"), event="result")
        body = {"jsonrpc": "2.0", "id": None, "error": error}
        return encode_event(jsonrpc.to_json(body), event="error")


async def _last_word(outbox: Outbox, receive: Receive) -> bytes | None:
    """The answer; None where whoever asked has gone before there was one."""
    said: list[bytes] = outbox.take()
    watch = None if outbox.final else streams.Watch(receive, outbox)
    try:
        while watch is not None and not outbox.final and not watch.gone:
            await outbox.wait()
            outbox.nudged = outbox.suspended = False
            said = outbox.take() or said
    finally:
        if watch is not None:
            watch.stop()
    return said[-1] if outbox.final and said else None


def _question(path: str, query: dict[str, str]) -> Frame:
    """What a path asks, as a request of the registry's desk."""
    method = {
        registry_words.TOOLS: CATALOGUE,
        registry_words.OPENAPI: OPENAPI,
        registry_words.RESOURCES: mcp.LIST_RESOURCES,
    }.get(path, mcp.READ_RESOURCE)
    if method == mcp.READ_RESOURCE and "uri" not in query:
        raise MalformedMessage("which resource? add ?uri=", INVALID_PARAMS)
    return jsonrpc.request(_ID, method, query)


def _plain(call: Call, result: bytes) -> bytes:
    """A result as its path gives it: cursors have one name here."""
    if call.method != mcp.LIST_RESOURCES:
        return result
    said = jsonrpc.members(result)
    following = said.pop("nextCursor", None)
    return jsonrpc.to_json(said if following is None else {**said, "next": following})


def _demand_an_object(body: bytes) -> None:
    """One whole object, and nothing around it; nothing of it is built here."""
    try:
        _whole.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MalformedMessage("the body is not JSON; send the arguments, or {} for none") from None
    except RecursionError:
        raise MalformedMessage("nested too deep", INVALID_REQUEST) from None
    if body.lstrip()[:1] != b"{":
        raise MalformedMessage("the body must be an object: the arguments", INVALID_PARAMS)


def _allowed(path: str) -> tuple[bytes, ...]:
    if path == registry_words.TOOLS:
        return (b"GET", b"HEAD", b"POST")
    if path.startswith(registry_words.BENEATH):
        return (b"POST",) if path.endswith("/validate") else (b"GET", b"HEAD", b"POST")
    return (b"GET", b"HEAD")


def _query(written: bytes) -> dict[str, str]:
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
    return scope.get(ACTOR, NOBODY)


def _outbox(scope: Scope, headers: dict[bytes, bytes]) -> Outbox:
    outbox = Outbox()
    outbox.actor = _actor(scope)
    if PARENT_HEADER in headers:
        outbox.trace = named_in(headers)
    return outbox
