"""Arguments that a modern request repeats in `Mcp-Param-*` headers. (2026-07-28, x-mcp-header)

A tool's schema marks such an argument. Whoever sends the request writes the headers, whoever serves
it compares them: a proxy in between may have routed by what they say. A schema with a mark where
none may stand marks nothing at all: its clients leave the tool out and write no headers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, cast

from comity.wire import jsonrpc, mcp
from comity.wire.errors import MalformedMessage
from comity.wire.headers import unwrap, wrap

MARK: Final = "x-mcp-header"
TYPES: Final = ("string", "integer", "boolean")
"""What may be repeated in a header: a fraction is not written alike by everybody."""

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}")
_DECIMAL: Final = re.compile(r"(-?[0-9]{1,4300})(?:\.0+)?")
_ONE_SCHEMA: Final = frozenset(
    {"items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames"}
    | {"unevaluatedProperties", "not", "if", "then", "else", "contentSchema"}
)
_SCHEMAS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMAS_BY_NAME: Final = frozenset(
    {"patternProperties", "dependentSchemas", "$defs", "definitions"}
)

type Path = tuple[str, ...]
type Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a marked argument stands, the name of its header, and whether it is a number."""

    path: Path
    header: bytes
    is_integer: bool


@lru_cache(1024)
def marks_in(definition: bytes) -> tuple[Mark, ...]:
    """The marked arguments of a tool."""
    if MARK.encode() not in definition:
        return ()
    try:
        schema = jsonrpc.value(jsonrpc.members(definition).get("inputSchema", b"{}"))
    except MalformedMessage:
        return ()
    found = [_mark(path, part) for path, part in _parts(schema) if MARK in part]
    marks = tuple(mark for mark in found if mark is not None)
    are_told_apart = len({mark.header for mark in marks}) == len(found)
    return marks if are_told_apart else ()


def _mark(path: Path | None, part: Mapping[str, object]) -> Mark | None:
    """The mark of one part of a schema; None where it may not have one."""
    token, kind = part[MARK], part.get("type")
    if not path or kind not in TYPES or not isinstance(token, str):
        return None
    if not _TOKEN.fullmatch(token):
        return None
    return Mark(path, mcp.PARAM_HEADER_PREFIX + token.lower().encode(), kind == "integer")


def _parts(schema: object) -> Iterator[tuple[Path | None, Mapping[str, object]]]:
    """Every schema in a schema, with the way there where that leads through properties alone."""
    waiting: list[tuple[Path | None, object]] = [((), schema)]
    while waiting:
        path, part = waiting.pop()
        if not isinstance(part, dict):
            continue
        found = cast("dict[str, object]", part)
        yield path, found
        for keyword, inside in found.items():
            waiting += _inner(path, keyword, inside)


def _inner(path: Path | None, keyword: str, inside: object) -> list[tuple[Path | None, object]]:
    if keyword in _ONE_SCHEMA:
        return [(None, inside)]
    if isinstance(inside, list) and keyword in _SCHEMAS:
        return [(None, each) for each in cast("list[object]", inside)]
    if not isinstance(inside, dict):
        return []
    named = cast("dict[str, object]", inside)
    if keyword == "properties":
        return [(None if path is None else (*path, name), each) for name, each in named.items()]
    return [(None, each) for each in named.values()] if keyword in _SCHEMAS_BY_NAME else []


def headers_for(marks: Iterable[Mark], arguments: object) -> tuple[tuple[bytes, bytes], ...]:
    """The headers that repeat these arguments."""
    said = ((mark.header, _rendered(_at(arguments, mark.path))) for mark in marks)
    return tuple((name, wrap(value)) for name, value in said if value is not None)


def contradiction(marks: Iterable[Mark], arguments: object, headers: Headers) -> str | None:
    """What is wrong with the headers that should repeat these arguments, if anything is."""
    given: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        given.setdefault(name, []).append(value)
    for mark in marks:
        value, found = _at(arguments, mark.path), given.get(mark.header, [])
        label = f"the {mark.header.decode()} header"
        if len(found) > 1:
            return f"{label} appears twice"
        if _rendered(value) is None:
            if found:
                return f"{label} repeats an argument that is not there"
        elif not found or not _repeats(mark, value, unwrap(found[0])):
            return f"{label} does not repeat the argument {'.'.join(mark.path):.200}"
    return None


def _at(arguments: object, path: Path) -> object:
    node = arguments
    for name in path:
        node = cast("Mapping[str, object]", node).get(name) if isinstance(node, dict) else None
    return node


def _rendered(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _repeats(mark: Mark, value: object, said: str | None) -> bool:
    """Whether a header says an argument; whole numbers are compared as numbers. (42 is 42.0)"""
    if said is None:
        return False
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    decimal = _DECIMAL.fullmatch(said)
    if mark.is_integer and is_whole and not isinstance(value, bool) and decimal is not None:
        return int(decimal[1]) == value
    return said == _rendered(value)
