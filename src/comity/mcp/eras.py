"""Translation of messages between the two MCP protocol versions, with input rounds and tasks."""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final, cast
from urllib.parse import quote, unquote

import msgspec
from msgspec import Raw

from comity.errors import (
    INVALID_PARAMS,
    RESOURCE_NOT_FOUND,
    UPSTREAM_FAILED,
    URL_ELICITATION_REQUIRED,
    MalformedMessage,
)
from comity.mcp import jsonrpc, protocol
from comity.mcp.framing import BACKSLASH
from comity.mcp.jsonrpc import UNSET, Frame, Id

RELATED: Final = "io.modelcontextprotocol/related-task"
EXTENSION: Final = b"io.modelcontextprotocol/tasks"
STATUS: Final = "notifications/tasks/status"
GET: Final = "tasks/get"
RESULT: Final = "tasks/result"
CANCEL: Final = "tasks/cancel"
UPDATE: Final = "tasks/update"
LIST: Final = "tasks/list"
METHODS: Final = frozenset({GET, RESULT, UPDATE, CANCEL})


@dataclass(frozen=True, slots=True, repr=False)
class TaskIds:
    """Makes public task ids that are valid only for the principal that received them. (attack 7)

    An id names the server and the tool of its task, so that every node can ask the grants again.
    """

    key: bytes = b""

    def public(self, party: str, server: str, tool: str, task: str) -> str:
        named = quote(tool, safe="", errors="surrogatepass")
        return f"{server}:{self._mark(party, server, tool, task)}:{named}:{task}"

    def decode(self, party: str, public: str | None) -> tuple[str, str, str]:
        """Return the server, the tool and the server's own id of a public task id.

        Raises MalformedMessage.
        """
        server, mark, named, task = [*(public or "").split(":", 3), "", "", ""][:4]
        tool = unquote(named, errors="surrogatepass")
        said = mark.encode(errors="surrogatepass")
        if not task or not hmac.compare_digest(
            said, self._mark(party, server, tool, task).encode()
        ):
            raise MalformedMessage(UNKNOWN_TASK_MESSAGE, INVALID_PARAMS)
        return server, tool, task

    def _mark(self, party: str, server: str, tool: str, task: str) -> str:
        # A server chooses the names of its tools and tasks. The length keeps them apart.
        said = f"{party}\0{server}\0{len(tool)}:{tool}{task}".encode(errors="surrogatepass")
        return hmac.digest(self.key, said, hashlib.sha256).hex()[:_MARK_LENGTH]


UNKNOWN_TASK_MESSAGE: Final = "unknown task; use an id from this gateway"
UNKEYED_TASK_IDS: Final = TaskIds()
_MARK_LENGTH: Final = 16


def rename_tasks(raw: Raw, change: Callable[[str], str]) -> Raw:
    """Return the object with each task id changed, and everything else as it is."""
    found = jsonrpc.decode_members(raw)
    changed: dict[str, object] = {}
    name = jsonrpc.decode_text(found.get("taskId"))
    if name is not None:
        changed["taskId"] = change(name)
    if "task" in found and _is_object(found["task"]):
        changed["task"] = rename_tasks(found["task"], change)
    if "_meta" in found and _is_object(found["_meta"]):
        meta = jsonrpc.decode_members(found["_meta"])
        if RELATED in meta and _is_object(meta[RELATED]):
            changed["_meta"] = {**meta, RELATED: rename_tasks(meta[RELATED], change)}
    return jsonrpc.to_raw({**found, **changed}) if changed else raw


def task_named_in(frame: Frame) -> str | None:
    """Return the task that a notification is about, or None if it names none."""
    try:
        return jsonrpc.decode_text(frame.parameters.get("taskId"))
    except MalformedMessage:
        return None


@lru_cache(1024)
def must_be_task(definition: bytes) -> bool:
    """Return whether a legacy tool requires to run as a task."""
    if b"taskSupport" not in definition:
        return False
    try:
        execution = jsonrpc.decode_members(
            jsonrpc.decode_members(definition).get("execution", b"{}")
        )
        return jsonrpc.decode_text(execution.get("taskSupport")) == "required"
    except MalformedMessage:
        return False


