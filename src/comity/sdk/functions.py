"""Plain functions as the tools of an MCP server, without any SDK."""

import asyncio
import functools
import inspect
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TextIO, cast, get_type_hints

import msgspec

from comity.errors import (
    EXHAUSTED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    TIMEOUT,
    Fault,
    MalformedMessage,
    Misconfigured,
    Unavailable,
)
from comity.mcp import protocol
from comity.sdk.topics.events import Payload, Request
from comity.sdk.topics.state import BoundedOwnerCache

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 32
MOST_OF_ONE: Final = 8
MOST_REMEMBERED: Final = 10_000
LONGEST: Final = timedelta(minutes=5)


class MethodFailure(NamedTuple):
    """The error of a request, as in JSON-RPC."""

    code: int
    message: str
    data: object = None

    def body(self) -> dict[str, object]:
        more = {} if self.data is None else {"data": self.data}
        return {"error": {"code": self.code, "message": self.message, **more}}


class ParticipantBackend(Protocol):
    """Answers the requests to a participant, which have the methods and parameters of MCP."""

    async def answer(self, method: str, params: Payload) -> Payload | MethodFailure: ...


type Respond = Callable[[Request, Mapping[str, object]], Awaitable[object]]
"""Sends an answer; raises MalformedMessage for one that cannot be sent."""


