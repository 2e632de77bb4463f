"""How the registry's face answers over HTTP: whole bodies, large ones in pieces, and refusals."""

import secrets
from typing import Final

from msgspec import UNSET, Raw

from comity.rules import refusals
from comity.rules.refusals import Asked, AtRegistry, Refusal
from comity.surfaces import doorway
from comity.surfaces.doorway import JSON_TYPE, Send
from comity.wire import jsonrpc
from comity.wire.errors import NOTHING_HERE, MalformedMessage, Unavailable
from comity.wire.jsonrpc import ErrorBody, Id

TOOLS: Final = "/tools"
BENEATH: Final = "/tools/"
OPENAPI: Final = "/openapi.json"
RESOURCES: Final = "/resources"
READ: Final = "/resources/read"
AT_REGISTRY: Final = frozenset({TOOLS, OPENAPI, RESOURCES, READ})
PIECE_BYTES: Final = 64 * 1024
_FRESH: Final = (b"cache-control", b"no-store")
_RETRIED: Final = frozenset({429, 503})


def is_at_registry(path: str) -> bool:
    """Whether a path is one where the registry's words are spoken."""
    return path in AT_REGISTRY or path.startswith(BENEATH)


async def answer(send: Send, status: int, body: bytes, retry_after_ms: int | None = None) -> None:
    """One JSON body; a large one goes out as its reader takes it."""
    headers = [JSON_TYPE, (b"content-length", b"%d" % len(body)), _FRESH]
    if retry_after_ms is not None and status in _RETRIED:
        headers.append((b"retry-after", b"%d" % -(-retry_after_ms // 1000)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    pieces = memoryview(body)
    for start in range(0, len(body), PIECE_BYTES):
        piece = bytes(pieces[start : start + PIECE_BYTES])
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def answer_error(send: Send, status: int, error: bytes, request_id: Id | None) -> None:
    """An error as the registry's document has it, whatever was asked in."""
    body = jsonrpc.to_json({"jsonrpc": "2.0", "id": request_id, "error": jsonrpc.members(error)})
    await answer(send, status, body, _retry_after_ms(error))


async def refuse(
    send: Send, error: MalformedMessage | Unavailable, request_id: Id | None = None
) -> None:
    """Word what was refused before anybody knew of a call."""
    fault = error.fault
    after = error.retry_after if isinstance(error, Unavailable) else None
    asked = Asked(0, "", registry=AtRegistry())
    worded = refusals.word(asked, Refusal(fault, str(error), after), secrets.token_hex(16))
    assert worded.error is not UNSET
    status = 404 if fault is NOTHING_HERE else fault.reg_status
    await answer_error(send, status, bytes(worded.error), request_id)


async def refuse_method(send: Send, *allowed: bytes) -> None:
    await doorway.empty(send, 405, ((b"allow", b", ".join(allowed)),))


def _retry_after_ms(error: bytes) -> int | None:
    try:
        data = jsonrpc.error_of(jsonrpc.Frame("2.0", error=Raw(error)))
    except MalformedMessage:
        return None
    found = _member(data, "retry_after_ms")
    return found if isinstance(found, int) and found >= 0 else None


def _member(error: ErrorBody | None, name: str) -> object:
    data = None if error is None else error.data
    return data.get(name) if isinstance(data, dict) else None  # type: ignore[union-attr]  # any
