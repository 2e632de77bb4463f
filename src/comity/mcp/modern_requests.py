"""Detection of the protocol version, and the metadata and header checks of 2026-07-28."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, cast

from msgspec import Raw

from comity.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    UNSUPPORTED_VERSION,
    Fault,
    MalformedMessage,
)
from comity.mcp import jsonrpc, protocol
from comity.mcp.framing import BACKSLASH
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.protocol import Era, decode_header_value, encode_header_value

MAX_KNOWN_LENGTH: Final = 2048
_HANDSHAKE_HEADERS: Final = frozenset(version.encode() for version in protocol.HANDSHAKE_VERSIONS)


@dataclass(frozen=True, slots=True)
class HeaderRefusal:
    fault: Fault
    reason: str
    data: Mapping[str, object] | None = None


def era_of(version_header: bytes | None) -> Era:
    """Return the era by the version header of HTTP. A client without the header is legacy."""
    if version_header is None or version_header in _HANDSHAKE_HEADERS:
        return Era.HANDSHAKE
    return Era.MODERN


def envelope_of(frame: Frame) -> dict[str, Raw] | None:
    """Return the metadata of a modern request, or None."""
    if frame.params is UNSET:
        return None
    meta = jsonrpc.decode_members(frame.params).get("_meta")
    found = jsonrpc.decode_members(meta) if meta is not None else {}
    return found if protocol.PROTOCOL_VERSION in found else None


def refuse_envelope(frame: Frame, headers: Mapping[bytes, bytes] | None) -> HeaderRefusal | None:
    """Return what is wrong with a modern request, or None.

    `headers` is None for a transport without headers.
    """
    method = str(frame.method)
    try:
        params = frame.parameters
        meta = bytes(params.get("_meta", b"{}"))
        judge = _known if len(meta) <= MAX_KNOWN_LENGTH else _check_envelope
        if headers is None:
            return judge(meta, method, None, None)
        stated, named = (
            headers.get(protocol.VERSION_HEADER, b""),
            headers.get(protocol.METHOD_HEADER, b""),
        )
        return judge(meta, method, stated, named) or _refuse_name(method, params, headers)
    except MalformedMessage as error:
        return HeaderRefusal(INVALID_PARAMS, str(error))


def _check_envelope(
    meta: bytes, method: str, stated: bytes | None, named: bytes | None
) -> HeaderRefusal | None:
    """Check the metadata itself, and the headers that repeat it."""
    found = jsonrpc.decode_members(meta)
    missing = [
        key for key in (protocol.PROTOCOL_VERSION, protocol.CLIENT_CAPABILITIES) if key not in found
    ]
    if missing:
        return HeaderRefusal(INVALID_PARAMS, f"params._meta lacks {' and '.join(missing)}")
    version = jsonrpc.decode_text(found[protocol.PROTOCOL_VERSION])
    if stated is not None and stated.strip().decode("latin-1") != version:
        unlike = "the MCP-Protocol-Version header and the envelope name different versions"
        return HeaderRefusal(HEADER_MISMATCH, unlike)
    if named is not None and named.strip() != method.encode():
        unlike = "the Mcp-Method header does not name the request's method"
        return HeaderRefusal(HEADER_MISMATCH, unlike)
    return _refuse_version(version)


# A client repeats the same metadata in each request. The cache does not hold huge metadata.
_known = lru_cache(1024)(_check_envelope)


def _refuse_name(
    method: str, params: dict[str, Raw], headers: Mapping[bytes, bytes]
) -> HeaderRefusal | None:
    member = protocol.NAME_PARAM_OF.get(method)
    if member is None or member not in params:
        return None
    name = headers.get(protocol.NAME_HEADER)
    if name is None or not _repeats(name, params[member]):
        unlike = f"the Mcp-Name header does not repeat the request's {member}"
        return HeaderRefusal(HEADER_MISMATCH, unlike)
    return None


def _repeats(header: bytes, raw: Raw) -> bool:
    """Return whether the header equals the body. Plain names are compared without decoding."""
    if bytes(raw) == b'"%b"' % header and header.isascii() and not _may_be_encoded(header):
        return True
    said = decode_header_value(header)
    return said is not None and said == jsonrpc.decode_text(raw)


def _may_be_encoded(header: bytes) -> bool:
    """Return whether a header may be encoded."""
    return BACKSLASH in header or header.startswith(b"=?")


def _refuse_version(version: str | None) -> HeaderRefusal | None:
    if version is None:
        return HeaderRefusal(INVALID_PARAMS, "the protocol version is a string")
    if version in protocol.MODERN_VERSIONS:
        return None
    supported = {"supported": list(protocol.MODERN_VERSIONS), "requested": version[:64]}
    return HeaderRefusal(UNSUPPORTED_VERSION, "this protocol version is not supported", supported)


MARK: Final = "x-mcp-header"
TYPES: Final = ("string", "integer", "boolean")
"""The types that a header can repeat. Programs write fractions in different ways."""

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
class HeaderArgument:
    """An argument that a header repeats: its path, its header, and whether it is a number."""

    path: Path
    header: bytes
    is_integer: bool


@lru_cache(1024)
def marks_in(definition: bytes) -> tuple[HeaderArgument, ...]:
    """Return the marked arguments of a tool."""
    if MARK.encode() not in definition:
        return ()
    try:
        schema = jsonrpc.decode_value(jsonrpc.decode_members(definition).get("inputSchema", b"{}"))
    except MalformedMessage:
        return ()
    found = [_mark(path, part) for path, part in _parts(schema) if MARK in part]
    marks = tuple(mark for mark in found if mark is not None)
    are_told_apart = len({mark.header for mark in marks}) == len(found)
    return marks if are_told_apart else ()


def _mark(path: Path | None, part: Mapping[str, object]) -> HeaderArgument | None:
    """Return the mark of one part of a schema, or None if it may not have one."""
    token, kind = part[MARK], part.get("type")
    if not path or kind not in TYPES or not isinstance(token, str):
        return None
    if not _TOKEN.fullmatch(token):
        return None
    return HeaderArgument(
        path, protocol.PARAM_HEADER_PREFIX + token.lower().encode(), kind == "integer"
    )


def _parts(schema: object) -> Iterator[tuple[Path | None, Mapping[str, object]]]:
    """Yield every subschema, with its path if that leads through properties only."""
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


def headers_for(
    header_arguments: Iterable[HeaderArgument], arguments: object
) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that repeat these arguments."""
    said = ((mark.header, _header_value(_at(arguments, mark.path))) for mark in header_arguments)
    return tuple((name, encode_header_value(value)) for name, value in said if value is not None)