class ParticipantResponder:
    """Answers the requests to one participant, each in its own task."""

    def __init__(
        self, answers: ParticipantBackend, respond: Respond, longest: timedelta = LONGEST
    ) -> None:
        self._answers = answers
        self._respond = respond
        self._max_duration = longest
        self._done: BoundedOwnerCache[str] = BoundedOwnerCache(
            MOST_REMEMBERED, MOST_REMEMBERED * 1_000
        )
        self._tasks: dict[asyncio.Task[None], str] = {}

    def take(self, request: Request, proposal: str) -> None:
        """Start to answer; `proposal` is the id of the proposal that it fulfils, or empty."""
        if request.is_notification:
            return
        failure = self._why_not(request, proposal)
        if failure is None and proposal:
            self._done.put(proposal, request.id, len(request.id))
        working = self._answer(request) if failure is None else self._say(request, failure.body())
        task = asyncio.create_task(working)
        self._tasks[task] = request.sender
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def close(self) -> None:
        """Cancel the requests that still run."""
        for task in (waiting := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def _why_not(self, request: Request, proposal: str) -> MethodFailure | None:
        before = self._done.get(proposal) if proposal else None
        if before is not None:
            reason = f"this proposal was fulfilled before, by {before}; it is done once"
            return MethodFailure(INVALID_REQUEST.code, reason)
        theirs = sum(sender == request.sender for sender in self._tasks.values())
        if len(self._tasks) >= MOST_AT_ONCE or theirs >= MOST_OF_ONE:
            return MethodFailure(EXHAUSTED.code, "too much is being done at once; ask again later")
        return None

    async def _answer(self, request: Request) -> None:
        try:
            async with asyncio.timeout(self._max_duration.total_seconds()):
                said = await self._answers.answer(request.method, request.params)
        except TimeoutError:
            said = _failure(TIMEOUT, "it was not done in time")
        except (MalformedMessage, Unavailable) as problem:
            said = _failure(problem.fault, str(problem))
        except Exception:
            log.exception("%s could not be answered", request.method)
            said = _failure(
                INTERNAL_ERROR, "the method failed; the log of the participant has the reason"
            )
        await self._say(
            request, said.body() if isinstance(said, MethodFailure) else {"result": said}
        )

    async def _say(self, request: Request, body: Mapping[str, object]) -> None:
        try:
            try:
                await self._respond(request, body)
            except MalformedMessage as problem:
                reason = f"the answer cannot be sent: {problem}"
                await self._respond(request, _failure(INTERNAL_ERROR, reason).body())
        except (Unavailable, MalformedMessage, PermissionError) as problem:
            log.warning("an answer to %s was not sent: %s", request.method, problem)


def _failure(fault: Fault, message: str) -> MethodFailure:
    return MethodFailure(fault.code, message[:1_000])


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
    """An MCP server with these tools and nothing else. It answers pings also without tools."""

    def __init__(self, name: str, functions: Mapping[str, ToolFunction]) -> None:
        self._name = name
        self._functions = dict(functions)
        self._tools = {name: _tool(name, each) for name, each in functions.items()}

    async def answer(self, method: str, params: Payload) -> Payload | MethodFailure:
        if method == protocol.PING:
            return {}
        if method == protocol.INITIALIZE:
            return self._hello(params)
        if method == protocol.LIST_TOOLS and self._tools:
            return {"tools": [*self._tools.values()]}
        if method == protocol.CALL_TOOL and self._tools:
            return await self._call(params)
        return MethodFailure(METHOD_NOT_FOUND.code, f"there is no {method:.200} here")

    def _hello(self, params: Payload) -> Payload:
        asked = params.get("protocolVersion")
        spoken = asked if asked in protocol.HANDSHAKE_VERSIONS else protocol.LATEST_HANDSHAKE
        return {
            "protocolVersion": spoken,
            "capabilities": {"tools": {}} if self._tools else {},
            "serverInfo": {"name": self._name, "version": version("comity")},
        }

    async def _call(self, params: Payload) -> Payload | MethodFailure:
        name, given = params.get("name"), params.get("arguments", {})
        if not isinstance(name, str) or name not in self._functions:
            return MethodFailure(INVALID_PARAMS.code, f"there is no tool {name!r:.80} here")
        reason = _why_not(self._tools[name]["inputSchema"], given)
        if reason:
            return MethodFailure(INVALID_PARAMS.code, reason)
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
    """The reason why these arguments are invalid; empty if they are valid."""
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


MOST_BYTES: Final = 4 * 1024 * 1024
_MODULE: Final = "tool_file"
_line: Final = msgspec.json.Decoder(dict[str, Any])


def functions_in(code: str) -> dict[str, ToolFunction]:
    """The public functions that a file defines; raises Misconfigured if it has none."""
    names: dict[str, Any] = {"__name__": _MODULE}
    exec(compile(code, "tool.py", "exec"), names)  # noqa: S102  # it was looked at before, at `strict`
    found = {
        name: _awaited(value)
        for name, value in names.items()
        if inspect.isfunction(value) and value.__module__ == _MODULE and not name.startswith("_")
    }
    if not found:
        raise Misconfigured("it defines no function whose name begins with a letter")
    return found


def _awaited(function: Any) -> ToolFunction:
    if inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    async def awaited(**given: object) -> object:
        return function(**given)

    return awaited


async def answer_message(tools: ToolFunctions, line: bytes) -> bytes | None:
    """The answer to one message; None for a notification or an unreadable message."""
    try:
        said = _line.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    if "id" not in said or not isinstance(said.get("method"), str):
        return None
    params: object = said.get("params")
    given = cast("Mapping[str, object]", params if isinstance(params, dict) else {})
    try:
        came = await tools.answer(said["method"], given)
    except Exception as bug:
        # The bug is in the tool: its caller gets an error, and other calls go on.
        log.exception("the tool failed")
        came = MethodFailure(INTERNAL_ERROR.code, f"{type(bug).__name__}: {bug}"[:1_000])
    told: dict[str, object] = {"jsonrpc": "2.0", "id": said["id"]}
    if isinstance(came, MethodFailure):
        told["error"] = {"code": came.code, "message": came.message}
    else:
        told["result"] = came
    return msgspec.json.encode(told)


async def serve_tools(tools: ToolFunctions, heard: TextIO, said: TextIO) -> None:
    """Answer one message after the other, until the input ends."""
    while line := heard.buffer.readline(MOST_BYTES):
        answer = await answer_message(tools, line)
        if answer is not None:
            said.buffer.write(answer + b"\n")
            said.buffer.flush()


def main(file: str) -> None:
    code = Path(file).read_text("utf-8")
    out, sys.stdout = sys.stdout, sys.stderr
    # Standard output is for messages: the prints of a tool go to standard error.
    asyncio.run(serve_tools(ToolFunctions(_MODULE, functions_in(code)), sys.stdin, out))


if __name__ == "__main__":
    main(sys.argv[1])
