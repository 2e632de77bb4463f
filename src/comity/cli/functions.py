"""The functions of a module as a tool server on pipes: each by its signature. (REG, D-81)

To register a tool is to write a function, and to name its module in a configuration. Arguments are
held against the schema that was made of the signature before the function sees them.
"""

import asyncio
import importlib
import importlib.util
import inspect
import logging
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO, cast

import jsonschema_rs

from comity.cli.piped import Frame, Piped, text
from comity.rules.annotations import RESULT, build, plain, read_function
from comity.rules.signatures import Signature
from comity.wire import jsonrpc
from comity.wire.errors import Misconfigured

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Registered:
    """One function, what it is known by, and what looks at its arguments."""

    function: Callable[..., Any]
    signature: Signature
    hints: Mapping[str, Any]
    schema: jsonschema_rs.Validator

    def call(self, arguments: Frame) -> Frame:
        fault = next(self.schema.iter_errors(arguments), None)
        if fault is not None:
            place = "".join(f"/{step}" for step in fault.instance_path)
            return text(f"{place or 'the arguments'}: {fault.message}", is_error=True)
        given = self.function(
            **{name: build(self.hints[name], said) for name, said in arguments.items()}
        )
        return self._given(asyncio.run(given) if inspect.iscoroutine(given) else given)

    def _given(self, given: object) -> Frame:
        said = plain(given)
        if not self.signature.outputs:
            return text("" if said is None else jsonrpc.to_json(said).decode())
        names = {field.name for field in self.signature.outputs}
        table = cast("Frame", said) if isinstance(said, dict) else {}
        is_whole = bool(table) and (names != {RESULT} or RESULT in table)
        structured: Frame = table if is_whole else {RESULT: cast("object", said)}
        shown = said if isinstance(said, str) else jsonrpc.to_json(said).decode()
        return {**text(shown), "structuredContent": structured}


class Functions(Piped):
    """The functions of one module, to one client."""

    name = "comity-functions"

    def __init__(self, held: Mapping[str, Registered], reader: TextIO, writer: TextIO) -> None:
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
            # The function is somebody else's, and may raise whatever it likes.
            log.exception("the function %s failed", name)
            return text(f"{type(error).__name__}: {error}", is_error=True)


def register(named: str) -> dict[str, Registered]:
    """The functions that `package.module`, `package.module:name` or `file.py` stands for."""
    place, _, only = named.partition(":")
    module = _module(place)
    wanted = only.split(",") if only else _offered(module)
    held = {name: _registered(_function(module, name), name) for name in wanted}
    if not held:
        raise Misconfigured(f"{place} has no function to offer; write one, or name it in __all__")
    return held


def serve(named: str) -> None:
    """Offer them on stdin and stdout; whatever they print themselves goes to stderr."""
    held = register(named)
    writer, sys.stdout = sys.stdout, sys.stderr
    Functions(held, sys.stdin, writer).serve()


def _module(place: str) -> ModuleType:
    # What a person starts here may be what stands here, as with `python -m`.
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
    """What it lists in `__all__`; or else every function of its own that hides behind no `_`."""
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


def _registered(function: Callable[..., Any], name: str) -> Registered:
    signature = read_function(function, name)
    hints = typing.get_type_hints(function, include_extras=True)
    return Registered(
        function, signature, hints, jsonschema_rs.validator_for(signature.to_json_schema())
    )