def header_mismatch_reason(
    header_arguments: Iterable[HeaderArgument], arguments: object, headers: Headers
) -> str | None:
    """Return what is wrong with the headers that must repeat these arguments, or None."""
    given: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        given.setdefault(name, []).append(value)
    for mark in header_arguments:
        value, found = _at(arguments, mark.path), given.get(mark.header, [])
        label = f"the {mark.header.decode()} header"
        if len(found) > 1:
            return f"{label} appears twice"
        if _header_value(value) is None:
            if found:
                return f"{label} repeats an argument that is not there"
        elif not found or not _mirrored_repeats(mark, value, decode_header_value(found[0])):
            return f"{label} does not repeat the argument {'.'.join(mark.path):.200}"
    return None


def _at(arguments: object, path: Path) -> object:
    node = arguments
    for name in path:
        node = cast("Mapping[str, object]", node).get(name) if isinstance(node, dict) else None
    return node


def _header_value(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _mirrored_repeats(header_argument: HeaderArgument, value: object, text: str | None) -> bool:
    """Return whether a header equals an argument. Numbers compare by value (42 is 42.0)."""
    if text is None:
        return False
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    decimal = _DECIMAL.fullmatch(text)
    if (
        header_argument.is_integer
        and is_whole
        and not isinstance(value, bool)
        and decimal is not None
    ):
        return int(decimal[1]) == value
    return text == _header_value(value)
