"""The functions of a Python module as a tool server over stdio."""

import asyncio
import importlib
import importlib.util
import inspect
import json
import logging
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from threading import Lock, Thread
from types import ModuleType
from typing import Any, TextIO, cast

import jsonschema_rs
import msgspec

from comity.catalog.signatures import Signature
from comity.errors import METHOD_NOT_FOUND, Misconfigured
from comity.mcp import jsonrpc, protocol
from comity.sdk.function_schemas import RESULT, build_value, read_function, to_json_value
from comity.toolkit.text import object_members

type Frame = dict[str, Any]


class StdioToolServer:
    """One conversation with one client."""

    name = "comity"

    def __init__(self, reader: TextIO, writer: TextIO) -> None:
        self._reader = reader
        self._writer = writer
        self._writing = Lock()

    def serve(self) -> None:
        """Answer requests until the client closes the input."""
        for line in self._reader:
            try:
                frame = msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.DecodeError:
                continue
            if "method" not in frame:
                self.answered(frame)
            elif frame.get("method") == protocol.CALL_TOOL:
                Thread(target=self._answer, args=(frame,), daemon=True).start()
            elif "id" in frame:
                self._answer(frame)
            else:
                self.notified(frame)

    def notified(self, frame: Frame) -> None:
        """Take a notification of the client."""

    def answered(self, frame: Frame) -> None:
        """Take the client's answer to a request of this server."""

    def tools(self) -> list[Frame]:
        """The definitions of all tools."""
        return []

    def call(self, name: str, arguments: Frame, meta: Frame) -> Frame | None:
        """The result of a tool; None if there is no such tool."""
        return None

    def capabilities(self) -> Frame:
        """The capabilities that the server declares."""
        return {"tools": {}}

    def respond(self, method: str, params: Frame) -> Frame | None:
        """The result of another method; None if there is no such method."""
        return None

    def say(self, frame: Frame) -> None:
        with self._writing:
            self._writer.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\n")
            self._writer.flush()

    def _answer(self, frame: Frame) -> None:
        params = object_members(frame.get("params"))
        self.say({"id": frame.get("id"), **self._answer_to(frame["method"], params)})

    def _answer_to(self, method: str, params: Frame) -> Frame:
        if method == protocol.INITIALIZE:
            return {"result": self._hello(params)}
        if method == protocol.PING:
            return {"result": {}}
        if method == protocol.LIST_TOOLS:
            return {"result": {"tools": self.tools()}}
        if method != protocol.CALL_TOOL:
            given = self.respond(method, params)
        else:
            arguments, meta = (
                object_members(params.get("arguments")),
                object_members(params.get("_meta")),
            )
            given = self.call(str(params.get("name")), arguments, meta)
        if given is None:
            code = METHOD_NOT_FOUND.code
            return {"error": {"code": code, "message": f"no {method} of that name"}}
        return {"result": given}

    def _hello(self, params: Frame) -> Frame:
        wanted = params.get("protocolVersion")
        spoken = wanted if wanted in protocol.HANDSHAKE_VERSIONS else protocol.LATEST_HANDSHAKE
        return {
            "protocolVersion": spoken,
            "capabilities": self.capabilities(),
            "serverInfo": {"name": self.name, "version": version("comity")},
        }


def text_result(said: str, *, is_error: bool = False) -> Frame:
    """A result that is one text."""
    return {"content": [{"type": "text", "text": said}], "isError": is_error}


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegisteredFunction:
    """One function, its signature, and the validator of its arguments."""

    function: Callable[..., Any]
    signature: Signature
    hints: Mapping[str, Any]
    schema: jsonschema_rs.Validator

    def call(self, arguments: Frame) -> Frame:
        fault = next(self.schema.iter_errors(arguments), None)
        if fault is not None:
            place = "".join(f"/{step}" for step in fault.instance_path)
            return text_result(f"{place or 'the arguments'}: {fault.message}", is_error=True)
        given = self.function(
            **{name: build_value(self.hints[name], said) for name, said in arguments.items()}
        )
        return self._given(asyncio.run(given) if inspect.iscoroutine(given) else given)

    def _given(self, value: object) -> Frame:
        said = to_json_value(value)
        if not self.signature.outputs:
            return text_result("" if said is None else jsonrpc.to_json(said).decode())
        names = {field.name for field in self.signature.outputs}
        table = cast("Frame", said) if isinstance(said, dict) else {}
        is_whole = bool(table) and (names != {RESULT} or RESULT in table)
        structured: Frame = table if is_whole else {RESULT: cast("object", said)}
        shown = said if isinstance(said, str) else jsonrpc.to_json(said).decode()
        return {**text_result(shown), "structuredContent": structured}


class ModuleFunctionServer(StdioToolServer):
    """The functions of one module, to one client."""

    name = "comity-functions"

    def __init__(
        self, held: Mapping[str, RegisteredFunction], reader: TextIO, writer: TextIO
    ) -> None:
        super().__init__(reader, writer)
        self._held = held

    def tools(self) -> list[Frame]:
        return [each.signature.to_mcp_tool() for each in self._held.values()]

    def call(self, name: str, arguments: Frame, meta: Frame) -> Frame | None:
        held = self._held.get(name)
        if held is None:
            return None
        try:
            return held.call(arguments)
        except Exception as error:
            # A function of a user can raise any exception.
            log.exception("the function %s failed", name)
            return text_result(f"{type(error).__name__}: {error}", is_error=True)


def load_functions(named: str) -> dict[str, RegisteredFunction]:
    """The functions that `package.module`, `package.module:name` or `file.py` names."""
    place, _, only = named.partition(":")
    module = _module(place)
    wanted = only.split(",") if only else _offered(module)
    held = {name: _registered(_function(module, name), name) for name in wanted}
    if not held:
        raise Misconfigured(f"{place} has no function to offer; write one, or name it in __all__")
    return held


def serve_functions(named: str) -> None:
    """Serve the functions over stdio; their own output goes to standard error."""
    held = load_functions(named)
    writer, sys.stdout = sys.stdout, sys.stderr
    ModuleFunctionServer(held, sys.stdin, writer).serve()


def _module(place: str) -> ModuleType:
    # The module may be in the working directory, as with `python -m`.
    sys.path.insert(0, str(Path.cwd()))
    try:
        return _file(place) if place.endswith(".py") else importlib.import_module(place)
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        raise Misconfigured(f"{place!r} cannot be imported: {error}; is it on the path?") from error


def _file(place: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    if spec is None or spec.loader is None:
        raise ImportError(place)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _offered(module: ModuleType) -> Iterable[str]:
    """The functions in `__all__`; without it, the module's own functions without a leading `_`."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return [str(name) for name in listed if inspect.isfunction(getattr(module, name, None))]
    own = inspect.getmembers(module, inspect.isfunction)
    return [
        name
        for name, function in own
        if not name.startswith("_") and function.__module__ == module.__name__
    ]


def _function(module: ModuleType, name: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if not inspect.isfunction(found):
        raise Misconfigured(f"{module.__name__} has no function {name!r}")
    return found


def _registered(function: Callable[..., Any], name: str) -> RegisteredFunction:
    signature = read_function(function, name)
    hints = typing.get_type_hints(function, include_extras=True)
    return RegisteredFunction(
        function, signature, hints, jsonschema_rs.validator_for(signature.to_json_schema())
    )
