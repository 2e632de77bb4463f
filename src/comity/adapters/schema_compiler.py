"""Whether one JSON Schema of a stranger can be compiled; alone in a process, it dies of a bad one.

A `$ref` to another document is never followed, neither to the network nor to a file. A small schema
can keep the compiler busy for minutes (`unevaluatedProperties` over doubled references, Unicode
classes repeated), and no limit on its text prevents that: hence the timers around each. A timer's
signal is not handled, since no handler would run before the compiler returns; it ends the process,
and `comity.adapters.schemas` starts another. (Decision 0006)
"""

from collections.abc import Callable
from typing import Any, Final, NoReturn, cast

import jsonschema_rs
import msgspec

from comity.adapters.side_process import Bounds, answer_lines

MOST_BYTES: Final = 64 * 1024
MOST_DEPTH: Final = 32
MOST_PARTS: Final = 10_000
MOST_REFERENCES: Final = 2_000

ARGUMENTS: Final = b"a"
RESULTS: Final = b"r"
CPU_SECONDS: Final = 0.5
WALL_SECONDS: Final = 30.0
_REASON_LENGTH: Final = 200
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})

type _Compile = Callable[..., object]


def check_schema(schema: object, *, of_arguments: bool = False) -> str | None:
    """Why the schema cannot be used, in one sentence; None if it can.

    MCP demands of arguments that they are an object. A client built on the official TypeScript SDK
    refuses the whole list of tools when one of them says otherwise, or nothing.
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
    """What it has too much of; walked without recursion."""
    parts = references = 0
    level: list[object] = [schema]
    for _ in range(MOST_DEPTH):
        deeper: list[object] = []
        for value in level:
            parts += 1
            if isinstance(value, dict):
                table = cast("dict[str, object]", value)
                references += len(_REFERENCES & table.keys())
                deeper.extend(table.values())
            elif isinstance(value, list):
                deeper.extend(cast("list[object]", value))
        if parts > MOST_PARTS:
            return f"it has over {MOST_PARTS} parts"
        if references > MOST_REFERENCES:
            return f"it has over {MOST_REFERENCES} references"
        if not deeper:
            return None
        level = deeper
    return f"it is nested over {MOST_DEPTH} deep"


def _compile_fault(schema: dict[str, Any]) -> str | None:
    if _failure(jsonschema_rs.validator_for, schema, jsonschema_rs.RegexOptions()) is None:
        return None
    # Look-around is good ECMA-262, and the zod library writes it for every e-mail address. Such a
    # schema is no fault of its server; it only cannot be matched here in linear time.
    fancy = jsonschema_rs.FancyRegexOptions()
    failure = _failure(jsonschema_rs.validator_for, schema, fancy)
    if failure is None:
        return None
    place = "".join(f"/{step}" for step in getattr(failure, "instance_path", ()))
    # The default is 2020-12, but many servers write draft 7 and do not say so. A reference that
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
    """The stranger's own words may be in it: kept short and printable."""
    kept = text[:_REASON_LENGTH]
    return "".join(each if each.isprintable() else " " for each in kept)


def _answer(line: bytes) -> bytes:
    return msgspec.json.encode(check_encoded(line[1:], of_arguments=line[:1] == ARGUMENTS))


def serve() -> None:
    """One schema a line, after a letter that says what it is of; one reason or null a line back."""
    answer_lines(_answer, Bounds(2 * MOST_BYTES, CPU_SECONDS, WALL_SECONDS))


if __name__ == "__main__":
    serve()
