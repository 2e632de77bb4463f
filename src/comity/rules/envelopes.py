"""Which MCP era a request is of, and what is wrong with a modern one's envelope. (2026-07-28)

The order of the checks is part of the contract: the envelope's presence, then whether the headers
agree with the body, then the version; so a client that contradicts itself is told that first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from msgspec import Raw

from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    UNSUPPORTED_VERSION,
    Fault,
    MalformedMessage,
)
from comity.wire.headers import unwrap
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.lines import BACKSLASH
from comity.wire.mcp import Era

LONGEST_KNOWN: Final = 2048
_HANDSHAKE_HEADERS: Final = frozenset(version.encode() for version in mcp.HANDSHAKE_VERSIONS)


@dataclass(frozen=True, slots=True)
class Refusal:
    fault: Fault
    because: str
    data: Mapping[str, object] | None = None


def era_of(version_header: bytes | None) -> Era:
    """Over HTTP the version header tells; a client without one is of the handshake era."""
    if version_header is None or version_header in _HANDSHAKE_HEADERS:
        return Era.HANDSHAKE
    return Era.MODERN


def envelope_of(frame: Frame) -> dict[str, Raw] | None:
    """The modern envelope in a request's parameters, or None where there is none."""
    if frame.params is UNSET:
        return None
    meta = jsonrpc.members(frame.params).get("_meta")
    found = jsonrpc.members(meta) if meta is not None else {}
    return found if mcp.PROTOCOL_VERSION in found else None


def refuse_envelope(frame: Frame, headers: Mapping[bytes, bytes] | None) -> Refusal | None:
    """What is wrong with a modern request; `headers` is None where the transport has none."""
    method = str(frame.method)
    try:
        params = jsonrpc.params_of(frame)
        meta = bytes(params.get("_meta", b"{}"))
        judge = _known if len(meta) <= LONGEST_KNOWN else _judge
        if headers is None:
            return judge(meta, method, None, None)
        stated, named = headers.get(mcp.VERSION_HEADER, b""), headers.get(mcp.METHOD_HEADER, b"")
        return judge(meta, method, stated, named) or _refuse_name(method, params, headers)
    except MalformedMessage as error:
        return Refusal(INVALID_PARAMS, str(error))


def _judge(meta: bytes, method: str, stated: bytes | None, named: bytes | None) -> Refusal | None:
    """The envelope against itself and against the headers that repeat it."""
    found = jsonrpc.members(meta)
    missing = [key for key in (mcp.PROTOCOL_VERSION, mcp.CLIENT_CAPABILITIES) if key not in found]
    if missing:
        return Refusal(INVALID_PARAMS, f"params._meta lacks {' and '.join(missing)}")
    version = jsonrpc.text(found[mcp.PROTOCOL_VERSION])
    if stated is not None and stated.strip().decode("latin-1") != version:
        unlike = "the MCP-Protocol-Version header and the envelope name different versions"
        return Refusal(HEADER_MISMATCH, unlike)
    if named is not None and named.strip() != method.encode():
        unlike = "the Mcp-Method header does not name the request's method"
        return Refusal(HEADER_MISMATCH, unlike)
    return _refuse_version(version)


# A client says the same envelope in each of its requests; a huge one is not remembered.
_known = lru_cache(1024)(_judge)


def _refuse_name(
    method: str, params: dict[str, Raw], headers: Mapping[bytes, bytes]
) -> Refusal | None:
    member = mcp.NAMED_BY.get(method)
    if member is None or member not in params:
        return None
    name = headers.get(mcp.NAME_HEADER)
    if name is None or not _repeats(name, params[member]):
        unlike = f"the Mcp-Name header does not repeat the request's {member}"
        return Refusal(HEADER_MISMATCH, unlike)
    return None


def _repeats(header: bytes, raw: Raw) -> bool:
    """Whether the header says what the body says; plain names are compared as they stand."""
    if bytes(raw) == b'"%b"' % header and header.isascii() and not _is_coded(header):
        return True
    said = unwrap(header)
    return said is not None and said == jsonrpc.text(raw)


def _is_coded(header: bytes) -> bool:
    """Whether a header may stand for something else than it shows."""
    return BACKSLASH in header or header.startswith(b"=?")


def _refuse_version(version: str | None) -> Refusal | None:
    if version is None:
        return Refusal(INVALID_PARAMS, "the protocol version is a string")
    if version in mcp.MODERN_VERSIONS:
        return None
    supported = {"supported": list(mcp.MODERN_VERSIONS), "requested": version[:64]}
    return Refusal(UNSUPPORTED_VERSION, "this protocol version is not supported", supported)
