"""Plain async functions as the tools of an MCP server, without any SDK.

A function's parameters are the arguments; its docstring is the description. What it returns is told
as text, or, where it is a mapping, as structured content too. What an async generator yields is
told as one text at its end: in a topic there is nobody who could hear its pieces.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any, Final, cast, get_type_hints

import msgspec

from comity.sdk.events import Payload
from comity.sdk.serving import Failure
from comity.wire import mcp
from comity.wire.errors import INVALID_PARAMS, METHOD_NOT_FOUND, Misconfigured

log = logging.getLogger(__name__)

type ToolFunction = Callable[..., Awaitable[object] | AsyncIterator[object]]

_SCHEMA_OF: Final[dict[object, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}
_FITS: Final[dict[str, Callable[[object], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


class ToolFunctions:
    """An MCP server that has these tools and nothing else; with none it still answers a ping."""

    def __init__(self, name: str, functions: Mapping[str, ToolFunction]) -> None:
        self._name = name
        self._functions = dict(functions)
        self._tools = {name: _tool(name, each) for name, each in functions.items()}

    async def answer(self, method: str, params: Payload) -> Payload | Failure:
        if method == mcp.PING:
            return {}
        if method == mcp.INITIALIZE:
            return self._hello(params)
        if method == mcp.LIST_TOOLS and self._tools:
            return {"tools": [*self._tools.values()]}
        if method == mcp.CALL_TOOL and self._tools:
            return await self._call(params)
        return Failure(METHOD_NOT_FOUND.code, f"there is no {method:.200} here")

    def _hello(self, params: Payload) -> Payload:
        asked = params.get("protocolVersion")
        spoken = asked if asked in mcp.HANDSHAKE_VERSIONS else mcp.LATEST_HANDSHAKE
        return {
            "protocolVersion": spoken,
            "capabilities": {"tools": {}} if self._tools else {},
            "serverInfo": {"name": self._name, "version": version("comity")},
        }

    async def _call(self, params: Payload) -> Payload | Failure:
        name, given = params.get("name"), params.get("arguments", {})
        if not isinstance(name, str) or name not in self._functions:
            return Failure(INVALID_PARAMS.code, f"there is no tool {name!r:.80} here")
        because = _why_not(self._tools[name]["inputSchema"], given)
        if because:
            return Failure(INVALID_PARAMS.code, because)
        try:
            came = await _whole(self._functions[name](**cast("dict[str, object]", given)))
        except ValueError as problem:
            return _content(str(problem)[:1_000]) | {"isError": True}
        if isinstance(came, Mapping):
            said = cast("Mapping[str, object]", came)
            text = msgspec.json.encode(said).decode()
            return _content(text) | {"structuredContent": said}
        return _content("" if came is None else str(came))


async def _whole(came: Awaitable[object] | AsyncIterator[object]) -> object:
    if isinstance(came, AsyncIterator):
        return "".join([str(piece) async for piece in came])
    return await came


def _content(text: str) -> dict[str, object]:
    return {"content": [{"type": "text", "text": text}]}


def _tool(name: str, function: ToolFunction) -> dict[str, Any]:
    if not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
        raise Misconfigured(f"{name!r:.80} must be an async function (async def)")
    hints = get_type_hints(function)
    each = inspect.signature(function).parameters.values()
    if any(one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) for one in each):
        raise Misconfigured(f"{name!r:.80} must name its parameters: no *args, no **kwargs")
    schema = {
        "type": "object",
        "properties": {one.name: _schema(hints.get(one.name)) for one in each},
        "required": [one.name for one in each if one.default is one.empty],
        "additionalProperties": False,
    }
    told = (inspect.getdoc(function) or "").partition("\n")[0]
    return {"name": name, "description": told, "inputSchema": schema}


def _schema(hint: object) -> dict[str, object]:
    named = _SCHEMA_OF.get(getattr(hint, "__origin__", None) or hint)
    return {} if named is None else {"type": named}


def _why_not(schema: dict[str, Any], given: object) -> str:
    """Why these cannot be the arguments; empty where they can."""
    if not isinstance(given, dict):
        return "the arguments are an object"
    arguments = cast("dict[str, object]", given)
    properties: dict[str, dict[str, str]] = schema["properties"]
    strange = [name for name in arguments if name not in properties]
    missing = [name for name in schema["required"] if name not in arguments]
    if strange or missing:
        return f"unknown argument {strange[0]!r:.80}" if strange else f"missing {missing[0]!r}"
    for name, value in arguments.items():
        wanted = properties[name].get("type")
        if wanted is not None and not _FITS[wanted](value):
            return f"{name} must be of the type {wanted}"
    return ""
