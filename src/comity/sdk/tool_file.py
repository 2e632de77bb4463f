"""A plain file of Python functions as an MCP server on its standard input and output.

Run as `python -m comity.sdk.tool_file FILE`. Every function that the file defines, and whose name
does not begin with `_`, is a tool: its parameters are the arguments, its docstring the description.
"""

import asyncio
import functools
import inspect
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO, cast

import msgspec

from comity.sdk.serving import Failure
from comity.sdk.tool_functions import ToolFunction, ToolFunctions
from comity.wire.errors import INTERNAL_ERROR, Misconfigured

log = logging.getLogger(__name__)

MOST_BYTES: Final = 4 * 1024 * 1024
_MODULE: Final = "tool_file"
_line: Final = msgspec.json.Decoder(dict[str, Any])


def functions_in(code: str) -> dict[str, ToolFunction]:
    """What a file defines, by name; raises Misconfigured where that is nothing."""
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


async def answered(tools: ToolFunctions, line: bytes) -> bytes | None:
    """The answer to one message; None where it wants none, or cannot be read."""
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
        # It is the tool's own: whoever called learns of it, and the others go on.
        log.exception("the tool failed")
        came = Failure(INTERNAL_ERROR.code, f"{type(bug).__name__}: {bug}"[:1_000])
    told: dict[str, object] = {"jsonrpc": "2.0", "id": said["id"]}
    if isinstance(came, Failure):
        told["error"] = {"code": came.code, "message": came.message}
    else:
        told["result"] = came
    return msgspec.json.encode(told)


async def serve(tools: ToolFunctions, heard: TextIO, said: TextIO) -> None:
    """One message after the other, until there are no more."""
    while line := heard.buffer.readline(MOST_BYTES):
        answer = await answered(tools, line)
        if answer is not None:
            said.buffer.write(answer + b"\n")
            said.buffer.flush()


def main(file: str) -> None:
    code = Path(file).read_text("utf-8")
    out, sys.stdout = sys.stdout, sys.stderr
    # What a tool prints is for its author, and no message.
    asyncio.run(serve(ToolFunctions(_MODULE, functions_in(code)), sys.stdin, out))


if __name__ == "__main__":
    main(sys.argv[1])
