"""Compiles one untrusted JSON Schema in a process of its own, which may die of a bad one.

The compiler never follows a `$ref` to another document, neither to the network nor to a file. A
small schema can keep it busy for minutes (`unevaluatedProperties` over doubled references, repeated
Unicode classes), and no limit on its text prevents that. Therefore each compilation has timers. The
timers have no signal handler, since a handler could not run before the compiler returns. The signal
ends the process, and `comity.validation.compiled_schemas` starts another. (Decision 0006)
"""

from collections.abc import Callable
from typing import Any, Final, NoReturn, cast

import jsonschema_rs
import msgspec

from comity.toolkit.worker_process import WorkerLimits, answer_lines

MOST_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 32
MAX_PARTS: Final = 10_000
MAX_REFERENCES: Final = 2_000

ARGUMENTS: Final = b"a"
RESULTS: Final = b"r"
CPU_SECONDS: Final = 0.5
WALL_SECONDS: Final = 30.0
_REASON_LENGTH: Final = 200
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})

type _Compile = Callable[..., object]


def check_schema(schema: object, *, of_arguments: bool = False) -> str | None:
    """Return why the schema cannot be used, in one sentence, or None.

    MCP requires that arguments are an object. A client built on the official TypeScript SDK refuses
    the whole list of tools if one of them has another type, or none.
    """
    try:
        return check_encoded(msgspec.json.encode(schema), of_arguments=of_arguments)
    except (TypeError, ValueError, RecursionError):
        return "it is not JSON"


def check_encoded(data: bytes, *, of_arguments: bool = False) -> str | None:
    if len(data) > MOST_BYTES:
        return f"it has over {MOST_BYTES} bytes"
    try:
        schema = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return "it is not JSON"
    if not isinstance(schema, dict):
        return "it is not an object"
    document = cast("dict[str, Any]", schema)
    if of_arguments and document.get("type") != "object":
        return 'it must have "type": "object"'
    return _excess(document) or _compile_fault(document)


def _excess(schema: dict[str, Any]) -> str | None:
    """Return which limit a schema exceeds, or None. The walk uses no recursion."""
    parts = references = 0
    level: list[object] = [schema]
    for _ in range(MAX_DEPTH):
        deeper: list[object] = []
        for value in level:
            parts += 1
            if isinstance(value, dict):
                table = cast("dict[str, object]", value)
                references += len(_REFERENCES & table.keys())
                deeper.extend(table.values())
            elif isinstance(value, list):
                deeper.extend(cast("list[object]", value))
        if parts > MAX_PARTS:
            return f"it has over {MAX_PARTS} parts"
        if references > MAX_REFERENCES:
            return f"it has over {MAX_REFERENCES} references"
        if not deeper:
            return None
        level = deeper
    return f"it is nested over {MAX_DEPTH} deep"


def _compile_fault(schema: dict[str, Any]) -> str | None:
    if _failure(jsonschema_rs.validator_for, schema, jsonschema_rs.RegexOptions()) is None:
        return None
    # Look-around is valid ECMA-262, and the zod library writes it for every e-mail address. Such a
    # schema is usable; it only cannot be matched in linear time here.
    fancy = jsonschema_rs.FancyRegexOptions()
    failure = _failure(jsonschema_rs.validator_for, schema, fancy)
    if failure is None:
        return None
    place = "".join(f"/{step}" for step in getattr(failure, "instance_path", ()))
    # The default is 2020-12, but many servers write draft 7 without saying so. A reference that
    # leads nowhere has no place among the keywords, and an older draft does not excuse it.
    if place and "$schema" not in schema:
        failure = _failure(jsonschema_rs.Draft7Validator, schema, fancy) and failure
    if failure is None:
        return None
    message = getattr(failure, "message", str(failure))
    return _one_line(message) + (f" (at {_one_line(place)})" if place else "")


def _failure(compile_: _Compile, schema: dict[str, Any], patterns: object) -> Exception | None:
    try:
        compile_(schema, pattern_options=patterns, retriever=_refuse)
    except (ValueError, OverflowError, RecursionError, jsonschema_rs.ReferencingError) as failure:
        return failure
    return None


def _refuse(uri: str) -> NoReturn:
    raise ValueError("other documents are not fetched")


def _one_line(text: str) -> str:
    """Return a text on one line, short and printable, since it may quote an untrusted schema."""
    kept = text[:_REASON_LENGTH]
    return "".join(each if each.isprintable() else " " for each in kept)


def _answer(line: bytes) -> bytes:
    return msgspec.json.encode(check_encoded(line[1:], of_arguments=line[:1] == ARGUMENTS))


def serve_schemas() -> None:
    """Read one schema per line, after a letter for its role. Write a reason or null per line."""
    answer_lines(_answer, WorkerLimits(2 * MOST_BYTES, CPU_SECONDS, WALL_SECONDS))


if __name__ == "__main__":
    serve_schemas()
