"""A message of one MCP era said in the other. (2025-11-25 and 2026-07-28)

Rule 1: what an era added for itself is taken off on the way out of it: the envelope, the stamps on
        results, the state of a round, the marks of a task. Everything else crosses as it is.
Rule 2: what a server says of itself and may not say is left out; it is never the client's fault.
Rule 3: a server's claim to speak of another kind of result than both eras have is refused.

How a question crosses, which is a request in one era and a result in the other: `rules.rounds`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Raw

from comity.rules import tasks
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    INVALID_PARAMS,
    RESOURCE_NOT_FOUND,
    UPSTREAM_FAILED,
    MalformedMessage,
)
from comity.wire.jsonrpc import UNSET, Frame

LIST_TTL_MS: Final = 5000
LONGEST_KNOWN: Final = 2048

ENVELOPE: Final = frozenset(
    {mcp.PROTOCOL_VERSION, mcp.CLIENT_CAPABILITIES, mcp.CLIENT_INFO, mcp.LOG_LEVEL}
)
ROUND: Final = frozenset({"inputResponses", "requestState"})
STAMPS: Final = frozenset({"resultType", "ttlMs", "cacheScope"})
LISTS: Final = frozenset({mcp.LIST_TOOLS, mcp.LIST_PROMPTS, mcp.LIST_RESOURCES, mcp.LIST_TEMPLATES})
CROSSING: Final = LISTS | {mcp.CALL_TOOL, mcp.GET_PROMPT, mcp.READ_RESOURCE, mcp.COMPLETE}
"""What both eras ask of a server in the same words."""

CHANGES: Final = mcp.LIST_CHANGES | {mcp.RESOURCE_UPDATED}
NOT_AMID_A_CALL: Final = CHANGES | {mcp.ACKNOWLEDGED, mcp.ELICITED, tasks.STATUS}
"""What only one era says, or says elsewhere than amid a call."""

_NOTHING: Final = Raw(b"{}")
_list_of_objects = msgspec.json.Decoder(list[dict[str, Raw]])


@dataclass(frozen=True, slots=True)
class Said:
    """What a client says of itself: once in the handshake era, in each request of the modern."""

    capabilities: Mapping[str, Raw]
    info: Raw | None = None
    level: str | None = None
    token: Raw | None = None


# Out of the modern era.


def said_in(frame: Frame) -> Said:
    """What the envelope of a modern request says of its client."""
    return _parted(jsonrpc.params_of(frame).get("_meta"))[0]


def handshake_request(frame: Frame, token: str) -> Frame:
    """A modern request without its envelope and without what belongs to a round of questions.

    Many clients share one session with the server, in which no two of their progress tokens may be
    the same: where the client gave one, `token` goes in its stead.
    """
    params = jsonrpc.params_of(frame)
    plain = without(params, ROUND | {"_meta", "task"})
    meta = _parted(params.get("_meta"))[1]
    if "progressToken" in meta:
        return _with_meta(frame, plain, {**meta, "progressToken": token})
    return _with_meta(frame, plain, meta)


def _parted(meta: Raw | None) -> tuple[Said, Mapping[str, Raw]]:
    """What the envelope says, and what else stands beside it."""
    said = b"{}" if meta is None else bytes(meta)
    return _known(said) if len(said) <= LONGEST_KNOWN else _part(said)


def _part(meta: bytes) -> tuple[Said, Mapping[str, Raw]]:
    found = jsonrpc.members(meta)
    said = Said(
        jsonrpc.members(found.get(mcp.CLIENT_CAPABILITIES, _NOTHING)),
        found.get(mcp.CLIENT_INFO),
        jsonrpc.text(found.get(mcp.LOG_LEVEL)),
        found.get("progressToken"),
    )
    return said, without(found, ENVELOPE)


# A client says the same envelope in each of its requests; a huge one is not remembered.
_known = lru_cache(1024)(_part)


def handshake_result(frame: Frame, method: str) -> Frame:
    """A modern result without the stamps, and the freedoms, that only the modern era knows."""
    found = _result(frame)
    kind = found.get("resultType")
    if kind is not None and jsonrpc.text(kind) != mcp.COMPLETE_RESULT:
        raise MalformedMessage(
            "the server gave a kind of result that this client's era does not have", UPSTREAM_FAILED
        )
    plain: dict[str, object] = {**without(found, STAMPS | {"_meta"})}
    meta = without(meta_of(found), {mcp.SERVER_INFO})
    if meta:
        plain["_meta"] = meta
    if method == mcp.CALL_TOOL and not _is_object(found.get("structuredContent", _NOTHING)):
        # Only objects are structured content in the handshake era; its text says the same.
        del plain["structuredContent"]
    if method == mcp.LIST_TOOLS and "tools" in found:
        plain["tools"] = [Raw(handshake_tool(bytes(tool))) for tool in _tools(found["tools"])]
    return _with_result(frame, plain)


@lru_cache(1024)
def handshake_tool(definition: bytes) -> bytes:
    """A tool as a handshake client may see it: one odd output makes some refuse the whole list."""
    if b"outputSchema" not in definition:
        return definition
    try:
        found = jsonrpc.members(definition)
        schema = jsonrpc.members(found.get("outputSchema", b'{"type":"object"}'))
        if jsonrpc.text(schema.get("type")) == "object":
            return definition
    except MalformedMessage:
        return definition
    return jsonrpc.to_json(without(found, {"outputSchema"}))


def welcome(discovered: Mapping[str, Raw], wanted: str | None) -> dict[str, object]:
    """What a modern server said of itself, as the answer to `initialize`."""
    about = _stated(discovered, "_meta").get(mcp.SERVER_INFO) or discovered.get("serverInfo")
    answer: dict[str, object] = {
        "protocolVersion": wanted if wanted in mcp.HANDSHAKE_VERSIONS else mcp.LATEST_HANDSHAKE,
        "capabilities": without(_stated(discovered, "capabilities"), {"extensions"}),
        "serverInfo": about or {"name": "unnamed", "version": "0"},
    }
    if "instructions" in discovered:
        answer["instructions"] = discovered["instructions"]
    return answer


def retold_plainly(frame: Frame) -> Frame | None:
    """A notice amid a call as its handshake client may hear it; None where it may not."""
    return None if frame.method in NOT_AMID_A_CALL else frame


# Into the modern era.


def modern_request(frame: Frame, said: Said) -> Frame:
    """A handshake client's request with the envelope that its handshake stands for."""
    params = jsonrpc.params_of(frame)
    envelope: dict[str, object] = {
        mcp.PROTOCOL_VERSION: mcp.LATEST_MODERN,
        mcp.CLIENT_CAPABILITIES: without(said.capabilities, {"tasks"}),
    }
    if said.info is not None:
        envelope[mcp.CLIENT_INFO] = said.info
    if said.level is not None:
        envelope[mcp.LOG_LEVEL] = said.level
    plain = without(params, ROUND | {"_meta", "task"})
    return _with_meta(frame, plain, {**without(meta_of(params), ENVELOPE), **envelope})