def as_task(frame: Frame) -> Frame:
    """Return the call as a request for a task."""
    params: dict[str, object] = {**frame.parameters, "task": {}}
    return jsonrpc.with_params(frame, jsonrpc.to_raw(params))


def task_in(answer: Frame) -> str | None:
    """Return the id of the task that a server started in place of a result, or None."""
    if answer.result is UNSET:
        return None
    plain = bytes(answer.result)
    if b'"task"' not in plain and BACKSLASH not in plain:
        # Most results have none. An escape could hide the name.
        return None
    try:
        task = jsonrpc.decode_members(answer.result).get("task")
        return (
            None
            if task is None
            else jsonrpc.decode_text(jsonrpc.decode_members(task).get("taskId"))
        )
    except MalformedMessage:
        return None


def _is_object(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"{"


LIST_TTL_MS: Final = 5000
MAX_KNOWN_LENGTH: Final = 2048

ENVELOPE: Final = frozenset(
    {
        protocol.PROTOCOL_VERSION,
        protocol.CLIENT_CAPABILITIES,
        protocol.CLIENT_INFO,
        protocol.LOG_LEVEL,
    }
)
ROUND: Final = frozenset({"inputResponses", "requestState"})
STAMPS: Final = frozenset({"resultType", "ttlMs", "cacheScope"})
LISTS: Final = frozenset(
    {protocol.LIST_TOOLS, protocol.LIST_PROMPTS, protocol.LIST_RESOURCES, protocol.LIST_TEMPLATES}
)
CROSSING: Final = LISTS | {
    protocol.CALL_TOOL,
    protocol.GET_PROMPT,
    protocol.READ_RESOURCE,
    protocol.COMPLETE,
}
"""Requests that have the same form in both protocol versions."""

CHANGES: Final = protocol.LIST_CHANGES | {protocol.RESOURCE_UPDATED}
OUTSIDE_CALL_METHODS: Final = CHANGES | {protocol.ACKNOWLEDGED, protocol.ELICITED, STATUS}
"""Notifications of only one version, or that are not allowed on the stream of a call."""

_EMPTY_OBJECT: Final = Raw(b"{}")
_list_of_objects = msgspec.json.Decoder(list[dict[str, Raw]])


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """The declaration of a client: once if it is legacy, in each request if it is modern."""

    capabilities: Mapping[str, Raw]
    info: Raw | None = None
    level: str | None = None
    token: Raw | None = None


# From modern to legacy.


def client_declaration_in(frame: Frame) -> ClientInfo:
    """Return what the metadata of a modern request declares about its client."""
    if frame.tool is not None and frame.tool.meta is not UNSET:
        return _split_meta(frame.tool.meta)[0]
    return _split_meta(frame.parameters.get("_meta"))[0]


def handshake_request(frame: Frame, token: str) -> Frame:
    """Return a modern request without its metadata and its input round.

    Many clients share one session with the server, and their progress tokens must differ there.
    `token` replaces the token of the client, if it gave one.
    """
    tool = frame.tool
    if tool is not None and not _split_meta(None if tool.meta is UNSET else tool.meta)[1]:
        bare = jsonrpc.ToolCallParams(tool.name, tool.arguments)
        return jsonrpc.make_tool_call(cast("Id", frame.id), bare)
    params = frame.parameters
    plain = omit_members(params, ROUND | {"_meta", "task"})
    meta = _split_meta(params.get("_meta"))[1]
    if "progressToken" in meta:
        return _with_meta(frame, plain, {**meta, "progressToken": token})
    return _with_meta(frame, plain, meta)


def _split_meta(meta: Raw | None) -> tuple[ClientInfo, Mapping[str, Raw]]:
    """Split metadata into the declaration of the client and the other members."""
    said = b"{}" if meta is None else bytes(meta)
    return _known(said) if len(said) <= MAX_KNOWN_LENGTH else _part(said)


def _part(meta: bytes) -> tuple[ClientInfo, Mapping[str, Raw]]:
    found = jsonrpc.decode_members(meta)
    said = ClientInfo(
        jsonrpc.decode_members(found.get(protocol.CLIENT_CAPABILITIES, _EMPTY_OBJECT)),
        found.get(protocol.CLIENT_INFO),
        jsonrpc.decode_text(found.get(protocol.LOG_LEVEL)),
        found.get("progressToken"),
    )
    return said, omit_members(found, ENVELOPE)


# A client repeats the same metadata in each request. The cache does not hold huge metadata.
_known = lru_cache(1024)(_part)


def handshake_result(frame: Frame, method: str) -> Frame:
    """Return a modern result without the members and values that only the modern version has."""
    found = _result(frame)
    kind = found.get("resultType")
    if kind is not None and jsonrpc.decode_text(kind) != protocol.COMPLETE_RESULT:
        raise MalformedMessage(
            "the server sent a result that the MCP version of this client does not have",
            UPSTREAM_FAILED,
        )
    plain: dict[str, object] = {**omit_members(found, STAMPS | {"_meta"})}
    meta = omit_members(meta_of(found), {protocol.SERVER_INFO})
    if meta:
        plain["_meta"] = meta
    if method == protocol.CALL_TOOL and not _is_object(
        found.get("structuredContent", _EMPTY_OBJECT)
    ):
        # Legacy structured content must be an object. The text content has the same information.
        del plain["structuredContent"]
    if method == protocol.LIST_TOOLS and "tools" in found:
        plain["tools"] = [Raw(handshake_tool(bytes(tool))) for tool in _tools(found["tools"])]
    return _with_result(frame, plain)


@lru_cache(1024)
def handshake_tool(definition: bytes) -> bytes:
    """Return a tool that a legacy client accepts. Some clients refuse the whole list for one

    unusual output schema.
    """
    if b"outputSchema" not in definition:
        return definition
    try:
        found = jsonrpc.decode_members(definition)
        schema = jsonrpc.decode_members(found.get("outputSchema", b'{"type":"object"}'))
        if jsonrpc.decode_text(schema.get("type")) == "object":
            return definition
    except MalformedMessage:
        return definition
    return jsonrpc.to_json(omit_members(found, {"outputSchema"}))


def welcome_message(discovered: Mapping[str, Raw], wanted: str | None) -> dict[str, object]:
    """Return the discovery result of a modern server as the result of `initialize`."""
    about = _object_member(discovered, "_meta").get(protocol.SERVER_INFO) or discovered.get(
        "serverInfo"
    )
    answer: dict[str, object] = {
        "protocolVersion": wanted
        if wanted in protocol.HANDSHAKE_VERSIONS
        else protocol.LATEST_HANDSHAKE,
        "capabilities": omit_members(_object_member(discovered, "capabilities"), {"extensions"}),
        "serverInfo": about or {"name": "unnamed", "version": "0"},
    }
    if "instructions" in discovered:
        answer["instructions"] = discovered["instructions"]
    return answer


def log_level_in(frame: Frame) -> str:
    """Return the level that `logging/setLevel` names. Raises MalformedMessage."""
    level = jsonrpc.decode_text(frame.parameters.get("level"))
    if level is None or level not in protocol.LOG_LEVELS:
        raise MalformedMessage("no such log level", INVALID_PARAMS)
    return level


def retold_plainly(frame: Frame) -> Frame | None:
    """Return a notification during a call for a legacy client, or None if it has no such form."""
    return None if frame.method in OUTSIDE_CALL_METHODS else frame


# From legacy to modern.


def modern_request(frame: Frame, said: ClientInfo) -> Frame:
    """Return a request of a legacy client with the metadata that follows from its handshake."""
    params = frame.parameters
    envelope: dict[str, object] = {
        protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
        protocol.CLIENT_CAPABILITIES: omit_members(said.capabilities, {"tasks"}),
    }
    if said.info is not None:
        envelope[protocol.CLIENT_INFO] = said.info
    if said.level is not None:
        envelope[protocol.LOG_LEVEL] = said.level
    plain = omit_members(params, ROUND | {"_meta", "task"})
    return _with_meta(frame, plain, {**omit_members(meta_of(params), ENVELOPE), **envelope})


def modern_result(frame: Frame, method: str, about: Raw | None) -> Frame:
    """Return a result of a legacy server with the members that the modern version requires."""
    stamps: dict[str, object] = {"resultType": protocol.COMPLETE_RESULT}
    if method in LISTS or method == protocol.READ_RESOURCE:
        # A resource may change at any time, possibly without a notification.
        stamps["ttlMs"] = LIST_TTL_MS if method in LISTS else 0
        stamps["cacheScope"] = "private"
    found = _result(frame)
    meta: dict[str, object] = {**omit_members(meta_of(found), {RELATED, protocol.SERVER_INFO})}
    if about is not None:
        meta[protocol.SERVER_INFO] = about
    body: dict[str, object] = {**omit_members(found, {"_meta"}), **stamps}
    return _with_result(frame, {**body, "_meta": meta} if meta else body)


def modern_error(frame: Frame, method: str) -> Frame:
    """Return an error of a legacy server with its modern error code. (SEP-2164)"""
    error = jsonrpc.error_of(frame)
    if error is None or method != protocol.READ_RESOURCE or error.code != RESOURCE_NOT_FOUND.code:
        return frame
    renumbered = msgspec.structs.replace(error, code=INVALID_PARAMS.code)
    return msgspec.structs.replace(frame, error=jsonrpc.to_raw(renumbered))


def discover_result(hello: Mapping[str, Raw]) -> dict[str, object]:
    """Return the `initialize` result of a legacy server as the result of `server/discover`."""
    answer: dict[str, object] = {
        "resultType": protocol.COMPLETE_RESULT,
        "supportedVersions": list(protocol.MODERN_VERSIONS),
        "capabilities": omit_members(_object_member(hello, "capabilities"), {"tasks"}),
        "ttlMs": LIST_TTL_MS,
        "cacheScope": "private",
    }
    if "serverInfo" in hello:
        answer["_meta"] = {protocol.SERVER_INFO: hello["serverInfo"]}
    if "instructions" in hello:
        answer["instructions"] = hello["instructions"]
    return answer


def translate_notification(frame: Frame, said: ClientInfo) -> Frame | None:
    """Return a notification during a call for a modern client, or None if it may not receive it.

    Only subscribers receive changes, and only clients that requested them receive log messages.
    """
    if frame.method == protocol.PROGRESS:
        if said.token is None:
            return None
        params: dict[str, object] = {**frame.parameters, "progressToken": said.token}
        return jsonrpc.with_params(frame, jsonrpc.to_raw(params))
    if frame.method != protocol.MESSAGE:
        return None if frame.method in OUTSIDE_CALL_METHODS else frame
    level = jsonrpc.decode_text(frame.parameters.get("level"))
    if said.level not in protocol.LOG_LEVELS or level not in protocol.LOG_LEVELS:
        return None
    return (
        frame if protocol.LOG_LEVELS.index(level) >= protocol.LOG_LEVELS.index(said.level) else None
    )


# Helpers of both directions.


def meta_of(found: Mapping[str, Raw]) -> dict[str, Raw]:
    return jsonrpc.decode_members(found["_meta"]) if "_meta" in found else {}


def omit_members(found: Mapping[str, Raw], names: frozenset[str] | set[str]) -> dict[str, Raw]:
    return {name: value for name, value in found.items() if name not in names}


def _object_member(found: Mapping[str, Raw], name: str) -> dict[str, Raw]:
    try:
        return jsonrpc.decode_members(found.get(name, _EMPTY_OBJECT))
    except MalformedMessage:
        return {}


def _tools(raw: Raw) -> list[Raw]:
    try:
        return [jsonrpc.to_raw(tool) for tool in _list_of_objects.decode(raw)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MalformedMessage("tools is a list of objects", UPSTREAM_FAILED) from None


def _with_meta(frame: Frame, params: Mapping[str, object], meta: Mapping[str, object]) -> Frame:
    said = {**params, "_meta": meta} if meta else params
    return jsonrpc.with_params(frame, jsonrpc.to_raw(said))


def _result(frame: Frame) -> dict[str, Raw]:
    assert frame.result is not UNSET
    return jsonrpc.decode_members(frame.result)


def _with_result(frame: Frame, result: object) -> Frame:
    return msgspec.structs.replace(frame, result=jsonrpc.to_raw(result))


MAX_REQUESTS: Final = 32
ACCEPTED: Final = "accept"
_pages = msgspec.json.Decoder(list[Raw])


@dataclass(frozen=True, slots=True)
class InputRequiredResult:
    """The input that a modern server requires before it continues."""

    requests: Mapping[str, tuple[str, Raw]]
    state: Raw | None


def unaskable_reason(capabilities: Mapping[str, Raw], method: str, params: Raw) -> str | None:
    """Return why a client with these capabilities cannot answer this request, or None."""
    needed = protocol.CLIENT_CAPABILITY.get(method)
    if needed is None:
        return f"this MCP version has no {method:.80}"
    declared, asked = (
        _declared_capabilities(capabilities.get(needed)),
        jsonrpc.decode_members(params),
    )
    if declared is None:
        return f"this client did not declare {needed}"
    if method == protocol.ELICIT:
        mode = jsonrpc.decode_text(asked.get("mode")) or "form"
        # Clients from before the modes declare an empty object.
        return None if mode in (declared or {"form"}) else f"this client has no {mode:.80} mode"
    if method == protocol.SAMPLE and not asked.keys().isdisjoint({"tools", "toolChoice"}):
        return None if "tools" in declared else "this client did not declare sampling.tools"
    return None


def _declared_capabilities(terms: Raw | None) -> dict[str, Raw] | None:
    try:
        return None if terms is None else jsonrpc.decode_members(terms)
    except MalformedMessage:
        return None


# Requests of a legacy server to a modern client.


def input_responses_in(frame: Frame) -> tuple[Mapping[str, Raw], str | None]:
    """Return the responses of a repeated request, and the state that it returns."""
    if frame.tool is not None:
        return {}, None
    params = frame.parameters
    said = {name: params[name] for name in ROUND & params.keys() if bytes(params[name]) != b"null"}
    if not said:
        return {}, None
    state = jsonrpc.decode_text(said.get("requestState"))
    if state is None:
        # Without its state it would be a new call, which would run and ask again.
        raise MalformedMessage("answers need the requestState of their question", INVALID_PARAMS)
    return jsonrpc.decode_members(said.get("inputResponses", _EMPTY_OBJECT)), state


def request_digest(server: str, frame: Frame, party: str = "") -> bytes:
    """Return a digest of the request, its server and its principal, without id and round."""
    params = omit_members(frame.parameters, ROUND | {"_meta", "task"})
    asked = {name: jsonrpc.decode_value(value) for name, value in params.items()}
    whole = [server, str(frame.method), asked, party]
    return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).digest()


def embed_request(frame: Frame) -> dict[str, object]:
    """Return a request of a legacy server as a modern result embeds it."""
    params = frame.parameters
    plain: dict[str, object] = {**omit_members(params, {"_meta", "task", "elicitationId"})}
    meta = omit_members(meta_of(params), {"progressToken", RELATED})
    if meta:
        plain["_meta"] = meta
    asked: dict[str, object] = {"method": frame.method}
    return {**asked, "params": plain} if plain else asked


def input_required(questions: Mapping[str, object], state: str) -> dict[str, object]:
    """Return the requests of a legacy server as an `input_required` result."""
    return {
        "resultType": protocol.INPUT_REQUIRED,
        "inputRequests": questions,
        "requestState": state,
    }


def answer_to(asker_id: Id, response: Raw) -> Frame:
    """Return the response of a modern client in the form that a legacy server expects."""
    found = jsonrpc.decode_members(response)
    return jsonrpc.make_result(asker_id, omit_members(found, {"resultType"}))


def pages_in(frame: Frame) -> list[Raw]:
    """Return the pages that a legacy server requires a person to visit first.

    The server uses an error for this, which the modern version removed in favour of a round.
    """
    error = jsonrpc.error_of(frame)
    if error is None or error.code != URL_ELICITATION_REQUIRED.code or frame.error is UNSET:
        return []
    try:
        data = jsonrpc.decode_members(
            jsonrpc.decode_members(frame.error).get("data", _EMPTY_OBJECT)
        )
        found = _pages.decode(data.get("elicitations", b"[]"))
        pages = [jsonrpc.to_raw({**jsonrpc.decode_members(page), "mode": "url"}) for page in found]
    except (MalformedMessage, msgspec.DecodeError, UnicodeDecodeError):
        return []
    return pages if len(pages) <= MAX_REQUESTS else []


def is_accepted(answer: Frame) -> bool:
    """Return whether a person accepted the elicitation."""
    if answer.result is UNSET:
        return False
    return jsonrpc.decode_text(jsonrpc.decode_members(answer.result).get("action")) == ACCEPTED


# Requests of a modern server to a legacy client.


def required_input_in(frame: Frame) -> InputRequiredResult | None:
    """Return the input that a modern server requires, or None if this is its final result."""
    if frame.result is UNSET or protocol.INPUT_REQUIRED.encode() not in bytes(frame.result):
        return None
    found = jsonrpc.decode_members(frame.result)
    if jsonrpc.decode_text(found.get("resultType")) != protocol.INPUT_REQUIRED:
        return None
    requests, state = (
        jsonrpc.decode_members(found.get("inputRequests", _EMPTY_OBJECT)),
        found.get("requestState"),
    )
    if state is not None and jsonrpc.decode_text(state) is None:
        raise MalformedMessage("requestState is a string", UPSTREAM_FAILED)
    if not requests and state is None:
        raise MalformedMessage("the server needs input but did not name it", UPSTREAM_FAILED)
    if len(requests) > MAX_REQUESTS:
        raise MalformedMessage("the server asks for too much input at once", UPSTREAM_FAILED)
    return InputRequiredResult({key: _input_request(raw) for key, raw in requests.items()}, state)


def _input_request(raw: Raw) -> tuple[str, Raw]:
    found = jsonrpc.decode_members(raw)
    method = jsonrpc.decode_text(found.get("method"))
    if method not in protocol.CLIENT_CAPABILITY:
        raise MalformedMessage(f"no client can be asked {method!r:.80}", UPSTREAM_FAILED)
    params = found.get("params", _EMPTY_OBJECT)
    jsonrpc.decode_members(params)
    return method, params


def handshake_question(key: str, method: str, params: Raw, name: str) -> Frame:
    """Return a question of a modern server as a request. A URL elicitation needs a name there."""
    found = jsonrpc.decode_members(params)
    if method == protocol.ELICIT and jsonrpc.decode_text(found.get("mode")) == "url":
        params = jsonrpc.to_raw({"elicitationId": name, **found})
    return jsonrpc.make_request(key, method, params)


def repeat_request(frame: Frame, responses: Mapping[str, object], state: Raw | None) -> Frame:
    """Return the request again, with the responses that its server requires."""
    params: dict[str, object] = {**frame.parameters}
    if responses:
        params["inputResponses"] = responses
    if state is not None:
        params["requestState"] = state
    return jsonrpc.with_params(frame, jsonrpc.to_raw(params))


def response_to(method: str, answer: Frame) -> object | None:
    """Return a client's response for a repeated request, or None if an error has no such form."""
    if answer.result is not UNSET:
        return answer.result
    # Only an elicitation has a response that means "no answer".
    return {"action": "cancel"} if method == protocol.ELICIT else None


def missing_capability_reason(
    capabilities: Mapping[str, Raw], wanted: InputRequiredResult
) -> str | None:
    """Return why a client cannot provide all the input that a modern server requires, or None."""
    reasons = (unaskable_reason(capabilities, *asked) for asked in wanted.requests.values())
    return next((reason for reason in reasons if reason is not None), None)


OWN_TASK_PREFIX: Final = "~"
"""The server part of the ids of the gateway's own tasks. No server can have this id."""

LASTS: Final = timedelta(hours=1)
POLL: Final = timedelta(seconds=2)


class TaskStatus(StrEnum):
    WORKING = "working"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TaskView:
    """The view of a task: its public id, its status with times, and the reason."""

    id: str
    status: TaskStatus
    message: str
    created_at: datetime
    changed_at: datetime


def wants_task(frame: Frame, *, modern: bool) -> bool:
    """Return whether a client accepts a task as the answer to this call."""
    try:
        if not modern:
            return "task" in frame.parameters
        return has_task_support(frame)
    except MalformedMessage:
        return False


def has_task_support(frame: Frame) -> bool:
    """Return whether a modern client declares support for tasks. Raises MalformedMessage."""
    if frame.params is UNSET or EXTENSION not in bytes(frame.params):
        return False
    extensions = client_declaration_in(frame).capabilities.get("extensions", _EMPTY_OBJECT)
    return EXTENSION.decode() in jsonrpc.decode_members(extensions)


def detach_request(frame: Frame) -> Frame:
    """Return a call that continues without its client.

    The call is not a task of the server, and its server can send no requests to a client.
    """
    params = frame.parameters
    meta = meta_of(params)
    said: dict[str, object] = {**omit_members(params, {"task"})}
    if not ENVELOPE.isdisjoint(meta):
        said["_meta"] = {**meta, protocol.CLIENT_CAPABILITIES: {}}
    return jsonrpc.with_params(frame, jsonrpc.to_raw(said))


def task_start_result(view: TaskView, *, modern: bool) -> dict[str, object]:
    """Return the result that tells a client about a new task."""
    if modern:
        return {"resultType": "task", **_fields(view, modern=True)}
    return {"task": _fields(view, modern=False)}


def task_get_result(view: TaskView, answer: Frame | None, *, modern: bool) -> dict[str, object]:
    """Return the result of `tasks/get`. In the modern version it includes the final result."""
    told = _fields(view, modern=modern)
    if not modern:
        return told
    told = {"resultType": protocol.COMPLETE_RESULT, **told}
    if answer is not None and answer.result is not UNSET:
        told["result"] = answer.result
    elif answer is not None and view.status is TaskStatus.FAILED:
        told["error"] = answer.error
    return told


def status_of(answer: Frame, *, modern: bool) -> TaskStatus:
    """Return the final status of a task. In the modern version a tool's own error is a result."""
    if answer.result is UNSET:
        return TaskStatus.FAILED
    failed = bytes(jsonrpc.decode_members(answer.result).get("isError", b"")) == b"true"
    return TaskStatus.FAILED if failed and not modern else TaskStatus.COMPLETED


def relate_result(answer: Frame, id: str) -> Frame:
    """Return a result as `tasks/result` gives it, with the id of its task."""
    if answer.result is UNSET:
        return answer
    found = jsonrpc.decode_members(answer.result)
    meta: Mapping[str, object] = {**meta_of(found), RELATED: {"taskId": id}}
    return Frame("2.0", id=answer.id, result=jsonrpc.to_raw({**found, "_meta": meta}))


def _fields(view: TaskView, *, modern: bool) -> dict[str, object]:
    lasts, poll = (round(each.total_seconds() * 1000) for each in (LASTS, POLL))
    times = ("ttlMs", "pollIntervalMs") if modern else ("ttl", "pollInterval")
    return {
        "taskId": view.id,
        "status": view.status,
        "statusMessage": view.message,
        "createdAt": view.created_at.isoformat(),
        "lastUpdatedAt": view.changed_at.isoformat(),
        times[0]: lasts,
        times[1]: poll,
    }


_OFFERED: Final = frozenset({"tools", "resources", "prompts", "completions"})


def initialize_result(fields: Mapping[str, Raw], wanted: str | None) -> dict[str, object]:
    """Return the result of `initialize` with only what a topic carries."""
    welcome = welcome_message(fields, wanted)
    named = cast("dict[str, Raw]", welcome["capabilities"])
    offered: dict[str, object] = {name: {} for name in named if name in _OFFERED}
    if bytes(_object_member(named, "resources").get("subscribe", b"")) == b"true":
        offered["resources"] = {"subscribe": True}
    return {**welcome, "capabilities": offered}