def modern_result(frame: Frame, method: str, about: Raw | None) -> Frame:
    """A handshake server's result with the stamps that the modern era demands."""
    stamps: dict[str, object] = {"resultType": mcp.COMPLETE_RESULT}
    if method in LISTS or method == mcp.READ_RESOURCE:
        # What a resource says may change at any time, and nobody may have been told.
        stamps["ttlMs"] = LIST_TTL_MS if method in LISTS else 0
        stamps["cacheScope"] = "private"
    found = _result(frame)
    meta: dict[str, object] = {**without(meta_of(found), {tasks.RELATED, mcp.SERVER_INFO})}
    if about is not None:
        meta[mcp.SERVER_INFO] = about
    body: dict[str, object] = {**without(found, {"_meta"}), **stamps}
    return _with_result(frame, {**body, "_meta": meta} if meta else body)


def modern_error(frame: Frame, method: str) -> Frame:
    """A handshake server's error under the number that the modern era has for it. (SEP-2164)"""
    error = jsonrpc.error_of(frame)
    if error is None or method != mcp.READ_RESOURCE or error.code != RESOURCE_NOT_FOUND.code:
        return frame
    renumbered = msgspec.structs.replace(error, code=INVALID_PARAMS.code)
    return msgspec.structs.replace(frame, error=jsonrpc.to_raw(renumbered))


def discovered(hello: Mapping[str, Raw]) -> dict[str, object]:
    """What a handshake server said of itself, as the answer to `server/discover`."""
    answer: dict[str, object] = {
        "resultType": mcp.COMPLETE_RESULT,
        "supportedVersions": list(mcp.MODERN_VERSIONS),
        "capabilities": without(_stated(hello, "capabilities"), {"tasks"}),
        "ttlMs": LIST_TTL_MS,
        "cacheScope": "private",
    }
    if "serverInfo" in hello:
        answer["_meta"] = {mcp.SERVER_INFO: hello["serverInfo"]}
    if "instructions" in hello:
        answer["instructions"] = hello["instructions"]
    return answer


def retold(frame: Frame, said: Said) -> Frame | None:
    """A notice amid a call as its modern client may hear it; None where it may not.

    Changes are told to those alone who listen, and log messages to those who asked for them.
    """
    if frame.method == mcp.PROGRESS:
        if said.token is None:
            return None
        params: dict[str, object] = {**jsonrpc.params_of(frame), "progressToken": said.token}
        return jsonrpc.with_params(frame, jsonrpc.to_raw(params))
    if frame.method != mcp.MESSAGE:
        return None if frame.method in NOT_AMID_A_CALL else frame
    level = jsonrpc.text(jsonrpc.params_of(frame).get("level"))
    if said.level not in mcp.LOG_LEVELS or level not in mcp.LOG_LEVELS:
        return None
    return frame if mcp.LOG_LEVELS.index(level) >= mcp.LOG_LEVELS.index(said.level) else None


# What both directions need.


def meta_of(found: Mapping[str, Raw]) -> dict[str, Raw]:
    return jsonrpc.members(found["_meta"]) if "_meta" in found else {}


def without(found: Mapping[str, Raw], names: frozenset[str] | set[str]) -> dict[str, Raw]:
    return {name: value for name, value in found.items() if name not in names}


def _stated(found: Mapping[str, Raw], name: str) -> dict[str, Raw]:
    try:
        return jsonrpc.members(found.get(name, _NOTHING))
    except MalformedMessage:
        return {}


def _is_object(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"{"


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
    return jsonrpc.members(frame.result)


def _with_result(frame: Frame, result: object) -> Frame:
    return msgspec.structs.replace(frame, result=jsonrpc.to_raw(result))
